//! One server for one test, and a client that can send anything.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use overmind_core::memory::Memory;
use overmind_core::store::Store;
use overmind_core::time::Clock;
use overmind_engine::{Config, Engine, Parts};
use overmind_server::{Drained, Listener, ProviderKey, Server, ServerConfig};
use overmind_store::{Options, Sqlite};
use overmind_testkit::ids::SeededIds;
use overmind_testkit::ports::{FakeModels, FakeTools, NoMemory, WallClock, calls};
use overmind_testkit::processes::FakeProcesses;
use overmind_testkit::rooms::{FakeRooms, Journal};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const ADMIN: &str = "ova_test";
/// Longer than anything here takes; shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(20);

static LIVES: AtomicU32 = AtomicU32::new(1);

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) tools: Arc<FakeTools>,
    pub(crate) processes: Arc<FakeProcesses>,
    pub(crate) rooms: Arc<FakeRooms>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<Drained>,
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let hang = || calls(&[("hang", serde_json::json!({}))]);
        let models = FakeModels::new(std::iter::repeat_with(hang).take(8));
        Self::whole(change, FakeTools::ok(), models, |_| vec![]).await
    }

    /// `more` creates listeners besides the one on loopback.
    pub(crate) async fn whole(
        change: impl FnOnce(&mut ServerConfig),
        tools: Arc<FakeTools>,
        models: Arc<FakeModels>,
        more: impl FnOnce(&TempDir) -> Vec<Listener>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let journal = Journal::default();
        let (processes, rooms) = (FakeProcesses::new(journal.clone()), FakeRooms::new(journal));
        let commands = (Arc::clone(&processes), Arc::clone(&rooms));
        let engine = engine(&dir, life, Arc::clone(&tools), models, commands).await;
        let mut config = ServerConfig {
            provider_keys: vec![
                ProviderKey::new(
                    "openai",
                    Some("sk-proj-abcdefghijkl"),
                    "environment: OPENAI_API_KEY",
                ),
                ProviderKey::new("deepseek", None, ""),
                ProviderKey::new("anthropic", Some("short"), "environment: ANTHROPIC_API_KEY"),
            ],
            ..ServerConfig::default()
        };
        change(&mut config);
        let tcp = Listener::tcp("127.0.0.1:0".parse().expect("an address"), None);
        let tcp = tcp.expect("a free port");
        let address = tcp.address().expect("a TCP listener");
        let mut listeners = more(&dir);
        listeners.push(tcp);
        let stop = CancellationToken::new();
        let server = Server::new(engine.clone(), config);
        #[expect(clippy::disallowed_methods, reason = "the server under test, joined by `stop`")]
        let serving = tokio::spawn(server.serve(listeners, stop.clone()));
        Self { engine, tools, processes, rooms, address, stop, serving, dir }
    }

    /// Stops the server and waits for its result.
    pub(crate) async fn stopped(self) -> Drained {
        self.stop.cancel();
        patiently("the server to stop", self.serving).await.expect("the server did not panic")
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Request<'_> {
        let host = self.address.to_string();
        Request {
            world: self,
            head: format!("{method} {path} HTTP/1.1\r\n"),
            headers: vec![
                ("Host".into(), host),
                ("Authorization".into(), format!("Bearer {ADMIN}")),
            ],
            body: String::new(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request("GET", path).send().await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Response {
        self.request("POST", path).json(body).send().await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }

    /// Sends exactly these bytes and reads until the server closes.
    pub(crate) async fn raw(&self, bytes: &str) -> Response {
        exchange(self.connect().await, bytes).await
    }

    /// A new agent that may use every fake tool; its id.
    pub(crate) async fn agent(&self, model: &str) -> String {
        let n = LIVES.fetch_add(1, Ordering::Relaxed);
        let body = format!(
            r#"{{"name":"agent {n}","role":"r","model":"{model}",
                "tools_allowed":["run_shell","look","hang","write_file"]}}"#
        );
        let made = self.post("/api/agents", &body).await.fine();
        made["id"].as_str().expect("an id").to_owned()
    }

    /// A new run; its id.
    pub(crate) async fn run(&self, agent: &str, task: &str) -> String {
        let body = serde_json::json!({"agent_id": agent, "task": task}).to_string();
        let made = self.post("/api/runs", &body).await.fine();
        made["id"].as_str().expect("an id").to_owned()
    }

    /// A run that has ended.
    pub(crate) async fn ended_run(&self) -> String {
        let agent = self.agent("deterministic").await;
        let run = self.run(&agent, "shell:echo hello").await;
        let stream = self.get(&format!("/api/runs/{run}/replay?follow=1")).await;
        assert!(stream.body.contains("event: done"), "{}", stream.body);
        run
    }

    /// A run whose tool hangs until it is released. Only in worlds with the usual models.
    pub(crate) async fn hanging_run(&self) -> String {
        let before = self.tools.called("hang");
        let agent = self.agent("gpt-test").await;
        let run = self.run(&agent, "hang").await;
        let begun = async {
            while self.tools.called("hang") == before {
                tokio::task::yield_now().await;
            }
        };
        patiently("the tool to begin", begun).await;
        run
    }

    /// Waits until the run has this status.
    pub(crate) async fn until(&self, run: &str, status: &str) -> Value {
        let wait = async {
            loop {
                let row = self.get(&format!("/api/runs/{run}")).await.fine();
                if row["status"] == status {
                    return row;
                }
                tokio::task::yield_now().await;
            }
        };
        patiently(&format!("{run} to be {status}"), wait).await
    }
}

async fn engine(
    dir: &TempDir,
    life: u32,
    tools: Arc<FakeTools>,
    models: Arc<FakeModels>,
    (processes, rooms): (Arc<FakeProcesses>, Arc<FakeRooms>),
) -> Engine {
    let store = Arc::new(
        Sqlite::open(Options::new(dir.path().join("overmind.db"))).expect("a new store opens"),
    );
    let parts = Parts {
        records: Arc::clone(&store) as Arc<_>,
        store: store as Arc<dyn Store>,
        models,
        tools,
        tool_servers: None,
        memory: Arc::new(NoMemory) as Arc<dyn Memory>,
        gate: None,
        clock: Arc::new(WallClock) as Arc<dyn Clock>,
        ids: Arc::new(SeededIds::new(life)),
        processes: Some(processes),
        enclosures: None,
        rooms: Some(rooms),
        prices: Arc::new(overmind_core::budget::NoPrices),
        config: Config {
            environment: Vec::new(),
            credentials: overmind_engine::Credentials::default(),
            max_running: 8,
            max_running_per_agent: 8,
            max_running_per_colony: 8,
            approval_ttl: None,
            traced: false,
            propose_after: 3,
            workspace: PathBuf::from(dir.path()),
            private: false,
            off_limits: Default::default(),
            token_key: [7; 32],
            admin_hash: *blake3::hash(ADMIN.as_bytes()).as_bytes(),
            canaries: None,
        },
    };
    Engine::start(parts).await.expect("an engine over a new store starts")
}

pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// One request to be.
pub(crate) struct Request<'w> {
    world: &'w World,
    head: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request<'_> {
    /// Adds a header; earlier ones of that name are removed.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(mut self, body: &str) -> Self {
        self.body = body.into();
        self.header("Content-Type", "application/json")
    }

    pub(crate) fn text(&self) -> String {
        let mut text = self.head.clone();
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        text + "Connection: close\r\n\r\n" + &self.body
    }

    /// The status alone: of an answer that may never end.
    pub(crate) async fn status(self) -> u16 {
        let mut stream = self.world.connect().await;
        let work = async {
            stream.write_all(self.text().as_bytes()).await.unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).await.unwrap();
            String::from_utf8_lossy(&head[9..]).parse().unwrap()
        };
        patiently("a status", work).await
    }

    pub(crate) async fn send(self) -> Response {
        self.world.raw(&self.text()).await
    }
}

/// Writes, reads to the end, and takes the response apart.
pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &str,
) -> Response {
    let work = async {
        // A server that answers early closes while we still write; its answer counts.
        let _ = stream.write_all(bytes.as_bytes()).await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        text
    };
    Response::parse(&patiently("a response", work).await)
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).expect("responses are text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers: HashMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Self { status: status.expect("a status line"), headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }

    /// The body of a success.
    #[track_caller]
    pub(crate) fn fine(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/json"));
        self.json()
    }

    /// Checks that this is a whole problem document, and gives its `error`.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json = self.json();
        assert_eq!(json["status"], status);
        assert_eq!(json["ok"], false);
        assert!(json["type"].as_str().expect("a type").starts_with("urn:overmind:problem:"));
        assert_eq!(json["request_id"].as_str(), self.header("x-request-id"));
        assert_eq!(json["detail"], json["error"]);
        json["error"].as_str().expect("error is a string").to_owned()
    }
}

/// Returns the available part: a truncated stream has no last chunk.
fn unchunk(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        let size = size.min(rest.len());
        body += &rest[..size];
        text = rest[size..].trim_start_matches("\r\n");
    }
    body
}
