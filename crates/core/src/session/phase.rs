//! The phase of a session between two inputs.

use serde_json::Value;

use super::life::Living;
use super::room::Closing;
use crate::approval::Approval;
use crate::effect::Bound;
use crate::gate::GateVerdict;
use crate::row::StepRow;
use crate::tool::EffectClass;

#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It is queued and never started.
    Fresh,
    /// A model was asked for the next action.
    Deciding {
        effect: u64,
        request: Value,
    },
    /// The calls of one decision run in their order.
    Acting {
        calls: Vec<Call>,
    },
    /// It waits for a human's answer.
    Asking {
        question: Question,
    },
    /// It waits for a human's approval of the first call that is not done.
    Approving {
        calls: Vec<Call>,
        approval: Approval,
    },
    /// It has given its answer and is idle. A person may send a message or end it.
    Resting,
    /// A person sent a message. It continues when its environment is ready.
    Waking {
        message: String,
    },
    /// A fork whose repeated part is over and that has not started yet.
    Forked {
        then: Box<Phase>,
    },
    /// Its environment is being created. `then` follows when it is ready.
    Preparing {
        effect: u64,
        then: Box<Phase>,
    },
    /// Its command runs, or will run again.
    Living(Box<Living>),
    /// Its result is decided, and its environment is being removed.
    Closing(Box<Closing>),
    Ended,
}

#[derive(Clone, Debug)]
pub(super) enum Question {
    /// A question of the agent. The step closes with the answer.
    Agent { step: Option<Box<StepRow>>, calls: Vec<Call> },
    /// The result of the first call that is not done was lost in a crash. A human states it.
    Unknown { calls: Vec<Call> },
    /// A verification failed and produced this question.
    Verify { calls: Vec<Call> },
    /// The model could not be reached. Any answer tries again.
    Model,
    /// A budget does not allow the call. Any answer except `deny` tries again.
    Budget { code: String, message: String },
}

impl Question {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Agent { .. } => "question",
            Self::Unknown { .. } => "unknown_outcome",
            Self::Verify { .. } => "verification_failed",
            Self::Model => "model_unreachable",
            Self::Budget { .. } => "budget",
        }
    }
}

/// One tool call of a decision.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The model's own id of the call; `None` if the rules decided.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) args: Value,
    pub(super) class: EffectClass,
    /// The step, opened when the call starts.
    pub(super) step: Option<StepRow>,
    pub(super) clearance: Clearance,
    pub(super) state: CallState,
}

/// Whether a call may start.
#[derive(Clone, Debug)]
pub(super) enum Clearance {
    /// There is no decision, or an earlier one is no longer valid.
    None,
    /// A human must approve, for the reasons that the policy gives.
    Asked(Box<GateVerdict>),
    /// The call may start. `bound` is the description that a human approved.
    Given { bound: Option<Bound> },
}

impl Clearance {
    pub(super) fn bound(&self) -> Option<Bound> {
        match self {
            Self::Given { bound } => bound.clone(),
            Self::None | Self::Asked(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    Waiting,
    /// The call waits for a verdict, before anything else.
    Judging,
    /// The Hive describes exactly what the call would do.
    Binding {
        effect: u64,
    },
    Running {
        effect: u64,
        attempt: u32,
    },
    Done,
}

impl Call {
    pub(super) fn new(id: Option<String>, name: String, args: Value, class: EffectClass) -> Self {
        let (clearance, state) = (Clearance::None, CallState::Waiting);
        Self { id, name, args, class, step: None, clearance, state }
    }
}

impl CallState {
    /// Returns whether the call's permission is being checked now. Nothing else starts meanwhile.
    pub(super) fn is_being_cleared(self) -> bool {
        match self {
            Self::Judging | Self::Binding { .. } => true,
            Self::Waiting | Self::Running { .. } | Self::Done => false,
        }
    }
}

impl Phase {
    /// Returns the state of a command that runs or will run again.
    pub(super) fn living(&self) -> Option<&Living> {
        match self {
            Self::Living(living) => Some(living),
            Self::Fresh
            | Self::Deciding { .. }
            | Self::Acting { .. }
            | Self::Asking { .. }
            | Self::Approving { .. }
            | Self::Resting
            | Self::Waking { .. }
            | Self::Forked { .. }
            | Self::Preparing { .. }
            | Self::Closing(_)
            | Self::Ended => None,
        }
    }

    /// Returns the numbers of the running effects.
    pub(super) fn running(&self) -> impl Iterator<Item = u64> + '_ {
        let (model, calls): (Option<u64>, &[Call]) = match self {
            Self::Deciding { effect, .. } => (Some(*effect), &[]),
            Self::Acting { calls } => (None, calls),
            Self::Living(living) => (living.effect, &[]),
            Self::Preparing { effect, .. } => (Some(*effect), &[]),
            Self::Closing(closing) => (Some(closing.effect), &[]),
            // A fork's repeated part never began its effects.
            Self::Forked { .. }
            | Self::Fresh
            | Self::Asking { .. }
            | Self::Approving { .. }
            | Self::Resting
            | Self::Waking { .. }
            | Self::Ended => (None, &[]),
        };
        model.into_iter().chain(calls.iter().filter_map(|call| match call.state {
            CallState::Running { effect, .. } | CallState::Binding { effect } => Some(effect),
            CallState::Waiting | CallState::Judging | CallState::Done => None,
        }))
    }

    pub(super) fn call(&self, effect: u64) -> Option<&Call> {
        let Self::Acting { calls } = self else { return None };
        calls
            .iter()
            .find(|call| matches!(call.state, CallState::Running { effect: n, .. } if n == effect))
    }

    /// Returns the call whose permission is being checked now.
    pub(super) fn being_cleared(&self) -> Option<&Call> {
        let Self::Acting { calls } = self else { return None };
        calls.iter().find(|call| call.state.is_being_cleared())
    }

    pub(super) fn binds(&self, effect: u64) -> bool {
        self.being_cleared().is_some_and(|call| call.state == CallState::Binding { effect })
    }

    /// Forgets approvals: they were given to the original session and not to the fork.
    pub(super) fn forget_grants(&mut self) {
        // A question that is open stays open; whether it is still about the same action is seen
        // when that begins.
        let asked = matches!(self, Self::Approving { .. });
        let calls = match self {
            Self::Acting { calls }
            | Self::Approving { calls, .. }
            | Self::Asking {
                question:
                    Question::Agent { calls, .. }
                    | Question::Unknown { calls }
                    | Question::Verify { calls },
            } => calls,
            Self::Forked { then } | Self::Preparing { then, .. } => return then.forget_grants(),
            Self::Asking { question: Question::Model | Question::Budget { .. } }
            | Self::Fresh
            | Self::Deciding { .. }
            | Self::Resting
            | Self::Waking { .. }
            | Self::Living(_)
            | Self::Closing(_)
            | Self::Ended => return,
        };
        for call in calls {
            if !(asked && matches!(call.clearance, Clearance::Asked(_))) {
                call.clearance = Clearance::None;
            }
        }
    }

    /// Returns the steps that have started and not ended.
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
                Question::Model | Question::Budget { .. } => Vec::new(),
            },
            Self::Forked { then } | Self::Preparing { then, .. } => then.into_open_steps(),
            Self::Fresh
            | Self::Deciding { .. }
            | Self::Resting
            | Self::Waking { .. }
            | Self::Living(_)
            | Self::Closing(_)
            | Self::Ended => Vec::new(),
        }
    }
}
