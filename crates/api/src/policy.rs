//! Explains how the policy decides about a call, without making the call.

use overmind_core::gate;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::SandboxLevel;
use crate::problem::{FieldError, refuse_blank, refuse_long};

/// Longest command to explain, in characters.
pub const MAX_EXPLAINED: usize = 65_536;

/// Body of `POST /api/policy/explain`: either `command`, or `tool` with `args`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyExplain {
    /// A shell command as an agent passes it to `run_shell`; 1 to 65536 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 65536))]
    pub command: Option<String>,
    /// The name of another tool, 1 to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub tool: Option<String>,
    /// The tool's arguments, an object. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub args: Option<Value>,
    /// The agent that would make the call, by id or name. Its tools, approvals and sandbox apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub agent: Option<String>,
    /// The sandbox level. Default: the agent's own, or `namespace` without an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// Assumes that the run has read text that a stranger may have written.
    #[serde(default)]
    pub untrusted: bool,
    /// Assumes that the run has read data that must stay private.
    #[serde(default)]
    pub private: bool,
    /// Assumes that the run works in a worktree of its own.
    #[serde(default)]
    pub worktree: bool,
}

impl PolicyExplain {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match (&self.command, &self.tool) {
            (Some(command), None) => {
                refuse_blank(&mut errors, "command", command);
                refuse_long(&mut errors, "command", command, MAX_EXPLAINED);
                if self.args.is_some() {
                    errors.push(FieldError::new("args", "belongs to `tool`, not to `command`"));
                }
            }
            (None, Some(tool)) => {
                refuse_blank(&mut errors, "tool", tool);
                refuse_long(&mut errors, "tool", tool, 200);
            }
            (Some(_), Some(_)) => {
                errors.push(FieldError::new("tool", "must not be given beside `command`"));
            }
            (None, None) => errors.push(FieldError::new("command", "is required without `tool`")),
        }
        if self.args.as_ref().is_some_and(|args| !args.is_object()) {
            errors.push(FieldError::new("args", "must be an object"));
        }
        if let Some(agent) = &self.agent {
            refuse_blank(&mut errors, "agent", agent);
            refuse_long(&mut errors, "agent", agent, 200);
        }
        errors
    }

    /// Returns the tool to call, and its arguments.
    pub fn call(&self) -> (String, Value) {
        match (&self.command, &self.tool) {
            (None, Some(tool)) => {
                let args = self.args.clone().unwrap_or_else(|| Value::Object(Default::default()));
                (tool.clone(), args)
            }
            (command, _) => ("run_shell".to_owned(), serde_json::json!({ "command": command })),
        }
    }
}

/// The policy's decision about a call that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyExplained {
    /// The decision: `allow`, `ask` or `deny`.
    pub decision: String,
    /// The reason, for a person.
    pub reason: String,
    /// The answer that a model gets if its call is not allowed.
    pub advice: String,
    /// The risk: `low`, `medium`, `high` or `critical`.
    pub risk: String,
    pub rule: PolicyRule,
    /// Hash of the policy's meaning.
    pub policy: String,
    pub tool: String,
    /// The agent's name, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The sandbox level that was assumed.
    pub sandbox: SandboxLevel,
    /// The programs that would run, without their wrappers.
    pub actions: Vec<PolicyAction>,
    /// Files that an approval would be bound to.
    pub files: Vec<String>,
}

/// The rule that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyRule {
    pub id: String,
    /// The place where it is written: `policy.toml:12`, `built in`, `agent fixer`.
    pub place: String,
}

/// One program that would run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyAction {
    pub program: String,
    pub args: Vec<String>,
    /// Its wrappers, outermost first: `["sudo", "env"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    pub touches: Vec<PolicyTouch>,
    /// The decision: `allow`, `ask` or `deny`.
    pub decision: String,
}

/// One effect of a program on the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyTouch {
    /// The kind of effect: `read`, `write`, `delete`, `network`, `install` and others.
    pub kind: String,
    /// The target: a path, a host, the name of a variable, or a reason.
    pub target: String,
}

impl PolicyExplained {
    /// Creates the verdict about a call of `tool`.
    pub fn new(
        verdict: gate::GateVerdict,
        tool: String,
        agent: Option<String>,
        sandbox: SandboxLevel,
    ) -> Self {
        let action = |action: gate::Action| PolicyAction {
            program: action.program,
            args: action.args,
            via: action.via,
            touches: action
                .touches
                .into_iter()
                .map(|touch| PolicyTouch { kind: touch.kind.to_string(), target: touch.target })
                .collect(),
            decision: action.decision.to_string(),
        };
        Self {
            decision: verdict.decision.to_string(),
            reason: verdict.reason,
            advice: verdict.advice,
            risk: verdict.risk.to_string(),
            rule: PolicyRule { id: verdict.rule.id, place: verdict.rule.place },
            policy: verdict.policy.to_string(),
            tool,
            agent,
            sandbox,
            actions: verdict.actions.into_iter().map(action).collect(),
            files: verdict.files,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(body: Value) -> Vec<String> {
        let body: PolicyExplain = serde_json::from_value(body).unwrap();
        body.check()
            .into_iter()
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect()
    }

    #[test]
    fn a_request_body_names_one_call_with_an_arguments_object() {
        assert_eq!(wrong(json!({"command": "ls"})), [""; 0]);
        assert_eq!(wrong(json!({"tool": "read_file", "args": {"path": "a"}})), [""; 0]);
        assert_eq!(wrong(json!({})), ["command: is required without `tool`"]);
        let both = wrong(json!({"command": "ls", "tool": "x"}));
        assert_eq!(both, ["tool: must not be given beside `command`"]);
        assert_eq!(wrong(json!({"tool": "x", "args": [1]})), ["args: must be an object"]);
        assert!(wrong(json!({"command": " "}))[0].starts_with("command: "));
        let (tool, args) = PolicyExplain { tool: Some("x".into()), ..Default::default() }.call();
        assert_eq!((tool.as_str(), args), ("x", json!({})));
    }
}
