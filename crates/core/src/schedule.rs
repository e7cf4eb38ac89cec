//! Schedules: when something that recurs is due, as a pure function of time.
//!
//! A cron expression describes the local time of its time zone, and each such time is at most one
//! tick. Times that a clock change skips tick at the first moment after the gap, once in total. A
//! time that occurs twice ticks the first time. `every 30m` counts elapsed time since the epoch and
//! has no zone.

mod cron;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use self::cron::Cron;
use crate::loops::spread;
use crate::time::Timestamp;

/// Longest text of a schedule, in bytes.
pub const MAX_TEXT: usize = 200;
/// The longest period.
pub const MAX_PERIOD: Duration = Duration::from_hours(366 * 24);
/// Ticks longer ago are not looked for.
const LONGEST_AGO: Duration = Duration::from_hours(400 * 24);
/// The shortest period of `every`.
pub const MIN_EVERY: Duration = Duration::from_secs(1);

/// The problem with a schedule or its zone, in words that say what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(pub(crate) String);

/// When something is due, again and again: it has a tick after any moment before the year 9999 that is
/// not within thirteen years of it.
#[derive(Clone, Debug)]
pub struct Schedule(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Every(Duration),
    Cron(Box<Cron>, TimeZone),
}

impl Schedule {
    /// Reads `every 30m` (units s, m, h, d, w, also together: `1h30m`), `@hourly`, `@daily`,
    /// `@weekly`, `@monthly`, `@yearly`, or 5 fields (minute, hour, day of the month, month, day of
    /// the week) or 6 (a second before them). `zone` is a name of the IANA database.
    ///
    /// # Errors
    ///
    /// Which part is wrong and what it may be; a zone that is not known; a schedule that never
    /// ticks, with the reason.
    pub fn parse(text: &str, zone: &str) -> Result<Self, ScheduleError> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_TEXT {
            return Err(ScheduleError(format!("a schedule has 1 to {MAX_TEXT} characters")));
        }
        let known = TimeZoneDatabase::bundled();
        let zone = known.get(zone).map_err(|_| {
            let zone: String = zone.chars().take(64).collect();
            ScheduleError(format!("`{zone}` is no time zone; names are like Europe/Berlin or UTC"))
        })?;
        if let Some(period) = text.strip_prefix("every ") {
            return every(period.trim()).map(|period| Self(Kind::Every(period)));
        }
        let fields = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other if other.starts_with('@') => {
                let names = "@hourly, @daily, @weekly, @monthly and @yearly";
                return Err(ScheduleError(format!("`{other}` is not known; there are {names}")));
            }
            fields => fields,
        };
        Ok(Self(Kind::Cron(Box::new(Cron::parse(fields)?), zone)))
    }

    /// A moment as a clock in its zone shows it, with the zone's name; of `every …` in UTC.
    pub fn shown(&self, at: Timestamp) -> String {
        let zone = match &self.0 {
            Kind::Cron(_, zone) => zone.clone(),
            Kind::Every(_) => TimeZone::UTC,
        };
        let Ok(moment) = jiff::Timestamp::from_microsecond(at.as_micros()) else {
            return at.to_string();
        };
        let reading = zone.to_datetime(moment).strftime("%Y-%m-%d %H:%M:%S").to_string();
        format!("{reading} {}", zone.iana_name().unwrap_or("UTC"))
    }

    /// The first tick later than `after`; `None` at the end of time.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.0 {
            Kind::Every(period) => {
                let period = i64::try_from(period.as_micros()).ok()?;
                let whole = after.as_micros().div_euclid(period).checked_add(1)?;
                whole.checked_mul(period).map(Timestamp::from_micros)
            }
            Kind::Cron(cron, zone) => next_in(cron, zone, after),
        }
    }

    /// The last tick at or before `now`; `None` where there is none within some 400 days.
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        // Back from now in windows that grow, so that few ticks lie in the first one that has any.
        let windows = std::iter::successors(Some(Duration::from_mins(1)), |last| {
            Some(*last * 8).filter(|next| *next < LONGEST_AGO * 8)
        });
        for window in windows {
            let back = i64::try_from(window.min(LONGEST_AGO).as_micros()).ok()?;
            let from = Timestamp::from_micros(now.as_micros().checked_sub(back)?);
            let ticks = std::iter::successors(self.next(from), |tick| self.next(*tick));
            if let Some(last) = ticks.take_while(|tick| *tick <= now).last() {
                return Some(last);
            }
        }
        None
    }

    /// The ticks later than `after`, at most `count`, ascending.
    pub fn ticks(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next(after), |last| self.next(*last)).take(count).collect()
    }
}

/// How much later than its tick something named so begins, less than `most`: the same whenever it is
/// computed.
pub fn jitter(name: &str, tick: Timestamp, most: Duration) -> Duration {
    spread(name, tick.as_micros().cast_unsigned(), most)
}

fn next_in(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let after = jiff::Timestamp::from_microsecond(after.as_micros()).ok()?;
    let mut reading = zone.to_datetime(after);
    loop {
        reading = cron.after(reading)?;
        let at = moment(zone, reading)?;
        if at > after {
            return Some(Timestamp::from_micros(at.as_microsecond()));
        }
    }
}

/// When a clock in the zone shows this for the first time, or passes it by.
fn moment(zone: &TimeZone, reading: DateTime) -> Option<jiff::Timestamp> {
    match zone.to_ambiguous_timestamp(reading).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(reading).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(reading).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // Read with the offset that comes after it, the reading lies before the change.
            let early = after.to_timestamp(reading).ok()?;
            zone.following(early).next().map(|change| change.timestamp())
        }
    }
}

fn every(text: &str) -> Result<Duration, ScheduleError> {
    let wrong = || {
        ScheduleError(format!(
            "`every {text}` is no period; write it like `every 30m`, `every 1h30m` or `every 1d`, \
             at least a second and at most 366 days"
        ))
    };
    period(text).filter(|every| *every >= MIN_EVERY).ok_or_else(wrong)
}

/// Reads a period like `90s`, `1h30m` or `2d`: units s, m, h, d, w; at most 366 days.
pub fn period(text: &str) -> Option<Duration> {
    let (mut seconds, mut number) = (0_u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        let count: u64 = number.parse().ok()?;
        number.clear();
        seconds = count.checked_mul(unit)?.checked_add(seconds)?;
    }
    let period = Duration::from_secs(seconds);
    (number.is_empty() && !text.is_empty() && period <= MAX_PERIOD).then_some(period)
}
