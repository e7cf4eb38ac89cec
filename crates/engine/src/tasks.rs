//! Tracks the tasks that must end before the process does, with the signal to end.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Owned by the code that starts tasks; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    tracker: TaskTracker,
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    All,
    TimedOut { left: usize },
}

impl Tasks {
    /// Starts `task`, which must return soon after its token is cancelled. All tasks share the
    /// token: a task that cancels must make a child of it.
    pub fn spawn<F>(&self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(task(self.stop.clone()));
    }

    /// Cancelled when the drain begins.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Signals the tasks to stop, then waits at most `grace` for them to return.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.tracker.close();
        self.stop.cancel();
        match tokio::time::timeout(grace, self.tracker.wait()).await {
            Ok(()) => Drained::All,
            Err(_) => Drained::TimedOut { left: self.tracker.len() },
        }
    }
}
