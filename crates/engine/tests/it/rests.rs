//! Idle sessions with services end after a time; others do not.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::room::{RoomWhen, RoomWish};
use overmind_core::row::SessionStatus;
use overmind_core::time::Clock;
use overmind_engine::request::SessionDraft;
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ports::{FakeModels, says};
use overmind_testkit::rooms::{FakeRooms, Journal};

use crate::world::{World, session_draft};

const DAY: Duration = Duration::from_hours(24);
const HOUR: Duration = Duration::from_hours(1);

async fn rests(world: &World, agent: &str, when: RoomWhen) -> SessionId {
    let draft = SessionDraft {
        room: Some(RoomWish { when, ..RoomWish::default() }),
        workspace: Some(world.dir.path().display().to_string()),
        conversation: Some(true),
        ..session_draft(agent, "mend it")
    };
    let made = world.engine.session_create(&world.by, draft).await;
    let id = made.expect("the run is made").value.id;
    world.until(id, &[SessionStatus::Idle]).await;
    id
}

#[tokio::test]
async fn an_idle_session_with_services_ends_after_its_time_and_continues_on_send() {
    let models = FakeModels::new([says("one"), says("two"), says("three"), says("four")]);
    let clock = Arc::new(ManualClock::default());
    let rooms = FakeRooms::new(Journal::default());
    let world = World::in_rooms(models, rooms, Arc::clone(&clock) as Arc<dyn Clock>).await;
    let agent = world.agent("gpt-test", |_| ()).await;
    let served = rests(&world, &agent, RoomWhen::Auto).await;
    let bare = rests(&world, &agent, RoomWhen::Never).await;
    let end = async || world.engine.rests_end(&world.by, clock.now(), DAY).await.expect("looked");

    clock.advance(DAY - HOUR);
    assert_eq!(end().await, 0, "not yet");
    // A further message restarts the time.
    let told =
        world.engine.session_send(&world.by, served, "and a test".into(), false, false).await;
    told.expect("it goes on");
    world.until(served, &[SessionStatus::Idle]).await;
    clock.advance(HOUR);
    assert_eq!(end().await, 0, "it rests since an hour");

    clock.advance(DAY);
    assert_eq!(end().await, 1);
    let row = world.ended(served).await;
    assert_eq!(row.status, SessionStatus::Succeeded);
    assert_eq!(row.final_answer.as_deref(), Some("three"));
    let room = row.room.expect("it had a room");
    let by = "engine.rest_hours, after 24 h at rest";
    assert_eq!(room.rest_ended_by.as_deref(), Some(by));
    assert!(world.kinds(served).await.contains(&"process.stop_asked".to_owned()));
    let row = world.engine.session_fetch(&world.by, bare).await.expect("it is there");
    assert_eq!(row.status, SessionStatus::Idle, "it costs nothing");
    assert_eq!(end().await, 0);

    let told = world.engine.session_send(&world.by, served, "and more".into(), false, false).await;
    told.expect("it goes on after its end");
    let row = world.until(served, &[SessionStatus::Idle]).await;
    assert_eq!(row.final_answer.as_deref(), Some("four"));
    assert_eq!(row.room.and_then(|room| room.rest_ended_by), None);
    world.check(&[served, bare]).await;
}
