//! The port to enclosures: a sandbox around a command that lives, for as long as it lives.
//!
//! A [`Sandbox`] runs one command to its end and collects its output. A
//! life ([`crate::process`]) has a terminal or pipes of its own, a keeper that stands outside, and
//! may outlive the daemon. So an enclosure starts nothing: it measures what it will give, and
//! answers what to start *in place of* the command. That program builds the sandbox around itself
//! and becomes the command's parent; it ends as the command ends.
//!
//! Commands that a built-in agent calls are run to their end all the same, and those of a session with
//! a worktree of its own see and reach what a life of that session would: [`Surroundings`] says what that
//! is for both, and [`Enclose::sandbox`] answers what runs them.

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

/// The second word of a process that takes in what a command without a sandbox has left behind: see
/// [`Enclose::reaped`].
pub const REAPER: &str = "__reaper";

/// Processes of another namespace that are looked at one by one.
const FIRST: u32 = 16;

/// Whether a process's environment says whose it is, by what `/proc/PID/status` says of it.
///
/// What is started for a session in a namespace of its own is among the first processes there; all others
/// descend from those, or end with them. They are left alone: a reader of an environment waits as long
/// as the process is copying its memory, and thousands that do nothing but fork would hold it up for minutes.
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
    /// The host's: what it serves is reached from the host, and it reaches what the host reaches.
    Host,
    /// A loopback of its own on which one door answers, that of the server ([`DOOR_URL`]): models,
    /// the mesh, its own run. Beside it the services and databases of its room answer, each at its
    /// own port ([`EnclosePlan::reaches`]). Nothing else is reached.
    Mesh,
    /// A loopback of its own, and nothing else.
    None,
}

/// Where the door is, inside: below the ports that a command may take for itself.
pub const DOOR_PORT: u16 = 80;
/// The same as programs are told.
pub const DOOR_URL: &str = "http://127.0.0.1:80";

/// Inside, where names are asked for.
pub const NAMES_PORT: u16 = 53;
/// So many ports of the host's loopback can be reached from inside at most.
pub const MAX_REACHED: usize = 32;

/// Whether what listens on this port of the host's loopback can be reached from inside at the same
/// one: all can but those that are taken there.
pub const fn may_be_reached(port: u16) -> bool {
    !matches!(port, 0 | DOOR_PORT | NAMES_PORT)
}

/// What is said first on each connection that comes through a door, before anything from inside:
/// whose door it is.
pub fn whose_door(session: SessionId) -> String {
    format!("{DOOR_OF}{session}\n")
}

/// The session of such a line, without its end. `None`: it is none.
pub fn door_of(line: &str) -> Option<SessionId> {
    line.strip_prefix(DOOR_OF)?.parse().ok()
}

const DOOR_OF: &str = "overmind door of ";
/// Longer than any such line.
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

/// A command to be enclosed.
#[derive(Clone, PartialEq)]
pub struct EnclosePlan {
    pub session: SessionId,
    pub level: SandboxLevel,
    /// Program and arguments, as seen inside.
    pub argv: Vec<String>,
    /// The `PATH` of this server, where its program is an agent's that is installed on this machine:
    /// then it is looked for there alone, and shown wherever it lies, with what belongs to it.
    pub installed: Option<String>,
    /// What the command will have. `PATH` is looked at, and what the loader of programs heeds: that
    /// is for the command alone ([`Enclosed::needs`]).
    pub env: Vec<(String, String)>,
    /// The session's own directory: seen at the same path inside, to be read and written.
    pub workspace: PathBuf,
    /// Where the command starts, in or below `workspace`.
    pub cwd: PathBuf,
    /// Whether its standard streams are a terminal.
    pub terminal: bool,
    /// Further files and directories of the host, at the same path: to be read; to be written.
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// A directory that the server has made for this session to read ([`crate::room::Rooms::lend`]): at
    /// the same path. It may lie in the server's own data, where nothing else is shown.
    pub lent: Option<PathBuf>,
    /// What of `read` comes from a repository and not from a person. No link leads to it, unless to a
    /// directory of a repository's objects ([`crate::objects`]): a repository could name anything.
    pub borrowed: Vec<PathBuf>,
    pub network: Network,
    /// Of the host's loopback, the session's own: what connects there is let in. Only looked at
    /// with [`Network::Mesh`].
    pub ports: Vec<u16>,
    /// Of the host's loopback, where services and databases of the session's room listen: what
    /// connects to the same port inside is carried there. At most [`MAX_REACHED`], of which
    /// [`may_be_reached`] is true. Only looked at with [`Network::Mesh`].
    pub reaches: Vec<u16>,
    /// Whether it reaches the server: by the door, with [`Network::Mesh`]; by the server's socket,
    /// with the host's network. Else it is shown neither.
    pub server: bool,
    /// Whether it goes on when whoever started it has ended. Else it ends with that one.
    pub detached: bool,
    /// The directory of a control group that it joins before anything else, where it may.
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

/// What of its room a session's commands see in a sandbox, and what of it they reach: the same for
/// whoever begins them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The session's own directory: the top of its worktree.
    pub workspace: PathBuf,
    /// See [`RoomMade::borrowed`].
    pub borrowed: Vec<PathBuf>,
    /// See [`RoomMade::bounded`].
    pub bounded: bool,
    /// See [`RoomMade::reaches`].
    pub reaches: Vec<u16>,
}

impl Surroundings {
    /// `None`: the session has no worktree of its own.
    pub fn of(made: &RoomMade) -> Option<Self> {
        let (borrowed, reaches) = (made.borrowed.clone(), made.reaches.clone());
        Some(Self { workspace: made.worktree.clone()?, borrowed, bounded: made.bounded, reaches })
    }

    /// The sandbox that shows all this, and lets out to it alone. What a command is granted beyond it,
    /// and the command itself, are the caller's to add.
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
            lent: None,
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

/// What to start in place of the command.
#[derive(Clone, Debug, PartialEq)]
pub struct Enclosed {
    pub argv: Vec<String>,
    /// Where to start it.
    pub cwd: PathBuf,
    /// Variables that it must have, in place of the command's of the same names.
    pub needs: Vec<(String, String)>,
    /// Variables that tell the command what is different inside, such as `HOME`.
    pub tells: Vec<(String, String)>,
    pub user: Option<ProcessUser>,
    /// What was measured of it.
    pub attested: Arc<Attested>,
}

/// Puts sandboxes around commands that live.
pub trait Enclose: Send + Sync + fmt::Debug {
    /// Measures the sandbox, unless this very one was measured before, and answers how the
    /// command is started in it.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]: what the machine cannot give, or what the plan asks for and may not get.
    /// Nothing weaker is answered, ever.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nothing has been started.
    fn enclose(&self, plan: EnclosePlan) -> Fut<'_, Result<Enclosed, SandboxError>>;

    /// What runs commands to their end in such a sandbox: with the plan's directories at the host's
    /// paths and its network, and with the bounds, the writable directory and the home of each request.
    /// A request's workspace is a directory in the plan's; one that is writable as a whole makes all
    /// of the plan's writable. Of the plan `argv`, `env`, `cwd` and what else is of a life are not
    /// looked at. Nothing is measured or started yet.
    ///
    /// `None`: there is none for this level, whose driver shows a workspace and nothing beside it.
    fn sandbox(self: Arc<Self>, plan: EnclosePlan) -> Option<Arc<dyn Sandbox>> {
        drop(plan);
        None
    }

    /// The words that start a command without a sandbox below a reaper: a process whose second word is
    /// [`REAPER`], to which the command's descendants come when their own parents end, and which ends
    /// when none is left. `None`: there is none.
    fn reaped(&self, argv: Vec<String>) -> Option<Vec<String>> {
        drop(argv);
        None
    }

    /// What was kept for the session between its attempts, its home above all, is removed.
    fn ended(&self, session: SessionId) -> Fut<'_, ()>;

    /// The sessions for which something is kept between attempts.
    fn kept(&self) -> Fut<'_, Vec<SessionId>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_sees_what_its_worktree_borrows_and_reaches_its_services_alone() {
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
    fn only_the_first_processes_of_another_namespace_tell_whose_they_are() {
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
    fn whose_door_it_is_is_read_as_it_was_written() {
        let session = SessionId::from_u128(7);
        let line = whose_door(session);
        assert!(line.len() <= MAX_DOOR_LINE && line.ends_with('\n'), "{line}");
        assert_eq!(door_of(line.trim_end()), Some(session));
        for odd in ["", "GET / HTTP/1.1", "overmind door of ", "overmind door of x"] {
            assert_eq!(door_of(odd), None, "{odd}");
        }
    }
}
