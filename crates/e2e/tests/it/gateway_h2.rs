//! Providers over HTTP/2, which say of a call that they have not touched it: it is made again, and is one
//! call in the books. What had begun is not made again.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use reqwest::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::gateway_tls::of_localhost;
use crate::home::{Home, until};

const WHOLE: &str = r#"{"id":"c-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"at last"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
const EVENT: &str = "data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"it begins\"}}]}\n\n";

/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
/// Flags of frames.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Reasons.
const REFUSED_STREAM: u32 = 7;

/// The treatment of a call.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The connection is closed, and the call is not among the processed ones.
    GoesAway,
    /// The stream alone is refused.
    Refuses,
    Answers,
    /// An answer begins; then the stream is reset as if it were unprocessed.
    BeginsAndRefuses,
    /// It takes its time.
    Ponders,
}

fn frame(out: &mut impl Write, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    // The peer may have disconnected.
    let _ = out.write_all(&bytes);
    let _ = out.flush();
}

/// The head of an answer with status 200: a static entry, and a literal with a static name.
fn head(kind: &str) -> Vec<u8> {
    let mut head = vec![0x88, 0x0f, 0x10, u8::try_from(kind.len()).unwrap()];
    head.extend_from_slice(kind.as_bytes());
    head
}

/// The settings of the provider.
struct Script {
    turns: Mutex<VecDeque<Turn>>,
    asked: Mutex<Vec<Turn>>,
    heard: Mutex<Receiver<()>>,
    connections: AtomicUsize,
}

/// Speaks HTTP/2 on one connection, until it is to be closed.
fn serve(io: &mut (impl Read + Write), script: &Script) {
    let mut preface = [0; 24];
    if io.read_exact(&mut preface).is_err() {
        return;
    }
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    script.connections.fetch_add(1, Ordering::SeqCst);
    // No more than 100 streams at once.
    frame(io, SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
    loop {
        let mut start = [0; 9];
        if io.read_exact(&mut start).is_err() {
            return;
        }
        let [a, b, c, kind, flags, rest @ ..] = start;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if io.read_exact(&mut payload).is_err() {
            return;
        }
        let stream = u32::from_be_bytes(rest);
        match kind {
            SETTINGS if flags & ACK == 0 => frame(io, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(io, PING, ACK, 0, &payload),
            DATA | HEADERS if flags & END_STREAM != 0 => {
                let turn = script.turns.lock().unwrap().pop_front();
                let turn = turn.expect("no call beyond the script");
                script.asked.lock().unwrap().push(turn);
                match turn {
                    Turn::Ponders => {}
                    Turn::GoesAway => {
                        // No stream was processed; no error.
                        frame(io, GOAWAY, 0, 0, &[0; 8]);
                        return;
                    }
                    Turn::Refuses => {
                        frame(io, RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes());
                    }
                    Turn::Answers => {
                        frame(io, HEADERS, END_HEADERS, stream, &head("application/json"));
                        frame(io, DATA, END_STREAM, stream, WHOLE.as_bytes());
                    }
                    Turn::BeginsAndRefuses => {
                        frame(io, HEADERS, END_HEADERS, stream, &head("text/event-stream"));
                        frame(io, DATA, 0, stream, EVENT.as_bytes());
                        // Unread data may be lost.
                        let _ = script.heard.lock().unwrap().recv();
                        frame(io, RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes());
                    }
                }
            }
            _ => {}
        }
    }
}

/// A server whose one provider behaves in these ways in turn.
struct World {
    home: Home,
    url: String,
    admin: String,
    script: Arc<Script>,
    heard: Sender<()>,
}

impl World {
    fn new(turns: &[Turn]) -> Self {
        let (config, certificate) = of_localhost(b"h2");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, hears) = channel();
        let script = Arc::new(Script {
            turns: Mutex::new(turns.to_vec().into()),
            asked: Mutex::default(),
            heard: Mutex::new(hears),
            connections: AtomicUsize::new(0),
        });
        let same = Arc::clone(&script);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut tls = rustls::StreamOwned::new(connection, stream.unwrap());
                let script = Arc::clone(&same);
                std::thread::spawn(move || {
                    serve(&mut tls, &script);
                    tls.conn.send_close_notify();
                    let _ = tls.flush();
                });
            }
        });
        let mut home = Home::new();
        let roots = home.path().join("roots.pem");
        std::fs::write(&roots, certificate).unwrap();
        let base = format!("https://localhost:{port}/v1");
        let vars = [
            ("OVERMIND_MODEL_BASE_URL", base.as_str()),
            ("SSL_CERT_FILE", roots.to_str().unwrap()),
        ];
        let said = home.start(&["--listen", "127.0.0.1:0"], &vars);
        let url = said["url"].as_str().unwrap().to_owned();
        let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { home, url, admin: admin.trim().to_owned(), script, heard }
    }

    /// The result of a call: its status, its body, and whether the body is complete.
    fn ask(&self, stream: bool) -> (u16, String, bool) {
        let body = json!({
            "model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}],
        });
        Runtime::new().unwrap().block_on(async {
            let client = Client::builder().no_proxy().build().unwrap();
            let request = client.post(format!("{}/llm/openai/v1/chat/completions", self.url));
            let request = request.bearer_auth(&self.admin).json(&body);
            let mut response = request.send().await.unwrap();
            let (status, mut all) = (response.status().as_u16(), Vec::new());
            let whole = loop {
                match response.chunk().await {
                    Ok(Some(piece)) => {
                        all.extend_from_slice(&piece);
                        let _ = self.heard.send(());
                    }
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            (status, String::from_utf8(all).unwrap(), whole)
        })
    }

    /// The number of requests to the provider.
    fn asked(&self) -> usize {
        self.script.asked.lock().unwrap().len()
    }

    /// All ends of calls in the log, once there are any.
    fn ends(&self) -> Vec<Value> {
        let read = || {
            Runtime::new().unwrap().block_on(async {
                let request = Client::builder().no_proxy().build().unwrap();
                let request = request.get(format!("{}/api/events?limit=1000", self.url));
                let answer = request.bearer_auth(&self.admin).send().await.unwrap();
                answer.json::<Value>().await.unwrap()
            })
        };
        until("the call's end", || {
            let is_end = |event: &&Value| {
                matches!(event["type"].as_str(), Some("budget.settled" | "budget.released"))
            };
            let all: Vec<Value> =
                read().as_array().unwrap().iter().filter(is_end).cloned().collect();
            (!all.is_empty()).then_some(all)
        })
    }
}

#[test]
fn a_call_returned_unprocessed_is_retried_as_one_call() {
    for sent_back in [Turn::GoesAway, Turn::Refuses] {
        let world = World::new(&[sent_back, Turn::Answers]);
        let (status, body, whole) = world.ask(false);
        assert_eq!((status, body.as_str(), whole), (200, WHOLE, true), "{sent_back:?}");
        assert_eq!(world.asked(), 2);
        let ends = world.ends();
        assert_eq!(ends.len(), 1, "{ends:?}");
        let told = &ends[0]["payload_json"];
        assert_eq!(
            (&ends[0]["type"], &told["ended"]),
            (&json!("budget.settled"), &json!("completed"))
        );
        assert_eq!(told["usage"]["input_tokens"], 9, "billed once: {told}");
        let costs = world.home.run(&["costs", "-o", "json"]).ok().json();
        assert_eq!(costs[0]["calls"], 1, "{costs}");
    }
}

#[test]
fn a_provider_that_always_returns_calls_unprocessed_is_asked_three_times() {
    let world = World::new(&[Turn::Refuses, Turn::GoesAway, Turn::Refuses]);
    let (status, body, _) = world.ask(false);
    assert_eq!(status, 502, "{body}");
    assert!(body.contains("could not be asked"), "{body}");
    assert_eq!(world.asked(), 3);
    let ends = world.ends();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["type"], "budget.released", "{ends:?}");
}

#[test]
fn a_started_stream_is_never_retried() {
    let world = World::new(&[Turn::BeginsAndRefuses]);
    let (status, body, whole) = world.ask(true);
    assert_eq!((status, whole), (200, false), "{body}");
    assert!(body.contains("it begins"), "{body}");
    assert_eq!(world.asked(), 1);
    let ends = world.ends();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["payload_json"]["ended"], "cut", "{ends:?}");
}

/// On the existing connection, 100 of them would start, and the others would wait for these.
#[test]
fn calls_beyond_one_connections_limit_all_start() {
    const CALLS: usize = 250;
    let mut turns = vec![Turn::Answers];
    turns.resize(1 + CALLS, Turn::Ponders);
    let world = World::new(&turns);
    assert_eq!(world.ask(false).0, 200);
    assert_eq!(world.script.connections.load(Ordering::SeqCst), 1);
    let runtime = Runtime::new().unwrap();
    let client = Client::builder().no_proxy().build().unwrap();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for _ in 0..CALLS {
        let request = client.post(format!("{}/llm/openai/v1/chat/completions", world.url));
        let request = request.bearer_auth(&world.admin).json(&body);
        drop(runtime.spawn(request.send()));
    }
    until("all are begun", || (world.asked() == 1 + CALLS).then_some(()));
    // The client has disconnected, and its calls have ended.
    runtime.shutdown_background();
    drop(client);
    until("they are settled", || (world.ends().len() == 1 + CALLS).then_some(()));
}
