//! The port to rooms: what a session works in and must give back. A worktree, ports, databases,
//! services and variables, made before its command begins and given back after it ended.
//!
//! A room is made and closed by effects of the session like everything else: both are idempotent,
//! so a crash in the middle means that they are asked for again. What stands in the log never
//! holds a room's variables, for passwords of its databases are among them: whoever starts a
//! command asks [`Rooms::environment`] for them.

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
use crate::ids::SessionId;
use crate::room::history::{RoomChanges, RoomMark, RoomSnapshot, RoomUndone};
use crate::room::trust::{RoomTrust, TrustedProjects};
use crate::sandbox::SandboxLevel;

/// Whether a session gets a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomWhen {
    /// In a git repository; elsewhere the session works where it was started, and is told so.
    #[default]
    Auto,
    /// Also outside of git: a copy of the directory.
    Always,
    /// Never: it works in the directory itself.
    Never,
}

/// What somebody wants of a session's room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoomWish {
    pub when: RoomWhen,
    /// The revision that its branch begins at; the project's own choice when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Copies uncommitted changes of the project along.
    pub carry_changes: bool,
    /// What becomes of the worktree when the session ends.
    pub end: RoomEnd,
    /// Which repositories its project may lead to; any, when absent. Nobody asks for it: the engine says it
    /// of sessions whose callers are no admins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<RoomReach>,
}

/// Which repositories a project may lead to. Whoever writes a project says by a `.git` file where its
/// repository is, and by a list of alternates where its objects are; the server opens both with its own
/// rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomReach {
    /// None: the project is a run's own directory, and all that is in it was written by runs.
    Nothing,
    /// Those that lie in these directories, whose paths have no links.
    Within {
        /// At most 100; the first one holds the project.
        roots: Vec<PathBuf>,
        /// Also the repository that the first one is a part of.
        above: bool,
    },
}

/// What becomes of a worktree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomEnd {
    /// It stays until somebody decides over its work ([`RoomDone`]), and goes if it has none. Services,
    /// ports and databases go.
    #[default]
    Decide,
    /// Removed; what is uncommitted becomes a commit on its branch first.
    Park,
    /// It stays where it is. Services, ports and databases go.
    Keep,
    /// Removed with all that is in it: somebody said so.
    Discard,
}

/// What programs of a room run in: its session's agent says so, and its project may ask for a stronger
/// level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSandbox {
    pub level: SandboxLevel,
    pub network: Network,
    /// Files and directories of the host that they may read beyond the system's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
}

impl Default for RoomSandbox {
    /// None but what the project asks for.
    fn default() -> Self {
        Self { level: SandboxLevel::None, network: Network::Mesh, read: Vec::new() }
    }
}

/// A room to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomOrder {
    pub session: SessionId,
    /// What people call the session; its branch is called after it.
    pub name: String,
    /// What commits of its work say: what it is to do, in one line, or what somebody said of it. May be
    /// empty.
    pub about: String,
    /// What its agent is called, for commits of its work. May be empty.
    pub agent: String,
    /// Any directory of the project. The session begins at the same place within its worktree.
    pub project: PathBuf,
    pub wish: RoomWish,
    /// What its services and hooks run in. Only looked at when it is made.
    pub sandbox: RoomSandbox,
    /// What it was the last time, of a session that goes on after its end: a worktree of that time
    /// that is still there is taken up.
    pub before: Option<Box<RoomMade>>,
}

/// Longest line that a commit is called after, in characters.
const TITLE: usize = 72;

/// The first line of a task that says something, as a commit may be called.
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

/// A room that was made, as the log and lists show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomMade {
    /// Where the session's command begins: in the worktree, or in the project's directory itself
    /// when there is none.
    pub directory: PathBuf,
    /// The top of the session's own worktree; `None`: it works in the project's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The commit that the branch began at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Every port, by its variable or by `service/port`.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
    /// Where services answer, by service: `http://127.0.0.1:20001`.
    #[serde(default)]
    pub urls: BTreeMap<String, String>,
    /// What a sandbox must show beside the worktree, read-only: the objects that it borrows of the
    /// project's repository, directories that it shares with the project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub borrowed: Vec<PathBuf>,
    /// Whether a sandbox opens `borrowed` through no link at all: runs of its caller may write there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bounded: bool,
    /// What the project asks its commands to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// Ports of the host's loopback on which its services and databases listen. A sandbox whose
    /// network is the mesh reaches these, see [`crate::enclosure::EnclosePlan::reaches`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaches: Vec<u16>,
    /// Services and databases that no such port leads to, each with where it is: `db at
    /// db.example:5432`. A sandbox reaches them with the host's network only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<String>,
    /// Of a room that was made before there were `reaches`: whether anything of it listens on the
    /// host's network, which its sandboxes get then. Of any other it is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub serves: bool,
    /// Secrets of its tree that are withheld from the session, from its top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Said aloud: what was left out, failed and did not stop the rest.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl RoomMade {
    /// The ports that the command itself is to serve on: those of no service.
    pub fn own_ports(&self) -> Vec<u16> {
        let own = self.ports.iter().filter(|(name, _)| !name.contains('/'));
        own.map(|(_, port)| *port).collect()
    }
}

/// What closing a room left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomClosed {
    /// Where the worktree still is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    /// Whether that is only until somebody decides: see [`RoomEnd::Decide`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
    /// The branch of the project's repository that has the work, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The commit that its work ends at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the last commit is ours, of what was not committed.
    #[serde(default)]
    pub parked: bool,
    /// Whether a person asked for the branch by name, or to push it: then it is theirs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub published: bool,
    /// What it changed beside its base; `None` when that was not counted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What the leak check found afterwards. Empty is the promise.
    #[serde(default)]
    pub leaks: Vec<Leak>,
}

/// Something that is left of a session that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leak {
    /// `process`, `port`, `container`, `volume`, `database`, `worktree`, `branch`, `mount`,
    /// `socket`, `temp_files` and their like; `unchecked`: it could not be looked.
    pub kind: String,
    /// Its name: a number of a process or port, a path, a database.
    pub what: String,
    /// The session whose it was, as far as it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What a person can do.
    pub how: String,
    /// Whether it is ours for certain, so that [`Rooms::fix`] removes it.
    pub fixable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What a session has done in its worktree, against its base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomWork {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    pub files: u32,
    pub insertions: u64,
    pub deletions: u64,
    /// Commits on the branch beyond the base.
    pub commits: u32,
    /// A unified diff; its beginning only when `truncated`.
    pub diff: String,
    pub truncated: bool,
    /// Changed files that other programs run by themselves once they are merged ([`later`]), and how
    /// they do, in the order of their paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_later: Vec<(String, String)>,
}

/// What is to become of a session's work: `overmind done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomDone {
    /// Merged into a branch of the project, or into what is checked out there.
    Merge {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        into: Option<String>,
    },
    /// On a branch of the project's repository, to be pushed; what is uncommitted is committed.
    PrBranch {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The worktree stays. Only while there is one.
    Keep,
    /// The worktree goes; what is uncommitted becomes a commit on the session's branch first.
    Park,
    /// Thrown away. Its last state can be brought back for a while by the commit in the answer.
    Discard,
}

/// What [`Rooms::done`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomOutcome {
    /// For a person: one sentence.
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

/// Why a room could not be made, closed or asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RoomError {
    pub kind: RoomErrorKind,
    /// What, where and what to do.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomErrorKind {
    /// The project says or is something that cannot be worked with: its file has mistakes, there
    /// is no such base.
    Project,
    /// Setup, a service or a database did not come up.
    Failed,
    /// There is no such room, or it has nothing of that.
    NotFound,
    /// It cannot be done in this state: a conflict of a merge, a room that is in use.
    Conflict,
    /// The project orders what no admin confirmed: see [`trust`].
    Untrusted,
}

impl RoomError {
    pub fn new(kind: RoomErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// One thing that happens while a room is made or closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomProgress {
    /// A step begins: `services/db`, `setup: npm ci`.
    Step(String),
    /// A line of output of a hook, a migration or an engine.
    Line { source: String, line: String },
    /// Something failed that does not stop the rest.
    Warning(String),
}

/// Who is told of progress. Called from any thread; must not block.
pub type RoomSink = Arc<dyn Fn(RoomProgress) + Send + Sync>;

/// Is told what the sandboxes of a room's programs were measured to give.
pub trait RoomWitness: Send + Sync + fmt::Debug {
    /// Said right before the program begins: `of` is what it is, for people (`service db`, `setup:
    /// npm ci`), at most [`MAX_OF`](stay::MAX_OF) bytes. Said again at each start of a service; of what is run over and
    /// over (a ready check) only once for each measurement.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nobody may have been told.
    fn attested(&self, session: SessionId, of: String, attested: Arc<Attested>) -> Fut<'_, ()>;
}

/// Rooms of one machine.
pub trait Rooms: Send + Sync + fmt::Debug {
    /// Who is told from now on. The last one counts; without one nobody is told.
    fn witness(&self, witness: Arc<dyn RoomWitness>);

    /// The projects whose orders may be run from now on, all of them; before it is said for the first
    /// time there are none.
    fn trusted(&self, projects: TrustedProjects);

    /// What a project orders, and whether that may be run. Reads its file as it is now.
    fn trust_of(
        &self,
        project: PathBuf,
        reach: Option<RoomReach>,
    ) -> Fut<'_, Result<RoomTrust, RoomError>>;

    /// Said once, before anything else: the sessions whose rooms are still wanted. Rooms of
    /// theirs that are whole are taken up again (their services run again or still); half-made
    /// ones are undone; what belongs to anybody else is closed with [`RoomEnd::Park`].
    fn keep(&self, wanted: Vec<SessionId>) -> Fut<'_, ()>;

    /// Makes a room, or finds the one that the session has. Where the level of its sandbox is not
    /// `none`, whatever is started from its worktree then and later is enclosed at that level
    /// ([`crate::enclosure`]); what cannot be is not started.
    ///
    /// Errors: what was made is undone before they are told.
    ///
    /// Cancel safety: dropped midway, the room is half made; [`Rooms::close`] undoes it.
    fn prepare(&self, order: RoomOrder, sink: RoomSink) -> Fut<'_, Result<RoomMade, RoomError>>;

    /// Variables for every command of the session, without those of the daemon. Passwords are
    /// among them: never to be logged. Empty for a session without a room.
    fn environment(&self, session: SessionId) -> Fut<'_, Result<Vec<(String, String)>, RoomError>>;

    /// Gives everything back, also of a half-made room, and looks for what is left. A session
    /// without a room has nothing to give back, and that is no error. Called again after an error
    /// or a crash, it goes on.
    fn close(
        &self,
        session: SessionId,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Fut<'_, Result<RoomClosed, RoomError>>;

    /// What the session has done: of a room that is open, kept or closed with a branch.
    /// `closed` is what [`Rooms::close`] said, if it was closed.
    fn work<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
    ) -> Fut<'a, Result<RoomWork, RoomError>>;

    /// Decides over the work of a session whose command has ended; [`RoomDone::PrBranch`] also
    /// of one that goes on. `closed` as in [`Rooms::work`].
    fn done<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        done: RoomDone,
    ) -> Fut<'a, Result<RoomOutcome, RoomError>>;

    /// Saves the files of an open room as a commit outside of its branch; `None` when there is no
    /// worktree, or nothing has changed since they were last saved.
    ///
    /// Cancel safety: dropped midway, they are saved or not.
    fn snapshot(
        &self,
        session: SessionId,
        mark: RoomMark,
    ) -> Fut<'_, Result<Option<RoomSnapshot>, RoomError>>;

    /// Sessions whose rooms are given back but for their worktrees.
    fn kept(&self) -> Fut<'_, Result<Vec<SessionId>, RoomError>>;

    /// Brings the files of an open room's worktree back to the last snapshot before `step`: what changed
    /// them since was cut off and is to be done again. `None`: nothing changed them, or there is no
    /// snapshot.
    fn restore(
        &self,
        session: SessionId,
        step: u32,
    ) -> Fut<'_, Result<Option<RoomUndone>, RoomError>>;

    /// Brings the files of a session's worktree back to a snapshot; without `to` to the last one
    /// before the latest change. What they are now is saved first. Nothing of the session may run.
    fn undo<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        closed: Option<&'a RoomClosed>,
        to: Option<&'a str>,
    ) -> Fut<'a, Result<RoomUndone, RoomError>>;

    /// The files of a session's worktree before a step, for another room to begin at: the commit is
    /// in the project's repository then. `None`: they were not saved, or not in a repository.
    fn files_at<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        step: u32,
    ) -> Fut<'a, Result<Option<RoomSnapshot>, RoomError>>;

    /// The directory that these files lie in, as (path beneath it, contents): a session's own, and its
    /// to read. They are made unless they are there.
    ///
    /// Cancel safety: dropped midway, they are there or not, and never in part.
    fn lend(
        &self,
        session: SessionId,
        files: Vec<(String, String)>,
    ) -> Fut<'_, Result<PathBuf, RoomError>>;

    /// Removes what was lent, but for these sessions.
    fn keep_lent(&self, wanted: Vec<SessionId>) -> Fut<'_, ()>;

    /// Removes what was lent to a session, if anything was.
    fn returned(&self, session: SessionId) -> Fut<'_, ()>;

    /// Everything that no living session accounts for.
    fn leaks(&self) -> Fut<'_, Vec<Leak>>;

    /// Removes what is ours for certain, and says what is left then.
    fn fix(&self) -> Fut<'_, Vec<Leak>>;
}
