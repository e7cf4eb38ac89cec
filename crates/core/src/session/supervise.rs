//! The supervisor: finds loops and repeated failures in a session's last actions, warns the model,
//! and in the end stops the session.
//!
//! It uses heuristics only. An earlier system also asked a model for advice every few steps. That
//! is deliberately absent: it cost a call per turn, and its own filter dropped most of the advice.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Number of warnings at which a stalled session ends.
pub const STRIKES: u32 = 3;
const KEPT: usize = 8;

/// A finished action, reduced to the fields that patterns need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub tool: String,
    /// Hash of the arguments.
    pub args: u64,
    /// Hash of the result, without its latency.
    pub result: u64,
    pub ok: bool,
}

/// The last actions, newest last, at most eight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    last: VecDeque<Trace>,
    good: u32,
    strikes: u32,
}

/// A session that repeats itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    pub pattern: &'static str,
    pub what: String,
    pub strike: u32,
}

impl History {
    pub fn push(&mut self, trace: Trace) {
        if trace.ok {
            self.good += 1;
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(trace);
    }

    /// Returns whether an earlier action gave the same result for the same arguments, which is no
    /// progress.
    pub fn repeats(&self, trace: &Trace) -> bool {
        self.last.iter().any(|old| old == trace)
    }

    /// Looks for a loop. Each loop found is a strike and clears the history, so the next strike
    /// needs a whole loop again.
    pub fn stall(&mut self) -> Option<Stall> {
        let last: Vec<_> = self.last.iter().rev().collect();
        let same = |a: usize, b: usize| last[a] == last[b];
        let (pattern, what) = if last.len() >= 3 && same(0, 1) && same(1, 2) {
            ("repeat", format!("`{}` gave the same result three times in a row", last[0].tool))
        } else if last.len() >= 6 && !same(0, 1) && (0..4).all(|i| same(i, i + 2)) {
            (
                "alternate",
                format!(
                    "`{}` and `{}` take turns with the same results",
                    last[1].tool, last[0].tool
                ),
            )
        } else {
            return None;
        };
        self.last.clear();
        self.strikes += 1;
        Some(Stall { pattern, what, strike: self.strikes })
    }

    /// Returns the directive for the next turn.
    pub fn directive(&self, steps_left: Option<u32>, failures: u32) -> Directive {
        let recent_failure = self.last.iter().rev().take(4).any(|trace| !trace.ok);
        let mode = if failures > 0 || recent_failure {
            Mode::Recovery
        } else if self.good < 2 {
            Mode::Exploration
        } else {
            Mode::Execution
        };
        Directive { mode, steps_left }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exploration,
    Execution,
    Recovery,
}

/// Advice for the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directive {
    pub mode: Mode,
    pub steps_left: Option<u32>,
}

impl Directive {
    pub fn to_value(self) -> Value {
        let (mode, phase, failures) = match self.mode {
            Mode::Exploration => ("exploration", "map_environment", 3),
            Mode::Execution => ("execution", "execute_objective", 3),
            Mode::Recovery => ("recovery", "recover_progress", 2),
        };
        let mut budget = json!({
            "max_steps": self.steps_left.map_or(8, |left| left.clamp(1, 8)),
            "max_failures": failures,
        });
        if let Some(left) = self.steps_left {
            budget["remaining_steps_total"] = json!(left);
        }
        json!({"source": "heuristic", "mode": mode, "phase": phase, "budget": budget})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(tool: &str, result: u64) -> Trace {
        Trace { tool: tool.into(), args: 1, result, ok: true }
    }

    #[test]
    fn three_equal_results_in_a_row_are_a_strike() {
        let mut history = History::default();
        for n in 0..10 {
            history.push(trace("poll", n));
            assert_eq!(history.stall(), None, "polling that changes is progress");
        }
        for strike in 1..=STRIKES {
            history.push(trace("read", 7));
            history.push(trace("read", 7));
            assert_eq!(history.stall(), None);
            history.push(trace("read", 7));
            let stall = history.stall().expect("a loop of one");
            assert_eq!((stall.pattern, stall.strike), ("repeat", strike));
        }
    }

    #[test]
    fn two_alternating_actions_are_a_strike() {
        let mut history = History::default();
        for n in 0..6 {
            assert_eq!(history.stall(), None);
            history.push(trace(if n % 2 == 0 { "a" } else { "b" }, n % 2));
        }
        assert_eq!(history.stall().expect("a loop of two").pattern, "alternate");
    }

    #[test]
    fn a_failure_changes_the_directive_to_recovery() {
        let mut history = History::default();
        assert_eq!(history.directive(None, 0).mode, Mode::Exploration);
        history.push(trace("a", 1));
        history.push(trace("b", 1));
        assert_eq!(history.directive(None, 0).mode, Mode::Execution);
        assert_eq!(history.directive(None, 1).mode, Mode::Recovery);
        let shown = history.directive(Some(3), 0).to_value();
        assert_eq!(shown["budget"]["remaining_steps_total"], 3);
    }
}
