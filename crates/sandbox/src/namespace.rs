//! The `namespace` driver: Linux namespaces, a root of its own, no privileges, a filter for
//! system calls. Needs no daemon, no image and no root.
//!
//! [`Namespace::new`] is the entry point. What a command gets:
//!
//! * user, mount, process, network, IPC, host name and cgroup namespaces of its own; inside it
//!   is the plain user 1000, outside its files belong to the caller (or [`Options::run_as`]);
//! * a read-only root without homes, sockets or secrets, `/tmp` in memory, `/workspace`;
//! * a loopback and no other network;
//! * no capability, no-new-privs, and an allow-list of system calls;
//! * bounds on files, descriptors, processes and memory.
//!
//! Limits, named: **memory** is bounded per process, not for the tree (that takes a cgroup), by
//! private writable pages; the tree is bounded by that times the number of processes. **CPU
//! share** ([`SandboxLimits::cpus`]) is not enforced. **Processes** are bounded exactly from
//! Linux 6.14 on; before, by RLIMIT_NPROC, from which a caller that is root is exempt (there the
//! driver warns once; [`Options::run_as`] avoids it). **Disk**: the size of each file is bounded,
//! their sum in the writable directory is not. A unix socket that lies in the workspace
//! can be connected to. There are no pseudo-terminals. 32-bit programs are killed.
//!
//! A machine that refuses a step gets [`SandboxError::Unavailable`] with the reason and what to
//! do about it, and never a weaker sandbox.
//!
//! [`SandboxLimits::cpus`]: overmind_core::sandbox::SandboxLimits::cpus

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::sandbox::{Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult};

use crate::diagnosis::{self, Machine};
use crate::init::spec::{Kind, Limits, Spec};
use crate::launch::{self, Ended, Launch, Outcome, RunAs};
use crate::{kernel, request};

/// How the `namespace` and the `none` driver start their init, and what they show.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that calls [`crate::init::main_if_requested`] first thing in its `main`.
    ///
    /// The default is the running program itself, which also works after its file was replaced.
    pub init_program: PathBuf,
    /// Further directories of the host that are shown read-only at the same path, for example
    /// a compiler that lives in a home. Absolute, without links; all of it is readable inside.
    pub read_only: Vec<PathBuf>,
    /// For a daemon that is root: whom commands run as outside. It must be able to enter the
    /// workspace, and to write where commands shall write.
    pub run_as: Option<RunAs>,
}

impl Default for Options {
    fn default() -> Self {
        Self { init_program: PathBuf::from("/proc/self/exe"), read_only: Vec::new(), run_as: None }
    }
}

/// The driver. Cheap; holds nothing but its options.
#[derive(Debug)]
pub struct Namespace {
    options: Options,
    warned: AtomicBool,
}

/// How long a probe may take. A healthy machine needs some milliseconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

impl Namespace {
    pub fn new(options: Options) -> Self {
        Self { options, warned: AtomicBool::new(false) }
    }

    async fn run_request(&self, request: SandboxRequest) -> Result<SandboxResult, SandboxError> {
        request::check(&request)?;
        self.warn_if_processes_are_unbounded();
        let read_only = self.options.read_only.clone();
        let spec = to_spec(&request, Kind::Namespace { read_only });
        let outcome = launch::run(Launch {
            program: &self.options.init_program,
            run_as: self.options.run_as,
            spec: &spec,
            stdin: &request.stdin,
            output_bytes: request.limits.output_bytes,
            timeout: request.timeout,
        })
        .await
        .map_err(|err| self.not_launched(&err))?;
        into_result(outcome, SandboxLevel::Namespace)
    }

    async fn probe(&self) -> Result<(), SandboxError> {
        let spec = Spec {
            kind: Kind::Probe { read_only: self.options.read_only.clone() },
            argv: Vec::new(),
            env: Vec::new(),
            // Any directory that is certainly there: nothing runs in it.
            workspace: PathBuf::from("/usr"),
            writable: None,
            cwd: PathBuf::new(),
            limits: Limits {
                memory_bytes: 64 << 20,
                pids: 16,
                tmp_bytes: 1 << 20,
                file_bytes: 1 << 20,
                open_files: 64,
            },
        };
        let outcome = launch::run(Launch {
            program: &self.options.init_program,
            run_as: self.options.run_as,
            spec: &spec,
            stdin: &[],
            output_bytes: 4096,
            timeout: PROBE_TIMEOUT,
        })
        .await
        .map_err(|err| self.not_launched(&err))?;
        match outcome.ended {
            Ended::Ready => Ok(()),
            Ended::Exit(_) | Ended::BadConfig(_) | Ended::Refused { .. } | Ended::Silent => {
                into_result(outcome, SandboxLevel::Namespace).and_then(|result| {
                    Err(SandboxError::Failed {
                        level: SandboxLevel::Namespace.as_str(),
                        message: format!("the probe ended with {:?}", result.exit),
                    })
                })
            }
        }
    }

    fn not_launched(&self, err: &io::Error) -> SandboxError {
        diagnosis::init_not_started(&self.options.init_program, err)
    }

    fn warn_if_processes_are_unbounded(&self) {
        let as_root = match self.options.run_as {
            Some(RunAs { uid, .. }) => uid == 0,
            None => rustix::process::geteuid().is_root(),
        };
        if as_root
            && !kernel::has_namespaced_pid_max()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "the number of processes in a sandbox is not bounded: the daemon is root and \
                 the kernel is older than 6.14; run the daemon as a plain user, or set run_as"
            );
        }
    }
}

impl Sandbox for Namespace {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Namespace
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(self.run_request(request))
    }

    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(self.probe())
    }
}

pub(crate) fn to_spec(request: &SandboxRequest, kind: Kind) -> Spec {
    Spec {
        kind,
        argv: request.argv.clone(),
        env: request.env.clone(),
        workspace: request.workspace.clone(),
        writable: request.writable.clone(),
        cwd: request.cwd.clone(),
        limits: Limits {
            memory_bytes: request.limits.memory_bytes,
            pids: request.limits.pids,
            tmp_bytes: request.limits.tmp_bytes,
            file_bytes: request.limits.file_bytes,
            open_files: request.limits.open_files,
        },
    }
}

/// The answer of the port for what the init answered.
pub(crate) fn into_result(
    outcome: Outcome,
    level: SandboxLevel,
) -> Result<SandboxResult, SandboxError> {
    let failed = |message| SandboxError::Failed { level: level.as_str(), message };
    match outcome.ended {
        Ended::Exit(exit) => Ok(SandboxResult {
            exit,
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            elapsed: outcome.elapsed,
            level,
            shown_as: None,
        }),
        Ended::BadConfig(message) => Err(request::bad_config(message)),
        Ended::Refused { step, detail, errno } => {
            let machine = Machine::read();
            Err(diagnosis::refused(step, &detail, errno, level, &machine))
        }
        Ended::Ready => Err(failed("the init answered a probe that nobody asked for".to_owned())),
        Ended::Silent => {
            // A panic of the init, or the loader's complaint about its program.
            let words = outcome.stderr.text.trim();
            let words = if words.is_empty() { "without a word" } else { words };
            Err(failed(format!("the init ended before the command ran: {words}")))
        }
    }
}
