//! Effects: what a session asks the world to do, and the life of each request.
//!
//! Intent → act → result (architecture §4). The intent is durable before the act begins; what a
//! crash makes of it depends on the class alone: [`after_crash`].

use serde_json::Value;

use crate::agent::OnUnknown;
use crate::command::{Launch, LifeEnded};
use crate::gate::PolicyVersion;
use crate::ids::{EffectId, StepId};
use crate::model::{ModelFailure, ModelReply, ModelRequest};
use crate::room::stay::{RoomAct, RoomReport};
use crate::time::Timestamp;
use crate::tool::{EffectClass, ToolOutcome};

/// One thing to do.
#[derive(Clone, Debug)]
pub struct Effect {
    pub id: EffectId,
    /// The step it works for; model calls between steps have none.
    pub step: Option<StepId>,
    /// Not to be begun before this time (the backoff of a retry).
    pub not_before: Option<Timestamp>,
    pub action: EffectAction,
}

#[derive(Clone, Debug)]
pub enum EffectAction {
    Tool {
        name: String,
        args: Value,
        class: EffectClass,
        /// What a human agreed to: the call begins only if it is still that.
        bound: Option<Bound>,
        /// [`crate::tool::ToolSpec::definition`] of a tool that may change while the session
        /// lives: the call begins only if it is still that tool.
        definition: Option<String>,
        /// The number of its step, from 0.
        step: u32,
        /// It was cut off, and is done again: what it did to the files of its session's room is taken
        /// back first.
        restore: bool,
    },
    Model(Box<ModelRequest>),
    /// Say what exactly a call would do, for a human to agree to. Changes nothing.
    Bind {
        name: String,
        args: Value,
        /// Files whose content counts, as [`crate::gate::GateVerdict::files`] names them.
        files: Vec<String>,
        policy: PolicyVersion,
    },
    /// Keep a command alive. Begun again after a crash it means the same life: what is there is
    /// looked after, and only what never was is started. Its end is its result.
    Live(Box<Launch>),
    /// Make what the session works in, or give it back.
    Room(RoomAct),
}

/// An action that a human agreed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// [`crate::gate::Binding::hash`].
    pub hash: String,
    pub files: Vec<String>,
    /// The policy under which it was asked for.
    pub policy: PolicyVersion,
}

/// What came of it.
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
    /// How a command's life ended.
    Lived(LifeEnded),
    Room(RoomReport),
}

/// What to do about an effect whose result a crash has hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Do it again, under the same id.
    Redo,
    /// Wait for a human to say what became of it.
    AskHuman,
    /// Hand the agent a result that says "unknown".
    ReportUnknown,
}

/// Decides what becomes of an effect that was under way when its hive or Cortex died.
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
    fn only_an_agent_that_says_so_repeats_a_once_effect() {
        for on_unknown in [OnUnknown::Ask, OnUnknown::Retry, OnUnknown::Report] {
            assert_eq!(after_crash(EffectClass::Pure, on_unknown), Recovery::Redo);
            assert_eq!(after_crash(EffectClass::Idempotent, on_unknown), Recovery::Redo);
        }
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Ask), Recovery::AskHuman);
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Report), Recovery::ReportUnknown);
        assert_eq!(after_crash(EffectClass::Once, OnUnknown::Retry), Recovery::Redo);
    }
}
