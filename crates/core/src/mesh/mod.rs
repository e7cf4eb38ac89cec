//! The mesh: shared state, topics and letters between agents.
//!
//! What is here is pure: names, rows, and what time does to a letter. The engine owns the state
//! and asks [`crate::acl`] before it does anything for an agent; tools reach it by [`Mesh`].

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

/// Largest value of a key, and largest payload of a letter, as compact JSON, in bytes.
pub const MAX_VALUE: usize = 256 << 10;
/// Longest time to live of a key or a letter, in seconds: a year.
pub const MAX_TTL: u64 = 366 * 24 * 3600;
/// Letters that may wait for one agent; further ones are refused.
pub const MAX_WAITING: u32 = 1_000;
/// Dead letters that one agent keeps; the oldest goes when another comes.
pub const MAX_DEAD: u32 = 1_000;
/// Subscriptions of one agent.
pub const MAX_SUBSCRIPTIONS: usize = 100;
/// Subscriptions in all.
pub const MAX_SUBSCRIPTIONS_IN_ALL: usize = 10_000;
/// Capabilities that an agent may register, and the longest of them in bytes.
pub const MAX_CAPABILITIES: usize = 64;
pub const MAX_CAPABILITY: usize = 128;
/// Sessions above one that was spawned, by spawns or otherwise.
pub const MAX_SPAWN_DEPTH: usize = 4;
/// Children of one session that have not ended.
pub const MAX_CHILDREN: u32 = 8;

/// Tools that a run's own door offers whatever its agent's list of tools says: the permission
/// matrix decides what they may.
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
/// Those of them that need no run: keys are offered them.
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
/// Tools of the memory, offered there too.
pub const DOOR_MEMORY: [&str; 2] = ["search_memory", "store_memory"];

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardEntry {
    pub colony: ColonyId,
    pub key: Key,
    pub value: Value,
    /// From 1; one more with every write. A key that was gone begins at 1 again.
    pub version: u64,
    /// An agent's name, `admin`, or the name of an API key.
    pub written_by: String,
    pub workflow: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// As it was asked for, in seconds.
    pub ttl: Option<u64>,
    /// From this moment on it is not there any more.
    pub expires_at: Option<Timestamp>,
    /// The call that wrote it, if one did: done again, it changes nothing.
    pub effect: Option<EffectId>,
}

impl BoardEntry {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// An agent's wish to get what is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub colony: ColonyId,
    pub agent: AgentId,
    pub pattern: TopicPattern,
    /// The agents whose permissions count: its own name, and those of the sessions above the one
    /// that subscribed.
    pub line: Vec<String>,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// What an agent has said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub colony: ColonyId,
    pub agent: AgentId,
    pub capabilities: Vec<String>,
    /// Of the first registration: who came first is asked first.
    pub registered_at: Timestamp,
}

/// How many letters an agent has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailboxCounts {
    pub waiting: u32,
    pub dead: u32,
}
