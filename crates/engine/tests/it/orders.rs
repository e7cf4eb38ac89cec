//! Cancel, limits and fairness.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use overmind_core::row::SessionStatus;
use overmind_engine::EngineError;
use overmind_testkit::ports::{FakeModels, FakeTools, calls};
use serde_json::json;

use crate::world::World;

fn hang_once() -> Arc<FakeModels> {
    FakeModels::new([calls(&[("hang", json!({}))])])
}

#[tokio::test]
async fn cancel_stops_the_current_tool_and_a_late_result_changes_nothing() {
    let world = World::new(FakeTools::ok(), hang_once()).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "wait").await;
    world.until_true("the tool hangs", || world.tools.called("hang") == 1).await;
    let row = world.engine.session_cancel(&world.by, run).await.unwrap();
    assert_eq!(row.status, SessionStatus::Canceled);
    world
        .until_true("the tool was dropped", || world.tools.dropped.load(Ordering::SeqCst) == 1)
        .await;
    world.tools.let_go(1);
    let again = world.engine.session_cancel(&world.by, run).await;
    assert_eq!(again, Err(EngineError::conflict("Run is already finished")));
    let steps = world.engine.session_steps(&world.by, run, None, 10).await.unwrap();
    assert!(steps.iter().all(|step| step.finished_at.is_some()), "{steps:?}");
    world.check(&[run]).await;
}

#[tokio::test]
async fn many_concurrent_cancels_have_one_result() {
    let world = World::new(FakeTools::ok(), hang_once()).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "wait").await;
    let cancels = (0..20).map(|_| world.engine.session_cancel(&world.by, run));
    let results = futures_util::future::join_all(cancels).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let canceled = world.kinds(run).await.iter().filter(|kind| *kind == "run.canceled").count();
    assert_eq!(canceled, 1);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_canceled_queued_session_never_starts() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let world = World::at(dir, FakeTools::ok(), hang_once(), 1).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let first = world.run(&agent, "wait").await;
    world.until_true("the tool hangs", || world.tools.called("hang") == 1).await;
    let second = world.run(&agent, "later").await;
    assert_eq!(
        world.engine.session_cancel(&world.by, second).await.unwrap().status,
        SessionStatus::Canceled
    );
    world.tools.let_go(1);
    assert_eq!(world.ended(first).await.status, SessionStatus::Succeeded);
    assert_eq!(world.kinds(second).await, ["run.queued", "run.canceled"]);
    world.check(&[first, second]).await;
}

#[tokio::test]
async fn an_agent_with_a_long_queue_does_not_delay_another() {
    let world = World::new(
        FakeTools::ok(),
        FakeModels::new((0..50).map(|_| calls(&[("hang", json!({}))]))),
    )
    .await;
    let slow = world
        .agent("gpt-test", |draft| {
            draft.limits =
                Some(overmind_core::agent::AgentLimits { max_concurrent: 2, ..Default::default() });
        })
        .await;
    let mut waiting = Vec::new();
    for _ in 0..50 {
        waiting.push(world.run(&slow, "wait").await);
    }
    world.until_true("two hang", || world.tools.called("hang") == 2).await;
    let quick = world.agent("stub", |_| ()).await;
    let run = world.run(&quick, "shell: true").await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    assert_eq!(world.tools.called("hang"), 2, "the bound of the slow agent holds");
    for run in waiting {
        let _ = world.engine.session_cancel(&world.by, run).await;
        assert_eq!(world.ended(run).await.status, SessionStatus::Canceled);
    }
    world.check(&[run]).await;
}

#[tokio::test]
async fn the_wall_time_limit_ends_a_session() {
    let world = World::new(FakeTools::ok(), hang_once()).await;
    let agent = world
        .agent("gpt-test", |draft| {
            draft.limits =
                Some(overmind_core::agent::AgentLimits { max_seconds: 1, ..Default::default() });
        })
        .await;
    let run = world.run(&agent, "wait").await;
    let row = world.ended(run).await;
    assert_eq!(row.error.unwrap()["code"], "time_limit");
    world
        .until_true("the tool was dropped", || world.tools.dropped.load(Ordering::SeqCst) == 1)
        .await;
    world.check(&[run]).await;
}
