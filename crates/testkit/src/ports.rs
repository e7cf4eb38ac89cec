//! Fakes of the ports that a session acts through, for tests of the engine: tools and models
//! that do what a test says, at the moment it says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::gate::{
    Binding, Decision, Gate, GateRequest, GateVerdict, PolicySource, PolicyVersion, Risk, RuleRef,
};
use overmind_core::ids::MemoryId;
use overmind_core::live::LiveSink;
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery, Reembedded,
};
use overmind_core::model::{
    DeltaSink, ModelCall, ModelDelta, ModelFailure, ModelReply, ModelRequest, Models, StopReason,
    Usage,
};
use overmind_core::time::{Clock, Timestamp};
use overmind_core::tool::{EffectClass, ToolContext, ToolOutcome, ToolSpec, Toolbox};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// The answer of a fake tool to its arguments.
pub type Answer = Arc<dyn Fn(&str, &Value) -> ToolOutcome + Send + Sync>;

/// Tools by name and class; each call is recorded. `hang` waits until [`FakeTools::let_go`] and
/// counts the calls that were dropped before.
pub struct FakeTools {
    specs: Arc<[ToolSpec]>,
    answer: Answer,
    pub calls: Mutex<Vec<(String, Value)>>,
    pub dropped: AtomicUsize,
    /// The live channel that each call may write to.
    pub live: Mutex<Vec<LiveSink>>,
    /// Represents the data that a call would read: a change of it changes the call's effect.
    pub surroundings: AtomicUsize,
    /// The measurement of the sandbox of `run_shell` and `hang`.
    pub attested: Mutex<Option<Arc<Attested>>>,
    gate: Semaphore,
}

impl std::fmt::Debug for FakeTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeTools").finish_non_exhaustive()
    }
}

struct CountDrop<'a>(&'a AtomicUsize, bool);

impl Drop for CountDrop<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl FakeTools {
    /// The built-in names with their classes, and `look` (pure) and `hang` (once).
    pub fn new(answer: impl Fn(&str, &Value) -> ToolOutcome + Send + Sync + 'static) -> Arc<Self> {
        use EffectClass::{Idempotent, Once, Pure};
        let spec = |name: &str, class, internal| ToolSpec {
            name: name.into(),
            description: format!("fake {name}"),
            schema: json!({"type": "object"}),
            class,
            internal,
        };
        let specs = vec![
            spec("ask_user", Pure, true),
            spec("final_answer", Pure, true),
            spec("hang", Once, false),
            spec("look", Pure, false),
            spec("read_file", Pure, false),
            spec("run_shell", Once, false),
            spec("search_memory", Pure, false),
            spec("store_memory", Idempotent, false),
            spec("verify", Pure, true),
            spec("write_file", Idempotent, false),
        ];
        Arc::new(Self {
            specs: specs.into(),
            answer: Arc::new(answer),
            calls: Mutex::default(),
            dropped: AtomicUsize::new(0),
            live: Mutex::default(),
            surroundings: AtomicUsize::new(0),
            attested: Mutex::default(),
            gate: Semaphore::new(0),
        })
    }

    /// Everything succeeds.
    pub fn ok() -> Arc<Self> {
        Self::new(|_, _| ToolOutcome { allowed: true, result: json!({"ok": true}) })
    }

    /// Releases `n` calls of `hang`.
    pub fn let_go(&self, n: usize) {
        self.gate.add_permits(n);
    }

    pub fn called(&self, name: &str) -> usize {
        self.calls.lock().expect("no test panics here").iter().filter(|(n, _)| n == name).count()
    }
}

impl Toolbox for FakeTools {
    fn specs(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.specs)
    }

    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome> {
        Box::pin(async move {
            let known = self.specs.iter().find(|spec| spec.name == name);
            let allowed = known.is_some_and(|spec| spec.internal)
                || (known.is_some() && context.allowed.iter().any(|tool| tool == name));
            if !allowed {
                let message = format!("Tool '{name}' is not allowed for agent {}", context.agent);
                let outcome = ToolOutcome::failure("tool_not_allowed", message);
                return ToolOutcome { allowed: false, ..outcome };
            }
            self.live.lock().expect("no test panics here").push(context.live.clone());
            self.calls.lock().expect("no test panics here").push((name.into(), args.clone()));
            if name == "hang" {
                let mut guard = CountDrop(&self.dropped, true);
                self.gate.acquire().await.expect("the gate is never closed").forget();
                guard.1 = false;
            }
            (self.answer)(name, args)
        })
    }

    fn attested<'a>(
        &'a self,
        _context: &'a ToolContext,
        name: &'a str,
    ) -> Fut<'a, Option<Arc<Attested>>> {
        let attested = self.attested.lock().expect("no test panics here").clone();
        let sandboxed = name == "run_shell" || name == "hang";
        Box::pin(std::future::ready(attested.filter(|_| sandboxed)))
    }

    fn bind<'a>(
        &'a self,
        _context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
        files: &'a [String],
        policy: &'a PolicyVersion,
    ) -> Fut<'a, String> {
        let content = self.surroundings.load(Ordering::SeqCst).to_string();
        let files: Vec<_> =
            files.iter().map(|file| (file.clone(), Some(content.clone()))).collect();
        let (tool, cwd) = (name, "");
        let binding = Binding { tool, args, argv: &[], cwd, env: &[], files: &files, policy };
        Box::pin(std::future::ready(binding.hash()))
    }
}

/// A policy whose verdict a test selects by tool and arguments.
pub struct FakeGate {
    decide: Box<dyn Fn(&GateRequest) -> Decision + Send + Sync>,
    version: Mutex<String>,
}

impl std::fmt::Debug for FakeGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeGate").finish_non_exhaustive()
    }
}

impl FakeGate {
    pub fn new(decide: impl Fn(&GateRequest) -> Decision + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { decide: Box::new(decide), version: Mutex::new("p1".into()) })
    }

    /// The policy is another one from now on.
    pub fn reload(&self, version: &str) {
        *self.version.lock().expect("no test panics here") = version.into();
    }
}

impl Gate for FakeGate {
    fn judge(&self, request: &GateRequest) -> GateVerdict {
        let decision = (self.decide)(request);
        GateVerdict {
            decision,
            rule: RuleRef { id: "fake".into(), place: "built in".into() },
            risk: if decision == Decision::Allow { Risk::Low } else { Risk::High },
            reason: "It deploys.".into(),
            advice: "Ask for a review first.".into(),
            actions: Vec::new(),
            policy: self.version(),
            files: vec!["deploy.sh".into()],
            group: None,
        }
    }

    fn group(&self, request: &GateRequest, verdict: &GateVerdict) -> Option<String> {
        Some(format!("{}-{}", request.tool, verdict.risk))
    }

    fn propose(&self, approved: &[GateRequest]) -> Result<String, String> {
        let first = approved.first().ok_or("there are none")?;
        // Like a policy: an allowed call needs no rule.
        match (self.decide)(first) {
            Decision::Ask => Ok(format!("allow {} {}", first.tool, first.args)),
            Decision::Allow | Decision::Deny => Err("it is not asked about".into()),
        }
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.version.lock().expect("no test panics here").clone())
    }

    fn source(&self) -> PolicySource {
        PolicySource::Builtin
    }
}

/// A model that gives the replies of a list, one a call, whatever it is asked.
#[derive(Debug, Default)]
pub struct FakeModels {
    replies: Mutex<VecDeque<Result<ModelReply, ModelFailure>>>,
    pub requests: Mutex<Vec<ModelRequest>>,
    /// Says this and then nothing, for ever.
    hangs: Option<String>,
}

impl FakeModels {
    /// A model that says this much of each reply and never ends it.
    pub fn hanging(text: &str) -> Arc<Self> {
        Arc::new(Self {
            replies: Mutex::default(),
            requests: Mutex::default(),
            hangs: Some(text.to_owned()),
        })
    }

    pub fn new(replies: impl IntoIterator<Item = Result<ModelReply, ModelFailure>>) -> Arc<Self> {
        Arc::new(Self {
            replies: Mutex::new(replies.into_iter().collect()),
            requests: Mutex::default(),
            hangs: None,
        })
    }
}

/// A reply that calls these tools.
pub fn calls(calls: &[(&str, Value)]) -> Result<ModelReply, ModelFailure> {
    let calls = calls
        .iter()
        .enumerate()
        .map(|(n, (name, args))| ModelCall {
            id: format!("call_{n}"),
            name: (*name).into(),
            args: args.clone(),
        })
        .collect();
    Ok(reply("", calls))
}

/// A reply of words alone.
pub fn says(text: &str) -> Result<ModelReply, ModelFailure> {
    Ok(reply(text, Vec::new()))
}

fn reply(text: &str, calls: Vec<ModelCall>) -> ModelReply {
    let stop = if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls };
    ModelReply {
        text: text.into(),
        reasoning: String::new(),
        calls,
        usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        stop,
        model: "fake".into(),
        provider: "fake".into(),
        cost_microusd: Some(7),
        provider_state: None,
    }
}

impl Models for FakeModels {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: DeltaSink<'a>,
    ) -> Fut<'a, Result<ModelReply, ModelFailure>> {
        Box::pin(async move {
            self.requests.lock().expect("no test panics here").push(request.clone());
            if let Some(text) = &self.hangs {
                sink(ModelDelta::Text(text.clone()));
                std::future::pending::<()>().await;
            }
            let next = self.replies.lock().expect("no test panics here").pop_front();
            let reply = next.unwrap_or_else(|| says("done"));
            if let Ok(reply) = &reply
                && !reply.text.is_empty()
            {
                sink(ModelDelta::Text(reply.text.clone()));
            }
            reply
        })
    }

    fn check(&self, _model: &str) -> Result<(), ModelFailure> {
        Ok(())
    }
}

/// A memory that remembers nothing: for tests that are not about it.
#[derive(Debug)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn store(&self, draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>> {
        Box::pin(async move {
            Ok(MemoryItem {
                id: MemoryId::from_u128(1),
                colony: draft.colony,
                collection: draft.collection,
                text: draft.text,
                embedding: Vec::new(),
                embedding_model: "fts5-bm25".into(),
                metadata: draft.metadata,
                created_at: Timestamp::default(),
                source: draft.source,
                provenance: draft.provenance,
                expires_at: draft.expires_at,
                supersedes: draft.supersedes,
                superseded_by: None,
            })
        })
    }

    fn search(&self, _query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn reembed(&self, _limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>> {
        Box::pin(async { Ok(Reembedded::default()) })
    }

    fn collect(&self, _limit: u32) -> Fut<'_, Result<u64, MemoryError>> {
        Box::pin(async { Ok(0) })
    }
}

/// The machine's own clock, for tests that wait for real things.
#[derive(Debug)]
pub struct WallClock;

impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("the machine's clock is after 1970");
        Timestamp::from_micros(i64::try_from(since.as_micros()).expect("before the year 294,247"))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()> {
        Box::pin(tokio::time::sleep(deadline.since(self.now())))
    }
}
