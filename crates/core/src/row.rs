//! Current state at rest: what the store keeps beside the log, in the same transaction.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attest::AttestationRef;
use crate::command::CommandRow;
use crate::enclosure::Surroundings;
use crate::ids::{AgentId, ApiKeyId, ApprovalId, ColonyId, HiveId, RecordId, SessionId, StepId};
use crate::model::Usage;
use crate::room::stay::RoomRow;
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Queued,
    Running,
    AwaitingInput,
    AwaitingApproval,
    /// It has given its answer and rests until somebody says more, or ends it.
    Idle,
    Succeeded,
    Failed,
    Canceled,
}

impl SessionStatus {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::AwaitingInput,
        Self::AwaitingApproval,
        Self::Idle,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::AwaitingInput => "awaiting_input",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Idle => "idle",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Ended. Of such a session only a person's next word makes more: see [`crate::session`].
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Canceled => true,
            Self::Queued
            | Self::Running
            | Self::AwaitingInput
            | Self::AwaitingApproval
            | Self::Idle => false,
        }
    }
}

/// One session (`/api/runs`).
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub colony: ColonyId,
    /// What people call it: see [`crate::name`].
    pub name: String,
    /// The session that started it. Never changes, like the name.
    pub parent: Option<SessionId>,
    pub agent: AgentId,
    pub agent_version: u32,
    /// The hive it was last placed on.
    pub hive: Option<HiveId>,
    /// How often it was started; 0 before the first start.
    pub epoch: u32,
    pub status: SessionStatus,
    pub task: String,
    /// 0 is none.
    pub step_limit: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// The question it waits for an answer to.
    pub prompt: Option<String>,
    /// The approval it waits for.
    pub approval: Option<ApprovalId>,
    pub final_answer: Option<String>,
    /// `{"code","message",…}` of a failed session.
    pub error: Option<Value>,
    pub usage: Usage,
    /// `None` as soon as one call had no known price.
    pub cost_microusd: Option<u64>,
    /// Some of that is the most that a call can have cost. It is in no row of the store: what reads the
    /// settled costs of sessions sets it.
    pub cost_at_most: bool,
    pub model_calls: u32,
    pub steps: u32,
    pub sandbox: SandboxLevel,
    /// What the sandbox was measured to give when a command first ran in it. It follows from the
    /// log like all the rest, and nothing is decided by it.
    pub attestation: Option<AttestationRef>,
    /// Its command, if its agent is one and it was started.
    pub command: Option<CommandRow>,
    /// Its room, if one was asked for.
    pub room: Option<Box<RoomRow>>,
    /// Absolute path on the hive.
    pub workspace: String,
    /// The session and step that it was forked from.
    pub forked_from: Option<(SessionId, u32)>,
    /// Who asked for it: the name of an API key, `admin`, or a session id.
    pub created_by: String,
    /// The record that it was started for. Never changes, like the labels.
    pub owner: Option<RecordId>,
    pub labels: BTreeMap<String, String>,
}

impl SessionRow {
    /// Where its tools work: in its room, or in what it was started for.
    pub fn directory(&self) -> &Path {
        let made = self.room.as_ref().and_then(|room| room.made.as_ref());
        made.map_or(Path::new(&self.workspace), |made| &made.directory)
    }

    /// Whether it has a tree of its own.
    pub fn has_worktree(&self) -> bool {
        let made = self.room.as_ref().and_then(|room| room.made.as_ref());
        made.is_some_and(|made| made.worktree.is_some())
    }

    /// What its commands see and reach in a sandbox, if it has a tree of its own.
    pub fn surroundings(&self) -> Option<Surroundings> {
        self.room.as_ref()?.made.as_ref().and_then(Surroundings::of)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Plan,
    Tool,
    AskUser,
    Verify,
    /// The final answer.
    Eval,
}

impl StepKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Tool => "tool",
            Self::AskUser => "ask_user",
            Self::Verify => "verify",
            Self::Eval => "eval",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Plan, Self::Tool, Self::AskUser, Self::Verify, Self::Eval]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// One step of a session. Finished steps never change again.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRow {
    pub id: StepId,
    pub session: SessionId,
    /// From 0, without gaps.
    pub idx: u32,
    /// The turn it belongs to, from 0.
    pub turn: u32,
    pub kind: StepKind,
    pub input: Value,
    pub output: Option<Value>,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub error: Option<String>,
}

/// What a key may do. Ordered: weaker first. The first three are scopes: for a program that does one
/// thing, and is kept to the paths of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Calls tools by MCP, and nothing else.
    Mcp,
    /// Calls models by the gateway, and nothing else.
    Model,
    /// Reads everything but settings and keys.
    Viewer,
    /// Starts sessions and ends them, reads their logs, answers questions; sees no other part of the API.
    Runs,
    /// Also creates and changes agents and sessions, and answers questions. Whatever runs for it is
    /// bounded by a sandbox.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 6] =
        [Self::Mcp, Self::Model, Self::Viewer, Self::Runs, Self::Operator, Self::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Model => "model",
            Self::Viewer => "viewer",
            Self::Runs => "runs",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A named key to the API. Only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub colony: ColonyId,
    /// Unique among keys that are not revoked.
    pub name: String,
    pub role: Role,
    /// BLAKE3 of the key. The key has 256 random bits, so a fast hash is enough.
    pub hash: [u8; 32],
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}
