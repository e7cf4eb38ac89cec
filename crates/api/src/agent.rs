//! Agents on the wire.

use overmind_core::agent as core;
use overmind_core::ids::{AgentId, ColonyId};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::{FieldError, refuse_blank, refuse_long};
use crate::{AgentBudget, AgentStatus, Command, OnUnknown, Policy, SandboxLevel};

/// Longest name of an agent, in characters.
pub(crate) const NAME_MAX: usize = 200;

/// An agent: the definition from which runs are started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "agt_0190b2c4d5e67000800000000000002a"))]
    pub id: AgentId,
    pub name: String,
    /// The purpose of the agent, the main part of its system prompt.
    pub role: String,
    pub model: String,
    pub tools_allowed: Vec<String>,
    pub status: AgentStatus,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
    /// Starts at 1 and increases with each real change. Also sent as the `ETag`.
    pub version: u32,
    pub policy: Policy,
    pub sandbox: SandboxLevel,
    pub limits: AgentLimits,
    pub on_unknown: OnUnknown,
    /// Tools whose calls always need a human's approval; `*` means all tools.
    pub approvals: Vec<String>,
    pub reasoning_effort: Option<String>,
    pub max_output_tokens: Option<u32>,
    /// The command that the agent runs in place of the built-in loop.
    #[serde(default)]
    pub command: Option<Command>,
    /// How much all runs of the agent may spend together.
    #[serde(default)]
    pub budget: Option<AgentBudget>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub colony: ColonyId,
    /// Problems that keep the agent from working as defined. Returned only when one agent is
    /// created, changed or fetched, and only if there are some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl From<core::Agent> for Agent {
    fn from(agent: core::Agent) -> Self {
        let spec = agent.spec;
        Self {
            id: agent.id,
            name: spec.name,
            role: spec.role,
            model: spec.model,
            tools_allowed: spec.tools_allowed,
            status: agent.status.into(),
            created_at: agent.created_at,
            updated_at: agent.updated_at,
            version: agent.version,
            policy: spec.policy.into(),
            sandbox: spec.sandbox.into(),
            limits: spec.limits.into(),
            on_unknown: spec.on_unknown.into(),
            approvals: spec.approvals,
            reasoning_effort: spec.reasoning_effort,
            max_output_tokens: spec.max_output_tokens,
            command: spec.command.map(Into::into),
            budget: spec.budget.map(Into::into),
            colony: agent.colony,
            warnings: Vec::new(),
        }
    }
}

/// Limits of every run of an agent. Omitted limits have their default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AgentLimits {
    /// Maximum number of steps of runs that set no `step_limit`; 0 means no limit.
    #[cfg_attr(feature = "openapi", schema(default = 50))]
    pub max_steps: u32,
    /// Longest duration of a run in seconds, without the time that it waits for a human; 0 means no
    /// limit.
    #[cfg_attr(feature = "openapi", schema(default = 3600))]
    pub max_seconds: u32,
    /// Maximum number of runs of this agent at the same time; 0 means the server's default.
    #[cfg_attr(feature = "openapi", schema(default = 0))]
    pub max_concurrent: u32,
    /// Number of consecutive failed actions after which the run ends.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 20, default = 3))]
    pub failure_budget: u32,
    /// Maximum number of attempts of one action if its failures are transient.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10, default = 2))]
    pub max_attempts: u32,
}

impl Default for AgentLimits {
    fn default() -> Self {
        core::AgentLimits::default().into()
    }
}

impl From<core::AgentLimits> for AgentLimits {
    fn from(limits: core::AgentLimits) -> Self {
        let core::AgentLimits {
            max_steps,
            max_seconds,
            max_concurrent,
            failure_budget,
            max_attempts,
        } = limits;
        Self { max_steps, max_seconds, max_concurrent, failure_budget, max_attempts }
    }
}

impl From<AgentLimits> for core::AgentLimits {
    fn from(limits: AgentLimits) -> Self {
        let AgentLimits { max_steps, max_seconds, max_concurrent, failure_budget, max_attempts } =
            limits;
        Self { max_steps, max_seconds, max_concurrent, failure_budget, max_attempts }
    }
}

impl AgentLimits {
    fn check(&self, errors: &mut Vec<FieldError>) {
        if !(1..=20).contains(&self.failure_budget) {
            errors.push(FieldError::new(
                "limits.failure_budget",
                format!("must be from 1 to 20, not {}", self.failure_budget),
            ));
        }
        if !(1..=10).contains(&self.max_attempts) {
            errors.push(FieldError::new(
                "limits.max_attempts",
                format!("must be from 1 to 10, not {}", self.max_attempts),
            ));
        }
    }
}

/// Body of `POST /api/agents`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentCreate {
    /// The name: 1 to 200 characters, not blank. Names need not be unique.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "fixer"))]
    pub name: String,
    /// The agent's purpose. Must not be blank.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, example = "You fix failing tests."))]
    pub role: String,
    /// The model: `deterministic`, `scripted:<cassette>`, or a provider's model. Must not be blank.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, example = "deterministic"))]
    pub model: String,
    /// Tools that the agent may use. An unknown name causes a warning, not an error, since a tool
    /// may be added later.
    #[serde(default)]
    pub tools_allowed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<OnUnknown>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub max_output_tokens: Option<u32>,
    /// A command to run in place of the built-in loop. Such an agent has no model and no tools, and
    /// its sandbox is `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// How much all runs of the agent may spend together. Sets a limit in the scope of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<AgentBudget>,
}

impl AgentCreate {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_blank(&mut errors, "name", &self.name);
        refuse_long(&mut errors, "name", &self.name, NAME_MAX);
        refuse_blank(&mut errors, "role", &self.role);
        refuse_blank(&mut errors, "model", &self.model);
        let tools = Some(self.tools_allowed.as_slice());
        let approvals = self.approvals.as_deref();
        check_common(&mut errors, tools, approvals, self.limits, self.max_output_tokens);
        if let Some(command) = &self.command {
            command.check(&mut errors);
        }
        if let Some(budget) = &self.budget {
            budget.check(&mut errors);
        }
        errors
    }
}

/// Body of `PATCH /api/agents/{id}`. Omitted and `null` values are not changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AgentPatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools_allowed: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<AgentStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<OnUnknown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub max_output_tokens: Option<u32>,
    /// A command to run in place of the built-in loop. Such an agent has no model and no tools, and
    /// its sandbox is `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// How much all runs of the agent may spend together. A budget without limits (`{"per":
    /// "day"}`) removes the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<AgentBudget>,
}

impl AgentPatch {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (field, value) in [("name", &self.name), ("role", &self.role), ("model", &self.model)] {
            if let Some(value) = value {
                refuse_blank(&mut errors, field, value);
            }
        }
        if let Some(name) = &self.name {
            refuse_long(&mut errors, "name", name, NAME_MAX);
        }
        let tools = self.tools_allowed.as_deref();
        let approvals = self.approvals.as_deref();
        check_common(&mut errors, tools, approvals, self.limits, self.max_output_tokens);
        if let Some(command) = &self.command {
            command.check(&mut errors);
        }
        if let Some(budget) = &self.budget {
            budget.check(&mut errors);
        }
        errors
    }
}

fn check_common(
    errors: &mut Vec<FieldError>,
    tools: Option<&[String]>,
    approvals: Option<&[String]>,
    limits: Option<AgentLimits>,
    max_output_tokens: Option<u32>,
) {
    for (field, names) in [("tools_allowed", tools), ("approvals", approvals)] {
        for (at, name) in names.unwrap_or_default().iter().enumerate() {
            refuse_blank(errors, &format!("{field}[{at}]"), name);
        }
    }
    if let Some(limits) = limits {
        limits.check(errors);
    }
    if max_output_tokens == Some(0) {
        errors.push(FieldError::new("max_output_tokens", "must be at least 1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(name: &str) -> AgentCreate {
        AgentCreate {
            name: name.into(),
            role: "r".into(),
            model: "m".into(),
            ..AgentCreate::default()
        }
    }

    #[test]
    fn blank_and_overlong_names_are_refused_with_the_field() {
        assert_eq!(create("a").check(), []);
        assert_eq!(create(" \t").check(), [FieldError::new("name", "must not be blank")]);
        assert_eq!(create(&"ä".repeat(200)).check(), []);
        assert_eq!(create(&"ä".repeat(201)).check().len(), 1);
        let patch = AgentPatch { role: Some(String::new()), ..AgentPatch::default() };
        assert_eq!(patch.check(), [FieldError::new("role", "must not be blank")]);
    }

    #[test]
    fn all_invalid_fields_are_reported_together() {
        let limits = AgentLimits { failure_budget: 0, max_attempts: 11, ..AgentLimits::default() };
        let tools_allowed = vec!["run_shell".into(), " ".into()];
        let bad = AgentCreate {
            limits: Some(limits),
            tools_allowed,
            max_output_tokens: Some(0),
            ..create("a")
        };
        let fields: Vec<_> = bad.check().into_iter().map(|error| error.field).collect();
        assert_eq!(
            fields,
            [
                "tools_allowed[1]",
                "limits.failure_budget",
                "limits.max_attempts",
                "max_output_tokens"
            ]
        );
    }

    #[test]
    fn unknown_keys_and_coerced_numbers_are_refused() {
        let parse = serde_json::from_str::<AgentPatch>;
        assert!(parse(r#"{"nam":"x"}"#).is_err());
        assert!(parse(r#"{"max_output_tokens":"7"}"#).is_err());
        assert!(parse(r#"{"limits":{"max_steps":true}}"#).is_err());
        assert_eq!(parse(r#"{"name":null}"#).unwrap(), AgentPatch::default());
    }
}
