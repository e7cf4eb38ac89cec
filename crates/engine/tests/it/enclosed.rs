//! Commands in a sandbox, from the engine's view: the started program, the record before it, and
//! the result of a refusal.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::attest::{Attestation, AttestationRef, Attested};
use overmind_core::command::CommandSpec;
use overmind_core::enclosure::{Enclose, EnclosePlan, Enclosed, Network};
use overmind_core::ids::SessionId;
use overmind_core::process::ProcessUser;
use overmind_core::row::{Role, SessionStatus};
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_core::session::SANDBOX_ATTESTED;
use overmind_engine::request::{AgentDraft, AgentPatch, SessionDraft};
use overmind_engine::{Caller, EngineError, Rights};
use overmind_testkit::processes::FakeProcesses;
use overmind_testkit::store_conformance::attestation;

use crate::world::{World, session_draft};

/// Returns its configured answer, and records its requests.
#[derive(Debug)]
pub(crate) struct FakeEnclosures {
    answer: Result<Arc<Attested>, SandboxError>,
    plans: Mutex<Vec<EnclosePlan>>,
    ended: Mutex<Vec<SessionId>>,
}

impl FakeEnclosures {
    pub(crate) fn new(answer: Result<Arc<Attested>, SandboxError>) -> Arc<Self> {
        Arc::new(Self { answer, plans: Mutex::default(), ended: Mutex::default() })
    }
}

impl Enclose for FakeEnclosures {
    fn enclose(&self, plan: EnclosePlan) -> Fut<'_, Result<Enclosed, SandboxError>> {
        self.plans.lock().expect("no test panics here").push(plan.clone());
        Box::pin(async move {
            let attested = self.answer.clone()?;
            let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            Ok(Enclosed {
                argv: ["launcher".to_owned()].into_iter().chain(plan.argv).collect(),
                cwd: PathBuf::from("/elsewhere"),
                needs: vec![pair("PLAN", "built")],
                tells: vec![pair("HOME", "/inside"), pair("USER", "nobody")],
                user: Some(ProcessUser { uid: 5, gid: 6 }),
                attested,
            })
        })
    }

    fn ended(&self, session: SessionId) -> Fut<'_, ()> {
        self.ended.lock().expect("no test panics here").push(session);
        Box::pin(async {})
    }

    fn kept(&self) -> Fut<'_, Vec<SessionId>> {
        Box::pin(async { Vec::new() })
    }
}

pub(crate) fn namespace(world_signs: Option<&overmind_core::attest::Notary>) -> Arc<Attested> {
    let level = SandboxLevel::Namespace;
    let record = Attestation { asked: level, achieved: level, ..attestation() };
    Arc::new(Attested::new(record, world_signs))
}

fn command(change: impl FnOnce(&mut CommandSpec)) -> CommandSpec {
    let env = vec![("USER".to_owned(), "chosen".to_owned()), ("A".to_owned(), "b".to_owned())];
    let mut command =
        CommandSpec { argv: vec!["serve".into()], env, terminal: true, ..CommandSpec::default() };
    change(&mut command);
    command
}

fn boxed(draft: &mut AgentDraft, command: CommandSpec) {
    draft.tools_allowed = Vec::new();
    draft.sandbox = Some(SandboxLevel::Namespace);
    draft.command = Some(command);
}

#[tokio::test]
async fn the_sandboxed_command_is_started_and_its_measurement_recorded_before() {
    let (processes, attested) = (FakeProcesses::brief(), namespace(None));
    let enclosures = FakeEnclosures::new(Ok(Arc::clone(&attested)));
    let world = World::with_commands(processes.clone(), Some(enclosures.clone())).await;
    let granted = command(|command| {
        command.read = vec!["/opt/node".into()];
        command.network = Some(Network::None);
    });
    let agent = world.agent("m", |draft| boxed(draft, granted)).await;
    let run = world.run(&agent, "now").await;
    let row = world.ended(run).await;
    assert_eq!(row.status, SessionStatus::Succeeded);
    assert_eq!(row.attestation, Some(AttestationRef::from(&*attested)));

    let plan = enclosures.plans.lock().unwrap().remove(0);
    assert_eq!((plan.session, plan.level), (run, SandboxLevel::Namespace));
    assert_eq!(plan.argv, ["serve", "now"]);
    assert_eq!((plan.workspace, plan.terminal), (world.dir.path().to_owned(), true));
    assert_eq!((plan.read, plan.network), (vec!["/opt/node".into()], Network::None));

    let spec = processes.started.lock().unwrap().remove(0);
    assert!(spec.enclosed);
    assert_eq!(spec.argv, ["launcher", "serve", "now"]);
    assert_eq!(spec.cwd, PathBuf::from("/elsewhere"));
    assert_eq!(spec.user, Some(ProcessUser { uid: 5, gid: 6 }));
    let value = |name: &str| {
        let mut all = spec.env.iter().filter(|(known, _)| known == name);
        let value = all.next().map(|(_, value)| value.as_str());
        assert_eq!(all.next(), None, "{name} is there once");
        value
    };
    assert_eq!(
        (value("PLAN"), value("HOME"), value("A")),
        (Some("built"), Some("/inside"), Some("b"))
    );
    assert_eq!(value("USER"), Some("chosen"), "what the agent says, it means");
    assert!(value("OVERMIND_TOKEN").is_some());

    let kinds = world.kinds(run).await;
    let at = |wanted: &str| kinds.iter().position(|kind| kind == wanted).expect("it is there");
    assert!(at(SANDBOX_ATTESTED) < at("process.started"), "{kinds:?}");
    world.until_true("the home goes", || enclosures.ended.lock().unwrap().contains(&run)).await;
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_refused_sandbox_ends_the_run_with_the_reason() {
    let refusal = SandboxError::Unavailable {
        code: "c".into(),
        message: "no namespaces here".into(),
        reason: "r".into(),
        remedy: "allow them".into(),
    };
    let with = FakeEnclosures::new(Err(refusal));
    for (enclosures, words) in [
        (Some(with as Arc<dyn Enclose>), "no namespaces here; to do: allow them"),
        (None, "puts no sandbox around a command"),
    ] {
        let processes = FakeProcesses::brief();
        let world = World::with_commands(processes.clone(), enclosures).await;
        let agent = world.agent("m", |draft| boxed(draft, command(|_| ()))).await;
        let run = world.run(&agent, "").await;
        let row = world.ended(run).await;
        assert_eq!((row.status, row.attestation), (SessionStatus::Failed, None));
        let error = row.error.expect("it failed").to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(*processes.started.lock().unwrap(), [], "nothing weaker either");
        world.check(&[run]).await;
    }
}

#[tokio::test]
async fn a_run_may_request_a_stricter_sandbox_and_never_a_weaker_one() {
    let processes = FakeProcesses::brief();
    let enclosures = FakeEnclosures::new(Ok(namespace(None)));
    let world = World::with_commands(processes.clone(), Some(enclosures.clone())).await;
    let open = world
        .agent("m", |draft| {
            boxed(draft, command(|_| ()));
            draft.sandbox = Some(SandboxLevel::None);
        })
        .await;
    let closed = world.agent("m", |draft| boxed(draft, command(|_| ()))).await;
    let draft = |agent: &str, sandbox| SessionDraft { sandbox, ..session_draft(agent, "") };
    let none = world.run(&open, "").await;
    world.ended(none).await;
    assert_eq!(enclosures.plans.lock().unwrap().len(), 0);
    let more = draft(&open, Some(SandboxLevel::Namespace));
    let more = world.engine.session_create(&world.by, more).await.unwrap().value;
    assert_eq!(more.sandbox, SandboxLevel::Namespace);
    world.ended(more.id).await;
    assert_eq!(enclosures.plans.lock().unwrap().len(), 1);
    for (agent, level) in [(&closed, SandboxLevel::None), (&open, SandboxLevel::Docker)] {
        let refused = world.engine.session_create(&world.by, draft(agent, Some(level))).await;
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{level:?}: {refused:?}");
    }
    world.check(&[none, more.id]).await;
}

#[tokio::test]
async fn only_admins_grant_paths_of_the_host() {
    let world = World::with_commands(FakeProcesses::brief(), None).await;
    let operator = Caller { rights: Rights::Role(Role::Operator), ..Caller::admin() };
    let draft = |name: &str, read: &[&str]| {
        let read = read.iter().map(PathBuf::from).collect();
        let mut draft = AgentDraft {
            name: name.into(),
            role: "r".into(),
            model: "m".into(),
            ..AgentDraft::default()
        };
        boxed(&mut draft, command(|command| command.read = read));
        draft
    };
    let engine = &world.engine;
    engine.agent_create(&operator, draft("plain", &[]), None).await.unwrap();
    let refused = engine.agent_create(&operator, draft("reads", &["/opt"]), None).await;
    assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    engine.agent_create(&world.by, draft("reads", &["/opt"]), None).await.unwrap();
    let patch =
        |read: &[&str]| AgentPatch { command: draft("x", read).command, ..AgentPatch::default() };
    let more = engine.agent_patch(&operator, "reads", patch(&["/opt", "/srv"])).await;
    assert!(matches!(more, Err(EngineError::Forbidden { .. })), "{more:?}");
    engine.agent_patch(&operator, "reads", patch(&[])).await.unwrap();
    world.check(&[]).await;
}
