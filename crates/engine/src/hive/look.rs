//! The state between two checks of a process, and the interval of checks.

use std::time::Duration;

use overmind_core::process::prompt::Question;

/// The interval of checks, and the one for a process that has been silent for long and asks
/// nothing.
pub(super) const LOOK: Duration = Duration::from_millis(500);
const QUIET_LOOK: Duration = Duration::from_secs(2);
/// The silences after which a screen is judged: once soon, and once after a long time without
/// change.
pub(super) const JUDGED_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// The observations of a process since its last output.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) offset: u64,
    /// How many of [`JUDGED_AFTER`] have passed.
    pub(super) judged: usize,
    /// The question that was reported to the Cortex.
    pub(super) asks: Option<Box<Question>>,
    /// Processor time at the last check of the silence.
    pub(super) cpu: Option<Duration>,
    /// Until when a silence does not count.
    pub(super) silent_until: Option<Duration>,
}

impl Look {
    /// The time until the next check.
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
