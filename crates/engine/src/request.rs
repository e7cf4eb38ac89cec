//! What callers ask for, already parsed and not yet checked.

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

/// A new agent. What is `None` takes its default.
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

/// A change of an agent. What is `None` stays as it is.
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
    /// `Some(None)` takes it away.
    pub budget: Option<Option<AgentBudget>>,
    /// The version that the caller read (If-Match); another one is a conflict.
    pub if_version: Option<u32>,
}

/// A new session.
#[derive(Clone, Debug, Default)]
pub struct SessionDraft {
    /// Id or exact name.
    pub agent: String,
    /// May be empty.
    pub task: String,
    /// `None` takes a generated one.
    pub name: Option<String>,
    /// The session that it is started for: an id, or the name of one that has not ended.
    pub parent: Option<String>,
    /// In place of the agent's own command; an empty `argv` takes the agent's.
    pub command: Option<CommandSpec>,
    /// In place of the agent's sandbox, of an agent that is a command: a stronger one.
    pub sandbox: Option<SandboxLevel>,
    /// What a run of a command works in; `None` is the default wish.
    pub room: Option<RoomWish>,
    /// `None` takes the agent's `max_steps`; 0 is none.
    pub step_limit: Option<u32>,
    /// Absolute directory; `None` takes the server's workspace.
    pub workspace: Option<String>,
    /// Whether it rests after its answer; `None`: only a program that takes more input does.
    pub conversation: Option<bool>,
    pub labels: BTreeMap<String, String>,
    /// Names of contexts that it is given.
    pub contexts: Vec<String>,
    /// What it and all that it starts may spend in all.
    pub budget: Option<SessionBudget>,
    /// The record that a reconciler starts it for.
    pub owner: Option<RecordId>,
    /// The Idempotency-Key header and the BLAKE3 of the body.
    pub idempotency: Option<(String, [u8; 32])>,
}

/// What a session may spend in all; at least one of the two is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionBudget {
    /// Millionths of a US dollar.
    pub microusd: Option<u64>,
    /// Input and output tokens together.
    pub tokens: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    /// At one of these; empty: at any.
    pub statuses: Vec<SessionStatus>,
    pub agent: Option<AgentId>,
    /// Started by this session.
    pub parent: Option<SessionId>,
    pub name: Option<NameFilter>,
    /// Started for this record.
    pub owner: Option<RecordId>,
    pub selector: Selector,
}

/// What a fork changes from the fork on.
#[derive(Clone, Debug, Default)]
pub struct ForkDraft {
    /// The fork repeats everything before this step.
    pub at: u32,
    pub model: Option<String>,
    /// Replaces the agent's role text.
    pub prompt: Option<String>,
    /// Not given: a generated one.
    pub name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Approve,
    Deny,
}

/// Which items of the inbox; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct InboxQuery {
    pub state: Option<InboxState>,
    pub kind: Option<InboxKind>,
    pub session: Option<SessionId>,
    pub group: Option<String>,
}

/// What a human says to an item of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxAnswer {
    /// To an approval.
    Approve { reason: Option<String> },
    /// To an approval; the model hears the reason.
    Deny { reason: Option<String> },
    /// To a question.
    Words { message: String },
    /// To a raise: by how much.
    Raise { raise: crate::budgets::Raise, reason: Option<String> },
}

/// One answer to several items.
#[derive(Clone, Debug)]
pub struct InboxBatch {
    /// What the human has seen: nothing else is answered.
    pub ids: Vec<InboxId>,
    /// Refuse items that are not of this group.
    pub group: Option<String>,
    pub answer: InboxAnswer,
}

/// A direct call of a tool in a run's name.
#[derive(Clone, Debug)]
pub struct ToolCallDraft {
    pub tool: String,
    pub args: Value,
}
