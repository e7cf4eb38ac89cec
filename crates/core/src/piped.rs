//! The port to long-lived children that speak over pipes, such as MCP servers.
//!
//! [`crate::sandbox::Sandbox`] runs one command to its end and collects what it wrote. A server
//! lives for hours and is talked to meanwhile, so it gets pipes instead, and an owner: the
//! [`Tree`], whose drop ends every process of it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Fut;
use crate::attest::Attested;
use crate::sandbox::{Exit, SandboxError, SandboxLevel, SandboxLimits};

/// What to start, and how far apart from the host.
#[derive(Clone, Debug)]
pub struct PipedRequest {
    /// Never answered with a weaker one.
    pub level: SandboxLevel,
    /// Program and arguments, as seen inside.
    pub argv: Vec<String>,
    /// A directory on the host, mounted at `/workspace` (in `none`: used as it is).
    pub workspace: PathBuf,
    /// Directory beneath the workspace, relative, that may be written. `None`: none of it.
    pub writable: Option<PathBuf>,
    /// Where the program starts, relative to the workspace.
    pub cwd: PathBuf,
    /// Further directories of the host, shown read-only at the same path.
    pub read_only: Vec<PathBuf>,
    /// The whole environment: nothing of the daemon's own environment is passed on.
    pub env: Vec<(String, String)>,
    /// `output_bytes` has no meaning here: whoever reads the pipes bounds what is read.
    pub limits: SandboxLimits,
}

/// A child that runs. Our ends of the pipes do not block (`O_NONBLOCK`) and are not inherited.
#[derive(Debug)]
pub struct Piped {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    /// To be read all the time: a child that fills it waits.
    pub stderr: OwnedFd,
    pub tree: Box<dyn Tree>,
    /// What its sandbox was measured to give; `None` at a level that is not measured.
    pub attested: Option<Arc<Attested>>,
}

/// The child and everything it started. Dropping it kills them all, double-forked ones included;
/// so does the end of this process, however it comes.
pub trait Tree: Send + Sync + fmt::Debug {
    /// Waits until the child has ended by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it may be called again.
    fn ended(&mut self) -> Fut<'_, Exit>;

    /// Kills the tree and waits until it is gone.
    fn kill(self: Box<Self>) -> Fut<'static, ()>;
}

/// Starts children with pipes.
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Answers once the program runs.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]; nothing runs then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills what was started.
    fn launch(&self, request: PipedRequest) -> Fut<'_, Result<Piped, SandboxError>>;
}
