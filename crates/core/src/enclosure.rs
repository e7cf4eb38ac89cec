//! The port to sandboxes for long-running commands (`Enclose`).
//!
//! A [`Sandbox`] runs one command to its end and collects its output. An attempt
//! ([`crate::process`]) has its own terminal or pipes and a supervisor process outside of the
//! sandbox, and may outlive the daemon. So this port starts nothing: it measures the sandbox, and
//! returns a program to start *in place of* the command. That program creates the sandbox around
//! itself and becomes the command's parent. It ends when the command ends.
//!
//! A built-in agent's commands run to their end with a [`Sandbox`]. In a session with its own
//! worktree they see and reach the same as an attempt of that session: [`Surroundings`] describes
//! it for both, and [`Enclose::sandbox`] returns the sandbox that runs them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Fut;
use crate::attest::Attested;
use crate::ids::SessionId;
use crate::process::ProcessUser;
use crate::room::RoomMade;
use crate::sandbox::{Sandbox, SandboxError, SandboxLevel};

/// The second argument of a process that adopts the descendants of a command without a sandbox: see
/// [`Enclose::reaped`].
pub const REAPER: &str = "__reaper";

/// Number of processes in another namespace that are examined individually.
const FIRST: u32 = 16;

/// Returns whether a process's environment names its session, from its `/proc/PID/status`.
///
/// A session's processes in a namespace of their own include one of the first processes there. All
/// others descend from those, or end with them. Their environments are not read: reading waits
/// while a process copies its memory, and thousands of forking processes could delay it for
/// minutes.
pub fn tells_whose(status: &str) -> bool {
    let Some(line) = status.lines().find_map(|line| line.strip_prefix("NSpid:")) else {
        return true;
    };
    let inner = line.split_whitespace().skip(1);
    inner.last().and_then(|pid| pid.parse().ok()).is_none_or(|pid: u32| pid <= FIRST)
}

/// The network of a command in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The host's network: the command reaches everything that the host reaches, and the host
    /// reaches its servers.
    Host,
    /// A loopback of its own. On it, the server answers at [`DOOR_URL`] for models, the mesh and
    /// the command's own run, and the services and databases of its environment answer at their own
    /// ports ([`EnclosePlan::reaches`]). Nothing else is reachable.
    Mesh,
    /// A loopback of its own on which nothing else answers.
    None,
}

/// The server's port inside the sandbox, below the ports that a command can open.
pub const DOOR_PORT: u16 = 80;
/// The server's URL inside the sandbox.
pub const DOOR_URL: &str = "http://127.0.0.1:80";

/// The port of the name server inside the sandbox.
pub const NAMES_PORT: u16 = 53;
/// Maximum number of ports of the host's loopback that can be reached from inside.
pub const MAX_REACHED: usize = 32;

/// Returns whether a port of the host's loopback can be reached at the same port inside: every port
/// that is not used there.
pub const fn may_be_reached(port: u16) -> bool {
    !matches!(port, 0 | DOOR_PORT | NAMES_PORT)
}

/// Returns the first line of each connection from a sandbox to the server, sent before any data
/// from inside. It names the session.
pub fn whose_door(session: SessionId) -> String {
    format!("{DOOR_OF}{session}\n")
}

/// Parses such a line without its line end and returns the session; `None` if it is another text.
pub fn door_of(line: &str) -> Option<SessionId> {
    line.strip_prefix(DOOR_OF)?.parse().ok()
}

const DOOR_OF: &str = "overmind door of ";
/// A length that no such line reaches.
pub const MAX_DOOR_LINE: usize = 80;

impl Network {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Mesh => "mesh",
            Self::None => "none",
        }
    }
}

/// A directory that the server has made for a session: its context files
/// ([`crate::room::Rooms::lend`]), or the directory of a memory claim
/// ([`crate::room::Rooms::claim`]). It may be in the server's own data directory, of which nothing
/// else is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    pub path: PathBuf,
    pub read_only: bool,
}

/// The sandbox for a command.
#[derive(Clone, PartialEq)]
pub struct EnclosePlan {
    pub session: SessionId,
    pub level: SandboxLevel,
    /// Program and arguments as seen inside the sandbox.
    pub argv: Vec<String>,
    /// The server's `PATH`, if the program is an agent installed on this machine. The program is
    /// then searched only there, and the sandbox shows it with its files.
    pub installed: Option<String>,
    /// The command's environment. Only `PATH` and the variables of the dynamic loader are examined,
    /// because those must apply to the command alone ([`Enclosed::needs`]).
    pub env: Vec<(String, String)>,
    /// The session's own directory, readable and writable at the same path inside.
    pub workspace: PathBuf,
    /// The working directory of the command, in or below `workspace`.
    pub cwd: PathBuf,
    /// Whether its standard streams are a terminal.
    pub terminal: bool,
    /// Further files and directories of the host that it may read or write, at the same paths.
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// Directories that the server has made for this session, at the same paths.
    pub lent: Vec<Lent>,
    /// The paths in `read` that come from a repository and not from a person. No link may lead to
    /// them, except to a directory of a repository's objects ([`crate::objects`]), because a
    /// repository could name any path.
    pub borrowed: Vec<PathBuf>,
    pub network: Network,
    /// The session's own ports on the host's loopback: connections to them are passed into the
    /// sandbox. Only used with [`Network::Mesh`].
    pub ports: Vec<u16>,
    /// Ports on the host's loopback of the services and databases of the session's environment:
    /// connections to the same ports inside are passed to them. At most [`MAX_REACHED`], all with
    /// [`may_be_reached`]. Only used with [`Network::Mesh`].
    pub reaches: Vec<u16>,
    /// Whether it can reach the server: through [`DOOR_URL`] with [`Network::Mesh`], and through
    /// the server's socket with the host's network.
    pub server: bool,
    /// Whether it continues after the process that started it has ended.
    pub detached: bool,
    /// Directory of a control group that it joins first, if possible.
    pub group: Option<PathBuf>,
}

impl fmt::Debug for EnclosePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The environment holds secrets.
        f.debug_struct("EnclosePlan")
            .field("session", &self.session)
            .field("level", &self.level)
            .field("argv", &self.argv)
            .field("workspace", &self.workspace)
            .field("read", &self.read)
            .field("lent", &self.lent)
            .field("write", &self.write)
            .field("borrowed", &self.borrowed)
            .field("network", &self.network)
            .field("ports", &self.ports)
            .field("reaches", &self.reaches)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// The part of a session's environment that its commands see and reach in a sandbox. It is the same
/// for all commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The session's own directory, the top of its worktree.
    pub workspace: PathBuf,
    /// See [`RoomMade::borrowed`].
    pub borrowed: Vec<PathBuf>,
    /// See [`RoomMade::bounded`].
    pub bounded: bool,
    /// See [`RoomMade::reaches`].
    pub reaches: Vec<u16>,
}

impl Surroundings {
    /// Creates it; `None` if the session has no worktree of its own.
    pub fn of(made: &RoomMade) -> Option<Self> {
        let (borrowed, reaches) = (made.borrowed.clone(), made.reaches.clone());
        Some(Self { workspace: made.worktree.clone()?, borrowed, bounded: made.bounded, reaches })
    }

    /// Returns a sandbox that shows and reaches exactly this. The caller adds the command and its
    /// own grants.
    pub fn plan(self, session: SessionId, level: SandboxLevel) -> EnclosePlan {
        let Self { workspace, borrowed, bounded, reaches } = self;
        let network = if reaches.is_empty() { Network::None } else { Network::Mesh };
        EnclosePlan {
            session,
            level,
            argv: Vec::new(),
            installed: None,
            env: Vec::new(),
            cwd: workspace.clone(),
            workspace,
            terminal: false,
            read: borrowed.clone(),
            lent: Vec::new(),
            borrowed: if bounded { Vec::new() } else { borrowed },
            write: Vec::new(),
            network,
            ports: Vec::new(),
            reaches,
            server: false,
            // With whoever began it, which outlives this process or takes it along.
            detached: false,
            group: None,
        }
    }
}

/// The program to start in place of the command.
#[derive(Clone, Debug, PartialEq)]
pub struct Enclosed {
    pub argv: Vec<String>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Variables that it must have, which override the command's.
    pub needs: Vec<(String, String)>,
    /// Variables that tell the command the differences inside, such as `HOME`.
    pub tells: Vec<(String, String)>,
    pub user: Option<ProcessUser>,
    /// The measured isolation.
    pub attested: Arc<Attested>,
}

/// Creates sandboxes for long-running commands.
pub trait Enclose: Send + Sync + fmt::Debug {
    /// Measures the sandbox unless an equal one was measured before, and returns how to start the
    /// command in it.
    ///
    /// # Errors
    ///
    /// [`SandboxError`] with what the machine cannot provide, or what the plan requests without
    /// permission. It never returns a weaker sandbox.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing has been started.
    fn enclose(&self, plan: EnclosePlan) -> Fut<'_, Result<Enclosed, SandboxError>>;

    /// Returns a [`Sandbox`] that runs commands to their end with the plan's directories and
    /// network, and with the limits, writable directory and home of each request. A request's
    /// workspace is a directory in the plan's. If it is writable as a whole, all of the plan's
    /// workspace is. `argv`, `env`, `cwd` and the other fields for an attempt are ignored. Nothing
    /// is measured or started yet.
    ///
    /// `None`: there is no such sandbox for this level, whose driver shows only a workspace.
    fn sandbox(self: Arc<Self>, plan: EnclosePlan) -> Option<Arc<dyn Sandbox>> {
        drop(plan);
        None
    }

    /// Returns the command line that starts a command without a sandbox below a reaper: a process
    /// with [`REAPER`] as its second argument, which adopts the command's descendants when their
    /// parents end, and ends when none is left. `None` if there is no reaper.
    fn reaped(&self, argv: Vec<String>) -> Option<Vec<String>> {
        drop(argv);
        None
    }

    /// Removes the files that were kept for the session between its attempts, mainly its home
    /// directory.
    fn ended(&self, session: SessionId) -> Fut<'_, ()>;

    /// Returns the sessions for which files are kept between attempts.
    fn kept(&self) -> Fut<'_, Vec<SessionId>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_sees_its_borrowed_objects_and_reaches_only_its_services() {
        let mut made = RoomMade {
            worktree: Some("/w".into()),
            directory: "/w/sub".into(),
            borrowed: vec!["/p/.git/objects".into()],
            ..RoomMade::default()
        };
        let plan = |made: &RoomMade| {
            let seen = Surroundings::of(made).expect("it has a worktree");
            seen.plan(SessionId::from_u128(7), SandboxLevel::Namespace)
        };
        let alone = plan(&made);
        assert_eq!((alone.workspace, alone.read), ("/w".into(), made.borrowed.clone()));
        assert_eq!((alone.network, alone.server, alone.write.len()), (Network::None, false, 0));
        made.reaches = vec![20_001];
        let reaching = plan(&made);
        assert_eq!((reaching.network, reaching.reaches), (Network::Mesh, vec![20_001]));
        assert!(!reaching.server && reaching.ports.is_empty());
        made.worktree = None;
        assert_eq!(Surroundings::of(&made), None, "it works where others do");
    }

    #[test]
    fn only_the_first_processes_of_a_namespace_identify_the_session() {
        let status = |pids: &str| format!("Name:\tsh\nPid:\t4000\nNSpid:\t{pids}\nSeccomp:\t0\n");
        for (pids, tells) in [
            ("4000", true),
            ("4000\t1", true),
            ("4000\t16", true),
            ("4000\t17", false),
            ("4000\t900\t2", true),
        ] {
            assert_eq!(tells_whose(&status(pids)), tells, "{pids}");
        }
        assert!(tells_whose("Name:\tsh\n"), "a kernel without namespaces");
    }

    #[test]
    fn the_owner_of_an_endpoint_is_read_back_as_written() {
        let session = SessionId::from_u128(7);
        let line = whose_door(session);
        assert!(line.len() <= MAX_DOOR_LINE && line.ends_with('\n'), "{line}");
        assert_eq!(door_of(line.trim_end()), Some(session));
        for odd in ["", "GET / HTTP/1.1", "overmind door of ", "overmind door of x"] {
            assert_eq!(door_of(odd), None, "{odd}");
        }
    }
}
