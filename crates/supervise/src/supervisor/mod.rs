//! The daemon's side: starts processes, finds them again after a restart, and forwards requests.
//!
//! There is one task for each supervisor process, which waits for its socket and for requests.
//! Nothing is polled, and output does not pass through here: readers and viewers read the log files
//! themselves.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::ids::SessionId;
use overmind_core::process::{LogLimits, ProcessError, ProcessKey};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::group::Bases;
use crate::supervisor::entry::Entry;
use crate::supervisor::nursery::Nursery;
use crate::supervisor::pulse::State;

mod adopt;
mod attach;
mod entry;
mod life;
mod lost;
mod nursery;
mod port;
pub(crate) mod pulse;
mod queue;
mod request;
mod start;

/// The options of a [`Supervisor`].
#[derive(Clone, Debug)]
pub struct Options {
    /// This program, or another whose `main` calls [`crate::zygote::main_if_requested`]. Use
    /// `/proc/self/exe`, which is the running program even if its file was replaced.
    pub program: PathBuf,
    /// The directory for the sessions' directories. It is made with mode 0700.
    pub root: PathBuf,
    /// The limits for notes that are written while no process runs.
    pub log: LogLimits,
    /// Maximum number of starts in progress at the same time; further starts wait.
    pub starts: usize,
}

impl Options {
    pub fn new(program: PathBuf, root: PathBuf) -> Self {
        Self { program, root, log: LogLimits::default(), starts: 32 }
    }
}

/// Implements [`overmind_core::process::Processes`]. Dropping it disconnects from all processes,
/// which run on.
#[derive(Clone)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("root", &self.shared.ground.options.root)
            .finish_non_exhaustive()
    }
}

/// State that drivers also need. Drivers must not hold a reference to [`Shared`], which owns them.
pub(crate) struct Ground {
    pub(crate) options: Options,
    pub(crate) bases: Bases,
}

pub(crate) struct Shared {
    pub(crate) ground: Arc<Ground>,
    nursery: Nursery,
    entries: Mutex<HashMap<SessionId, Arc<Entry>>>,
    starts: Semaphore,
    /// The drivers of processes.
    tasks: Mutex<JoinSet<()>>,
}

impl Shared {
    /// Spawns a driver. It ends with its process, or when the supervisor is closed.
    pub(crate) fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Ended drivers are removed here, so that the set is not larger than the number of
        // processes.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    pub(crate) fn dir(&self, session: SessionId) -> PathBuf {
        self.ground.options.root.join(session.to_string())
    }

    pub(crate) fn entry(&self, session: SessionId) -> Option<Arc<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned()
    }

    pub(crate) fn entry_or_new(&self, session: SessionId) -> Arc<Entry> {
        self.with_entry(session, Arc::clone)
    }

    /// Calls `work` with the session's entry, which is created if there is none. The entry cannot
    /// be forgotten during the call.
    pub(crate) fn with_entry<T>(
        &self,
        session: SessionId,
        work: impl FnOnce(&Arc<Entry>) -> T,
    ) -> T {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(session);
        work(entry.or_insert_with(|| Arc::new(Entry::new(self.dir(session)))))
    }

    /// The entry of a known process.
    pub(crate) fn known(&self, key: ProcessKey) -> Result<Arc<Entry>, ProcessError> {
        self.entry(key.session).ok_or(ProcessError::NotAlive(key))
    }

    /// Forgets a session in which nothing runs or starts. Otherwise returns `Err` with its process.
    ///
    /// With `unwatched`, a session that has watchers keeps its entry, because watchers continue
    /// with the next process.
    pub(crate) fn forget(&self, session: SessionId, unwatched: bool) -> Result<(), ProcessKey> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(&session) else { return Ok(()) };
        let (busy, epoch) = {
            let inner = entry.lock();
            let live = matches!(entry.pulse.borrow().state, State::Live);
            (live || inner.starting || (unwatched && inner.life.is_some()), inner.newest)
        };
        if busy {
            return Err(ProcessKey { session, epoch });
        }
        if !(unwatched && entry.watchers.any()) {
            entries.remove(&session);
        }
        Ok(())
    }
}

impl Supervisor {
    /// Makes the directory, examines cgroups, and starts the zygote.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be made or others have access to it, or the program cannot be
    /// started.
    pub fn open(options: Options) -> Result<Self, ProcessError> {
        let refused =
            |reason: String| ProcessError::Directory { path: options.root.clone(), reason };
        make_private(&options.root).map_err(|err| refused(err.to_string()))?;
        let nursery =
            Nursery::open(options.program.clone()).map_err(|err| ProcessError::Refused {
                program: options.program.display().to_string(),
                step: "the process that keepers are born from",
                reason: err.to_string(),
            })?;
        let shared = Shared {
            nursery,
            entries: Mutex::default(),
            starts: Semaphore::new(options.starts.max(1)),
            tasks: Mutex::default(),
            ground: Arc::new(Ground { bases: Bases::discover(), options }),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Disconnects from all processes, which run on, and ends the zygote. Call it when the daemon
    /// drains; later requests fail.
    pub async fn close(&self) {
        let mut tasks =
            std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
        self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let shared = Arc::clone(&self.shared);
        // This waits until the zygote has ended, which does not take long.
        let _ = tokio::task::spawn_blocking(move || shared.nursery.close()).await;
    }
}

/// Makes a directory that only this user can access.
fn make_private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let meta = std::fs::symlink_metadata(dir)?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != own {
        return Err(std::io::Error::other("it belongs to another user, or is not a directory"));
    }
    if meta.mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}
