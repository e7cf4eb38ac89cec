//! Rows: the current state that the store keeps in addition to the log, in the same transaction.

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
    /// It has given its answer, and waits until somebody sends a message or ends it.
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

    /// Returns whether it has ended. Only a person's message continues such a session: see
    /// [`crate::session`].
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
    /// The name for people: see [`crate::name`].
    pub name: String,
    /// The session that started it. Never changes; neither does the name.
    pub parent: Option<SessionId>,
    pub agent: AgentId,
    pub agent_version: u32,
    /// The hive on which it was last placed.
    pub hive: Option<HiveId>,
    /// Number of times that it was started; 0 before the first start.
    pub epoch: u32,
    pub status: SessionStatus,
    pub task: String,
    /// Maximum number of steps; 0 means no limit.
    pub step_limit: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// The question to which it waits for an answer.
    pub prompt: Option<String>,
    /// The approval for which it waits.
    pub approval: Option<ApprovalId>,
    pub final_answer: Option<String>,
    /// The error of a failed session: `{"code","message",…}`.
    pub error: Option<Value>,
    pub usage: Usage,
    /// Cost in millionths of a US dollar; `None` if the price of a call is not known.
    pub cost_microusd: Option<u64>,
    /// Whether a part of the cost is an upper bound of a call's cost. The store does not keep it:
    /// readers of the settled costs of sessions set it.
    pub cost_at_most: bool,
    pub model_calls: u32,
    pub steps: u32,
    pub sandbox: SandboxLevel,
    /// The isolation that was measured when a command first ran in the sandbox. It follows from the
    /// log like the rest, and no decision depends on it.
    pub attestation: Option<AttestationRef>,
    /// Its command, if its agent has one and it was started.
    pub command: Option<CommandRow>,
    /// Its environment, if one was requested.
    pub room: Option<Box<RoomRow>>,
    /// Absolute path on the hive.
    pub workspace: String,
    /// The session and step from which it was forked.
    pub forked_from: Option<(SessionId, u32)>,
    /// Who created it: the name of an API key, `admin`, or a session id.
    pub created_by: String,
    /// The record for which it was started. Never changes; neither do the labels.
    pub owner: Option<RecordId>,
    pub labels: BTreeMap<String, String>,
}

impl SessionRow {
    /// Returns the directory in which its tools work: its environment's, or its workspace.
    pub fn directory(&self) -> &Path {
        let made = self.room.as_ref().and_then(|room| room.made.as_ref());
        made.map_or(Path::new(&self.workspace), |made| &made.directory)
    }

    /// Returns whether it has its own worktree.
    pub fn has_worktree(&self) -> bool {
        let made = self.room.as_ref().and_then(|room| room.made.as_ref());
        made.is_some_and(|made| made.worktree.is_some())
    }

    /// Returns what its commands see and reach in a sandbox, if it has its own worktree.
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

/// One step of a session. A finished step never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRow {
    pub id: StepId,
    pub session: SessionId,
    /// Index, from 0.
    pub idx: u32,
    /// Index of its turn, from 0.
    pub turn: u32,
    pub kind: StepKind,
    pub input: Value,
    pub output: Option<Value>,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub error: Option<String>,
}

/// The rights of a key, ordered from weak to strong. `Mcp`, `Model` and `Runs` are scopes for
/// programs with one purpose, which can use only the paths that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Calls tools with MCP, and nothing else.
    Mcp,
    /// Calls models through the gateway, and nothing else.
    Model,
    /// Reads everything except settings and keys.
    Viewer,
    /// Starts and ends sessions, reads their logs, and answers questions. It cannot use any other
    /// part of the API.
    Runs,
    /// Also creates and changes agents and sessions, and answers questions. A sandbox limits
    /// everything that runs for it.
    Operator,
    /// May do everything.
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

/// A named API key. Only its hash is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: ApiKeyId,
    pub colony: ColonyId,
    /// The name, unique among keys that are not revoked.
    pub name: String,
    pub role: Role,
    /// BLAKE3 of the key. A fast hash is enough, because the key has 256 random bits.
    pub hash: [u8; 32],
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}
