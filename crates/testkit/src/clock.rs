//! A clock that stops until it is advanced.

use std::time::Duration;

use overmind_core::Fut;
use overmind_core::time::{Clock, Timestamp};
use tokio::sync::watch;

/// Starts at 2026-01-01T00:00:00Z.
#[derive(Debug)]
pub struct ManualClock(watch::Sender<Timestamp>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(watch::Sender::new(Timestamp::from_micros(1_767_225_600_000_000)))
    }
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now = now.after(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()> {
        let mut now = self.0.subscribe();
        Box::pin(async move {
            now.wait_for(|now| deadline <= *now).await.expect("self holds the sender");
        })
    }
}
