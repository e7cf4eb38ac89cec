//! The port by which an agent's own tools reach the mesh.

use std::fmt;

use serde_json::Value;

use crate::Fut;
use crate::ids::{EffectId, InboxId, LetterId, SessionId};
use crate::trace::Traceparent;

/// What a session wants of the mesh. Whatever is not bounded here is bounded by the mesh.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshAct {
    Read {
        key: String,
    },
    /// With a `version` only if the key stands at it; 0 is a key that is not there.
    Write {
        key: String,
        value: Value,
        ttl: Option<u64>,
        version: Option<u64>,
    },
    Delete {
        key: String,
        version: Option<u64>,
    },
    List {
        prefix: String,
        limit: u32,
        after: Option<String>,
    },
    Publish {
        topic: String,
        payload: Value,
    },
    Subscribe {
        pattern: String,
    },
    Unsubscribe {
        pattern: String,
    },
    Send {
        to: String,
        kind: String,
        payload: Value,
        reply_to: Option<String>,
    },
    /// Letters that the session read by earlier calls are acknowledged by this one, but for those
    /// of the same call done again.
    Receive {
        limit: u32,
        wait_seconds: u64,
    },
    Acknowledge {
        ids: Vec<LetterId>,
    },
    /// Puts a question to people into the inbox.
    Ask {
        question: String,
        wait_seconds: u64,
    },
    /// What became of a question.
    Answer {
        question: InboxId,
        wait_seconds: u64,
    },
    /// Keeps a file for people and other agents.
    SaveArtifact {
        name: String,
        content: Vec<u8>,
        media_type: Option<String>,
    },
    /// Of the own run, of another, or all that an agent shares.
    ListArtifacts {
        of: ArtifactOf,
        limit: u32,
        after: Option<String>,
    },
    /// Part of a content: text, or bytes in Base64.
    ReadArtifact {
        of: ArtifactOf,
        name: String,
        offset: u64,
        base64: bool,
    },
    /// What may still be spent.
    CostLeft,
    Agents,
    Spawn(MeshSpawn),
    History {
        agent: String,
    },
}

/// Whose artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArtifactOf {
    #[default]
    Own,
    Run(SessionId),
    /// Those that an agent shares, by its name.
    Agent(String),
}

/// A child session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshSpawn {
    /// An agent that is there; without one a new agent is made after the caller's own.
    pub agent: Option<String>,
    /// Of a new agent: what it is called in permissions.
    pub role: String,
    /// Of a new agent.
    pub system_prompt: String,
    /// Of a new agent; the caller's own without one.
    pub model: Option<String>,
    pub task: String,
    /// Most seconds that a new agent may take.
    pub ttl: Option<u64>,
    /// The span that it is asked for in.
    pub trace: Option<Traceparent>,
}

/// Why it was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    #[error("{0}")]
    Invalid(String),
    /// The permission matrix does not allow it; the text says which rule, and what to ask for.
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    NotFound(String),
    /// The key stands at another version, or the like.
    #[error("{0}")]
    Conflict(String),
    /// A queue is full, or the server shuts down: later it may work.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Failed(String),
}

/// The mesh, for the tools of sessions. The answer is an object with the fields of the tool's
/// result.
pub trait Mesh: Send + Sync + fmt::Debug {
    /// # Cancel safety
    ///
    /// What was begun is done; letters that were read and not shown come back.
    fn act(
        &self,
        session: SessionId,
        effect: EffectId,
        act: MeshAct,
    ) -> Fut<'_, Result<Value, MeshError>>;
}
