//! The port to environments (`Room`). A session works in its environment: a worktree, ports,
//! databases, services and variables, created before its command starts and removed after it ended.
//!
//! Effects of the session create and remove the environment, as everything else. Both are
//! idempotent, so after a crash in the middle they are requested again. The log never contains an
//! environment's variables, because some of them are passwords of its databases. To start a
//! command, call [`Rooms::environment`] for them.

pub mod history;
pub mod later;
pub mod stay;
pub mod trust;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Fut;
use crate::attest::Attested;
use crate::enclosure::Network;
use crate::ids::{ColonyId, SessionId};
use crate::record::Name;
use crate::room::history::{RoomChanges, RoomMark, RoomSnapshot, RoomUndone};
use crate::room::trust::{RoomTrust, TrustedProjects};
use crate::sandbox::SandboxLevel;

/// When a session gets an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomWhen {
    /// It does in a git repository. Elsewhere the session works where it was started, and gets a
    /// note.
    #[default]
    Auto,
    /// Always. Outside of git, the environment is a copy of the directory.
    Always,
    /// Never: it works in the directory itself.
    Never,
}

/// The environment that a session requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoomWish {
    pub when: RoomWhen,
    /// The revision at which its branch begins. Default: the project's own choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Also copies the project's uncommitted changes.
    pub carry_changes: bool,
    /// The decision about the worktree when the session ends.
    pub end: RoomEnd,
    /// The repositories that its project may use. It is not part of a request: the engine sets it.
    /// Records of sessions without it allow any repository.
    #[serde(default = "RoomReach::unrecorded")]
    pub reach: RoomReach,
}

/// The repositories that a project may use. The author of a project chooses its repository with a
/// `.git` file, and the places of its objects with a list of alternates. The server opens both with
/// its own rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomReach {
    /// None: the project is a run's own directory, and runs wrote everything in it.
    #[default]
    Nothing,
    /// Any repository that contains the project, and those elsewhere that name the project as one
    /// of their working trees.
    Any,
    /// The repositories in these directories, whose paths contain no links.
    Within {
        /// At most 100 directories; the first one contains the project.
        roots: Vec<PathBuf>,
        /// Also allows the repository that contains the first directory.
        above: bool,
    },
}

impl RoomReach {
    /// The access of a session whose record contains none.
    fn unrecorded() -> Self {
        Self::Any
    }
}

/// The decision about a worktree at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomEnd {
    /// The worktree stays until somebody decides about its work ([`RoomDone`]). Without work it is
    /// removed. Services, ports and databases are removed.
    #[default]
    Decide,
    /// The worktree is removed; uncommitted changes are first committed to its branch.
    Park,
    /// The worktree stays. Services, ports and databases are removed.
    Keep,
    /// The worktree is removed with all that it contains, because somebody requested it.
    Discard,
}

/// The sandbox for programs of an environment. The session's agent sets it, and the project may
/// require a stronger level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSandbox {
    pub level: SandboxLevel,
    pub network: Network,
    /// Files and directories of the host that they may read, in addition to the system's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
}

impl Default for RoomSandbox {
    /// No sandbox, except the one that the project requires.
    fn default() -> Self {
        Self { level: SandboxLevel::None, network: Network::Mesh, read: Vec::new() }
    }
}

/// The request to create an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomOrder {
    pub session: SessionId,
    /// The session's name. The branch is named after it.
    pub name: String,
    /// Text for messages of commits: the session's task in one line, or a person's message. May be
    /// empty.
    pub about: String,
    /// The agent's name, for commits of its work. May be empty.
    pub agent: String,
    /// Any directory of the project. The session starts at the same place in its worktree.
    pub project: PathBuf,
    pub wish: RoomWish,
    /// The sandbox for its services and hooks. Used only when the environment is created.
    pub sandbox: RoomSandbox,
    /// The previous environment of a session that continues after its end. If its worktree still
    /// exists, it is used again.
    pub before: Option<Box<RoomMade>>,
}

/// Longest commit title, in characters.
const TITLE: usize = 72;

/// Returns the first meaningful line of a task, as the title of a commit.
pub fn about(task: &str) -> String {
    let printable = |line: &str| -> String {
        let text = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let line = task.lines().map(printable).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(TITLE) {
        Some(_) => line.chars().take(TITLE - 1).chain(['…']).collect(),
        None => line,
    }
}

/// The base of a worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomOrigin {
    /// A directory in no repository, or in none that was looked for.
    Directory,
    /// The repository that has its shared git directory there.
    Repository(PathBuf),
}

/// An environment that was created, as the log and lists show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomMade {
    /// The directory in which the session's command starts: in the worktree, or in the project's
    /// directory if there is no worktree.
    pub directory: PathBuf,
    /// Top directory of the session's own worktree. `None`: it works in the project's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The commit at which the branch began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// All ports, by variable or by `service/port`.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
    /// The URLs of services, by service: `http://127.0.0.1:20001`.
    #[serde(default)]
    pub urls: BTreeMap<String, String>,
    /// Directories that a sandbox must show read-only in addition to the worktree: the objects that
    /// it borrows from the project's repository, and directories shared with the project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub borrowed: Vec<PathBuf>,
    /// Whether a sandbox must follow no links when it opens `borrowed`, because runs of its caller
    /// may write there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bounded: bool,
    /// The base of the worktree; `None` without a worktree, and for worktrees of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<RoomOrigin>,
    /// The sandbox level that the project requires for commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// Ports of the host's loopback on which its services and databases listen. A sandbox whose
    /// network is the mesh reaches these, see [`crate::enclosure::EnclosePlan::reaches`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaches: Vec<u16>,
    /// Services and databases that have no such port, each with its address: `db at
    /// db.example:5432`. A sandbox reaches them only with the host's network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<String>,
    /// Only for environments that were created before `reaches` existed: whether any of it listens
    /// on the host's network, which its sandboxes then get. False for all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves: bool,
    /// Secret files of its worktree that the session does not see, relative to the top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Warnings for people: parts that were left out, or that failed without stopping the rest.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl RoomMade {
    /// Returns the ports on which the command itself serves, and no service.
    pub fn own_ports(&self) -> Vec<u16> {
        let own = self.ports.iter().filter(|(name, _)| !name.contains('/'));
        own.map(|(_, port)| *port).collect()
    }
}

/// The result of removing an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomClosed {
    /// Path of the worktree, if it still exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    /// Whether the worktree stays only until somebody decides: see [`RoomEnd::Decide`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
    /// The branch of the project's repository that contains the work, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The last commit of its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the server made the last commit, from uncommitted changes.
    #[serde(default)]
    pub parked: bool,
    /// Whether the branch belongs to a person, who requested it by name or for a push.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub published: bool,
    /// The size of its changes compared with its base; `None` if they were not counted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Resources that the leak check found afterwards. An empty list means that nothing remains.
    #[serde(default)]
    pub leaks: Vec<Leak>,
}

/// A resource of a removed session that still exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    /// The kind of resource: `process`, `port`, `container`, `volume`, `database`, `worktree`,
    /// `branch`, `mount`, `socket`, `temp_files` and others; `unchecked` if the check itself
    /// failed.
    pub kind: String,
    /// The resource: the number of a process or port, a path, or a database.
    pub what: String,
    /// The session to which it belonged, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// A hint for the user.
    pub how: String,
    /// Whether it certainly belongs to this server, so that [`Rooms::fix`] removes it.
    pub fixable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A session's changes in its worktree, compared with its base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomWork {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    pub files: u32,
    pub insertions: u64,
    pub deletions: u64,
    /// Commits on the branch since the base.
    pub commits: u32,
    /// A unified diff. If `truncated`, only its beginning.
    pub diff: String,
    pub truncated: bool,
    /// Changed files that other programs run automatically after a merge ([`later`]), each with how
    /// they are run, sorted by path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_later: Vec<(String, String)>,
}

/// A decision about a session's work: `overmind done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomDone {
    /// Merges the work into a branch of the project, or into the branch that is checked out there.
    Merge {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        into: Option<String>,
    },
    /// Creates a branch in the project's repository, ready to be pushed. Uncommitted changes are
    /// committed.
    PrBranch {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Keeps the worktree. Only possible while there is one.
    Keep,
    /// Removes the worktree. Uncommitted changes are first committed to the session's branch.
    Park,
    /// Discards the work. Its last state can be restored for some time from the commit in the
    /// answer.
    Discard,
}

/// The result of [`Rooms::done`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomOutcome {
    /// One sentence for a person.
    pub said: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Why an operation on an environment failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RoomError {
    pub kind: RoomErrorKind,
    /// A text that says what failed, where, and what to do.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomErrorKind {
    /// The project cannot be used: its file has mistakes, or the base does not exist.
    Project,
    /// The setup, a service or a database did not start.
    Failed,
    /// The environment, or the requested part of it, does not exist.
    NotFound,
    /// It is not possible in this state: a merge conflict, or an environment in use.
    Conflict,
    /// The project requests commands or rights that no admin has confirmed: see [`trust`].
    Untrusted,
}

impl RoomError {
    pub fn new(kind: RoomErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// A report of progress while an environment is created or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomProgress {
    /// A step starts: `services/db`, `setup: npm ci`.
    Step(String),
    /// A line of output of a hook, a migration or a container engine.
    Line { source: String, line: String },
    /// A failure that does not stop the rest.
    Warning(String),
}

/// Receives reports of progress. Called from any thread; must not block.
pub type RoomSink = Arc<dyn Fn(RoomProgress) + Send + Sync>;

/// Receives the measured isolation of the sandboxes of an environment's programs.
pub trait RoomWitness: Send + Sync + fmt::Debug {
    /// Called right before the program starts. `of` names the program for people (`service db`,
    /// `setup: npm ci`), in at most [`MAX_OF`](stay::MAX_OF) bytes. Called again at each start of a
    /// service. For a program that runs repeatedly (a ready check), called only once for each
    /// measurement.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the report may be lost.
    fn attested(&self, session: SessionId, of: String, attested: Arc<Attested>) -> Fut<'_, ()>;
}

/// The environments of one machine.
pub trait Rooms: Send + Sync + fmt::Debug {
    /// Sets the receiver of measurements, in place of an earlier one. Without one, measurements are
    /// not reported.
    fn witness(&self, witness: Arc<dyn RoomWitness>);

    /// Sets all projects whose orders may be run from now on. Before the first call there are none.
    fn trusted(&self, projects: TrustedProjects);

    /// Returns a project's orders, and whether they may be run. Reads the project's file as it is
    /// now.
    fn trust_of(&self, project: PathBuf, reach: RoomReach)
    -> Fut<'_, Result<RoomTrust, RoomError>>;

    /// Called once, before anything else, with the sessions whose environments are still needed.
    /// Their complete environments are resumed, with services running again; incomplete ones are
    /// removed. Environments of all other sessions are closed with [`RoomEnd::Park`].
    fn keep(&self, wanted: Vec<SessionId>) -> Fut<'_, ()>;

    /// Creates an environment, or finds the existing one of the session. If its sandbox level is
    /// not `none`, every program that is started from its worktree runs in a sandbox of that level
    /// ([`crate::enclosure`]); a program for which that is not possible is not started.
    ///
    /// Errors: everything that was created is removed before the error is returned.
    ///
    /// Cancel safety: if the future is dropped, the environment is incomplete; [`Rooms::close`]
    /// removes it.
    fn prepare(&self, order: RoomOrder, sink: RoomSink) -> Fut<'_, Result<RoomMade, RoomError>>;

    /// Returns the variables for all commands of the session, without those of the daemon. They
    /// contain passwords and must not be logged. Empty for a session without an environment.
    fn environment(&self, session: SessionId) -> Fut<'_, Result<Vec<(String, String)>, RoomError>>;

    /// Removes the environment, also an incomplete one, and looks for resources that remain. Not an
    /// error for a session without an environment. After an error or a crash, a further call
    /// continues.
    fn close(
        &self,
        session: SessionId,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Fut<'_, Result<RoomClosed, RoomError>>;

    /// Returns the session's changes, for an environment that is open, kept or closed with a
    /// branch. `closed` is the result of [`Rooms::close`], if it was closed.
    fn work<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
    ) -> Fut<'a, Result<RoomWork, RoomError>>;

    /// Decides about the work of a session whose command has ended; [`RoomDone::PrBranch`] also
    /// while the session continues. `closed` as in [`Rooms::work`].
    fn done<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        done: RoomDone,
    ) -> Fut<'a, Result<RoomOutcome, RoomError>>;

    /// Saves the files of an open environment as a commit outside of its branch. Returns `None` if
    /// there is no worktree, or if nothing has changed since the last snapshot.
    ///
    /// Cancel safety: if the future is dropped, the files are either saved or not.
    fn snapshot(
        &self,
        session: SessionId,
        mark: RoomMark,
    ) -> Fut<'_, Result<Option<RoomSnapshot>, RoomError>>;

    /// Returns the sessions whose environments were removed except for their worktrees.
    fn kept(&self) -> Fut<'_, Result<Vec<SessionId>, RoomError>>;

    /// Restores the files of an open environment's worktree to the last snapshot before `step`,
    /// because the step that changed them was interrupted and is repeated. Returns `None` if
    /// nothing changed them, or there is no snapshot.
    fn restore(
        &self,
        session: SessionId,
        step: u32,
    ) -> Fut<'_, Result<Option<RoomUndone>, RoomError>>;

    /// Restores the files of a session's worktree to a snapshot. Without `to`, it is the last one
    /// before the latest change. The present files are saved first. No process of the session may
    /// run.
    fn undo<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        to: Option<&'a str>,
    ) -> Fut<'a, Result<RoomUndone, RoomError>>;

    /// Returns the commit with the files of a session's worktree before a step, with which another
    /// environment can start. The commit is then in the project's repository. `None` if the files
    /// were not saved, or there is no repository.
    fn files_at<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        step: u32,
    ) -> Fut<'a, Result<Option<RoomSnapshot>, RoomError>>;

    /// Returns the directory that contains these files, given as (path below it, contents). It
    /// belongs to the session, which may only read it. The files are created if they do not exist.
    ///
    /// Cancel safety: if the future is dropped, the files exist or not, and never partly.
    fn lend(
        &self,
        session: SessionId,
        files: Vec<(String, String)>,
    ) -> Fut<'_, Result<PathBuf, RoomError>>;

    /// Returns the directory of a memory claim. It is created if it does not exist, and belongs to
    /// no session.
    ///
    /// Cancel safety: if the future is dropped, the directory exists or not.
    fn claim(&self, colony: ColonyId, name: Name) -> Fut<'_, Result<PathBuf, RoomError>>;

    /// Removes lent files of all sessions except these.
    fn keep_lent(&self, wanted: Vec<SessionId>) -> Fut<'_, ()>;

    /// Removes the files that were lent to a session, if there are any.
    fn returned(&self, session: SessionId) -> Fut<'_, ()>;

    /// Returns all resources that belong to no living session.
    fn leaks(&self) -> Fut<'_, Vec<Leak>>;

    /// Removes everything that certainly belongs to this server, and returns what remains.
    fn fix(&self) -> Fut<'_, Vec<Leak>>;
}
