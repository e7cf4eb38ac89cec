//! Asking the policy.

use overmind_core::agent::AgentSpec;
use overmind_core::canary::{self, Alarm, Sighting};
use overmind_core::gate::{
    Decision, GateRequest, GateVerdict, Labels, PolicyVersion, Risk, RuleRef, scratch_of,
};
use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::masking::masked_kind;
use overmind_core::row::SessionRow;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::Input;
use overmind_core::store::{NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use super::Cortex;

/// A call of a model's reply, as it is now, and the canaries that stood in it.
#[derive(Debug)]
pub(crate) struct Masked {
    tool: String,
    args: Value,
    held: Vec<Sighting>,
}

impl Masked {
    /// Those calls of a reply that held any; `held` is about the same calls in their order.
    pub(crate) fn of(input: &Input, held: Vec<Vec<Sighting>>) -> Vec<Self> {
        let Input::ModelDone { reply: Ok(reply), .. } = input else { return Vec::new() };
        let calls = reply.calls.iter().zip(held).filter(|(_, held)| !held.is_empty());
        calls
            .map(|(call, held)| Self { tool: call.name.clone(), args: call.args.clone(), held })
            .collect()
    }
}

impl Cortex {
    /// The refusal of a call that carries a canary; `None` for all others. `masked` says what stood
    /// where the mask stands now in the calls of the last reply, as far as it is known. The policy is not asked
    /// about one: nobody shall be able to agree to it.
    pub(crate) fn alarm(
        &self,
        session: SessionId,
        tool: &str,
        args: &Value,
        masked: &[Masked],
    ) -> Option<GateVerdict> {
        let canaries = self.config.canaries.as_ref()?.of(session);
        let mut carried = canaries.carried(tool, args);
        if let Some(known) = masked.iter().find(|call| call.tool == tool && call.args == *args)
            && !carried.is_empty()
        {
            carried.clone_from(&known.held);
        }
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
    /// canary. Answers what it says apart from calls, which are judged by themselves, and what
    /// stood in each call.
    pub(crate) fn mask_canaries(
        &self,
        session: SessionId,
        input: &mut Input,
    ) -> (Vec<Sighting>, Vec<Vec<Sighting>>) {
        let (Some(planter), Input::ModelDone { reply: Ok(reply), .. }) =
            (&self.config.canaries, input)
        else {
            return <(Vec<Sighting>, Vec<Vec<Sighting>>)>::default();
        };
        let canaries = planter.of(session);
        let mut said = canaries.seen_in_text(&reply.text, "/text");
        said.extend(canaries.seen_in_text(&reply.reasoning, "/reasoning"));
        canaries.mask_text(&mut reply.text);
        canaries.mask_text(&mut reply.reasoning);
        let held = reply.calls.iter_mut().map(|call| canaries.mask(&mut call.args)).collect();
        if let Some(state) = &mut reply.provider_state {
            canaries.mask(state);
        }
        (said, held)
    }

    /// The alarm about a model that has said a canary: nothing has left, and whoever told the model
    /// of it has had it from elsewhere.
    pub(crate) fn said_canaries(
        &self,
        session: &SessionRow,
        model: &str,
        said: &[Sighting],
        now: Timestamp,
    ) -> Option<NewEvent> {
        if said.is_empty() {
            return None;
        }
        let kind = Alarm::Seen.kind();
        self.counters.of_event(kind);
        Some(NewEvent {
            stream: StreamId::Session(session.id),
            kind,
            ts: now,
            payload: json!({
                "run_id": session.id, "outside": true, "model": model,
                "what": canary::in_words(said),
            }),
        })
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
        let (sandbox, workspace) = (agent.sandbox, row.directory().to_string_lossy());
        let mut request = gate_request(row.colony, &agent.name, sandbox, &workspace, tool, args);
        if sandbox == SandboxLevel::Namespace && row.has_worktree() {
            // Its commands see it where it is.
            request.workspace = workspace.into_owned();
        }
        let room = sandbox != SandboxLevel::None && self.has_room_of_its_own(row);
        let request = GateRequest { labels, scratch: scratch_of(row.id), room, ..request };
        let mut verdict = gate.judge(&request);
        if verdict.decision == Decision::Ask || asks {
            verdict.group = gate.group(&request, &verdict);
        }
        verdict
    }
}

impl Cortex {
    /// The refusal of a call whose arguments do not fit, or in which a secret was masked: something
    /// else would run than the model said. `None` for all others.
    pub(crate) fn misfit(&self, tool: &str, args: &Value) -> Option<GateVerdict> {
        let why = self.tools.misfit(tool, args).or_else(|| {
            let kind = masked_kind(args)?;
            Some(format!(
                "the arguments contain `[redacted:{kind}]`, which replaces a masked secret, so \
                    the call would not do what was meant. Read the value from an environment \
                    variable or a file within the command, and edit only the lines around it"
            ))
        })?;
        let policy = self.gate.as_ref().map_or(PolicyVersion("none".into()), |gate| gate.version());
        Some(GateVerdict::misfit(tool, why, policy))
    }

    /// Whether nobody else works where the session does: in a worktree, or in a directory that was
    /// made for it.
    fn has_room_of_its_own(&self, row: &SessionRow) -> bool {
        let config = &self.config;
        row.has_worktree() || config.private && row.directory().starts_with(&config.workspace)
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
        room: false,
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
