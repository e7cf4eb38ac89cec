//! Closed sets of words in the API, each a copy of an enum of `core`.
//!
//! They are separate types because the spelling in core belongs to the log: renaming a word there
//! must be a compile error here, not a silent change of the public contract.

use overmind_core::{agent, budget, inbox, row, sandbox, tool};
use serde::{Deserialize, Serialize};

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $core:path { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            // utoipa reads no serde attribute whose literal came through a macro: it says its own.
            $($(#[$vdoc])* #[serde(rename = $word)] #[cfg_attr(feature = "openapi", schema(rename = $word))] $variant,)+
        }

        impl $name {
            /// All words, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Returns the value of a word; `None` if the word is not in the set.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl From<$core> for $name {
            fn from(core: $core) -> Self {
                use $core as Core;
                match core { $(Core::$variant => Self::$variant),+ }
            }
        }

        impl From<$name> for $core {
            fn from(wire: $name) -> Self {
                use $core as Core;
                match wire { $($name::$variant => Core::$variant),+ }
            }
        }
    )*};
}

words! {
    /// Whether new runs of an agent may be made.
    AgentStatus = agent::AgentStatus {
        Active = "active",
        Disabled = "disabled",
        Removed = "removed",
    }

    /// How costs are grouped.
    CostBy = budget::CostBy {
        Agent = "agent",
        Model = "model",
        Session = "session",
        /// By caller, for calls without a run: the name of an API key, or `admin`.
        Key = "key",
        Day = "day",
    }

    /// The window after which a limit resets, in UTC.
    Period = budget::Period {
        /// Resets at midnight.
        Day = "day",
        /// Resets on Monday at midnight.
        Week = "week",
        /// Resets at midnight on the first of the month.
        Month = "month",
        /// Never resets.
        Total = "total",
    }

    /// How calls are handled whose price is not known, if a limit in dollars applies.
    UnknownPrice = budget::UnknownPrice {
        /// The calls are refused.
        Deny = "deny",
        /// The calls are allowed, and counted as calls without a price.
        Allow = "allow",
    }

    /// The result of repeating an effect.
    EffectClass = tool::EffectClass {
        /// The effect changes nothing.
        Pure = "pure",
        /// A repetition has the same result.
        Idempotent = "idempotent",
        /// The effect must not be repeated blindly.
        Once = "once",
    }

    /// The kind of answer that an item needs from a human.
    InboxKind = inbox::InboxKind {
        /// Consent to one action.
        Approval = "approval",
        /// A text that answers a question.
        Question = "question",
        /// A higher limit.
        Raise = "raise",
        /// A decision about the work of a run that a resource owned.
        Work = "work",
    }

    /// The state of an item of the inbox. Only open items can be answered.
    InboxState = inbox::InboxState {
        Open = "open",
        Approved = "approved",
        Denied = "denied",
        Answered = "answered",
        /// It was approved too late. The approval is requested again, as another item.
        Expired = "expired",
        /// The run or resource that created it has ended.
        Withdrawn = "withdrawn",
    }

    /// How a run handles an effect whose outcome was lost in a crash.
    OnUnknown = agent::OnUnknown {
        /// Waits for a human.
        Ask = "ask",
        /// Repeats the effect.
        Retry = "retry",
        /// Reports it to the agent and continues.
        Report = "report",
    }

    /// How a run's next action is decided.
    Policy = agent::PolicyKind {
        /// By the name of the model.
        Auto = "auto",
        /// By text rules, without a model.
        Deterministic = "deterministic",
        /// By a model, in each turn.
        Model = "model",
    }

    /// The rights of an API key. An operator can do everything that a viewer can, and an admin
    /// everything that an operator can. `mcp`, `model` and `runs` are scopes for programs with one
    /// purpose.
    Role = row::Role {
        /// Calls tools with MCP, and nothing else.
        Mcp = "mcp",
        /// Calls models through the gateway, and nothing else.
        Model = "model",
        /// Reads everything except settings and keys.
        Viewer = "viewer",
        /// Starts and ends runs, reads their logs, answers the inbox, and nothing else.
        Runs = "runs",
        /// Also creates and changes agents and runs, and answers questions; limited by sandboxes.
        Operator = "operator",
        /// May do everything.
        Admin = "admin",
    }

    /// The state of a run.
    RunStatus = row::SessionStatus {
        Queued = "queued",
        Running = "running",
        /// The run asked a question and waits for the answer: see its `prompt`.
        AwaitingInput = "awaiting_input",
        /// An action of the run waits for a human's consent: see `approval_id` and `prompt`.
        AwaitingApproval = "awaiting_approval",
        /// The run has given its answer, and waits until somebody sends a message, stops it, or
        /// decides about its work.
        Idle = "idle",
        Succeeded = "succeeded",
        Failed = "failed",
        Canceled = "canceled",
    }

    /// How strongly a run's commands are isolated from the host.
    SandboxLevel = sandbox::SandboxLevel {
        None = "none",
        Namespace = "namespace",
        Docker = "docker",
        Microvm = "microvm",
    }

    /// The kind of a step.
    StepType = row::StepKind {
        Plan = "plan",
        Tool = "tool",
        AskUser = "ask_user",
        Verify = "verify",
        /// The final answer.
        Eval = "eval",
    }
}

/// How many fields of each run an answer contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunView {
    /// All fields.
    #[default]
    Full,
    /// The fields for a list, less than half of all.
    Basic,
}

impl RunView {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Basic => "basic",
        }
    }

    /// Returns the value of a word; `None` if the word is not in the set.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Full, Self::Basic].into_iter().find(|view| view.as_str() == text)
    }
}

impl RunStatus {
    /// Returns whether a run in this state has ended for good.
    pub fn is_terminal(self) -> bool {
        row::SessionStatus::from(self).is_terminal()
    }
}

/// A human's answer to an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Approve,
    Deny,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_words_equal_the_words_in_the_log() {
        for status in row::SessionStatus::ALL {
            assert_eq!(RunStatus::from(status).as_str(), status.as_str());
            assert_eq!(row::SessionStatus::from(RunStatus::from(status)), status);
        }
        for state in inbox::InboxState::ALL {
            assert_eq!(InboxState::from(state).as_str(), state.as_str());
        }
        for kind in inbox::InboxKind::ALL {
            assert_eq!(InboxKind::from(kind).as_str(), kind.as_str());
        }
        for role in row::Role::ALL {
            assert_eq!(Role::from(role).as_str(), role.as_str());
        }
        for &kind in StepType::ALL {
            assert_eq!(row::StepKind::from(kind).as_str(), kind.as_str());
        }
    }

    #[test]
    fn words_print_as_they_are_serialised_and_parse_back() {
        for &status in RunStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            assert_eq!(RunStatus::parse(status.as_str()), Some(status));
        }
        assert_eq!(RunStatus::parse("done"), None);
        assert_eq!(format!("{:>8}|", RunStatus::Failed), "  failed|");
    }
}
