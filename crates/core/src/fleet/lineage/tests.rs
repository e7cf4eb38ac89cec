//! Random worlds: two reconcilers at once, crashes between any two actions, sessions that end or are
//! removed, and changes of the spec.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ids::SessionId;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn id(number: u32) -> SessionId {
    SessionId::from_u128(u128::from(number) + 1)
}

fn spec(replicas: u32, task: u32) -> FleetSpec {
    let template = json!({"agent": "a", "task": task.to_string()});
    FleetSpec::read_lineage(&json!({"replicas": replicas, "template": template})).expect("a spec")
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

/// A session: how often it was placed is its epoch.
#[derive(Clone, Debug)]
struct Run {
    slot: Slot,
    epoch: u32,
    seen: Seen,
}

impl Run {
    fn is_open(&self) -> bool {
        !matches!(self.seen, Seen::Ended { .. })
    }
}

struct World {
    spec: FleetSpec,
    version: u64,
    status: FleetStatus,
    runs: BTreeMap<u32, Run>,
    deleting: bool,
    released: bool,
    now: Timestamp,
}

impl World {
    fn new(spec: FleetSpec) -> Self {
        let (status, runs) = (FleetStatus::default(), BTreeMap::new());
        Self { spec, version: 1, status, runs, deleting: false, released: false, now: NOW }
    }

    fn seen(&self) -> BTreeMap<u32, Seen> {
        self.runs.iter().map(|(number, run)| (*number, run.seen.clone())).collect()
    }

    fn plan_of(&self, status: &FleetStatus, seen: &BTreeMap<u32, Seen>) -> Plan {
        decide(&self.spec, 1, status, seen, self.deleting, self.now)
    }

    fn plan(&self) -> Plan {
        self.plan_of(&self.status, &self.seen())
    }

    fn step(&mut self, hand: Hand) -> Hand {
        match hand {
            Hand::Idle => Hand::Read(self.version, Box::new(self.status.clone()), self.seen()),
            Hand::Read(version, status, seen) => {
                let plan = self.plan_of(&status, &seen);
                if version != self.version {
                    return Hand::Idle;
                }
                if plan.status != *status {
                    self.status = plan.status;
                    self.version += 1;
                }
                self.released |= plan.release;
                let mut actions: Vec<Action> = plan.start.into_iter().map(Action::Start).collect();
                actions.extend(plan.cancel.into_iter().map(Action::Cancel));
                Hand::Acting(actions)
            }
            Hand::Acting(mut actions) => {
                match actions.pop() {
                    None => return Hand::Idle,
                    Some(Action::Start(slot)) => self.start(&slot),
                    Some(Action::Cancel(session)) => {
                        let number = u32::try_from(session.as_u128() - 1).expect("small");
                        self.end(number, true);
                    }
                }
                Hand::Acting(actions)
            }
        }
    }

    /// Like the engine: a name belongs to one open session, an ended session continues from its
    /// observed end, and an existing one stays.
    fn start(&mut self, slot: &Slot) {
        let named = |run: &Run| run.slot.ordinal == slot.ordinal && run.is_open();
        if self.runs.values().any(named) {
            return;
        }
        let session = id(slot.number);
        match self.runs.get_mut(&slot.number) {
            Some(run) if slot.ended == Some(run.epoch) => {
                (run.epoch, run.seen) = (run.epoch + 1, Seen::Starting(session));
            }
            Some(_) => {}
            None => {
                let (slot, seen) = (slot.clone(), Seen::Starting(session));
                self.runs.insert(slot.number, Run { slot, epoch: 1, seen });
            }
        }
    }

    fn end(&mut self, number: u32, by_hand: bool) {
        if let Some(run) = self.runs.get_mut(&number).filter(|run| run.is_open()) {
            run.seen = Seen::Ended { epoch: run.epoch, by_hand, why: "exit code 1".to_owned() };
        }
    }

    fn open(&self) -> Vec<u32> {
        self.runs.iter().filter(|(_, run)| run.is_open()).map(|(number, _)| *number).collect()
    }

    /// Open sessions by ordinal.
    fn ordinals(&self) -> BTreeMap<u32, u32> {
        self.runs
            .iter()
            .filter(|(_, run)| run.is_open())
            .map(|(n, run)| (run.slot.ordinal, *n))
            .collect()
    }

    fn run(&mut self, at: usize) {
        let made = self.runs.values_mut().filter(|run| matches!(run.seen, Seen::Starting(_)));
        if let Some(run) = made.into_iter().nth(at) {
            run.seen = Seen::Running(id(run.slot.number));
        }
    }

    fn pass(&mut self) {
        let mut hand = Hand::Idle;
        loop {
            hand = self.step(hand);
            if matches!(hand, Hand::Idle) {
                return;
            }
        }
    }

    /// A single reconciler, whose sessions all run and continue; `watch` checks after each pass.
    fn settle_watched(&mut self, mut watch: impl FnMut(&Self)) {
        for _ in 0..10_000 {
            let before = (self.status.clone(), self.seen());
            self.pass();
            watch(self);
            while self.runs.values().any(|run| matches!(run.seen, Seen::Starting(_))) {
                self.run(0);
            }
            if before == (self.status.clone(), self.seen()) {
                match self.plan().again {
                    Some(at) if at > self.now => self.now = at,
                    Some(_) | None => return,
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.status);
    }

    fn settle(&mut self) {
        self.settle_watched(|_| {});
    }

    fn change(&mut self, spec: FleetSpec) {
        self.spec = spec;
        self.version += 1;
    }
}

#[derive(Clone, Debug)]
enum Happens {
    Step(usize),
    Crash(usize),
    Runs(usize),
    Ends(usize, bool),
    Removed(usize),
    Later(u64),
    Changes(u32, u32),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        12 => (0..2_usize).prop_map(Happens::Step),
        2 => (0..2_usize).prop_map(Happens::Crash),
        6 => (0..4_usize).prop_map(Happens::Runs),
        3 => (0..8_usize, any::<bool>()).prop_map(|(at, by_hand)| Happens::Ends(at, by_hand)),
        1 => (0..8_usize).prop_map(Happens::Removed),
        2 => (1..90_u64).prop_map(Happens::Later),
        1 => (0..5_u32, 0..3_u32).prop_map(|(n, task)| Happens::Changes(n, task)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn in_any_sequence_of_events_each_ordinal_gets_one_session_and_the_loop_settles(
        all in proptest::collection::vec(happens(), 1..160), deleted in any::<bool>(),
    ) {
        let mut world = World::new(spec(3, 0));
        let mut hands = [Hand::default(), Hand::default()];
        for one in all {
            match one {
                Happens::Step(at) => {
                    let hand = std::mem::take(&mut hands[at]);
                    hands[at] = world.step(hand);
                }
                Happens::Crash(at) => hands[at] = Hand::Idle,
                Happens::Runs(at) => world.run(at),
                Happens::Ends(at, by_hand) => {
                    let open = world.open();
                    if let Some(number) = open.get(at % open.len().max(1)) {
                        world.end(*number, by_hand);
                    }
                }
                Happens::Removed(at) => {
                    let ended = world.runs.iter().filter(|(_, run)| !run.is_open());
                    if let Some(number) = ended.map(|(number, _)| *number).nth(at) {
                        world.runs.remove(&number);
                    }
                }
                Happens::Later(seconds) => {
                    world.now = world.now.after(Duration::from_secs(seconds));
                }
                Happens::Changes(n, task) => world.change(spec(n, task)),
            }
            prop_assert_eq!(world.ordinals().len(), world.open().len(), "two of one ordinal");
            let slots = || world.status.slots.iter().chain(&world.status.parked);
            let ordinals: BTreeSet<u32> = slots().map(|slot| slot.ordinal).collect();
            prop_assert_eq!(ordinals.len(), slots().count(), "no ordinal twice: {:?}", world.status);
            let numbers: BTreeSet<u32> = slots().map(|slot| slot.number).collect();
            prop_assert_eq!(numbers.len(), slots().count(), "no number twice");
        }
        if deleted {
            world.deleting = true;
            world.version += 1;
        }
        world.settle();
        let wanted = if deleted { 0 } else { world.spec.replicas };
        let ordinals: Vec<u32> = world.ordinals().into_keys().collect();
        prop_assert_eq!(ordinals, (0..wanted).collect::<Vec<_>>());
        prop_assert_eq!(world.released, deleted);
        if !deleted {
            prop_assert!(world.status.says("Ready"), "{:?}", world.status);
            let old = |slot: &Slot| slot.revision != world.status.revision;
            prop_assert!(!world.status.slots.iter().any(old), "{:?}", world.status);
        }
        let plan = world.plan();
        prop_assert!(plan.start.is_empty() && plan.cancel.is_empty() && plan.pack.is_none());
        prop_assert_eq!(&plan.status, &world.status);
    }
}

#[test]
fn scaling_adds_the_lowest_ordinals_and_removes_the_highest() {
    let mut world = World::new(spec(4, 0));
    let mut most = 0;
    world.settle_watched(|world| {
        let ordinals: Vec<u32> = world.ordinals().into_keys().collect();
        assert_eq!(ordinals, (0..u32::try_from(ordinals.len()).unwrap()).collect::<Vec<_>>());
        assert!(ordinals.len() <= most + 1, "one after the other");
        most = ordinals.len();
    });
    let first = world.ordinals();
    world.change(spec(1, 0));
    let mut last = 4;
    world.settle_watched(|world| {
        let ordinals: Vec<u32> = world.ordinals().into_keys().collect();
        assert_eq!(ordinals, (0..u32::try_from(ordinals.len()).unwrap()).collect::<Vec<_>>());
        assert!(ordinals.len() + 1 >= last, "one after the other");
        last = ordinals.len();
    });
    assert_eq!(world.ordinals().len(), 1);
    world.change(spec(4, 0));
    world.settle();
    assert_eq!(world.ordinals(), first, "the same sessions");
}

#[test]
fn a_killed_session_of_a_lineage_restarts_at_once_and_is_no_failure() {
    let mut world = World::new(spec(2, 0));
    world.settle();
    let before = world.ordinals();
    world.end(before[&0], true);
    world.pass();
    assert_eq!(world.ordinals(), before);
    assert_eq!(world.status.failures, 0);
    world.settle();
    assert_eq!(world.runs[&before[&0]].epoch, 2);
}

#[test]
fn a_new_template_replaces_one_ordinal_at_a_time_from_the_highest() {
    let mut world = World::new(spec(3, 0));
    world.settle();
    let before = world.ordinals();
    world.change(spec(3, 1));
    let mut order = Vec::new();
    world.settle_watched(|world| {
        assert!(world.ordinals().len() >= 2, "never two at once");
        for (ordinal, number) in world.ordinals() {
            if before[&ordinal] != number && !order.contains(&ordinal) {
                order.push(ordinal);
            }
        }
    });
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn a_program_that_ends_at_once_is_started_with_a_growing_wait_and_says_so() {
    let mut world = World::new(spec(1, 0));
    world.settle();
    let began = world.now;
    while world.now.since(began) < Duration::from_mins(5) {
        for number in world.open() {
            world.end(number, false);
        }
        world.pass();
        let again = world.plan().again.filter(|at| *at > world.now);
        world.now = again.unwrap_or(world.now).after(Duration::from_millis(1));
    }
    let starts: u32 = world.runs.values().map(|run| run.epoch).sum();
    assert_eq!(world.runs.len(), 1, "it is always the same session");
    assert!((5..40).contains(&starts), "{starts} starts in five minutes");
    assert!(world.status.says("Waiting"), "{:?}", world.status.conditions);
}

#[test]
fn a_lineage_has_no_surge_and_mistakes_are_reported_with_their_path() {
    let spec =
        json!({"replicas": -1, "maxSurge": 1, "maxUnavailable": 0, "template": {"agnet": "a"}});
    let wrong = FleetSpec::read_lineage(&spec).err().unwrap_or_default();
    let paths: Vec<&str> = wrong.iter().map(|one| one.path.as_str()).collect();
    for want in ["spec.replicas", "spec.maxSurge", "spec.maxUnavailable", "spec.template.agnet"] {
        assert!(paths.contains(&want), "{want}: {paths:?}");
    }
}
