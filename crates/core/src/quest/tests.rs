//! Tests in random worlds: two reconcilers at once, crashes between any two actions, and passing
//! time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schedule::period;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn id(number: u32) -> SessionId {
    SessionId::from_u128(u128::from(number) + 1)
}

#[derive(Clone, Debug)]
enum Action {
    Start(u32),
    Cancel(SessionId),
    End(End),
}

/// A reconciler: the state that it has read, or the actions that it still has to take.
#[derive(Clone, Debug, Default)]
enum Hand {
    #[default]
    Idle,
    Read(u64, QuestStatus, BTreeMap<u32, Seen>, bool),
    Planned(u64, Plan),
    Acting(Vec<Action>),
}

struct World {
    spec: QuestSpec,
    /// The record; `None` after it was removed.
    record: Option<(u64, QuestStatus, bool)>,
    sessions: BTreeMap<u32, Seen>,
    now: Timestamp,
    writes: u32,
}

impl World {
    fn step(&mut self, hand: Hand) -> Hand {
        match hand {
            Hand::Idle => match &self.record {
                Some((version, status, deleting)) => {
                    Hand::Read(*version, status.clone(), self.sessions.clone(), *deleting)
                }
                None => Hand::Idle,
            },
            Hand::Read(version, status, seen, deleting) => {
                Hand::Planned(version, decide(&self.spec, &status, &seen, deleting, self.now))
            }
            Hand::Planned(version, plan) => {
                let Some((found, status, _)) = &mut self.record else { return Hand::Idle };
                if *found != version {
                    return Hand::Idle;
                }
                if *status != plan.status {
                    *status = plan.status;
                    *found += 1;
                    self.writes += 1;
                }
                let mut actions: Vec<Action> = plan.start.into_iter().map(Action::Start).collect();
                actions.extend(plan.cancel.into_iter().map(Action::Cancel));
                actions.extend((plan.end != End::Stays).then_some(Action::End(plan.end)));
                Hand::Acting(actions)
            }
            Hand::Acting(mut actions) => {
                match actions.pop() {
                    None => return Hand::Idle,
                    Some(Action::Start(number)) => {
                        // The derived name: an existing session is not created again.
                        self.sessions.entry(number).or_insert(Seen::Open(id(number)));
                    }
                    Some(Action::Cancel(session)) => {
                        for seen in self.sessions.values_mut() {
                            if *seen == Seen::Open(session) {
                                *seen = Seen::Failed("canceled".to_owned());
                            }
                        }
                    }
                    Some(Action::End(End::Release)) => self.record = None,
                    Some(Action::End(End::Delete)) => {
                        if let Some((version, _, deleting)) = &mut self.record {
                            (*version, *deleting) = (*version + 1, true);
                        }
                    }
                    Some(Action::End(End::Stays)) => {}
                }
                Hand::Acting(actions)
            }
        }
    }

    fn open(&self) -> usize {
        self.sessions.values().filter(|seen| matches!(seen, Seen::Open(_))).count()
    }

    fn check(&self) {
        assert!(self.open() <= self.spec.parallelism as usize, "too many at once");
        let most = self.spec.completions + self.spec.retries;
        assert!(self.sessions.len() <= most as usize, "too many attempts");
        if let Some((_, status, _)) = &self.record {
            assert!(status.attempts <= most);
            assert!(status.succeeded <= self.spec.completions);
        }
    }

    fn end_session(&mut self, at: usize, well: bool) {
        let open = self.sessions.values_mut().filter(|seen| matches!(seen, Seen::Open(_)));
        if let Some(seen) = open.into_iter().nth(at) {
            *seen = if well { Seen::Succeeded } else { Seen::Failed("exit code 1".to_owned()) };
        }
    }

    /// Runs one reconciler alone until it has nothing to do.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let before = (self.writes, self.sessions.clone(), self.record.is_some());
            let mut hand = self.step(Hand::Idle);
            while !matches!(hand, Hand::Idle) {
                hand = self.step(hand);
                self.check();
            }
            let after = (self.writes, self.sessions.clone(), self.record.is_some());
            if after == before {
                return;
            }
        }
        panic!("it does not converge");
    }
}

fn spec(completions: u32, parallelism: u32, retries: u32, more: (bool, bool)) -> QuestSpec {
    let mut spec = json!({
        "agent": "a", "completions": completions, "parallelism": parallelism,
        "retries": retries, "backoff": "2s",
    });
    if more.0 {
        spec["deadline"] = json!("60s");
    }
    if more.1 {
        spec["ttlAfterFinish"] = json!("90s");
    }
    QuestSpec::read("spec", &spec).expect("it is sound")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn concurrent_reconcilers_and_crashes_keep_the_bounds_and_converge(
        completions in 1_u32..6, parallelism in 1_u32..4, retries in 0_u32..4,
        more in any::<(bool, bool)>(),
        events in proptest::collection::vec((0_u8..12, 0_usize..4, any::<bool>()), 0..200),
        deleted in any::<bool>(), well in any::<bool>(),
    ) {
        let mut world = World {
            spec: spec(completions, parallelism, retries, more),
            record: Some((1, QuestStatus::default(), false)),
            sessions: BTreeMap::new(), now: NOW, writes: 0,
        };
        let mut hands = [Hand::Idle, Hand::Idle];
        for (event, at, flag) in events {
            let who = usize::from(flag);
            match event {
                0..=6 => hands[who] = world.step(std::mem::take(&mut hands[who])),
                7 | 8 => world.end_session(at, flag),
                // A crash: the planned actions are lost.
                9 => hands[who] = Hand::Idle,
                10 => world.now = world.now.after(Duration::from_secs(at as u64)),
                _ => {
                    if let Some((version, _, deleting)) = world.record.as_mut().filter(|_| at == 3) {
                        (*version, *deleting) = (*version + 1, deleted);
                    }
                }
            }
            world.check();
        }
        // The remaining actions of the other reconciler are done at the worst moment.
        for hand in hands {
            let mut hand = hand;
            for _ in 0..20 {
                if matches!(hand, Hand::Idle) {
                    break;
                }
                hand = world.step(hand);
                world.check();
            }
        }
        for _ in 0..60 {
            world.settle();
            world.end_session(0, well);
            world.now = world.now.after(Duration::from_mins(6));
        }
        world.settle();
        prop_assert_eq!(world.open(), 0, "nothing goes on");
        let succeeded = world.sessions.values().filter(|seen| **seen == Seen::Succeeded).count();
        let counted = world.record.as_ref().map(|(_, status, _)| status.clone());
        if let Some(status) = counted {
            prop_assert!(!more.1, "it is deleted after its time");
            prop_assert!(status.finished_at.is_some() && status.active.is_empty());
            if status.says("Complete") {
                prop_assert_eq!(succeeded, completions as usize);
                prop_assert_eq!(status.succeeded, completions);
            } else {
                prop_assert!(status.says("Failed"));
            }
            prop_assert!(!status.says("Waiting"));
            let again = decide(&world.spec, &status, &world.sessions, false, world.now);
            prop_assert_eq!(again.status, status, "silent");
            prop_assert!(again.start.is_empty() && again.cancel.is_empty() && again.again.is_none());
        }
    }
}

#[test]
fn each_failure_waits_longer_and_the_last_failure_fails_the_quest() {
    let spec = spec(1, 1, 2, (false, false));
    let (mut status, mut seen, mut now) = (QuestStatus::default(), BTreeMap::new(), NOW);
    let mut waits = Vec::new();
    for number in 0..3 {
        let plan = decide(&spec, &status, &seen, false, now);
        assert_eq!(plan.start, [number]);
        seen.insert(number, Seen::Failed("exit code 7".to_owned()));
        let plan = decide(&spec, &plan.status, &seen, false, now);
        status = plan.status;
        if let Some(again) = plan.again {
            assert_eq!((status.phase(), plan.start.len()), ("Waiting", 0));
            waits.push(again.since(now).as_secs());
            now = again;
        }
    }
    assert_eq!(waits, [2, 4]);
    assert_eq!((status.phase(), status.failed), ("Failed", 3));
    let failed = status.conditions.iter().find(|one| one.kind == "Failed").expect("it says so");
    assert_eq!(failed.reason, "RetriesExhausted");
    assert!(failed.message.ends_with("exit code 7"), "{}", failed.message);
}

#[test]
fn a_refused_start_is_retried_and_is_not_an_attempt() {
    let spec = spec(2, 2, 0, (false, false));
    let seen = BTreeMap::new();
    let plan = decide(&spec, &QuestStatus::default(), &seen, false, NOW);
    assert_eq!(plan.start, [0, 1]);
    let mut status = plan.status;
    status.refuse("NotFound", "there is no agent".to_owned(), NOW);
    let held = decide(&spec, &status, &seen, false, NOW);
    assert_eq!((held.start.len(), held.status.phase(), held.status.attempts), (0, "Waiting", 2));
    let again = held.again.expect("it tries again");
    assert_eq!(again.since(NOW), Duration::from_secs(1));
    assert_eq!(decide(&spec, &held.status, &seen, false, again).start, [0, 1]);
    let seen = BTreeMap::from([(0, Seen::Open(id(0))), (1, Seen::Open(id(1)))]);
    let running = decide(&spec, &held.status, &seen, false, again).status;
    assert_eq!((running.phase(), running.refusals), ("Running", 0));
}

#[test]
fn session_names_are_valid_and_unique_per_quest_and_number() {
    let long = "a.b-".repeat(60);
    for quest in ["nightly", long.as_str()] {
        let name = session_name(quest, 10_999);
        crate::name::check(&name).unwrap_or_else(|why| panic!("{name} {why}"));
    }
    assert_ne!(session_name("a", 1), session_name("a", 11));
    assert_ne!(session_name("a", 1), session_name("b", 1));
}

#[test]
fn valid_periods_are_parsed_and_others_refused() {
    assert_eq!(period("1h30m"), Some(Duration::from_mins(90)));
    assert_eq!(period("0s"), Some(Duration::ZERO));
    for bad in ["", "10", "s", "1x", "-1s", "400d", "99999999999999999999s"] {
        assert_eq!(period(bad), None, "{bad}");
    }
}
