//! Prepares trees for the pools in the background, and never while a session waits.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::time::Clock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Core;
use super::project::{self, Project};
use crate::lease::chain;

/// How long the end waits for a tree that is being made.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pools that are seen to.
#[derive(Debug, Default)]
pub(super) struct Pools {
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Sessions that callers wait for.
    waiting: AtomicUsize,
    nobody_waits: Notify,
    /// The open sessions of each project that has a task.
    used: Mutex<HashMap<PathBuf, Used>>,
}

#[derive(Debug)]
struct Used {
    sessions: BTreeSet<String>,
    /// A session took a tree: look again.
    again: Arc<Notify>,
}

/// Somebody waits for a session as long as this lives.
#[derive(Debug)]
pub(super) struct Waits<'a>(&'a Pools);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.nobody_waits.notify_waiters();
        }
    }
}

impl Pools {
    pub(super) fn waits(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(self)
    }

    /// A session of the project has a tree now: fills its pool up, and refreshes it for as long as
    /// it has sessions.
    pub(super) fn see_to(
        self: &Arc<Self>,
        core: &Arc<Core>,
        session: &str,
        found: &Project,
        excludes_file: Option<&Path>,
    ) {
        let size = project::pool_size(found);
        let Ok(options) = project::options(found, excludes_file) else { return };
        if size.trees == 0 || self.stop.is_cancelled() {
            return;
        }
        let again = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(used) = used.get_mut(&found.top) {
                used.sessions.insert(session.to_owned());
                used.again.notify_one();
                return;
            }
            let again = Arc::new(Notify::new());
            let sessions = BTreeSet::from([session.to_owned()]);
            used.insert(found.top.clone(), Used { sessions, again: Arc::clone(&again) });
            again
        };
        let (pools, core, top) = (Arc::clone(self), Arc::clone(core), found.top.clone());
        let reach = found.reach.clone();
        let refresh = found.config.pool.refresh;
        self.tasks.spawn(async move {
            let clock: Arc<dyn Clock> = Arc::clone(&core.clock);
            loop {
                tokio::select! {
                    () = pools.stop.cancelled() => return,
                    () = pools.until_nobody_waits() => {}
                }
                let (maker, options, at) = (core.maker.clone(), options.clone(), top.clone());
                let reach = reach.clone();
                let filled = tokio::task::spawn_blocking(move || {
                    maker.trees().fill(&at, &reach, &options, size)
                })
                .await;
                match filled {
                    Ok(Ok(filled)) => tracing::debug!(project = %top.display(), ?filled, "filled a pool"),
                    // Sessions are made without it, only slower.
                    Ok(Err(err)) => {
                        tracing::warn!(project = %top.display(), err = %chain(&err), "filling a pool");
                    }
                    Err(err) => tracing::warn!(%err, "filling a pool was cut off"),
                }
                if !pools.is_used(&top) {
                    return;
                }
                let next = clock.now().after(refresh);
                tokio::select! {
                    () = pools.stop.cancelled() => return,
                    () = again.notified() => {}
                    () = clock.sleep_until(next) => {}
                }
            }
        });
    }

    /// A session is closed.
    pub(super) fn closed(&self, session: &str) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        for used in used.values_mut() {
            if used.sessions.remove(session) && used.sessions.is_empty() {
                used.again.notify_one();
            }
        }
    }

    /// Whether the project has sessions; forgets it when it has none.
    fn is_used(&self, top: &Path) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is = used.get(top).is_some_and(|used| !used.sessions.is_empty());
        if !is {
            used.remove(top);
        }
        is
    }

    async fn until_nobody_waits(&self) {
        loop {
            let told = self.nobody_waits.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            if self.waiting.load(Ordering::Acquire) == 0 {
                return;
            }
            told.await;
        }
    }

    /// Runs something small in the background, before the end.
    pub(super) fn behind(&self, task: impl Future<Output = ()> + Send + 'static) {
        if !self.stop.is_cancelled() {
            self.tasks.spawn(task);
        }
    }

    pub(super) fn cancel(&self) {
        self.stop.cancel();
    }

    /// Ends all tasks; a tree that is being made is finished first, if that is soon. Otherwise the
    /// next start removes it.
    pub(super) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(PATIENCE, self.tasks.wait()).await;
    }
}
