//! Gets verdicts from the policy.

use overmind_core::agent::AgentSpec;
use overmind_core::canary::{self, Alarm, Sighting};
use overmind_core::gate::{
    Decision, GateRequest, GateVerdict, Labels, PolicyVersion, Risk, RuleRef, scratch_of,
};
use overmind_core::ids::SessionId;
use overmind_core::masking::masked_kind;
use overmind_core::row::SessionRow;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::Input;
use overmind_core::store::{NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use super::Cortex;

/// A call of a model's reply after masking, with the canaries that it contained.
#[derive(Debug)]
pub(crate) struct Masked {
    tool: String,
    args: Value,
    held: Vec<Sighting>,
}

impl Masked {
    /// The calls of a reply that contained any; `held` is about the same calls in order.
    pub(crate) fn of(input: &Input, held: Vec<Vec<Sighting>>) -> Vec<Self> {
        let Input::ModelDone { reply: Ok(reply), .. } = input else { return Vec::new() };
        let calls = reply.calls.iter().zip(held).filter(|(_, held)| !held.is_empty());
        calls
            .map(|(call, held)| Self { tool: call.name.clone(), args: call.args.clone(), held })
            .collect()
    }
}

impl Cortex {
    /// The refusal of a call that contains a canary; `None` for all others. `masked` are the known
    /// original values in the last reply's calls. The policy is not asked about such a call, so
    /// that nobody can approve it.
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

    /// Masks canaries in a model's calls. Plain text is masked by their form anyway, but encoded
    /// text would not be, and a call with the mask is known to have contained a canary. Returns
    /// canaries in the text, which is handled separately, and those of each call.
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

    /// The alarm for a model that has output a canary: nothing has left the server, but the canary
    /// came from somewhere.
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

    /// The policy's verdict about a call of this session. Requirements of the agent's own
    /// definition are added; `asks` means that it requires a human here.
    pub(crate) fn judge(
        &self,
        row: &SessionRow,
        agent: &AgentSpec,
        tool: &str,
        args: &Value,
        labels: Labels,
        asks: bool,
    ) -> GateVerdict {
        // A session that began under a policy never runs without one. The server always has one:
        // "off" is a policy that allows everything.
        let Some(gate) = &self.gate else { return no_policy() };
        let (sandbox, workspace) = (agent.sandbox, row.directory().to_string_lossy());
        let mut request = gate_request(
            self.colonies.name(row.colony),
            &agent.name,
            sandbox,
            &workspace,
            tool,
            args,
        );
        if sandbox == SandboxLevel::Namespace && row.has_worktree() {
            // Its commands see the workspace at its host path.
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
    /// The refusal of a call with invalid arguments, or with a masked secret, because it would
    /// differ from the model's call. `None` for all others.
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

    /// Whether only this session works in its workspace: a worktree, or a directory that was made
    /// for it.
    fn has_room_of_its_own(&self, row: &SessionRow) -> bool {
        let config = &self.config;
        let in_own =
            config.is_private(row.colony) && row.directory().starts_with(&config.workspace);
        row.has_worktree() || in_own
    }
}

/// A call in the form of the policy, for a session that has not read anything yet. `colony` is the
/// name of the colony.
pub(crate) fn gate_request(
    colony: String,
    agent: &str,
    sandbox: SandboxLevel,
    workspace: &str,
    tool: &str,
    args: &Value,
) -> GateRequest {
    let inside = sandbox != SandboxLevel::None;
    GateRequest {
        colony,
        agent: agent.to_owned(),
        tool: tool.to_owned(),
        args: args.clone(),
        // This is the path that the command sees.
        workspace: if inside { "/workspace".into() } else { workspace.to_owned() },
        cwd: String::new(),
        scratch: scratch_of("session"),
        sandbox,
        labels: Labels::default(),
        room: false,
    }
}

/// The verdict if this server has no policy but the session needs one.
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
