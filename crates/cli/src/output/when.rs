//! Times and sizes for people.

use std::time::Duration;

use overmind_core::time::Timestamp;

/// How long ago, in its largest unit: `12s`, `3m`, `5h`, `2d`.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    span(now.since(then))
}

/// A span in its largest unit, rounded down.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A short span with what it needs of precision: `840ms`, `2.3s`, `4m05s`.
pub fn precise(span: Duration) -> String {
    let ms = span.as_millis();
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// `512 B`, `3.4 KiB`, `12.0 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10;
    let mut unit = 0;
    tenths /= 1024;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Millionths of a dollar as dollars: `$0.0042`, `$1.23`.
pub fn dollars(microusd: u64) -> String {
    if microusd >= 1_000_000 {
        format!("${}.{:02}", microusd / 1_000_000, microusd % 1_000_000 / 10_000)
    } else {
        format!("$0.{:06}", microusd).trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// `1 step`, `2 steps`, `1,000 processes`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if one.ends_with('s') { "es" } else { "s" };
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {one}{many}", thousands(number)),
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_their_largest_unit() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span(Duration::from_secs(86_400 * 40)), "40d");
        let now = Timestamp::from_micros(100_000_000);
        assert_eq!(ago(Timestamp::from_micros(40_000_000), now), "1m");
        assert_eq!(ago(now.after(Duration::from_secs(9)), now), "0s", "a clock that is ahead");
    }

    #[test]
    fn numbers_are_shown_with_suitable_precision() {
        assert_eq!(precise(Duration::from_millis(840)), "840ms");
        assert_eq!(precise(Duration::from_millis(2345)), "2.3s");
        assert_eq!(precise(Duration::from_secs(245)), "4m05s");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(3500), "3.4 KiB");
        assert_eq!(bytes(u64::MAX), "16383.9 PiB");
        assert_eq!(dollars(4200), "$0.0042");
        assert_eq!(dollars(0), "$0");
        assert_eq!(dollars(1_239_999), "$1.23");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
    }
}
