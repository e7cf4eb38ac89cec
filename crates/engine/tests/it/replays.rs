//! Verify, fork, diff.

use overmind_core::row::SessionStatus;
use overmind_engine::request::ForkDraft;
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::json;

use crate::world::World;

async fn three_turns() -> (World, overmind_core::ids::SessionId) {
    let turn = |n| calls(&[("look", json!({"n": n}))]);
    let models =
        FakeModels::new([turn(1), turn(2), says("first end"), turn(9), says("second end")]);
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let run = world.run(&agent, "look around").await;
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    (world, run)
}

#[tokio::test]
async fn a_fork_repeats_steps_without_effects_and_continues_with_another_model() {
    let (world, run) = three_turns().await;
    let before = world.tools.called("look");
    let fork = ForkDraft {
        at: 2,
        model: Some("gpt-other".into()),
        prompt: Some("be brief".into()),
        name: None,
    };
    let forked = world.engine.session_fork(&world.by, run, fork).await.unwrap();
    let row = world.ended(forked.id).await;
    assert_eq!(row.final_answer.as_deref(), Some("second end"));
    assert_eq!(row.forked_from, Some((run, 2)));
    assert_eq!(world.tools.called("look"), before + 1, "only the fork's own step was done");
    assert_eq!(row.model_calls, 2, "the repeated call is not counted");
    let request = world.models.requests.lock().unwrap()[3].clone();
    assert_eq!(request.model, "gpt-other");
    assert!(request.system.contains("be brief"));
    world.check(&[run, forked.id]).await;
    let diff = world.engine.session_diff(&world.by, run, forked.id).await.unwrap();
    assert_eq!(diff.common, 2, "{:?}", diff.rows);
    let again = world
        .engine
        .session_fork(&world.by, forked.id, ForkDraft { at: 1, ..ForkDraft::default() })
        .await
        .unwrap();
    world.ended(again.id).await;
    world.check(&[again.id]).await;
}

#[tokio::test]
async fn a_fork_is_possible_at_every_step_and_not_after_the_end() {
    let (world, run) = three_turns().await;
    let steps = world.engine.session_fetch(&world.by, run).await.unwrap().steps;
    for at in 0..=steps {
        let fork = ForkDraft { at, ..ForkDraft::default() };
        let forked = world.engine.session_fork(&world.by, run, fork).await.unwrap();
        assert_eq!(world.ended(forked.id).await.status, SessionStatus::Succeeded, "at {at}");
        world.check(&[forked.id]).await;
    }
    let fork = ForkDraft { at: steps + 1, ..ForkDraft::default() };
    assert!(world.engine.session_fork(&world.by, run, fork).await.is_err());
}

#[tokio::test]
async fn a_timeline_shows_each_state_of_a_step_and_resumes_at_any_item() {
    let (world, run) = three_turns().await;
    let whole = world.engine.session_timeline(&world.by, run, (0, 0), 1000).await.unwrap();
    assert!(!whole.more);
    let mut pieces = Vec::new();
    let mut after = (0, 0);
    loop {
        let page = world.engine.session_timeline(&world.by, run, after, 3).await.unwrap();
        let Some(first) = page.items.first().cloned() else { break };
        after = first.place;
        pieces.push(first);
    }
    assert_eq!(pieces, whole.items);
}
