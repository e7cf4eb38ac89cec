//! The mesh: messages, shared state and permissions of agents. The types keep the form of the
//! earlier system where its users depend on it.
//!
//! A request may name the caller (`agent_id`, `from_agent`, `source`, `spawned_by`). The server
//! accepts the name if it belongs to the request's token and refuses any other. It never relies on
//! it.

use std::collections::BTreeMap;

use overmind_core::acl as core;
use overmind_core::ids::{AgentId, LetterId, SessionId, SubscriptionId};
use overmind_core::mesh;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{FieldError, refuse_blank, refuse_long};
use crate::run::empty_object;

/// Maximum number of messages that one request reads or acknowledges.
pub const MAX_LETTERS: u32 = 100;
/// Longest `wait_ms` of a request, in milliseconds.
pub const MAX_WAIT_MS: u64 = 30_000;

/// A key of the shared state with its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardEntry {
    #[cfg_attr(feature = "openapi", schema(example = "tasks/42"))]
    pub key: String,
    /// Any JSON value.
    pub value: Value,
    /// The writer: the name of an agent or of a key, or `admin`.
    pub written_by: String,
    pub workflow_id: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
    /// Seconds after the write at which the entry expires.
    pub ttl: Option<u64>,
    /// Version of the entry: 1 for the first write, one more with each further write. Also sent as
    /// the `ETag`.
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

/// A change of the shared state, as the watch sends it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardChange {
    pub key: String,
    /// The version that was written, or the last version of a key that was removed.
    pub version: u64,
    /// The kind of change: `put`, `deleted` or `expired`.
    pub change: String,
    /// Who made the change; omitted if the entry expired.
    pub by: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// The current entry, which may be newer than this change; `null` if it no longer exists.
    pub entry: Option<BlackboardEntry>,
}

/// Answer of `GET /mesh/history/{key}`: the newest changes of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardHistory {
    pub key: String,
    /// At most 100 changes, newest first.
    pub changes: Vec<BlackboardRevision>,
    /// Whether there may be older changes. Only the newest 5,000 events of the mesh are searched.
    pub truncated: bool,
}

/// A change of a key. Earlier values are not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlackboardRevision {
    /// The version that was written, or the last version of a key that was removed.
    pub version: u64,
    /// The kind of change: `put`, `deleted` or `expired`.
    pub change: String,
    /// Who made the change; `null` if the entry expired.
    pub by: Option<String>,
    /// The run that made the change, if it was a run.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<SessionId>,
    /// Size of the written value in bytes of compact JSON.
    pub bytes: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
}

/// Query of `GET /mesh/blackboard`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct BlackboardListQuery {
    /// Returns only keys with exactly this prefix. It has no wildcards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The caller's own name. Optional.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Entries per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Query of `PUT /mesh/blackboard/{key}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct BlackboardPutQuery {
    /// The caller's own name. Optional.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Seconds until the entry expires. Not allowed for keys below `history/`.
    #[cfg_attr(feature = "openapi", param(minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// Writes only if the key has this version; 0: only if the key does not exist. Works like
    /// `If-Match`, but a conflict has the status 409.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// Body of `POST /mesh/message`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentMessage {
    /// Ignored. The answer contains the id that the server gave the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The caller's own name. Optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_agent: Option<String>,
    /// The recipient: an agent's name or id, or `capability:` with a capability that an agent has
    /// registered.
    pub to: String,
    /// The kind of message: `task_request`, `task_result`, `event`, `query`, `cancel`, or any other
    /// word.
    #[serde(rename = "type", default = "query")]
    pub kind: String,
    /// Any JSON value. Default: `{}`.
    #[serde(default = "empty_object")]
    pub payload: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// The id of the message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Ignored. The server's clock sets the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Seconds after which a message that nobody acknowledged is dead. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub ttl: Option<u64>,
    /// `low`, `normal`, `high` or `urgent`. The recipient sees it; it does not change the order.
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

    /// Returns the mistakes in the fields; empty if there are none.
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

    /// Returns the priority; the default is normal.
    pub fn priority(&self) -> mesh::Priority {
        self.priority.as_deref().and_then(mesh::Priority::parse).unwrap_or_default()
    }
}

/// Answer of `POST /mesh/message`: the message is stored durably and will be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageReceived {
    pub received: bool,
    pub from: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// The message's id, the same in each delivery. Use it to deduplicate.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: LetterId,
    /// The name of the agent that gets the message.
    pub to: String,
}

/// A message as its recipient reads it.
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
    /// The topic, if the message was published.
    pub topic: Option<String>,
    pub payload: Value,
    pub workflow_id: Option<String>,
    pub reply_to: Option<String>,
    pub priority: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub timestamp: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// The state: `waiting`, `held` (delivered and not acknowledged) or `dead`.
    pub state: String,
    /// Why the message is dead: `unacknowledged` or `expired`.
    pub why_dead: Option<String>,
    /// Number of times that the message was delivered.
    pub attempt: u32,
    /// Time from which the message can be received again.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub visible_at: Timestamp,
}

impl Letter {
    /// Returns the message in its state at `now`.
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
    /// The agent whose messages are read. Default: the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Maximum number of messages, from 1 to 100. Default: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Milliseconds to wait for the first message, at most 30,000.
    pub wait_ms: u64,
}

impl LetterReceive {
    /// Returns the mistakes in the fields; empty if there are none.
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
    /// The agent whose messages are meant. Default: the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Ids of 1 to 100 messages.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<LetterId>,
}

/// Answer to [`LetterIds`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LetterDone {
    pub ok: bool,
    /// Ids of the messages that were found.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub ids: Vec<LetterId>,
}

/// Query of `GET /mesh/messages`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct LetterListQuery {
    /// The agent whose messages are listed. Default: the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Whether to list dead messages in place of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<bool>,
    /// Messages per page.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The cursor of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Body of `POST /mesh/publish`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MeshEvent {
    /// Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The topic: segments separated by `.` or `/`.
    pub topic: String,
    /// The caller's own name. Optional.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Any JSON value. Default: `{}`.
    #[serde(default = "empty_object")]
    pub payload: Value,
    /// Ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

/// Answer of `POST /mesh/publish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Published {
    /// Number of agents whose mailboxes got the event.
    pub subscribers_notified: u32,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub id: Option<LetterId>,
    /// Agents that subscribe to the topic and did not get the event because their mailboxes are
    /// full.
    #[serde(default)]
    pub full: Vec<String>,
}

/// Query of `POST` and `DELETE /mesh/subscribe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct SubscribeQuery {
    /// A topic or a pattern: `*` matches one segment, and `**` at the end matches all further
    /// segments.
    pub topic: String,
    /// The agent that subscribes. Default: the caller.
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
    /// Whether the subscription existed.
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
    /// The agent to register. Default: the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    pub capabilities: Vec<String>,
    /// Ignored: messages go through the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Registered {
    pub registered: bool,
}

/// An agent of the mesh, with its `details`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MeshAgent {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: AgentId,
    pub name: String,
    pub capabilities: Vec<String>,
    pub registered: bool,
    /// Number of messages in its mailbox that are not dead.
    pub waiting: u32,
}

/// Body of `POST /mesh/spawn`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SpawnRequest {
    /// The id or name of an existing agent. By default, a new agent is created as a copy of the
    /// caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The role of a new agent as permissions name it, one word. Default: `assistant`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The caller's own name. Optional.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<String>,
    pub system_prompt: String,
    /// The model of a new agent. If empty, the caller's model.
    pub model: String,
    /// Longest duration of a new agent's run, in seconds. Default: 3600.
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
    /// The path of the run.
    pub url: String,
    pub role: String,
    /// Whether the run is durably in the queue.
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
    /// The agent's last runs, one line each.
    pub logs: String,
    /// Always empty: use a search to read an agent's memory.
    pub memory: String,
}

/// The permissions of one agent. A missing list allows nothing.
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
    /// How the server handles a message to the agent: `queue` only stores it, `wake` (the default)
    /// also wakes a run, and `start` also starts one.
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

/// One entry of the permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclEntry {
    pub agent: String,
    /// Where the entry was written: `file` or `api`.
    pub origin: String,
    pub permissions: Permissions,
}

/// Answer of `GET /mesh/permissions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Acl {
    /// Version of the entries that were written through the API.
    pub version: u64,
    pub entries: Vec<AclEntry>,
}

/// Answer of a change of the permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclChanged {
    pub ok: bool,
    pub version: u64,
}

/// One layer of an agent's permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclLayer {
    pub agent: String,
    /// The name of the entry that applies: the agent's own name, `default`, or none.
    pub entry: Option<String>,
    pub origin: Option<String>,
    pub permissions: Permissions,
}

/// Answer of `GET /mesh/permissions/{agent}`. An operation is allowed only if all layers allow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AclEffective {
    pub agent: String,
    pub layers: Vec<AclLayer>,
}

/// Query of `GET /mesh/can`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct CanQuery {
    /// An agent's name or id, or a run's id. Default: the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The operation: `message`, `publish`, `subscribe`, `read`, `write`, `api`, `model` or
    /// `spawn`.
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
    /// The rule that decides.
    pub rule: String,
    /// The permission that is missing.
    pub ask_for: Option<String>,
}

/// The URLs of agents by name, as earlier clients expect them.
pub type MeshAgents = BTreeMap<String, String>;
