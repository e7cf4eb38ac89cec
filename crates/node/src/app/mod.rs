//! The composition root: the only place that knows which adapter implements which port.
//!
//! [`App::start`] builds the whole product from a [`Config`]; [`App::stop`] stops it in this order:
//! stop accepting, finish requests, let sessions reach their last durable step, close the store,
//! release the data directory. `up`, the demo and the whole-product tests use it.

mod agents;
pub mod clock;
mod error;
pub mod failpoints;
mod frugal;
pub mod gate;
mod keyed;
pub mod lock;
pub mod logs;
mod loops;
mod off_limits;
pub mod permissions;
pub mod prices;
mod rooms;
pub mod signals;
mod telemetry;
mod tools;
pub mod vault;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::budget::Meter;
use overmind_core::canary::Planter;
use overmind_core::enclosure::Enclose;
use overmind_core::gate::Gate;
use overmind_core::memory::Memory;
use overmind_core::mesh::Mesh;
use overmind_core::model::Models;
use overmind_core::off_limits::OffLimits;
use overmind_core::process::Processes;
use overmind_core::room::Rooms;
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_core::store::Store;
use overmind_core::telemetry::Exports;
use overmind_core::time::Clock;
use overmind_core::tool::Toolbox as _;
use overmind_core::tool_source::{ToolServers, ToolSource};
use overmind_core::vault::Secrets;
use overmind_engine::{Engine, MeshDoor};
use overmind_mcp::McpServers;
use overmind_sandbox::{Enclosures, Sandboxes};
use overmind_server::{Listener, ProviderKey, RateLimit, Server, ServerConfig, Tls};
use overmind_telemetry::Telemetry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::frugal::stay_small;
use crate::config::settings::{self, Kind, SETTINGS};
use crate::config::{Config, env};
use clock::{SystemClock, SystemIds};
pub use error::{StartError, chain};
use lock::{DataLock, ServerFile};

/// A running server with everything behind it.
#[derive(Debug)]
pub struct App {
    config: Config,
    engine: Engine,
    door: MeshDoor,
    sandboxes: Sandboxes,
    mcp: Arc<McpServers>,
    processes: overmind_supervise::Supervisor,
    rooms: Arc<overmind_workspace::rooms::LocalRooms>,
    server_file: ServerFile,
    /// Cancelled to stop accepting; the server then finishes its current requests.
    closing: CancellationToken,
    server: JoinHandle<overmind_server::Drained>,
    /// Cancelled when the server has ended, requested or not.
    ended: CancellationToken,
    housekeeping: Housekeeping,
    telemetry: Option<Telemetry>,
    // This is last, because the directory is released after everything else.
    lock: DataLock,
}

impl App {
    /// Starts everything. When it returns, the listeners accept and recovery has begun.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing is left running then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the data directory and closes an opened store.
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        config.data.prepare()?;
        let lock = DataLock::take(&config.data)?
            .map_err(|pid| StartError::AlreadyRunning { pid, data: config.data.path().into() })?;
        let off_limits = off_limits::of(&config);
        let private = choose_workspace(&mut config, &off_limits)?;
        let admin = config.data.admin_token()?;
        let token_key = config.data.token_key()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);

        // Listeners are bound first, so that a port in use is reported before a large store is
        // opened.
        let mut listeners = listen(&config).await?;
        let store = Arc::new(open_store(&config, admin.expose())?);
        let notary = Some(store.notary());
        let sandboxes = Sandboxes::new(
            overmind_sandbox::Options { notary: notary.clone(), ..sandbox_options(&config) },
            overmind_sandbox::docker::Options {
                notary,
                ..docker_options(&config, lock.instance())
            },
            microvm_options(&config),
        );
        let by_level = sandboxes.clone();
        let door = MeshDoor::default();
        let meter = Arc::new(door.clone()) as Arc<dyn Meter>;
        let memory =
            memory(&config, Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&clock), meter)?;
        let vault = vault::open(&config, &store, &clock, token_key, &listeners).await?;
        let models = Arc::new(models(&config, Some(Arc::clone(&vault) as Arc<dyn Secrets>))?);
        keyed::check(&config, &*store, &models, &vault).await?;
        let parts = overmind_tools::Parts {
            sandboxes: Arc::new(move |level| Some(by_level.get(level))),
            memory: Arc::clone(&memory),
        };
        let canaries = match config.canaries {
            true => Some(Planter::new(&token_key).with(config.declared_canaries()?)),
            false => None,
        };
        let mesh = Arc::new(door.clone()) as Arc<dyn Mesh>;
        let tools = tools::gateway(&config, parts, canaries.clone(), &mesh)?;
        let gate = gate::open(&config.policy)?;
        let mcp = tools::mcp_servers(&config, &clock, tools.specs().iter(), &vault);
        let tools = tools
            .with_source(Arc::clone(&mcp) as Arc<dyn ToolSource>)
            .expect("no built-in tool has a dot in its name");
        let processes = processes(&config)?;
        let agents = agents::listen(&config).await;
        // With the host's network, they call the API through its socket, if there is one.
        let enclosures = Enclosures::new(
            overmind_sandbox::Options { notary: Some(store.notary()), ..sandbox_options(&config) },
            config.data.homes(),
            config.socket.iter().cloned().collect(),
            agents.as_ref().map(|agents| agents.path.clone()),
        );
        let enclosures = Arc::new(enclosures) as Arc<dyn Enclose>;
        let rooms = rooms::open(&config, &clock, &enclosures);
        let proxy = rooms::proxy(&config, &rooms).await?;
        let remembered = Arc::clone(&memory);
        let (told, addresses) = (telemetry::head(&*store).await?, Arc::clone(&models));
        let gateway = Arc::clone(&models);
        let engine = Engine::start(overmind_engine::Parts {
            store: Arc::clone(&store) as Arc<dyn Store>,
            records: Arc::clone(&store) as Arc<_>,
            models: Arc::clone(&models) as Arc<dyn Models>,
            prices: models,
            tools: Arc::new(tools),
            tool_servers: Some(Arc::clone(&mcp) as Arc<dyn ToolServers>),
            memory,
            gate: Some(Arc::clone(&gate) as Arc<dyn Gate>),
            processes: Some(Arc::new(processes.clone()) as Arc<dyn Processes>),
            enclosures: Some(enclosures),
            rooms: Some(Arc::clone(&rooms) as Arc<dyn Rooms>),
            clock: Arc::clone(&clock),
            ids: Arc::new(SystemIds),
            config: overmind_engine::Config {
                max_running: config.max_running,
                max_running_per_agent: config.max_running_per_agent,
                max_running_per_colony: config.max_running_per_colony,
                approval_ttl: config.approval_ttl,
                propose_after: config.propose_after,
                workspace: config.workspace.clone(),
                private,
                off_limits,
                token_key,
                admin_hash: *blake3::hash(admin.expose().as_bytes()).as_bytes(),
                environment: environment(&config, &listeners),
                credentials: credentials(&config).with_vault(vault),
                canaries: canaries.clone(),
                traced: config.telemetry.is_some(),
            },
        })
        .await?;
        door.open(engine.clone());
        let telemetry = telemetry::start(&config, &store, &engine, &clock, told, addresses)?;
        permissions::load(&config.permissions, &engine).await?;

        let server_file = ServerFile {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: listeners
                .iter()
                .find(|listener| listener.address().is_some())
                .map(|listener| listener.at().to_owned()),
            socket: config.socket.clone(),
            started_at: clock.now().to_string(),
        };
        listeners.extend(agents.map(|agents| agents.listener));
        let (closing, ended) = (CancellationToken::new(), CancellationToken::new());
        let serving = Server::new(engine.clone(), server_config(&config, telemetry.as_ref()))
            .serve(listeners, closing.clone());
        let done = ended.clone().drop_guard();
        #[expect(clippy::disallowed_methods, reason = "its handle is kept and awaited in `stop`")]
        let server = tokio::spawn(async move {
            let _done = done;
            serving.await
        });
        loops::start(&config, &engine, store, remembered).await;
        gate::watch(gate, &config.policy, &engine).await;
        permissions::watch(config.permissions.clone(), &engine).await;
        let housekeeping = Housekeeping::start(&sandboxes);
        if let Some(proxy) = proxy {
            housekeeping.tasks.spawn(proxy.serve(housekeeping.stop.clone()));
        }
        keyed::note(&config.data, &gateway, engine.vault())?;
        lock.publish(&server_file)?;
        Ok(Self {
            config,
            engine,
            door,
            sandboxes,
            mcp,
            processes,
            rooms,
            server_file,
            closing,
            server,
            ended,
            housekeeping,
            telemetry,
            lock,
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The engine itself, for tests and measurements inside this process.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The addresses at which it listens.
    pub fn server_file(&self) -> &ServerFile {
        &self.server_file
    }

    /// Checks whether commands can use the default sandbox on this machine now. The measurement is
    /// cached for the first command.
    ///
    /// # Errors
    ///
    /// Explains why not, and what to do.
    pub async fn check_sandbox(&self) -> Result<(), SandboxError> {
        self.sandboxes.get(SandboxLevel::Namespace).attest().await.map(drop)
    }

    /// Lists the providers that are ready, in words.
    pub fn models_line(&self) -> String {
        let mut names = providers(&self.config);
        let vault = self.engine.vault();
        for name in ["openai", "anthropic", "deepseek"] {
            if !names.iter().any(|known| known == name) && vault.has(&format!("{name}_api_key")) {
                names.push(format!("{name} (vault)"));
            }
        }
        in_words(&names)
    }

    /// Waits until the server has ended without a request.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Stops everything; returns how many sessions and requests were interrupted. They lose nothing
    /// that was acknowledged and continue at the next start. `now` ends the waiting for them early.
    pub async fn stop(self, now: impl Future<Output = ()>) -> usize {
        let Self {
            config,
            engine,
            door,
            sandboxes,
            mcp,
            processes,
            rooms,
            closing,
            server,
            housekeeping,
            telemetry,
            lock,
            ..
        } = self;
        let mut now = std::pin::pin!(now);
        closing.cancel();
        // A checkpoint takes milliseconds, and a retention pass stops at its own commits.
        let _ = engine.loops_drain(Duration::from_secs(2)).await;
        housekeeping.stop().await;
        let mut hurry = false;
        let requests = tokio::select! {
            drained = server => match drained {
                Ok(overmind_server::Drained::All) => 0,
                Ok(overmind_server::Drained::TimedOut { left }) => left,
                Err(err) => {
                    tracing::error!(error = %err, "the server failed");
                    0
                }
            },
            () = &mut now => {
                hurry = true;
                0
            }
        };
        // It is sent after everything is written, and before the store is closed.
        let telemetry = std::sync::Mutex::new(telemetry);
        let told = || telemetry::stop(&telemetry);
        let mut sessions = None;
        if !hurry {
            tokio::select! {
                cut = engine.drain_and(config.drain, told()) => sessions = Some(cut),
                () = &mut now => {}
            }
        }
        let sessions = match sessions {
            Some(cut) => cut,
            None => engine.drain_and(Duration::ZERO, told()).await,
        };
        door.close();
        mcp.shutdown().await;
        // This disconnects from them; they run on.
        processes.close().await;
        rooms.shutdown().await;
        // It removes cgroups of interrupted commands, as far as the kernel releases them in time.
        let left = sandboxes.clone();
        if let Err(err) = tokio::task::spawn_blocking(move || left.namespace().settled()).await {
            tracing::error!(error = %err, "waiting for the sandboxes of cut off commands");
        }
        // The next start at the latest removes containers of interrupted commands.
        let removed = sandboxes.docker().settled();
        let _ = tokio::time::timeout(Duration::from_secs(5), removed).await;
        drop(lock);
        requests + sessions
    }
}

/// The environment variables of every command: where programs are, and where this server is.
fn environment(config: &Config, listeners: &[Listener]) -> Vec<(String, String)> {
    let socket = config.socket.as_ref().map(|path| format!("unix:{}", path.display()));
    // The socket is preferred, because it needs no certificate.
    let tcp = listeners.iter().find(|listener| listener.address().is_some());
    let server = socket.or_else(|| tcp.map(|listener| listener.at().to_owned()));
    let server = server.map(|server| (env::SERVER.to_owned(), server));
    // Programs that call models use HTTP over TCP, and would not trust our certificate.
    let plain = tcp.map(Listener::at).filter(|at| at.starts_with("http://"));
    let gateway = plain.map(|at| (overmind_engine::GATEWAY.to_owned(), at.to_owned()));
    config.environment.iter().cloned().chain(server).chain(gateway).collect()
}

/// The credentials that agents may name for the environment of their commands.
fn credentials(config: &Config) -> overmind_engine::Credentials {
    let all = config.credentials.iter();
    overmind_engine::Credentials::new(
        all.map(|(name, secret)| (name.clone(), secret.expose().to_owned())),
    )
}

/// Makes the supervisor of commands in the data directory. Its shims outlive this process, also if
/// the program's file was replaced: the link refers to the running program.
fn processes(config: &Config) -> Result<overmind_supervise::Supervisor, StartError> {
    let program = PathBuf::from("/proc/self/exe");
    let options = overmind_supervise::Options::new(program, config.data.processes());
    Ok(overmind_supervise::Supervisor::open(options)?)
}

/// How many sandboxes of each kind wait for a command between calls. See docs/sandbox.md for their
/// cost and benefit.
const KEPT: usize = 2;

/// The options of the namespace and the `none` driver.
pub fn sandbox_options(config: &Config) -> overmind_sandbox::Options {
    overmind_sandbox::Options {
        read_only: config.sandbox_read_only.clone(),
        run_as: run_as(config),
        // No sandbox may show these; the attestation looks for them.
        private: vec![config.data.path().to_owned()],
        private_files: off_limits::files(config),
        rooms: rooms_in_data(config),
        off_limits: off_limits::of(config),
        sockets: vec![docker_options(config, "looked-for").socket],
        waiting: KEPT,
        ..overmind_sandbox::Options::default()
    }
}

/// The parts of the data directory that sandboxes may show, each by itself: environments and homes
/// of sessions, and the directories in which tool servers work.
fn rooms_in_data(config: &Config) -> Vec<PathBuf> {
    let data = &config.data;
    let made = [config.rooms_worktrees.clone(), data.workspaces(), data.homes()];
    // A database's directory is used only by its own server.
    made.into_iter()
        .chain(["claims", "mcp", "leases", "lent"].map(|name| data.path().join(name)))
        .collect()
}

/// Chooses the directory for sessions that name none: the configured one, or with the returned
/// `true` an empty one for each session.
fn choose_workspace(config: &mut Config, off_limits: &OffLimits) -> Result<bool, StartError> {
    if config.text(settings::WORKSPACE).is_some() {
        return match off_limits.refusal(&config.workspace) {
            None => Ok(false),
            Some(why) => Err(StartError::Workspace { why }),
        };
    }
    config.workspace = config.data.workspaces();
    Ok(true)
}

fn run_as(config: &Config) -> Option<overmind_sandbox::RunAs> {
    config.sandbox_run_as.map(|(uid, gid)| overmind_sandbox::RunAs { uid, gid })
}

/// The options of the microvm driver.
pub fn microvm_options(config: &Config) -> overmind_sandbox::microvm::Options {
    overmind_sandbox::microvm::Options {
        dir: config.microvm_dir.clone(),
        acceleration: config.microvm_acceleration,
        ..overmind_sandbox::microvm::Options::default()
    }
}

/// The options of the docker driver. `instance` is new with every start.
pub fn docker_options(config: &Config, instance: &str) -> overmind_sandbox::docker::Options {
    let usual = overmind_sandbox::docker::Options::default();
    let host = config.docker_host.as_deref();
    overmind_sandbox::docker::Options {
        waiting: KEPT,
        socket: match host.map(|host| host.strip_prefix("unix://").unwrap_or(host)) {
            Some(path) => PathBuf::from(path),
            None => usual.socket,
        },
        image: config.docker_image.clone(),
        enforce_pinned_image: config.docker_pinned,
        user: run_as(config),
        // The directory's name distinguishes the containers of two servers on one machine.
        owner: blake3::hash(config.data.path().as_os_str().as_encoded_bytes()).to_hex()[..16]
            .to_owned(),
        instance: instance.to_owned(),
        private: vec![config.data.path().to_owned()],
        private_files: off_limits::files(config),
        rooms: rooms_in_data(config),
        off_limits: off_limits::of(config),
        ..usual
    }
}

async fn listen(config: &Config) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    if let Some(address) = config.listen {
        let tls = match &config.tls {
            Some((chain, key)) => Some(Tls::from_pem_files(chain, key)?),
            None => None,
        };
        listeners.push(Listener::tcp(address, tls)?);
    }
    if let Some(path) = &config.socket {
        listeners.push(Listener::unix(path).await?);
    }
    Ok(listeners)
}

/// Opens the store; it masks every secret that the configuration knows.
fn open_store(config: &Config, admin: &str) -> Result<overmind_store::Sqlite, StartError> {
    let mut options = overmind_store::Options::new(&config.store_path);
    if config.accept_loss {
        options.on_loss = overmind_store::OnLoss::Accept { now: SystemClock.now() };
    }
    options.add_secret(admin);
    for secret in secrets(config) {
        options.add_secret(secret);
    }
    Ok(overmind_store::Sqlite::open(options)?)
}

/// Every secret in the configuration.
fn secrets(config: &Config) -> Vec<String> {
    let of_table = SETTINGS
        .iter()
        .filter(|setting| setting.kind == Kind::Secret)
        .filter_map(|setting| config.text(setting.key).map(str::to_owned));
    let credentials = config.credentials.values().map(|secret| secret.expose().to_owned());
    let of_providers = config
        .providers
        .iter()
        .filter_map(|provider| provider.key.as_ref().map(|key| key.expose().to_owned()));
    of_table.chain(of_providers).chain(credentials).collect()
}

fn memory(
    config: &Config,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    meter: Arc<dyn Meter>,
) -> Result<Arc<dyn Memory>, StartError> {
    use overmind_memory::{
        Config as MemoryConfig, Embedder, FileEmbedder, HttpEmbedder, MemoryService,
    };
    let embedder = match MemoryConfig::from_vars(&|name| config.var(name))? {
        MemoryConfig::Local => None,
        MemoryConfig::File(dir) => Some(Arc::new(FileEmbedder::new(dir)) as Arc<dyn Embedder>),
        MemoryConfig::OpenAi(http) => {
            Some(Arc::new(HttpEmbedder::new(http, meter)) as Arc<dyn Embedder>)
        }
    };
    Ok(Arc::new(MemoryService::new(store, clock, Arc::new(SystemIds), embedder)))
}

/// Makes the model gateway from the configuration.
///
/// # Errors
///
/// [`StartError::Models`] names the setting that cannot be used.
pub fn models(
    config: &Config,
    secrets: Option<Arc<dyn Secrets>>,
) -> Result<overmind_llm::Gateway, StartError> {
    use overmind_llm::{Format, Provider, Secret};
    let mut llm = overmind_llm::Config::from_vars(&|name| config.var(name))?;
    for extra in &config.providers {
        let format = match extra.format.as_str() {
            "openai-responses" => Format::OpenAiResponses,
            "anthropic" => Format::AnthropicMessages,
            _ => Format::OpenAiChat,
        };
        let mut provider = Provider::new(&extra.name, format, &extra.base_url);
        provider.key = extra.key.as_ref().and_then(|key| Secret::new(key.expose()));
        provider.models = extra.models.clone();
        provider.max_concurrent = extra.max_concurrent;
        provider.max_per_minute = extra.max_per_minute;
        provider.secret = Some(extra.secret.clone());
        llm.providers.push(provider);
    }
    llm.secrets = secrets;
    llm.aliases.clone_from(&config.aliases);
    let capture = config.layers.whole_of(settings::GATEWAY_CAPTURE).unwrap_or(0);
    llm.record = config.text(settings::GATEWAY_RECORD).map(PathBuf::from);
    llm.replay = config.text(settings::GATEWAY_REPLAY).map(PathBuf::from);
    llm.relay.capture = usize::try_from(capture).unwrap_or(0);
    if let Some(path) = &config.prices
        && let Some(own) = prices::read(path)?
    {
        llm.prices = own.prices;
        llm.prices_from = own.from;
    }
    Ok(overmind_llm::Gateway::new(llm))
}

/// Whether a model is configured besides those that need no provider.
pub fn has_real_models(config: &Config) -> bool {
    !providers(config).is_empty()
}

/// Lists the providers that are ready, in words.
pub fn models_line(config: &Config) -> String {
    in_words(&providers(config))
}

fn in_words(names: &[String]) -> String {
    if names.is_empty() {
        "deterministic and scripted; set OPENAI_API_KEY, ANTHROPIC_API_KEY or models.base_url, or \
         `overmind vault set openai_api_key`, for real ones"
            .to_owned()
    } else {
        format!("{}, deterministic, scripted", names.join(", "))
    }
}

fn providers(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = [
        ("openai", env::OPENAI_API_KEY),
        ("anthropic", env::ANTHROPIC_API_KEY),
        ("deepseek", env::DEEPSEEK_API_KEY),
    ]
    .into_iter()
    .filter(|(_, variable)| config.var(variable).is_some())
    .map(|(name, _)| name.to_owned())
    .collect();
    if let Some(url) = config.var(env::MODEL_BASE_URL) {
        names.push(format!("custom ({url})"));
    }
    names.extend(config.providers.iter().map(|provider| provider.name.clone()));
    names
}

fn server_config(config: &Config, telemetry: Option<&Telemetry>) -> ServerConfig {
    let keys = [
        ("openai", settings::OPENAI_API_KEY),
        ("anthropic", settings::ANTHROPIC_API_KEY),
        ("deepseek", settings::DEEPSEEK_API_KEY),
    ];
    let provider_keys = keys
        .into_iter()
        .map(|(provider, key)| {
            let source = config.layers.0.get(key).map(|placed| placed.source.to_string());
            ProviderKey::new(provider, config.text(key), &source.unwrap_or_default())
        })
        .collect();
    let rate = config.request_rate.map(|(per_second, burst)| RateLimit { per_second, burst });
    let bounds = ServerConfig::default();
    let max_connections = bounds.max_connections.min(places_of_a_listener());
    ServerConfig {
        hosts: config.allowed_hosts.clone(),
        max_connections,
        max_connections_per_source: bounds.max_connections_per_source.min(max_connections / 2),
        caller_rate: rate,
        address_rate: rate,
        drain_grace: config.drain,
        provider_keys,
        version: env!("CARGO_PKG_VERSION"),
        exports: telemetry.map(|told| Arc::clone(told.counts()) as Arc<dyn Exports>),
        ..bounds
    }
}

/// Maximum number of connections of one listener: a quarter of all descriptors, so that other
/// listeners, outgoing connections and the store keep theirs.
fn places_of_a_listener() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files / 4).unwrap_or(usize::MAX))
}

/// Background work of the app beside the engine: it ends with the app, and nobody waits for its
/// result.
#[derive(Debug)]
struct Housekeeping {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Housekeeping {
    fn start(sandboxes: &Sandboxes) -> Self {
        let this = Self { tasks: TaskTracker::new(), stop: CancellationToken::new() };
        let sandboxes = sandboxes.clone();
        this.tasks.spawn(async move {
            // Without an engine there is nothing to remove, and nobody waits for it.
            match sandboxes.docker().sweep().await {
                Ok(0) => {}
                Ok(swept) => tracing::info!(swept, "removed containers of an earlier start"),
                Err(err) => tracing::debug!(error = %err, "no Docker"),
            }
        });
        this
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(2), self.tasks.wait()).await;
    }
}
