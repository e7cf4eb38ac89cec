//! Asking the policy.

use overmind_core::agent::AgentSpec;
use overmind_core::gate::{
    Decision, GateRequest, GateVerdict, Labels, PolicyVersion, Risk, RuleRef,
};
use overmind_core::ids::ColonyId;
use overmind_core::row::SessionRow;
use overmind_core::sandbox::SandboxLevel;
use serde_json::Value;

use super::Cortex;

impl Cortex {
    /// What the policy says about a call of this session, and about nothing else: what the
    /// agent's own definition asks for comes on top; `asks` says that it wants a human here.
    pub(crate) fn judge(
        &self,
        row: &SessionRow,
        agent: &AgentSpec,
        tool: &str,
        args: &Value,
        labels: Labels,
        asks: bool,
    ) -> GateVerdict {
        // A session that began under a policy is never let go without one.
        let Some(gate) = &self.gate else { return no_policy() };
        let (sandbox, workspace) = (agent.sandbox, &row.workspace);
        let request = gate_request(row.colony, &agent.name, sandbox, workspace, tool, args);
        let request = GateRequest { labels, ..request };
        let mut verdict = gate.judge(&request);
        if verdict.decision == Decision::Ask || asks {
            verdict.group = gate.group(&request, &verdict);
        }
        verdict
    }
}

/// A call as policies see it, of a session that has read nothing yet.
pub(crate) fn gate_request(
    colony: ColonyId,
    agent: &str,
    sandbox: SandboxLevel,
    workspace: &str,
    tool: &str,
    args: &Value,
) -> GateRequest {
    let inside = sandbox != SandboxLevel::None;
    GateRequest {
        colony: colony.to_string(),
        agent: agent.to_owned(),
        tool: tool.to_owned(),
        args: args.clone(),
        // As the command sees it.
        workspace: if inside { "/workspace".into() } else { workspace.to_owned() },
        cwd: String::new(),
        sandbox,
        labels: Labels::default(),
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
        group: None,
    }
}
