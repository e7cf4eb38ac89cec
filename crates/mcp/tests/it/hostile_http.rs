//! HTTP servers that redirect, never end their answers, or list forbidden tools.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use overmind_mcp::{Protocol, ServerConfig, Transport, Value};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::support::{Bench, SECRET, reason, state};

/// More than is ever read of one answer, and much less than a hostile server sends.
const MOST_READ: u64 = 64 << 20;

/// How the list of tools is answered.
#[derive(Clone, Debug)]
enum Lists {
    Tools(Json),
    /// The same page again and again, with a cursor for the next one.
    ForEver,
    /// 10 GB with a length in the head.
    Giant,
    /// An answer without a length.
    Chunks,
    /// One event that never ends.
    Event,
    /// Events that are no answer.
    Pings,
}

#[derive(Debug, Default)]
struct Heard {
    heads: Mutex<Vec<String>>,
    sent: AtomicU64,
}

impl Heard {
    fn heads(&self) -> String {
        self.heads.lock().unwrap().join("\n")
    }
}

/// A server at a free port; with `to` it only redirects there.
async fn server(lists: Lists, to: Option<String>) -> (String, Arc<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let heard = Arc::new(Heard::default());
    let (ears, tasks) = (Arc::clone(&heard), TaskTracker::new());
    let more = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            more.spawn(serve(stream, lists.clone(), to.clone(), Arc::clone(&ears)));
        }
    });
    (url, heard)
}

/// The head and the body of the next request.
async fn request(stream: &mut TcpStream) -> Option<(String, Json)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, serde_json::from_slice(&body).unwrap_or_default()))
}

async fn serve(mut stream: TcpStream, lists: Lists, to: Option<String>, heard: Arc<Heard>) {
    while let Some((head, body)) = request(&mut stream).await {
        heard.heads.lock().unwrap().push(head.clone());
        let (id, method) = (body["id"].clone(), body["method"].as_str().unwrap_or_default());
        let said = |result: Json| {
            let text = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            )
        };
        let answer = match (&to, method) {
            (Some(to), _) => {
                format!(
                    "HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
                )
            }
            (None, _) if !head.starts_with("POST") => {
                "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            (None, "initialize") => said(json!({
                "protocolVersion": body["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            })),
            (None, "tools/list") => match &lists {
                Lists::Tools(tools) => said(json!({"tools": tools})),
                Lists::ForEver => said(json!({"tools": [], "nextCursor": "again"})),
                endless => {
                    pour(&mut stream, endless, &heard.sent).await;
                    return;
                }
            },
            (None, _) if id.is_null() => {
                "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            (None, _) => said(json!({})),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Sends without an end, until the connection is closed.
async fn pour(stream: &mut TcpStream, lists: &Lists, sent: &AtomicU64) {
    const PIECE: usize = 64 << 10;
    let x = "x".repeat(PIECE);
    let ping = ": ping\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/none\"}\n\n";
    let (kind, length, first, piece) = match lists {
        Lists::Giant => ("application/json", "Content-Length: 10000000000", "\"", x),
        Lists::Chunks => (
            "application/json",
            "Transfer-Encoding: chunked",
            "1\r\n\"\r\n",
            format!("{PIECE:x}\r\n{x}\r\n"),
        ),
        Lists::Event => ("text/event-stream", "Connection: close", "data: \"", x),
        _ => ("text/event-stream", "Connection: close", "", ping.repeat(100)),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{length}\r\n\r\n{first}");
    let mut next = head.into_bytes();
    while stream.write_all(&next).await.is_ok() {
        sent.fetch_add(next.len() as u64, Ordering::Relaxed);
        next = piece.clone().into_bytes();
        tokio::task::yield_now().await;
    }
}

fn config(url: &str) -> ServerConfig {
    let secret = Value::Secret { secret: "SECRET".to_owned() };
    let headers = BTreeMap::from([("X-Key".to_owned(), secret)]);
    let mut config = ServerConfig::new("far", Transport::Http { url: url.to_owned(), headers });
    config.protocol = Protocol::Handshake;
    config.limits.start_ms = 3000;
    config
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_takes_no_header_along() {
    crypto();
    let bench = Bench::new().await;
    let (inner, victim) = server(Lists::ForEver, None).await;
    let (url, first) = server(Lists::ForEver, Some(inner)).await;
    let view = bench.servers.put(config(&url)).await.unwrap();
    assert!(!reason(&view).contains(SECRET), "{view:?}");
    assert!(first.heads().contains(SECRET), "the configured server gets its key");
    assert_eq!(victim.heads(), "", "nobody else is asked");
    bench.servers.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_an_end_ends_the_connection_and_is_not_kept() {
    crypto();
    for lists in [Lists::Giant, Lists::Chunks, Lists::Event] {
        let bench = Bench::new().await;
        let (url, heard) = server(lists.clone(), None).await;
        let view = bench.servers.put(config(&url)).await.unwrap();
        assert!(!reason(&view).is_empty(), "{lists:?}");
        let sent = heard.sent.load(Ordering::Relaxed);
        assert!(sent <= MOST_READ, "{lists:?}: {sent} bytes were read");
        bench.servers.shutdown().await;
    }
    // Small events may arrive for as long as a start may take.
    let bench = Bench::new().await;
    let (url, _) = server(Lists::Pings, None).await;
    let view = bench.servers.put(config(&url)).await.unwrap();
    assert!(reason(&view).contains("did not answer within 3000 ms"), "{view:?}");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn pages_without_an_end_are_too_many() {
    crypto();
    let bench = Bench::new().await;
    let (url, heard) = server(Lists::ForEver, None).await;
    let view = bench.servers.put(config(&url)).await.unwrap();
    let why = reason(&view);
    assert!(why.contains("pages") || why.contains("cursor"), "{why}");
    let asked = heard.heads().matches("POST ").count();
    assert!(asked <= 70, "{asked} requests");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn tools_whose_names_are_not_what_they_look_like_are_not_offered() {
    crypto();
    let odd = ["read\u{202e}file", "re\u{430}d", "read\u{200b}", "read\u{1b}[2K", "../read", ""];
    let tools = odd.iter().chain(&["read"]).map(
        |name| json!({"name": name, "description": "reads", "inputSchema": {"type": "object"}}),
    );
    let bench = Bench::new().await;
    let (url, _) = server(Lists::Tools(tools.collect()), None).await;
    let view = bench.servers.put(config(&url)).await.unwrap();
    assert_eq!(bench.offered(), ["mcp.far.read"], "{view:?}");
    for name in odd {
        assert_ne!(state(&view, name), "offered", "{name:?}: {view:?}");
    }
    bench.servers.shutdown().await;
}

fn crypto() {
    // Another test may have done it.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
