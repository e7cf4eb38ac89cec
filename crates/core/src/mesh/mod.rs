//! The mesh: shared state, topics and messages between agents.
//!
//! This module is pure: it contains names, rows, and the effect of time on messages. The engine
//! owns the state and asks [`crate::acl`] before it does anything for an agent. Tools use it
//! through [`Mesh`].

mod letter;
mod name;
mod port;

use serde_json::Value;

pub use self::letter::{
    ATTEMPTS, Dead, FIRST_REDELIVERY, LAST_REDELIVERY, Letter, LetterFilter, LetterMark,
    LetterState, Priority, backoff, dies_at,
};
pub use self::name::{
    HISTORY, Key, MAX_KEY, MAX_SEGMENTS, MAX_TOPIC, NameError, TopicPattern, check_prefix,
    check_topic,
};
pub(crate) use self::name::{check_chars, check_segments};
pub use self::port::{ArtifactOf, Mesh, MeshAct, MeshError, MeshSpawn};

use crate::ids::{AgentId, ColonyId, EffectId, SubscriptionId};
use crate::time::Timestamp;

/// Largest value of a key, and largest payload of a message, in bytes of compact JSON.
pub const MAX_VALUE: usize = 256 << 10;
/// Longest time to live of a key or a message, in seconds: a year.
pub const MAX_TTL: u64 = 366 * 24 * 3600;
/// Maximum number of waiting messages of one agent; further ones are refused.
pub const MAX_WAITING: u32 = 1_000;
/// Maximum number of dead messages that are kept for one agent; a new one replaces the oldest.
pub const MAX_DEAD: u32 = 1_000;
/// Maximum number of subscriptions of one agent.
pub const MAX_SUBSCRIPTIONS: usize = 100;
/// Maximum number of subscriptions of all agents.
pub const MAX_SUBSCRIPTIONS_IN_ALL: usize = 10_000;
/// Maximum number of capabilities of an agent, and longest capability in bytes.
pub const MAX_CAPABILITIES: usize = 64;
pub const MAX_CAPABILITY: usize = 128;
/// Maximum number of ancestors of a spawned session.
pub const MAX_SPAWN_DEPTH: usize = 4;
/// Maximum number of children of one session that have not ended.
pub const MAX_CHILDREN: u32 = 8;

/// Tools that a run's own MCP endpoint always offers, whatever tools its agent has. The mesh
/// permissions decide what they may do.
pub const DOOR_TOOLS: [&str; 16] = [
    "ask_people",
    "cost_left",
    "list_agents",
    "list_artifacts",
    "list_shared_state",
    "publish_event",
    "read_agent_history",
    "read_answer",
    "read_artifact",
    "read_messages",
    "read_shared_state",
    "save_artifact",
    "send_message",
    "spawn_agent",
    "subscribe_event",
    "write_shared_state",
];
/// The tools among them that need no run, and are also offered to API keys.
pub const DESK_TOOLS: [&str; 8] = [
    "list_agents",
    "list_shared_state",
    "publish_event",
    "read_agent_history",
    "read_shared_state",
    "send_message",
    "spawn_agent",
    "write_shared_state",
];
/// Tools of the memory that the endpoint also offers.
pub const DOOR_MEMORY: [&str; 2] = ["search_memory", "store_memory"];

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardEntry {
    pub colony: ColonyId,
    pub key: Key,
    pub value: Value,
    /// Version of the value: 1 for the first write, one more with each write. It continues after a
    /// removal.
    pub version: u64,
    /// The writer: an agent's name, `admin`, or the name of an API key.
    pub written_by: String,
    pub workflow: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The requested time to live in seconds.
    pub ttl: Option<u64>,
    /// Time after which it no longer exists.
    pub expires_at: Option<Timestamp>,
    /// The call that wrote it, if any. Repeating the call changes nothing.
    pub effect: Option<EffectId>,
}

impl BoardEntry {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// An agent's subscription to published events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub colony: ColonyId,
    pub agent: AgentId,
    pub pattern: TopicPattern,
    /// The agents whose permissions apply: the subscriber, and the agents of the sessions above it.
    pub line: Vec<String>,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// The facts that an agent has registered about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub colony: ColonyId,
    pub agent: AgentId,
    pub capabilities: Vec<String>,
    /// Time of the first registration. The earliest agent gets a capability's messages first.
    pub registered_at: Timestamp,
}

/// Numbers of an agent's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailboxCounts {
    pub waiting: u32,
    pub dead: u32,
}
