//! One engine for one test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::attest::Notary;
use overmind_core::budget::{NoPrices, Prices};
use overmind_core::canary::Planter;
use overmind_core::enclosure::Enclose;
use overmind_core::gate::Gate;
use overmind_core::ids::SessionId;
use overmind_core::memory::Memory;
use overmind_core::process::Processes;
use overmind_core::room::Rooms;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::{EventQuery, Store, StreamId};
use overmind_core::time::Clock;
use overmind_core::vault::rows::VaultRows;
use overmind_engine::request::{AgentDraft, SessionDraft};
use overmind_engine::{Caller, Config, Engine, Parts, Vault, VaultParts};
use overmind_store::{Options, Sqlite};
use overmind_testkit::ids::SeededIds;
use overmind_testkit::ports::{FakeGate, FakeModels, FakeTools, NoMemory, WallClock, calls};
use overmind_testkit::processes::FakeProcesses;
use overmind_testkit::rooms::FakeRooms;
use serde_json::json;
use tempfile::TempDir;

pub(crate) struct World {
    pub(crate) dir: Arc<TempDir>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: Engine,
    pub(crate) tools: Arc<FakeTools>,
    pub(crate) models: Arc<FakeModels>,
    pub(crate) by: Caller,
    /// Signs with the store's key.
    pub(crate) notary: Notary,
}

/// The process port, the sandbox port, and the environment port.
type Commands = (Option<Arc<dyn Processes>>, Option<Arc<dyn Enclose>>, Option<Arc<dyn Rooms>>);

/// The clock, and the prices of models.
type Money = (Arc<dyn Clock>, Arc<dyn Prices>);

fn plain() -> Money {
    (Arc::new(WallClock), Arc::new(NoPrices))
}

/// Distinct ids for every life of a store.
static LIVES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);

impl World {
    pub(crate) async fn new(tools: Arc<FakeTools>, models: Arc<FakeModels>) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("the world of a test works"));
        Self::at(dir, tools, models, 64).await
    }

    pub(crate) async fn at(
        dir: Arc<TempDir>,
        tools: Arc<FakeTools>,
        models: Arc<FakeModels>,
        max_running: u32,
    ) -> Self {
        Self::made(dir, tools, models, max_running, (None, None), (None, None, None), plain()).await
    }

    /// With a policy; approvals count for so long.
    pub(crate) async fn gated(
        dir: Arc<TempDir>,
        tools: Arc<FakeTools>,
        models: Arc<FakeModels>,
        gate: Option<Arc<FakeGate>>,
        approval_ttl: Option<Duration>,
    ) -> Self {
        let gate = gate.map(|gate| gate as Arc<dyn Gate>);
        Self::made(dir, tools, models, 64, (gate, approval_ttl), (None, None, None), plain()).await
    }

    /// With commands, and perhaps with sandboxes around them.
    pub(crate) async fn with_commands(
        processes: Arc<dyn Processes>,
        enclosures: Option<Arc<dyn Enclose>>,
    ) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("the world of a test works"));
        let (tools, models) = (FakeTools::ok(), FakeModels::new([]));
        let commands = (Some(processes), enclosures, None);
        Self::made(dir, tools, models, 2000, (None, None), commands, plain()).await
    }

    /// One that runs commands, in rooms if there are any.
    pub(crate) async fn of_commands(
        dir: Arc<TempDir>,
        processes: Arc<FakeProcesses>,
        rooms: Option<Arc<FakeRooms>>,
    ) -> Self {
        let commands = (Some(processes as Arc<_>), None, rooms.map(|rooms| rooms as Arc<_>));
        let (tools, models) = (FakeTools::ok(), FakeModels::new([]));
        Self::made(dir, tools, models, 64, (None, None), commands, plain()).await
    }

    /// Built-in agents in environments, with a clock that the test controls.
    pub(crate) async fn in_rooms(
        models: Arc<FakeModels>,
        rooms: Arc<FakeRooms>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("the world of a test works"));
        let commands = (None, None, Some(rooms as Arc<_>));
        let money = (clock, Arc::new(NoPrices) as Arc<dyn Prices>);
        Self::made(dir, FakeTools::ok(), models, 64, (None, None), commands, money).await
    }

    /// An engine in which models have prices, with a clock that the test controls.
    pub(crate) async fn priced(
        dir: Arc<TempDir>,
        models: Arc<FakeModels>,
        clock: Arc<dyn Clock>,
        prices: Arc<dyn Prices>,
    ) -> Self {
        let (commands, money) = ((None, None, None), (clock, prices));
        Self::made(dir, FakeTools::ok(), models, 64, (None, None), commands, money).await
    }

    async fn made(
        dir: Arc<TempDir>,
        tools: Arc<FakeTools>,
        models: Arc<FakeModels>,
        max_running: u32,
        (gate, approval_ttl): (Option<Arc<dyn Gate>>, Option<Duration>),
        (processes, enclosures, rooms): Commands,
        (clock, prices): Money,
    ) -> Self {
        let store = Sqlite::open(Options::new(dir.path().join("overmind.db")))
            .expect("the world of a test works");
        let notary = store.notary();
        let sqlite = Arc::new(store);
        let key_file = overmind_vault::Options::new(dir.path().join("vault.key"));
        let vault = Vault::open(VaultParts {
            store: Arc::clone(&sqlite) as Arc<dyn Store>,
            rows: Arc::clone(&sqlite) as Arc<dyn VaultRows>,
            sealer: Arc::new(overmind_vault::Vault::new(key_file)),
            clock: Arc::new(WallClock),
            services: Vec::new(),
            environment: BTreeMap::new(),
            outbound: None,
            door: None,
            token_key: [7; 32],
        });
        let vault = vault.await.expect("the world of a test works");
        let records = Arc::clone(&sqlite) as Arc<_>;
        let store: Arc<dyn Store> = sqlite;
        let life = LIVES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let engine = Engine::start(Parts {
            store: Arc::clone(&store),
            records,
            models: Arc::clone(&models) as Arc<_>,
            tools: Arc::clone(&tools) as Arc<_>,
            tool_servers: None,
            memory: Arc::new(NoMemory) as Arc<dyn Memory>,
            gate,
            clock,
            ids: Arc::new(SeededIds::new(life)),
            processes,
            enclosures,
            rooms,
            prices,
            config: Config {
                environment: Vec::new(),
                credentials: overmind_engine::Credentials::default().with_vault(vault),
                max_running,
                max_running_per_agent: max_running,
                max_running_per_colony: max_running,
                approval_ttl,
                traced: false,
                propose_after: 3,
                workspace: dir.path().to_owned(),
                private: false,
                off_limits: Default::default(),
                token_key: [7; 32],
                admin_hash: *blake3::hash(b"ova_test").as_bytes(),
                canaries: Some(Planter::new(&[9; 32])),
            },
        })
        .await
        .expect("the world of a test works");
        Self { dir, store, engine, tools, models, by: Caller::admin(), notary }
    }

    /// An agent that may use every fake tool; `change` sets its special fields.
    pub(crate) async fn agent(&self, model: &str, change: impl FnOnce(&mut AgentDraft)) -> String {
        let mut draft = AgentDraft {
            name: format!("agent-{}", LIVES.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
            role: "test".into(),
            model: model.into(),
            tools_allowed: [
                "hang",
                "look",
                "read_file",
                "run_shell",
                "search_memory",
                "store_memory",
                "write_file",
            ]
            .map(String::from)
            .into(),
            ..AgentDraft::default()
        };
        change(&mut draft);
        self.engine
            .agent_create(&self.by, draft, None)
            .await
            .expect("the world of a test works")
            .value
            .agent
            .id
            .to_string()
    }

    /// A world with a run that hangs in a tool.
    pub(crate) async fn hanging() -> (Self, SessionId) {
        let models = FakeModels::new([calls(&[("hang", json!({}))])]);
        let world = Self::new(FakeTools::ok(), models).await;
        let agent = world.agent("gpt-test", |_| ()).await;
        let run = world.run(&agent, "x").await;
        world.until_true("the tool hangs", || world.tools.called("hang") == 1).await;
        (world, run)
    }

    pub(crate) async fn run(&self, agent: &str, task: &str) -> SessionId {
        let draft = session_draft(agent, task);
        self.engine
            .session_create(&self.by, draft)
            .await
            .expect("the world of a test works")
            .value
            .id
    }

    /// Waits until the session's status is one of these.
    pub(crate) async fn until(&self, id: SessionId, statuses: &[SessionStatus]) -> SessionRow {
        let mut watch = self.engine.session_watch(id);
        let wait = async {
            loop {
                watch.borrow_and_update();
                let row = self
                    .engine
                    .session_fetch(&self.by, id)
                    .await
                    .expect("the world of a test works");
                if statuses.contains(&row.status) {
                    return row;
                }
                watch.changed().await.expect("the world of a test works");
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), wait).await {
            Ok(row) => row,
            Err(_) => {
                panic!("{:?} is not {statuses:?}", self.engine.session_fetch(&self.by, id).await)
            }
        }
    }

    pub(crate) async fn ended(&self, id: SessionId) -> SessionRow {
        use SessionStatus::{Canceled, Failed, Succeeded};
        self.until(id, &[Succeeded, Failed, Canceled]).await
    }

    /// Waits until `ready` is true.
    pub(crate) async fn until_true(&self, what: &str, ready: impl Fn() -> bool) {
        let wait = async {
            while !ready() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(what);
    }

    pub(crate) async fn kinds(&self, id: SessionId) -> Vec<String> {
        let stream = Some(StreamId::Session(id));
        let query = EventQuery { stream, after: 0, kinds: &[], limit: 10_000 };
        let events = self.store.events(query).await.expect("the world of a test works");
        events.into_iter().map(|event| event.kind.into()).collect()
    }

    /// The events of the system stream, oldest first.
    pub(crate) async fn system_kinds(&self) -> Vec<String> {
        let stream = Some(StreamId::System);
        let query = EventQuery { stream, after: 0, kinds: &[], limit: 10_000 };
        let events = self.store.events(query).await.expect("the world of a test works");
        events.into_iter().map(|event| event.kind.into()).collect()
    }

    /// Every test ends here: the log replays, the audit is clean, and no process is left.
    pub(crate) async fn check(&self, ids: &[SessionId]) {
        for id in ids {
            let report =
                self.engine.session_verify(&self.by, *id).await.expect("the world of a test works");
            assert_eq!(report.divergence, None, "{id}");
            assert!(report.events > 0);
        }
        let audit = self.engine.audit(&self.by).await.expect("the world of a test works");
        assert_eq!(audit.findings, []);
    }
}

/// A session of this agent with this task, and no other options.
pub(crate) fn session_draft(agent: &str, task: &str) -> SessionDraft {
    SessionDraft {
        agent: agent.into(),
        task: task.into(),
        name: None,
        parent: None,
        command: None,
        sandbox: None,
        room: None,
        step_limit: None,
        workspace: None,
        conversation: None,
        idempotency: None,
        ..SessionDraft::default()
    }
}
