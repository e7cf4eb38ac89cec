//! Fleets: the selection of those that a pass of their loop reads.

use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::record::{KINDS, Name, kind};
use overmind_core::row::SessionStatus;
use overmind_core::store::Page;
use overmind_engine::RecordWish;
use overmind_engine::request::SessionQuery;
use overmind_testkit::ports::{FakeModels, FakeTools, calls};
use serde_json::json;

use crate::world::World;

async fn apply(world: &World, agent: &str, replicas: u32) {
    let wish = RecordWish {
        info: kind::find(KINDS, "fleet").expect("the product has it"),
        name: Name::parse("web").expect("a name"),
        labels: Default::default(),
        annotations: Default::default(),
        spec: json!({"replicas": replicas, "template": {"agent": agent, "task": "x"}}),
        finalizers: None,
        owner: None,
        was: None,
    };
    world.engine.record_apply(&world.by, vec![wish], false).await.expect("it is valid");
}

/// Passes run until one skips all fleets.
async fn still(world: &World) {
    let passes = async {
        loop {
            let ran = world.engine.loop_run(&world.by, "fleets").await.expect("it runs");
            if ran.last.expect("a pass was made").result.expect("the pass works").is_empty() {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), passes).await.expect("one that looks at none");
}

/// The run of the fleet that waits for an answer, other than `but`.
async fn waiting(world: &World, but: Option<SessionId>) -> SessionId {
    let mut log = world.engine.log_watch();
    let found = async {
        loop {
            log.borrow_and_update();
            let page = Page { limit: 9, after: None };
            let rows = world.engine.session_list(&world.by, SessionQuery::default(), page).await;
            let waits = rows
                .expect("a list")
                .into_iter()
                .find(|row| row.status == SessionStatus::AwaitingInput && Some(row.id) != but);
            if let Some(row) = waits {
                return row.id;
            }
            log.changed().await.expect("the engine works");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), found).await.expect("a run of the fleet")
}

#[tokio::test]
async fn an_unchanged_fleet_is_skipped_until_it_changes_or_a_run_of_it_ends() {
    let ask = || calls(&[("ask_user", json!({"message": "what now?"}))]);
    let models = FakeModels::new(std::iter::repeat_with(ask).take(9));
    let world = World::new(FakeTools::ok(), models).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    apply(&world, &agent, 0).await;
    still(&world).await;
    apply(&world, &agent, 1).await;
    let first = waiting(&world, None).await;
    // One that runs is still, too.
    still(&world).await;
    world.engine.session_cancel(&world.by, first).await.expect("it runs");
    let second = waiting(&world, Some(first)).await;
    still(&world).await;
    apply(&world, &agent, 0).await;
    assert_eq!(world.ended(second).await.status, SessionStatus::Canceled);
    still(&world).await;
}
