//! The port to sandboxes: run one command with a known level of isolation.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Fut;
use crate::attest::Attested;

/// How strongly a command is isolated from the host, ordered from weak to strong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// No isolation. Used only if an agent requests it explicitly.
    None,
    /// Linux namespaces (user, mount, pid, net, ipc, uts), seccomp, rlimits.
    Namespace,
    /// A hardened container.
    Docker,
    /// A virtual machine with its own kernel, and with a namespace sandbox inside and around it.
    Microvm,
}

impl SandboxLevel {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Namespace => "namespace",
            Self::Docker => "docker",
            Self::Microvm => "microvm",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "namespace" => Some(Self::Namespace),
            "docker" => Some(Self::Docker),
            "microvm" => Some(Self::Microvm),
            _ => None,
        }
    }
}

/// Limits of one command. Zero never means "no limit".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SandboxLimits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u32,
    pub tmp_bytes: u64,
    /// Largest file that the command may write.
    pub file_bytes: u64,
    pub open_files: u32,
    /// Maximum number of bytes of stdout and of stderr that are kept, each. Further output is read,
    /// counted and dropped.
    pub output_bytes: usize,
}

impl Default for SandboxLimits {
    /// Returns the figures of requirement A5, and limits that it does not specify.
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            cpus: 0.5,
            pids: 128,
            tmp_bytes: 64 << 20,
            file_bytes: 1 << 30,
            open_files: 1024,
            output_bytes: 100_000,
        }
    }
}

/// The home directory of commands in every sandbox with its own root.
pub const HOME: &str = "/tmp";

/// A file in a command's [`HOME`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeFile {
    /// Path relative to the home, without `..`.
    pub path: PathBuf,
    pub content: Vec<u8>,
}

impl fmt::Debug for HomeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HomeFile({}, {} bytes)", self.path.display(), self.content.len())
    }
}

#[derive(Clone, Debug)]
pub struct SandboxRequest {
    /// Program and arguments as seen inside. `run_shell` passes `sh -lc <command>`.
    pub argv: Vec<String>,
    /// The workspace on the host, mounted at `/workspace` (with `none`: used directly).
    pub workspace: PathBuf,
    /// A writable directory, relative to the workspace; `.` makes all of it writable. `None`: the
    /// workspace is read-only. The directory exists when the driver is called.
    pub writable: Option<PathBuf>,
    /// The working directory, relative to the workspace.
    pub cwd: PathBuf,
    /// The whole environment. Nothing is inherited from the daemon.
    pub env: Vec<(String, String)>,
    /// Files in [`HOME`] that the command may read and change. Their bytes count against the limit
    /// of `/tmp`. `none` has no home directory and refuses them.
    pub home: Vec<HomeFile>,
    pub stdin: Vec<u8>,
    pub timeout: Duration,
    pub limits: SandboxLimits,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The time limit passed, and all processes were killed.
    TimedOut,
}

/// The output of the command on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Lossy UTF-8, cut at a character boundary to at most the limit.
    pub text: String,
    /// Total bytes that the command wrote.
    pub total_bytes: u64,
    pub truncated: bool,
}

#[derive(Clone, Debug)]
pub struct SandboxResult {
    pub exit: Exit,
    pub stdout: Captured,
    pub stderr: Captured,
    pub elapsed: Duration,
    pub level: SandboxLevel,
    /// A command line for people that shows how the sandbox was run, without the command itself
    /// (`docker run --rm --network none … '<redacted-command>'`); `None` if there is no such line.
    pub shown_as: Option<String>,
}

/// Why the command did not run. When one of these is returned, nothing was run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// This machine cannot provide the level now.
    #[error("{message}")]
    Unavailable { code: String, message: String, reason: String, remedy: String },
    #[error("{message}")]
    BadConfig { code: String, message: String },
    #[error("running a command in the {level} sandbox: {message}")]
    Failed { level: &'static str, message: String },
}

impl SandboxError {
    /// Returns the error, with the remedy if it is known.
    pub fn with_remedy(&self) -> String {
        match self {
            Self::Unavailable { message, remedy, .. } if !remedy.is_empty() => {
                format!("{message}; to do: {remedy}")
            }
            Self::Unavailable { .. } | Self::BadConfig { .. } | Self::Failed { .. } => {
                self.to_string()
            }
        }
    }
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Receives output while the command runs: raw bytes, in the order of each stream, in pieces of at
/// most 64 KiB that may end within a character.
///
/// It is called where output is read, so it must not block. It gets all output, also what the
/// result does not keep. The last piece has been passed when the run returns.
pub type OutputSink = Arc<dyn Fn(OutputStream, &[u8]) + Send + Sync>;

/// A sandbox driver.
pub trait Sandbox: Send + Sync + fmt::Debug {
    fn level(&self) -> SandboxLevel;

    /// Runs one command to its end.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]; then the command has not run. A non-zero exit is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills all processes, including double-forked children.
    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>>;

    /// Runs a command as [`run`](Self::run) does, and passes its output to `sink` as it arrives.
    ///
    /// A driver without streaming passes the kept output after the command has ended.
    ///
    /// # Errors
    ///
    /// The same as `run`.
    ///
    /// # Cancel safety
    ///
    /// The same as `run`. The sink is not called after the future is dropped.
    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(async move {
            let result = self.run(request).await?;
            for (stream, captured) in
                [(OutputStream::Stdout, &result.stdout), (OutputStream::Stderr, &result.stderr)]
            {
                for piece in captured.text.as_bytes().chunks(64 << 10) {
                    sink(stream, piece);
                }
            }
            Ok(result)
        })
    }

    /// Checks whether a command could run now.
    ///
    /// # Errors
    ///
    /// The error that `run` would return.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>>;

    /// Returns the measured isolation of this sandbox. It is measured once, and again after the
    /// configuration or the kernel has changed. `None`: this driver is not measured.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Unavailable`] with the failed checks if the measured isolation is weaker
    /// than the level promises. `run` then returns the same error and runs nothing.
    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { Ok(None) })
    }
}
