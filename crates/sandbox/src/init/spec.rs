//! The messages between daemon and init. Both ends are the same build of the same program, so this
//! format has no version and is never stored.

use std::fmt;
use std::path::{Path, PathBuf};

use overmind_core::enclosure::Network;
use overmind_core::sandbox::HomeFile;
use serde::{Deserialize, Serialize};

use crate::init::outward::Reach;
use crate::repository::Fixed;

/// The first message, which is the same for every command of a driver. With it the sandbox is built
/// as far as possible while there is no command yet. It contains nothing of any session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ground {
    pub(crate) kind: Kind,
    /// See [`super::mutation`].
    #[cfg(feature = "mutations")]
    #[serde(default)]
    pub(crate) mutation: Option<super::mutation::Mutation>,
}

impl Ground {
    pub(crate) fn of(spec: &Spec) -> Self {
        Self {
            kind: spec.kind.clone(),
            #[cfg(feature = "mutations")]
            mutation: spec.mutation.clone(),
        }
    }
}

/// The order: everything else that the init needs; it reads no environment and no files of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The kind, equal to that of the [`Ground`].
    pub(crate) kind: Kind,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) home: Vec<HomeFile>,
    pub(crate) workspace: PathBuf,
    pub(crate) writable: Option<PathBuf>,
    pub(crate) cwd: PathBuf,
    /// A directory of the host for the home of a long-running command; without it the home is in
    /// memory.
    #[serde(default)]
    pub(crate) private_home: Option<PathBuf>,
    /// The target of the link `/workspace` if the workspace is at the host's path.
    #[serde(default)]
    pub(crate) also_at: Option<PathBuf>,
    /// The paths at which something empty covers the server's own files, relative to the root
    /// inside; see [`crate::hidden`].
    #[serde(default)]
    pub(crate) masks: Vec<PathBuf>,
    /// The paths at which a note covers a secret of the repository, relative to the root inside.
    #[serde(default)]
    pub(crate) secrets: Vec<PathBuf>,
    /// The parts of a user's repository that are mounted over themselves.
    #[serde(default)]
    pub(crate) fixed: Fixed,
    /// Whether the standard streams are a terminal that becomes the command's own.
    #[serde(default)]
    pub(crate) terminal: bool,
    pub(crate) limits: Limits,
    /// See [`super::mutation`].
    #[cfg(feature = "mutations")]
    #[serde(default)]
    pub(crate) mutation: Option<super::mutation::Mutation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Full isolation; see [`super::confined`]. `devices` are character devices of the host that
    /// may be opened for reading and writing, at the same path.
    Namespace {
        read_only: Vec<PathBuf>,
        devices: Vec<PathBuf>,
        program: Program,
        /// The additions for a long-running command.
        living: Option<Living>,
    },
    /// No isolation; see [`super::unconfined`].
    Unconfined,
}

/// The additions for a long-running command, or for a tool call in an environment; see
/// [`super::enclosed`]. The workspace is at the host's path; for a long-running command all of it
/// is writable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Living {
    pub(crate) network: Network,
    /// Files and directories of the host, at the same path.
    pub(crate) writable: Vec<PathBuf>,
    /// The read-only paths that a repository named: see [`super::root`].
    pub(crate) borrowed: Vec<PathBuf>,
    /// The targets, without links, of other paths that lead through a link: see [`crate::way`].
    pub(crate) leads: Box<[(PathBuf, PathBuf)]>,
    /// Sockets of the host, at the same path; missing ones are skipped. Used only with the host's
    /// network.
    pub(crate) sockets: Vec<PathBuf>,
    /// The server's socket, to which the mesh proxy leads; see [`super::door`]. With `None` the
    /// sandbox cannot reach the server and has only forwarded ports.
    pub(crate) door: Option<PathBuf>,
    /// Outgoing ports, if the network is the mesh; see [`super::outward`].
    pub(crate) reaches: Vec<Reach>,
    /// Whether it is a tool call, which ends with its call: see [`crate::called`]. Then its order
    /// names the writable part of the workspace, and it has the limits of any call.
    pub(crate) called: bool,
}

impl Living {
    /// The path on the host that is shown at this path.
    pub(crate) fn on_the_host<'a>(&'a self, path: &'a Path) -> &'a Path {
        let found = self.leads.iter().find(|(named, _)| named == path);
        found.map_or(path, |(_, real)| real)
    }
}

impl Kind {
    pub(crate) fn living(&self) -> Option<&Living> {
        match self {
            Self::Namespace { living, .. } => living.as_ref(),
            Self::Unconfined => None,
        }
    }

    /// Whether connections are forwarded between its network and the host's, as with the mesh
    /// network.
    pub(crate) fn has_way(&self) -> bool {
        self.network() == Network::Mesh
    }

    /// The server's socket, if the network is the mesh and the sandbox may reach the server.
    pub(crate) fn door(&self) -> Option<&Path> {
        let living = self.living().filter(|living| living.network == Network::Mesh)?;
        living.door.as_deref()
    }

    /// The outgoing ports.
    pub(crate) fn reaches(&self) -> &[Reach] {
        let living = self.living().filter(|living| living.network == Network::Mesh);
        living.map(|living| living.reaches.as_slice()).unwrap_or_default()
    }

    /// The same, with another target for the proxy, if there is one, and for each outgoing port.
    #[must_use]
    pub(crate) fn leading_to(mut self, socket: &Path, ports: &[u16]) -> Self {
        if let Self::Namespace { living: Some(living), .. } = &mut self {
            living.door = living.door.is_some().then(|| socket.to_owned());
            for (reach, port) in living.reaches.iter_mut().zip(ports) {
                reach.leads_to = *port;
            }
        }
        self
    }

    pub(crate) fn network(&self) -> Network {
        self.living().map_or(Network::None, |living| living.network)
    }
}

/// The program that is started at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// `argv[0]`, searched inside.
    Command,
    /// The probe: the init's own program, which need not be visible inside.
    Probe,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) pids: u32,
    pub(crate) tmp_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) open_files: u32,
}

/// One line on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command's program runs. A later error is not an error of the set-up.
    Started,
    Exited(i32),
    Signaled(i32),
    /// The request needs something that is missing or not allowed.
    BadConfig(String),
    /// The machine refused one step of the set-up.
    Refused {
        step: Step,
        detail: String,
        errno: i32,
    },
}

/// The steps of the set-up that a machine can refuse for reasons that a person can fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Handshake,
    Unshare,
    MapUser,
    Mount,
    MountAttributes,
    MountProc,
    PivotRoot,
    Network,
    Limits,
    Privileges,
    Filter,
    Start,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handshake => "reading the order",
            Self::Unshare => "creating the namespaces",
            Self::MapUser => "mapping the user",
            Self::Mount => "building the root",
            Self::MountAttributes => "making a mount read-only",
            Self::MountProc => "mounting a fresh /proc",
            Self::PivotRoot => "changing the root",
            Self::Network => "setting up the loopback",
            Self::Limits => "setting the limits",
            Self::Privileges => "dropping privileges",
            Self::Filter => "installing the system call filter",
            Self::Start => "starting the command",
        })
    }
}

/// Why the init could not start the command.
#[derive(Debug)]
pub(crate) enum Stop {
    BadConfig(String),
    Refused { step: Step, detail: String, errno: i32 },
}

impl Stop {
    pub(crate) fn into_report(self) -> Report {
        match self {
            Self::BadConfig(message) => Report::BadConfig(message),
            Self::Refused { step, detail, errno } => Report::Refused { step, detail, errno },
        }
    }
}

/// Names the step of the set-up in an operating system error.
pub(crate) trait Doing<T> {
    /// `detail` names the object of the step; it may be empty.
    fn doing(self, step: Step, detail: impl fmt::Display) -> Result<T, Stop>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, step: Step, detail: impl fmt::Display) -> Result<T, Stop> {
        self.map_err(|err| {
            let err: std::io::Error = err.into();
            let errno = err.raw_os_error().unwrap_or(0);
            Stop::Refused { step, detail: detail.to_string(), errno }
        })
    }
}
