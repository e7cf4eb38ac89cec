//! The rules that must hold after any number of crashes. One function per rule; each says what
//! exactly is wrong, and with which session.
//!
//! Most rules use only the log and the rows, without the state machine that wrote them; `Replay`
//! and `RowIsLog` use the state machine as the second witness.

mod effects;
mod log;
mod outside;

use super::evidence::{Evidence, Story};

/// The possible errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Acknowledged objects exist once; existing objects were requested.
    Acknowledged,
    /// Every run has ended.
    Settled,
    /// Hashes, heads and signatures are whole.
    Audit,
    /// Numbers have no gaps.
    Sequence,
    /// One terminal event without later events.
    OneEnd,
    /// The log decides itself again.
    Replay,
    /// Rows agree with the log.
    RowIsLog,
    /// Steps have no gaps, and start and end once.
    Steps,
    /// A result is accepted once, and is the step's output.
    ToolCalls,
    /// The model's answers are counted once.
    ModelCalls,
    /// Each start has a higher epoch.
    Epochs,
    /// The state of the world agrees with the log about actions and their number.
    Marks,
    /// A stored memory is stored once.
    Memory,
    /// Files contain the output of their steps.
    Files,
    /// An action that a person approved was carried out.
    Orders,
    /// Every action that needs consent had it.
    Approvals,
    /// The inbox agrees with the log: waiting items are open, and no others.
    Inbox,
    /// The API agrees with the rows.
    Views,
    /// No process outlives its daemon.
    Processes,
    /// No file is left that should have been removed.
    Litter,
    /// No lock outlives its daemon.
    Locks,
    /// No daemon panicked, failed or contradicted itself.
    Complaints,
}

impl Rule {
    pub(crate) const ALL: [Self; 22] = [
        Self::Acknowledged,
        Self::Settled,
        Self::Audit,
        Self::Sequence,
        Self::OneEnd,
        Self::Replay,
        Self::RowIsLog,
        Self::Steps,
        Self::ToolCalls,
        Self::ModelCalls,
        Self::Epochs,
        Self::Marks,
        Self::Memory,
        Self::Files,
        Self::Orders,
        Self::Approvals,
        Self::Inbox,
        Self::Views,
        Self::Processes,
        Self::Litter,
        Self::Locks,
        Self::Complaints,
    ];
}

/// One objection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) about: String,
}

/// The list to which a rule adds its findings.
struct Found {
    rule: Rule,
    violations: Vec<Violation>,
}

impl Found {
    fn add(&mut self, about: impl Into<String>) {
        self.violations.push(Violation { rule: self.rule, about: about.into() });
    }

    fn unless(&mut self, holds: bool, about: impl FnOnce() -> String) {
        if !holds {
            self.add(about());
        }
    }
}

/// Checks everything; empty when all is well.
pub(crate) fn check(evidence: &Evidence) -> Vec<Violation> {
    type Whole = fn(&Evidence, &mut Found);
    type Single = fn(&Evidence, &Story, &mut Found);
    let whole: [(Rule, Whole); 9] = [
        (Rule::Acknowledged, outside::acknowledged),
        (Rule::Audit, log::audit),
        (Rule::Sequence, log::globals),
        (Rule::Marks, effects::marks_of_nobody),
        (Rule::Memory, effects::memory_of_nobody),
        (Rule::Processes, outside::processes),
        (Rule::Litter, outside::litter),
        (Rule::Locks, outside::locks),
        (Rule::Complaints, outside::complaints),
    ];
    let single: [(Rule, Single); 17] = [
        (Rule::Settled, log::settled),
        (Rule::Sequence, log::sequence),
        (Rule::OneEnd, log::one_end),
        (Rule::Replay, log::replay),
        (Rule::RowIsLog, log::row_is_log),
        (Rule::Steps, log::steps),
        (Rule::Epochs, log::epochs),
        (Rule::Inbox, log::inbox),
        (Rule::ToolCalls, effects::tool_calls),
        (Rule::ModelCalls, effects::model_calls),
        (Rule::Marks, effects::marks),
        (Rule::Memory, effects::memory),
        (Rule::Files, effects::files),
        (Rule::Files, effects::artifacts),
        (Rule::Approvals, effects::approvals),
        (Rule::Orders, outside::orders),
        (Rule::Views, outside::views),
    ];
    let mut violations = Vec::new();
    for (rule, check) in whole {
        let mut found = Found { rule, violations: Vec::new() };
        check(evidence, &mut found);
        violations.append(&mut found.violations);
    }
    for (session, story) in &evidence.stories {
        for (rule, check) in single {
            let mut found = Found { rule, violations: Vec::new() };
            check(evidence, story, &mut found);
            for Violation { rule, about } in found.violations {
                violations.push(Violation { rule, about: format!("{session}: {about}") });
            }
        }
    }
    violations
}
