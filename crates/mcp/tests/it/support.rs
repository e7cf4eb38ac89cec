//! Servers over the helper program, with settings in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::{AgentId, ColonyId, EffectId, SessionId};
use overmind_core::live::{Live, LivePiece, LiveSink};
use overmind_core::sandbox::{SandboxLevel, SandboxLimits};
use overmind_core::time::{Clock, Timestamp};
use overmind_core::tool::ToolContext;
use overmind_core::tool_source::{Keeper, ToolSource};
use overmind_mcp::{McpServers, Parts, ServerConfig, ServerState, ServerView, Transport, Value};
use overmind_sandbox::{Options, PipedLauncher};
use serde_json::Value as Json;

pub(crate) const SECRET: &str = "correct-horse-battery";
const SESSION: SessionId = SessionId::from_u128(0x5);

/// The helper program, which cargo builds beside the tests.
pub(crate) fn helper() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().with_file_name("examples").join("mcp_test_helper");
    assert!(path.exists(), "{} is missing: build this crate's examples", path.display());
    path
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) document: Mutex<Option<Json>>,
    pub(crate) kinds: Mutex<Vec<&'static str>>,
}

impl Keeper for Memory {
    fn save(&self, document: Json, kind: &'static str, _: Json) -> Fut<'_, Result<(), String>> {
        Box::pin(async move {
            *self.document.lock().unwrap() = Some(document);
            self.kinds.lock().unwrap().push(kind);
            Ok(())
        })
    }
}

#[derive(Debug)]
pub(crate) struct Wall;

impl Clock for Wall {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
    }
    fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()> {
        let until = tokio::time::Instant::now() + deadline.since(self.now());
        Box::pin(tokio::time::sleep_until(until))
    }
}

pub(crate) struct Bench {
    pub(crate) servers: Arc<McpServers>,
    pub(crate) settings: Arc<Memory>,
    pub(crate) progress: Arc<Mutex<Vec<LivePiece>>>,
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(Arc::new(Memory::default())).await
    }

    pub(crate) async fn with(settings: Arc<Memory>) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        let progress = Arc::new(Mutex::new(Vec::new()));
        let options = Options { init_program: helper(), ..Options::default() };
        let servers = McpServers::new(Parts {
            launcher: Arc::new(PipedLauncher::new(options)),
            secrets: Arc::new(|name| (name == "SECRET").then(|| SECRET.to_owned())),
            clock: Arc::new(Wall),
            scratch: dir.path().join("scratch"),
            built_in: ["run_shell", "ask_user"].map(str::to_owned).into(),
        });
        let saved = settings.document.lock().unwrap().clone();
        servers.begin(saved, Arc::clone(&settings) as Arc<dyn Keeper>).unwrap();
        Self { servers, settings, progress, dir }
    }

    pub(crate) fn context(&self) -> ToolContext {
        self.context_of(SESSION)
    }

    pub(crate) fn context_of(&self, session: SessionId) -> ToolContext {
        let heard = Arc::clone(&self.progress);
        let live = LiveSink::new(move |said| match said {
            Live::Progress { progress, total, message } => {
                let message = message.map(str::to_owned);
                heard.lock().unwrap().push(LivePiece::Progress { progress, total, message });
            }
            Live::Output { .. } => panic!("a server has no streams"),
        });
        ToolContext {
            colony: ColonyId::DEFAULT,
            session,
            agent: AgentId::from_u128(0xa),
            effect: EffectId::from_u128(0xe),
            allowed: Arc::from([]),
            workspace: self.dir.path().join("ws"),
            variables: Default::default(),
            off_limits: Default::default(),
            sandbox: SandboxLevel::Namespace,
            driver: None,
            limits: SandboxLimits::default(),
            claims: Default::default(),
            live,
            traceparent: None,
        }
    }

    pub(crate) async fn call(&self, name: &str, args: Json) -> Json {
        let context = self.context();
        let call = self.servers.call(&context, name, &args);
        within(call).await.result
    }

    /// The text of the tool's result, if it is one text.
    pub(crate) async fn text(&self, name: &str, args: Json) -> String {
        let result = self.call(name, args).await;
        match result["mcp"]["result"]["content"][0]["text"].as_str() {
            Some(text) => text.to_owned(),
            None => panic!("{result}"),
        }
    }

    /// Waits until the view is as wanted.
    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&ServerView) -> bool) -> ServerView {
        let mut changes = self.servers.changes();
        let wait = async {
            loop {
                let view = self.servers.get(id).unwrap();
                if wanted(&view) {
                    return view;
                }
                changes.changed().await.unwrap();
            }
        };
        within(wait).await
    }

    pub(crate) fn offered(&self) -> Vec<String> {
        self.servers.specs().iter().map(|spec| spec.name.clone()).collect()
    }
}

/// Far above any normal duration, so that a hang is a failure.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it ends")
}

/// The helper as a server of `mode`.
pub(crate) fn bad(id: &str, mode: &str) -> ServerConfig {
    marked(id, mode, "", SandboxLevel::Namespace)
}

pub(crate) fn marked(id: &str, mode: &str, mark: &str, sandbox: SandboxLevel) -> ServerConfig {
    let program = helper();
    ServerConfig::new(
        id,
        Transport::Stdio {
            command: program.display().to_string(),
            args: ["serve", mode, mark].map(str::to_owned).into(),
            env: BTreeMap::from([
                ("SECRET".to_owned(), Value::Secret { secret: "SECRET".to_owned() }),
                ("PLAIN".to_owned(), Value::Plain("plain".to_owned())),
            ]),
            sandbox,
            read_only: vec![program.parent().unwrap().to_owned()],
            writes_workspace: false,
        },
    )
}

pub(crate) fn reason(view: &ServerView) -> String {
    match &view.state {
        ServerState::Failed { reason, .. } => reason.clone(),
        other => panic!("not failed: {other:?}"),
    }
}

pub(crate) fn state<'a>(view: &'a ServerView, tool: &str) -> &'a str {
    let found = view.tools.iter().find(|t| t.name == tool);
    found.map_or("absent", |tool| tool.state.as_str())
}

/// Processes of the whole machine whose command line contains `mark`.
pub(crate) fn alive(mark: &str) -> usize {
    living(mark).len()
}

/// Their directories in `/proc`.
pub(crate) fn living(mark: &str) -> BTreeSet<PathBuf> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    all.map(|entry| entry.path())
        .filter(|process| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(mark)
        })
        .collect()
}

/// Waits until no process on the machine has the mark.
pub(crate) async fn gone(mark: &str) {
    within(async {
        while alive(mark) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until a file exists.
pub(crate) async fn written(path: &Path) -> String {
    within(async {
        loop {
            match std::fs::read_to_string(path) {
                Ok(text) if !text.is_empty() => return text,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
}
