//! Many sessions killed by one order.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt as _, stream};
use overmind_core::command::CommandSpec;
use overmind_core::ids::SessionId;
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_engine::request::{AgentDraft, SessionDraft};
use overmind_engine::{Caller, EngineError, Kills, MAX_KILLS, Rights};
use overmind_testkit::processes::FakeProcesses;

use crate::world::{World, session_draft};

/// A server on which commands of one agent run.
async fn world() -> (World, Arc<FakeProcesses>, String) {
    let processes = Arc::new(FakeProcesses::default());
    let world = World::with_commands(processes.clone(), None).await;
    let draft = AgentDraft {
        name: "serve".into(),
        role: "r".into(),
        model: "m".into(),
        sandbox: Some(SandboxLevel::None),
        command: Some(CommandSpec { argv: vec!["serve".into()], ..CommandSpec::default() }),
        ..AgentDraft::default()
    };
    let agent = world.engine.agent_create(&world.by, draft, None).await.unwrap().value;
    (world, processes, agent.agent.id.to_string())
}

async fn started(world: &World, agent: &str, parent: Option<SessionId>) -> SessionId {
    let draft = SessionDraft {
        parent: parent.map(|parent| parent.to_string()),
        ..session_draft(agent, "")
    };
    world.engine.session_create(&world.by, draft).await.unwrap().value.id
}

/// So many commands that run.
async fn many(
    world: &World,
    processes: &FakeProcesses,
    agent: &str,
    count: usize,
) -> Vec<SessionId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(started(world, agent, None).await);
    }
    world.until_true("all of them run", || processes.alive() == count).await;
    for id in &ids {
        until_up(world, *id).await;
    }
    ids
}

/// Its start is in the log.
async fn until_up(world: &World, id: SessionId) -> SessionRow {
    let mut watch = world.engine.session_watch(id);
    loop {
        watch.borrow_and_update();
        let row = world.engine.session_fetch(&world.by, id).await.unwrap();
        if row.command.as_ref().is_some_and(|command| command.pid.is_some()) {
            return row;
        }
        watch.changed().await.unwrap();
    }
}

#[tokio::test]
async fn kill_all_pages_through_all_running_sessions_and_reports_each() {
    let (world, processes, agent) = world().await;
    let ids = many(&world, &processes, &agent, 30).await;
    let all = Kills::All { after: None };
    let killed = world.engine.session_kill_each(&world.by, all.clone(), false).await.unwrap();
    assert_eq!(killed.next, None);
    let newest_first: Vec<SessionId> = ids.iter().rev().copied().collect();
    let told: Vec<SessionId> = killed.each.iter().map(|(id, _)| *id).collect();
    assert_eq!(told, newest_first);
    assert!(killed.each.iter().all(|(_, result)| result.is_ok()), "{killed:?}");
    for id in &ids {
        let row = world.ended(*id).await;
        assert_eq!(row.status, SessionStatus::Canceled);
        let kinds = world.kinds(*id).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "run.stopped").count(), 1, "{kinds:?}");
    }
    assert_eq!(processes.alive(), 0);
    let again = world.engine.session_kill_each(&world.by, all, false).await.unwrap();
    assert!(again.each.is_empty(), "{again:?}");
    world.check(&ids).await;
}

#[tokio::test]
async fn more_than_a_thousand_sessions_take_two_requests() {
    let (world, processes, agent) = world().await;
    let count = MAX_KILLS + 3;
    let starts = (0..count).map(|_| started(&world, &agent, None));
    let ids: Vec<SessionId> = stream::iter(starts).buffer_unordered(64).collect().await;
    world.until_true("all of them run", || processes.alive() == count).await;
    for id in &ids {
        until_up(&world, *id).await;
    }
    let page = async |after| {
        let which = Kills::All { after };
        let killed = world.engine.session_kill_each(&world.by, which, false).await.unwrap();
        assert!(killed.each.iter().all(|(_, result)| result.is_ok()), "{killed:?}");
        (killed.each.len(), killed.next)
    };
    let (first, next) = page(None).await;
    assert_eq!(first, MAX_KILLS);
    let (second, end) = page(Some(next.expect("there are more"))).await;
    assert_eq!((second, end), (3, None));
    for id in &ids {
        assert_eq!(world.ended(*id).await.status, SessionStatus::Canceled);
    }
    assert_eq!(processes.alive(), 0);
}

#[tokio::test]
async fn each_page_starts_where_the_previous_one_ends() {
    let (world, processes, agent) = world().await;
    let ids = many(&world, &processes, &agent, 3).await;
    let older = Kills::All { after: Some(ids[1]) };
    let killed = world.engine.session_kill_each(&world.by, older, false).await.unwrap();
    assert_eq!(killed.each.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[0]]);
    world.ended(ids[0]).await;
    assert_eq!(processes.alive(), 2, "what comes before is let alone");
}

#[tokio::test]
async fn one_failing_kill_does_not_delay_the_others() {
    let (world, processes, agent) = world().await;
    let ids = many(&world, &processes, &agent, 3).await;
    let nobody = SessionId::from_u128(7);
    world.engine.session_cancel(&world.by, ids[1]).await.unwrap();
    world.ended(ids[1]).await;
    let named = Kills::Named(vec![ids[0], ids[1], nobody, ids[2]]);
    let killed = world.engine.session_kill_each(&world.by, named, false).await.unwrap();
    let [(_, first), (_, ended), (_, unknown), (_, last)] = &killed.each[..] else {
        panic!("{killed:?}")
    };
    assert!(first.is_ok() && last.is_ok(), "{killed:?}");
    assert_eq!(ended, &Err(EngineError::conflict("Run is already finished")));
    assert_eq!(unknown, &Err(EngineError::not_found("Run")));
    for id in &ids {
        assert_eq!(world.ended(*id).await.status, SessionStatus::Canceled);
    }
    world.check(&ids).await;
}

#[tokio::test]
async fn a_repeated_kill_returns_the_first_result() {
    let (world, processes, agent) = world().await;
    let ids = many(&world, &processes, &agent, 2).await;
    processes.deaf.store(true, Ordering::SeqCst);
    let kill = async || {
        let all = Kills::All { after: None };
        world.engine.session_kill_each(&world.by, all, false).await.unwrap()
    };
    assert!(kill().await.each.iter().all(|(_, result)| result.is_ok()));
    let again = kill().await;
    assert_eq!(again.each.len(), 2);
    assert!(again.each.iter().all(|(_, result)| result.is_ok()), "{again:?}");
    for id in &ids {
        let kinds = world.kinds(*id).await;
        let asked = kinds.iter().filter(|kind| kind.contains("stop")).count();
        assert_eq!(asked, 1, "it is asked for once: {kinds:?}");
    }
}

#[tokio::test]
async fn a_non_command_is_canceled_by_name_and_skipped_by_all() {
    let (world, run) = World::hanging().await;
    let all = Kills::All { after: None };
    let killed = world.engine.session_kill_each(&world.by, all, false).await.unwrap();
    assert!(killed.each.is_empty(), "{killed:?}");
    let named = Kills::Named(vec![run]);
    let killed = world.engine.session_kill_each(&world.by, named, false).await.unwrap();
    let row = killed.each[0].1.as_ref().unwrap();
    assert_eq!(row.status, SessionStatus::Canceled);
    world.check(&[run]).await;
}

#[tokio::test]
async fn a_cascade_ends_all_generations_from_the_youngest() {
    let (world, processes, agent) = world().await;
    let top = started(&world, &agent, None).await;
    let middle =
        [started(&world, &agent, Some(top)).await, started(&world, &agent, Some(top)).await];
    let low = [
        started(&world, &agent, Some(middle[0])).await,
        started(&world, &agent, Some(middle[1])).await,
    ];
    let other = started(&world, &agent, None).await;
    world.until_true("all of them run", || processes.alive() == 6).await;
    let named = Kills::Named(vec![top]);
    let killed = world.engine.session_kill_each(&world.by, named, true).await.unwrap();
    assert_eq!(killed.each[0].1.as_ref().unwrap().status, SessionStatus::Canceled);
    let mut ends = Vec::new();
    for generation in [&low[..], &middle[..], &[top]] {
        let mut of = Vec::new();
        for id in generation {
            of.push(world.ended(*id).await.finished_at.expect("it has ended"));
        }
        ends.push(of);
    }
    let latest = |of: &[_]| of.iter().max().copied();
    let earliest = |of: &[_]| of.iter().min().copied();
    assert!(latest(&ends[0]) <= earliest(&ends[1]), "{ends:?}");
    assert!(latest(&ends[1]) <= earliest(&ends[2]), "{ends:?}");
    world.until_true("the other one goes on", || processes.alive() == 1).await;
    let row = world.engine.session_fetch(&world.by, other).await.unwrap();
    assert_eq!(row.status, SessionStatus::Running);
}

#[tokio::test]
async fn a_batch_kill_requires_the_permission_of_a_single_kill_and_is_bounded() {
    let (world, processes, agent) = world().await;
    let ids = many(&world, &processes, &agent, 2).await;
    let viewer = Caller::new("looks", Rights::Role(Role::Viewer));
    let own = Caller::new("own", Rights::Session { session: ids[0], epoch: 1 });
    for which in
        [Kills::All { after: None }, Kills::Named(vec![ids[0]]), Kills::Named(vec![ids[1]])]
    {
        let refused = world.engine.session_kill_each(&viewer, which, false).await;
        assert!(matches!(refused, Err(EngineError::Forbidden { .. })), "{refused:?}");
    }
    // A run's own token: of all runs, only those below it, of which there are none; not itself or others.
    let all =
        world.engine.session_kill_each(&own, Kills::All { after: None }, false).await.unwrap();
    assert!(all.each.is_empty(), "{all:?}");
    let named =
        world.engine.session_kill_each(&own, Kills::Named(ids.clone()), false).await.unwrap();
    assert!(matches!(named.each[0].1, Err(EngineError::Forbidden { .. })), "{named:?}");
    assert!(matches!(named.each[1].1, Err(EngineError::NotFound { .. })), "{named:?}");
    let distinct: BTreeSet<u128> = (0..=MAX_KILLS as u128).collect();
    let too_many = distinct.into_iter().map(SessionId::from_u128).collect();
    for bad in [vec![], vec![ids[0], ids[1], ids[0]], too_many] {
        let refused = world.engine.session_kill_each(&world.by, Kills::Named(bad), false).await;
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
    }
    assert_eq!(processes.alive(), 2, "nothing was killed by what was refused");
}

#[tokio::test]
async fn a_task_too_long_for_any_program_is_refused_before_a_start() {
    let (world, processes, agent) = world().await;
    let long = "x".repeat(140_000);
    let refused = world.engine.session_create(&world.by, session_draft(&agent, &long)).await;
    let Err(EngineError::Invalid { field, message }) = refused else { panic!("{refused:?}") };
    assert!(field == "task" && message.contains("a file of the project"), "{field}: {message}");
    assert_eq!(processes.alive(), 0);
    let short = "x".repeat(130_000);
    let id = world.engine.session_create(&world.by, session_draft(&agent, &short)).await.unwrap();
    until_up(&world, id.value.id).await;
}
