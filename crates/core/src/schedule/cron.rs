//! Cron expressions as sets of bits, and the search for the next reading of a clock that fits.

use jiff::civil::{Date, DateTime};

use super::ScheduleError;

const MONTHS: &[&str] =
    &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// The longest time without a given weekday on a given day of the year is twelve years, around 2100.
const SEARCHED_YEARS: i16 = 13;

struct Field {
    name: &'static str,
    least: u8,
    most: u8,
    /// The first stands for `least`.
    words: &'static [&'static str],
}

const SECOND: Field = Field { name: "second", least: 0, most: 59, words: &[] };
const MINUTE: Field = Field { name: "minute", least: 0, most: 59, words: &[] };
const HOUR: Field = Field { name: "hour", least: 0, most: 23, words: &[] };
const DAY: Field = Field { name: "day of the month", least: 1, most: 31, words: &[] };
const MONTH: Field = Field { name: "month", least: 1, most: 12, words: MONTHS };
/// 7 is Sunday, too.
const WEEKDAY: Field = Field { name: "day of the week", least: 0, most: 7, words: DAYS };

/// Which values of each field fit: bit n stands for n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both days are restricted: either will do, as in every cron since 1979.
    either_day: bool,
}

impl Cron {
    pub(super) fn parse(text: &str) -> Result<Self, ScheduleError> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let (second, [minute, hour, day, month, weekday]) = match fields.as_slice() {
            &[minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
            &[second, minute, hour, day, month, weekday] => {
                (second, [minute, hour, day, month, weekday])
            }
            other => {
                return Err(ScheduleError(format!(
                    "a cron expression has 5 fields (minute hour day month weekday), or 6 with a \
                        second before them; this one has {}; `every 30m` and `@daily` also work",
                    other.len()
                )));
            }
        };
        let mut weekdays = WEEKDAY.parse(weekday)?;
        weekdays |= (weekdays >> 7) & 1;
        let cron = Self {
            seconds: SECOND.parse(second)?,
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        };
        cron.ever(day, month)?;
        Ok(cron)
    }

    /// Whether some month that is named has some day that is named.
    fn ever(&self, day: &str, month: &str) -> Result<(), ScheduleError> {
        let longest = |month: u8| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let fits = |month: u8| (1..=longest(month)).any(|day| has(self.days, day));
        if self.either_day || (1..=12).any(|month| has(self.months, month) && fits(month)) {
            return Ok(());
        }
        let why = match (1..=12).filter(|month| has(self.months, *month)).map(longest).max() {
            Some(29) => "February has at most 29 days".to_owned(),
            most => format!("the longest of these months has {} days", most.unwrap_or(30)),
        };
        Err(ScheduleError(format!(
            "this never comes: there is no day {day} in month {month}; {why}"
        )))
    }

    /// The first reading later than this one that fits.
    pub(super) fn after(&self, reading: DateTime) -> Option<DateTime> {
        let second = jiff::Span::new().try_seconds(1).ok()?;
        let whole = reading.with().subsec_nanosecond(0).build().ok()?;
        let from = whole.checked_add(second).ok()?;
        let last = from.year().checked_add(SEARCHED_YEARS)?;
        let (mut date, mut from_time) = (from.date(), from.time());
        while date.year() <= last {
            if !has(self.months, bits(date.month())) {
                date = date.last_of_month().tomorrow().ok()?;
                from_time = jiff::civil::Time::midnight();
                continue;
            }
            if self.day_fits(date)
                && let Some((hour, minute, second)) = self.time(from_time)
            {
                return date.at(hour, minute, second, 0).into();
            }
            date = date.tomorrow().ok()?;
            from_time = jiff::civil::Time::midnight();
        }
        None
    }

    fn day_fits(&self, date: Date) -> bool {
        let day = has(self.days, bits(date.day()));
        let weekday = has(self.weekdays, bits(date.weekday().to_sunday_zero_offset()));
        if self.either_day { day || weekday } else { day && weekday }
    }

    /// The first time of a day that fits and is not before this one.
    fn time(&self, from: jiff::civil::Time) -> Option<(i8, i8, i8)> {
        let (hour, minute, second) = (bits(from.hour()), bits(from.minute()), bits(from.second()));
        let first = |set: u64| set.trailing_zeros();
        let mut found = None;
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = at_least(self.seconds, second)
            {
                found = Some((u32::from(hour), u32::from(minute), second));
            } else if let Some(minute) = at_least(self.minutes, minute.saturating_add(1)) {
                found = Some((u32::from(hour), minute, first(self.seconds)));
            }
        }
        let found = match found {
            Some(found) => found,
            None => {
                let hour = at_least(self.hours, hour.saturating_add(1))?;
                (hour, first(self.minutes), first(self.seconds))
            }
        };
        let small = |number: u32| i8::try_from(number).ok();
        Some((small(found.0)?, small(found.1)?, small(found.2)?))
    }
}

/// Parts of a civil time are never negative.
fn bits(part: i8) -> u8 {
    part.unsigned_abs()
}

fn has(set: u64, value: u8) -> bool {
    set.checked_shr(u32::from(value)).is_some_and(|rest| rest & 1 == 1)
}

/// The smallest value of the set that is not below `least`.
fn at_least(set: u64, least: u8) -> Option<u32> {
    let rest = set.checked_shr(u32::from(least))?;
    (rest != 0).then(|| rest.trailing_zeros() + u32::from(least))
}

impl Field {
    fn parse(&self, text: &str) -> Result<u64, ScheduleError> {
        text.split(',').try_fold(0, |set, part| Ok(set | self.part(text, part)?))
    }

    /// `*`, `7`, `mon`, `1-5`, `*/10`, `20-40/5`, `5/10`.
    fn part(&self, text: &str, part: &str) -> Result<u64, ScheduleError> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.least, self.most),
            Some((first, last)) => (self.value(text, first)?, self.value(text, last)?),
            None if step.is_some() => (self.value(text, range)?, self.most),
            None => self.value(text, range).map(|one| (one, one))?,
        };
        if first > last {
            let name = self.name;
            let hint = format!("`{range}` of the {name} ends before it begins");
            return Err(ScheduleError(format!(
                "{hint}; write {first}-{},{}-{last}",
                self.most, self.least
            )));
        }
        let step = match step {
            None => 1,
            Some(step) => match step.parse::<u8>() {
                Ok(step @ 1..) => step,
                _ => return Err(self.wrong(text, "the step after `/` must be a number from 1")),
            },
        };
        let values = (first..=last).step_by(usize::from(step));
        Ok(values.fold(0, |set, value| set | 1_u64.checked_shl(u32::from(value)).unwrap_or(0)))
    }

    fn value(&self, text: &str, word: &str) -> Result<u8, ScheduleError> {
        let lower = word.to_ascii_lowercase();
        let named = self.words.iter().zip(self.least..).find(|(known, _)| **known == lower);
        let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let number = || word.parse::<u8>().ok().filter(|_| plain);
        let found = named.map(|(_, value)| value).or_else(number);
        found.filter(|value| (self.least..=self.most).contains(value)).ok_or_else(|| {
            let names = match (self.words.first(), self.words.last()) {
                (Some(first), Some(last)) => format!(" or a name from {first} to {last}"),
                _ => String::new(),
            };
            self.wrong(text, &format!("it takes {} to {}{names}", self.least, self.most))
        })
    }

    fn wrong(&self, text: &str, why: &str) -> ScheduleError {
        let text: String = text.chars().take(40).collect();
        ScheduleError(format!("`{text}` is no {}: {why}", self.name))
    }
}
