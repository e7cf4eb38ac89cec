//! The port to sandboxes: run one command with a known level of isolation.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Fut;
use crate::attest::Attested;

/// How strongly a command is kept apart from the host. Ordered: weaker first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// No isolation at all. Only when an agent asks for it by name.
    None,
    /// Linux namespaces (user, mount, pid, net, ipc, uts), seccomp, rlimits.
    Namespace,
    /// A hardened container.
    Docker,
    /// A virtual machine with a kernel of its own, and a namespace sandbox inside and around it.
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

/// Bounds of one command. Zero never means "no limit".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SandboxLimits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u32,
    pub tmp_bytes: u64,
    /// Largest file that the command may write.
    pub file_bytes: u64,
    pub open_files: u32,
    /// Kept bytes of stdout and of stderr, each; the rest is read, counted and dropped.
    pub output_bytes: usize,
}

impl Default for SandboxLimits {
    /// The figures of requirement A5, plus bounds that it left open.
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

/// The home of commands in every sandbox that has a root of its own.
pub const HOME: &str = "/tmp";

/// A file that a command finds in its [`HOME`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeFile {
    /// Relative to the home, without `..`.
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
    /// Program and arguments, as seen inside. `run_shell` gives `sh -lc <command>`.
    pub argv: Vec<String>,
    /// The workspace on the host, mounted at `/workspace` (in `none`: used as it is).
    pub workspace: PathBuf,
    /// Directory beneath the workspace, relative, that may be written; `.` is all of it.
    /// `None`: the workspace is read-only. It exists when the driver is called.
    pub writable: Option<PathBuf>,
    /// Where the command starts, relative to the workspace.
    pub cwd: PathBuf,
    /// The whole environment: nothing of the daemon's own environment is passed on.
    pub env: Vec<(String, String)>,
    /// Files in [`HOME`], the command's own to read and change; their bytes count among those of
    /// `/tmp`. `none` has no home of its own and refuses them.
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
    /// The hard timeout passed; the whole tree was killed.
    TimedOut,
}

/// What the command wrote to one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Lossy UTF-8, cut at a character boundary to at most the limit's bytes.
    pub text: String,
    /// Bytes that the command wrote in all.
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
    /// One line a person can use to see what was run, without the command itself
    /// (`docker run --rm --network none … '<redacted-command>'`); `None` if there is no such line.
    pub shown_as: Option<String>,
}

/// Why the command did not run. It has not run at all when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The level cannot be given on this machine now.
    #[error("{message}")]
    Unavailable { code: String, message: String, reason: String, remedy: String },
    #[error("{message}")]
    BadConfig { code: String, message: String },
    #[error("running a command in the {level} sandbox: {message}")]
    Failed { level: &'static str, message: String },
}

impl SandboxError {
    /// What is wrong, with what to do about it where that is known.
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

/// Which of a command's output streams.
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

/// Takes output while the command runs: raw bytes, in the order of each stream, in pieces of at
/// most 64 KiB that may end within a character.
///
/// It is called where output is read, so it must not block; it gets everything, also what the
/// result will no longer keep. The last piece has come when the call returns.
pub type OutputSink = Arc<dyn Fn(OutputStream, &[u8]) + Send + Sync>;

/// One driver.
pub trait Sandbox: Send + Sync + fmt::Debug {
    fn level(&self) -> SandboxLevel;

    /// Runs one command to its end.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]; the command has not run then. A non-zero exit is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the whole tree, double-forked children included.
    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>>;

    /// As [`run`](Self::run), with the output also handed to `sink` as it comes.
    ///
    /// A driver that cannot hands over what was kept when the command has ended.
    ///
    /// # Errors
    ///
    /// As `run`.
    ///
    /// # Cancel safety
    ///
    /// As `run`; the sink is not called any more once the future is dropped.
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

    /// Whether a command could run now, and if not, why not.
    ///
    /// # Errors
    ///
    /// What `run` would answer.
    fn check(&self) -> Fut<'_, Result<(), SandboxError>>;

    /// What a probe measured inside this sandbox: measured once, and again when the
    /// configuration or the kernel is another one. `None`: this driver is not measured.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Unavailable`] with the failed checks when less was found than the level
    /// promises; `run` answers the same then, and nothing runs.
    fn attest(&self) -> Fut<'_, Result<Option<Arc<Attested>>, SandboxError>> {
        Box::pin(async { Ok(None) })
    }
}
