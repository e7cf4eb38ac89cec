//! The current state of a session's process, for everybody who waits for a change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use overmind_core::process::{Activity, Ended};
use overmind_core::time::Timestamp;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

/// The state that watchers see.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pulse {
    pub(crate) epoch: u32,
    /// The last reported end of the log.
    pub(crate) offset: u64,
    pub(crate) last_output: Timestamp,
    pub(crate) state: State,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// No process is known.
    Idle,
    Live,
    Ended(Ended),
}

impl Pulse {
    pub(crate) fn activity(&self) -> Activity {
        Activity { offset: self.offset, last_output_at: self.last_output }
    }
}

/// A subscriber to every output. While there is one, the supervisor process reports it.
#[derive(Debug)]
pub(crate) struct Watching {
    pulse: watch::Receiver<Pulse>,
    count: Arc<Watchers>,
}

/// The number of watchers; drivers inform the supervisor process when it becomes or stops being
/// zero.
///
/// There is one for each running session, so it is no channel, which needs some 350 bytes.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    count: AtomicUsize,
    news: Notify,
}

impl Watchers {
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// The next change, counted from when this is enabled or first polled.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.news.notified()
    }

    fn come(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    fn go(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.news.notify_waiters();
    }
}

impl Watching {
    pub(crate) fn new(pulse: watch::Receiver<Pulse>, count: Arc<Watchers>) -> Self {
        count.come();
        Self { pulse, count }
    }

    /// Marks the current state as seen. Returns whether nothing more can come: the process has
    /// ended, or its session was forgotten.
    pub(crate) fn look(&mut self) -> bool {
        let live = matches!(self.pulse.borrow_and_update().state, State::Live);
        !live || self.pulse.has_changed().is_err()
    }

    /// The last reported state.
    pub(crate) fn now(&self) -> Pulse {
        self.pulse.borrow().clone()
    }

    /// Waits for a state that was not seen yet.
    pub(crate) async fn changed(&mut self) {
        // An error means that the session was forgotten, which the next look finds.
        let _ = self.pulse.changed().await;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.count.go();
    }
}
