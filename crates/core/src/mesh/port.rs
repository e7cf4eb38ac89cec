//! The port through which an agent's own tools use the mesh.

use std::fmt;

use serde_json::Value;

use crate::Fut;
use crate::ids::{EffectId, InboxId, LetterId, SessionId};
use crate::trace::Traceparent;

/// An operation on the mesh. The mesh checks all limits that are not checked here.
#[derive(Clone, Debug, PartialEq)]
pub enum MeshAct {
    Read {
        key: String,
    },
    /// Writes a key. With a `version`, only if the key has it; 0 means that the key must not exist.
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
    /// Reads messages. Acknowledges the messages that the session read by earlier calls, except
    /// those of the same call if it is repeated.
    Receive {
        limit: u32,
        wait_seconds: u64,
    },
    Acknowledge {
        ids: Vec<LetterId>,
    },
    /// Adds a question for people to the inbox.
    Ask {
        question: String,
        wait_seconds: u64,
    },
    /// Returns the state of a question.
    Answer {
        question: InboxId,
        wait_seconds: u64,
    },
    /// Saves a file for people and other agents.
    SaveArtifact {
        name: String,
        content: Vec<u8>,
        media_type: Option<String>,
    },
    /// Lists artifacts of the own run, of another run, or all that an agent shares.
    ListArtifacts {
        of: ArtifactOf,
        limit: u32,
        after: Option<String>,
    },
    /// Reads a part of a content: text, or bytes in Base64.
    ReadArtifact {
        of: ArtifactOf,
        name: String,
        offset: u64,
        base64: bool,
    },
    /// Returns what may still be spent.
    CostLeft,
    Agents,
    Spawn(MeshSpawn),
    History {
        agent: String,
    },
}

/// The owner of artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArtifactOf {
    #[default]
    Own,
    Run(SessionId),
    /// The artifacts that an agent shares, by its name.
    Agent(String),
}

/// The request to start a child session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshSpawn {
    /// An existing agent. By default, a new agent is created with the caller's tools, sandbox and
    /// limits.
    pub agent: Option<String>,
    /// The role of a new agent as permissions name it.
    pub role: String,
    /// The system prompt of a new agent.
    pub system_prompt: String,
    /// The model of a new agent. Default: the caller's own.
    pub model: Option<String>,
    pub task: String,
    /// Longest duration of a new agent's session, in seconds.
    pub ttl: Option<u64>,
    /// The trace span of the request.
    pub trace: Option<Traceparent>,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    #[error("{0}")]
    Invalid(String),
    /// The permissions do not allow it. The text names the rule and the missing permission.
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    NotFound(String),
    /// The key has another version, or a similar conflict.
    #[error("{0}")]
    Conflict(String),
    /// A queue is full, or the server shuts down. A later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Failed(String),
}

/// The mesh for the tools of sessions. An answer is an object with the fields of the tool's result.
pub trait Mesh: Send + Sync + fmt::Debug {
    /// # Cancel safety
    ///
    /// An operation that has started is completed. Messages that were read and not shown are
    /// delivered again.
    fn act(
        &self,
        session: SessionId,
        effect: EffectId,
        act: MeshAct,
    ) -> Fut<'_, Result<Value, MeshError>>;
}
