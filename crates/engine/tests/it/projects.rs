//! Runs in a Project that is withdrawn or given to other callers afterwards.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::sync::Arc;

use overmind_core::acl::{Permissions, PermissionsFile};
use overmind_core::agent::AgentLimits;
use overmind_core::command::{CommandSpec, RestartRules};
use overmind_core::ids::SessionId;
use overmind_core::process::restart::RestartWhen;
use overmind_core::record::{KINDS, Name, kind};
use overmind_core::room::{RoomDone, RoomWhen, RoomWish};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_engine::request::{AgentDraft, ForkDraft, SessionDraft};
use overmind_engine::{Caller, CascadeWish, EngineError, RecordWish, Rights};
use overmind_testkit::ports::{FakeModels, WallClock, calls, says};
use overmind_testkit::processes::FakeProcesses;
use overmind_testkit::rooms::{FakeRooms, Journal};
use serde_json::json;
use tempfile::TempDir;

use crate::enclosed::{FakeEnclosures, namespace};
use crate::world::{World, session_draft};

/// A world with a directory outside the server's workspace, and an operator's key.
struct Yard {
    world: World,
    project: TempDir,
    op: Caller,
}

impl Yard {
    async fn new(world: World) -> Self {
        world.engine.key_create(&world.by, "op", Role::Operator).await.unwrap();
        let op = Caller::new("op", Rights::Role(Role::Operator));
        let yard = Self { world, project: tempfile::tempdir().unwrap(), op };
        yard.declare(&["op"]).await;
        yard
    }

    async fn built_in(models: Arc<FakeModels>) -> (Self, String) {
        let rooms = FakeRooms::new(Journal::default());
        let yard = Self::new(World::in_rooms(models, rooms, Arc::new(WallClock)).await).await;
        let one_by_one = |draft: &mut AgentDraft| {
            draft.sandbox = Some(SandboxLevel::Namespace);
            draft.limits = Some(AgentLimits { max_concurrent: 1, ..AgentLimits::default() });
        };
        let agent = yard.world.agent("gpt-test", one_by_one).await;
        (yard, agent)
    }

    fn path(&self) -> String {
        self.project.path().canonicalize().unwrap().display().to_string()
    }

    /// Declares the Project for these callers, or changes it.
    async fn declare(&self, callers: &[&str]) {
        let wish = RecordWish {
            info: kind::find(KINDS, "project").unwrap(),
            name: Name::parse("web").unwrap(),
            labels: BTreeMap::default(),
            annotations: BTreeMap::default(),
            spec: json!({"path": self.path(), "callers": callers}),
            finalizers: None,
            owner: None,
            was: None,
        };
        self.world.engine.record_apply(&self.world.by, vec![wish], false).await.unwrap();
    }

    async fn withdraw(&self) {
        let (info, name) = (kind::find(KINDS, "project").unwrap(), Name::parse("web").unwrap());
        let how = CascadeWish::Background;
        self.world.engine.record_delete(&self.world.by, info, &name, how, None).await.unwrap();
    }

    fn draft(&self, agent: &str) -> SessionDraft {
        let room = Some(RoomWish { when: RoomWhen::Auto, ..RoomWish::default() });
        SessionDraft { workspace: Some(self.path()), room, ..session_draft(agent, "mend it") }
    }

    async fn run(&self, by: &Caller, draft: SessionDraft) -> SessionId {
        self.world.engine.session_create(by, draft).await.unwrap().value.id
    }

    /// A conversation of the operator that has answered.
    async fn rests(&self, agent: &str) -> SessionId {
        let draft = SessionDraft { conversation: Some(true), ..self.draft(agent) };
        let run = self.run(&self.op, draft).await;
        self.world.until(run, &[SessionStatus::Idle]).await;
        run
    }
}

fn is_refused<T: std::fmt::Debug>(done: Result<T, EngineError>, what: &str) {
    assert!(matches!(done, Err(EngineError::Forbidden { .. })), "{what}: {done:?}");
}

fn reason(row: &SessionRow) -> String {
    row.error.as_ref().and_then(|error| error["message"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_withdrawn_project_admits_no_run_send_fork_undo_or_merge_of_its_caller() {
    let models = FakeModels::new([says("one"), says("two"), says("three")]);
    let (yard, agent) = Yard::built_in(models).await;
    let (engine, admin, op) = (&yard.world.engine, &yard.world.by, &yard.op);
    let run = yard.rests(&agent).await;
    let fork = || ForkDraft { at: 0, ..ForkDraft::default() };
    let merge = || RoomDone::Merge { into: None };
    engine.session_send(op, run, "go on".into(), false, false).await.unwrap();
    yard.world.until(run, &[SessionStatus::Idle]).await;

    yard.withdraw().await;
    is_refused(engine.session_create(op, yard.draft(&agent)).await, "run");
    let beside = SessionDraft { parent: Some(run.to_string()), ..yard.draft(&agent) };
    is_refused(engine.session_create(op, beside).await, "run --parent");
    is_refused(engine.session_send(op, run, "go on".into(), false, false).await, "send");
    is_refused(engine.session_fork(op, run, fork()).await, "fork");
    is_refused(engine.session_undo(op, run, None).await, "undo");
    for (what, name) in
        [(merge(), "merge"), (RoomDone::Keep, "keep"), (RoomDone::Discard, "discard")]
    {
        is_refused(engine.session_done(op, run, what, None, &[]).await, name);
    }
    // An admin decides about the work, and the run can be continued where the Project is back.
    yard.declare(&["op"]).await;
    engine.session_send(op, run, "go on".into(), false, false).await.unwrap();
    yard.world.until(run, &[SessionStatus::Idle]).await;
    yard.withdraw().await;
    let (row, decision) = engine.session_done(admin, run, merge(), None, &[]).await.unwrap();
    assert!(row.status.is_terminal() && decision.outcome.said == "merged", "{decision:?}");
}

#[tokio::test]
async fn a_project_that_is_given_to_others_ends_the_callers_queued_runs_and_stops_nothing_else() {
    let hangs = || calls(&[("hang", json!({}))]);
    let (yard, agent) = Yard::built_in(FakeModels::new([hangs(), says("of the admin")])).await;
    let (engine, admin, op) = (&yard.world.engine, &yard.world.by, &yard.op);
    let running = yard.run(op, yard.draft(&agent)).await;
    yard.world.until_true("the tool hangs", || yard.world.tools.called("hang") == 1).await;
    let queued = yard.run(op, yard.draft(&agent)).await;
    let of_admin = yard.run(admin, yard.draft(&agent)).await;

    yard.declare(&["ci"]).await;
    let row = engine.session_fetch(admin, running).await.unwrap();
    assert_eq!(row.status, SessionStatus::Running, "a change of the Project stops nothing");
    engine.session_cancel(op, running).await.unwrap();
    let row = yard.world.ended(queued).await;
    assert_eq!(row.status, SessionStatus::Canceled);
    let why = reason(&row);
    assert!(why.contains("Project web no longer has `op` in its `callers`"), "{why}");
    let row = yard.world.ended(of_admin).await;
    assert_eq!(row.status, SessionStatus::Succeeded, "an admin needs no Project");
}

#[tokio::test]
async fn a_run_in_a_withdrawn_project_starts_no_child() {
    let hangs = || calls(&[("hang", json!({}))]);
    let models = FakeModels::new([hangs(), says("a child"), says("another child")]);
    let (yard, _) = Yard::built_in(models).await;
    let lead = |draft: &mut AgentDraft| {
        draft.name = "lead".into();
        draft.sandbox = Some(SandboxLevel::Namespace);
    };
    let agent = yard.world.agent("gpt-test", lead).await;
    let entry = Permissions { spawn: vec!["*".into()], ..Permissions::default() };
    let permissions = BTreeMap::from([("lead".to_owned(), entry)]);
    let (engine, op) = (&yard.world.engine, &yard.op);
    engine.permissions_loaded(PermissionsFile { permissions }, "test").await.unwrap();
    let run = yard.run(op, yard.draft(&agent)).await;
    yard.world.until_true("the tool hangs", || yard.world.tools.called("hang") == 1).await;
    let token = Caller::new(run.to_string(), Rights::Session { session: run, epoch: 1 });
    let child = engine.session_create(&token, session_draft(&agent, "help")).await.unwrap();
    assert_eq!(child.value.workspace, yard.path());
    yard.world.ended(child.value.id).await;

    yard.withdraw().await;
    let refused = engine.session_create(&token, session_draft(&agent, "help")).await;
    is_refused(refused, "a child");
    engine.session_cancel(op, run).await.expect("it can be stopped");
}

#[tokio::test]
async fn a_program_in_a_withdrawn_project_is_not_started_again() {
    let processes = FakeProcesses::new(Journal::default());
    let enclosures = FakeEnclosures::new(Ok(namespace(None)));
    let world = World::with_commands(Arc::clone(&processes) as Arc<_>, Some(enclosures)).await;
    let yard = Yard::new(world).await;
    let restart =
        RestartRules { when: RestartWhen::Always, backoff_ms: 50, ..RestartRules::default() };
    let agent = yard
        .world
        .agent("m", |draft| {
            draft.tools_allowed = Vec::new();
            draft.sandbox = Some(SandboxLevel::Namespace);
            let argv = vec!["serve".into()];
            draft.command = Some(CommandSpec { argv, restart, ..CommandSpec::default() });
        })
        .await;
    let run = yard.run(&yard.op, yard.draft(&agent)).await;
    let fails = async || yard.world.until_true("it runs", || processes.exits(1)).await;
    // As long as the Project exists, it is restarted.
    fails().await;
    yard.world.until_true("it runs again", || processes.alive() == 1).await;
    yard.withdraw().await;
    fails().await;
    let row = yard.world.ended(run).await;
    assert_eq!((row.status, processes.alive()), (SessionStatus::Canceled, 0));
    let why = reason(&row);
    assert!(why.contains("the Project that allowed `op` to use it was withdrawn"), "{why}");
}
