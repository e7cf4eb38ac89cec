//! Token buckets in a bounded map.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::RateLimit;

/// Keys remembered at once. Beyond it the fullest buckets are forgotten (they limit nothing), and
/// if all are in use, newcomers share one bucket: a flood from many addresses then limits itself
/// and takes no memory.
const MAX_KEYS: usize = 8192;
/// Between two looks for buckets to forget.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Limiter<Key> {
    rate: f64,
    burst: f64,
    state: Mutex<State<Key>>,
}

#[derive(Debug)]
struct State<Key> {
    buckets: HashMap<Key, Bucket>,
    shared: Option<Bucket>,
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(burst: f64, now: Instant) -> Self {
        Self { tokens: burst, at: now }
    }

    fn refill(&mut self, rate: f64, burst: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * rate).min(burst);
        self.at = now;
    }

    /// Takes one token, or says how long until there is one.
    fn take(&mut self, rate: f64, burst: f64, now: Instant) -> Result<(), Duration> {
        self.refill(rate, burst, now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            Ok(())
        } else {
            Err(Duration::from_secs_f64((1.0 - self.tokens) / rate))
        }
    }
}

impl<Key: Hash + Eq> Limiter<Key> {
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self {
            rate: f64::from(limit.per_second.max(1)),
            burst: f64::from(limit.burst.max(1)),
            state: Mutex::new(State { buckets: HashMap::new(), shared: None, swept: None }),
        }
    }

    /// Counts one request.
    ///
    /// # Errors
    ///
    /// How long to wait before the next one can pass.
    pub(crate) fn check(&self, key: Key, now: Instant) -> Result<(), Duration> {
        // A panic while holding the lock leaves numbers, which are sound in any state.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { buckets, shared, swept } = &mut *state;
        let due = swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_EVERY);
        if buckets.len() >= MAX_KEYS && due && !buckets.contains_key(&key) {
            *swept = Some(now);
            buckets.retain(|_, bucket| {
                bucket.refill(self.rate, self.burst, now);
                bucket.tokens < self.burst
            });
        }
        let room = buckets.len() < MAX_KEYS;
        let bucket = match buckets.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if room => entry.insert(Bucket::full(self.burst, now)),
            Entry::Vacant(_) => shared.get_or_insert_with(|| Bucket::full(self.burst, now)),
        };
        bucket.take(self.rate, self.burst, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(per_second: u32, burst: u32) -> Limiter<u32> {
        Limiter::new(RateLimit { per_second, burst })
    }

    #[test]
    fn a_burst_is_allowed_then_the_rate_applies_per_key() {
        let (limiter, now) = (limiter(10, 3), Instant::now());
        for _ in 0..3 {
            assert_eq!(limiter.check(1, now), Ok(()));
        }
        let wait = limiter.check(1, now).unwrap_err();
        assert!(wait > Duration::from_millis(90) && wait <= Duration::from_millis(100), "{wait:?}");
        assert_eq!(limiter.check(2, now), Ok(()));
        assert_eq!(limiter.check(1, now + Duration::from_millis(110)), Ok(()));
        assert!(limiter.check(1, now + Duration::from_millis(120)).is_err());
    }

    #[test]
    fn a_flood_of_keys_takes_bounded_memory_and_shares_one_bucket() {
        let (limiter, now) = (limiter(1, 2), Instant::now());
        let passed = (0..50_000).filter(|&key| limiter.check(key, now).is_ok()).count();
        assert_eq!(passed, MAX_KEYS + 2, "each known key once, the rest share a burst of two");
        assert_eq!(limiter.state.lock().unwrap().buckets.len(), MAX_KEYS);
        // Once the buckets are full again they are forgotten, and newcomers get their own.
        let later = now + Duration::from_secs(10);
        assert_eq!(limiter.check(99_999, later), Ok(()));
        assert_eq!(limiter.state.lock().unwrap().buckets.len(), 1);
    }

    #[test]
    fn a_stopped_or_reversed_clock_gives_no_tokens() {
        let (limiter, now) = (limiter(1, 1), Instant::now() + Duration::from_secs(5));
        assert_eq!(limiter.check(1, now), Ok(()));
        assert!(limiter.check(1, now - Duration::from_secs(5)).is_err());
    }
}
