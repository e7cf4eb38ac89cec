//! What is known of a session's process at the moment, for everybody who waits for a change.

use std::sync::Arc;

use overmind_core::process::{Activity, Ended};
use overmind_core::time::Timestamp;
use tokio::sync::watch;

/// The state that watchers see.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pulse {
    pub(crate) epoch: u32,
    /// The end of the log, as last heard.
    pub(crate) offset: u64,
    pub(crate) last_output: Timestamp,
    pub(crate) state: State,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// No life is known.
    Idle,
    Live,
    Ended(Ended),
}

impl Pulse {
    pub(crate) fn activity(&self) -> Activity {
        Activity { offset: self.offset, last_output_at: self.last_output }
    }
}

/// Somebody who wants to hear of every output. While there is one, the keeper tells it.
#[derive(Debug)]
pub(crate) struct Watching {
    pulse: watch::Receiver<Pulse>,
    count: Arc<Watchers>,
}

/// How many watch; drivers of lives tell their keepers when that becomes none or some.
#[derive(Debug)]
pub(crate) struct Watchers(watch::Sender<usize>);

impl Default for Watchers {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Watchers {
    pub(crate) fn any(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub(crate) fn changes(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }
}

impl Watching {
    pub(crate) fn new(pulse: watch::Receiver<Pulse>, count: Arc<Watchers>) -> Self {
        count.0.send_modify(|count| *count += 1);
        Self { pulse, count }
    }

    /// Marks what is known as seen; whether nothing more can come: the life is over, or its
    /// session was forgotten.
    pub(crate) fn look(&mut self) -> bool {
        let live = matches!(self.pulse.borrow_and_update().state, State::Live);
        !live || self.pulse.has_changed().is_err()
    }

    /// As last heard.
    pub(crate) fn now(&self) -> Pulse {
        self.pulse.borrow().clone()
    }

    /// Waits for something that has not been looked at.
    pub(crate) async fn changed(&mut self) {
        // An error says that the session was forgotten, which the next look finds.
        let _ = self.pulse.changed().await;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.count.0.send_modify(|count| *count -= 1);
    }
}
