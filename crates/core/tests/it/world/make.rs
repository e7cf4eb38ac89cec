//! Specs, replies and outcomes in few words.

use std::collections::BTreeMap;
use std::sync::Arc;

use overmind_core::agent::{AgentLimits, AgentSpec, OnUnknown, PolicyKind};
use overmind_core::gate::{self, GateVerdict, PolicyVersion, Risk, RuleRef};
use overmind_core::ids::{AgentId, ColonyId, SessionId};
use overmind_core::model::{ModelCall, ModelFailure, ModelReply, StopReason, Usage};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::{Spec, Toolset};
use overmind_core::tool::{EffectClass, ToolOutcome, ToolSpec};
use serde_json::{Value, json};

use super::World;

/// Name, class, internal: as the product defines them.
pub(crate) const TOOLS: [(&str, EffectClass, bool); 9] = [
    ("read_file", EffectClass::Pure, false),
    ("list_files", EffectClass::Pure, false),
    ("search_memory", EffectClass::Pure, false),
    ("write_file", EffectClass::Idempotent, false),
    ("store_memory", EffectClass::Idempotent, false),
    ("run_shell", EffectClass::Once, false),
    ("verify", EffectClass::Pure, true),
    ("ask_user", EffectClass::Pure, true),
    ("final_answer", EffectClass::Pure, true),
];

pub(crate) fn toolset() -> Arc<Toolset> {
    let tools: Vec<_> = TOOLS
        .iter()
        .map(|(name, class, internal)| ToolSpec {
            name: (*name).into(),
            description: format!("what {name} does"),
            schema: json!({"type": "object"}),
            class: *class,
            internal: *internal,
        })
        .collect();
    Arc::new(Toolset::new(tools.into()))
}

pub(crate) struct Setup {
    pub(crate) spec: Spec,
    toolset: Arc<Toolset>,
    judge: u64,
}

/// A session that the rules decide.
pub(crate) fn rules(task: &str) -> Setup {
    Setup::new(task, "deterministic", PolicyKind::Auto)
}

/// A session that a model decides.
pub(crate) fn model() -> Setup {
    Setup::new("mend the test", "scripted:tape", PolicyKind::Model)
}

impl Setup {
    fn new(task: &str, model: &str, policy: PolicyKind) -> Self {
        let toolset = toolset();
        let agent = AgentSpec {
            name: "mender".into(),
            role: "mends things".into(),
            model: model.into(),
            tools_allowed: TOOLS.iter().map(|(name, _, _)| (*name).to_owned()).collect(),
            policy,
            sandbox: SandboxLevel::Namespace,
            limits: AgentLimits::default(),
            on_unknown: OnUnknown::Ask,
            approvals: Vec::new(),
            reasoning_effort: None,
            max_output_tokens: None,
            command: None,
            budget: None,
        };
        let spec = Spec {
            run_id: SessionId::from_u128(0x70_0000),
            colony: ColonyId::DEFAULT,
            agent_id: AgentId::from_u128(2),
            agent_version: 1,
            agent: Arc::new(agent),
            task: task.into(),
            name: "tested".into(),
            parent: None,
            step_limit: 0,
            workspace: "/w".into(),
            created_by: "admin".into(),
            toolset: toolset.hash().to_owned(),
            gated: false,
            fork: None,
            room: None,
            trace: None,
            conversation: false,
            owner: None,
            labels: BTreeMap::new(),
            contexts: Vec::new(),
            claims: Vec::new(),
        };
        Self { spec, toolset, judge: 0 }
    }

    /// It is given contexts.
    pub(crate) fn contexts(
        mut self,
        given: Vec<overmind_core::session::given::GivenContext>,
    ) -> Self {
        self.spec.contexts = given;
        self
    }

    /// It is idle after its answer.
    pub(crate) fn conversation(mut self, rests: bool) -> Self {
        self.spec.conversation = rests;
        self
    }

    pub(crate) fn model_name(mut self, model: &str) -> Self {
        Arc::make_mut(&mut self.spec.agent).model = model.into();
        self
    }

    /// The model's name selects the decider, so that a fork with another model may change it.
    pub(crate) fn by_name(mut self) -> Self {
        Arc::make_mut(&mut self.spec.agent).policy = PolicyKind::Auto;
        self
    }

    pub(crate) fn step_limit(mut self, limit: u32) -> Self {
        self.spec.step_limit = limit;
        self
    }

    pub(crate) fn limits(mut self, change: impl FnOnce(&mut AgentLimits)) -> Self {
        change(&mut Arc::make_mut(&mut self.spec.agent).limits);
        self
    }

    pub(crate) fn on_unknown(mut self, what: OnUnknown) -> Self {
        Arc::make_mut(&mut self.spec.agent).on_unknown = what;
        self
    }

    pub(crate) fn approvals(mut self, tools: &[&str]) -> Self {
        Arc::make_mut(&mut self.spec.agent).approvals =
            tools.iter().map(|tool| (*tool).to_owned()).collect();
        self
    }

    /// Every call is judged: see [`World::judge`].
    pub(crate) fn gated(mut self, judge: u64) -> Self {
        self.spec.gated = true;
        self.judge = judge;
        self
    }

    pub(crate) fn begin(self) -> World {
        let mut world = World::begin(self.spec, self.toolset);
        world.judge = self.judge;
        world
    }

    /// Begins and starts.
    #[track_caller]
    pub(crate) fn start(self) -> World {
        let mut world = self.begin();
        world.start();
        world
    }
}

// --- what models say

fn reply(text: &str, calls: Vec<ModelCall>, stop: StopReason) -> ModelReply {
    ModelReply {
        text: text.into(),
        reasoning: String::new(),
        calls,
        usage: Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() },
        stop,
        model: "tape".into(),
        provider: "scripted".into(),
        cost_microusd: Some(5),
        provider_state: None,
    }
}

pub(crate) fn says(text: &str) -> ModelReply {
    reply(text, Vec::new(), StopReason::End)
}

pub(crate) fn stops(text: &str, stop: StopReason) -> ModelReply {
    reply(text, Vec::new(), stop)
}

/// A reply with calls of `(id, tool, arguments)`.
pub(crate) fn calls<const N: usize>(calls: [(&str, &str, Value); N]) -> ModelReply {
    let calls = calls
        .into_iter()
        .map(|(id, name, args)| ModelCall { id: id.into(), name: name.into(), args })
        .collect();
    reply("", calls, StopReason::ToolCalls)
}

pub(crate) fn call(id: &str, tool: &str, args: Value) -> ModelReply {
    calls([(id, tool, args)])
}

/// A reply with the calls of a random schedule.
pub(crate) fn calls_of(text: &str, calls: Vec<ModelCall>) -> ModelReply {
    reply(text, calls, StopReason::ToolCalls)
}

pub(crate) fn model_failure(transient: bool) -> ModelFailure {
    ModelFailure {
        code: if transient { "overloaded" } else { "auth" }.into(),
        message: "the provider said no".into(),
        status: Some(if transient { 529 } else { 401 }),
        body: Some("{}".into()),
        transient,
    }
}

// --- what tools answer

/// A good result with the fields of `fields`.
pub(crate) fn ok(fields: Value) -> ToolOutcome {
    let mut result = json!({"ok": true});
    if let (Value::Object(result), Value::Object(fields)) = (&mut result, fields) {
        result.extend(fields);
    }
    ToolOutcome { allowed: true, result }
}

pub(crate) fn error(code: &str) -> ToolOutcome {
    ToolOutcome::failure(code, format!("no good: {code}"))
}

pub(crate) fn denied(tool: &str) -> ToolOutcome {
    let message = format!("Tool '{tool}' is not allowed for agent agt_2");
    ToolOutcome { allowed: false, ..ToolOutcome::failure("tool_not_allowed", message) }
}

pub(crate) fn exited(code: i64) -> ToolOutcome {
    ToolOutcome {
        allowed: true,
        result: json!({"ok": code == 0, "exit_code": code, "stdout": "out", "stderr": ""}),
    }
}

/// A policy's verdict, with a file whose content counts.
pub(crate) fn verdict(decision: gate::Decision) -> GateVerdict {
    GateVerdict {
        decision,
        rule: RuleRef { id: "shell".into(), place: "built in".into() },
        risk: Risk::Medium,
        reason: "It runs a.sh.".into(),
        advice: "Do it another way.".into(),
        actions: Vec::new(),
        policy: PolicyVersion("p1".into()),
        files: vec!["a.sh".into()],
        group: Some("g".into()),
    }
}
