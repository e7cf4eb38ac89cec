//! Changes of the shared state over HTTP: in their order, from where a client was, as far as it may
//! read, and for as long as its token counts.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{World, patiently};

/// An open watch.
pub(crate) struct Watch {
    stream: TcpStream,
    /// The received bytes that were not read yet, without the chunk marks.
    text: String,
}

/// One message: its id, its name, its data.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Value,
}

impl Watch {
    pub(crate) async fn open(world: &World, path: &str, token: &str, after: Option<u64>) -> Self {
        let mut request = world.request("GET", path).token(token);
        if let Some(after) = after {
            request = request.header("Last-Event-ID", &after.to_string());
        }
        let mut stream = world.connect().await;
        stream.write_all(request.text().as_bytes()).await.unwrap();
        let mut watch = Self { stream, text: String::new() };
        while !watch.text.contains("\r\n\r\n") {
            assert!(watch.more().await, "{}", watch.text);
        }
        let (head, rest) = watch.text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        watch.text = rest.to_owned();
        watch
    }

    async fn more(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        let read = patiently("more of the stream", self.stream.read(&mut bytes)).await;
        let count = read.unwrap_or(0);
        self.text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        count > 0
    }

    /// The next message, including position updates; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let lines: Vec<String> = message.lines().map(str::to_owned).collect();
                self.text = rest.to_owned();
                let field = |name: &str| {
                    lines.iter().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                let (id, data) = (field("id: "), field("data: "));
                if id.is_none() && data.is_none() {
                    continue; // a sign of life
                }
                let data = data.map_or(Value::Null, |data| serde_json::from_str(&data).unwrap());
                return Some(Message { id, event: field("event: "), data });
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next change in few words, with its id.
    async fn change(&mut self) -> (u64, String) {
        loop {
            let message = self.next().await.expect("the stream goes on");
            assert_eq!(message.event, None, "{message:?}");
            if message.data != Value::Null {
                let data = &message.data;
                let words = ["change", "key", "version"].map(|name| data[name].to_string());
                return (message.id.unwrap().parse().unwrap(), words.join(" ").replace('"', ""));
            }
        }
    }
}

async fn put(world: &World, key: &str, value: &Value) {
    let path = format!("/mesh/blackboard/{key}");
    let done = world.request("PUT", &path).json(&value.to_string()).send().await;
    assert_eq!(done.status, 200, "{}", done.body);
}

async fn delete(world: &World, key: &str) {
    let done = world.request("DELETE", &format!("/mesh/blackboard/{key}")).send().await;
    assert_eq!(done.status, 200, "{}", done.body);
}

const ADMIN: &str = crate::world::ADMIN;

#[tokio::test]
async fn changes_arrive_in_order_and_a_client_resumes_at_its_position() {
    let world = World::new().await;
    put(&world, "a/0", &json!(0)).await;
    let mut watch = Watch::open(&world, "/mesh/watch?prefix=a/", ADMIN, None).await;
    put(&world, "a/1", &json!({"text": "two\nlines"})).await;
    put(&world, "b/1", &json!(1)).await;
    put(&world, "a/2", &json!(1)).await;
    delete(&world, "a/1").await;
    put(&world, "ab", &json!(1)).await;
    put(&world, "a/2", &json!(2)).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(watch.change().await);
    }
    let words: Vec<&str> = seen.iter().map(|(_, words)| words.as_str()).collect();
    assert_eq!(words, ["put a/1 1", "put a/2 1", "deleted a/1 1", "put a/2 2"]);
    assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "{seen:?}");
    // Another client that had seen two of them: the same ids, and no repetition.
    let mut again = Watch::open(&world, "/mesh/watch?prefix=a/", ADMIN, Some(seen[1].0)).await;
    assert_eq!([again.change().await, again.change().await], seen[2..]);
    let path = format!("/mesh/watch?prefix=a/&last_event_id={}", seen[2].0);
    let mut query = Watch::open(&world, &path, ADMIN, None).await;
    assert_eq!(query.change().await, seen[3]);
    put(&world, "a/3", &json!(1)).await;
    let next = watch.change().await;
    assert_eq!((next.1.as_str(), query.change().await), ("put a/3 1", next.clone()));
    for bad in ["x", "-1", "1.5"] {
        let request = world.request("GET", "/mesh/watch").header("Last-Event-ID", bad);
        request.send().await.problem(422);
    }
}

#[tokio::test]
async fn a_run_watches_readable_keys_until_it_ends() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let row = world.get(&format!("/api/runs/{run}")).await.fine();
    let agent = world.get(&format!("/api/agents/{}", row["agent_id"].as_str().unwrap())).await;
    let name = agent.fine()["name"].as_str().unwrap().replace(' ', "%20");
    let allowed = json!({"blackboard_read": ["own/**", "shared/*"]}).to_string();
    let path = format!("/mesh/permissions/{name}");
    assert_eq!(world.request("PUT", &path).json(&allowed).send().await.status, 200);
    let token = world.engine.session_token(run.parse().unwrap(), 1);
    let other = world.request("GET", "/mesh/watch?prefix=other/").token(&token).send().await;
    other.problem(403);
    let mut watch = Watch::open(&world, "/mesh/watch", &token, None).await;
    for key in ["other/1", "own/a/b", "shared/a/b", "shared/a", "own"] {
        put(&world, key, &json!(key)).await;
    }
    assert_eq!(watch.change().await.1, "put own/a/b 1");
    assert_eq!(watch.change().await.1, "put shared/a 1");

    let canceled = world.post(&format!("/api/runs/{run}/cancel"), "{}").await;
    assert_eq!(canceled.status, 200, "{}", canceled.body);
    world.until(&run, "canceled").await;
    put(&world, "own/after", &json!("nobody is told")).await;
    let mut last = None;
    while let Some(message) = watch.next().await {
        assert!(!message.data.to_string().contains("own/after"), "{message:?}");
        last = Some(message);
    }
    let last = last.expect("the end is said");
    assert_eq!((last.event.as_deref(), &last.data["status"]), (Some("error"), &json!(401)));
}

#[tokio::test]
async fn a_stalled_reader_is_dropped_and_delays_nobody() {
    let patience = Duration::from_millis(300);
    let world = World::with(|config| config.write_timeout = patience).await;
    let slow = Watch::open(&world, "/mesh/watch?prefix=big/", ADMIN, None).await;
    let mut quick = Watch::open(&world, "/mesh/watch?prefix=big/", ADMIN, None).await;
    // More than the kernel's buffer of a socket that is not read.
    let value = json!("x".repeat(200 << 10));
    for n in 0..60 {
        put(&world, &format!("big/{n}"), &value).await;
        assert_eq!(quick.change().await.1, format!("put big/{n} 1"));
    }
    let streams = async {
        while !world.get("/metrics").await.body.contains("overmind_http_streams 1\n") {
            put(&world, "big/more", &value).await;
            assert_eq!(quick.change().await.1.split(' ').nth(1), Some("big/more"));
        }
    };
    patiently("the slow one to be dropped", streams).await;
    // Data that was sent until then is available up to the kernel's buffer, then the stream ends.
    let mut slow = slow;
    let mut seen = 0;
    while let Some(message) = slow.next().await {
        seen += u64::from(message.data != Value::Null);
    }
    assert!(seen < 60, "it saw {seen} of them");
}
