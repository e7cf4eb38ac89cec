//! The mesh on the wire: the shapes of the earlier fleet where its users depend on them.
//!
//! An identity in a request (`agent_id`, `from_agent`, `source`, `spawned_by`) is let pass when it
//! is the token's own and refused when it is another's; it is never believed.

use std::collections::BTreeMap;

use overmind_core::acl as core;
use overmind_core::ids::{AgentId, LetterId, SessionId, SubscriptionId};
use overmind_core::mesh;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{FieldError, refuse_blank, refuse_long};
use crate::run::empty_object;

/// Messages that one request reads or acknowledges.
pub const MAX_LETTERS: u32 = 100;
/// Longest `wait_ms` of a request.
pub const MAX_WAIT_MS: u64 = 30_000;

/// A key of the shared state with its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardEntry {
    #[cfg_attr(feature = "openapi", schema(example = "tasks/42"))]
    pub key: String,
    /// Any JSON value.
    pub value: Value,
    /// The name of an agent or of a key, or `admin`.
    pub written_by: String,
    pub workflow_id: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
    /// Seconds that it was given to live.
    pub ttl: Option<u64>,
    /// From 1, one more with each write. Also in the `ETag`.
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
}

impl From<mesh::BoardEntry> for BlackboardEntry {
    fn from(entry: mesh::BoardEntry) -> Self {
        Self {
            key: entry.key.to_string(),
            value: entry.value,
            written_by: entry.written_by,
            workflow_id: entry.workflow,
            created_at: entry.created_at,
            updated_at: entry.updated_at,
            ttl: entry.ttl,
            version: entry.version,
            expires_at: entry.expires_at,
        }
    }
}

/// A message of the watch of the shared state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardChange {
    pub key: String,
    /// The version that was written, or that was there when the key went.
    pub version: u64,
    /// `put`, `deleted` or `expired`.
    pub change: String,
    /// Who changed it; not of what expired.
    pub by: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// As it stands now, which may be later than this change; `null` when it is gone.
    pub entry: Option<BlackboardEntry>,
}

/// Of `GET /mesh/blackboard`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct BlackboardListQuery {
    /// What the keys begin with, exactly. Nothing in it is a wildcard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The caller's own name, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Entries per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Of `PUT /mesh/blackboard/{key}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct BlackboardPutQuery {
    /// The caller's own name, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Seconds to live. Not below `history/`.
    #[cfg_attr(feature = "openapi", param(minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// Write only if the key stands at this version; 0: only if it is not there. As `If-Match`,
    /// but for the status of a refusal, which is 409.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// Body of `POST /mesh/message`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentMessage {
    /// Accepted and ignored: the answer has the message's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The caller's own name, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_agent: Option<String>,
    /// An agent's name or id, or `capability:` and what one has registered.
    pub to: String,
    /// `task_request`, `task_result`, `event`, `query`, `cancel`, or any other word.
    #[serde(rename = "type", default = "query")]
    pub kind: String,
    /// Any JSON value; not given: `{}`.
    #[serde(default = "empty_object")]
    pub payload: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// The id of the message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Taken and not used: the server's clock counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Seconds after which a message that was not acknowledged is dead; not given: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl: Option<u64>,
    /// `low`, `normal`, `high` or `urgent`. It is shown to the recipient and orders nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
}

fn query() -> String {
    "query".to_owned()
}

impl AgentMessage {
    pub fn new(to: impl Into<String>, kind: impl Into<String>, payload: Value) -> Self {
        Self {
            id: None,
            from_agent: None,
            to: to.into(),
            kind: kind.into(),
            payload,
            workflow_id: None,
            reply_to: None,
            timestamp: None,
            ttl: None,
            priority: None,
        }
    }

    /// Which fields are wrong.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_blank(&mut errors, "to", &self.to);
        refuse_blank(&mut errors, "type", &self.kind);
        refuse_long(&mut errors, "type", &self.kind, 64);
        if self.priority.as_deref().is_some_and(|word| mesh::Priority::parse(word).is_none()) {
            errors.push(FieldError::new("priority", "must be low, normal, high or urgent"));
        }
        errors
    }

    /// The priority; that of none is normal.
    pub fn priority(&self) -> mesh::Priority {
        self.priority.as_deref().and_then(mesh::Priority::parse).unwrap_or_default()
    }
}

/// Answer of `POST /mesh/message`: the message is durable and on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageReceived {
    pub received: bool,
    pub from: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// The same in each delivery: what to tell repetitions by.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: LetterId,
    /// The agent that gets it, by name.
    pub to: String,
}

/// A message as its reader sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Letter {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: LetterId,
    pub from_agent: String,
    /// The recipient's id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub to: AgentId,
    #[serde(rename = "type")]
    pub kind: String,
    /// Of what was published.
    pub topic: Option<String>,
    pub payload: Value,
    pub workflow_id: Option<String>,
    pub reply_to: Option<String>,
    pub priority: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub timestamp: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// `waiting`, `held` or `dead`.
    pub state: String,
    /// `unacknowledged` or `expired`.
    pub why_dead: Option<String>,
    /// How often it was handed out.
    pub attempt: u32,
    /// From then on it can be read again.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub visible_at: Timestamp,
}

impl Letter {
    /// As it stands at `now`.
    pub fn at(letter: mesh::Letter, now: Timestamp) -> Self {
        Self {
            id: letter.id,
            to: letter.to,
            state: letter.state(now).as_str().to_owned(),
            why_dead: letter.mark.dead.map(|why| why.as_str().to_owned()),
            attempt: letter.mark.attempts,
            visible_at: letter.mark.visible_at,
            from_agent: letter.from,
            kind: letter.kind,
            topic: letter.topic,
            payload: letter.payload,
            workflow_id: letter.workflow,
            reply_to: letter.reply_to,
            priority: letter.priority.as_str().to_owned(),
            timestamp: letter.sent_at,
            expires_at: letter.expires_at,
        }
    }
}

/// Body of `POST /mesh/messages/receive`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LetterReceive {
    /// Whose messages; not given: the caller's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// 1 to 100; not given: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long to wait for the first one, at most 30,000.
    pub wait_ms: u64,
}

impl LetterReceive {
    /// Which fields are wrong.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.limit.is_some_and(|limit| !(1..=MAX_LETTERS).contains(&limit)) {
            errors.push(FieldError::new("limit", format!("must be 1 to {MAX_LETTERS}")));
        }
        if self.wait_ms > MAX_WAIT_MS {
            errors.push(FieldError::new("wait_ms", format!("must be at most {MAX_WAIT_MS}")));
        }
        errors
    }
}

/// Body of `POST /mesh/messages/ack` and `…/requeue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LetterIds {
    /// Whose messages; not given: the caller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// 1 to 100.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<LetterId>,
}

/// Answer to [`LetterIds`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LetterDone {
    pub ok: bool,
    /// Those that were there.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<LetterId>,
}

/// Of `GET /mesh/messages`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct LetterListQuery {
    /// Whose messages; not given: the caller's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Dead ones instead of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<bool>,
    /// Messages per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Body of `POST /mesh/publish`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MeshEvent {
    /// Taken and not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Segments separated by `.` or `/`.
    pub topic: String,
    /// The caller's own name, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Any JSON value; not given: `{}`.
    #[serde(default = "empty_object")]
    pub payload: Value,
    /// Taken and not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

/// Answer of `POST /mesh/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Published {
    /// Agents that have a message now.
    pub subscribers_notified: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub id: Option<LetterId>,
    /// Agents that would have one and whose mailboxes are full.
    #[serde(default)]
    pub full: Vec<String>,
}

/// Of `POST` and `DELETE /mesh/subscribe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct SubscribeQuery {
    /// A topic, or a pattern: `*` is one segment, `**` at the end all that follow.
    pub topic: String,
    /// Whose subscription; the caller's own without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscribed {
    pub subscribed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unsubscribed {
    /// Whether there was such a subscription.
    pub unsubscribed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscription {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: SubscriptionId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    pub topic: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    pub created_by: String,
}

impl From<&mesh::Subscription> for Subscription {
    fn from(one: &mesh::Subscription) -> Self {
        Self {
            id: one.id,
            agent_id: one.agent,
            topic: one.pattern.to_string(),
            created_at: one.created_at,
            created_by: one.created_by.clone(),
        }
    }
}

/// Body of `POST /mesh/register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Register {
    /// Whose; the caller's own without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    pub capabilities: Vec<String>,
    /// Accepted and ignored: messages go through the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Registered {
    pub registered: bool,
}

/// An agent, with `details`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MeshAgent {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: AgentId,
    pub name: String,
    pub capabilities: Vec<String>,
    pub registered: bool,
    /// Messages that are not dead.
    pub waiting: u32,
}

/// Body of `POST /mesh/spawn`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SpawnRequest {
    /// An agent that is there, by id or name; without it a new one is made after the caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What a new agent is for, in a word, as permissions name it; not given: `assistant`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The caller's own name, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<String>,
    pub system_prompt: String,
    /// Of a new agent; empty: the caller's own.
    pub model: String,
    /// Most seconds that a new agent may take; not given: 3600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    pub task: String,
}

/// Answer of `POST /mesh/spawn`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SpawnDone {
    /// The agent's name.
    pub agent_id: String,
    /// Where the run is found.
    pub url: String,
    pub role: String,
    /// The run is in the queue, durably.
    pub ready: bool,
    pub spawned_by: String,
    pub ttl: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
}

/// Answer of `GET /mesh/agents/{id}/history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentHistory {
    pub agent_id: String,
    pub role: String,
    /// A line for each of the last runs.
    pub logs: String,
    /// Always empty: an agent's memory is searched, not dumped.
    pub memory: String,
}

/// One agent's row of the permission matrix. A missing list allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Permissions {
    pub can_message: Vec<String>,
    pub can_publish: Vec<String>,
    pub can_subscribe: Vec<String>,
    pub blackboard_read: Vec<String>,
    pub blackboard_write: Vec<String>,
    pub allowed_apis: Vec<String>,
    pub models: Vec<String>,
    pub spawn: Vec<String>,
    /// What a message does to the agent: `queue`, `wake` (not given) or `start`.
    pub on_message: OnMessage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnMessage {
    Queue,
    #[default]
    Wake,
    Start,
}

impl From<core::Permissions> for Permissions {
    fn from(own: core::Permissions) -> Self {
        Self {
            can_message: own.can_message,
            can_publish: own.can_publish,
            can_subscribe: own.can_subscribe,
            blackboard_read: own.blackboard_read,
            blackboard_write: own.blackboard_write,
            allowed_apis: own.allowed_apis,
            models: own.models,
            spawn: own.spawn,
            on_message: match own.on_message {
                core::OnMessage::Queue => OnMessage::Queue,
                core::OnMessage::Wake => OnMessage::Wake,
                core::OnMessage::Start => OnMessage::Start,
            },
        }
    }
}

impl From<Permissions> for core::Permissions {
    fn from(own: Permissions) -> Self {
        Self {
            can_message: own.can_message,
            can_publish: own.can_publish,
            can_subscribe: own.can_subscribe,
            blackboard_read: own.blackboard_read,
            blackboard_write: own.blackboard_write,
            allowed_apis: own.allowed_apis,
            models: own.models,
            spawn: own.spawn,
            on_message: match own.on_message {
                OnMessage::Queue => core::OnMessage::Queue,
                OnMessage::Wake => core::OnMessage::Wake,
                OnMessage::Start => core::OnMessage::Start,
            },
        }
    }
}

/// An entry of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclEntry {
    pub agent: String,
    /// `file` or `api`.
    pub origin: String,
    pub permissions: Permissions,
}

/// Answer of `GET /mesh/permissions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Acl {
    /// Of the entries that were written through the API.
    pub version: u64,
    pub entries: Vec<AclEntry>,
}

/// Answer of a change of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclChanged {
    pub ok: bool,
    pub version: u64,
}

/// One agent's part in what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclLayer {
    pub agent: String,
    /// Its own name, `default`, or none.
    pub entry: Option<String>,
    pub origin: Option<String>,
    pub permissions: Permissions,
}

/// Answer of `GET /mesh/permissions/{agent}`: all layers must allow what is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclEffective {
    pub agent: String,
    pub layers: Vec<AclLayer>,
}

/// Of `GET /mesh/can`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct CanQuery {
    /// An agent's name or id, or a run's id; the caller's own without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `message`, `publish`, `subscribe`, `read`, `write`, `api`, `model` or `spawn`.
    pub verb: String,
    pub object: String,
}

/// Answer of `GET /mesh/can`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Can {
    pub allowed: bool,
    pub agent: String,
    pub verb: String,
    pub object: String,
    /// What decides.
    pub rule: String,
    /// What would have to be granted.
    pub ask_for: Option<String>,
}

/// Agents by name, each with where it is found: what earlier clients read.
pub type MeshAgents = BTreeMap<String, String>;
