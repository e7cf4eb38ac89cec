//! The lease: all resources of a session, each recorded before it is made.
//!
//! [`Workspace::build`] makes the resources of a session in order and first writes each intent to a
//! journal. [`Workspace::teardown`] undoes them from the journal alone, so it can begin in one
//! process of the daemon and finish in another. [`Workspace::resume`] runs at the daemon's start:
//! partly built leases are undone, partly ended ones finished, complete ones continued.
//!
//! It refuses to begin a second lease for a session, to leave a resource silently, and to change
//! anything that no journal, label or mark identifies as ours. `step` defines the resources,
//! `journal` records them, and `build`, `start` and `undo` act on them.

mod build;
mod journal;
mod source;
mod start;
mod step;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::Fut;
use overmind_core::off_limits::OffLimits;
use overmind_core::process::ProcessUser;
use overmind_core::room::RoomSandbox;
use overmind_core::time::Clock;

use crate::config::Config;
use crate::database::cluster::Cluster;
use crate::env::Values;
use crate::leaks::Finding;
use crate::ports::{Owner, Ports, Registry, RegistryError};
use crate::services::cgroup::Cgroups;
use crate::services::compose::{self, Compose};
use crate::services::confine::{Confined, Encloses};
use crate::services::runner::Runner;

pub use build::BuildError;
pub(crate) use build::{TEMP_MARK, chain};
pub use journal::JournalError;
pub(crate) use journal::{Journal, State, TeardownHook};
pub use start::ServiceError;
pub(crate) use step::{Made, Step};
pub(crate) use undo::remove_temp;
pub use undo::{Resumed, TeardownError, TeardownReport};

/// The options of a daemon's leases.
#[derive(Clone)]
pub struct Options {
    /// The daemon's data directory, with journals, logs and our own database server below it.
    pub home: PathBuf,
    /// Where all daemons of the machine write their ports, see
    /// [`default_dir`](crate::ports::default_dir).
    pub registry: PathBuf,
    /// The directory for sessions' temporary directories; its path must be short, because sockets
    /// are in it.
    pub temp: PathBuf,
    /// The Docker engine's socket, for containers and compose.
    pub docker: Option<PathBuf>,
    /// The variables that a session's commands inherit: `PATH`, `HOME`, `LANG` and similar ones.
    /// Never the daemon's whole environment, which contains keys.
    pub environment: BTreeMap<String, String>,
    /// The variables that `url_env` may name; none of them is inherited.
    pub secrets: BTreeMap<String, String>,
    /// Database servers, `host:port`, that projects of sessions in a sandbox may name by URL.
    pub servers: Vec<String>,
    pub clock: Arc<dyn Clock>,
    pub runner: Arc<dyn Runner>,
    /// Makes the sandboxes for hooks, ready checks and template commands. The runner makes those of
    /// services.
    pub encloses: Encloses,
    /// The user as which sandboxed programs run, if that is not the daemon's own.
    pub user: Option<ProcessUser>,
    /// The server's own files, from which no service is made.
    pub off_limits: OffLimits,
    /// Makes worktrees. Without it only [`Place::Directory`] can be leased.
    pub tree: Option<Arc<dyn Tree>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of variables must not appear in logs.
        f.debug_struct("Options")
            .field("home", &self.home)
            .field("registry", &self.registry)
            .field("temp", &self.temp)
            .field("docker", &self.docker)
            .field("runner", &self.runner)
            .field("tree", &self.tree)
            .finish_non_exhaustive()
    }
}

/// Makes a session's own worktree.
pub trait Tree: Send + Sync + fmt::Debug {
    /// Makes the worktree that `intent` describes. Called again after a crash with the same intent,
    /// it must find or replace the earlier result.
    fn make<'a>(
        &'a self,
        intent: &'a serde_json::Value,
        sink: &'a dyn Sink,
    ) -> Fut<'a, Result<MadeTree, String>>;

    /// Ends the worktree of `intent`, whether or not `made` is known; a missing one is no error.
    /// Work that exists nowhere else is never deleted unless `end` requests it.
    fn undo<'a>(
        &'a self,
        intent: &'a serde_json::Value,
        made: Option<&'a MadeTree>,
        end: TreeEnd,
    ) -> Fut<'a, Result<(), String>>;

    /// Whether a file belongs to the project; `None` if it is in no worktree made here. The
    /// worktree's own settings have no influence.
    fn is_tracked<'a>(&'a self, file: &'a Path) -> Fut<'a, Result<Option<bool>, String>>;

    /// Excludes a file that we put into a worktree from what is saved of it, or (`false`) includes
    /// it again. Returns whether it is in a worktree made here.
    fn leave_out<'a>(&'a self, file: &'a Path, out: bool) -> Fut<'a, Result<bool, String>>;

    /// The remaining resources of sessions that are not in `live`.
    fn leaks<'a>(&'a self, live: &'a BTreeSet<String>) -> Fut<'a, Vec<Finding>>;

    /// References of ours in projects' repositories that no session needs. They belong to no single
    /// session, so the end of a session does not search for them.
    fn references(&self) -> Fut<'_, Vec<Finding>> {
        Box::pin(async { Vec::new() })
    }

    /// Removes one of its own findings.
    fn fix<'a>(&'a self, finding: &'a Finding) -> Fut<'a, Result<(), String>>;
}

/// A finished worktree.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MadeTree {
    pub path: PathBuf,
    pub branch: Option<String>,
    /// The commit from which it started.
    pub base: Option<String>,
    /// Variables that it adds to every command of the session.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Paths outside of it that it needs: shown in sandboxes, read-only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub borrowed: Vec<PathBuf>,
    /// Whether a sandbox opens these without following links.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bounded: bool,
    /// Data for the undo, and for the requester of the lease.
    #[serde(default)]
    pub details: serde_json::Value,
}

/// The decision about the worktree at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeEnd {
    /// It is removed if it has no work, and stays otherwise.
    Decide,
    /// It is removed; uncommitted work is first saved as a commit on its branch.
    Park,
    /// It stays.
    Keep,
    /// It is removed with its contents, because somebody requested that.
    Discard,
}

/// The workspace of a session.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// An existing directory that is not ours, and stays.
    Directory(PathBuf),
    /// A worktree that [`Options::tree`] makes from this intent.
    Tree(serde_json::Value),
}

/// The request for a lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Letters, digits, `-` and `_`, at most 64.
    pub session: String,
    /// The name for people.
    pub name: String,
    /// The project's primary checkout.
    pub project: PathBuf,
    pub config: Config,
    pub place: Place,
    /// The sandbox of its programs; with `None`, or at the level `none`, they have none.
    pub sandbox: Option<RoomSandbox>,
    /// Whether `setup` and template commands in a sandbox have the host's network; otherwise they
    /// have the session's.
    pub setup_network: bool,
}

/// The resources of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub session: String,
    pub name: String,
    pub project: PathBuf,
    pub worktree: PathBuf,
    pub branch: Option<String>,
    pub base: Option<String>,
    /// Variables for every command of the session, in addition to [`Options::environment`].
    pub env: BTreeMap<String, String>,
    /// Every leased port, by variable or by `service/port`.
    pub ports: BTreeMap<String, u16>,
    /// The fields of each service, for templates.
    pub values: Values,
    /// The path of each process's output.
    pub logs: BTreeMap<String, PathBuf>,
    /// Failures that are only reported.
    pub warnings: Vec<String>,
    /// The value of [`MadeTree::details`]; null without a worktree.
    pub details: serde_json::Value,
}

/// The phase of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePhase {
    Building,
    Ready,
    Ending,
}

/// Receives the progress while it happens.
pub trait Sink: Send + Sync {
    fn tell(&self, progress: Progress<'_>);
}

/// A progress message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A step begins.
    Step { what: &'a str },
    /// A line of output of a hook, a migration or the engine.
    Line { source: &'a str, stream: Stream, line: &'a str },
    /// Something failed, and the rest continues.
    Warning { text: &'a str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl<F: Fn(Progress<'_>) + Send + Sync> Sink for F {
    fn tell(&self, progress: Progress<'_>) {
        self(progress);
    }
}

/// A sink that drops everything.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl Sink for Quiet {
    fn tell(&self, _: Progress<'_>) {}
}

/// Why the leases of a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("opening the machine's registry of ports")]
    Registry(#[source] RegistryError),
}

/// The leases of one data directory. There is one value per daemon.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) options: Options,
    /// Distinguishes our resources from those of other data directories.
    pub(crate) home_id: String,
    pub(crate) ports: Ports,
    pub(crate) registry: Registry,
    pub(crate) cluster: Cluster,
    pub(crate) cgroups: Cgroups,
    /// Sessions that a task is changing.
    busy: Mutex<BTreeSet<String>>,
    /// Locked so that services of one session that share a network are started one by one.
    network: tokio::sync::Mutex<()>,
}

/// Held while a session's lease is being changed.
#[derive(Debug)]
pub(crate) struct Busy<'a> {
    workspace: &'a Workspace,
    session: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut busy = self.workspace.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(&self.session);
    }
}

impl Workspace {
    /// Opens the leases below `options.home`, without changing any: see [`Workspace::resume`].
    ///
    /// # Errors
    ///
    /// [`OpenError`] if a directory cannot be made or shared safely.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let file = |what, path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::File { what, path, source }
        };
        let leases = options.home.join("leases");
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&leases).map_err(file("making", &leases))?;
        // Journals contain passwords of the sessions' databases.
        std::fs::set_permissions(&leases, std::fs::Permissions::from_mode(0o700))
            .map_err(file("protecting", &leases))?;
        let id_path = options.home.join("workspace-id");
        let home_id = home_id(&id_path).map_err(file("reading", &id_path))?;
        let registry = Registry::open(&options.registry).map_err(OpenError::Registry)?;
        let ports = Ports::new(registry.clone());
        let cluster = Cluster::new(
            home_id.clone(),
            options.home.join(crate::database::cluster::DIRECTORY),
            search_path(&options.environment),
            ports.clone(),
            crate::config::DEFAULT_RANGE,
            Arc::clone(&options.clock),
        );
        Ok(Self {
            options,
            home_id,
            ports,
            registry,
            cluster,
            cgroups: Cgroups::discover(),
            busy: Mutex::default(),
            network: tokio::sync::Mutex::default(),
        })
    }

    /// The sessions with a lease, and their phases.
    pub fn sessions(&self) -> Vec<(String, LeasePhase)> {
        let entries = std::fs::read_dir(self.leases()).into_iter().flatten().flatten();
        let mut found: Vec<(String, LeasePhase)> = entries
            .filter_map(|entry| {
                let session = entry.file_name().into_string().ok()?;
                let state = State::read(&entry.path()).ok()?;
                Some((session, state.phase()))
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// The resources of a session, if its lease is complete.
    ///
    /// # Errors
    ///
    /// [`JournalError`] if there is a journal that cannot be read.
    pub fn lease(&self, session: &str) -> Result<Option<Lease>, JournalError> {
        let dir = self.dir(session);
        if !is_session(session) || !dir.exists() {
            return Ok(None);
        }
        Ok(State::read(&dir)?.lease())
    }

    /// The state of a session's process.
    pub fn process_state(
        &self,
        session: &str,
        service: &str,
    ) -> crate::services::runner::ProcessState {
        self.options.runner.state(&self.process_id(session, service))
    }

    /// Ends the database server of this data directory, if one runs. Databases stay.
    ///
    /// # Errors
    ///
    /// Fails if it does not end.
    pub async fn stop_database_server(&self) -> Result<(), crate::database::ClusterError> {
        self.cluster.stop().await
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.options.home.join("leases")
    }

    pub(crate) fn dir(&self, session: &str) -> PathBuf {
        self.leases().join(session)
    }

    pub(crate) fn owner(&self, session: &str) -> Owner {
        Owner {
            home: self.home_id.clone(),
            session: session.to_owned(),
            alive: self.dir(session).join(journal::FILE),
        }
    }

    /// The value of the mark that every process of a session has.
    pub(crate) fn mark(&self, session: &str) -> String {
        format!("{}:{session}", self.home_id)
    }

    pub(crate) fn process_id(&self, session: &str, service: &str) -> String {
        format!("{}.{session}.{service}", self.home_id)
    }

    /// The cgroup of a command with this mark, if there can be one. Processes in a sandbox end with
    /// it and need none.
    pub(crate) fn group_of(&self, mark: &str, confined: Option<&Confined>) -> Option<PathBuf> {
        if confined.is_some() { None } else { self.cgroups.make(mark) }
    }

    pub(crate) fn compose(&self) -> Option<Compose> {
        let program = compose::program(&search_path(&self.options.environment))?;
        let mut env = self.options.environment.clone();
        env.entry("PATH".to_owned()).or_insert_with(|| search_path(&BTreeMap::new()));
        Some(Compose { program, socket: self.options.docker.clone(), env })
    }

    /// Reserves a session for one caller at a time.
    pub(crate) fn claim(&self, session: &str) -> Option<Busy<'_>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(session.to_owned())
            .then(|| Busy { workspace: self, session: session.to_owned() })
    }
}

/// Whether the text is a valid session: it becomes a part of paths and of names in other programs.
pub(crate) fn is_session(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The search path for programs.
pub(crate) fn search_path(environment: &BTreeMap<String, String>) -> String {
    environment
        .get("PATH")
        .cloned()
        .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned())
}

/// The full path of a program.
pub(crate) fn which(search: &str, name: &str) -> Option<PathBuf> {
    std::env::split_paths(search).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// The data directory's id, made on first use: eight hexadecimal digits.
pub(crate) fn home_id(path: &Path) -> std::io::Result<String> {
    let read = || std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    match read() {
        Ok(id) if id.len() == 8 => return Ok(id),
        Ok(_) => {}
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
        Err(err) => return Err(err),
    }
    let bytes = crate::database::random::<4>();
    let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let partial = path.with_extension(&id);
    {
        use std::io::Write;
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(id.as_bytes())?;
        file.sync_all()?;
    }
    // A link fails if another process was faster; then its id is used.
    let linked = std::fs::hard_link(&partial, path);
    std::fs::remove_file(&partial)?;
    match linked {
        Err(err) if err.kind() != std::io::ErrorKind::AlreadyExists => Err(err),
        Ok(()) | Err(_) => read(),
    }
}
