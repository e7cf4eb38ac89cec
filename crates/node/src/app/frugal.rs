//! Keeps an idle server small: after a burst of work, it releases memory and code that only the
//! burst needed.

use std::convert::Infallible;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// The interval of checks, and how long the process must have been idle.
const LOOK: Duration = Duration::from_secs(1);
/// Processor time in one interval below which the process counts as idle: 2,000 silent commands
/// take less.
const IDLE: Duration = Duration::from_millis(60);
/// The growth in bytes since the last release that makes another one worthwhile.
const WORTH: u64 = 4 << 20;

/// Releases freed memory and unused code whenever the process has grown and is idle. This takes a
/// few milliseconds, and otherwise one read of a file in each idle second. It never returns.
pub async fn stay_small() -> Infallible {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut spent, mut small) = (cpu(), let_go());
    loop {
        tick.tick().await;
        let now = cpu();
        let idle = now.saturating_sub(spent) < IDLE;
        spent = now;
        if idle && resident() >= small + WORTH {
            small = let_go();
            spent = cpu();
        }
    }
}

/// Releases memory and returns the resident bytes that are left.
fn let_go() -> u64 {
    sys::give_back_memory();
    sys::let_go_of_code();
    resident()
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let whole = u64::try_from(time.tv_sec).unwrap_or_default();
    let rest = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(whole, rest)
}

/// Resident bytes of this process; 0 if the system does not report them.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}
