//! `.overmind.yml`: the requirements of a project for its sessions.
//!
//! Start at [`Config::load`]. `docs/overmind-yml.md` describes the grammar. Unknown keys, values
//! out of range, references to missing services and cycles are errors with line, path and a
//! suggestion, all reported at once. The file belongs to the project and is trusted no more than
//! it: paths in it stay below the worktree.

mod check;
mod extensions;
mod orders;
mod propose;
mod read;
pub(crate) mod reader;
mod services;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::sandbox::SandboxLevel;

use crate::env::Template;
use crate::opener::{self, Own};

pub use propose::{Proposal, Sources};
pub use reader::Problem;
pub use yaml::At;

/// The file's name, at the top of a project.
pub const FILE: &str = ".overmind.yml";

/// The largest file that is read.
const MAX_BYTES: u64 = 256 * 1024;

/// The requirements of a project for its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub worktree: WorktreeConfig,
    pub ports: PortsConfig,
    /// The services, in the file's order.
    pub services: Vec<Service>,
    /// Variables of the session, in the file's order.
    pub env: Vec<(String, Template)>,
    pub env_file: Option<EnvFile>,
    pub setup: Vec<Hook>,
    pub teardown: Vec<Hook>,
    pub isolation: Isolation,
    pub pool: PoolConfig,
    /// Patterns of the repository's secrets that sessions get; all others are withheld.
    pub secrets: Vec<String>,
    /// Whether the text is in the earlier dialect, which is read as `overmind init` would convert
    /// it.
    pub earlier: bool,
}

/// The options of the session's own checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorktreeConfig {
    /// The revision from which it starts; the project's current commit if absent.
    pub base: Option<String>,
    /// The prefix of the names of sessions' branches.
    pub branch_prefix: String,
    /// Patterns of ignored files that are copied from the project.
    pub include: Vec<String>,
    /// A file in the project with more such patterns.
    pub include_file: String,
    /// The strategy for large directories, by path.
    pub directories: BTreeMap<String, DirectoryStrategy>,
    pub submodules: bool,
}

/// How a large ignored directory of the project is handled in a session's worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryStrategy {
    /// A symbolic link to the project's own: nothing is copied, and writes are visible to everybody.
    Share,
    /// A copy that shares blocks if the file system supports that; otherwise an error.
    Reflink,
    /// Uses `reflink` where possible, otherwise a full copy.
    Copy,
    /// It is left out, and the session creates its own.
    Skip,
}

/// The session's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortsConfig {
    /// The range of ports for sessions.
    pub range: RangeInclusive<u16>,
    /// Names of variables; each gets its own port.
    pub names: Vec<String>,
}

/// A program that runs beside the session, or a database of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    pub depends_on: Vec<String>,
    pub phase: Phase,
    pub ready: Ready,
    /// Variables of this service, in addition to the session's.
    pub env: Vec<(String, Template)>,
    pub strategy: Strategy,
}

/// When a service starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    BeforeSetup,
    AfterSetup,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    Process(ProcessService),
    Container(ContainerService),
    Database(DatabaseService),
    Compose(ComposeService),
}

/// The command to run: words that are passed unchanged, or a line for `/bin/sh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    Words(Vec<Template>),
    Shell(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessService {
    pub command: CommandLine,
    /// The working directory, below the worktree.
    pub cwd: Option<PathBuf>,
    /// Names of ports. Each gets its own; the first is `${name.port}` and `PORT`.
    pub ports: Vec<String>,
    pub restart: Restart,
    /// The time between TERM and KILL.
    pub grace: Duration,
}

/// When and how often an ended process is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Restart {
    pub policy: RestartPolicy,
    /// The delay before the first restart; doubled with each, up to a minute.
    pub backoff_ms: u64,
    /// The number of consecutive restarts; running for a minute resets the count.
    pub max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    Never,
    OnFailure,
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerService {
    pub image: String,
    pub pull: Pull,
    pub command: Option<Vec<Template>>,
    pub entrypoint: Option<Vec<String>>,
    pub user: Option<String>,
    /// Name and port inside; each gets its own port outside.
    pub ports: Vec<(String, u16)>,
    /// Paths inside; each gets its own volume.
    pub volumes: Vec<String>,
    /// Read-only files of the worktree: path below the worktree, path inside.
    pub mounts: Vec<(PathBuf, String)>,
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    pub grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    Missing,
    Never,
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseService {
    Postgres(PostgresService),
    Sqlite(SqliteService),
    Redis { server: Server },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresService {
    pub server: Server,
    pub extensions: Vec<String>,
    pub template: Option<DatabaseTemplate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteService {
    /// The path of the file, below the worktree.
    pub file: PathBuf,
    /// The path of the original, below the project; copied if it exists.
    pub source: Option<PathBuf>,
    pub template: Option<DatabaseTemplate>,
}

/// The server that contains a logical database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A server that Overmind starts from the machine's own programs.
    Embedded,
    Url(String),
    /// The variable of the daemon's environment that contains the URL, which no file shows.
    UrlFrom(String),
}

/// The template from which a new database is copied, and the files whose change makes it outdated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseTemplate {
    /// Patterns of files below the worktree; a change in any of them makes a new template.
    pub files: Vec<String>,
    /// SQL files below the worktree, run in this order before the command.
    pub sql: Vec<PathBuf>,
    pub command: Option<CommandLine>,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposeService {
    /// The path of the file, below the worktree.
    pub file: PathBuf,
    pub profiles: Vec<String>,
    /// The services to start; if empty, all of the file's.
    pub services: Vec<String>,
}

/// How readiness of a service is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub check: ReadyCheck,
    pub timeout: Duration,
    pub interval: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyCheck {
    /// The service is ready once it has started.
    Started,
    /// Something accepts connections on the port of that name.
    Tcp { port: String },
    /// `GET path` on the port of that name returns one of these statuses.
    Http { port: String, path: String, status: RangeInclusive<u16> },
    /// A command ends with 0.
    Command(CommandLine),
    /// A line of the output matches the pattern.
    Log(String),
}

/// A command of the project that runs when a session begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The name for messages; the command itself if none is given.
    pub name: String,
    pub command: CommandLine,
    /// The working directory, below the worktree.
    pub cwd: Option<PathBuf>,
    pub timeout: Duration,
    pub on_failure: OnFailure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The session does not begin (setup), or an error is reported (teardown).
    Block,
    /// A warning is reported, and nothing else.
    Warn,
}

/// The file to which the variables are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// The path, below the worktree.
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The sandbox of the session's commands; if absent, the agent's choice.
    pub sandbox: Option<SandboxLevel>,
    /// Whether the session gets its own directory for temporary files.
    pub tmp: bool,
}

/// Worktrees that are made in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The number of prepared worktrees; 0 makes none.
    pub size: u32,
    /// The age at which one is updated.
    pub refresh: Duration,
}

/// All errors of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    /// The errors in the file's order; never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.problems.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:{problem}", self.file.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Default for Config {
    /// The configuration of a project without the file: a worktree, and one port as `PORT`.
    fn default() -> Self {
        Self {
            worktree: WorktreeConfig::default(),
            ports: PortsConfig { range: DEFAULT_RANGE, names: vec!["PORT".to_owned()] },
            services: Vec::new(),
            env: Vec::new(),
            env_file: None,
            setup: Vec::new(),
            teardown: Vec::new(),
            isolation: Isolation { sandbox: None, tmp: true },
            pool: PoolConfig { size: 2, refresh: Duration::from_secs(600) },
            secrets: Vec::new(),
            earlier: false,
        }
    }
}

impl Default for WorktreeConfig {
    fn default() -> Self {
        Self {
            base: None,
            branch_prefix: "overmind/".to_owned(),
            include: Vec::new(),
            include_file: ".worktreeinclude".to_owned(),
            directories: BTreeMap::new(),
            submodules: true,
        }
    }
}

/// It is below the ports for outgoing connections on Linux (32768–60999), and above well-known
/// ones.
pub const DEFAULT_RANGE: RangeInclusive<u16> = 20_000..=29_999;

impl Config {
    /// Reads the file of `project`, or takes the default without one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with all errors, or why the file could not be read.
    pub fn load(project: &Path) -> Result<Self, ConfigError> {
        Self::load_without(project, &Own::default())
    }

    /// Works as `load`, but never reads one of the server's own files.
    pub(crate) fn load_without(project: &Path, own: &Own) -> Result<Self, ConfigError> {
        Self::load_hashed(project, own).map(|(config, _)| config)
    }

    /// Works as `load_without`, and returns the [hash](hash) of the file's bytes if there is one.
    pub(crate) fn load_hashed(
        project: &Path,
        own: &Own,
    ) -> Result<(Self, Option<String>), ConfigError> {
        let file = project.join(FILE);
        let refuse = |what: String| {
            let problem =
                Problem { at: At { line: 1, column: 1 }, path: String::new(), what, hint: None };
            ConfigError { file: file.clone(), problems: vec![problem] }
        };
        let text = opener::text(project, Path::new(FILE), MAX_BYTES, own);
        let Some(text) = text.map_err(|err| refuse(opener::why(&err)))? else {
            return Ok((Self::default(), None));
        };
        let hash = hash(&text);
        let text = String::from_utf8(text).map_err(|_| refuse("is not text (UTF-8)".to_owned()))?;
        let config = Self::parse(&text).map_err(|problems| ConfigError { file, problems })?;
        Ok((config, Some(hash)))
    }

    /// Parses a text.
    ///
    /// # Errors
    ///
    /// All errors, in the text's order.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let node = yaml::parse(text).map_err(|err| {
            vec![Problem { at: err.at, path: String::new(), what: err.why, hint: None }]
        })?;
        if let Some(earlier) = propose::earlier(&node) {
            return Ok(Self { earlier: true, ..Self::parse(&earlier.text)? });
        }
        let mut reader = reader::Reader::default();
        let config = read::config(&mut reader, &node);
        if reader.problems.is_empty() {
            check::check(&mut reader, &config, &node);
        }
        reader.problems.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
        if reader.problems.is_empty() { Ok(config) } else { Err(reader.problems) }
    }

    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }
}

/// The value by which a project's file is confirmed: BLAKE3 of its bytes, in hex.
pub(crate) fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}

impl CommandLine {
    /// The command in the form in which a person would type it.
    pub fn shown(&self) -> String {
        match self {
            Self::Shell(line) => line.clone(),
            Self::Words(words) => {
                words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

impl Service {
    /// The names of its ports, which are leased before anything starts.
    pub fn ports(&self) -> Vec<&str> {
        match &self.strategy {
            Strategy::Process(process) => process.ports.iter().map(String::as_str).collect(),
            Strategy::Container(container) => {
                container.ports.iter().map(|(name, _)| name.as_str()).collect()
            }
            Strategy::Database(DatabaseService::Redis { server: Server::Embedded }) => {
                vec!["port"]
            }
            Strategy::Database(_) | Strategy::Compose(_) => Vec::new(),
        }
    }
}
