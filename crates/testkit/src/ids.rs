//! Ids in the order of a counter, so that a test's output repeats.

use std::sync::atomic::{AtomicU64, Ordering};

use overmind_core::ids::IdSource;

/// Counts up from the seed, in UUIDv7 layout.
#[derive(Debug)]
pub struct SeededIds(AtomicU64);

impl SeededIds {
    pub fn new(seed: u32) -> Self {
        Self(AtomicU64::new(u64::from(seed) << 32))
    }
}

impl IdSource for SeededIds {
    fn next(&self) -> u128 {
        let n = u128::from(self.0.fetch_add(1, Ordering::Relaxed));
        0x0190_0000_0000_7000_8000_0000_0000_0000
            | (n << 80 & 0xffff_0000_0000_0000_0000_0000)
            | (n & 0xffff_ffff_ffff)
    }
}
