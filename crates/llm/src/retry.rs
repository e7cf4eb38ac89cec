//! Decides when to try again, and after how long.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How a call is repeated after failures that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts of one call, the first one included; at least 1.
    pub max_attempts: u32,
    /// Wait before the second attempt if the provider names none. It doubles with each attempt.
    pub base: Duration,
    /// Longest wait that we choose. A wait that a provider asks for in `Retry-After` may be longer,
    /// up to what is left of the call's `total_timeout`.
    pub cap: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 4, base: Duration::from_millis(500), cap: Duration::from_secs(20) }
    }
}

impl Retry {
    /// The wait after the failed attempt number `attempt` (1 is the first).
    ///
    /// Between half and all of the exponential step. The jitter comes from `seed`, so that the
    /// same call waits the same time in every run, while different calls spread.
    pub(crate) fn backoff(&self, attempt: u32, seed: u64) -> Duration {
        let doubled = self.base.saturating_mul(1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX));
        let step = doubled.min(self.cap);
        // `DefaultHasher::new` has fixed keys; only maps randomise theirs.
        let mut hasher = DefaultHasher::new();
        (seed, attempt).hash(&mut hasher);
        let millionths = u32::try_from(hasher.finish() % 1_000_000).expect("below a million");
        step / 2 + (step / 2_000_000) * millionths
    }
}

/// The wait that the headers of a reply ask for: `retry-after-ms`, or `retry-after` in seconds
/// or as an HTTP date. A date is measured against the same reply's `date` header, so that our
/// own clock does not matter; without that header it is not understood.
pub(crate) fn asked_wait(header: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    if let Some(ms) = header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let text = header("retry-after")?;
    if let Ok(seconds) = text.trim().parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = http_date(&text)?;
    let now = http_date(&header("date")?)?;
    Some(Duration::from_secs(until.saturating_sub(now)))
}

/// Seconds since the epoch of a date like `Sun, 06 Nov 1994 08:49:37 GMT`, the one form of HTTP
/// date that may still be sent.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_weekday, rest) = text.trim().split_once(", ")?;
    let mut words = rest.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    if words.next() != Some("GMT") || !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since the epoch in the proleptic Gregorian calendar, counted from a March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&str, &str)]) -> Option<Duration> {
        asked_wait(|name| {
            headers.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn retry_after_is_read_as_seconds_milliseconds_or_a_date() {
        assert_eq!(asked(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(asked(&[("retry-after", "0.25")]), Some(Duration::from_millis(250)));
        let both = [("retry-after", "7"), ("retry-after-ms", "120")];
        assert_eq!(asked(&both), Some(Duration::from_millis(120)));
        let date = [
            ("date", "Sat, 21 Nov 2026 23:59:50 GMT"),
            ("retry-after", "Sun, 22 Nov 2026 00:00:20 GMT"),
        ];
        assert_eq!(asked(&date), Some(Duration::from_secs(30)));
        let past = [
            ("date", "Sun, 22 Nov 2026 00:00:20 GMT"),
            ("retry-after", "Sat, 21 Nov 2026 23:59:50 GMT"),
        ];
        assert_eq!(asked(&past), Some(Duration::ZERO));
    }

    #[test]
    fn an_invalid_retry_after_is_ignored() {
        for text in ["", "soon", "-5", "NaN", "1e300", "Sun, 22 Nov 2026 00:00:20 GMT"] {
            assert_eq!(asked(&[("retry-after", text)]), None, "{text}");
        }
        assert_eq!(asked(&[]), None);
    }

    #[test]
    fn http_dates_are_seconds_since_the_epoch() {
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000));
        for text in [
            "Sun, 06 Nov 1994 08:49:37",
            "06 Nov 1994",
            "Sun, 99 Nov 1994 08:49:37 GMT",
            "x, 1 Jan 1 1:1:1 GMT",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    #[test]
    fn the_wait_doubles_up_to_the_cap_and_repeats_for_the_same_seed() {
        let retry = Retry::default();
        for attempt in 1..40 {
            let step = retry.base.saturating_mul(1 << (attempt - 1).min(20)).min(retry.cap);
            let wait = retry.backoff(attempt, 42);
            assert!(step / 2 <= wait && wait <= step, "{attempt}: {wait:?} of {step:?}");
            assert_eq!(wait, retry.backoff(attempt, 42));
        }
        let spread: std::collections::HashSet<_> = (0..100).map(|s| retry.backoff(3, s)).collect();
        assert!(spread.len() > 90, "{}", spread.len());
    }
}
