//! Schedules against what clocks on walls show, in nights in which they are changed.

use std::collections::BTreeSet;

use jiff::civil::DateTime;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn schedule(text: &str, zone: &str) -> Schedule {
    Schedule::parse(text, zone).unwrap_or_else(|err| panic!("{text}: {err}"))
}

/// The next ticks as UTC, without date parts that a test does not need.
fn ticks(text: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let all = schedule(text, zone).ticks(at(after), count);
    all.iter().map(|at| at.to_string()[5..16].to_owned()).collect()
}

#[test]
fn cron_fields_words_ranges_and_steps_are_supported() {
    let after = "2026-11-25T22:30:00Z"; // a Wednesday
    for (text, expected) in [
        ("0 9 * * 1-5", ["11-26T09:00", "11-27T09:00", "11-30T09:00"]),
        ("0 9 * * mon-FRI", ["11-26T09:00", "11-27T09:00", "11-30T09:00"]),
        ("*/20 23 * * *", ["11-25T23:00", "11-25T23:20", "11-25T23:40"]),
        ("5/25 0 * * *", ["11-26T00:05", "11-26T00:30", "11-26T00:55"]),
        ("0 0 29 feb *", ["02-29T00:00", "02-29T00:00", "02-29T00:00"]),
        ("0 0 13 * 5", ["11-27T00:00", "12-04T00:00", "12-11T00:00"]),
        ("0 12 * * 7", ["11-29T12:00", "12-06T12:00", "12-13T12:00"]),
        ("*/30 59 23 * * *", ["11-25T23:59", "11-25T23:59", "11-26T23:59"]),
        ("@monthly", ["12-01T00:00", "01-01T00:00", "02-01T00:00"]),
        ("@weekly", ["11-29T00:00", "12-06T00:00", "12-13T00:00"]),
        ("@yearly", ["01-01T00:00", "01-01T00:00", "01-01T00:00"]),
        ("every 1h30m", ["11-26T00:00", "11-26T01:30", "11-26T03:00"]),
    ] {
        assert_eq!(ticks(text, "UTC", after, 3), expected, "{text}");
    }
}

#[test]
fn mistakes_in_a_schedule_are_reported_with_a_correction() {
    for (text, says) in [
        ("", "1 to 200 characters"),
        ("* * * *", "this one has 4"),
        ("60 * * * *", "`60` is no minute: it takes 0 to 59"),
        ("* * * foo *", "`foo` is no month: it takes 1 to 12 or a name from jan to dec"),
        ("* * 0 * *", "no day of the month: it takes 1 to 31"),
        ("* 5-2 * * *", "ends before it begins; write 5-23,0-2"),
        ("*/0 * * * *", "must be a number from 1"),
        ("+5 * * * *", "`+5` is no minute"),
        ("0 0 30 2 *", "no day 30 in month 2; February has at most 29 days"),
        ("0 0 31 apr,jun *", "the longest of these months has 30 days"),
        ("@sometimes", "@hourly, @daily"),
        ("every 0s", "at least a second"),
        ("every 5", "`every 5` is no period"),
        ("every 99999999999999999999h", "is no period"),
    ] {
        let err = Schedule::parse(text, "UTC").expect_err(text).to_string();
        assert!(err.contains(says), "{text}: {err}");
    }
    let err = Schedule::parse("@daily", "Europe/Berlim").expect_err("no zone").to_string();
    assert!(err.contains("`Europe/Berlim` is no time zone"), "{err}");
}

#[test]
fn a_skipped_local_time_ticks_once_afterwards_and_a_repeated_one_ticks_first_time() {
    for (text, zone, after, expected) in [
        // Berlin, 29 March 2026: 02:00 +01 becomes 03:00 +02, which is 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", ["03-29T01:00", "03-30T00:30"]),
        (
            "*/20 2,3 29 3 *",
            "Europe/Berlin",
            "2026-03-28T02:00:00Z",
            ["03-29T01:00", "03-29T01:20"],
        ),
        // Berlin, 25 October 2026: 03:00 +02 becomes 02:00 +01, which is 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["10-25T00:30", "10-26T01:30"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", ["10-25T02:00", "10-25T03:00"]),
        // New York, 8 March 2026: 02:00 -05 becomes 03:00 -04, which is 07:00 UTC.
        ("15 2 * * *", "America/New_York", "2026-03-08T06:00:00Z", ["03-08T07:00", "03-09T06:15"]),
        // New York, 1 November 2026: 02:00 -04 becomes 01:00 -05, which is 06:00 UTC.
        ("30 1 * * *", "America/New_York", "2026-11-01T04:00:00Z", ["11-01T05:30", "11-02T06:30"]),
        // Lord Howe, 4 October 2026: 02:00 +10:30 becomes 02:30 +11, which is 15:30 UTC the day before.
        (
            "10 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            ["10-03T15:30", "10-04T15:10"],
        ),
        // Lord Howe, 5 April 2026: 02:00 +11 becomes 01:30 +10:30, which is 15:00 UTC the day before.
        (
            "45 1 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T12:00:00Z",
            ["04-04T14:45", "04-05T15:15"],
        ),
    ] {
        assert_eq!(ticks(text, zone, after, 2), expected, "{text} in {zone}");
    }
}

#[test]
fn jitter_is_deterministic_and_differs_between_ticks() {
    let most = Duration::from_mins(5);
    let of = |seconds: i64| jitter("nightly", Timestamp::from_micros(seconds * 1_000_000), most);
    assert_eq!(of(60), of(60));
    assert!(of(60) < most && of(60) != of(120));
    assert_ne!(of(60), jitter("weekly", Timestamp::from_micros(60_000_000), most));
}

/// The minutes that a clock shows, without any arithmetic on zones.
fn expected(
    fits: &dyn Fn(DateTime) -> bool,
    zone: &str,
    from: i64,
    minutes: i64,
) -> Vec<Timestamp> {
    let zone = TimeZoneDatabase::bundled().get(zone).expect("a zone");
    let shown = |at: i64| zone.to_datetime(jiff::Timestamp::from_second(at).expect("a time"));
    let minute = jiff::Span::new().minutes(1);
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    let mut next = shown(from);
    for at in (0..=minutes).map(|n| from + n * 60) {
        let now = shown(at);
        let mut due = false;
        // All readings that the clock has come to, or passed by, since the last minute.
        while next <= now {
            due |= fits(next) && seen.insert(next);
            next = next.checked_add(minute).expect("a time");
        }
        if due && at > from {
            all.push(Timestamp::from_micros(at * 1_000_000));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_tick_is_lost_or_doubled_around_clock_changes(
        which in 0_usize..6,
        minutes in prop::collection::btree_set(0_i8..60, 1..4),
        hours in prop::collection::btree_set(0_i8..5, 1..4),
        every_hour: bool,
    ) {
        let (zone, change) = [
            ("Europe/Berlin", "2026-03-29T01:00:00Z"), ("Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("America/New_York", "2026-03-08T07:00:00Z"),
            ("America/New_York", "2026-11-01T06:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ][which];
        let list = |of: &BTreeSet<i8>| of.iter().map(i8::to_string).collect::<Vec<_>>().join(",");
        let of_hours = if every_hour { "*".to_owned() } else { list(&hours) };
        let schedule = schedule(&format!("{} {of_hours} * * *", list(&minutes)), zone);
        let from = at(change).as_micros() / 1_000_000 - 6 * 3600;
        let fits = |reading: DateTime| {
            minutes.contains(&reading.minute()) && (every_hour || hours.contains(&reading.hour()))
        };
        let expected = expected(&fits, zone, from, 12 * 60);
        let start = Timestamp::from_micros(from * 1_000_000);
        let end = start.after(Duration::from_hours(12));
        let found: Vec<Timestamp> =
            std::iter::successors(schedule.next(start), |last| schedule.next(*last))
                .take_while(|tick| *tick <= end)
                .collect();
        prop_assert_eq!(&found, &expected);
        // The answer does not depend on the time of the call, also after a restart.
        for n in 0..(12 * 4) {
            let asked = start.after(Duration::from_mins(n * 15 + 7));
            let next = expected.iter().copied().find(|tick| *tick > asked);
            if let Some(next) = next {
                prop_assert_eq!(schedule.next(asked), Some(next));
            }
        }
    }

    #[test]
    fn a_valid_schedule_always_has_a_later_tick(
        text in "[0-9*/,a-z-]{1,5}( [0-9*/,a-z-]{1,4}){4,5}", micros in 0_i64..4_000_000_000_000_000,
    ) {
        if let Ok(schedule) = Schedule::parse(&text, "Europe/Berlin") {
            let after = Timestamp::from_micros(micros);
            prop_assert!(schedule.next(after).is_some_and(|next| next > after), "{}", text);
        }
    }
}
