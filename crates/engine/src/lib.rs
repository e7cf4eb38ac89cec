//! Sessions, turns, scheduling, recovery and replay: all decisions are made here.
//!
//! [`Engine::start`] is the entry point; surfaces call its methods, each with the calling
//! [`Caller`]. The engine sees only ports and never knows which store, sandbox or model is behind
//! them. Inside, a Cortex and a Hive exchange messages over the bus, as they would between
//! machines.

mod admin;
mod agents;
mod alarms;
mod attach;
mod budgets;
pub mod bus;
pub mod caller;
mod colonies;
mod commands;
mod cortex;
mod credentials;
pub mod error;
mod explain;
mod fleets;
mod given;
mod hive;
mod homes;
mod inbox;
mod keys;
mod kills;
mod live;
mod loops;
mod mesh;
mod owners;
mod passes;
mod place;
mod policies;
mod quests;
mod reach;
mod records;
mod relay;
mod replays;
pub mod request;
mod rituals;
mod rooms;
mod session_changes;
mod sessions;
mod tasks;
mod timeline;
mod tool_servers;
mod tools;
mod trace;
mod troubles;
mod trust;
mod vault;
pub mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::budget::Prices;
use overmind_core::bus::HiveBus;
use overmind_core::canary::Planter;
use overmind_core::enclosure::Enclose;
use overmind_core::gate::Gate;
use overmind_core::ids::{ColonyId, HiveId, IdSource};
use overmind_core::memory::Memory;
use overmind_core::model::Models;
use overmind_core::off_limits::OffLimits;
use overmind_core::process::Processes;
use overmind_core::queue::Bounds;
use overmind_core::record::rows::RecordRows;
use overmind_core::room::Rooms;
use overmind_core::session::Toolset;
use overmind_core::store::Store;
use overmind_core::time::Clock;
use overmind_core::tool::Toolbox;
use overmind_core::tool_source::{Keeper, ToolServers};

pub use self::admin::MemoryNew;
use self::attach::Measured;
pub use self::attach::{Attached, LifeUsage, Usages};
pub use self::budgets::{BudgetError, Budgets, Halting, LimitView, NewLimit, Raise, Ticket};
pub use self::caller::{Caller, Rights, Sight};
pub use self::colonies::ColonyWish;
use self::cortex::{Cortex, CortexParts, TOOL_SERVERS, ToolServersKeeper, keep_toolset};
pub use self::credentials::Credentials;
pub use self::error::EngineError;
pub use self::explain::{ExplainDraft, Explained};
use self::hive::Hive;
use self::hive::life::Lives;
use self::hive::rooms::Stays;
pub use self::inbox::MAX_BATCH;
pub use self::keys::{SIGN_IN_LASTS, is_of_a_sign_in};
pub use self::kills::{Killed, Kills, MAX_KILLS};
use self::loops::Loops;
pub use self::mesh::{
    AclEntry, ArtifactDraft, ArtifactOpened, ArtifactSaved, BoardChange, BoardFound, BoardPast,
    BoardWrite, Effective, LetterDraft, LetterSent, MeshAgent, MeshDoor, Published, Spawned,
};
pub use self::passes::{LAPSED, Pass};
pub use self::records::{
    AllApplied, Applied, CascadeWish, MAX_APPLIED, Observed, RecordDeleted, RecordError,
    RecordFilter, RecordOwned, RecordWish,
};
use self::relay::Relaying;
pub use self::relay::{GATEWAY, Proved, RelayError, Relayed, RelayedBody, SERVER};
use self::rooms::Decisions;
pub use self::session_changes::SessionChanges;
pub use self::tasks::{Drained, Tasks};
pub use self::vault::{
    Bound, Origin, SecretView, ServiceCall, ServiceCaller, ServiceReply, ServiceView, Vault,
    VaultParts, VaultStatus,
};

/// The operator's settings.
#[derive(Clone)]
pub struct Config {
    /// Maximum number of sessions that run at once on this hive.
    pub max_running: u32,
    /// The default of an agent's `max_concurrent`.
    pub max_running_per_agent: u32,
    pub max_running_per_colony: u32,
    /// How long an approval may wait for a human before it must be asked for again; `None` means
    /// forever.
    pub approval_ttl: Option<Duration>,
    /// The number of equal approvals after which a rule is proposed; at least 2.
    pub propose_after: u32,
    /// The directory for sessions that name no workspace. Callers below admin may only name
    /// directories below it.
    pub workspace: PathBuf,
    /// Whether each of those gets its own directory below it, which is made when needed and removed
    /// at the end if it is empty.
    pub private: bool,
    /// The host's files that no session gets.
    pub off_limits: OffLimits,
    /// The secret for session tokens: 32 random bytes that outlive a restart.
    pub token_key: [u8; 32],
    /// The admin token's BLAKE3.
    pub admin_hash: [u8; 32],
    /// The variables of every command's environment. No other variable of the daemon is passed on.
    pub environment: Vec<(String, String)>,
    /// The credentials that agents may name for the environment of their commands.
    pub credentials: Credentials,
    /// Plants the canaries that calls are searched for; the tools must use the same one.
    pub canaries: Option<Planter>,
    /// Whether spans are recorded, so that they can be exported.
    pub traced: bool,
}

impl Config {
    /// Whether sessions of this colony that name no directory have one of their own. A shared one
    /// belongs to the colony `default`.
    fn is_private(&self, colony: ColonyId) -> bool {
        self.private || colony != ColonyId::DEFAULT
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            total: self.max_running,
            per_colony: self.max_running_per_colony,
            per_agent: self.max_running_per_agent,
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys must not appear in any log.
        f.debug_struct("Config")
            .field("max_running", &self.max_running)
            .field("max_running_per_agent", &self.max_running_per_agent)
            .field("max_running_per_colony", &self.max_running_per_colony)
            .field("propose_after", &self.propose_after)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}

/// The adapters that the composition root passes in.
#[derive(Debug)]
pub struct Parts {
    pub store: Arc<dyn Store>,
    /// Declared records, in the same store.
    pub records: Arc<dyn RecordRows>,
    pub models: Arc<dyn Models>,
    pub tools: Arc<dyn Toolbox>,
    /// The MCP servers whose tools are included, if there is a client for them.
    pub tool_servers: Option<Arc<dyn ToolServers>>,
    pub memory: Arc<dyn Memory>,
    /// Judges each call before it begins. Without it, only agents' own `approvals` count; only
    /// tests start sessions in this way.
    pub gate: Option<Arc<dyn Gate>>,
    /// Holds the processes of command agents. Without it there are no such agents.
    pub processes: Option<Arc<dyn Processes>>,
    /// Makes sandboxes for those. Without it such agents have none.
    pub enclosures: Option<Arc<dyn Enclose>>,
    /// Makes the environments of their sessions. Without it they work in the directory where they
    /// are started.
    pub rooms: Option<Arc<dyn Rooms>>,
    /// The prices of models. Without them, a limit in dollars refuses all calls, unless the limit
    /// allows calls without a price.
    pub prices: Arc<dyn Prices>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn IdSource>,
    pub config: Config,
}

/// A handle to the running engine; clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    cortex: Arc<Cortex>,
    tools: Arc<dyn Toolbox>,
    tool_servers: Option<Arc<dyn ToolServers>>,
    models: Arc<dyn Models>,
    processes: Option<Arc<dyn Processes>>,
    /// Runs the processes of commands on this machine.
    lives: Option<Arc<Lives>>,
    measured: Arc<Measured>,
    enclosures: Option<Arc<dyn Enclose>>,
    rooms: Option<Arc<dyn Rooms>>,
    decisions: Arc<Decisions>,
    vault: Arc<Vault>,
    relaying: Arc<Relaying>,
    /// Locked while increases of limits are answered, one after the other.
    raises: Arc<tokio::sync::Mutex<()>>,
    /// Projects whose commands may be run.
    trusting: trust::Trusting,
    loops: Arc<Loops>,
    records: Arc<dyn RecordRows>,
    tasks: Tasks,
    /// Bus ends and the hive, which run until the last driver is done.
    backstage: Tasks,
    /// The writer of the budgets, which ends last before the store.
    written: Tasks,
}

impl Engine {
    /// Recovers the state after a crash or shutdown, and begins to run sessions.
    ///
    /// # Errors
    ///
    /// [`EngineError`] if the store cannot be read or written.
    pub async fn start(parts: Parts) -> Result<Self, EngineError> {
        let Parts {
            store,
            records,
            models,
            tools,
            tool_servers,
            memory,
            gate,
            processes,
            enclosures,
            rooms,
            prices,
            clock,
            ids,
            config,
        } = parts;
        let keeper = Arc::new(ToolServersKeeper::default());
        if let Some(servers) = &tool_servers {
            let saved = store.setting_fetch(TOOL_SERVERS.to_owned()).await?;
            let keeper = Arc::clone(&keeper) as Arc<dyn Keeper>;
            servers.begin(saved, keeper).map_err(tool_servers::told)?;
        }
        let specs = tools.specs();
        let toolset = Arc::new(Toolset::new(Arc::clone(&specs)));
        keep_toolset(&*store, &*clock, &toolset).await?;
        let (tasks, backstage) = (Tasks::default(), Tasks::default());
        let vault = config.credentials.vault(&store, &clock, config.token_key);
        let loops = Arc::new(Loops::load(Arc::clone(&store), Arc::clone(&clock)).await?);
        loops.add(&backstage, vault.audit()).await;
        let (cortex_bus, hive_bus) = bus::local(HiveId::LOCAL);
        let hive_bus: Arc<dyn HiveBus> = Arc::new(hive_bus);
        let trusting = trust::load(&*store, rooms.as_ref()).await?;
        let stays = rooms.clone();
        let stays = stays.map(|rooms| Arc::new(Stays::new(rooms, processes.clone(), &hive_bus)));
        let lives = processes.clone().map(|processes| {
            let (environment, credentials) =
                (config.environment.clone(), config.credentials.clone());
            let (clock, tasks) = (Arc::clone(&clock), backstage.clone());
            let stays = stays.clone();
            let door = relay::Door::new(&environment, Arc::clone(&models));
            let lives = Lives::new(
                processes,
                enclosures.clone(),
                clock,
                environment,
                credentials,
                stays,
                tasks,
            );
            Arc::new(lives.with_door(door))
        });
        let hive = Arc::new(Hive {
            bus: hive_bus,
            tools: Arc::clone(&tools),
            models: Arc::clone(&models),
            gate: gate.clone(),
            lives: lives.clone(),
            stays,
            clock: Arc::clone(&clock),
            tasks: backstage.clone(),
            enclosures: enclosures.clone(),
            off_limits: config.off_limits.clone(),
            private: config.private.then(|| config.workspace.clone()),
        });
        backstage.spawn(move |stop| hive.run(stop));
        let inbox = tokio::sync::watch::Sender::new(0);
        let (budgets, waiting) = Budgets::load(budgets::Parts {
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            ids: Arc::clone(&ids),
            prices,
            records: Arc::clone(&records),
            inbox: inbox.clone(),
        })
        .await?;
        let (writing, written) = (budgets.clone(), Tasks::default());
        written.spawn(move |stop| writing.write(waiting, stop));
        let cortex = Cortex::new(CortexParts {
            budgets,
            inbox,
            store,
            records: Arc::clone(&records),
            memory,
            bus: Arc::new(cortex_bus),
            gate,
            clock,
            ids,
            config,
            tasks: tasks.clone(),
            tools: Arc::clone(&tools),
            toolset: (specs, toolset),
        });
        keeper.bind(Arc::downgrade(&cortex));
        cortex.alarms.load(&*cortex.store).await?;
        cortex.mesh.load(&*cortex.store).await?;
        let hearing = Arc::clone(&cortex);
        backstage.spawn(move |stop| hearing.hear(stop));
        cortex.budgets.unbind_lost().await?;
        cortex.colonies_load(caller::Part::Reconcilers.name()).await?;
        let recovered = cortex.recover().await?;
        if recovered > 0 {
            tracing::info!(sessions = recovered, "sessions recovered");
        }
        let measured = Arc::default();
        let decisions = Arc::default();
        let engine = Self {
            enclosures,
            cortex,
            tools,
            tool_servers,
            models,
            processes,
            lives,
            measured,
            rooms,
            decisions,
            vault,
            relaying: Arc::default(),
            raises: Arc::default(),
            trusting,
            loops,
            records,
            tasks,
            backstage,
            written,
        };
        let dispatcher = Box::new(mesh::Dispatcher::new(engine.clone()));
        engine.loops.add(&engine.tasks, dispatcher).await;
        let garbage = Box::new(records::garbage::Garbage::new(engine.clone()));
        engine.loops.add(&engine.tasks, garbage).await;
        let fleets = [&fleets::FLEETS, &fleets::LINEAGES, &fleets::SENTINELS];
        for of in [&quests::QUESTS].into_iter().chain(fleets) {
            let owners = Box::new(owners::Owners::new(of, engine.clone()));
            engine.loops.add(&engine.tasks, owners).await;
        }
        let rituals = Box::new(rituals::Rituals::new(engine.clone()));
        engine.loops.add(&engine.tasks, rituals).await;
        Ok(engine)
    }

    /// Secrets, services, and the grants to use them.
    pub fn vault(&self) -> &Arc<Vault> {
        &self.vault
    }

    /// Accepts no more work and gives running tools `grace` to end. Running sessions stay at their
    /// last commit and continue after the next start. Then flushes and closes the store. Returns
    /// how many sessions had a tool interrupted.
    pub async fn drain(&self, grace: Duration) -> usize {
        self.drain_and(grace, std::future::ready(())).await
    }

    /// Works as [`Engine::drain`], and runs `last` when everything is written and the store is not
    /// closed yet.
    pub async fn drain_and(&self, grace: Duration, last: impl Future<Output = ()>) -> usize {
        self.cortex.begin_drain();
        if let Drained::TimedOut { left } = self.loops_drain(Duration::from_secs(2)).await {
            tracing::warn!(left, "loops did not end their passes in time");
        }
        let poll = Duration::from_millis(5);
        let until = std::time::Instant::now() + grace;
        while self.cortex.drivers_left() > 0 && std::time::Instant::now() < until {
            // It is bounded by `grace`; drivers unregister when they end, without another signal.
            let _ = tokio::time::timeout(poll, std::future::pending::<()>()).await;
        }
        let cut = self.cortex.drivers_left();
        let wait = Duration::from_secs(2);
        if let Drained::TimedOut { left } = self.tasks.drain(wait).await {
            tracing::warn!(left, "session drivers did not stop in time");
        }
        if let Drained::TimedOut { left } = self.backstage.drain(wait).await {
            tracing::warn!(left, "hive tasks did not stop in time");
        }
        if let Drained::TimedOut { .. } = self.written.drain(wait).await {
            tracing::warn!("the budgets were not written in time; the next start settles the rest");
        }
        last.await;
        if let Err(err) = self.cortex.store.close().await {
            tracing::error!(error = %err, "closing the store");
        }
        cut
    }
}
