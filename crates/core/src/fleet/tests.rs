//! Random worlds: two reconcilers at once, crashes between any two actions, sessions that end, and
//! changes of the spec.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn id(number: u32) -> SessionId {
    SessionId::from_u128(u128::from(number) + 1)
}

fn spec(replicas: u32, surge: u32, unavailable: u32, task: u32, paused: bool) -> FleetSpec {
    FleetSpec::read(&json!({
        "replicas": replicas, "maxSurge": surge, "maxUnavailable": unavailable, "paused": paused,
        "template": {"agent": "a", "task": task.to_string()},
    }))
    .expect("it is a spec")
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
    /// The revision that each session was started from.
    revisions: BTreeMap<u32, u32>,
    now: Timestamp,
}

impl World {
    fn new(spec: FleetSpec) -> Self {
        Self {
            spec,
            generation: 1,
            version: 1,
            status: FleetStatus::default(),
            sessions: BTreeMap::new(),
            revisions: BTreeMap::new(),
            now: NOW,
        }
    }

    fn step(&mut self, hand: Hand) -> Hand {
        match hand {
            Hand::Idle => {
                Hand::Read(self.version, Box::new(self.status.clone()), self.sessions.clone())
            }
            Hand::Read(version, status, seen) => {
                let plan = decide(&self.spec, self.generation, &status, &seen, false, self.now);
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
                        self.revisions.entry(number).or_insert(slot.revision);
                    }
                    Some(Action::Cancel(session)) => {
                        for seen in self.sessions.values_mut() {
                            let open = matches!(seen,
                                Seen::Starting(id) | Seen::Running(id) if *id == session);
                            if open {
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

    fn running(&self) -> u32 {
        let running = self.sessions.values().filter(|seen| matches!(seen, Seen::Running(_)));
        u32::try_from(running.count()).expect("they are few")
    }

    /// A session that was made runs.
    fn run(&mut self, at: usize) {
        let made = self.sessions.values_mut().filter(|seen| matches!(seen, Seen::Starting(_)));
        if let Some(seen) = made.into_iter().nth(at)
            && let Seen::Starting(id) = *seen
        {
            *seen = Seen::Running(id);
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
            while self.sessions.values().any(|seen| matches!(seen, Seen::Starting(_))) {
                self.run(0);
            }
            if before == (self.status.clone(), self.sessions.clone()) {
                let plan = self.plan();
                match plan.again {
                    Some(at) if at > self.now => self.now = at,
                    Some(_) | None => return,
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.status);
    }

    fn plan(&self) -> Plan {
        decide(&self.spec, self.generation, &self.status, &self.sessions, false, self.now)
    }
}

#[derive(Clone, Debug)]
enum Happens {
    Step(usize),
    Crash(usize),
    Runs(usize),
    Ends(usize, bool),
    Later(u64),
    Changes(u32, u32, u32, u32, bool),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        12 => (0..2_usize).prop_map(Happens::Step),
        2 => (0..2_usize).prop_map(Happens::Crash),
        6 => (0..4_usize).prop_map(Happens::Runs),
        3 => (0..8_usize, any::<bool>()).prop_map(|(at, by_hand)| Happens::Ends(at, by_hand)),
        2 => (1..90_u64).prop_map(Happens::Later),
        1 => (0..6_u32, 0..3_u32, 0..3_u32, 0..3_u32, any::<bool>())
            .prop_map(|(n, s, u, t, p)| Happens::Changes(n, s, u, t, p)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn in_any_sequence_of_events_the_fleet_reaches_its_declared_state(
        all in proptest::collection::vec(happens(), 1..160),
    ) {
        let mut world = World::new(spec(3, 1, 0, 0, false));
        let mut hands = [Hand::default(), Hand::default()];
        for one in all {
            match one {
                Happens::Step(at) => {
                    let hand = std::mem::take(&mut hands[at]);
                    hands[at] = world.step(hand);
                }
                Happens::Crash(at) => hands[at] = Hand::Idle,
                Happens::Runs(at) => world.run(at),
                Happens::Ends(at, by_hand) => world.end(at, by_hand),
                Happens::Later(seconds) => {
                    world.now = world.now.after(Duration::from_secs(seconds));
                }
                Happens::Changes(n, s, u, task, paused) => {
                    world.change(spec(n, s.max(u32::from(u == 0)), u, task, paused));
                }
            }
            let numbers: BTreeSet<u32> = world.status.slots.iter().map(|s| s.number).collect();
            prop_assert_eq!(numbers.len(), world.status.slots.len(), "no number twice");
            let ordinals: BTreeSet<u32> = world.status.slots.iter().map(|s| s.ordinal).collect();
            prop_assert_eq!(ordinals.len(), world.status.slots.len(), "no name twice");
        }
        world.settle();
        prop_assert_eq!(world.open().len(), world.spec.replicas as usize);
        prop_assert_eq!(world.status.ready, world.spec.replicas);
        if !world.spec.paused {
            for number in world.open() {
                prop_assert_eq!(world.revisions[&number], world.status.revision);
            }
            prop_assert!(world.status.says("Ready"));
        }
        let plan = world.plan();
        prop_assert!(plan.start.is_empty() && plan.cancel.is_empty() && plan.pack.is_none());
        prop_assert_eq!(&plan.status, &world.status);
    }

    #[test]
    fn a_rollout_respects_max_surge_and_min_available(
        replicas in 1..8_u32, surge in 0..4_u32, unavailable in 0..4_u32,
        order in proptest::collection::vec(0..8_usize, 200),
    ) {
        let surge = surge.max(u32::from(unavailable == 0));
        let mut world = World::new(spec(replicas, surge, unavailable, 0, false));
        world.settle();
        world.change(spec(replicas, surge, unavailable, 1, false));
        let least = replicas.saturating_sub(unavailable);
        let mut hand = Hand::Idle;
        for at in order {
            match at {
                // Those that were made run sooner or later, in any order.
                0 | 1 => world.run(at),
                _ => hand = world.step(hand),
            }
            let most = (replicas + surge) as usize;
            prop_assert!(world.open().len() <= most, "{:?}", world.status);
            prop_assert!(world.running() >= least, "{:?}", world.status);
        }
        world.settle();
        prop_assert_eq!(world.status.revision, 2);
        prop_assert!(world.status.says("Ready"));
    }
}

#[test]
fn a_program_that_ends_at_once_is_started_with_a_growing_wait_and_says_so() {
    let mut world = World::new(spec(1, 1, 0, 0, false));
    world.settle();
    let (mut starts, began) = (0, world.now);
    for _ in 0..2_000 {
        for at in 0..world.open().len() {
            world.end(at, false);
        }
        let before = world.sessions.len();
        let mut hand = Hand::Idle;
        loop {
            hand = world.step(hand);
            if matches!(hand, Hand::Idle) {
                break;
            }
        }
        starts += world.sessions.len() - before;
        let again = world.plan().again.filter(|at| *at > world.now);
        world.now = again.unwrap_or(world.now).after(Duration::from_millis(1));
        if world.now.since(began) > Duration::from_mins(5) {
            break;
        }
    }
    assert!((5..40).contains(&starts), "{starts} starts in five minutes");
    assert!(world.status.says("Waiting"), "{:?}", world.status.conditions);
    assert!(!world.status.says("Available"));
}

#[test]
fn a_killed_session_of_a_fleet_restarts_at_once_with_its_name() {
    let mut world = World::new(spec(3, 1, 0, 0, false));
    world.settle();
    let two = world.status.slots.iter().find(|slot| slot.ordinal == 2).expect("it is there");
    let number = two.number;
    world.sessions.insert(number, Seen::Ended { epoch: 1, by_hand: true, why: "killed".into() });
    let plan = world.plan();
    assert_eq!(plan.start.iter().map(|slot| slot.ordinal).collect::<Vec<_>>(), [2]);
    assert!(plan.start.iter().all(|slot| slot.number > number));
}

#[test]
fn a_paused_rollout_waits_and_replaces_failed_sessions_from_the_current_template() {
    let mut world = World::new(spec(2, 1, 0, 0, false));
    world.settle();
    world.change(spec(2, 1, 0, 1, true));
    world.settle();
    assert_eq!(world.status.revision, 1);
    world.end(0, true);
    world.settle();
    assert!(world.open().iter().all(|number| world.revisions[number] == 1));
    let progressing = world.status.conditions.iter().find(|one| one.kind == "Progressing");
    assert_eq!(progressing.map(|one| one.reason.as_str()), Some("Paused"));
    world.change(spec(2, 1, 0, 1, false));
    world.settle();
    assert!(world.open().iter().all(|number| world.revisions[number] == 2));
}

#[test]
fn every_mistake_of_a_fleet_is_reported_with_its_path() {
    let read = |spec: serde_json::Value| FleetSpec::read(&spec).err().unwrap_or_default();
    assert!(read(json!({"template": {"agent": "a", "labels": {"app": "web"}}})).is_empty());
    let bad = json!({"replicas": -1, "maxSurge": 0, "minReady": "soon", "paused": "no", "replcas": 2,
        "template": {"agnet": "a", "labels": {"a b": "c"}, "completions": 2}});
    let paths: Vec<String> = read(bad).into_iter().map(|one| one.path).collect();
    for want in [
        "spec.replicas",
        "spec.maxSurge",
        "spec.minReady",
        "spec.paused",
        "spec.replcas",
        "spec.template.agnet",
        "spec.template.completions",
        "spec.template.agent",
    ] {
        assert!(paths.iter().any(|path| path == want), "{want}: {paths:?}");
    }
    assert!(paths.iter().any(|path| path.starts_with("spec.template.labels")), "{paths:?}");
}

#[test]
fn an_ended_session_records_the_resource_that_ended_it() {
    let slot = |number: u32, revision: u32| {
        let session = Some(id(number));
        Slot { session, stopping: true, ..Slot::new(number, number, revision) }
    };
    let (revision, replicas) = (2, 1);
    let slots = vec![slot(0, 1), slot(1, 2)];
    let mut status = FleetStatus { revision, replicas, slots, ..FleetStatus::default() };
    let why = |status: &FleetStatus, number: u32, deleting: bool| {
        why_ended(status, id(number), "fleet/web", deleting)
    };
    assert_eq!(why(&status, 0, false), "replaced by revision 2 of fleet/web");
    assert_eq!(why(&status, 1, false), "scaled away by fleet/web");
    assert_eq!(why(&status, 7, false), "scaled away by fleet/web", "one that has no slot");
    assert_eq!(why(&status, 0, true), "ended: fleet/web was deleted");
    status.replicas = 0;
    assert_eq!(why(&status, 0, false), "scaled away by fleet/web", "nothing replaces it");
}
