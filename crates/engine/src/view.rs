//! Views of the engine that contain more than a row.

use overmind_core::agent::Agent;
use overmind_core::gate::{PolicySource, PolicyVersion};
use overmind_core::ids::{EffectId, SessionId, StepId};
use overmind_core::inbox::InboxItem;
use overmind_core::relay::Dialect;
use overmind_core::row::{SessionRow, SessionStatus, StepRow};
use overmind_core::store::{LogEvent, StoreStats};
use overmind_core::time::Timestamp;
use serde_json::Value;

/// One tool call, read back from the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallView {
    pub id: EffectId,
    pub session: SessionId,
    pub step: Option<StepId>,
    pub tool: String,
    pub args: Value,
    pub result: Value,
    pub allowed: bool,
    pub latency_ms: u64,
    pub at: Timestamp,
    /// Its event's sequence number, which is the cursor of lists.
    pub seq: u64,
}

/// One model call, read back from the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCallView {
    /// `eff_…` for the engine's own, `call_…` for a relayed one.
    pub id: String,
    /// `engine`, or `gateway` for a program's relayed call.
    pub via: &'static str,
    /// The program's name of its own session, if it sent one.
    pub client_session: Option<String>,
    pub session: SessionId,
    pub model: String,
    /// `{kind, model, messages_total, new_messages, tools, request_hash}`: messages of earlier
    /// calls of the session are not repeated.
    pub request: Value,
    pub response: Value,
    pub usage: Value,
    pub error: Option<Value>,
    pub latency_ms: u64,
    pub at: Timestamp,
    pub seq: u64,
}

/// One entry of a session's timeline. A step appears again each time its state changes.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineItem {
    /// `(event's seq, part)`: the SSE id is `seq.part`; resume after it.
    pub place: (u64, u8),
    pub at: Timestamp,
    pub data: TimelineData,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TimelineData {
    Event(LogEvent),
    Step(StepRow),
    ToolCall(ToolCallView),
    ModelCall(ModelCallView),
}

/// A page of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelinePage {
    pub items: Vec<TimelineItem>,
    /// Whether there is already more.
    pub more: bool,
    /// The status at the time of reading; if it is terminal and `more` is false, nothing will
    /// follow.
    pub status: SessionStatus,
}

/// Similar open items of the inbox.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxGroup {
    pub key: String,
    /// At least one, newest first.
    pub items: Vec<InboxItem>,
}

/// A rule that would have answered these items.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxProposal {
    /// The rule in the form of a policy file.
    pub rule: String,
    /// The approvals on which it is based, newest first.
    pub items: Vec<InboxItem>,
}

/// The result of `replay --verify`.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyReport {
    pub session: SessionId,
    pub events: u64,
    /// Events that were decided again and compared.
    pub decided: u64,
    pub divergence: Option<Divergence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Sequence number of the first event that differs.
    pub seq: u64,
    pub recorded: String,
    pub decided: String,
}

/// The comparison of two sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffReport {
    pub a: SessionRow,
    pub b: SessionRow,
    /// The number of equal steps from the start.
    pub common: u32,
    pub rows: Vec<DiffRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DiffRow {
    pub idx: u32,
    pub a: Option<StepRow>,
    pub b: Option<StepRow>,
    pub same: bool,
}

/// A new key. Its secret is shown only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub key: overmind_core::row::ApiKey,
    pub secret: String,
}

/// The state of the whole server.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub version: &'static str,
    pub started_at: Timestamp,
    pub now: Timestamp,
    pub ready: Readiness,
    pub running: u32,
    pub queued: u64,
    pub capacity: u32,
    pub store: StoreStats,
    /// The policy in force; `None` for an engine without one.
    pub policy: Option<(PolicySource, PolicyVersion)>,
    /// Why a newer policy is not in force.
    pub policy_refused: Option<String>,
    /// The dialects for which this server can answer model calls.
    pub answers: Vec<Dialect>,
    /// The names of all tools.
    pub tools: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Draining,
    /// The store refuses writes, for this reason.
    Degraded(String),
}

/// Whether the answer was made now or by an earlier request with the same Idempotency-Key.
#[derive(Clone, Debug, PartialEq)]
pub struct Created<T> {
    pub value: T,
    pub replayed: bool,
}

/// An agent with the warnings from making it, such as unknown tool names.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentView {
    pub agent: Agent,
    pub warnings: Vec<String>,
}
