//! Shutdown in good order, and the next start. (Kill -9 is tested with the real binary.)

use std::sync::Arc;
use std::time::Duration;

use overmind_core::row::SessionStatus;
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_waiting_session_survives_a_restart_and_can_be_answered() {
    let models = FakeModels::new([calls(&[("ask_user", json!({"message": "?"}))])]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert_eq!(world.engine.drain(Duration::from_secs(5)).await, 0);
    let dir = Arc::clone(&world.dir);
    drop(world);
    let world = World::at(dir, FakeTools::ok(), FakeModels::new([says("thanks")]), 8).await;
    world.engine.session_input(&world.by, run, "yes".into()).await.unwrap();
    assert_eq!(world.ended(run).await.final_answer.as_deref(), Some("thanks"));
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_drain_lets_a_tool_finish_and_saves_calls_that_did_not_start() {
    let models =
        FakeModels::new([calls(&[("hang", json!({})), ("run_shell", json!({"command": "x"}))])]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "x").await;
    world.until_true("the tool hangs", || world.tools.called("hang") == 1).await;
    let engine = world.engine.clone();
    let (cut, ()) = tokio::join!(engine.drain(Duration::from_secs(10)), async {
        world
            .until_true("it drains", || {
                world.engine.readiness() == overmind_engine::view::Readiness::Draining
            })
            .await;
        world.tools.let_go(1);
    });
    assert_eq!(cut, 0);
    assert_eq!(world.tools.called("run_shell"), 0, "nothing new begins while draining");
    let dir = Arc::clone(&world.dir);
    drop(world);
    let world = World::at(dir, FakeTools::ok(), FakeModels::new([says("end")]), 8).await;
    let row = world.ended(run).await;
    assert_eq!((row.status, row.epoch), (SessionStatus::Succeeded, 2));
    assert_eq!(world.tools.called("run_shell"), 1, "it begins now, without a question");
    assert_eq!(world.tools.called("hang"), 0, "and what was done is not done again");
    world.check(&[run]).await;
}

#[tokio::test]
async fn an_interrupted_once_tool_asks_a_person() {
    let (world, run) = World::hanging().await;
    assert_eq!(world.engine.drain(Duration::ZERO).await, 1);
    let dir = Arc::clone(&world.dir);
    drop(world);
    let world = World::at(dir, FakeTools::ok(), FakeModels::new([says("end")]), 8).await;
    let row = world.until(run, &[SessionStatus::AwaitingInput]).await;
    assert!(row.prompt.unwrap().contains("Whether it was done is unknown"));
    assert_eq!(world.tools.called("hang"), 0);
    world.engine.session_input(&world.by, run, "done".into()).await.unwrap();
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("hang"), 0);
    world.check(&[run]).await;
}

#[tokio::test]
async fn queued_sessions_run_after_a_restart() {
    let models = FakeModels::new([calls(&[("hang", json!({}))])]);
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let world = World::at(dir, FakeTools::ok(), models, 1).await;
    let slow = world.agent("gpt-test", |_| ()).await;
    world.run(&slow, "x").await;
    world.until_true("the tool hangs", || world.tools.called("hang") == 1).await;
    let stub = world.agent("stub", |_| ()).await;
    let mut queued = Vec::new();
    for _ in 0..20 {
        queued.push(world.run(&stub, "shell: true").await);
    }
    world.engine.drain(Duration::ZERO).await;
    let dir = Arc::clone(&world.dir);
    drop(world);
    let world = World::at(dir, FakeTools::ok(), FakeModels::new([]), 4).await;
    for run in &queued {
        assert_eq!(world.ended(*run).await.status, SessionStatus::Succeeded);
    }
    world.check(&queued).await;
}
