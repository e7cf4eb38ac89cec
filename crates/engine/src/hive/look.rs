//! What is seen of a life from one look to the next, and how often it is looked at.

use std::time::Duration;

use overmind_core::process::prompt::Question;

/// How often a life is looked at, and how often one that has been silent for long and asks nothing.
pub(super) const LOOK: Duration = Duration::from_millis(500);
const QUIET_LOOK: Duration = Duration::from_secs(2);
/// Silences after which a screen is judged: once soon, and once when nothing has moved for long.
pub(super) const JUDGED_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// What was seen of a life, since output last came.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) offset: u64,
    /// How many of [`JUDGED_AFTER`] have passed.
    pub(super) judged: usize,
    /// The question that the Cortex was told of.
    pub(super) asks: Option<Box<Question>>,
    /// Processor time when the silence was last looked at.
    pub(super) cpu: Option<Duration>,
    /// Until when a silence is none.
    pub(super) silent_until: Option<Duration>,
}

impl Look {
    /// Until the next one.
    pub(super) fn pause(&self) -> Duration {
        match self.judged >= JUDGED_AFTER.len() && self.asks.is_none() {
            true => QUIET_LOOK,
            false => LOOK,
        }
    }
}

pub(super) fn ticks(pause: Duration) -> tokio::time::Interval {
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + pause, pause);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick
}
