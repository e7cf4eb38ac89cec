//! Live output of a tool: in the log in time, whole, masked, and never decided on.

use std::sync::Arc;

use overmind_core::live::Live;
use overmind_core::row::SessionStatus;
use overmind_core::sandbox::OutputStream;
use overmind_core::store::{EventQuery, StreamId};
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::World;

async fn hanging() -> (World, overmind_core::ids::SessionId) {
    let models = FakeModels::new([calls(&[("hang", json!({}))]), says("end")]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "watch me").await;
    world.until_true("the tool runs", || world.tools.called("hang") == 1).await;
    (world, run)
}

fn say(world: &World, text: &str) {
    let live = world.tools.live.lock().expect("no test panics here");
    let bytes = text.as_bytes();
    live[0].say(Live::Output { stream: OutputStream::Stdout, bytes });
}

async fn payloads(world: &World, run: overmind_core::ids::SessionId, kind: &str) -> Vec<Value> {
    let query =
        EventQuery { stream: Some(StreamId::Session(run)), after: 0, kinds: &[], limit: 10_000 };
    let events = world.store.events(query).await.expect("the log is readable");
    events.iter().filter(|event| &*event.kind == kind).map(|event| event.value()).collect()
}

/// Waits until the log has so many events of this kind.
async fn logged(
    world: &World,
    run: overmind_core::ids::SessionId,
    kind: &str,
    n: usize,
) -> Vec<Value> {
    let mut watch = world.engine.session_watch(run);
    let wait = async {
        loop {
            watch.borrow_and_update();
            let all = payloads(world, run, kind).await;
            if all.len() >= n {
                return all;
            }
            watch.changed().await.expect("the engine runs");
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.expect(kind)
}

#[tokio::test]
async fn complete_lines_are_logged_before_the_tool_ends_and_the_rest_with_its_result() {
    let (world, run) = hanging().await;
    say(&world, "one\ntwo\nthr");
    let first = logged(&world, run, "tool.output.delta", 1).await;
    assert_eq!(first[0]["text"], "one\ntwo\n");
    assert_eq!((&first[0]["offset"], &first[0]["stream"]), (&json!(0), &json!("stdout")));
    assert!(first[0]["step_id"].is_string() && first[0]["epoch"] == 1, "{first:?}");
    say(&world, "ee");
    world.tools.let_go(1);
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    let all = payloads(&world, run, "tool.output.delta").await;
    let text: String = all.iter().filter_map(|delta| delta["text"].as_str()).collect();
    assert_eq!(text, "one\ntwo\nthree");
    assert_eq!(all[1]["offset"], 8);
    let calls = world.engine.session_tool_calls(&world.by, run, 0, 10).await.expect("a list");
    assert_eq!(all[0]["call_id"], json!(calls[0].id), "a reader knows whose output it was");
    // Not one of them is decided on: the log replays, and a fork of it lives.
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_secret_in_two_chunks_is_masked_in_the_log() {
    let (world, run) = hanging().await;
    let token = format!("ghp_{}", "A1b2C3d4E5".repeat(4));
    let begin = format!("-----BEGIN {} KEY-----", "RSA PRIVATE");
    let end = format!("-----END {} KEY-----", "RSA PRIVATE");
    say(&world, &format!("go\ntoken {}", &token[..20]));
    logged(&world, run, "tool.output.delta", 1).await;
    say(&world, &format!("{}\nthen\n{begin}\nMIIEowIBAAKCAQEA7\n", &token[20..]));
    logged(&world, run, "tool.output.delta", 2).await;
    say(&world, &format!("q0gZ4nS1fT2uV3wX4yZ5\n{end}\nafter\n"));
    logged(&world, run, "tool.output.delta", 3).await;
    world.tools.let_go(1);
    world.ended(run).await;
    let all = payloads(&world, run, "tool.output.delta").await;
    let text: String = all.iter().filter_map(|delta| delta["text"].as_str()).collect();
    assert_eq!(text, "go\ntoken [redacted:github-token]\nthen\n[redacted:private-key]\nafter\n");
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_flood_is_cut_counted_and_takes_few_commits() {
    let (world, run) = hanging().await;
    let line = "y\n".repeat(500);
    for _ in 0..2000 {
        say(&world, &line);
    }
    let capped = logged(&world, run, "tool.output.skipped", 1).await;
    assert_eq!(
        (&capped[0]["why"], &capped[0]["stdout_bytes"]),
        (&json!("limit"), &json!(2_000_000))
    );
    world.tools.let_go(1);
    world.ended(run).await;
    let all = payloads(&world, run, "tool.output.delta").await;
    let bytes: usize = all.iter().filter_map(|delta| delta["text"].as_str()).map(str::len).sum();
    assert!((32 << 10..=64 << 10).contains(&bytes), "{bytes}");
    assert!(all.len() <= 5, "{} events", all.len());
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_unfinished_line_is_not_shown() {
    let (world, run) = hanging().await;
    say(&world, &"x".repeat(20_000));
    let skipped = logged(&world, run, "tool.output.skipped", 1).await;
    assert_eq!(skipped[0]["why"], "line_too_long");
    say(&world, "x\nnext\n");
    world.tools.let_go(1);
    world.ended(run).await;
    assert_eq!(payloads(&world, run, "tool.output.delta").await, Vec::<Value>::new());
    world.check(&[run]).await;
}

#[tokio::test]
async fn progress_is_logged() {
    let (world, run) = hanging().await;
    {
        let live = world.tools.live.lock().expect("no test panics here");
        live[0].say(Live::Progress {
            progress: 1.0,
            total: Some(4.0),
            message: Some("half a way"),
        });
    }
    let told = logged(&world, run, "tool.progress", 1).await;
    assert_eq!((&told[0]["progress"], &told[0]["total"]), (&json!(1.0), &json!(4.0)));
    assert_eq!(told[0]["message"], "half a way");
    world.tools.let_go(1);
    world.ended(run).await;
    world.check(&[run]).await;
}

#[tokio::test]
async fn output_after_a_cancel_is_not_recorded() {
    let (world, run) = hanging().await;
    say(&world, "before\n");
    logged(&world, run, "tool.output.delta", 1).await;
    world.engine.session_cancel(&world.by, run).await.expect("it runs");
    say(&world, "after\n");
    assert_eq!(world.ended(run).await.status, SessionStatus::Canceled);
    world
        .until_true("the call is dropped", || {
            world.tools.dropped.load(std::sync::atomic::Ordering::SeqCst) == 1
        })
        .await;
    let all = payloads(&world, run, "tool.output.delta").await;
    assert_eq!(all.len(), 1, "{all:?}");
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_restart_during_the_output_loses_and_doubles_nothing() {
    let dir = Arc::new(TempDir::new().expect("a directory"));
    let tools = FakeTools::ok();
    let models = FakeModels::new([calls(&[("hang", json!({}))])]);
    let first = World::at(Arc::clone(&dir), Arc::clone(&tools), models, 8).await;
    let agent = first.agent("gpt-test", |_| ()).await;
    let run = first.run(&agent, "watch me").await;
    first.until_true("the tool runs", || tools.called("hang") == 1).await;
    say(&first, "one\n");
    logged(&first, run, "tool.output.delta", 1).await;
    first.engine.drain(std::time::Duration::ZERO).await;
    // Output of the old attempt is ignored in the new one.
    say(&first, "late\n");
    drop(first);

    let second = World::at(dir, Arc::clone(&tools), FakeModels::new([says("end")]), 8).await;
    second.until(run, &[SessionStatus::AwaitingInput]).await;
    second.engine.session_input(&second.by, run, "retry".into()).await.expect("it asks");
    second.until_true("it is done again", || tools.called("hang") == 2).await;
    {
        let live = tools.live.lock().expect("no test panics here");
        live[1].say(Live::Output { stream: OutputStream::Stdout, bytes: b"one\ntwo\n" });
    }
    logged(&second, run, "tool.output.delta", 2).await;
    tools.let_go(1);
    assert_eq!(second.ended(run).await.status, SessionStatus::Succeeded);
    let all = payloads(&second, run, "tool.output.delta").await;
    let told: Vec<_> =
        all.iter().map(|d| (d["epoch"].clone(), d["offset"].clone(), d["text"].clone())).collect();
    let epoch = all[1]["epoch"].clone();
    assert_eq!(
        told,
        [(json!(1), json!(0), json!("one\n")), (epoch, json!(0), json!("one\ntwo\n"))]
    );
    second.check(&[run]).await;
}
