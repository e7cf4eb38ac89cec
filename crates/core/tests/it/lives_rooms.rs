//! Sessions of commands that work in rooms: cases, and random schedules with crashes.

use std::collections::BTreeSet;
use std::time::Duration;

use overmind_core::command::{CommandSpec, LifeInput, LifeOrder, RestartRules, StopHow};
use overmind_core::enclosure::Network;
use overmind_core::ids::HiveId;
use overmind_core::room::stay::{RoomAct, RoomInput, RoomPhase};
use overmind_core::room::{
    Leak, RoomClosed, RoomEnd, RoomError, RoomErrorKind, RoomMade, RoomSandbox, RoomWhen, RoomWish,
};
use overmind_core::row::SessionStatus;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::{Input, Refusal};
use serde_json::Value;

use crate::lives::{GRACE, World, always, anything, command, random_rules};
use crate::properties::rng::Rng;

/// The possible answers of a hive to `act`.
pub(crate) fn room_report(effect: u64, act: &RoomAct, good: bool) -> RoomInput {
    let error = RoomError::new(RoomErrorKind::Failed, "the database did not come up");
    match (act, good) {
        (RoomAct::Prepare(order), true) => {
            assert_eq!(order.project, std::path::Path::new("/w"));
            let made = RoomMade {
                directory: "/rooms/1/tree/sub".into(),
                branch: Some(format!("overmind/{}", order.name)),
                ..RoomMade::default()
            };
            RoomInput::Ready { effect, made: Box::new(made) }
        }
        (RoomAct::Prepare(_), false) => RoomInput::Failed { effect, error },
        (RoomAct::Close { .. }, true) => {
            RoomInput::Closed { effect, closed: Box::new(RoomClosed::default()) }
        }
        (RoomAct::Close { .. }, false) => RoomInput::Left { effect, error },
    }
}

fn wish() -> RoomWish {
    RoomWish { base: Some("main".into()), end: RoomEnd::Keep, ..RoomWish::default() }
}

fn started() -> World {
    let mut world = World::wishing(command(RestartRules::default()), 0, Some(wish()));
    world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
    world
}

/// Its command runs in its room.
fn up() -> World {
    let mut world = started();
    world.room_says(true);
    world.life(LifeInput::Started { effect: 1, pid: 100 });
    world
}

fn phase(world: &World) -> RoomPhase {
    world.session.row().room.as_ref().expect("it has a room").phase
}

fn kinds(world: &World) -> Vec<&'static str> {
    world.log.iter().map(|(kind, _, _)| *kind).collect()
}

fn payload(world: &World, kind: &str) -> Value {
    let (_, text, _) = world.log.iter().find(|(of, _, _)| *of == kind).expect("it is in the log");
    serde_json::from_str(text).expect("payloads are JSON")
}

#[test]
fn an_environment_is_created_before_the_first_attempt_and_released_before_the_end() {
    let mut world = started();
    let order = world.session.room_order().unwrap();
    assert_eq!((&*order.name, &order.wish), ("tested", &wish()));
    assert_eq!(world.room, Some((0, RoomAct::Prepare(Box::new(order)))));
    assert_eq!((phase(&world), world.status()), (RoomPhase::Preparing, SessionStatus::Running));
    world.room_says(true);
    assert_eq!(phase(&world), RoomPhase::Ready);
    world.life(LifeInput::Started { effect: 1, pid: 100 });
    world.ends(0);
    assert_eq!((phase(&world), world.status()), (RoomPhase::Closing, SessionStatus::Running));
    assert_eq!(world.room, Some((2, RoomAct::Close { end: RoomEnd::Keep })));
    world.room_says(true);
    assert_eq!((phase(&world), world.status()), (RoomPhase::Closed, SessionStatus::Succeeded));
    assert_eq!(
        kinds(&world),
        [
            "run.queued",
            "run.started",
            "room.preparing",
            "room.ready",
            "process.starting",
            "process.started",
            "process.ended",
            "room.closing",
            "room.closed",
            "run.succeeded",
        ]
    );
    world.replays();
}

#[test]
fn an_environment_gets_the_sandbox_and_the_access_of_its_command() {
    let read: Vec<std::path::PathBuf> = vec!["/opt/node".into()];
    for (chosen, network) in [(None, Network::Mesh), (Some(Network::Host), Network::Host)] {
        let granted = CommandSpec {
            read: read.clone(),
            write: vec!["/srv/out".into()],
            network: chosen,
            ..command(RestartRules::default())
        };
        let world = World::wishing(granted, 0, Some(wish()));
        let level = world.spec.agent.sandbox;
        assert_ne!(level, SandboxLevel::None);
        let wanted = RoomSandbox { level, network, read: read.clone() };
        assert_eq!(world.session.room_order().unwrap().sandbox, wanted);
    }
}

#[test]
fn without_a_request_no_environment_is_recorded() {
    let never = RoomWish { when: RoomWhen::Never, ..RoomWish::default() };
    for wish in [None, Some(never)] {
        let mut world = World::wishing(command(RestartRules::default()), 0, wish.clone());
        world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
        world.life(LifeInput::Started { effect: 0, pid: 100 });
        world.ends(0);
        let path =
            ["run.queued", "run.started", "process.starting", "process.started", "process.ended"];
        assert_eq!(kinds(&world)[..5], path, "{wish:?}");
        assert_eq!(kinds(&world)[5..], ["run.succeeded"]);
        assert_eq!(world.session.row().room, None);
        world.replays();
    }
}

#[test]
fn a_failed_creation_of_an_environment_ends_the_session_with_the_reason() {
    let mut world = started();
    world.room_says(false);
    assert_eq!((phase(&world), world.status()), (RoomPhase::Closing, SessionStatus::Running));
    world.room_says(true);
    assert_eq!((phase(&world), world.status()), (RoomPhase::Failed, SessionStatus::Failed));
    let error = world.session.row().error.clone().unwrap();
    assert_eq!(error["code"], "room");
    assert_eq!(error["message"], "the database did not come up");
    assert!(!kinds(&world).contains(&"process.starting"));
    world.replays();
}

#[test]
fn a_failed_release_of_an_environment_still_ends_the_session() {
    let mut world = up();
    world.ends(3);
    world.room_says(false);
    assert_eq!((phase(&world), world.status()), (RoomPhase::Left, SessionStatus::Failed));
    assert_eq!(world.session.row().error.as_ref().unwrap()["code"], "exited");
    let left = payload(&world, "room.left");
    assert_eq!(left["error"]["message"], "the database did not come up");
    world.replays();
}

#[test]
fn remains_of_an_environment_are_reported_and_stored_in_the_row() {
    let leak = Leak {
        kind: "port".into(),
        what: "20001".into(),
        session: None,
        how: "end what listens".into(),
        fixable: false,
        bytes: None,
    };
    let closed = RoomClosed {
        kept: Some("/rooms/1/tree".into()),
        leaks: vec![leak],
        ..RoomClosed::default()
    };
    let mut world = up();
    world.ends(0);
    world.feed(Input::Room(RoomInput::Closed { effect: 2, closed: Box::new(closed.clone()) }));
    assert_eq!(payload(&world, "room.leaked")["leaks"][0]["what"], "20001");
    let room = world.session.row().room.clone().unwrap();
    assert_eq!((room.phase, room.closed), (RoomPhase::Kept, Some(closed)));
    world.replays();
}

#[test]
fn a_stop_during_creation_waits_for_the_release() {
    let stop = Input::Life(LifeInput::StopAsked { how: GRACE, by: "ann".into() });
    let kill = Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by: "ann".into() });
    for input in [stop, kill, Input::Canceled { by: "ann".into(), reason: None }] {
        let mut world = started();
        world.feed(input.clone());
        // The creation was aborted: its result is ignored.
        let late = RoomInput::Ready { effect: 0, made: Box::new(RoomMade::default()) };
        assert_eq!(world.session.accepts(&Input::Room(late)), Err(Refusal::Stale));
        assert_eq!(world.room, Some((1, RoomAct::Close { end: RoomEnd::Keep })));
        for again in [input, Input::Canceled { by: "bob".into(), reason: None }, Input::TimeLimit] {
            assert_eq!(world.session.accepts(&again), Err(Refusal::Ending));
        }
        world.room_says(true);
        assert_eq!((phase(&world), world.status()), (RoomPhase::Closed, SessionStatus::Canceled));
        world.replays();
    }
}

#[test]
fn a_crash_repeats_the_same_request_and_decides_nothing_again() {
    let recovered = |epoch| Input::Recovered { epoch, hive: HiveId::LOCAL };
    let mut world = started();
    world.feed(recovered(2));
    world.room_says(true);
    world.life(LifeInput::Started { effect: 1, pid: 100 });
    world.feed(recovered(3));
    assert_eq!(world.launch.as_ref().unwrap().1.directory, Some("/rooms/1/tree/sub".into()));
    world.feed(Input::Canceled { by: "ann".into(), reason: None });
    world.feed(recovered(4));
    assert_eq!((world.session.due(), world.status()), (None, SessionStatus::Running));
    world.room_says(true);
    assert_eq!(world.status(), SessionStatus::Canceled);
    world.replays();
}

#[test]
fn a_queued_session_has_no_environment_to_release() {
    let mut world = World::wishing(command(always()), 0, Some(wish()));
    world.feed(Input::Canceled { by: "ann".into(), reason: None });
    assert_eq!((world.status(), &world.session.row().room), (SessionStatus::Canceled, &None));
    let mut world = World::wishing(command(always()), 0, Some(wish()));
    world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: false });
    assert_eq!((world.status(), &world.session.row().room), (SessionStatus::Failed, &None));
    world.replays();
}

#[test]
fn the_time_limit_includes_the_creation_and_not_the_release() {
    let mut world = World::wishing(command(always()), 60, Some(wish()));
    world.feed(Input::Started { epoch: 1, hive: HiveId::LOCAL, agent_active: true });
    world.wait(Duration::from_secs(60));
    let (at, input) = world.session.due().unwrap();
    assert_eq!((at, &input), (world.now, &Input::TimeLimit));
    world.feed(input);
    assert_eq!(world.session.due(), None);
    world.room_says(true);
    assert_eq!(world.session.row().error.as_ref().unwrap()["code"], "time_limit");
    world.replays();
}

#[test]
fn no_schedule_leaves_an_environment_open_or_a_session_without_an_end() {
    let (mut seen, mut ends) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..crate::count(1_000, 30_000) {
        let world = play(&mut Rng::new(seed));
        world.replays();
        seen.extend(kinds(&world));
        let room = world.session.row().room.as_ref().map(|room| room.phase.as_str());
        ends.insert((world.status().as_str(), room.unwrap_or("none")));
        // Cancel wins: a caller who got a positive answer finds the session canceled.
        let canceled = kinds(&world).contains(&"run.canceled");
        assert!(!canceled || world.status() == SessionStatus::Canceled);
    }
    for kind in
        ["room.ready", "room.failed", "room.closed", "room.left", "run.recovered", "run.stopped"]
    {
        assert!(seen.contains(kind), "no schedule has seen {kind}: they prove too little");
    }
    for end in [
        ("succeeded", "closed"),
        ("succeeded", "left"),
        ("failed", "closed"),
        ("failed", "left"),
        ("failed", "failed"),
        ("canceled", "closed"),
        ("canceled", "left"),
        ("canceled", "none"),
    ] {
        assert!(ends.contains(&end), "no schedule ended as {end:?}: {ends:?}");
    }
}

/// Anything may happen at any time; finally the session is killed, and all questions are answered.
fn play(rng: &mut Rng) -> World {
    let limit = if rng.one_in(3) { 1 + rng.small(200) } else { 0 };
    let mut world = World::wishing(command(random_rules(rng)), limit, Some(wish()));
    for _ in 0..60 {
        world.wait(Duration::from_millis(rng.below(3_000)));
        let input = match (&world.room, rng.below(4)) {
            (Some((effect, act)), 0) => {
                // Also for an effect that is over, or does not exist yet.
                let effect = if rng.one_in(4) { effect.wrapping_sub(1) } else { *effect };
                Input::Room(room_report(effect, act, !rng.one_in(3)))
            }
            _ => anything(rng, &world),
        };
        if world.session.accepts(&input).is_ok() {
            world.feed(input);
            continue;
        }
        let (same, step) = world.session.clone().step(&input, world.now);
        assert!(step.events.is_empty() && step.effects.is_empty() && step.orders.is_empty());
        assert!(step.aborted.is_empty());
        assert_eq!(same.row(), world.session.row(), "a refused input changes something");
    }
    if world.status() == SessionStatus::Queued {
        world.feed(Input::Canceled { by: "ann".into(), reason: None });
    }
    let mut patience = 0;
    while !world.status().is_terminal() {
        patience += 1;
        assert!(patience < 6, "it does not end");
        let stop = Input::Life(LifeInput::StopAsked { how: StopHow::Kill, by: "ann".into() });
        if world.session.accepts(&stop).is_ok() {
            world.feed(stop);
        } else if world.session.is_closing() {
            world.room_says(!rng.one_in(3));
        } else {
            world.ends(137);
        }
    }
    world
}

#[test]
fn a_stop_ends_the_command_before_the_environment() {
    let mut world = up();
    world.life(LifeInput::StopAsked { how: GRACE, by: "ann".into() });
    assert!(matches!(world.orders(), [LifeOrder::End { .. }]));
    assert_eq!(phase(&world), RoomPhase::Ready, "its command still lives in it");
    world.ends(0);
    assert_eq!(phase(&world), RoomPhase::Closing);
    world.room_says(true);
    assert_eq!(world.status(), SessionStatus::Canceled);
    world.replays();
}
