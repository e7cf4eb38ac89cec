//! Agents: the definitions from which sessions are started.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::{Period, UnknownPrice};
use crate::command::CommandSpec;
use crate::ids::{AgentId, ColonyId};
use crate::quest::Author;
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

/// How a session's next action is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// By the model's name: see [`PolicyKind::resolve`].
    #[default]
    Auto,
    /// By the text rules of `policy::rules`, without a model.
    Deterministic,
    /// By a model in each turn, including `scripted:<cassette>` models.
    Model,
}

impl PolicyKind {
    /// Resolves `Auto`: `deterministic`, `local`, and names that begin with `stub` or `fail` use
    /// the rules; every other name uses a model.
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

/// How a session handles a *once* effect whose outcome was lost in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// Waits for input: a human decides.
    #[default]
    Ask,
    /// Repeats it. For agents whose commands are safe to repeat, such as test runs.
    Retry,
    /// Tells the agent that the outcome is unknown, and continues.
    Report,
}

/// Limits of every session of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLimits {
    /// Maximum number of steps of runs that set no `step_limit`; 0 means no limit.
    pub max_steps: u32,
    /// Longest duration of a session in seconds, without the time that it waits for a human; 0
    /// means no limit.
    pub max_seconds: u32,
    /// Maximum number of sessions of this agent at the same time; 0 means the server's default.
    pub max_concurrent: u32,
    /// Number of consecutive failed actions after which the session ends, 1..=20.
    pub failure_budget: u32,
    /// Maximum number of attempts of one action if its failures are transient, 1..=10.
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

/// The part of an agent that a user writes. A session keeps the spec with which it was created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// The name: 1..=200 characters, not blank.
    pub name: String,
    /// The purpose of the agent in words, the main part of its system prompt.
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
    /// Tools whose calls always need a human's approval; `*` means all tools.
    #[serde(default)]
    pub approvals: Vec<String>,
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    /// The command to run in place of the built-in loop. Such an agent has no model and no tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandSpec>,
    /// How much all sessions of the agent may spend together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<AgentBudget>,
}

/// A limit that is part of an agent's definition; see [`crate::budget::Limit`].
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

/// The name of the predefined agent that runs command lines given to `run`.
pub const COMMANDS: &str = "command";

impl AgentSpec {
    /// Returns the agent [`COMMANDS`], as it is created if it does not exist.
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

/// The sandbox level of agents that set none.
pub fn default_sandbox() -> SandboxLevel {
    SandboxLevel::Namespace
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    Active,
    /// No new sessions can be started; running sessions continue.
    Disabled,
    /// The agent is no longer listed, and its name can be used again. Its sessions still show its
    /// spec.
    Removed,
}

/// A stored agent. Each real change increases `version` by one; old versions stay readable.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    pub id: AgentId,
    pub colony: ColonyId,
    pub spec: AgentSpec,
    pub status: AgentStatus,
    /// The version, from 1.
    pub version: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The last author of the spec, with their role at that time. `None` for agents last written
    /// before authors were recorded.
    pub author: Option<Author>,
}
