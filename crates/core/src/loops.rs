//! The server's loops: reconcilers that run repeatedly until the server stops.
//!
//! A [`Reconcile`] compares the observed state with the desired state and changes what differs. It
//! runs after changes and also periodically, so that a lost wake-up costs only time. This module
//! contains the trait and the pure decision when the next pass is due; the engine runs the loops.

use std::time::Duration;

use crate::Fut;
use crate::time::Timestamp;

/// Longest result text that is stored, in bytes.
pub const MAX_SAID: usize = 300;
/// Shortest time between two passes that the clock starts. It prevents a busy loop if
/// [`Report::again`] is always now.
pub const MIN_GAP: Duration = Duration::from_millis(10);

/// The result of a pass, as text for people: `3 removed`. Empty if there was nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub said: String,
    /// Time of a pass that is needed before the period is over. A past time means at once.
    pub again: Option<Timestamp>,
}

impl Report {
    pub fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), again: None }
    }
}

/// One loop. Its runner owns it, and its passes never overlap.
pub trait Reconcile: Send {
    /// Returns the name: 1 to 63 small letters, digits and hyphens, unique in a server, and the
    /// same after a restart.
    fn name(&self) -> &'static str;

    fn pace(&self) -> Pace;

    /// Returns when something has changed that needs a pass. The default never returns. The runner
    /// drops the future if another reason for a pass comes first, so a wake-up that was not
    /// returned yet must be returned by the next call.
    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Runs one pass over the whole state. It must be idempotent, and gets no hint about changes,
    /// because a hint does not survive a restart. A panic counts as an error of this pass; the next
    /// pass gets the value as the panic left it.
    ///
    /// # Errors
    ///
    /// Returns a text that says what went wrong. The next pass comes after a backoff.
    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>>;

    /// Called last, before the server stops, even if the loop is paused.
    fn stopped(&mut self, _now: Timestamp) -> Fut<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// How often a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from the end of a pass to the next.
    pub every: Duration,
    /// Most time that is added to `every`, different for each pass.
    pub jitter: Duration,
    /// Backoff after the first error. It doubles with each consecutive error.
    pub retry_first: Duration,
    /// The longest backoff.
    pub retry_most: Duration,
    /// Whether the first pass comes at the start. Otherwise it comes after one period.
    pub at_once: bool,
}

impl Pace {
    /// Creates a pace with a tenth of jitter. Retries come after 5 seconds (or the period, if it is
    /// shorter), up to 5 minutes (or the period, if it is longer).
    pub fn every(every: Duration) -> Self {
        Self {
            every,
            jitter: every / 10,
            retry_first: every.min(Duration::from_secs(5)),
            retry_most: every.max(Duration::from_mins(5)),
            at_once: false,
        }
    }

    #[must_use]
    pub const fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    /// Keeps the period after errors too. For passes that cost almost nothing.
    #[must_use]
    pub const fn steady(self) -> Self {
        Self { retry_first: self.every, retry_most: self.every, ..self }
    }

    /// Returns the backoff after this many consecutive errors, at least 1.
    fn backoff(&self, errors: u32) -> Duration {
        let doubled = 2_u32.checked_pow(errors.saturating_sub(1)).unwrap_or(u32::MAX);
        self.retry_first.saturating_mul(doubled).min(self.retry_most)
    }
}

/// The result of the last pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastPass {
    pub began: Timestamp,
    /// Duration, measured with a monotonic clock.
    pub took: Duration,
    /// The result text or the error, at most [`MAX_SAID`] bytes.
    pub result: Result<String, String>,
}

/// The state of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    pub name: &'static str,
    pub pace: Pace,
    pub paused: bool,
    /// Whether a pass is running.
    pub running: bool,
    /// Number of passes that have ended since the server started.
    pub passes: u64,
    /// Number of consecutive errors.
    pub errors: u32,
    pub last: Option<LastPass>,
    /// Time of the next scheduled pass; `None` while paused or running.
    pub next: Option<Timestamp>,
}

impl LoopStatus {
    pub fn new(name: &'static str, pace: Pace, paused: bool, now: Timestamp) -> Self {
        let wait = if pace.at_once { Duration::ZERO } else { pace.every };
        let next = (!paused).then(|| now.after(wait).after(spread(name, 0, pace.jitter)));
        let next = if pace.at_once { next.map(|_| now) } else { next };
        Self { name, pace, paused, running: false, passes: 0, errors: 0, last: None, next }
    }

    /// Returns whether a change may start a pass now. After an error it waits for the backoff,
    /// because a pass that fails with each change must not run with each change.
    pub fn hears(&self) -> bool {
        !self.paused && self.errors == 0
    }

    pub fn paused(&mut self) {
        self.paused = true;
        self.next = None;
    }

    /// Schedules the next pass at once, because a change may have been missed.
    pub fn resumed(&mut self, now: Timestamp) {
        if self.paused {
            self.paused = false;
            self.next = (!self.running).then_some(now);
        }
    }

    pub fn began(&mut self) {
        self.running = true;
        self.next = None;
    }

    pub fn ended(
        &mut self,
        now: Timestamp,
        began: Timestamp,
        took: Duration,
        result: Result<Report, String>,
    ) {
        self.running = false;
        self.passes = self.passes.saturating_add(1);
        let next = match &result {
            Ok(report) => {
                self.errors = 0;
                let wait = spread(self.name, self.passes, self.pace.jitter);
                let regular = now.after(self.pace.every).after(wait);
                let again = report.again.map(|at| at.max(now.after(MIN_GAP)));
                again.map_or(regular, |again| again.min(regular))
            }
            Err(_) => {
                self.errors = self.errors.saturating_add(1);
                now.after(self.pace.backoff(self.errors).max(MIN_GAP))
            }
        };
        self.next = (!self.paused).then_some(next);
        let result = result.map(|report| bounded(report.said)).map_err(bounded);
        self.last = Some(LastPass { began, took, result });
    }
}

/// Returns a part of `most` that depends only on the name and the number. Loops with the same
/// period thus run at different times, and repeated computations agree. Less than `most`, in whole
/// microseconds.
pub fn spread(name: &str, number: u64, most: Duration) -> Duration {
    let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    if most == 0 {
        return Duration::ZERO;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(&[0]);
    hasher.update(&number.to_le_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    Duration::from_micros(u64::from_le_bytes(bytes) % most)
}

fn bounded(mut text: String) -> String {
    if text.len() > MAX_SAID {
        text.truncate(text.floor_char_boundary(MAX_SAID - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const HOUR: Duration = Duration::from_hours(1);

    fn status() -> LoopStatus {
        LoopStatus::new("retention", Pace::every(HOUR), false, NOW)
    }

    fn failed(status: &mut LoopStatus) -> Duration {
        status.began();
        status.ended(NOW, NOW, Duration::ZERO, Err("no".into()));
        status.next.expect("it is not paused").since(NOW)
    }

    #[test]
    fn errors_double_the_delay_up_to_a_limit_and_a_success_resets_it() {
        let mut status = status();
        let waits: Vec<u64> = (0..12).map(|_| failed(&mut status).as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
        assert!(!status.hears(), "a change does not cut the backoff short");
        status.began();
        status.ended(NOW, NOW, Duration::ZERO, Ok(Report::default()));
        assert!(status.hears());
        assert_eq!(failed(&mut status).as_secs(), 5);
    }

    #[test]
    fn the_first_pass_runs_after_one_period_or_earlier_if_the_loop_asks() {
        let wait = status().next.expect("due").since(NOW);
        assert!((HOUR..HOUR + HOUR / 10).contains(&wait), "{wait:?}");
        let at_once = LoopStatus::new("x", Pace::every(HOUR).at_once(), false, NOW);
        assert_eq!(at_once.next, Some(NOW));
        let ended = |again| {
            let mut status = status();
            status.ended(NOW, NOW, Duration::ZERO, Ok(Report { said: String::new(), again }));
            status.next.expect("due").since(NOW)
        };
        assert_eq!(ended(Some(NOW.after(Duration::from_mins(1)))), Duration::from_mins(1));
        assert_eq!(ended(Some(NOW.before(HOUR))), MIN_GAP, "and never spins");
        assert!(ended(Some(NOW.after(HOUR * 9))) >= HOUR);
        assert!(ended(Some(NOW.after(HOUR * 9))) < HOUR * 2, "the period is a bound");
    }

    #[test]
    fn a_paused_loop_has_no_next_pass_and_a_resumed_loop_runs_at_once() {
        let mut status = LoopStatus::new("x", Pace::every(HOUR).at_once(), true, NOW);
        assert_eq!((status.next, status.hears()), (None, false));
        // Somebody runs it by hand; it stays paused.
        status.began();
        status.ended(NOW, NOW, Duration::ZERO, Ok(Report::default()));
        assert_eq!((status.next, status.passes), (None, 1));
        status.resumed(NOW);
        assert_eq!(status.next, Some(NOW));
        status.began();
        status.paused();
        status.ended(NOW, NOW, Duration::ZERO, Err("no".into()));
        assert_eq!(status.next, None, "paused amid a pass");
    }

    #[test]
    fn a_long_result_is_truncated_at_a_character_boundary() {
        let mut status = status();
        status.ended(NOW, NOW, Duration::ZERO, Err("ä".repeat(500)));
        let kept = status.last.expect("one").result.expect_err("an error");
        assert!(kept.len() <= MAX_SAID && kept.ends_with("ä…"), "{kept}");
    }

    proptest! {
        #[test]
        fn jitter_is_bounded_deterministic_and_mostly_different(
            name in "[a-z]{1,9}", number: u64, most in 1_u64..u64::from(u32::MAX),
        ) {
            let most = Duration::from_micros(most);
            let one = spread(&name, number, most);
            prop_assert!(one < most);
            prop_assert_eq!(one, spread(&name, number, most));
        }
    }

    #[test]
    fn jitter_spreads_loops_of_one_period() {
        let all: std::collections::BTreeSet<Duration> =
            (0..100).map(|n| spread("x", n, HOUR)).collect();
        assert_eq!(all.len(), 100);
        let early = all.iter().filter(|one| **one < HOUR / 2).count();
        assert!((30..=70).contains(&early), "{early} in the first half");
    }
}
