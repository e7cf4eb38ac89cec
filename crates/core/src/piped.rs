//! The port to long-running child processes with pipes, such as MCP servers.
//!
//! [`crate::sandbox::Sandbox`] runs one command to its end and collects its output. A server runs
//! for hours and gets requests meanwhile, so it has pipes and an owner: the [`Tree`]. Dropping it
//! ends all of its processes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Fut;
use crate::attest::Attested;
use crate::sandbox::{Exit, SandboxError, SandboxLevel, SandboxLimits};

/// The program to start, and its isolation.
#[derive(Clone, Debug)]
pub struct PipedRequest {
    /// The sandbox level. The program never runs with a weaker one.
    pub level: SandboxLevel,
    /// Program and arguments as seen inside.
    pub argv: Vec<String>,
    /// A directory on the host, mounted at `/workspace` (with `none`: used directly).
    pub workspace: PathBuf,
    /// A writable directory, relative to the workspace. `None`: nothing is writable.
    pub writable: Option<PathBuf>,
    /// The working directory, relative to the workspace.
    pub cwd: PathBuf,
    /// Further directories of the host, shown read-only at the same path.
    pub read_only: Vec<PathBuf>,
    /// The whole environment. Nothing is inherited from the daemon.
    pub env: Vec<(String, String)>,
    /// The limits. `output_bytes` is ignored, because the reader of the pipes limits its input.
    pub limits: SandboxLimits,
}

/// A running child. The server's ends of the pipes do not block (`O_NONBLOCK`) and are not
/// inherited.
#[derive(Debug)]
pub struct Piped {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    /// Must be read all the time, because a child that fills it waits.
    pub stderr: OwnedFd,
    pub tree: Box<dyn Tree>,
    /// The measured isolation of its sandbox; `None` at a level that is not measured.
    pub attested: Option<Arc<Attested>>,
}

/// The child and all its descendants. Dropping it kills them all, including double-forked ones; so
/// does the end of this process, for any reason.
pub trait Tree: Send + Sync + fmt::Debug {
    /// Waits until the child has ended by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it may be called again.
    fn ended(&mut self) -> Fut<'_, Exit>;

    /// Kills all processes, and waits until they have ended.
    fn kill(self: Box<Self>) -> Fut<'static, ()>;
}

/// Starts children with pipes.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Starts a program. Returns when it runs.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]; then nothing runs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the program.
    fn launch(&self, request: PipedRequest) -> Fut<'_, Result<Piped, SandboxError>>;
}
