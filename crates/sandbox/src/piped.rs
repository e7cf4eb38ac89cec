//! Starts long-running children with pipes, at the levels `namespace` and `none`.
//!
//! The init is the same as for single commands ([`crate::init`]), so the same rules apply: what the
//! child may see and do, and that no process of its tree outlives it, its owner or the daemon. Only
//! the standard streams differ, which are pipes that stay open, and the time, which is not limited
//! here. `docker` is refused, because a container's life would depend on the engine's, and its
//! pipes on an HTTP connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::piped::{Launcher, Piped, PipedRequest, Tree};
use overmind_core::sandbox::{
    Captured, Exit, Sandbox as _, SandboxError, SandboxLevel, SandboxRequest,
};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::Child;

use crate::init::spec::{Ground, Kind, Program, Report, Spec};
use crate::launch::{self, Ended, Outcome};
use crate::namespace::{Namespace, Options, into_result, to_spec};
use crate::{diagnosis, hidden, request};

/// How long the set-up may take until the program runs. A healthy machine needs milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a killed tree may take to end.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Reports of the init are short; longer data is not from it.
const MAX_REPORT_BYTES: usize = 64 << 10;
/// The kept bytes of the init's error output if the program did not start.
const LAST_WORDS_BYTES: usize = 4 << 10;

/// Starts children with pipes; at the level `namespace` in a sandbox that was measured first.
#[derive(Debug)]
pub struct PipedLauncher {
    options: Options,
    /// The driver that measures the sandbox, for each list of shown directories. There are as many
    /// as servers with lists of their own.
    measured: Mutex<HashMap<Vec<PathBuf>, Arc<Namespace>>>,
}

impl PipedLauncher {
    pub fn new(options: Options) -> Self {
        Self { options, measured: Mutex::default() }
    }

    /// The driver for the exact sandbox that a child with these directories gets.
    fn measuring(&self, read_only: &[PathBuf]) -> Arc<Namespace> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = measured.get(read_only) {
            return Arc::clone(driver);
        }
        let options = Options { read_only: read_only.to_vec(), ..self.options.clone() };
        let driver = Arc::new(Namespace::new(options));
        measured.insert(read_only.to_vec(), Arc::clone(&driver));
        driver
    }

    async fn start(&self, piped: PipedRequest) -> Result<Piped, SandboxError> {
        let level = piped.level;
        let mut attested = None;
        let kind = match level {
            SandboxLevel::Namespace => {
                let read_only = self.options.read_only.iter().chain(&piped.read_only);
                let read_only: Vec<PathBuf> = read_only.cloned().collect();
                attested = self.measuring(&read_only).attest().await?;
                let devices = self.options.devices.clone();
                Kind::Namespace { read_only, devices, program: Program::Command, living: None }
            }
            SandboxLevel::None => Kind::Unconfined,
            SandboxLevel::Docker | SandboxLevel::Microvm => {
                return Err(request::bad_config(
                    "a child with pipes runs in no container and no virtual machine: use \
                     namespace, or none",
                ));
            }
        };
        let PipedRequest { argv, workspace, writable, cwd, env, limits, .. } = piped;
        let command = SandboxRequest {
            argv,
            workspace,
            writable,
            cwd,
            env,
            home: Vec::new(),
            stdin: Vec::new(),
            timeout: START_TIMEOUT,
            limits,
        };
        request::check(&command)?;
        let mut spec = to_spec(&command, kind);
        spec.masks = hidden::masks(self.options.hidden(), &[], &spec.kind, &spec.workspace)?;
        spec.secrets = hidden::secrets(self.options.hidden(), &spec.kind, &spec.workspace)?;
        let program = &self.options.init_program;
        let (mut tree, stdin, stdout, stderr) =
            self.spawn(&spec).map_err(|err| diagnosis::init_not_started(program, &err))?;
        let in_time = tokio::time::timeout(START_TIMEOUT, tree.started()).await;
        match in_time {
            Ok(true) => Ok(Piped { stdin, stdout, stderr, tree: Box::new(tree), attested }),
            Ok(false) | Err(_) => {
                let ended = launch::judge(&tree.reports, in_time.is_ok());
                Box::new(tree).kill().await;
                Err(not_started(ended, &stderr, level))
            }
        }
    }

    fn spawn(&self, spec: &Spec) -> io::Result<(InitTree, OwnedFd, OwnedFd, OwnedFd)> {
        let order = launch::sealed(&serde_json::to_vec(spec)?)?;
        let (their_stdin, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        // This affects only our ends: each end of a pipe has its own flags.
        for end in [&stdin, &stdout, &stderr] {
            let flags = rustix::fs::fcntl_getfl(end)?;
            rustix::fs::fcntl_setfl(end, flags | OFlags::NONBLOCK)?;
        }
        let Options { init_program, run_as, .. } = &self.options;
        let ground = Ground::of(spec);
        let streams = (their_stdout, their_stderr);
        let (child, ours) = launch::spawn(init_program, *run_as, &ground, &[], None, streams)?;
        // If the init has already ended, waiting for its report shows that.
        let _ = launch::send(&ours, &[order.as_fd(), their_stdin.as_fd()]);
        ours.set_nonblocking(true)?;
        let control = UnixStream::from_std(ours)?;
        Ok((InitTree { control, child, reports: Vec::new() }, stdin, stdout, stderr))
    }
}

impl Launcher for PipedLauncher {
    fn launch(&self, request: PipedRequest) -> Fut<'_, Result<Piped, SandboxError>> {
        Box::pin(self.start(request))
    }
}

fn not_started(ended: Ended, stderr: &OwnedFd, level: SandboxLevel) -> SandboxError {
    let mut words = vec![0; LAST_WORDS_BYTES];
    // Our end does not block; without data there is no message.
    let count = rustix::io::read(stderr, &mut words).unwrap_or(0);
    let text = String::from_utf8_lossy(&words[..count]).into_owned();
    let stderr = Captured { text, total_bytes: count as u64, truncated: false };
    let (stdout, elapsed) = (Captured::default(), Duration::ZERO);
    match into_result(Outcome { ended, stdout, stderr, elapsed }, level) {
        Err(err) => err,
        Ok(result) => SandboxError::Failed {
            level: level.as_str(),
            message: format!("the program ended while it was started: {:?}", result.exit),
        },
    }
}

/// The init and all processes below it. When this end of the socket closes, by a drop or by the end
/// of this process, the init ends with the whole tree.
#[derive(Debug)]
struct InitTree {
    control: UnixStream,
    child: Child,
    reports: Vec<u8>,
}

impl InitTree {
    /// Returns whether the program runs; false if the init has ended instead. Cancel safe.
    async fn started(&mut self) -> bool {
        loop {
            let lines = self.reports.split(|byte| *byte == b'\n');
            let said = |line: &[u8]| matches!(serde_json::from_slice(line), Ok(Report::Started));
            if lines.into_iter().any(said) {
                return true;
            }
            if !self.more().await {
                return false;
            }
        }
    }

    /// Reads one piece of the reports; returns false at their end. Cancel safe.
    async fn more(&mut self) -> bool {
        if self.reports.len() > MAX_REPORT_BYTES {
            return false;
        }
        matches!(self.control.read_buf(&mut self.reports).await, Ok(count) if count > 0)
    }
}

impl Tree for InitTree {
    fn ended(&mut self) -> Fut<'_, Exit> {
        Box::pin(async {
            while self.more().await {}
            // The end of the child is what matters, because then no process of the tree is left.
            let _ = self.child.wait().await;
            match launch::judge(&self.reports, true) {
                Ended::Exit(exit) => exit,
                Ended::BadConfig(_) | Ended::Refused { .. } | Ended::Silent => {
                    Exit::Signal(libc::SIGKILL)
                }
            }
        })
    }

    fn kill(self: Box<Self>) -> Fut<'static, ()> {
        let Self { control, mut child, reports: _ } = *self;
        Box::pin(async move {
            drop(control);
            if tokio::time::timeout(KILL_GRACE, child.wait()).await.is_err() {
                tracing::warn!("a killed tree has not ended within the grace period");
            }
        })
    }
}
