//! The real clock and the real source of ids: the only sources of time and randomness.

use std::time::{Duration, SystemTime};

use overmind_core::Fut;
use overmind_core::ids::IdSource;
use overmind_core::time::{Clock, Timestamp};

/// The system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// Longest single sleep: a wall clock that was set forward is noticed after at most this time.
const NAP: Duration = Duration::from_secs(30);

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that all others are given")]
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => {
                Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
            }
            // A clock before 1970 is wrong, which `doctor` reports. Until it is set, the time is 0.
            Err(_) => Timestamp::from_micros(0),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that all others are given")]
    fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()> {
        Box::pin(async move {
            loop {
                let left = deadline.since(self.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(NAP)).await;
            }
        })
    }
}

/// UUIDv7 with a counter, so that ids of one process sort in the order they were made.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    fn next(&self) -> u128 {
        uuid::Uuid::now_v7().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_and_never_repeat() {
        let ids: Vec<u128> = (0..10_000).map(|_| SystemIds.next()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
    }

    #[tokio::test]
    async fn sleep_ends_at_the_deadline_and_at_once_for_a_past_one() {
        let start = SystemClock.now();
        SystemClock.sleep_until(Timestamp::from_micros(0)).await;
        SystemClock.sleep_until(start.after(Duration::from_millis(20))).await;
        assert!(SystemClock.now().since(start) >= Duration::from_millis(20));
    }
}
