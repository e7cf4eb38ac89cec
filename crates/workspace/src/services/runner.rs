//! Keeps processes running: the port, and an implementation that needs only this machine.
//!
//! [`Runner`] is the port that a lease uses; a supervisor of the product may implement it.
//! [`OwnProcesses`] keeps processes from within the daemon: each has its own process group and
//! outlives the daemon, is found again by its record, is restarted after growing pauses, and is
//! ended with all of its processes.

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

/// A process to keep running.
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
    /// The sandbox of each of its starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined: Option<Confined>,
}

/// A started process, with enough data to find it again in another process of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessHandle {
    pub id: String,
    pub pid: u32,
    /// Clock ticks since the machine's start.
    pub started: u64,
    /// The id of the machine's start.
    pub boot: String,
    pub cgroup: Option<PathBuf>,
    /// Whether it represents a program in a sandbox below it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enclosed: bool,
}

/// The state of a kept process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running {
        pid: u32,
    },
    /// It ended and will be started again.
    Restarting {
        restarts: u32,
    },
    /// It ended for good.
    Ended {
        status: String,
    },
    /// There is no such process.
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
    #[error("ending {id}: the processes {pids:?} are still running")]
    Survivors { id: String, pids: Vec<u32> },
    #[error("`{what}` is not started: {why}")]
    Sandbox { what: String, why: String },
    /// For other implementations.
    #[error("{0}")]
    Other(String),
}

/// Keeps processes running. Dropping it ends none.
pub trait Runner: Send + Sync + fmt::Debug {
    /// Starts the process and restarts it by `spec.restart`.
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<ProcessHandle, RunnerError>>;

    /// Keeps a process of an earlier daemon; starts it again if it has ended.
    fn adopt(
        &self,
        spec: ProcessSpec,
        handle: ProcessHandle,
    ) -> Fut<'_, Result<ProcessHandle, RunnerError>>;

    /// The state of the process with that id.
    fn state(&self, id: &str) -> ProcessState;

    /// Ends the process with all of its processes, also one known only by `handle` or its id. A
    /// missing process is no error.
    fn stop<'a>(
        &'a self,
        id: &'a str,
        handle: Option<&'a ProcessHandle>,
        grace: Duration,
    ) -> Fut<'a, Result<(), RunnerError>>;
}

/// The size at which a log is rotated.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// The interval of checks of a running process's log.
const LOG_LOOK: Duration = Duration::from_secs(10);
/// After running for this time, the process counts as healthy.
const HEALTHY: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Processes that the daemon itself keeps running.
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
    /// Notified to stop.
    stop: Notify,
}

#[derive(Debug)]
struct Inner {
    handle: ProcessHandle,
    state: ProcessState,
    stopping: bool,
}

/// The process that is waited for: a child of ours, or one of an earlier daemon.
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

    /// Sets the maker of sandboxes for those that need one.
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
    /// The processes continue, but nobody restarts them until they are adopted.
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        for kept in kept.values() {
            kept.inner.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
            kept.stop.notify_one();
        }
    }
}

/// What one start of it executes.
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
        // Another user may not join it, and would then not be found in it.
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
    // The child was not reaped, so its entry exists even if it has ended already.
    let started = stat(pid).map_or(0, |stat| stat.started);
    let (id, boot) = (spec.id.clone(), boot_id());
    let handle = ProcessHandle { id, pid, started, boot, cgroup, enclosed };
    Ok((child, handle))
}

impl ProcessHandle {
    /// Whether exactly this process is still running.
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
                // The exit status of an adopted process is unknown, which counts as a failure.
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
            // It is started under the lock: a stop either comes before and is seen, or comes after
            // and finds the new process.
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

    /// Waits for the end; `None` if the exit status is unknown.
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

/// The interval of checks of a process that is no child of ours.
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
            // It was restarted after its handle was recorded, or its children continue: two
            // processes of one service cannot share a port.
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

/// Renames a large log of an earlier run to `.1`, and removes an earlier `.1`.
fn turn_log(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|found| found.len() > MAX_LOG_BYTES) {
        let _ = std::fs::rename(path, older(path));
    }
}

/// The process itself has the file open for appending, so its content is copied away and cut. Only
/// output between these two steps is lost.
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
