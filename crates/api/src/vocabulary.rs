//! Closed sets of words on the wire, each the mirror of an enum of `core`.
//!
//! They are separate types because core's own spelling belongs to the log: renaming a word there
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
            /// Every word, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The word's value; `None` for a word outside the set.
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

    /// What costs are grouped by.
    CostBy = budget::CostBy {
        Agent = "agent",
        Model = "model",
        Session = "session",
        /// Who calls models without a run: an API key, by name, or `admin`.
        Key = "key",
        Day = "day",
    }

    /// The window after which a limit resets, by the calendar of UTC.
    Period = budget::Period {
        /// From midnight to midnight.
        Day = "day",
        /// From Monday, midnight.
        Week = "week",
        /// From midnight of the first.
        Month = "month",
        /// For ever.
        Total = "total",
    }

    /// What becomes of calls whose price is not known, where a limit in dollars applies.
    UnknownPrice = budget::UnknownPrice {
        /// They are refused.
        Deny = "deny",
        /// They are let through, and counted as calls without a price.
        Allow = "allow",
    }

    /// What a second run of the same effect would do.
    EffectClass = tool::EffectClass {
        /// Changes nothing.
        Pure = "pure",
        /// Changes the same thing in the same way.
        Idempotent = "idempotent",
        /// Never repeated blindly.
        Once = "once",
    }

    /// What is wanted of a human.
    InboxKind = inbox::InboxKind {
        /// Consent to one action.
        Approval = "approval",
        /// Words.
        Question = "question",
        /// More of a limit.
        Raise = "raise",
        /// What becomes of the work that a run of a resource left.
        Work = "work",
    }

    /// Where an item of the inbox stands; only open ones can be answered.
    InboxState = inbox::InboxState {
        Open = "open",
        Approved = "approved",
        Denied = "denied",
        Answered = "answered",
        /// Approved when it was too late: the approval is asked for again, as another item.
        Expired = "expired",
        /// What asked has ended.
        Withdrawn = "withdrawn",
    }

    /// What to do about an effect whose outcome a crash has hidden.
    OnUnknown = agent::OnUnknown {
        /// Wait for a human.
        Ask = "ask",
        /// Do it again.
        Retry = "retry",
        /// Tell the agent and go on.
        Report = "report",
    }

    /// Who decides a run's next action.
    Policy = agent::PolicyKind {
        /// By the model's name.
        Auto = "auto",
        /// The text rules; needs no model.
        Deterministic = "deterministic",
        /// A model decides each turn.
        Model = "model",
    }

    /// What an API key may do. Of viewer, operator and admin each can do what the one before it can;
    /// mcp, model and runs are scopes for programs that do one thing.
    Role = row::Role {
        /// Calls tools by MCP, and nothing else.
        Mcp = "mcp",
        /// Calls models by the gateway, and nothing else.
        Model = "model",
        /// Reads everything but settings and keys.
        Viewer = "viewer",
        /// Starts and ends runs, reads their logs, answers the inbox, and nothing else.
        Runs = "runs",
        /// Also creates and changes agents and runs, and answers questions; bounded by sandboxes.
        Operator = "operator",
        /// Everything.
        Admin = "admin",
    }

    /// Where a run stands.
    RunStatus = row::SessionStatus {
        Queued = "queued",
        Running = "running",
        /// It asked a question: see the run's `prompt`.
        AwaitingInput = "awaiting_input",
        /// An action needs a human's consent: see `approval_id` and `prompt`.
        AwaitingApproval = "awaiting_approval",
        /// It has given its answer, and rests until somebody says more, stops it, or decides its work.
        Idle = "idle",
        Succeeded = "succeeded",
        Failed = "failed",
        Canceled = "canceled",
    }

    /// How strongly a run's commands are kept apart from the host.
    SandboxLevel = sandbox::SandboxLevel {
        None = "none",
        Namespace = "namespace",
        Docker = "docker",
        Microvm = "microvm",
    }

    /// What a step is.
    StepType = row::StepKind {
        Plan = "plan",
        Tool = "tool",
        AskUser = "ask_user",
        Verify = "verify",
        /// The final answer.
        Eval = "eval",
    }
}

/// How much of each run an answer tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunView {
    /// All that is known.
    #[default]
    Full,
    /// What a list shows: less than half of it.
    Basic,
}

impl RunView {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Basic => "basic",
        }
    }

    /// The word's value; `None` for a word outside the set.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Full, Self::Basic].into_iter().find(|view| view.as_str() == text)
    }
}

impl RunStatus {
    /// Ended for good.
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
    fn wire_words_are_the_words_of_the_log() {
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
