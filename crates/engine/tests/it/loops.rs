//! The runner of loops: the start of passes, their visible state, and the state that survives a restart.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::budget::NoPrices;
use overmind_core::loops::{LoopStatus, Pace, Reconcile, Report};
use overmind_core::row::Role;
use overmind_core::time::{Clock as _, Timestamp};
use overmind_engine::{Caller, Drained, EngineError, Rights};
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ports::FakeModels;
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::world::World;

const HOUR: Duration = Duration::from_hours(1);
const NAME: &str = "looking";

/// The instructions of a test to a loop, and the reports of the loop.
struct Puppet {
    change: Notify,
    /// The results of the next passes; without one they succeed.
    next: Mutex<Vec<Does>>,
    begun: mpsc::UnboundedSender<Timestamp>,
    gate: Semaphore,
    at_once: AtomicU32,
    most_at_once: AtomicU32,
    stopped: AtomicU32,
}

#[derive(Clone, Copy)]
enum Does {
    Fails,
    Panics,
    /// Waits until the test gives way.
    Waits,
}

struct Looking(Arc<Puppet>);

impl Reconcile for Looking {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pace(&self) -> Pace {
        Pace::every(HOUR)
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(self.0.change.notified())
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            let puppet = &self.0;
            let at_once = puppet.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            puppet.most_at_once.fetch_max(at_once, Ordering::SeqCst);
            let does = puppet.next.lock().expect("the stage of a test works").pop();
            puppet.begun.send(now).expect("the stage of a test works");
            let result = match does {
                Some(Does::Waits) => {
                    puppet.gate.acquire().await.expect("the stage of a test works").forget();
                    Ok(Report::new("waited"))
                }
                Some(Does::Fails) => Err("out of order".to_owned()),
                Some(Does::Panics) => {
                    puppet.at_once.fetch_sub(1, Ordering::SeqCst);
                    panic!("at the {}th pass", 3)
                }
                None => Ok(Report::new("looked")),
            };
            puppet.at_once.fetch_sub(1, Ordering::SeqCst);
            result
        })
    }

    fn stopped(&mut self, _now: Timestamp) -> Fut<'_, ()> {
        self.0.stopped.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}

struct Stage {
    world: World,
    clock: Arc<ManualClock>,
    puppet: Arc<Puppet>,
    begun: mpsc::UnboundedReceiver<Timestamp>,
}

impl Stage {
    async fn new() -> Self {
        Self::at(Arc::new(tempfile::tempdir().expect("the stage of a test works"))).await
    }

    async fn at(dir: Arc<TempDir>) -> Self {
        let clock = Arc::new(ManualClock::default());
        let world = World::priced(
            dir,
            FakeModels::new([]),
            Arc::clone(&clock) as Arc<_>,
            Arc::new(NoPrices),
        );
        let world = world.await;
        let (begun, heard) = mpsc::unbounded_channel();
        let puppet = Arc::new(Puppet {
            change: Notify::new(),
            next: Mutex::default(),
            begun,
            gate: Semaphore::new(0),
            at_once: AtomicU32::new(0),
            most_at_once: AtomicU32::new(0),
            stopped: AtomicU32::new(0),
        });
        world.engine.loop_add(Looking(Arc::clone(&puppet))).await;
        Self { world, clock, puppet, begun: heard }
    }

    fn does(&self, what: Does) {
        self.puppet.next.lock().expect("the stage of a test works").push(what);
    }

    async fn run(&self) -> LoopStatus {
        self.world.engine.loop_run(&self.world.by, NAME).await.expect("the stage of a test works")
    }

    fn clock_now(&self) -> Timestamp {
        self.clock.now()
    }

    fn status(&self) -> LoopStatus {
        let all = self.world.engine.loop_list(&self.world.by).expect("the stage of a test works");
        all.into_iter().find(|one| one.name == NAME).expect("it was added")
    }

    /// Waits until a pass has begun.
    async fn begins(&mut self) -> Timestamp {
        self.begun.recv().await.expect("the loop lives")
    }

    /// Whether a pass has begun without a request.
    async fn silent(&mut self) -> bool {
        // A pass by hand runs after any pass that was due before.
        let passes = self.status().passes;
        let after = self.run().await.passes;
        while self.begun.try_recv().is_ok() {}
        after == passes + 1
    }
}

#[tokio::test]
async fn a_pass_starts_by_time_by_a_change_and_by_hand() {
    let mut stage = Stage::new().await;
    let due = stage.status().next.expect("it is not paused");
    stage.clock.advance(HOUR * 2);
    assert!(stage.begins().await >= due);
    stage.puppet.change.notify_one();
    stage.begins().await;
    let done = stage.run().await;
    assert_eq!((done.passes, done.errors, done.running), (3, 0, false));
    assert_eq!(done.last.expect("one").result, Ok("looked".to_owned()));
    assert!(stage.begun.try_recv().is_ok() && stage.silent().await);
}

#[tokio::test]
async fn an_error_and_a_panic_are_results_and_delay_passes_caused_by_changes() {
    let mut stage = Stage::new().await;
    stage.does(Does::Fails);
    let failed = stage.run().await;
    assert_eq!(failed.last.expect("one").result, Err("out of order".to_owned()));
    assert_eq!(failed.next.expect("again").since(stage.clock_now()), Duration::from_secs(5));
    stage.does(Does::Panics);
    let failed = stage.run().await;
    let said = failed.last.expect("one").result.expect_err("a panic");
    assert_eq!(said, "panicked: at the 3th pass");
    assert_eq!(failed.next.expect("again").since(stage.clock_now()), Duration::from_secs(10));
    while stage.begun.try_recv().is_ok() {}
    stage.puppet.change.notify_one();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(stage.begun.try_recv().is_err(), "a change waits for the backoff");
    stage.clock.advance(Duration::from_secs(10));
    stage.begins().await;
    // The change was not lost.
    stage.begins().await;
    assert_eq!(stage.run().await.errors, 0);
}

#[tokio::test]
async fn passes_never_overlap_and_a_request_during_a_pass_starts_another() {
    let mut stage = Stage::new().await;
    stage.does(Does::Waits);
    stage.puppet.change.notify_one();
    stage.begins().await;
    assert!(stage.status().running);
    let (engine, by) = (&stage.world.engine, &stage.world.by);
    let mut asked: Vec<_> = (0..9).map(|_| Box::pin(engine.loop_run(by, NAME))).collect();
    for one in &mut asked {
        assert!(futures_util::poll!(one).is_pending());
    }
    stage.puppet.change.notify_one();
    stage.puppet.gate.add_permits(1);
    for one in asked {
        let status = one.await.unwrap();
        assert!((2..=3).contains(&status.passes), "one pass serves all: {}", status.passes);
    }
    assert_eq!(stage.puppet.most_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_pause_survives_a_restart_and_a_resumed_loop_runs_at_once() {
    let mut stage = Stage::new().await;
    let by = stage.world.by.clone();
    let paused = stage.world.engine.loop_pause(&by, NAME).await.unwrap();
    assert_eq!((paused.paused, paused.next), (true, None));
    let again = stage.world.engine.loop_pause(&by, NAME).await.unwrap();
    assert!(again.paused);
    stage.puppet.change.notify_one();
    stage.clock.advance(HOUR * 9);
    assert!(stage.silent().await, "neither clock nor change begins a pass");
    let dir = Arc::clone(&stage.world.dir);
    stage.world.engine.drain(Duration::ZERO).await;
    drop(stage);

    let mut stage = Stage::at(dir).await;
    assert!(stage.status().paused && stage.status().next.is_none());
    let by = stage.world.by.clone();
    stage.world.engine.loop_resume(&by, NAME).await.unwrap();
    stage.begins().await;
    let events = stage.world.system_kinds().await;
    let told: Vec<&str> =
        events.iter().map(String::as_str).filter(|kind| kind.starts_with("loop.")).collect();
    assert_eq!(told, ["loop.paused", "loop.resumed"], "and only what changed something is told");
}

#[tokio::test]
async fn a_drain_waits_for_the_current_pass_and_runs_the_final_one() {
    let mut stage = Stage::new().await;
    stage.does(Does::Waits);
    stage.puppet.change.notify_one();
    stage.begins().await;
    let engine = stage.world.engine.clone();
    let left = engine.loops_drain(Duration::ZERO).await;
    assert_eq!(left, Drained::TimedOut { left: 1 });
    assert_eq!(stage.puppet.stopped.load(Ordering::SeqCst), 0);
    stage.puppet.gate.add_permits(1);
    assert_eq!(engine.loops_drain(HOUR).await, Drained::All);
    assert_eq!(stage.puppet.stopped.load(Ordering::SeqCst), 1);
    let late = engine.loop_run(&stage.world.by, NAME).await;
    assert!(matches!(late, Err(EngineError::Unavailable { .. })), "{late:?}");
}

#[tokio::test]
async fn only_admins_control_loops_and_an_unknown_name_gets_a_suggestion() {
    let stage = Stage::new().await;
    let by = Caller { rights: Rights::Role(Role::Operator), ..stage.world.by.clone() };
    let engine = &stage.world.engine;
    assert!(engine.loop_list(&by).is_ok());
    for refused in [
        engine.loop_pause(&by, NAME).await,
        engine.loop_resume(&by, NAME).await,
        engine.loop_run(&by, NAME).await,
    ] {
        assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    }
    let unknown = engine.loop_run(&stage.world.by, "loking").await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no loop `loking`; did you mean `looking`?");
}
