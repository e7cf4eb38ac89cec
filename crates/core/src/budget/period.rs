//! Windows of the calendar, in UTC: days, weeks that begin on Monday, months, and all of time.

use std::time::Duration;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

const DAY: i64 = 86_400_000_000;

/// The period after which a limit resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// Resets at midnight.
    Day,
    /// Resets on Monday at midnight, the start of the week in ISO 8601.
    Week,
    /// Resets at midnight on the first of the month.
    Month,
    /// Never resets.
    Total,
}

impl Period {
    pub const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Total];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.as_str() == text)
    }

    /// Returns when the window of `at` began. For [`Period::Total`], that is the earliest possible
    /// time.
    pub fn start(self, at: Timestamp) -> Timestamp {
        let day = day_of(at);
        match self {
            Self::Day => start_of(day),
            // 1970-01-01 was a Thursday. Only the last days of time wrap.
            Self::Week => start_of(day - day.wrapping_add(3).rem_euclid(7)),
            Self::Month => match date(day) {
                Some(date) => start_of(days(date.first_of_month())),
                // Beyond the year 9999 every day is a month of its own.
                None => start_of(day),
            },
            Self::Total => Timestamp::from_micros(i64::MIN),
        }
    }

    /// Returns when the window that began at `start` ends; `None` if it never does.
    pub fn end(self, start: Timestamp) -> Option<Timestamp> {
        let day = day_of(start);
        match self {
            Self::Day => Some(start_of(day.saturating_add(1))),
            Self::Week => Some(start_of(day.saturating_add(7))),
            Self::Month => match date(day) {
                Some(date) => Some(start_of(days(date.last_of_month()).saturating_add(1))),
                None => Some(start_of(day.saturating_add(1))),
            },
            Self::Total => None,
        }
    }
}

/// Returns the UTC day of `at`, counted from 1970-01-01.
pub fn day_of(at: Timestamp) -> i32 {
    let day = at.as_micros().div_euclid(DAY);
    i32::try_from(day).unwrap_or(if day < 0 { i32::MIN } else { i32::MAX })
}

/// Returns the midnight at which a day begins.
pub fn start_of(day: i32) -> Timestamp {
    Timestamp::from_micros(i64::from(day).saturating_mul(DAY))
}

/// Returns the day as `2026-11-22`, or as a number beyond the year 9999.
pub fn day_name(day: i32) -> String {
    date(day).map_or_else(|| day.to_string(), |date| date.to_string())
}

/// Parses a day such as `2026-11-22`.
pub fn day_named(text: &str) -> Option<i32> {
    text.parse::<Date>().ok().map(days)
}

fn date(day: i32) -> Option<Date> {
    let epoch = Date::constant(1970, 1, 1);
    epoch.checked_add(jiff::Span::new().try_days(i64::from(day)).ok()?).ok()
}

fn days(date: Date) -> i32 {
    let since = date.duration_since(Date::constant(1970, 1, 1));
    i32::try_from(since.as_secs().div_euclid(86_400)).unwrap_or(i32::MAX)
}

/// Returns the time until the window of `at` ends; `None` if it never does.
pub fn left(period: Period, at: Timestamp) -> Option<Duration> {
    period.end(period.start(at)).map(|end| end.since(at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn budget_windows_follow_the_utc_calendar() {
        // A Sunday.
        let now = at("2026-11-22T20:19:55.182849+00:00");
        for (period, start, end) in [
            (Period::Day, "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),
            (Period::Week, "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            (Period::Month, "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
        ] {
            assert_eq!(period.start(now), at(start), "{period:?}");
            assert_eq!(period.end(at(start)), Some(at(end)), "{period:?}");
        }
        assert_eq!(Period::Total.end(Period::Total.start(now)), None);
        assert_eq!(Period::Month.end(at("2028-02-01T00:00:00Z")), Some(at("2028-03-01T00:00:00Z")));
        assert_eq!(Period::Week.start(at("2026-11-23T00:00:00Z")), at("2026-11-23T00:00:00Z"));
        assert_eq!(
            Period::Week.start(at("2026-11-22T23:59:59.999999Z")),
            at("2026-11-16T00:00:00Z")
        );
    }

    #[test]
    fn day_names_are_printed_and_parsed() {
        assert_eq!(day_name(day_of(at("2026-11-22T23:59:59Z"))), "2026-11-22");
        assert_eq!(day_named("2026-11-22"), Some(day_of(at("2026-11-22T00:00:00Z"))));
        assert_eq!(day_named("1970-01-01"), Some(0));
        for bad in ["", "today", "2026-13-01", "2026-02-30"] {
            assert_eq!(day_named(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_time_belongs_to_exactly_one_window(micros in any::<i64>()) {
            let now = Timestamp::from_micros(micros);
            for period in Period::ALL {
                let start = period.start(now);
                // The ends of time saturate; all that a clock can show is inside.
                if micros.unsigned_abs() < u64::MAX / 4 {
                    prop_assert!(start <= now);
                    prop_assert_eq!(period.start(start), start);
                    if let Some(end) = period.end(start) {
                        prop_assert!(now < end);
                        prop_assert_eq!(period.start(end), end);
                    }
                }
            }
        }
    }
}
