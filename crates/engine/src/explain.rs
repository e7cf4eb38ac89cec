//! Explains a call without making it: the verdicts of the policy and of the agent's own definition.

use overmind_core::gate::{Decision, GateVerdict, Labels, RuleRef};
use overmind_core::row::Role;
use overmind_core::sandbox::SandboxLevel;
use serde_json::Value;

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::gate_request;
use crate::error::EngineError;

/// A hypothetical call.
#[derive(Clone, Debug)]
pub struct ExplainDraft {
    pub tool: String,
    pub args: Value,
    /// The calling agent, by id or exact name.
    pub agent: Option<String>,
    /// Replaces the agent's own level; `namespace` if neither is given.
    pub sandbox: Option<SandboxLevel>,
    pub labels: Labels,
    /// Whether the run has a worktree of its own.
    pub worktree: bool,
}

/// The judged call with its verdict.
#[derive(Clone, Debug)]
pub struct Explained {
    pub tool: String,
    /// The agent's name.
    pub agent: Option<String>,
    pub sandbox: SandboxLevel,
    pub verdict: GateVerdict,
}

/// The place of rules that come from an agent's definition.
fn of_agent(name: &str) -> String {
    format!("agent {name}")
}

impl Engine {
    /// The verdict about a call: allowed, asked or denied, by which rule and why. Nothing is run or
    /// recorded, and nobody is asked.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] below viewer, [`EngineError::NotFound`] for the agent,
    /// [`EngineError::Conflict`] if this server has no policy.
    pub async fn policy_explain(
        &self,
        by: &Caller,
        draft: ExplainDraft,
    ) -> Result<Explained, EngineError> {
        by.require(Role::Viewer)?;
        let agent = match &draft.agent {
            Some(agent) => Some(self.agent_fetch(by, agent).await?.spec),
            None => None,
        };
        let Some(gate) = &self.cortex.gate else {
            return Err(EngineError::conflict("this server has no policy to explain a call by"));
        };
        let own = agent.as_ref().map(|agent| agent.sandbox);
        let sandbox = draft.sandbox.or(own).unwrap_or(SandboxLevel::Namespace);
        let name = agent.as_ref().map_or("", |agent| agent.name.as_str());
        let workspace = self.cortex.config.workspace.to_string_lossy();
        let ExplainDraft { tool, args, labels, worktree, .. } = draft;
        let colony = self.colony_name(by.colony);
        let mut request = gate_request(colony, name, sandbox, &workspace, &tool, &args);
        request.labels = labels;
        request.room = worktree && sandbox != SandboxLevel::None;
        // The order is that of a run's calls.
        let mut verdict = match self.cortex.misfit(&tool, &args) {
            Some(misfit) => misfit,
            None => gate.judge(&request),
        };
        if let Some(agent) = &agent {
            let internal =
                |name: &str| self.tool_list().iter().any(|spec| spec.name == name && spec.internal);
            if !(internal(&tool) || agent.tools_allowed.contains(&tool)) {
                verdict.decision = Decision::Deny;
                verdict.rule = RuleRef { id: "tools".to_owned(), place: of_agent(&agent.name) };
                verdict.reason = format!("The agent does not have the tool `{tool}`.");
                verdict.advice = "Use one of the agent's own tools.".to_owned();
            } else if verdict.decision == Decision::Allow
                && agent.approvals.iter().any(|name| name == "*" || *name == tool)
            {
                verdict.decision = Decision::Ask;
                verdict.rule = RuleRef { id: "approvals".to_owned(), place: of_agent(&agent.name) };
                verdict.reason = format!("The agent asks before each call of `{tool}`.");
            }
        }
        Ok(Explained { tool, agent: agent.map(|agent| agent.name), sandbox, verdict })
    }
}
