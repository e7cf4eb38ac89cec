//! `.overmind.yml`: what a project says that a session needs.
//!
//! Begin at [`Config::load`]. The grammar is told in `docs/overmind-yml.md`. Unknown keys,
//! values out of bounds, references to services that do not exist and cycles are errors with
//! line, path and a suggestion, all of them at once. The file is the project's and so not
//! trusted more than the project: paths in it stay beneath the worktree.

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

/// What a session of a project needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub worktree: WorktreeConfig,
    pub ports: PortsConfig,
    /// In the file's order.
    pub services: Vec<Service>,
    /// Variables of the session, in the file's order.
    pub env: Vec<(String, Template)>,
    pub env_file: Option<EnvFile>,
    pub setup: Vec<Hook>,
    pub teardown: Vec<Hook>,
    pub isolation: Isolation,
    pub pool: PoolConfig,
    /// Patterns of secrets of the repository that sessions are given; all others are withheld.
    pub secrets: Vec<String>,
    /// Whether the text is in the earlier dialect, which is read as what `overmind init` makes of it.
    pub earlier: bool,
}

/// How the session's own checkout is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorktreeConfig {
    /// The revision to begin at; the project's current commit when absent.
    pub base: Option<String>,
    /// What the names of sessions' branches begin with.
    pub branch_prefix: String,
    /// Patterns of ignored files that are copied from the project.
    pub include: Vec<String>,
    /// A file in the project with more such patterns.
    pub include_file: String,
    /// Large directories and what becomes of them, by path.
    pub directories: BTreeMap<String, DirectoryStrategy>,
    pub submodules: bool,
}

/// What becomes of a large ignored directory of the project in a session's worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryStrategy {
    /// A symbolic link to the project's own: nothing is copied, writes are seen by all.
    Share,
    /// A copy that shares blocks where the file system can; an error where it cannot.
    Reflink,
    /// As `reflink` where possible, else a full copy.
    Copy,
    /// Left out: the session makes its own.
    Skip,
}

/// The session's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortsConfig {
    /// Leases come from here.
    pub range: RangeInclusive<u16>,
    /// Names of variables, each with a port of its own.
    pub names: Vec<String>,
}

/// Something that runs beside the session, or a database that is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    pub depends_on: Vec<String>,
    pub phase: Phase,
    pub ready: Ready,
    /// Variables of this service alone, on top of the session's.
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

/// What to run: words that are passed on as they are, or a line for `/bin/sh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    Words(Vec<Template>),
    Shell(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessService {
    pub command: CommandLine,
    /// Beneath the worktree.
    pub cwd: Option<PathBuf>,
    /// Names; each gets a port of its own, the first is `${name.port}` and `PORT`.
    pub ports: Vec<String>,
    pub restart: Restart,
    /// Between the polite signal and the deadly one.
    pub grace: Duration,
}

/// When an ended process is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Restart {
    pub policy: RestartPolicy,
    /// Before the first restart; doubled with each, up to a minute.
    pub backoff_ms: u64,
    /// How often in a row; a run of a minute begins the count anew.
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
    /// Name and port inside; each gets a port of its own outside.
    pub ports: Vec<(String, u16)>,
    /// Paths inside; each gets a volume of its own.
    pub volumes: Vec<String>,
    /// Files of the worktree, read-only: path beneath the worktree, path inside.
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
    /// Beneath the worktree.
    pub file: PathBuf,
    /// Beneath the project; copied when it exists.
    pub source: Option<PathBuf>,
    pub template: Option<DatabaseTemplate>,
}

/// Which server a logical database lives in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// One that Overmind starts from the machine's own programs.
    Embedded,
    Url(String),
    /// The URL is in a variable of the daemon's environment, where no file shows it.
    UrlFrom(String),
}

/// What a new database is a copy of, and what makes it stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseTemplate {
    /// Patterns of files beneath the worktree; a change in any makes a new template.
    pub files: Vec<String>,
    /// Files of SQL beneath the worktree, run in this order before the command.
    pub sql: Vec<PathBuf>,
    pub command: Option<CommandLine>,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposeService {
    /// Beneath the worktree.
    pub file: PathBuf,
    pub profiles: Vec<String>,
    /// All of the file's when empty.
    pub services: Vec<String>,
}

/// How it is known that a service is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub check: ReadyCheck,
    pub timeout: Duration,
    pub interval: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyCheck {
    /// Started is ready.
    Started,
    /// Something accepts connections on the port of that name.
    Tcp { port: String },
    /// `GET path` on the port of that name answers with one of these.
    Http { port: String, path: String, status: RangeInclusive<u16> },
    /// A command ends with 0.
    Command(CommandLine),
    /// A line of the output matches.
    Log(String),
}

/// A command of the project that is run when a session begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// For messages; the command itself when none is given.
    pub name: String,
    pub command: CommandLine,
    /// Beneath the worktree.
    pub cwd: Option<PathBuf>,
    pub timeout: Duration,
    pub on_failure: OnFailure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The session does not begin (setup), or the failure is reported as one (teardown).
    Block,
    /// Said aloud, and no more.
    Warn,
}

/// Where the variables are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// Beneath the worktree.
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// What the session's commands run in; the agent's own choice when absent.
    pub sandbox: Option<SandboxLevel>,
    /// Whether the session gets a directory for temporary files of its own.
    pub tmp: bool,
}

/// Worktrees that are made ahead of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many are kept ready; 0 keeps none.
    pub size: u32,
    /// How old one may become before it is brought up to date.
    pub refresh: Duration,
}

/// Every mistake of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: PathBuf,
    /// Never empty; in the file's order.
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
    /// What a project without the file gets: a worktree, and one port as `PORT`.
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

/// Below the ports that Linux gives to outgoing connections (32768–60999), above the well-known.
pub const DEFAULT_RANGE: RangeInclusive<u16> = 20_000..=29_999;

impl Config {
    /// Reads the file of `project`, or what holds without one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every mistake, or why the file could not be read.
    pub fn load(project: &Path) -> Result<Self, ConfigError> {
        Self::load_without(project, &Own::default())
    }

    /// The same, where what is the server's own is nobody's project file.
    pub(crate) fn load_without(project: &Path, own: &Own) -> Result<Self, ConfigError> {
        Self::load_hashed(project, own).map(|(config, _)| config)
    }

    /// The same, with the [hash](hash) of the file's bytes if there is one.
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

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// Every mistake, in the text's order.
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

/// What a project's file is confirmed by: BLAKE3 of its bytes, in hex.
pub(crate) fn hash(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}

impl CommandLine {
    /// As a person would type it.
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
