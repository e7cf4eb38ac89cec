//! Random worlds of sentinels: hives that come and go, two who reconcile at once, crashes between any
//! two actions, sessions that end, and changes of the spec.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ids::SessionId;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn id(number: u32) -> SessionId {
    SessionId::from_u128(u128::from(number) + 1)
}

fn spec(task: u32, selector: &str) -> FleetSpec {
    FleetSpec::read_sentinel(&json!({
        "selector": selector, "template": {"agent": "a", "task": task.to_string()},
    }))
    .expect("it is a spec")
}

fn hive(at: usize) -> Hive {
    let mut hive = Hive::new(&format!("hive{at}"));
    let zone = if at.is_multiple_of(2) { "eu" } else { "us" };
    hive.labels.insert("zone".into(), zone.into());
    hive
}

#[derive(Clone, Debug)]
enum Action {
    Start(Slot),
    Cancel(SessionId),
}

/// One reconciler: the state that it has read, and its remaining actions.
#[derive(Clone, Debug, Default)]
enum Hand {
    #[default]
    Idle,
    Read(u64, Box<FleetStatus>, BTreeMap<u32, Seen>),
    Acting(Vec<Action>),
}

struct World {
    spec: FleetSpec,
    generation: u64,
    version: u64,
    status: FleetStatus,
    sessions: BTreeMap<u32, Seen>,
    /// The hive and revision that each session was started for.
    made: BTreeMap<u32, (String, u32)>,
    hives: BTreeSet<usize>,
    deleting: bool,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        Self {
            spec: spec(0, ""),
            generation: 1,
            version: 1,
            status: FleetStatus::default(),
            sessions: BTreeMap::new(),
            made: BTreeMap::new(),
            hives: BTreeSet::from([0, 1, 2]),
            deleting: false,
            now: NOW,
        }
    }

    fn decide(&self, status: &FleetStatus, seen: &BTreeMap<u32, Seen>) -> Plan {
        let hives: Vec<Hive> = self.hives.iter().copied().map(hive).collect();
        decide(&self.spec, self.generation, status, seen, self.deleting, self.now, &hives)
    }

    fn plan(&self) -> Plan {
        self.decide(&self.status, &self.sessions)
    }

    fn step(&mut self, hand: Hand) -> Hand {
        match hand {
            Hand::Idle => {
                Hand::Read(self.version, Box::new(self.status.clone()), self.sessions.clone())
            }
            Hand::Read(version, status, seen) => {
                let plan = self.decide(&status, &seen);
                if version != self.version {
                    return Hand::Idle;
                }
                if plan.status != *status {
                    self.status = plan.status;
                    self.version += 1;
                }
                let mut actions: Vec<Action> = plan.start.into_iter().map(Action::Start).collect();
                actions.extend(plan.cancel.into_iter().map(Action::Cancel));
                Hand::Acting(actions)
            }
            Hand::Acting(mut actions) => {
                match actions.pop() {
                    None => return Hand::Idle,
                    Some(Action::Start(slot)) => {
                        let number = slot.number;
                        self.sessions.entry(number).or_insert(Seen::Starting(id(number)));
                        let hive = slot.hive.expect("each slot has a hive");
                        self.made.entry(number).or_insert((hive, slot.revision));
                    }
                    Some(Action::Cancel(session)) => {
                        for seen in self.sessions.values_mut() {
                            if matches!(seen, Seen::Starting(id) | Seen::Running(id) if *id == session)
                            {
                                *seen =
                                    Seen::Ended { epoch: 1, by_hand: true, why: "canceled".into() };
                            }
                        }
                    }
                }
                Hand::Acting(actions)
            }
        }
    }

    fn open(&self) -> Vec<u32> {
        let open = self.sessions.iter().filter(|(_, seen)| !matches!(seen, Seen::Ended { .. }));
        open.map(|(number, _)| *number).collect()
    }

    /// Hives of the sessions that have not ended, one for each.
    fn covered(&self) -> Vec<String> {
        let mut all: Vec<_> =
            self.open().iter().map(|number| self.made[number].0.clone()).collect();
        all.sort();
        all
    }

    fn wanted(&self) -> Vec<String> {
        let all = self.hives.iter().copied().map(hive);
        all.filter(|hive| self.spec.selector.matches(&hive.labels)).map(|hive| hive.name).collect()
    }

    fn run(&mut self) {
        for seen in self.sessions.values_mut() {
            if let Seen::Starting(id) = *seen {
                *seen = Seen::Running(id);
            }
        }
    }

    fn end(&mut self, at: usize, by_hand: bool) {
        let open = self.open();
        if let Some(number) = open.get(at % open.len().max(1)) {
            let why = "exit code 1".to_owned();
            self.sessions.insert(*number, Seen::Ended { epoch: 1, by_hand, why });
        }
    }

    fn change(&mut self, spec: FleetSpec) {
        self.spec = spec;
        self.generation += 1;
        self.version += 1;
    }

    /// A single reconciler, whose sessions all run and continue.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let before = (self.status.clone(), self.sessions.clone());
            let mut hand = Hand::Idle;
            loop {
                hand = self.step(hand);
                if matches!(hand, Hand::Idle) {
                    break;
                }
            }
            self.run();
            if before == (self.status.clone(), self.sessions.clone()) {
                match self.plan().again {
                    Some(at) if at > self.now => self.now = at,
                    Some(_) | None => return,
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.status);
    }

    fn reason(&self) -> &str {
        let going = self.status.conditions.iter().find(|one| one.kind == "Progressing");
        &going.expect("it is said").reason
    }
}

#[derive(Clone, Debug)]
enum Happens {
    Step(usize),
    Crash(usize),
    Runs,
    Ends(usize, bool),
    Later(u64),
    Comes(usize),
    Goes(usize),
    Changes(u32, &'static str),
}

fn happens() -> impl Strategy<Value = Happens> {
    let selectors = prop_oneof![Just(""), Just("zone=eu"), Just("overmind/hive=hive1"), Just("no")];
    prop_oneof![
        12 => (0..2_usize).prop_map(Happens::Step),
        2 => (0..2_usize).prop_map(Happens::Crash),
        4 => Just(Happens::Runs),
        3 => (0..8_usize, any::<bool>()).prop_map(|(at, by_hand)| Happens::Ends(at, by_hand)),
        2 => (1..90_u64).prop_map(Happens::Later),
        1 => (0..6_usize).prop_map(Happens::Comes),
        1 => (0..6_usize).prop_map(Happens::Goes),
        1 => (0..3_u32, selectors).prop_map(|(task, of)| Happens::Changes(task, of)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn in_any_sequence_of_events_each_matching_hive_gets_one_session(
        all in proptest::collection::vec(happens(), 1..160),
    ) {
        let mut world = World::new();
        let mut hands = [Hand::default(), Hand::default()];
        for one in all {
            match one {
                Happens::Step(at) => {
                    let hand = std::mem::take(&mut hands[at]);
                    hands[at] = world.step(hand);
                }
                Happens::Crash(at) => hands[at] = Hand::Idle,
                Happens::Runs => world.run(),
                Happens::Ends(at, by_hand) => world.end(at, by_hand),
                Happens::Later(seconds) => {
                    world.now = world.now.after(Duration::from_secs(seconds));
                }
                Happens::Comes(at) => drop(world.hives.insert(at)),
                Happens::Goes(at) => drop(world.hives.remove(&at)),
                Happens::Changes(task, selector) => world.change(spec(task, selector)),
            }
            let slots = &world.status.slots;
            let hives: BTreeSet<_> = slots.iter().map(|slot| slot.hive.clone()).collect();
            prop_assert_eq!(hives.len(), slots.len(), "no hive has two slots");
        }
        world.settle();
        prop_assert_eq!(world.covered(), world.wanted());
        prop_assert_eq!(world.status.ready as usize, world.wanted().len());
        for number in world.open() {
            prop_assert_eq!(world.made[&number].1, world.status.revision);
        }
        prop_assert_eq!(world.status.says("Ready"), !world.wanted().is_empty());
        let plan = world.plan();
        prop_assert!(plan.start.is_empty() && plan.cancel.is_empty() && plan.pack.is_none());
        prop_assert_eq!(&plan.status, &world.status);
        world.now = world.now.after(Duration::from_secs(7));
        prop_assert_eq!(&world.plan().status.conditions, &world.status.conditions);

        world.deleting = true;
        world.settle();
        prop_assert_eq!(world.open().len(), 0);
        prop_assert!(world.plan().release);
    }

    #[test]
    fn a_singleton_never_has_two_sessions_for_a_hive(
        order in proptest::collection::vec(0..6_usize, 200),
    ) {
        let mut world = World::new();
        world.settle();
        world.change(spec(1, ""));
        let mut hand = Hand::Idle;
        for at in order {
            match at {
                0 => world.run(),
                _ => hand = world.step(hand),
            }
            let covered = world.covered();
            let distinct: BTreeSet<_> = covered.iter().collect();
            prop_assert_eq!(distinct.len(), covered.len(), "{:?}", covered);
            prop_assert!(covered.len() >= 2, "one at a time: {:?}", covered);
        }
    }
}

#[test]
fn a_removed_hive_loses_its_session_and_a_new_hive_gets_one() {
    let mut world = World::new();
    world.settle();
    assert_eq!(world.covered(), ["hive0", "hive1", "hive2"]);
    world.hives = BTreeSet::from([1, 2, 3]);
    world.settle();
    assert_eq!(world.covered(), ["hive1", "hive2", "hive3"]);
    world.change(spec(0, "zone=us"));
    world.settle();
    assert_eq!((world.covered(), world.status.replicas), (vec!["hive1".into(), "hive3".into()], 2));
    world.change(spec(0, "zone=mars"));
    world.settle();
    assert_eq!((world.covered().len(), world.reason()), (0, "NoHiveMatches"));
    world.change(spec(0, "zone=eu"));
    world.settle();
    assert_eq!((world.covered(), world.reason()), (vec!["hive2".into()], "Complete"));
}

#[test]
fn every_mistake_of_a_sentinel_is_reported_with_its_path() {
    let read = |spec: serde_json::Value| FleetSpec::read_sentinel(&spec).err().unwrap_or_default();
    assert!(read(json!({"selector": "zone in (eu)", "template": {"agent": "a"}})).is_empty());
    let bad = json!({"selector": "a b", "maxUnavailable": 0, "replicas": 2, "maxSurge": 1,
        "template": {"agnet": "a"}});
    let paths: Vec<String> = read(bad).into_iter().map(|one| one.path).collect();
    for want in [
        "spec.selector",
        "spec.maxUnavailable",
        "spec.replicas",
        "spec.maxSurge",
        "spec.template.agnet",
    ] {
        assert!(paths.iter().any(|path| path == want), "{want}: {paths:?}");
    }
}
