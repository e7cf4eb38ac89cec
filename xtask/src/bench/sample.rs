//! Many measurements of one thing.

use std::time::Duration;

use anyhow::{Result, bail};

/// The middle and the tail of a set of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    pub p50: Duration,
    pub p99: Duration,
}

impl Samples {
    /// Sorts and takes the nearest rank: the smallest value that is at least as large as that
    /// share of all.
    ///
    /// # Errors
    ///
    /// When there is no measurement.
    pub fn of(mut durations: Vec<Duration>) -> Result<Self> {
        durations.sort_unstable();
        let Some(&last) = durations.last() else { bail!("nothing was measured") };
        let rank = |percent: usize| {
            let rank = (durations.len() * percent).div_ceil(100);
            durations.get(rank.saturating_sub(1)).copied().unwrap_or(last)
        };
        Ok(Self { p50: rank(50), p99: rank(99) })
    }

    pub fn p50_ms(&self) -> f64 {
        self.p50.as_secs_f64() * 1e3
    }

    pub fn p99_ms(&self) -> f64 {
        self.p99.as_secs_f64() * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let ms = |n: u64| Duration::from_millis(n);
        assert!(Samples::of(vec![]).is_err());
        let one = Samples::of(vec![ms(7)]).expect("one measurement");
        assert_eq!((one.p50, one.p99), (ms(7), ms(7)));
        let hundred = Samples::of((1..=100).rev().map(ms).collect()).expect("a hundred");
        assert_eq!((hundred.p50, hundred.p99), (ms(50), ms(99)));
    }
}
