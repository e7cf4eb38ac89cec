//! Formats times for people.

use std::time::Duration;

use overmind_api::Timestamp;

/// A time: how long ago, and exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// `4 min`, `just now`.
    pub ago: String,
    /// `2026-11-25 16:02:11 UTC`.
    pub exact: String,
    /// The time in RFC 3339, for machines.
    pub stamp: String,
}

impl When {
    /// Formats `at` relative to `now`. A future time becomes `just now`.
    pub fn new(at: Timestamp, now: Timestamp) -> Self {
        let stamp = at.to_string();
        let day = stamp.get(..10).unwrap_or(&stamp);
        let time = stamp.get(11..19).unwrap_or_default();
        let passed = now.since(at);
        let ago =
            if passed < Duration::from_secs(5) { "just now".to_owned() } else { span(passed) };
        Self { ago, exact: format!("{day} {time} UTC"), stamp }
    }
}

impl When {
    /// Formats a future time: `in 16 h`.
    pub fn until(at: Timestamp, now: Timestamp) -> Self {
        Self { ago: format!("in {}", span(at.since(now))), ..Self::new(at, now) }
    }
}

/// Formats a duration in one unit, rounded down: `41 s`, `18 min`, `3 h`, `2 d`.
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Formats the duration of a step in milliseconds with suitable precision: `2 ms`, `8.4 s`, `4
/// min`.
pub fn elapsed(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => span(Duration::from_millis(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_one_unit() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (200_000, "2 d")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        for (ms, text) in [(0, "0 ms"), (999, "999 ms"), (8400, "8.4 s"), (240_000, "4 min")] {
            assert_eq!(elapsed(ms), text);
        }
    }

    #[test]
    fn a_time_shows_its_age_and_its_exact_value() {
        let at = Timestamp::from_micros(1_764_086_531_000_000);
        let when = When::new(at, at.after(Duration::from_secs(250)));
        assert_eq!((when.ago.as_str(), when.exact.as_str()), ("4 min", "2025-11-25 16:02:11 UTC"));
        assert_eq!(When::new(at.after(Duration::from_secs(9)), at).ago, "just now");
    }
}
