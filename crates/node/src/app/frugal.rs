//! Keeps an idle server small: when a burst of work is over, what only the burst needed is let
//! go of.

use std::convert::Infallible;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// How often it looks, and for how long nothing must have gone on.
const LOOK: Duration = Duration::from_secs(1);
/// Processor time of a second in which nothing goes on: 2,000 silent commands take less.
const IDLE: Duration = Duration::from_millis(60);
/// So many bytes more than after the last time are worth the trouble.
const WORTH: u64 = 4 << 20;

/// Lets go of memory that was freed and of code that was used, whenever the process has grown
/// and nothing goes on. Costs a few milliseconds then, and else a read of one file in each second
/// in which nothing goes on. Never ends.
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

/// Answers what is left, in bytes.
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

/// Resident bytes of this process; 0 where the system does not tell.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}
