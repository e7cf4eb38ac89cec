//! Requests of callers, parsed but not checked yet.

use std::collections::BTreeMap;

use overmind_core::agent::{AgentBudget, AgentLimits, AgentStatus, OnUnknown, PolicyKind};
use overmind_core::command::CommandSpec;
use overmind_core::ids::{AgentId, InboxId, RecordId, SessionId};
use overmind_core::inbox::{InboxKind, InboxState};
use overmind_core::record::Selector;
use overmind_core::room::RoomWish;
use overmind_core::row::SessionStatus;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::NameFilter;
use serde_json::Value;

/// A new agent. A field that is `None` gets its default.
#[derive(Clone, Debug, Default)]
pub struct AgentDraft {
    pub name: String,
    pub role: String,
    pub model: String,
    pub tools_allowed: Vec<String>,
    pub policy: Option<PolicyKind>,
    pub sandbox: Option<SandboxLevel>,
    pub limits: Option<AgentLimits>,
    pub on_unknown: Option<OnUnknown>,
    pub approvals: Option<Vec<String>>,
    pub reasoning_effort: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub command: Option<CommandSpec>,
    pub budget: Option<AgentBudget>,
}

/// A change of an agent. A field that is `None` stays unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentPatch {
    pub name: Option<String>,
    pub role: Option<String>,
    pub model: Option<String>,
    pub tools_allowed: Option<Vec<String>>,
    pub status: Option<AgentStatus>,
    pub policy: Option<PolicyKind>,
    pub sandbox: Option<SandboxLevel>,
    pub limits: Option<AgentLimits>,
    pub on_unknown: Option<OnUnknown>,
    pub approvals: Option<Vec<String>>,
    pub reasoning_effort: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub command: Option<CommandSpec>,
    /// `Some(None)` removes it.
    pub budget: Option<Option<AgentBudget>>,
    /// The version that the caller read (If-Match); a different one is a conflict.
    pub if_version: Option<u32>,
}

/// A new session.
#[derive(Clone, Debug, Default)]
pub struct SessionDraft {
    /// The agent's id or exact name.
    pub agent: String,
    /// May be empty.
    pub task: String,
    /// `None` gets a generated name.
    pub name: Option<String>,
    /// The session for which it is started: an id, or the name of one that has not ended.
    pub parent: Option<String>,
    /// Replaces the agent's own command; with an empty `argv`, the agent's is kept.
    pub command: Option<CommandSpec>,
    /// Replaces the sandbox of a command agent by a stronger one.
    pub sandbox: Option<SandboxLevel>,
    /// The environment of a command's run; `None` means the default.
    pub room: Option<RoomWish>,
    /// `None` means the agent's `max_steps`; 0 is no limit.
    pub step_limit: Option<u32>,
    /// An absolute directory; `None` means the server's workspace.
    pub workspace: Option<String>,
    /// Whether it becomes idle after its answer; with `None`, only a program that takes more input
    /// does.
    pub conversation: Option<bool>,
    pub labels: BTreeMap<String, String>,
    /// Names of its contexts.
    pub contexts: Vec<String>,
    /// Its memory claims: names, with `:ro` to read only.
    pub claims: Vec<String>,
    /// The total that it and all its descendants may spend.
    pub budget: Option<SessionBudget>,
    /// The record for which a reconciler starts it.
    pub owner: Option<RecordId>,
    /// The Idempotency-Key header and the BLAKE3 of the body.
    pub idempotency: Option<(String, [u8; 32])>,
}

/// The total that a session may spend; at least one of the two is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionBudget {
    /// Millionths of a US dollar.
    pub microusd: Option<u64>,
    /// The sum of input and output tokens.
    pub tokens: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    /// Only sessions with one of these statuses; if empty, with any.
    pub statuses: Vec<SessionStatus>,
    pub agent: Option<AgentId>,
    /// Only sessions that this session started.
    pub parent: Option<SessionId>,
    pub name: Option<NameFilter>,
    /// Selects only the sessions that this record owns.
    pub owner: Option<RecordId>,
    pub selector: Selector,
}

/// The changes of a fork.
#[derive(Clone, Debug, Default)]
pub struct ForkDraft {
    /// The fork repeats everything before this step.
    pub at: u32,
    pub model: Option<String>,
    /// Replaces the agent's role text.
    pub prompt: Option<String>,
    /// `None` gets a generated name.
    pub name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Approve,
    Deny,
}

/// Selects inbox items; all given conditions must be met.
#[derive(Clone, Debug, Default)]
pub struct InboxQuery {
    pub state: Option<InboxState>,
    pub kind: Option<InboxKind>,
    pub session: Option<SessionId>,
    pub group: Option<String>,
}

/// A human's answer to an inbox item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxAnswer {
    /// The answer to an approval.
    Approve { reason: Option<String> },
    /// The answer to an approval; the model gets the reason.
    Deny { reason: Option<String> },
    /// The answer to a question.
    Words { message: String },
    /// The answer to a budget request: the amount of the increase.
    Raise { raise: crate::budgets::Raise, reason: Option<String> },
}

/// One answer to several items.
#[derive(Clone, Debug)]
pub struct InboxBatch {
    /// The items that the human has seen; no others are answered.
    pub ids: Vec<InboxId>,
    /// Refuses items that are not in this group.
    pub group: Option<String>,
    pub answer: InboxAnswer,
}

/// A direct tool call on behalf of a run.
#[derive(Clone, Debug)]
pub struct ToolCallDraft {
    pub tool: String,
    pub args: Value,
}
