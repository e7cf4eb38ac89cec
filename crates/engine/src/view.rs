//! What the engine shows, where a row alone does not say it.

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
    /// Its event's sequence number: the cursor of lists.
    pub seq: u64,
}

/// One model call, read back from the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCallView {
    /// `eff_…` of the engine's own, `call_…` of one that was passed on.
    pub id: String,
    /// `engine`, or `gateway` for a call of a program that was passed on.
    pub via: &'static str,
    /// What that program calls its own session, if it said.
    pub client_session: Option<String>,
    pub session: SessionId,
    pub model: String,
    /// `{kind, model, messages_total, new_messages, tools, request_hash}`: messages that an
    /// earlier call of the session carried are not repeated.
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
    /// More is already there.
    pub more: bool,
    /// The status at the time of reading; terminal and `!more` means that nothing will follow.
    pub status: SessionStatus,
}

/// Open items of the inbox that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxGroup {
    pub key: String,
    /// At least one, newest first.
    pub items: Vec<InboxItem>,
}

/// A rule that would have answered these.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxProposal {
    /// As it stands in a policy file.
    pub rule: String,
    /// The approvals that it rests on, newest first.
    pub items: Vec<InboxItem>,
}

/// What `replay --verify` found.
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

/// Two sessions laid side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffReport {
    pub a: SessionRow,
    pub b: SessionRow,
    /// Steps that are equal from the start on.
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

/// A key just made. The secret is shown once and never again.
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
    /// The policy in force; `None` for an engine that was given none.
    pub policy: Option<(PolicySource, PolicyVersion)>,
    /// Why a policy that was to take its place does not hold.
    pub policy_refused: Option<String>,
    /// Whose programs this server answers for a model: it has what that takes.
    pub answers: Vec<Dialect>,
    /// Tools by name.
    pub tools: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Draining,
    /// The store refuses writes: why.
    Degraded(String),
}

/// Whether the answer was made now or by an earlier request with the same Idempotency-Key.
#[derive(Clone, Debug, PartialEq)]
pub struct Created<T> {
    pub value: T,
    pub replayed: bool,
}

/// An agent with the warnings that making it gave rise to, such as unknown tool names.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentView {
    pub agent: Agent,
    pub warnings: Vec<String>,
}
