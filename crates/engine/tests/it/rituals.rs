//! Nights in which clocks change, through the loop that a server runs, at a time that the test turns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::budget::NoPrices;
use overmind_core::record::{KINDS, Name, Record, kind};
use overmind_core::time::{Clock as _, Timestamp};
use overmind_engine::{Drained, RecordWish};
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ports::FakeModels;
use serde_json::json;
use tempfile::TempDir;

use crate::world::World;

const STEP: Duration = Duration::from_mins(5);
const HOUR: Duration = Duration::from_hours(1);

/// A schedule, a zone, and its ticks from an hour before the first one until an hour after the last.
type Night = (&'static str, &'static str, [&'static str; 3]);

/// For each zone, the nights in which its clocks change. The days before and after are included.
const NIGHTS: [Night; 6] = [
    // 02:00 +01 becomes 03:00 +02 on 29 March; 03:00 +02 becomes 02:00 +01 on 25 October.
    ("30 2 * * *", "Europe/Berlin", ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]),
    ("30 2 * * *", "Europe/Berlin", ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]),
    // 02:00 -05 becomes 03:00 -04 on 8 March; 02:00 -04 becomes 01:00 -05 on 1 November.
    (
        "15 2 * * *",
        "America/New_York",
        ["2026-03-07T07:15", "2026-03-08T07:00", "2026-03-09T06:15"],
    ),
    (
        "30 1 * * *",
        "America/New_York",
        ["2026-10-31T05:30", "2026-11-01T05:30", "2026-11-02T06:30"],
    ),
    // 02:00 +10:30 becomes 02:30 +11 on 4 October; 02:00 +11 becomes 01:30 +10:30 on 5 April.
    (
        "10 2 * * *",
        "Australia/Lord_Howe",
        ["2026-10-02T15:40", "2026-10-03T15:30", "2026-10-04T15:10"],
    ),
    (
        "45 1 * * *",
        "Australia/Lord_Howe",
        ["2026-04-03T14:45", "2026-04-04T14:45", "2026-04-05T15:15"],
    ),
];

fn at(text: &str) -> Timestamp {
    format!("{text}:00Z").parse().expect("a time")
}

async fn world(dir: &Arc<TempDir>, clock: &Arc<ManualClock>) -> World {
    let clock = Arc::clone(clock) as Arc<_>;
    World::priced(Arc::clone(dir), FakeModels::new([]), clock, Arc::new(NoPrices)).await
}

/// The ticks with a quest, and the time of its creation.
async fn fired(world: &World) -> BTreeMap<Timestamp, Timestamp> {
    let ritual = kind::find(KINDS, "ritual").expect("the product has it");
    let name = Name::parse("nightly").expect("a name");
    let owned = world.engine.record_owned(&world.by, ritual, &name).await.expect("it is there");
    let of = |record: &Record| {
        let seconds = record.key.name.as_str().rsplit('-').next().map(str::parse::<i64>);
        let seconds = seconds.expect("a part").expect("the seconds of its tick");
        (Timestamp::from_micros(seconds * 1_000_000), record.created_at)
    };
    owned.records.iter().map(of).collect()
}

async fn pass(world: &World) {
    let status = world.engine.loop_run(&world.by, "rituals").await.expect("it runs");
    status.last.expect("a pass was made").result.expect("the pass works");
}

/// Goes through a night in steps. The server is away from half an hour before the second tick until
/// right before it.
async fn go_through((schedule, zone, ticks): Night) {
    let ticks = ticks.map(at);
    let (dir, clock) = (Arc::new(tempfile::tempdir().expect("a place")), ManualClock::default());
    let clock = Arc::new(clock);
    clock.advance(ticks[0].before(HOUR).since(clock.now()));
    let mut world = world(&dir, &clock).await;
    let wish = RecordWish {
        info: kind::find(KINDS, "ritual").expect("the product has it"),
        name: Name::parse("nightly").expect("a name"),
        labels: Default::default(),
        annotations: Default::default(),
        // Late ticks are left out, so each tick is on time.
        spec: json!({
            "schedule": schedule, "timeZone": zone, "missed": "skip",
            "template": {"agent": "nobody"},
        }),
        finalizers: None,
        owner: None,
        was: None,
    };
    world.engine.record_apply(&world.by, vec![wish], false).await.expect("it is valid");
    pass(&world).await;
    let away = ticks[1].before(HOUR / 2);
    while clock.now() < ticks[2].after(HOUR) {
        if clock.now() == away {
            assert_eq!(world.engine.loops_drain(HOUR).await, Drained::All);
            assert_eq!(world.engine.drain(HOUR).await, 0);
            drop(world);
            clock.advance(HOUR / 2 - STEP);
            world = self::world(&dir, &clock).await;
        }
        clock.advance(STEP);
        pass(&world).await;
    }
    let expected: BTreeMap<_, _> = ticks.map(|tick| (tick, tick)).into();
    assert_eq!(fired(&world).await, expected, "{schedule} in {zone}");
}

#[tokio::test]
async fn a_ritual_ticks_once_in_nights_with_clock_changes_also_after_a_restart() {
    for night in NIGHTS {
        go_through(night).await;
    }
}

/// Passes of the loop since the start.
fn passes(world: &World) -> u64 {
    let all = world.engine.loop_list(&world.by).expect("an admin sees them");
    all.iter().find(|one| one.name == "rituals").expect("it is there").passes
}

#[tokio::test]
async fn after_a_start_each_pass_checks_some_of_the_rituals_that_are_not_due() {
    let (dir, clock) = (Arc::new(tempfile::tempdir().expect("a place")), ManualClock::default());
    let clock = Arc::new(clock);
    let first = world(&dir, &clock).await;
    let wish = |n: u32| RecordWish {
        info: kind::find(KINDS, "ritual").expect("the product has it"),
        name: Name::parse(&format!("r{n}")).expect("a name"),
        labels: Default::default(),
        annotations: Default::default(),
        spec: json!({"schedule": "@yearly", "template": {"agent": "nobody"}}),
        finalizers: None,
        owner: None,
        was: None,
    };
    let wishes = (0..120).map(wish).collect();
    first.engine.record_apply(&first.by, wishes, false).await.expect("they are valid");
    pass(&first).await;
    assert_eq!(first.engine.loops_drain(HOUR).await, Drained::All);
    assert_eq!(first.engine.drain(HOUR).await, 0);
    drop(first);
    let second = world(&dir, &clock).await;
    second.until_true("three passes at one time", || passes(&second) >= 3).await;
}
