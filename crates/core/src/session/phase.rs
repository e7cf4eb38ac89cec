//! What a session is doing between two inputs.

use serde_json::Value;

use crate::approval::Approval;
use crate::row::StepRow;
use crate::tool::EffectClass;

#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Queued, never started.
    Fresh,
    /// A model is asked what to do next.
    Deciding {
        effect: u64,
        request: Value,
    },
    /// The calls of one decision are worked off in their order.
    Acting {
        calls: Vec<Call>,
    },
    /// A human is asked.
    Asking {
        question: Question,
    },
    /// A human is asked whether the first call that is not done may happen.
    Approving {
        calls: Vec<Call>,
        approval: Approval,
    },
    /// A fork whose repeated part is over and that has not started yet.
    Forked {
        then: Box<Phase>,
    },
    Ended,
}

#[derive(Clone, Debug)]
pub(super) enum Question {
    /// The agent asked; the step closes with the answer.
    Agent { step: Option<Box<StepRow>>, calls: Vec<Call> },
    /// What became of the first call that is not done? A crash has hidden it.
    Unknown { calls: Vec<Call> },
    /// A verification failed and says what to ask then.
    Verify { calls: Vec<Call> },
    /// The model could not be reached; any answer tries again.
    Model,
}

impl Question {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Agent { .. } => "question",
            Self::Unknown { .. } => "unknown_outcome",
            Self::Verify { .. } => "verification_failed",
            Self::Model => "model_unreachable",
        }
    }
}

/// One tool call of a decision.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The model's own id of the call; `None` when the rules decided.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) args: Value,
    pub(super) class: EffectClass,
    /// Opened when the call begins.
    pub(super) step: Option<StepRow>,
    pub(super) approved: bool,
    pub(super) state: CallState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    Waiting,
    Running { effect: u64, attempt: u32 },
    Done,
}

impl Phase {
    /// Numbers of the effects under way.
    pub(super) fn running(&self) -> impl Iterator<Item = u64> + '_ {
        let (model, calls): (Option<u64>, &[Call]) = match self {
            Self::Deciding { effect, .. } => (Some(*effect), &[]),
            Self::Acting { calls } => (None, calls),
            // A fork's repeated part never began its effects.
            Self::Forked { .. }
            | Self::Fresh
            | Self::Asking { .. }
            | Self::Approving { .. }
            | Self::Ended => (None, &[]),
        };
        model.into_iter().chain(calls.iter().filter_map(|call| match call.state {
            CallState::Running { effect, .. } => Some(effect),
            CallState::Waiting | CallState::Done => None,
        }))
    }

    pub(super) fn call(&self, effect: u64) -> Option<&Call> {
        let Self::Acting { calls } = self else { return None };
        calls
            .iter()
            .find(|call| matches!(call.state, CallState::Running { effect: n, .. } if n == effect))
    }

    /// Grants were given to the session that a fork repeats, not to the fork.
    pub(super) fn forget_grants(&mut self) {
        let calls = match self {
            Self::Acting { calls }
            | Self::Approving { calls, .. }
            | Self::Asking {
                question:
                    Question::Agent { calls, .. }
                    | Question::Unknown { calls }
                    | Question::Verify { calls },
            } => calls,
            Self::Forked { then } => return then.forget_grants(),
            Self::Asking { question: Question::Model }
            | Self::Fresh
            | Self::Deciding { .. }
            | Self::Ended => return,
        };
        for call in calls {
            call.approved = false;
        }
    }

    /// Steps that began and have no end yet.
    pub(super) fn into_open_steps(self) -> Vec<StepRow> {
        let open = |calls: Vec<Call>| -> Vec<StepRow> {
            calls
                .into_iter()
                .filter(|call| call.state != CallState::Done)
                .filter_map(|call| call.step)
                .collect()
        };
        match self {
            Self::Acting { calls } | Self::Approving { calls, .. } => open(calls),
            Self::Asking { question } => match question {
                Question::Agent { step, calls } => {
                    step.into_iter().map(|step| *step).chain(open(calls)).collect()
                }
                Question::Unknown { calls } | Question::Verify { calls } => open(calls),
                Question::Model => Vec::new(),
            },
            Self::Forked { then } => then.into_open_steps(),
            Self::Fresh | Self::Deciding { .. } | Self::Ended => Vec::new(),
        }
    }
}
