//! Time as an argument: a wall-clock time in microseconds, and the clock for loops.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Fut;

/// Microseconds since the Unix epoch, in UTC. Shown as `2026-11-21T20:19:55.182849+00:00`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the time `by` later. Saturates instead of wrapping.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the time `by` earlier.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value outside years -9999..=9999 can only come from a damaged row: print its number.
        let Ok(at) = jiff::Timestamp::from_microsecond(self.0) else {
            return write!(f, "{}", self.0);
        };
        let at = at.to_zoned(jiff::tz::TimeZone::UTC);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+00:00",
            at.year(),
            at.month(),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.subsec_nanosecond() / 1000
        )
    }
}

/// The error for a text that is not an RFC 3339 timestamp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a timestamp like 2026-11-21T20:19:55.182849+00:00")]
pub struct TimestampError(String);

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        text.parse::<jiff::Timestamp>()
            .map(|at| Self(at.as_microsecond()))
            .map_err(|_| TimestampError(text.chars().take(64).collect()))
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The clock for loops. Functions that only compare take `now: Timestamp` instead.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;
    /// Waits until `deadline`. Returns at once if it is not in the future.
    fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_show_microseconds_and_a_numeric_zone() {
        let at = Timestamp::from_micros(1_795_292_395_182_849);
        assert_eq!(at.to_string(), "2026-11-21T20:19:55.182849+00:00");
        assert_eq!(at.to_string().parse(), Ok(at));
        assert_eq!(Timestamp::from_micros(0).to_string(), "1970-01-01T00:00:00.000000+00:00");
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert_eq!(Timestamp::from_micros(i64::MAX).to_string(), i64::MAX.to_string());
    }
}
