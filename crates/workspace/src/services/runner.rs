//! Keeping a process: the port, and an implementation that needs nothing but this machine.
//!
//! [`Runner`] is what a lease asks for; a supervisor of the product's own can stand behind it.
//! [`OwnProcesses`] keeps processes from within the daemon: each is a group of its own that
//! outlives the daemon, is found again by what was written down, restarted with a growing pause,
//! and ended with all that it started.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::time::Clock;
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::cgroup::Cgroups;
use super::command::wrapped;
use super::confine::{Confined, Encloses, Launch, launch};
use super::tree::{Belongs, PROCESS_MARK, boot_id, stat};
use crate::config::{Restart, RestartPolicy};

/// What to keep running.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessSpec {
    /// Unique among all processes that this machine keeps: home, session and service.
    pub id: String,
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// Output is appended to this file.
    pub log: PathBuf,
    pub restart: Restart,
    /// The sandbox that each of its starts is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined: Option<Confined>,
}

/// A process that was started: enough to find it again in another life of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessHandle {
    pub id: String,
    pub pid: u32,
    /// Clock ticks since the machine's start.
    pub started: u64,
    /// Which start of the machine.
    pub boot: String,
    pub cgroup: Option<PathBuf>,
    /// It stands for a program in a sandbox below it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enclosed: bool,
}

/// How a kept process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running {
        pid: u32,
    },
    /// It ended and will be started again.
    Restarting {
        restarts: u32,
    },
    /// It ended and stays so.
    Ended {
        status: String,
    },
    /// Nobody keeps it.
    Unknown,
}

/// Why a process could not be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("starting `{what}` in {}", cwd.display())]
    Start {
        what: String,
        cwd: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("opening the log {}", path.display())]
    Log {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("ending {id}: the processes {pids:?} are still there")]
    Survivors { id: String, pids: Vec<u32> },
    #[error("`{what}` is not started: {why}")]
    Sandbox { what: String, why: String },
    /// For implementations beside ours.
    #[error("{0}")]
    Other(String),
}

/// Keeps processes. Dropping it ends none.
pub trait Runner: Send + Sync + fmt::Debug {
    /// Starts the process and keeps it as `spec.restart` says.
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<ProcessHandle, RunnerError>>;

    /// Keeps a process of an earlier life of the daemon; starts it anew when it has ended.
    fn adopt(
        &self,
        spec: ProcessSpec,
        handle: ProcessHandle,
    ) -> Fut<'_, Result<ProcessHandle, RunnerError>>;

    /// How the process with that id is.
    fn state(&self, id: &str) -> ProcessState;

    /// Ends the process and all that it started; also one that only `handle` or its id knows of.
    /// Ending what is gone is no error.
    fn stop<'a>(
        &'a self,
        id: &'a str,
        handle: Option<&'a ProcessHandle>,
        grace: Duration,
    ) -> Fut<'a, Result<(), RunnerError>>;
}

/// The largest log before it is turned.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// How often a running process's log is looked at.
const LOG_LOOK: Duration = Duration::from_secs(10);
/// A run of this length means that the process was well.
const HEALTHY: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Processes kept from within this process.
#[derive(Debug)]
pub struct OwnProcesses {
    kept: Mutex<BTreeMap<String, Arc<Kept>>>,
    tasks: TaskTracker,
    clock: Arc<dyn Clock>,
    cgroups: Cgroups,
    encloses: Encloses,
}

#[derive(Debug)]
struct Kept {
    spec: ProcessSpec,
    encloses: Encloses,
    inner: Mutex<Inner>,
    /// Woken to stop.
    stop: Notify,
}

#[derive(Debug)]
struct Inner {
    handle: ProcessHandle,
    state: ProcessState,
    stopping: bool,
}

/// What is waited for: a child of ours, or a process that was here before us.
enum Alive {
    Child(Child),
    Adopted(u32, u64),
}

impl OwnProcesses {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let cgroups = Cgroups::discover();
        let (kept, tasks) = (Mutex::default(), TaskTracker::new());
        Self { kept, tasks, clock, cgroups, encloses: Encloses::default() }
    }

    /// With what puts sandboxes around those that are to have one.
    #[must_use]
    pub fn enclosed_by(mut self, encloses: Encloses) -> Self {
        self.encloses = encloses;
        self
    }

    async fn spawn(&self, spec: &ProcessSpec) -> Result<(Child, ProcessHandle), RunnerError> {
        let cgroup = self.cgroups.make(&spec.id);
        let launch = how(spec, &self.encloses, cgroup.as_deref()).await?;
        spawn(spec, launch, cgroup)
    }

    fn keep(&self, spec: ProcessSpec, alive: Alive, handle: ProcessHandle) {
        let state = ProcessState::Running { pid: handle.pid };
        let kept = Arc::new(Kept {
            inner: Mutex::new(Inner { handle, state, stopping: false }),
            stop: Notify::new(),
            encloses: self.encloses.clone(),
            spec,
        });
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(kept.spec.id.clone(), Arc::clone(&kept));
        drop(all);
        let clock = Arc::clone(&self.clock);
        self.tasks.spawn(async move { kept.live(alive, &*clock).await });
    }

    fn find(&self, id: &str) -> Option<Arc<Kept>> {
        let all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).cloned()
    }
}

impl Drop for OwnProcesses {
    /// The processes live on; only nobody starts them again until somebody adopts them.
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        for kept in kept.values() {
            kept.inner.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
            kept.stop.notify_one();
        }
    }
}

/// What a start of it starts.
async fn how(
    spec: &ProcessSpec,
    encloses: &Encloses,
    cgroup: Option<&Path>,
) -> Result<Launch, RunnerError> {
    let bare = Launch::bare(&spec.argv, &spec.env, &spec.cwd);
    let launch = launch(encloses, spec.confined.as_ref(), bare, cgroup).await;
    launch.map_err(|why| RunnerError::Sandbox { what: spec.argv.join(" "), why })
}

fn spawn(
    spec: &ProcessSpec,
    launch: Launch,
    cgroup: Option<PathBuf>,
) -> Result<(Child, ProcessHandle), RunnerError> {
    let Launch { argv, env, cwd, user, enclosed } = launch;
    let cgroup = match (cgroup, user) {
        // Another user may not join it; then it would be looked for there and not found.
        (Some(directory), Some(_)) => {
            let _ = std::fs::remove_dir(directory);
            None
        }
        (cgroup, _) => cgroup,
    };
    turn_log(&spec.log);
    let log = open_log(&spec.log)?;
    let again =
        log.try_clone().map_err(|source| RunnerError::Log { path: spec.log.clone(), source })?;
    let what = spec.argv.join(" ");
    let start = |source| RunnerError::Start { what: what.clone(), cwd: spec.cwd.clone(), source };
    let argv = wrapped(&argv, cgroup.as_ref().filter(|_| !enclosed));
    let Some((program, arguments)) = argv.split_first() else {
        return Err(start(io::Error::other("it has no words")));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&env)
        .env(PROCESS_MARK, &spec.id)
        .current_dir(&cwd)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .process_group(0)
        .kill_on_drop(false);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    let child = command.spawn().map_err(start)?;
    let pid = child.id().ok_or_else(|| start(io::Error::other("it ended at once")))?;
    // The child was not waited for, so its entry is there even if it has ended already.
    let started = stat(pid).map_or(0, |stat| stat.started);
    let (id, boot) = (spec.id.clone(), boot_id());
    let handle = ProcessHandle { id, pid, started, boot, cgroup, enclosed };
    Ok((child, handle))
}

impl ProcessHandle {
    /// Whether this very process still runs.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id()
            && stat(self.pid).is_some_and(|stat| stat.started == self.started && !stat.zombie)
    }

    pub(crate) fn belongs(&self) -> Belongs {
        let same_boot = self.boot == boot_id();
        Belongs {
            leader: same_boot.then_some((self.pid, self.started)),
            mark: Some((PROCESS_MARK, self.id.clone())),
            cgroups: self.cgroup.iter().cloned().collect(),
            enclosed: self.enclosed,
        }
    }
}

impl Kept {
    async fn live(&self, mut alive: Alive, clock: &dyn Clock) {
        let mut restarts = 0_u32;
        let mut began = clock.now();
        loop {
            let status = self.ended(&mut alive, clock).await;
            if clock.now().since(began) >= HEALTHY {
                restarts = 0;
            }
            let again = match self.spec.restart.policy {
                RestartPolicy::Never => false,
                // How an adopted process ended is known to nobody: that counts as a failure.
                RestartPolicy::OnFailure => !matches!(status, Some(status) if status.success()),
                RestartPolicy::Always => true,
            };
            let shown = status.map_or_else(|| "unknown status".to_owned(), |s| s.to_string());
            {
                let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                if inner.stopping || !again || restarts >= self.spec.restart.max {
                    inner.state = ProcessState::Ended { status: shown };
                    return;
                }
                inner.state = ProcessState::Restarting { restarts };
            }
            let base = Duration::from_millis(self.spec.restart.backoff_ms);
            let pause = base.saturating_mul(1 << restarts.min(16)).min(MAX_BACKOFF);
            restarts += 1;
            tracing::info!(id = %self.spec.id, status = %shown, ?pause, "a service is restarted");
            tokio::select! {
                () = clock.sleep_until(clock.now().after(pause)) => {}
                () = self.stop.notified() => {}
            }
            let cgroup = {
                let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                inner.handle.cgroup.clone()
            };
            let launch = how(&self.spec, &self.encloses, cgroup.as_deref()).await;
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.stopping {
                inner.state = ProcessState::Ended { status: shown };
                return;
            }
            // Started under the lock: a stop comes before it and is seen, or after it and finds
            // the new process.
            match launch.and_then(|launch| spawn(&self.spec, launch, cgroup)) {
                Ok((child, handle)) => {
                    inner.state = ProcessState::Running { pid: handle.pid };
                    inner.handle = handle;
                    alive = Alive::Child(child);
                    began = clock.now();
                }
                Err(err) => {
                    tracing::warn!(id = %self.spec.id, %err, "a service is not started again");
                    inner.state = ProcessState::Ended { status: err.to_string() };
                    return;
                }
            }
        }
    }

    /// Waits for the end; `None` when only that is known.
    async fn ended(
        &self,
        alive: &mut Alive,
        clock: &dyn Clock,
    ) -> Option<std::process::ExitStatus> {
        loop {
            let look = clock.sleep_until(clock.now().after(LOG_LOOK));
            tokio::select! {
                status = wait(alive, clock) => return status,
                () = look => shorten_log(&self.spec.log),
            }
        }
    }
}

/// How often a process that is not a child of ours is looked at.
const LOOK: Duration = Duration::from_millis(200);

async fn wait(alive: &mut Alive, clock: &dyn Clock) -> Option<std::process::ExitStatus> {
    match alive {
        Alive::Child(child) => child.wait().await.ok(),
        Alive::Adopted(pid, started) => {
            while stat(*pid).is_some_and(|stat| stat.started == *started && !stat.zombie) {
                clock.sleep_until(clock.now().after(LOOK)).await;
            }
            None
        }
    }
}

impl Runner for OwnProcesses {
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<ProcessHandle, RunnerError>> {
        Box::pin(async move {
            let (child, handle) = self.spawn(&spec).await?;
            self.keep(spec, Alive::Child(child), handle.clone());
            Ok(handle)
        })
    }

    fn adopt(
        &self,
        spec: ProcessSpec,
        handle: ProcessHandle,
    ) -> Fut<'_, Result<ProcessHandle, RunnerError>> {
        Box::pin(async move {
            if handle.is_alive() {
                let alive = Alive::Adopted(handle.pid, handle.started);
                self.keep(spec, alive, handle.clone());
                return Ok(handle);
            }
            // It was restarted after its handle was written down, or its children live on: two
            // of one service on one port help nobody.
            let left = handle.belongs().end(Duration::from_secs(1), &*self.clock).await;
            if !left.is_empty() {
                let pids = left.into_iter().collect();
                return Err(RunnerError::Survivors { id: handle.id, pids });
            }
            let (child, handle) = self.spawn(&spec).await?;
            self.keep(spec, Alive::Child(child), handle.clone());
            Ok(handle)
        })
    }

    fn state(&self, id: &str) -> ProcessState {
        self.find(id).map_or(ProcessState::Unknown, |kept| {
            kept.inner.lock().unwrap_or_else(PoisonError::into_inner).state.clone()
        })
    }

    fn stop<'a>(
        &'a self,
        id: &'a str,
        handle: Option<&'a ProcessHandle>,
        grace: Duration,
    ) -> Fut<'a, Result<(), RunnerError>> {
        Box::pin(async move {
            let kept = self.find(id);
            let current = kept.as_ref().map(|kept| {
                let mut inner = kept.inner.lock().unwrap_or_else(PoisonError::into_inner);
                inner.stopping = true;
                kept.stop.notify_one();
                inner.handle.clone()
            });
            let mut belongs = match current.as_ref().or(handle) {
                Some(handle) => handle.belongs(),
                None => Belongs { mark: Some((PROCESS_MARK, id.to_owned())), ..Belongs::default() },
            };
            if let Some(directory) = self.cgroups.existing(id)
                && !belongs.cgroups.contains(&directory)
            {
                belongs.cgroups.push(directory);
            }
            let left = belongs.end(grace, &*self.clock).await;
            if !left.is_empty() {
                let pids = left.into_iter().collect();
                return Err(RunnerError::Survivors { id: id.to_owned(), pids });
            }
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            Ok(())
        })
    }
}

fn open_log(path: &Path) -> Result<File, RunnerError> {
    let log = |source| RunnerError::Log { path: path.to_owned(), source };
    OpenOptions::new().create(true).append(true).open(path).map_err(log)
}

/// A large log of an earlier run becomes `.1`, and an earlier `.1` goes.
fn turn_log(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_LOG_BYTES) {
        let _ = std::fs::rename(path, older(path));
    }
}

/// The process holds the file itself open, for appending: its content is copied away and cut.
/// What is written between the two is lost, and nothing else.
fn shorten_log(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_LOG_BYTES)
        && std::fs::copy(path, older(path)).is_ok()
        && let Ok(file) = OpenOptions::new().write(true).open(path)
    {
        let _ = file.set_len(0);
    }
}

fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}
