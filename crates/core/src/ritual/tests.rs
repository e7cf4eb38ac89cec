//! Tests with clock jumps, daylight saving changes, crashes, and two reconcilers at once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn spec(more: serde_json::Value) -> RitualSpec {
    let mut spec = json!({"schedule": "every 1s", "missed": "all", "template": {"agent": "a"}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    RitualSpec::read(&spec).expect("it is sound")
}

fn ritual(created_at: Timestamp) -> Ritual<'static> {
    Ritual { name: "r", generation: 1, created_at, written_at: created_at }
}

/// Decides and commits. Returns the ticks that got a quest.
fn tick(spec: &RitualSpec, status: &mut RitualStatus, now: Timestamp) -> Vec<Timestamp> {
    let plan = decide(ritual(NOW), spec, status, &[], now);
    *status = plan.status;
    let again = decide(ritual(NOW), spec, status, &[], now);
    assert!(again.fire.is_empty() && again.status == *status, "silent");
    plan.fire
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn clock_jumps_crashes_and_concurrent_loops_lose_and_double_no_tick(
        which in 0_usize..4,
        start in 0_i64..400,
        events in proptest::collection::vec((0_u8..6, any::<bool>(), -40_i64..90), 1..80),
    ) {
        // The unit of time, in seconds, so that a jump is of fewer ticks than are caught up with.
        let (text, zone, unit) = [
            ("every 1s", "UTC", 1),
            ("30 2 * * *", "Europe/Berlin", 3600),
            ("*/20 * * * *", "America/New_York", 600),
            ("0 0 2 * * *", "Australia/Lord_Howe", 3600),
        ][which];
        let spec = spec(json!({"schedule": text, "timeZone": zone}));
        let created = NOW.after(Duration::from_hours(24 * start.unsigned_abs()));
        let the = ritual(created);
        let (mut version, mut status) = (0_u64, RitualStatus::default());
        let mut hands: [Option<(u64, Plan)>; 2] = [None, None];
        let (mut now, mut latest) = (created, created);
        let mut fired = BTreeSet::new();
        let mut commit = |hand: (u64, Plan), version: &mut u64, status: &mut RitualStatus| {
            if hand.0 == *version {
                for tick in hand.1.fire {
                    assert!(fired.insert(tick), "{tick} is doubled");
                }
                (*version, *status) = (*version + 1, hand.1.status);
            }
        };
        for (event, second, by) in events {
            let who = usize::from(second);
            match event {
                0 | 1 => hands[who] = Some((version, decide(the, &spec, &status, &[], now))),
                2 | 3 => {
                    if let Some(hand) = hands[who].take() {
                        commit(hand, &mut version, &mut status);
                    }
                }
                4 => hands[who] = None,
                _ => {
                    // One that lives decides before so much time has passed that ticks are skipped.
                    commit((version, decide(the, &spec, &status, &[], now)), &mut version, &mut status);
                    now = Timestamp::from_micros(now.as_micros() + by * unit * 1_000_000);
                    latest = latest.max(now);
                }
            }
        }
        for at in [now, latest] {
            commit((version, decide(the, &spec, &status, &[], at)), &mut version, &mut status);
        }
        let mut wanted = spec.schedule.ticks(created, fired.len() + 1);
        wanted.retain(|tick| *tick <= latest);
        prop_assert_eq!(fired.into_iter().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn missed_ticks_are_skipped_or_run_once_or_run_all_up_to_a_limit() {
    let later = NOW.after(Duration::from_hours(24 * 300));
    for (missed, wanted) in [("skip", 11), ("once", 11), ("all", MAX_CATCH_UP)] {
        let (spec, mut status) = (spec(json!({"missed": missed})), RitualStatus::default());
        let fired = tick(&spec, &mut status, later);
        assert_eq!(fired.len(), wanted, "{missed}: those of the last ten seconds are in time");
        assert_eq!(fired.last(), Some(&later));
    }
    for (missed, wanted) in [("skip", 0), ("once", 1), ("all", 12)] {
        let spec = spec(json!({"missed": missed, "schedule": "@hourly"}));
        let mut status = RitualStatus::default();
        let at = NOW.after(Duration::from_mins(12 * 60 + 1));
        assert_eq!(tick(&spec, &mut status, at).len(), wanted, "{missed}");
        assert_eq!(
            tick(&spec, &mut status, at.after(Duration::from_hours(1))).len(),
            usize::from(wanted > 0)
        );
    }
    let spec = spec(json!({"startingDeadline": "3s"}));
    let fired = tick(&spec, &mut RitualStatus::default(), NOW.after(Duration::from_mins(1)));
    assert_eq!(fired.len(), 4);
}

#[test]
fn ticks_during_a_suspension_or_another_schedule_are_not_missed() {
    let at = |minutes: u64| NOW.after(Duration::from_mins(minutes));
    let mut status = RitualStatus::default();
    let mut turn = |generation, more: serde_json::Value, written: u64, now: u64| {
        let the = Ritual { generation, written_at: at(written), ..ritual(NOW) };
        let plan = decide(the, &spec(more), &status, &[], at(now));
        status = plan.status;
        plan.fire.len()
    };
    let minutely = |suspend: bool| json!({"schedule": "* * * * *", "suspend": suspend});
    assert_eq!(turn(1, minutely(false), 0, 2), 2);
    assert_eq!(turn(2, minutely(true), 2, 5), 0);
    assert_eq!(turn(3, minutely(false), 8, 10), 2, "only since it goes on");
    assert_eq!(
        turn(4, json!({"schedule": "*/2 * * * *"}), 20, 20),
        0,
        "none of the new one before it"
    );
}

#[test]
fn forbid_and_replace_allow_one_quest_and_history_is_bounded() {
    let at = NOW.after(Duration::from_secs(3));
    let owned = |name: &str, finished| Owned { name: name.into(), created_at: NOW, finished };
    let plan = |more, owned: &[Owned]| {
        decide(ritual(NOW), &spec(more), &RitualStatus::default(), owned, at)
    };
    let running = [owned("r-1", None)];
    let forbid = plan(json!({"concurrency": "forbid", "missed": "skip"}), &running);
    assert_eq!((forbid.fire.len(), forbid.status.through), (0, Some(at)));
    let waits = plan(json!({"concurrency": "forbid"}), &running);
    assert!(
        waits.fire.is_empty() && waits.status.through < Some(NOW.after(Duration::from_secs(1)))
    );
    let first = plan(json!({"concurrency": "forbid"}), &[]);
    assert_eq!(first.fire, [NOW.after(Duration::from_secs(1))]);
    assert_eq!(first.status.through, first.fire.first().copied());
    let replace = plan(json!({"concurrency": "replace"}), &running);
    assert_eq!((replace.fire, replace.delete), (vec![at], vec!["r-1".to_owned()]));
    let done = ["a", "b", "c"].map(|name| owned(name, Some(true)));
    let kept = plan(json!({"succeededHistory": 1}), &done);
    assert_eq!(kept.delete, ["b", "a"]);
}
