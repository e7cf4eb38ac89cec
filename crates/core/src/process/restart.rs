//! Decides whether and when an ended process is restarted. Pure: time is an argument.
//!
//! An earlier system never reset its count, so an agent that had run well for days waited a minute
//! after its sixth crash. Here an attempt that ran for [`RestartPolicy::healthy_after`] resets the
//! backoff. The budget is separate: it limits the restarts within a sliding window, so that a
//! program that always fails is given up.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::ExitStatus;
use crate::time::Timestamp;

/// When a process is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartWhen {
    #[default]
    Never,
    /// After any end except exit code 0.
    OnFailure,
    Always,
}

impl RestartWhen {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnFailure => "on-failure",
            Self::Always => "always",
        }
    }

    /// Parses the name. Also accepts `on_failure`, which older definitions use.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Self::Never),
            "on-failure" | "on_failure" => Some(Self::OnFailure),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

/// How often and how fast a process is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    pub when: RestartWhen,
    /// Maximum number of restarts within [`within`](Self::within); 0 means no limit.
    pub max_restarts: u32,
    /// The sliding window.
    pub within: Duration,
    /// The first delay. Each further one is twice as long.
    pub backoff: Duration,
    /// The longest delay.
    pub backoff_cap: Duration,
    /// Running for this time resets the delay to the first one.
    pub healthy_after: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            when: RestartWhen::Never,
            max_restarts: 5,
            within: Duration::from_secs(60),
            backoff: Duration::from_secs(1),
            backoff_cap: Duration::from_secs(60),
            healthy_after: Duration::from_secs(60),
        }
    }
}

/// The end of an attempt, as this decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeEnd {
    Exited(ExitStatus),
    /// A watchdog ended it, or its supervisor process was lost. It counts as a failure, whatever
    /// its exit code was.
    Failed,
    /// A person or the engine requested the end, so it is not restarted.
    Asked,
}

/// The state between restarts. It has at most as many times as the budget allows restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartState {
    /// Restarts since the last healthy attempt.
    pub in_a_row: u32,
    /// Total number of restarts.
    pub total: u32,
    /// Time of each restart within the window, oldest first.
    recent: VecDeque<Timestamp>,
}

/// The decision after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Start the next attempt at this time.
    Restart { at: Timestamp, delay: Duration },
    /// No further attempt: the policy requires none, or somebody requested the end.
    Done,
    /// It should be restarted, but has failed too often within the window.
    GaveUp { restarts: u32, within: Duration },
}

impl RestartState {
    /// Decides what follows an attempt that ran from `started` to `ended`.
    ///
    /// A restart is counted at once, so the caller must carry it out or discard the state.
    pub fn ended(
        &mut self,
        policy: &RestartPolicy,
        end: LifeEnd,
        started: Timestamp,
        ended: Timestamp,
    ) -> Verdict {
        let wanted = match (policy.when, end) {
            (_, LifeEnd::Asked) | (RestartWhen::Never, _) => false,
            (RestartWhen::OnFailure, LifeEnd::Exited(status)) => !status.is_success(),
            (RestartWhen::OnFailure, LifeEnd::Failed) | (RestartWhen::Always, _) => true,
        };
        if !wanted {
            return Verdict::Done;
        }
        if ended.since(started) >= policy.healthy_after {
            self.in_a_row = 0;
        }
        // A clock that was set back must not make old restarts count for ever.
        self.recent.retain(|at| *at <= ended && ended.since(*at) < policy.within);
        if policy.max_restarts == 0 {
            self.recent.clear();
        } else {
            if self.recent.len() >= usize::try_from(policy.max_restarts).unwrap_or(usize::MAX) {
                return Verdict::GaveUp { restarts: policy.max_restarts, within: policy.within };
            }
            self.recent.push_back(ended);
        }
        let delay = delay(policy, self.in_a_row);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.total = self.total.saturating_add(1);
        Verdict::Restart { at: ended.after(delay), delay }
    }
}

/// Returns the delay of a restart after `before` consecutive restarts.
fn delay(policy: &RestartPolicy, before: u32) -> Duration {
    let factor = 1_u32.checked_shl(before).filter(|_| before < 31).unwrap_or(u32::MAX);
    policy.backoff.checked_mul(factor).unwrap_or(policy.backoff_cap).min(policy.backoff_cap)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CRASH: LifeEnd = LifeEnd::Exited(ExitStatus::Code(1));

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn always() -> RestartPolicy {
        RestartPolicy { when: RestartWhen::Always, ..RestartPolicy::default() }
    }

    /// Simulates crashes of attempts with these start and end times, and returns the verdicts.
    fn crashes(policy: &RestartPolicy, lives: &[(i64, i64)]) -> Vec<Verdict> {
        let mut state = RestartState::default();
        lives.iter().map(|(from, to)| state.ended(policy, CRASH, at(*from), at(*to))).collect()
    }

    #[test]
    fn the_policy_and_the_exit_decide_about_a_restart() {
        let code = |code| LifeEnd::Exited(ExitStatus::Code(code));
        let killed = LifeEnd::Exited(ExitStatus::Signal(9));
        for (when, end, again) in [
            (RestartWhen::Never, code(1), false),
            (RestartWhen::Never, LifeEnd::Failed, false),
            (RestartWhen::OnFailure, code(0), false),
            (RestartWhen::OnFailure, code(1), true),
            (RestartWhen::OnFailure, killed, true),
            (RestartWhen::OnFailure, LifeEnd::Failed, true),
            (RestartWhen::Always, code(0), true),
            (RestartWhen::Always, killed, true),
            (RestartWhen::Always, LifeEnd::Asked, false),
            (RestartWhen::OnFailure, LifeEnd::Asked, false),
        ] {
            let policy = RestartPolicy { when, ..RestartPolicy::default() };
            let verdict = RestartState::default().ended(&policy, end, at(0), at(1));
            assert_eq!(matches!(verdict, Verdict::Restart { .. }), again, "{when:?} {end:?}");
        }
    }

    #[test]
    fn the_delay_doubles_up_to_the_cap() {
        let policy = RestartPolicy { max_restarts: 0, ..always() };
        let lives: Vec<_> = (0..9).map(|n| (n, n)).collect();
        let delays: Vec<u64> = crashes(&policy, &lives)
            .into_iter()
            .map(|verdict| match verdict {
                Verdict::Restart { delay, .. } => delay.as_secs(),
                Verdict::Done | Verdict::GaveUp { .. } => panic!("{verdict:?}"),
            })
            .collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_long_attempt_resets_the_restart_delay() {
        let verdicts = crashes(&always(), &[(0, 0), (1, 1), (3, 3), (10, 100)]);
        assert_eq!(verdicts[2], Verdict::Restart { at: at(7), delay: Duration::from_secs(4) });
        assert_eq!(verdicts[3], Verdict::Restart { at: at(101), delay: Duration::from_secs(1) });
    }

    #[test]
    fn the_sixth_failure_in_the_window_ends_the_run_and_slow_failures_do_not() {
        let quick: Vec<_> = (0..6).map(|n| (n, n)).collect();
        assert_eq!(
            crashes(&always(), &quick)[5],
            Verdict::GaveUp { restarts: 5, within: Duration::from_secs(60) }
        );
        let slow: Vec<_> = (0..50).map(|n| (n * 20, n * 20)).collect();
        assert!(!crashes(&always(), &slow).iter().any(|v| matches!(v, Verdict::GaveUp { .. })));
    }

    #[test]
    fn restart_words_are_parsed_back() {
        for when in [RestartWhen::Never, RestartWhen::OnFailure, RestartWhen::Always] {
            assert_eq!(RestartWhen::parse(when.as_str()), Some(when));
        }
        assert_eq!(RestartWhen::parse("on_failure"), Some(RestartWhen::OnFailure));
        assert_eq!(RestartWhen::parse("sometimes"), None);
    }

    fn policies() -> impl Strategy<Value = RestartPolicy> {
        (0_u32..8, 1_u64..120, 0_u64..10_000, 0_u64..100_000, 0_u64..200).prop_map(
            |(max_restarts, within, backoff, cap, healthy)| RestartPolicy {
                when: RestartWhen::Always,
                max_restarts,
                within: Duration::from_secs(within),
                backoff: Duration::from_millis(backoff),
                backoff_cap: Duration::from_millis(cap),
                healthy_after: Duration::from_secs(healthy),
            },
        )
    }

    proptest! {
        #[test]
        fn restarts_in_a_window_never_exceed_the_budget(
            policy in policies(),
            steps in prop::collection::vec((0_i64..40_000_000, 0_i64..40_000_000), 1..80),
        ) {
            let mut state = RestartState::default();
            let mut now = 0;
            let mut given: Vec<Timestamp> = Vec::new();
            for (pause, life) in steps {
                let started = now + pause;
                now = started + life;
                let ended = Timestamp::from_micros(now);
                let verdict = state.ended(&policy, CRASH, Timestamp::from_micros(started), ended);
                let before = given.iter().filter(|at| ended.since(**at) < policy.within).count();
                match verdict {
                    Verdict::Restart { at, delay } => {
                        prop_assert!(delay <= policy.backoff_cap.max(policy.backoff));
                        prop_assert!(delay <= policy.backoff_cap);
                        prop_assert_eq!(at, ended.after(delay));
                        if policy.max_restarts > 0 {
                            prop_assert!(before < policy.max_restarts as usize);
                        }
                        given.push(ended);
                    }
                    Verdict::GaveUp { .. } => {
                        prop_assert!(policy.max_restarts > 0);
                        prop_assert_eq!(before, policy.max_restarts as usize);
                    }
                    Verdict::Done => prop_assert!(false, "always means always"),
                }
                // The remembered restarts are bounded by the budget.
                prop_assert!(state.recent.len() <= policy.max_restarts as usize);
            }
        }

        #[test]
        fn delays_never_shrink_in_a_series_of_failures(policy in policies(), n in 1_usize..60) {
            let policy = RestartPolicy {
                max_restarts: 0,
                healthy_after: Duration::from_secs(3600),
                ..policy
            };
            let mut state = RestartState::default();
            let mut last = Duration::ZERO;
            for _ in 0..n {
                let Verdict::Restart { delay, .. } = state.ended(&policy, CRASH, at(0), at(1)) else {
                    panic!("no budget, no end")
                };
                prop_assert!(delay >= last);
                last = delay;
            }
        }
    }
}
