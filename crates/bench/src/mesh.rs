//! The mesh as agents use it, over HTTP: keys written durably, keys read, and how long it takes until
//! a letter is with an agent that waits for one, or a change with who watches.
//!
//! Server and clients are one process, on a unix socket, as with the bare server that they stand beside.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overmind_cli::exit::Failure;
use overmind_core::time::Clock as _;
use overmind_engine::Caller;
use overmind_engine::request::AgentDraft;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::engine::start_app;
use super::floors::Floors;
use super::relay::message_length;
use super::{Figure, Goal, Setting, ms, percentile, rate};

/// Connections that write; as many agents at work.
const WRITERS: u32 = 128;
/// Connections that read.
const READERS: u32 = 32;
/// Keys that are written and read again and again.
const KEYS: u32 = 1_000;
/// Before something is sent: whoever waits for it is waiting by then.
const LULL: Duration = Duration::from_millis(3);
/// Longest that a letter or a change may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection that asks and waits for the answer.
struct Asker {
    stream: UnixStream,
    seen: Vec<u8>,
}

impl Asker {
    async fn connect(path: &Path) -> std::io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(path).await?, seen: Vec::with_capacity(4096) })
    }

    async fn send(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.seen.clear();
        self.stream.write_all(request).await
    }

    /// The answer's body.
    async fn heard(&mut self) -> std::io::Result<&[u8]> {
        let whole = loop {
            if let Some(length) = message_length(&self.seen)
                && self.seen.len() >= length
            {
                break length;
            }
            self.more().await?;
        };
        let answer = &self.seen[..whole];
        if !answer.starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(answer).into_owned();
            return Err(std::io::Error::other(text));
        }
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0);
        Ok(&answer[head + 4..])
    }

    async fn ask(&mut self, request: &[u8]) -> std::io::Result<&[u8]> {
        self.send(request).await?;
        self.heard().await
    }

    async fn more(&mut self) -> std::io::Result<()> {
        match self.stream.read_buf(&mut self.seen).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The parts of a request.
#[derive(Clone, Debug)]
struct Door {
    path: PathBuf,
    token: Arc<str>,
}

impl Door {
    fn request(&self, method: &str, target: &str, body: &str) -> Vec<u8> {
        let token = &self.token;
        format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    fn put(&self, key: u32, n: u32) -> Vec<u8> {
        let value = json!({"n": n, "state": "at work on what was asked for", "done": false});
        self.request("PUT", &format!("/mesh/blackboard/bench/{key}"), &value.to_string())
    }

    fn get(&self, key: u32) -> Vec<u8> {
        self.request("GET", &format!("/mesh/blackboard/bench/{key}"), "")
    }
}

pub(super) async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("mesh")?;
    let app = start_app(&dir).await?;
    let data = DataDir::locate(Some(&dir.join("data")), &Env::default(), &dir)?;
    let door =
        Door { path: dir.join("data/overmind.sock"), token: data.admin_token()?.expose().into() };
    let draft = AgentDraft {
        name: "reader".into(),
        role: "measure".into(),
        model: "deterministic".into(),
        ..AgentDraft::default()
    };
    app.engine().agent_create(&Caller::admin(), draft, None).await?;
    let bare_path = dir.join("bare.sock");
    let listener = UnixListener::bind(&bare_path)
        .map_err(|err| Failure::failed(format!("listening on {}: {err}", bare_path.display())))?;
    let entry = json!({"key": "bench/1", "value": {"n": 1}, "version": 1, "written_by": "admin"});
    let hello =
        axum::Router::new().route("/{*any}", axum::routing::get(async || axum::Json(entry)));
    let mut bare = JoinSet::new();
    bare.spawn(async move { axum::serve(listener, hello).await });
    let there = Door { path: bare_path, token: Arc::clone(&door.token) };

    let time = setting.time(Duration::from_secs(3));
    // Every key once, so that what is measured is writing and not making.
    for key in 0..KEYS {
        once(&door, &door.put(key, 0)).await?;
    }
    let (mut puts, mut gets, mut hello) = (0.0_f64, 0.0_f64, 0.0_f64);
    for _ in 0..3 {
        puts = puts.max(load(&door, WRITERS, time / 3, Door::put).await?);
        hello = hello.max(load(&there, READERS, time / 3, |door, key, _| door.get(key)).await?);
        gets = gets.max(load(&door, READERS, time / 3, |door, key, _| door.get(key)).await?);
    }
    let rounds = setting.count(200).max(20);
    let delivered = letters(&door, rounds).await?;
    let watched = changes(&door, rounds).await?;
    bare.abort_all();
    let _ = app.stop(std::future::pending()).await;
    let commit = ("bare SQLite commit", ms(floors.commit));
    Ok(vec![
        Figure::new("mesh puts", puts, "puts/s")
            .floor("SQLite rows", floors.rows)
            .goal(Goal::Least(5_000.0))
            .note(format!(
                "{WRITERS} connections on a unix socket, {KEYS} keys, 70 bytes each; every put is \
                 an event and a row on disk before its answer"
            )),
        Figure::new("mesh gets", gets, "gets/s")
            .floor("bare axum hello", hello)
            .goal(Goal::Least(30_000.0))
            .note(format!("{READERS} connections on a unix socket, {KEYS} keys")),
        Figure::new("mesh delivery p50", ms(percentile(&delivered, 0.5)), "ms")
            .floor(commit.0, commit.1)
            .goal(Goal::Most(5.0))
            .note(
                "from sending a letter until the agent that waits in `receive` has it; the letter \
                 and its handing out are on disk by then",
            ),
        Figure::new("mesh delivery p99", ms(percentile(&delivered, 0.99)), "ms")
            .floor(commit.0, commit.1),
        Figure::new("mesh watch p50", ms(percentile(&watched, 0.5)), "ms")
            .floor(commit.0, commit.1)
            .goal(Goal::Most(5.0))
            .note("from sending a put until who watches its prefix has the value"),
    ])
}

fn asking(err: &std::io::Error) -> Failure {
    Failure::failed(format!("asking the mesh: {err}"))
}

async fn once(door: &Door, request: &[u8]) -> Result<(), Failure> {
    let mut asker = Asker::connect(&door.path).await.map_err(|err| asking(&err))?;
    asker.ask(request).await.map_err(|err| asking(&err))?;
    Ok(())
}

/// Asks again and again on every connection; answers a second.
async fn load(
    door: &Door,
    connections: u32,
    time: Duration,
    make: fn(&Door, u32, u32) -> Vec<u8>,
) -> Result<f64, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..connections {
        let (door, stop) = (door.clone(), Arc::clone(&stop));
        clients.spawn(async move {
            let mut asker = Asker::connect(&door.path).await?;
            let (mut asked, mut key) = (0_u32, client * KEYS / connections);
            while !stop.load(Ordering::Relaxed) {
                asker.ask(&make(&door, key, asked)).await?;
                asked += 1;
                key = (key + 1) % KEYS;
            }
            Ok::<_, std::io::Error>(asked)
        });
    }
    let start = Instant::now();
    SystemClock.sleep_until(SystemClock.now().after(time)).await;
    stop.store(true, Ordering::Relaxed);
    let mut asked = 0;
    while let Some(done) = clients.join_next().await {
        let done = done.map_err(|err| Failure::failed(format!("a client ended: {err}")))?;
        asked += done.map_err(|err| asking(&err))?;
    }
    Ok(rate(asked, start.elapsed()))
}

/// Sends letters, one after the other, to an agent that waits; how long each took, ascending.
async fn letters(door: &Door, rounds: u32) -> Result<Vec<Duration>, Failure> {
    let receive = door.request(
        "POST",
        "/mesh/messages/receive",
        &json!({"agent_id": "reader", "wait_ms": 30_000}).to_string(),
    );
    let letter = json!({"to": "reader", "type": "note", "payload": {"text": "it is done"}});
    let send = door.request("POST", "/mesh/message", &letter.to_string());
    let connect = async || Asker::connect(&door.path).await.map_err(|err| asking(&err));
    let (mut waiter, mut sender) = (connect().await?, connect().await?);
    let mut took = Vec::new();
    for _ in 0..rounds {
        waiter.send(&receive).await.map_err(|err| asking(&err))?;
        SystemClock.sleep_until(SystemClock.now().after(LULL)).await;
        let start = Instant::now();
        let sent = async { sender.ask(&send).await.map(drop) };
        let heard = async {
            let body = waiter.heard().await?.to_vec();
            Ok::<_, std::io::Error>((body, start.elapsed()))
        };
        let both = tokio::time::timeout(PATIENCE, async { tokio::try_join!(sent, heard) }).await;
        let both = both.map_err(|_| Failure::failed("a letter did not arrive"))?;
        let ((), (body, time)) = both.map_err(|err| asking(&err))?;
        took.push(time);
        let found: Value = serde_json::from_slice(&body)
            .map_err(|err| Failure::failed(format!("reading letters: {err}")))?;
        let ids: Vec<&Value> =
            found.as_array().into_iter().flatten().map(|letter| &letter["id"]).collect();
        if ids.is_empty() {
            return Err(Failure::failed("whoever waited for a letter got none"));
        }
        let ids = json!({"agent_id": "reader", "ids": ids}).to_string();
        let done = door.request("POST", "/mesh/messages/ack", &ids);
        waiter.ask(&done).await.map_err(|err| asking(&err))?;
    }
    took.sort_unstable();
    Ok(took)
}

/// Writes a key repeatedly while a watcher reads; the duration of each, ascending.
async fn changes(door: &Door, rounds: u32) -> Result<Vec<Duration>, Failure> {
    let connect = async || Asker::connect(&door.path).await.map_err(|err| asking(&err));
    let (mut watcher, mut writer) = (connect().await?, connect().await?);
    let watch = door.request("GET", "/mesh/watch?prefix=bench/", "");
    watcher.send(&watch).await.map_err(|err| asking(&err))?;
    while message_length(&watcher.seen).is_none() {
        watcher.more().await.map_err(|err| asking(&err))?;
    }
    let mut took = Vec::new();
    for round in 0..rounds {
        let n = 1_000_000 + round;
        let mark = format!("\"n\":{n}");
        let put = door.put(7, n);
        SystemClock.sleep_until(SystemClock.now().after(LULL)).await;
        watcher.seen.clear();
        let start = Instant::now();
        let written = async { writer.ask(&put).await.map(drop) };
        let seen = async {
            while !watcher.seen.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                watcher.more().await?;
            }
            Ok::<_, std::io::Error>(start.elapsed())
        };
        let both = tokio::time::timeout(PATIENCE, async { tokio::try_join!(written, seen) }).await;
        let both = both.map_err(|_| Failure::failed("a change was not told"))?;
        took.push(both.map_err(|err| asking(&err))?.1);
    }
    took.sort_unstable();
    Ok(took)
}
