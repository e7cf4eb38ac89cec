//! Agents: what a session is started from.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::{Period, UnknownPrice};
use crate::command::CommandSpec;
use crate::ids::{AgentId, ColonyId};
use crate::quest::Author;
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

/// Who decides the next action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// By the model's name: see [`PolicyKind::resolve`].
    #[default]
    Auto,
    /// The text rules of `policy::rules`; needs no model.
    Deterministic,
    /// A model decides each turn; `scripted:<cassette>` models included.
    Model,
}

impl PolicyKind {
    /// `deterministic`, `local`, and names that begin with `stub` or `fail` mean the rules;
    /// every other name means a model.
    pub fn resolve(self, model: &str) -> Self {
        match self {
            Self::Deterministic | Self::Model => self,
            Self::Auto => {
                let rules = matches!(model, "deterministic" | "local")
                    || model.starts_with("stub")
                    || model.starts_with("fail");
                if rules { Self::Deterministic } else { Self::Model }
            }
        }
    }
}

/// What to do about a *once* effect whose outcome a crash has hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// A human decides: the session waits for input.
    #[default]
    Ask,
    /// Do it again: for agents whose commands are safe to repeat, such as test runs.
    Retry,
    /// Tell the agent that the outcome is unknown and go on.
    Report,
}

/// Bounds of every session of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLimits {
    /// Steps when a run names no `step_limit` of its own; 0 is none.
    pub max_steps: u32,
    /// Wall time of one session in seconds, waiting for a human not counted; 0 is none.
    pub max_seconds: u32,
    /// Sessions of this agent that run at once; 0 takes the server's default.
    pub max_concurrent: u32,
    /// Failed actions in a row that end the session, 1..=20.
    pub failure_budget: u32,
    /// Attempts of one action when its failures are transient, 1..=10.
    pub max_attempts: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            max_steps: 50,
            max_seconds: 3600,
            max_concurrent: 0,
            failure_budget: 3,
            max_attempts: 2,
        }
    }
}

impl AgentLimits {
    pub fn wall_time(&self) -> Option<Duration> {
        (self.max_seconds > 0).then(|| Duration::from_secs(u64::from(self.max_seconds)))
    }
}

/// The part of an agent that a user writes and a session is bound to when it is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// 1..=200 characters, not blank.
    pub name: String,
    /// What the agent is for, in words: the heart of its system prompt.
    pub role: String,
    pub model: String,
    pub tools_allowed: Vec<String>,
    #[serde(default)]
    pub policy: PolicyKind,
    #[serde(default = "default_sandbox")]
    pub sandbox: SandboxLevel,
    #[serde(default)]
    pub limits: AgentLimits,
    #[serde(default)]
    pub on_unknown: OnUnknown,
    /// Tools whose every call waits for a human's approval; `*` is all of them.
    #[serde(default)]
    pub approvals: Vec<String>,
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    /// What is run in place of a loop of our own. Such an agent has no model and no tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandSpec>,
    /// How much all sessions of the agent may spend together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<AgentBudget>,
}

/// A limit that an agent's definition says; see [`crate::budget::Limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentBudget {
    #[serde(default)]
    pub microusd: Option<u64>,
    #[serde(default)]
    pub tokens: Option<u64>,
    pub per: Period,
    #[serde(default)]
    pub soft: bool,
    #[serde(default)]
    pub unknown_price: UnknownPrice,
}

/// The agent of commands that are given in words, which is there without being made.
pub const COMMANDS: &str = "command";

impl AgentSpec {
    /// [`COMMANDS`], as it is made where there is none.
    pub fn of_commands() -> Self {
        Self {
            name: COMMANDS.to_owned(),
            role: "Commands that were given in words.".to_owned(),
            model: COMMANDS.to_owned(),
            tools_allowed: Vec::new(),
            policy: PolicyKind::default(),
            sandbox: SandboxLevel::None,
            limits: AgentLimits { max_seconds: 0, ..AgentLimits::default() },
            on_unknown: OnUnknown::default(),
            approvals: Vec::new(),
            reasoning_effort: None,
            max_output_tokens: None,
            command: Some(CommandSpec {
                argv: ["sh", "-c", "{task}"].map(str::to_owned).into(),
                terminal: true,
                ..CommandSpec::default()
            }),
            budget: None,
        }
    }
}

/// The sandbox of an agent that names none.
pub fn default_sandbox() -> SandboxLevel {
    SandboxLevel::Namespace
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    Active,
    /// Nothing of it begins; what runs goes on.
    Disabled,
    /// Gone from lists, its name free for another. Its runs still tell what it was.
    Removed,
}

/// One agent at rest. Each real change raises `version` by one; old versions stay readable.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    pub id: AgentId,
    pub colony: ColonyId,
    pub spec: AgentSpec,
    pub status: AgentStatus,
    /// Starts at 1.
    pub version: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Who wrote the spec last, and their role then. `None` for agents that were last written before
    /// this was recorded.
    pub author: Option<Author>,
}
