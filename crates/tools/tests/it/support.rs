use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::ids::{AgentId, ColonyId, EffectId, MemoryId, SessionId};
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery, Reembedded,
};
use overmind_core::sandbox::{
    Captured, Exit, Sandbox, SandboxError, SandboxLevel, SandboxLimits, SandboxRequest,
    SandboxResult,
};
use overmind_core::time::Timestamp;
use overmind_core::tool::{ToolContext, ToolOutcome, Toolbox};
use overmind_tools::{Gateway, Options, Parts, Tool};
use serde_json::Value;

pub(crate) const AGENT: AgentId = AgentId::from_u128(0xa);
pub(crate) const SESSION: SessionId = SessionId::from_u128(0x5);
pub(crate) const EFFECT: EffectId = EffectId::from_u128(0xe);

/// One workspace, one gateway, one agent that may use every tool.
pub(crate) struct Bench {
    pub(crate) gateway: Gateway,
    pub(crate) context: ToolContext,
    pub(crate) shell: Arc<FakeSandbox>,
    pub(crate) memory: Arc<FakeMemory>,
    /// Contains the workspace `ws`, beside which tests can put files.
    pub(crate) outer: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_tools(Vec::new())
    }

    pub(crate) fn with_tools(more: Vec<Arc<dyn Tool>>) -> Self {
        Self::with(Options::default(), more)
    }

    pub(crate) fn with(options: Options, more: Vec<Arc<dyn Tool>>) -> Self {
        let outer = tempfile::tempdir().unwrap();
        let workspace = outer.path().join("ws");
        std::fs::create_dir(&workspace).unwrap();
        let shell = Arc::new(FakeSandbox::default());
        let memory = Arc::new(FakeMemory::default());
        let driver = shell.clone();
        let parts = Parts {
            // Like a hive without Docker.
            sandboxes: Arc::new(move |level| match level {
                SandboxLevel::Docker | SandboxLevel::Microvm => None,
                SandboxLevel::None | SandboxLevel::Namespace => {
                    Some(driver.clone() as Arc<dyn Sandbox>)
                }
            }),
            memory: memory.clone(),
        };
        let gateway = Gateway::with_options(parts, options, more).unwrap();
        let allowed = gateway.specs().iter().map(|spec| spec.name.clone()).collect();
        let context = ToolContext {
            colony: ColonyId::DEFAULT,
            session: SESSION,
            agent: AGENT,
            effect: EFFECT,
            allowed,
            workspace,
            variables: Default::default(),
            off_limits: Default::default(),
            sandbox: SandboxLevel::Namespace,
            driver: None,
            limits: SandboxLimits::default(),
            claims: Default::default(),
            live: overmind_core::live::LiveSink::default(),
            traceparent: None,
        };
        Self { gateway, context, shell, memory, outer }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.context.workspace.join(relative)
    }

    pub(crate) fn put(&self, relative: &str, content: impl AsRef<[u8]>) {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn get(&self, relative: &str) -> String {
        std::fs::read_to_string(self.path(relative)).unwrap()
    }

    pub(crate) async fn call(&self, name: &str, args: Value) -> ToolOutcome {
        self.gateway.call(&self.context, name, &args).await
    }

    /// Calls a tool that is to succeed and returns its result.
    #[track_caller]
    pub(crate) fn good(&self, name: &str, args: Value) -> impl Future<Output = Value> {
        let at = std::panic::Location::caller();
        async move {
            let outcome = self.call(name, args).await;
            assert!(outcome.allowed && outcome.ok(), "{at}: {}", outcome.result);
            outcome.result
        }
    }

    /// Calls a tool that is to fail and returns the code and the message.
    #[track_caller]
    pub(crate) fn bad(&self, name: &str, args: Value) -> impl Future<Output = (String, String)> {
        let at = std::panic::Location::caller();
        async move {
            let outcome = self.call(name, args).await;
            assert!(!outcome.ok(), "{at}: {}", outcome.result);
            error(&outcome)
        }
    }
}

#[track_caller]
pub(crate) fn error(outcome: &ToolOutcome) -> (String, String) {
    let error = &outcome.result["error"];
    let text = |key: &str| error[key].as_str().map(str::to_owned);
    (text("code").expect("a code"), text("message").expect("a message"))
}

pub(crate) fn is(code: &str, message: &str) -> (String, String) {
    (code.into(), message.into())
}

pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Records its requests and returns the configured answers.
#[derive(Debug)]
pub(crate) struct FakeSandbox {
    pub(crate) asked: Mutex<Vec<SandboxRequest>>,
    pub(crate) answer: Mutex<Result<SandboxResult, SandboxError>>,
    /// If set, the next command never ends, and holds this until it is dropped.
    pub(crate) hang: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
}

impl Default for FakeSandbox {
    fn default() -> Self {
        let done = SandboxResult {
            exit: Exit::Code(0),
            stdout: Captured { text: "out\n".into(), total_bytes: 4, truncated: false },
            stderr: Captured::default(),
            elapsed: std::time::Duration::from_millis(12),
            level: SandboxLevel::Namespace,
            shown_as: None,
        };
        Self { asked: Mutex::default(), answer: Mutex::new(Ok(done)), hang: Mutex::default() }
    }
}

impl FakeSandbox {
    pub(crate) fn last(&self) -> SandboxRequest {
        self.asked.lock().unwrap().last().expect("the sandbox was called").clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut SandboxResult)) {
        change(self.answer.lock().unwrap().as_mut().unwrap());
    }
}

impl Sandbox for FakeSandbox {
    fn level(&self) -> SandboxLevel {
        SandboxLevel::Namespace
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        self.asked.lock().unwrap().push(request);
        if let Some(held) = self.hang.lock().unwrap().take() {
            return Box::pin(async move {
                std::future::pending::<()>().await;
                drop(held);
                unreachable!("pending never ends")
            });
        }
        Box::pin(std::future::ready(self.answer.lock().unwrap().clone()))
    }

    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Stores texts; a search returns all of them.
#[derive(Debug, Default)]
pub(crate) struct FakeMemory {
    pub(crate) drafts: Mutex<Vec<MemoryDraft>>,
    pub(crate) queries: Mutex<Vec<MemoryQuery>>,
    pub(crate) down: Mutex<Option<MemoryError>>,
}

fn item(draft: &MemoryDraft) -> MemoryItem {
    MemoryItem {
        id: MemoryId::from_u128(0x77),
        colony: draft.colony,
        collection: draft.collection.clone(),
        text: draft.text.clone(),
        embedding: vec![0.6, 0.8],
        embedding_model: "test-model".into(),
        metadata: draft.metadata.clone(),
        created_at: Timestamp::from_micros(0),
        source: draft.source,
        provenance: draft.provenance.clone(),
        expires_at: draft.expires_at,
        supersedes: draft.supersedes,
        superseded_by: None,
    }
}

impl Memory for FakeMemory {
    fn store(&self, draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>> {
        let answer = match self.down.lock().unwrap().take() {
            Some(err) => Err(err),
            None => Ok(item(&draft)),
        };
        self.drafts.lock().unwrap().push(draft);
        Box::pin(std::future::ready(answer))
    }

    fn search(&self, query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>> {
        let hits = self.drafts.lock().unwrap();
        let hits = hits.iter().map(|draft| MemoryHit { item: item(draft), score: 1.5 }).collect();
        self.queries.lock().unwrap().push(query);
        Box::pin(std::future::ready(Ok(hits)))
    }

    fn reembed(&self, _limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>> {
        Box::pin(std::future::ready(Ok(Reembedded::default())))
    }

    fn collect(&self, _limit: u32) -> Fut<'_, Result<u64, MemoryError>> {
        Box::pin(std::future::ready(Ok(0)))
    }
}
