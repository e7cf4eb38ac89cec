//! Asking the policy.

use overmind_core::agent::AgentSpec;
use overmind_core::gate::{
    Decision, GateRequest, GateVerdict, Labels, PolicyVersion, Risk, RuleRef,
};
use overmind_core::row::SessionRow;
use overmind_core::sandbox::SandboxLevel;
use serde_json::Value;

use super::Cortex;

impl Cortex {
    /// What the policy says about a call of this session, and about nothing else: what the
    /// agent's own definition asks for comes on top.
    pub(crate) fn judge(
        &self,
        row: &SessionRow,
        agent: &AgentSpec,
        tool: &str,
        args: &Value,
        labels: Labels,
    ) -> GateVerdict {
        // A session that began under a policy is never let go without one.
        let Some(gate) = &self.gate else { return no_policy() };
        let inside = agent.sandbox != SandboxLevel::None;
        gate.judge(&GateRequest {
            colony: row.colony.to_string(),
            agent: agent.name.clone(),
            tool: tool.to_owned(),
            args: args.clone(),
            // As the command sees it.
            workspace: if inside { "/workspace".into() } else { row.workspace.clone() },
            cwd: String::new(),
            sandbox: agent.sandbox,
            labels,
        })
    }
}

/// The verdict of a server that has no policy about a session that needs one.
fn no_policy() -> GateVerdict {
    GateVerdict {
        decision: Decision::Ask,
        rule: RuleRef { id: "no-policy".into(), place: "built in".into() },
        risk: Risk::Critical,
        reason: "This server has no policy, and the session began under one.".into(),
        advice: "Wait for a human.".into(),
        actions: Vec::new(),
        policy: PolicyVersion("none".into()),
        files: Vec::new(),
    }
}
