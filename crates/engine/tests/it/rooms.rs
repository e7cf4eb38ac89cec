//! Runs of commands in rooms, over fakes of both ports that write one journal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overmind_core::attest::{Attestation, Attested, Seal};
use overmind_core::command::{CommandSpec, StopHow};
use overmind_core::ids::SessionId;
use overmind_core::room::stay::{RoomAttested, RoomPhase, RoomRow};
use overmind_core::room::{Leak, RoomDone, RoomEnd, RoomWhen, RoomWish};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::SANDBOX_ATTESTED;
use overmind_core::store::{EventQuery, StreamId};
use overmind_engine::request::SessionDraft;
use overmind_engine::{Caller, EngineError, Rights};
use overmind_testkit::processes::FakeProcesses;
use overmind_testkit::rooms::{FakeRooms, Journal};
use overmind_testkit::store_conformance::attestation;
use tempfile::TempDir;

use crate::world::{World, session_draft};

/// An engine, and the two ports, which outlive it.
struct House {
    world: World,
    rooms: Arc<FakeRooms>,
    processes: Arc<FakeProcesses>,
    journal: Journal,
    agent: String,
}

fn draft(agent: &str, room: Option<RoomWish>) -> SessionDraft {
    SessionDraft { name: Some("mend".into()), room, ..session_draft(agent, "mend it") }
}

impl House {
    async fn new() -> Self {
        let journal = Journal::default();
        let rooms = FakeRooms::new(journal.clone());
        let processes = FakeProcesses::new(journal.clone());
        let dir = Arc::new(tempfile::tempdir().expect("a directory can be made"));
        Self::of(dir, rooms, processes, journal).await
    }

    async fn of(
        dir: Arc<TempDir>,
        rooms: Arc<FakeRooms>,
        processes: Arc<FakeProcesses>,
        journal: Journal,
    ) -> Self {
        let world = World::of_commands(dir, Arc::clone(&processes), Some(Arc::clone(&rooms))).await;
        let agent = command_agent(&world).await;
        Self { world, rooms, processes, journal, agent }
    }

    /// The server ends at any point, and another one starts.
    async fn restarted(self) -> Self {
        let Self { world, rooms, processes, journal, agent: _ } = self;
        world.engine.drain(Duration::ZERO).await;
        let dir = Arc::clone(&world.dir);
        drop(world);
        journal.write("restart");
        Self::of(dir, rooms, processes, journal).await
    }

    async fn run(&self) -> SessionId {
        self.wishing(RoomWish::default()).await
    }

    async fn wishing(&self, wish: RoomWish) -> SessionId {
        let draft = draft(&self.agent, Some(wish));
        let made = self.world.engine.session_create(&self.world.by, draft).await;
        made.expect("the run is made").value.id
    }

    async fn until(&self, what: &str) {
        self.world.until_true(what, || self.journal.has(what)).await;
    }

    /// Its command runs, and the log records it.
    async fn up(&self, run: SessionId) {
        self.until_row(run, |row| row.command.as_ref().is_some_and(|row| row.pid.is_some())).await;
    }

    async fn until_row(&self, run: SessionId, ready: impl Fn(&SessionRow) -> bool) -> SessionRow {
        let mut watch = self.world.engine.session_watch(run);
        let wait = async {
            loop {
                watch.borrow_and_update();
                let row = self.world.engine.session_fetch(&self.world.by, run).await;
                let row = row.expect("the run is there");
                if ready(&row) {
                    return row;
                }
                watch.changed().await.expect("the engine is there");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it comes to that")
    }

    async fn phase(&self, run: SessionId, phase: RoomPhase) {
        self.until_row(run, |row| row.room.as_ref().is_some_and(|room| room.phase == phase)).await;
    }

    async fn exits(&self, code: i32) {
        self.world.until_true("a life goes on", || self.processes.exits(code)).await;
    }

    async fn ended(&self, run: SessionId) -> (SessionStatus, RoomRow, SessionRow) {
        let row = self.world.ended(run).await;
        (row.status, *row.room.clone().expect("it had a room"), row)
    }
}

async fn command_agent(world: &World) -> String {
    world
        .agent("command", |draft| {
            draft.tools_allowed = Vec::new();
            draft.sandbox = Some(SandboxLevel::None);
            draft.command = Some(CommandSpec {
                argv: vec!["agent".into()],
                env: vec![("COLOR".into(), "of-the-agent".into())],
                ..CommandSpec::default()
            });
        })
        .await
}

fn canceled(by: &str) -> Option<StopHow> {
    match by {
        "kill" => Some(StopHow::Kill),
        "stop" => Some(StopHow::Stop { grace_ms: 1_000 }),
        _ => None,
    }
}

#[tokio::test]
async fn a_run_gets_its_environment_first_and_releases_it_last() {
    let house = House::new().await;
    let run = house.run().await;
    house.up(run).await;
    let row = house.world.engine.session_fetch(&house.world.by, run).await.unwrap();
    let room = row.room.clone().unwrap();
    assert_eq!(room.phase, RoomPhase::Ready);
    assert_eq!(room.made.as_ref().unwrap().branch.as_deref(), Some("overmind/mend"));
    house.exits(0).await;
    let (status, room, _) = house.ended(run).await;
    assert_eq!((status, room.phase), (SessionStatus::Succeeded, RoomPhase::Closed));
    assert_eq!(room.closed.unwrap().branch.as_deref(), Some("overmind/kept"));
    assert_eq!(
        house.journal.read(),
        ["keep 0", "prepare", "prepared", "environment", "start 1", "close", "closed"]
    );
    assert_eq!(
        house.world.kinds(run).await,
        [
            "run.queued",
            "run.started",
            "room.preparing",
            "room.progress",
            "room.progress",
            "room.ready",
            "process.starting",
            "process.started",
            "process.ended",
            "room.closing",
            "room.progress",
            "room.closed",
            "run.succeeded",
        ]
    );
    // Messages of the creation are in the log of the run; those of the release are not.
    let notes = house.processes.notes.lock().unwrap().clone();
    assert_eq!(
        notes,
        [
            "the environment: setup: npm ci",
            "npm ci: added 3 packages",
            "the environment: warning: two files were left out",
        ]
    );
    assert_eq!(house.rooms.left(), 0);
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn the_environments_variables_and_directory_reach_the_command_and_no_log() {
    let house = House::new().await;
    let run = house.run().await;
    house.up(run).await;
    let spec = house.processes.started.lock().unwrap()[0].clone();
    assert_eq!(spec.cwd, house.world.dir.path().join("room"));
    let of = |name: &str| {
        let found: Vec<_> = spec.env.iter().filter(|(known, _)| known == name).collect();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0].1.clone()
    };
    assert_eq!(of("PORT"), "20001");
    assert_eq!(of("DATABASE_URL"), "postgres://app:hush@127.0.0.1/app");
    assert_eq!(of("COLOR"), "of-the-agent", "the agent's own words come after the room's");
    assert_eq!(of("OVERMIND_SESSION_ID"), run.to_string(), "and ours after all");
    house.exits(0).await;
    house.ended(run).await;
    let stream = Some(StreamId::Session(run));
    let query = EventQuery { stream, after: 0, kinds: &[], limit: 1000 };
    for event in house.world.store.events(query).await.unwrap() {
        assert!(!event.payload.contains("hush"), "{event:?}");
    }
}

#[tokio::test]
async fn a_failed_environment_fails_the_run_with_the_reason() {
    let house = House::new().await;
    house.rooms.fail("prepare");
    let run = house.run().await;
    let (status, room, row) = house.ended(run).await;
    assert_eq!((status, room.phase), (SessionStatus::Failed, RoomPhase::Failed));
    let error = row.error.unwrap();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&"room".into(), &"prepare fails as wanted".into())
    );
    assert_eq!(house.journal.count("start 1"), 0);
    let notes = house.processes.notes.lock().unwrap().clone();
    assert!(
        notes.contains(&"the environment failed: prepare fails as wanted".to_owned()),
        "{notes:?}"
    );
    // No question is open.
    let work = house.world.engine.session_work(&house.world.by, run).await;
    assert!(matches!(work, Err(EngineError::Conflict { .. })), "{work:?}");
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn missing_variables_end_the_attempt_and_the_environment_is_released() {
    let house = House::new().await;
    house.rooms.fail("environment");
    let run = house.run().await;
    let (status, room, row) = house.ended(run).await;
    assert_eq!((status, room.phase), (SessionStatus::Failed, RoomPhase::Closed));
    let message = row.error.unwrap()["message"].to_string();
    assert!(message.contains("its room: environment fails as wanted"), "{message}");
}

#[tokio::test]
async fn a_failed_release_is_reported_and_the_run_ends() {
    let house = House::new().await;
    house.rooms.fail("close");
    let run = house.run().await;
    house.exits(3).await;
    let (status, room, row) = house.ended(run).await;
    assert_eq!((status, room.phase), (SessionStatus::Failed, RoomPhase::Left));
    assert_eq!(room.error.unwrap().message, "close fails as wanted");
    assert_eq!(row.error.unwrap()["exit_code"], 3, "how it ended is not forgotten over it");
    assert!(house.world.kinds(run).await.contains(&"room.left".to_owned()));
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn a_stop_during_the_creation_of_an_environment_ends_cleanly() {
    for how in ["kill", "stop", "cancel"] {
        let house = House::new().await;
        house.rooms.hang("prepare");
        let run = house.run().await;
        house.until("prepare").await;
        let (engine, by) = (&house.world.engine, &house.world.by);
        match canceled(how) {
            Some(how) => engine.session_stop(by, run, how).await.unwrap(),
            None => engine.session_cancel(by, run).await.unwrap(),
        };
        let (status, room, _) = house.ended(run).await;
        assert_eq!((status, room.phase), (SessionStatus::Canceled, RoomPhase::Closed), "{how}");
        assert_eq!(house.journal.read(), ["keep 0", "prepare", "close", "closed"]);
        assert_eq!(house.rooms.left(), 0, "half made, and given back");
        house.world.check(&[run]).await;
    }
}

#[tokio::test]
async fn a_cancel_kills_first_and_returns_after_the_release() {
    let house = House::new().await;
    let run = house.run().await;
    house.up(run).await;
    let row = house.world.engine.session_cancel(&house.world.by, run).await.unwrap();
    assert_eq!(row.status, SessionStatus::Canceled);
    let journal = house.journal.read();
    assert_eq!(journal[journal.len() - 3..], ["killed", "close", "closed"]);
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn a_run_whose_environment_is_being_released_is_running_and_refuses_requests() {
    let house = House::new().await;
    house.rooms.hang("close");
    let run = house.run().await;
    house.exits(0).await;
    house.until("close").await;
    house.phase(run, RoomPhase::Closing).await;
    let (engine, by) = (&house.world.engine, &house.world.by);
    let row = engine.session_fetch(by, run).await.unwrap();
    assert_eq!((row.status, row.finished_at), (SessionStatus::Running, None));
    for refused in [
        engine.session_cancel(by, run).await,
        engine.session_cancel_all(by, run).await,
        engine.session_stop(by, run, StopHow::Kill).await,
        engine
            .session_done(by, run, RoomDone::PrBranch { name: None }, None, &[])
            .await
            .map(|done| done.0),
    ] {
        let Err(EngineError::Conflict { message, .. }) = refused else { panic!("{refused:?}") };
        assert!(message.contains("ending"), "{message}");
    }
    house.rooms.let_go();
    assert_eq!(house.ended(run).await.0, SessionStatus::Succeeded);
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn a_restart_in_any_phase_continues_there() {
    // During the creation: a partial environment is created again.
    let house = House::new().await;
    house.rooms.hang("prepare");
    let run = house.run().await;
    house.until("prepare").await;
    let house = house.restarted().await;
    house.rooms.let_go();
    house.up(run).await;
    assert_eq!(house.journal.count("keep 1"), 1, "a room that is wanted is named");
    assert_eq!(house.journal.count("prepare"), 2);

    // While its command runs: nothing is created again, and its process is found.
    let house = house.restarted().await;
    house.until_row(run, |row| row.epoch == 3).await;
    assert_eq!((house.processes.alive(), house.journal.count("prepare")), (1, 2));

    // During the release: it is requested again, and the outcome is kept.
    house.rooms.hang("close");
    house.exits(4).await;
    house.until("close").await;
    house.phase(run, RoomPhase::Closing).await;
    let house = house.restarted().await;
    house.rooms.let_go();
    let (status, room, row) = house.ended(run).await;
    assert_eq!((status, room.phase), (SessionStatus::Failed, RoomPhase::Closed));
    assert_eq!(row.error.unwrap()["exit_code"], 4);
    assert_eq!((house.journal.count("close"), house.journal.count("closed")), (2, 1));
    assert_eq!((house.journal.count("start 1"), house.rooms.left()), (1, 0));
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn processes_left_by_a_crash_are_killed_before_the_environment_is_released() {
    let house = House::new().await;
    let run = house.run().await;
    house.up(run).await;
    // It was being killed, and the server ends before the kill.
    house.processes.deaf.store(true, Ordering::SeqCst);
    let cancel = house.world.engine.session_cancel(&house.world.by, run);
    tokio::select! {
        answer = cancel => panic!("it answers while its process lives: {answer:?}"),
        () = house.until("deaf") => {}
    }
    house.phase(run, RoomPhase::Closing).await;
    assert!(!house.journal.has("close"), "its room goes while its process lives");
    house.processes.deaf.store(false, Ordering::SeqCst);
    let house = house.restarted().await;
    assert_eq!(house.ended(run).await.0, SessionStatus::Canceled);
    assert_eq!((house.processes.alive(), house.rooms.left()), (0, 0));
    let journal = house.journal.read();
    let at = |what: &str| journal.iter().position(|line| line == what).unwrap();
    assert!(at("restart") < at("killed") && at("killed") < at("close"), "{journal:?}");
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn a_run_without_an_environment_runs_as_before() {
    let house = House::new().await;
    let never = RoomWish { when: RoomWhen::Never, ..RoomWish::default() };
    let run = house.wishing(never).await;
    house.exits(0).await;
    let row = house.world.ended(run).await;
    assert_eq!((row.status, row.room), (SessionStatus::Succeeded, None));
    let kinds = house.world.kinds(run).await;
    assert!(kinds.iter().all(|kind| !kind.starts_with("room.")), "{kinds:?}");
    assert_eq!(house.journal.read(), ["keep 0", "start 1"]);
    let cwd = house.processes.started.lock().unwrap()[0].cwd.clone();
    assert_eq!(cwd, house.world.dir.path());
    let work = house.world.engine.session_work(&house.world.by, run).await;
    assert!(matches!(work, Err(EngineError::Conflict { .. })), "{work:?}");
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn impossible_environment_requests_are_refused() {
    let processes = FakeProcesses::new(Journal::default());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let world = World::of_commands(dir, processes, None).await;
    let agent = command_agent(&world).await;
    let make = |wish| world.engine.session_create(&world.by, draft(&agent, wish));
    let always = RoomWish { when: RoomWhen::Always, ..RoomWish::default() };
    let based = RoomWish { base: Some("main".into()), ..RoomWish::default() };
    for wish in [always.clone(), based] {
        let refused = make(Some(wish)).await.unwrap_err();
        assert!(matches!(&refused, EngineError::Invalid { field, .. } if field == "room"));
    }
    let row = make(None).await.unwrap().value;
    assert_eq!(row.room, None);

    let house = House::new().await;
    let odd = RoomWish { base: Some("--upload-pack=x".into()), ..RoomWish::default() };
    let refused =
        house.world.engine.session_create(&house.world.by, draft(&house.agent, Some(odd)));
    let refused = refused.await.unwrap_err();
    assert!(matches!(&refused, EngineError::Invalid { field, .. } if field == "room.base"));
    let thinker = house.world.agent("gpt-test", |_| ()).await;
    let refused = house.world.engine.session_create(&house.world.by, draft(&thinker, Some(always)));
    assert!(matches!(refused.await, Err(EngineError::Invalid { .. })));
}

#[tokio::test]
async fn a_decision_about_work_is_carried_out_recorded_and_shown() {
    let house = House::new().await;
    let (engine, by) = (house.world.engine.clone(), house.world.by.clone());
    let base = Some("main".to_owned());
    let run = house.wishing(RoomWish { base, end: RoomEnd::Keep, ..RoomWish::default() }).await;
    house.up(run).await;
    let work = engine.session_work(&by, run).await.unwrap();
    assert_eq!(
        (work.branch.as_deref(), work.base.as_deref()),
        (Some("overmind/mend"), Some("main"))
    );
    // While it runs, only a branch can be made of its work.
    let merge = RoomDone::Merge { into: None };
    for early in [merge.clone(), RoomDone::Keep, RoomDone::Discard] {
        let refused = engine.session_done(&by, run, early, None, &[]).await;
        let Err(EngineError::Conflict { message, .. }) = refused else { panic!("{refused:?}") };
        assert!(message.contains("has not ended"), "{message}");
    }
    let branch = RoomDone::PrBranch { name: Some("fix/it".into()) };
    let (row, decision) = engine.session_done(&by, run, branch.clone(), None, &[]).await.unwrap();
    assert_eq!((row.status, decision.what), (SessionStatus::Running, branch));
    house.exits(0).await;
    assert_eq!(house.ended(run).await.1.phase, RoomPhase::Kept);
    // A failed decision is not recorded.
    let before = engine.session_fetch(&by, run).await.unwrap();
    house.rooms.fail("done");
    let failed = engine.session_done(&by, run, RoomDone::Discard, None, &[]).await;
    assert!(matches!(failed, Err(EngineError::Unavailable { .. })), "{failed:?}");
    assert_eq!(engine.session_fetch(&by, run).await.unwrap(), before);
    house.rooms.succeed("done");
    let (row, decision) = engine.session_done(&by, run, merge.clone(), None, &[]).await.unwrap();
    assert_eq!(decision.outcome.commit.as_deref(), Some("c0ffee"));
    let shown = engine.session_fetch(&by, run).await.unwrap();
    assert_eq!((shown.room.as_ref().unwrap().done.as_ref(), &shown), (Some(&decision), &row));
    let kinds = house.world.kinds(run).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "room.done").count(), 2);
    for again in [merge.clone(), RoomDone::Discard] {
        let refused = engine.session_done(&by, run, again, None, &[]).await;
        let Err(EngineError::Conflict { message, .. }) = refused else { panic!("{refused:?}") };
        assert!(message.contains("mend is merged already"), "{message}");
    }
    assert_eq!(engine.session_fetch(&by, run).await.unwrap(), row);
    let odd = RoomDone::PrBranch { name: Some("--force".into()) };
    let refused = engine.session_done(&by, run, odd, None, &[]).await;
    assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
    // A restart reads the same.
    let house = house.restarted().await;
    let again = house.world.engine.session_fetch(&by, run).await.unwrap();
    assert_eq!(again, row);
    house.world.check(&[run]).await;
}

#[tokio::test]
async fn two_concurrent_decisions_count_as_one() {
    let house = House::new().await;
    let run = house.run().await;
    house.exits(0).await;
    house.ended(run).await;
    house.rooms.hang("done");
    let (engine, by) = (&house.world.engine, &house.world.by);
    let merge = RoomDone::Merge { into: None };
    let (first, second) =
        tokio::join!(engine.session_done(by, run, merge.clone(), None, &[]), async {
            house.until("done").await;
            let second = engine.session_done(by, run, RoomDone::Discard, None, &[]).await;
            house.rooms.let_go();
            second
        });
    assert_eq!(first.unwrap().1.what, merge);
    let Err(EngineError::Conflict { message, .. }) = second else { panic!("{second:?}") };
    assert!(message.contains("another decision"), "{message}");
}

#[tokio::test]
async fn operators_see_leaks_and_admins_fix_them() {
    let leak = |what: &str, fixable| Leak {
        kind: "port".into(),
        what: what.into(),
        session: None,
        how: "end what listens".into(),
        fixable,
        bytes: None,
    };
    let house = House::new().await;
    *house.rooms.leaks.lock().unwrap() = vec![leak("20001", true), leak("20002", false)];
    let run = house.run().await;
    house.exits(0).await;
    let (_, room, _) = house.ended(run).await;
    assert_eq!(room.closed.unwrap().leaks.len(), 2);
    assert!(house.world.kinds(run).await.contains(&"room.leaked".to_owned()));
    let engine = &house.world.engine;
    let caller = |role| Caller::new("key", Rights::Role(role));
    assert_eq!(engine.rooms_leaks(&caller(Role::Operator)).await.unwrap().len(), 2);
    let refused = [
        engine.rooms_leaks(&caller(Role::Viewer)).await,
        engine.rooms_fix(&caller(Role::Operator)).await,
    ];
    for refused in refused {
        assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    }
    let left = engine.rooms_fix(&caller(Role::Admin)).await.unwrap();
    assert_eq!(left, [leak("20002", false)]);
    house.world.check(&[run]).await;
}

/// The events about measurements: the program, and the digest.
async fn attested(house: &House, run: SessionId) -> Vec<(Option<String>, String)> {
    let stream = Some(StreamId::Session(run));
    let query = EventQuery { stream, after: 0, kinds: &[SANDBOX_ATTESTED], limit: 1000 };
    let events = house.world.store.events(query).await.expect("the log can be read");
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let one = |event: serde_json::Value| {
        (text(&event["of"]), text(&event["attestation"]["digest"]).expect("it names a record"))
    };
    events.iter().map(|event| one(event.value())).collect()
}

fn noted(row: &SessionRow) -> Vec<RoomAttested> {
    row.room.as_ref().map(|room| room.attested.clone()).unwrap_or_default()
}

#[tokio::test]
async fn sandboxes_of_environment_programs_are_recorded_before_it_is_ready() {
    let house = House::new().await;
    let signed = |config: &str| {
        let measured = Attestation { config: config.into(), ..attestation() };
        Arc::new(Attested::new(measured, Some(&house.world.notary)))
    };
    let (first, second) = (signed("first"), signed("second"));
    house.rooms.hang("prepare");
    let run = house.run().await;
    house.until("prepare").await;
    house.rooms.attest(run, "setup: npm ci", Arc::clone(&first)).await;
    house.rooms.attest(run, "service db", Arc::clone(&first)).await;
    house.rooms.let_go();
    house.up(run).await;
    let kinds = house.world.kinds(run).await;
    let at = |wanted: &str| kinds.iter().rposition(|kind| kind == wanted).unwrap();
    assert!(at("room.preparing") < at(SANDBOX_ATTESTED), "{kinds:?}");
    assert!(at(SANDBOX_ATTESTED) < at("room.ready"), "{kinds:?}");

    // Restarted while the run continues, in a sandbox that was measured again.
    for attested in [&first, &second] {
        house.rooms.attest(run, "service db", Arc::clone(attested)).await;
    }
    let is = |row: &SessionRow, of: &str, attested: &Attested| {
        noted(row).contains(&RoomAttested::new(of.into(), attested))
    };
    let row = house.until_row(run, |row| is(row, "service db", &second)).await;
    assert_eq!(noted(&row).len(), 2);
    assert!(is(&row, "setup: npm ci", &first), "{row:?}");
    assert_eq!(row.attestation, None, "the command's own is something else");
    let said = |of: &str, attested: &Attested| (Some(of.to_owned()), attested.digest.clone());
    assert_eq!(
        attested(&house, run).await,
        [
            said("setup: npm ci", &first),
            said("service db", &first),
            said("service db", &first),
            said("service db", &second),
        ]
    );
    // Each record is found by its program's name, and is signed.
    let (engine, by) = (&house.world.engine, &house.world.by);
    for (of, attested) in [("setup: npm ci", &first), ("service db", &second)] {
        let kept = engine.session_attestation(by, run, Some(of)).await.unwrap();
        assert_eq!((kept.attested, kept.seal), ((**attested).clone(), Seal::Holds));
    }
    for of in [None, Some("service web")] {
        let none = engine.session_attestation(by, run, of).await;
        assert_eq!(none.unwrap_err(), EngineError::not_found("Attestation"));
    }

    // The next server reads it from the log, and records its own starts.
    let house = house.restarted().await;
    house.rooms.attest(run, "service db", Arc::clone(&first)).await;
    let row = house.until_row(run, |row| is(row, "service db", &first)).await;
    assert!(is(&row, "setup: npm ci", &first), "rebuilt from the log: {row:?}");
    house.rooms.hang("close");
    house.exits(0).await;
    house.until("close").await;
    house.rooms.attest(run, "teardown: bin/save", Arc::clone(&second)).await;
    house.rooms.let_go();
    let (_, _, row) = house.ended(run).await;
    assert!(is(&row, "teardown: bin/save", &second), "{row:?}");
    let kinds = house.world.kinds(run).await;
    let at = |wanted: &str| kinds.iter().rposition(|kind| kind == wanted).unwrap();
    assert!(at("room.closing") < at(SANDBOX_ATTESTED), "{kinds:?}");
    assert!(at(SANDBOX_ATTESTED) < at("room.closed"), "{kinds:?}");
    house.world.check(&[run]).await;
    // No process runs there any more.
    house.rooms.attest(run, "service db", second).await;
    let other = house.run().await;
    house.up(other).await;
    assert_eq!(attested(&house, run).await.len(), 6);
    assert_eq!(house.world.ended(run).await, row);
}

#[tokio::test]
async fn commands_of_a_project_run_only_after_an_admin_confirmed_them() {
    let house = House::new().await;
    let (engine, by) = (house.world.engine.clone(), house.world.by.clone());
    house.rooms.order("setup: make");
    let start = async |engine: &overmind_engine::Engine, agent: &str| {
        let created = engine.session_create(&by, draft(agent, Some(RoomWish::default()))).await;
        created.map(|made| made.value.id)
    };
    let refused = start(&engine, &house.agent).await;
    let Err(EngineError::Untrusted { message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("setup: make") && message.contains("overmind trust"), "{message}");
    assert!(!house.journal.has("prepare"), "nothing was made");
    // Callers below admin can neither read nor confirm it.
    let project = house.world.dir.path().canonicalize().unwrap();
    let found = engine.project_trust(&by, &project).await.unwrap();
    let hash = found.hash.clone().unwrap();
    let operator = Caller::new("op", Rights::Role(Role::Operator));
    for refused in [
        engine.project_trust(&operator, &project).await.map(drop),
        engine.project_confirm(&operator, &project, &hash, false).await.map(drop),
        engine.project_revoke(&operator, &project).await.map(drop),
    ] {
        assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    }
    // Nor is a content confirmed that differs from the one that was read.
    let other = engine.project_confirm(&by, &project, "another", false).await;
    assert!(matches!(other, Err(EngineError::Conflict { .. })), "{other:?}");
    let confirmed = engine.project_confirm(&by, &project, &hash, true).await.unwrap();
    assert!(confirmed.holds() && confirmed.confirmed().unwrap().setup_network);
    let run = start(&engine, &house.agent).await.unwrap();
    house.up(run).await;
    house.exits(0).await;
    house.ended(run).await;
    // A confirmation survives a restart; a change asks again; a withdrawn one is refused.
    let house = house.restarted().await;
    let engine = house.world.engine.clone();
    assert!(engine.project_trust(&by, &project).await.unwrap().holds());
    house.rooms.order("setup: make more");
    assert!(matches!(start(&engine, &house.agent).await, Err(EngineError::Untrusted { .. })));
    assert!(engine.project_revoke(&by, &project).await.unwrap());
    assert!(!engine.project_revoke(&by, &project).await.unwrap());
    assert_eq!(engine.project_trust(&by, &project).await.unwrap().given, None);
}
