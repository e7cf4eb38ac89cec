//! The timeline as server-sent events.

use std::time::Duration;

use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Response, World, patiently};

/// `(id, event, data)` of each message.
fn messages(body: &str) -> Vec<(String, String, Value)> {
    body.split("\n\n")
        .filter(|block| !block.is_empty() && !block.starts_with(':'))
        .map(|block| {
            let field = |name: &str| {
                let lines = block.lines().filter_map(|line| line.strip_prefix(name));
                lines.collect::<Vec<_>>().join("\n")
            };
            let data = serde_json::from_str(&field("data: ")).unwrap();
            (field("id: "), field("event: "), data)
        })
        .collect()
}

/// Reads from a stream until `wanted` was seen.
async fn read_until(stream: &mut TcpStream, text: &mut String, wanted: &str) {
    let wait = async {
        let mut buf = [0; 4096];
        while !text.contains(wanted) {
            let n = stream.read(&mut buf).await.unwrap();
            assert_ne!(n, 0, "the stream ended before {wanted}: {text}");
            text.push_str(std::str::from_utf8(&buf[..n]).unwrap());
        }
    };
    patiently(wanted, wait).await;
}

#[tokio::test]
async fn the_global_log_streams_from_now_or_after_a_number() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let (mut stream, mut text) = (world.connect().await, String::new());
    let request = world.request("GET", "/api/events/stream");
    stream.write_all(request.text().as_bytes()).await.unwrap();
    // From here on: the position was taken before the head was sent.
    read_until(&mut stream, &mut text, "text/event-stream").await;
    let other = world.ended_run().await;
    read_until(&mut stream, &mut text, "\"run.succeeded\"").await;
    assert!(text.contains(&other) && !text.contains(&run), "{text}");

    let (mut stream, mut text) = (world.connect().await, String::new());
    let request = world.request("GET", "/api/events/stream").header("Last-Event-ID", "0");
    stream.write_all(request.text().as_bytes()).await.unwrap();
    let newest = world.get("/api/events?limit=1").await.fine()[0]["global"].clone();
    read_until(&mut stream, &mut text, &format!("id: {newest}\n")).await;
    let numbers = text.lines().filter_map(|line| line.strip_prefix("id: "));
    let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=newest.as_u64().unwrap()).collect::<Vec<_>>());

    let wrong = world.request("GET", "/api/events/stream").header("Last-Event-ID", "1.0");
    wrong.send().await.problem(422);
}

#[tokio::test]
async fn a_replay_streams_every_item_in_order_and_ends() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let answer = world.get(&format!("/api/runs/{run}/replay")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let mut messages = messages(&answer.body);
    let (id, event, done) = messages.pop().unwrap();
    assert!(id.ends_with(".255") && event == "done", "{id} {event}");
    assert_eq!(done, json!({"run_id": run, "status": "succeeded"}));
    let place = |id: &str| {
        let (seq, part) = id.split_once('.').unwrap();
        (seq.parse::<u64>().unwrap(), part.parse::<u8>().unwrap())
    };
    let places: Vec<_> = messages.iter().map(|(id, ..)| place(id)).collect();
    assert!(places.is_sorted() && places.windows(2).all(|pair| pair[0] != pair[1]), "{places:?}");
    for (_, event, data) in &messages {
        let keys: Vec<_> = data.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((event.as_str(), keys.as_slice()), ("", &["kind", "ts", "data"][..]));
    }
    let kinds: std::collections::BTreeSet<_> =
        messages.iter().map(|(.., data)| data["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains("event") && kinds.contains("step") && kinds.contains("tool_call"));
    // A step is sent again when it changes: first without, then with its end.
    let tool_steps: Vec<_> = messages
        .iter()
        .map(|(.., data)| data)
        .filter(|data| data["kind"] == "step" && data["data"]["type"] == "tool")
        .map(|data| data["data"]["finished_at"].is_null())
        .collect();
    assert_eq!(tool_steps, [true, false]);
}

#[tokio::test]
async fn a_replay_resumes_after_any_item_without_loss_or_repeat() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/replay");
    let all = messages(&world.get(&path).await.body);
    for cut in 0..all.len() - 1 {
        let id = &all[cut].0;
        let answer = world.request("GET", &path).header("Last-Event-ID", id).send().await;
        assert_eq!(messages(&answer.body), all[cut + 1..], "after {id}");
    }
    let by_query = world.get(&format!("{path}?last_event_id={}", all[0].0)).await;
    assert_eq!(messages(&by_query.body), all[1..]);
    let beyond = world.request("GET", &path).header("Last-Event-ID", "99999.0").send().await;
    assert_eq!(messages(&beyond.body).len(), 1, "only done is left");
    // An EventSource connects again after every end, and stops at 204 only.
    let (done, ..) = all.last().unwrap();
    for query in ["", "?follow=1"] {
        let request = world.request("GET", &format!("{path}{query}"));
        let answer = request.header("Last-Event-ID", done).send().await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{query}");
    }
}

#[tokio::test]
async fn the_parameters_of_a_replay_are_checked() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/replay");
    for (query, error) in [
        ("follow=maybe", "follow: must be a truth value such as 1 or 0, not `maybe`"),
        ("poll_ms=soon", "poll_ms: must be a whole number, not `soon`"),
        ("last_event_id=x", "Last-Event-ID: must be the `id:` of an event of this stream, not `x`"),
        ("folow=1", "folow: is not a query parameter of this path"),
    ] {
        assert_eq!(world.get(&format!("{path}?{query}")).await.problem(422), error, "{query}");
    }
    for query in ["follow=true&poll_ms=250", "follow=0", "follow=on&poll_ms=-5"] {
        let answer = world.get(&format!("{path}?{query}")).await;
        assert!(answer.body.contains("event: done"), "{query}");
    }
}

#[tokio::test]
async fn following_shows_new_items_and_stays_open_while_a_person_is_asked() {
    let models =
        FakeModels::new([calls(&[("ask_user", json!({"message": "which?"}))]), says("end")]);
    let keepalive = |config: &mut overmind_server::ServerConfig| {
        config.keepalive = Duration::from_millis(20);
    };
    let world = World::whole(keepalive, FakeTools::ok(), models, |_| vec![]).await;
    let agent = world.agent("gpt-test").await;
    let run = world.run(&agent, "x").await;
    let mut stream = world.connect().await;
    let ask = world.request("GET", &format!("/api/runs/{run}/replay?follow=1")).text();
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut text = String::new();
    read_until(&mut stream, &mut text, ": keepalive").await;
    world.until(&run, "awaiting_input").await;
    assert!(!text.contains("event: done"));
    world.post(&format!("/api/runs/{run}/input"), r#"{"message":"this"}"#).await.fine();
    read_until(&mut stream, &mut text, "event: done").await;
    let mut rest = Vec::new();
    patiently("the end", stream.read_to_end(&mut rest)).await.unwrap();
    text.push_str(&String::from_utf8(rest).unwrap());
    let live = messages(&Response::parse(text.as_bytes()).body);
    let stored = messages(&world.get(&format!("/api/runs/{run}/replay")).await.body);
    assert_eq!(live, stored, "what was seen live is what is stored");
}

#[tokio::test]
async fn without_follow_the_stream_ends_with_the_stored_items() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let answer = world.get(&format!("/api/runs/{run}/replay")).await;
    assert!(answer.body.contains("run.queued"), "{}", answer.body);
    assert!(!answer.body.contains("event: done"), "{}", answer.body);
}

#[tokio::test]
async fn a_stopping_server_ends_streams_with_a_message() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let mut stream = world.connect().await;
    let ask = world.request("GET", &format!("/api/runs/{run}/replay?follow=1")).text();
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut text = String::new();
    read_until(&mut stream, &mut text, "run.queued").await;
    assert_eq!(world.stopped().await, overmind_server::Drained::All);
    let mut rest = Vec::new();
    patiently("the end", stream.read_to_end(&mut rest)).await.unwrap();
    text.push_str(&String::from_utf8(rest).unwrap());
    assert!(text.contains(": the server is shutting down; resume with Last-Event-ID"), "{text}");
    assert!(text.ends_with("0\r\n\r\n"), "the stream ended properly");
}

#[tokio::test]
async fn a_disconnect_ends_its_stream() {
    let world = World::new().await;
    let run = world.hanging_run().await;
    let open = async || {
        let figures = world.get("/metrics").await.body;
        let line = figures.lines().find(|line| line.starts_with("overmind_http_streams ")).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let mut stream = world.connect().await;
    let ask = world.request("GET", &format!("/api/runs/{run}/replay?follow=1")).text();
    stream.write_all(ask.as_bytes()).await.unwrap();
    read_until(&mut stream, &mut String::new(), "run.queued").await;
    assert_eq!(open().await, "1");
    drop(stream);
    let gone = async {
        while open().await != "0" {
            tokio::task::yield_now().await;
        }
    };
    patiently("the stream to be let go", gone).await;
}
