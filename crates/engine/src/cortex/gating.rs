//! Asking the policy.

use overmind_core::agent::AgentSpec;
use overmind_core::canary;
use overmind_core::gate::{
    Decision, GateRequest, GateVerdict, Labels, PolicyVersion, Risk, RuleRef, scratch_of,
};
use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::row::SessionRow;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::Input;
use serde_json::Value;

use super::Cortex;

impl Cortex {
    /// The refusal of a call that carries a canary; `None` for all others. The policy is not asked
    /// about one: nobody shall be able to agree to it.
    pub(crate) fn alarm(
        &self,
        session: SessionId,
        tool: &str,
        args: &Value,
    ) -> Option<GateVerdict> {
        let canaries = self.config.canaries.as_ref()?.of(session);
        let carried = canaries.carried(tool, args);
        let first = carried.first()?;
        Some(GateVerdict {
            decision: Decision::Deny,
            rule: RuleRef { id: first.place.clone(), place: canary::RULE_PLACE.into() },
            risk: Risk::Critical,
            reason: canary::in_words(&carried),
            advice: canary::ADVICE.into(),
            actions: Vec::new(),
            policy: match &self.gate {
                Some(gate) => gate.version(),
                None => PolicyVersion("none".into()),
            },
            files: Vec::new(),
            group: None,
        })
    }

    /// Masks canaries in what a model wants. What it says is masked by their shape anyway; what it
    /// encodes would not be, and a call that carries the mask is known as one that carried a
    /// canary.
    pub(crate) fn mask_canaries(&self, session: SessionId, input: &mut Input) {
        let (Some(planter), Input::ModelDone { reply: Ok(reply), .. }) =
            (&self.config.canaries, input)
        else {
            return;
        };
        let canaries = planter.of(session);
        canaries.mask_text(&mut reply.text);
        canaries.mask_text(&mut reply.reasoning);
        for call in &mut reply.calls {
            canaries.mask(&mut call.args);
        }
        if let Some(state) = &mut reply.provider_state {
            canaries.mask(state);
        }
    }

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
        // A session that began under a policy is never let go by an engine that has none. The
        // server always has one: switched off, it is a policy that allows everything.
        let Some(gate) = &self.gate else { return no_policy() };
        let (sandbox, workspace) = (agent.sandbox, &row.workspace);
        let request = gate_request(row.colony, &agent.name, sandbox, workspace, tool, args);
        let request = GateRequest { labels, scratch: scratch_of(row.id), ..request };
        let mut verdict = gate.judge(&request);
        if verdict.decision == Decision::Ask || asks {
            verdict.group = gate.group(&request, &verdict);
        }
        verdict
    }
}

/// A call as policies see it, of any session that has read nothing yet.
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
        colony: colony_name(colony),
        agent: agent.to_owned(),
        tool: tool.to_owned(),
        args: args.clone(),
        // As the command sees it.
        workspace: if inside { "/workspace".into() } else { workspace.to_owned() },
        cwd: String::new(),
        scratch: scratch_of("session"),
        sandbox,
        labels: Labels::default(),
    }
}

/// What people, and so their policies, call a colony: its id as text when it has no name here.
fn colony_name(colony: ColonyId) -> String {
    match colony {
        ColonyId::DEFAULT => ColonyId::DEFAULT_NAME.to_owned(),
        other => other.to_string(),
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
