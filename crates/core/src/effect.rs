//! Effects: the actions that a session requests, and the life cycle of each request.
//!
//! Intent → act → result (architecture §4). The intent is durable before the act starts. After a
//! crash, the effect's class alone determines what is done: [`after_crash`].

use serde_json::Value;

use crate::agent::OnUnknown;
use crate::command::{Launch, LifeEnded};
use crate::gate::PolicyVersion;
use crate::ids::{EffectId, StepId};
use crate::model::{ModelFailure, ModelReply, ModelRequest};
use crate::room::stay::{RoomAct, RoomReport};
use crate::time::Timestamp;
use crate::tool::{EffectClass, ToolOutcome};

/// One action to carry out.
#[derive(Clone, Debug)]
pub struct Effect {
    pub id: EffectId,
    /// The step to which it belongs; model calls between steps have none.
    pub step: Option<StepId>,
    /// Time before which it must not start (the backoff of a retry).
    pub not_before: Option<Timestamp>,
    pub action: EffectAction,
}

#[derive(Clone, Debug)]
pub enum EffectAction {
    Tool {
        name: String,
        args: Value,
        class: EffectClass,
        /// The description that a human approved. The call starts only if it still matches.
        bound: Option<Bound>,
        /// The [`crate::tool::ToolSpec::definition`] of a tool that may change during a session.
        /// The call starts only if the tool still has it.
        definition: Option<String>,
        /// The number of its step, from 0.
        step: u32,
        /// Whether the call was interrupted and is repeated. Its changes to the files of the
        /// session's environment are undone first.
        restore: bool,
    },
    Model(Box<ModelRequest>),
    /// Describe exactly what a call would do, for a human's approval. Changes nothing.
    Bind {
        name: String,
        args: Value,
        /// Files whose content matters, as [`crate::gate::GateVerdict::files`] names them.
        files: Vec<String>,
        policy: PolicyVersion,
    },
    /// Run a command and supervise it. Repeated after a crash, it means the same attempt: a running
    /// process is supervised further, and only one that never started is started. Its end is the
    /// result.
    Live(Box<Launch>),
    /// Create the session's environment, or remove it.
    Room(RoomAct),
}

/// An action that a human approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// [`crate::gate::Binding::hash`].
    pub hash: String,
    pub files: Vec<String>,
    /// The policy under which the approval was requested.
    pub policy: PolicyVersion,
}

/// The result of an effect.
#[derive(Clone, Debug)]
pub enum EffectResult {
    Tool {
        outcome: ToolOutcome,
        latency_ms: u64,
    },
    Model {
        reply: Result<Box<ModelReply>, ModelFailure>,
        latency_ms: u64,
    },
    /// [`crate::gate::Binding::hash`].
    Bound {
        hash: String,
    },
    /// The end of a command's attempt.
    Lived(LifeEnded),
    Room(RoomReport),
}

/// How to handle an effect whose result was lost in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Repeat it with the same id.
    Redo,
    /// Wait for a human to say what happened.
    AskHuman,
    /// Give the agent a result that says "unknown".
    ReportUnknown,
}

/// Decides how to handle an effect that was running when its hive or Cortex failed.
pub fn after_crash(class: EffectClass, on_unknown: OnUnknown) -> Recovery {
    match (class, on_unknown) {
        (EffectClass::Pure | EffectClass::Idempotent, _)
        | (EffectClass::Once, OnUnknown::Retry) => Recovery::Redo,
        (EffectClass::Once, OnUnknown::Ask) => Recovery::AskHuman,
        (EffectClass::Once, OnUnknown::Report) => Recovery::ReportUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_agent_with_the_setting_repeats_a_once_effect() {
        for on_unknown in [OnUnknown::Ask, OnUnknown::Retry, OnUnknown::Report] {
            assert_eq!(after_crash(EffectClass::Pure, on_unknown), Recovery::Redo);
            assert_eq!(after_crash(EffectClass::Idempotent, on_unknown), Recovery::Redo);
        }
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Ask), Recovery::AskHuman);
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Report), Recovery::ReportUnknown);
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Retry), Recovery::Redo);
    }
}
