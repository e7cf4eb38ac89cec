//! Names of sessions, and their parents.

use overmind_core::conflict::{Conflict, ConflictKind};
use overmind_core::ids::SessionId;
use overmind_core::name;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_engine::EngineError;
use overmind_engine::request::SessionDraft;
use overmind_testkit::ports::{FakeModels, FakeTools};

use crate::world::{World, session_draft};

async fn world() -> World {
    World::new(FakeTools::ok(), FakeModels::new([])).await
}

/// A task whose session waits for a person.
const ASKS: &str = "curl the page for me";

fn draft(agent: &str, name: Option<&str>, parent: Option<&str>) -> SessionDraft {
    SessionDraft {
        name: name.map(str::to_owned),
        parent: parent.map(str::to_owned),
        ..session_draft(agent, ASKS)
    }
}

async fn begin(world: &World, draft: SessionDraft) -> Result<SessionRow, EngineError> {
    let row = world.engine.session_create(&world.by, draft).await?.value;
    Ok(world.until(row.id, &[SessionStatus::AwaitingInput]).await)
}

#[tokio::test]
async fn a_name_is_taken_until_its_session_ends() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let first = begin(&world, draft(&agent, Some("build"), None)).await.unwrap();
    assert_eq!((first.name.as_str(), first.parent), ("build", None));
    let taken = begin(&world, draft(&agent, Some("build"), None)).await.unwrap_err();
    assert_eq!(
        taken,
        EngineError::conflict_of(
            Conflict::taken(ConflictKind::SessionName, "build"),
            "another run that has not ended is called `build`"
        ),
        "and says what to do about it: nothing is renamed behind anyone's back"
    );
    world.engine.session_cancel(&world.by, first.id).await.unwrap();
    let second = begin(&world, draft(&agent, Some("build"), None)).await.unwrap();
    assert_ne!(first.id, second.id);
    // Names win over parts of ids.
    let third = begin(&world, draft(&agent, Some("00ff"), None)).await.unwrap();
    assert_eq!(third.name, "00ff");
    for bad in ["", "Build", "a b", "../x"] {
        let refused = begin(&world, draft(&agent, Some(bad), None)).await.unwrap_err();
        assert!(
            matches!(refused, EngineError::Invalid { ref field, .. } if field == "name"),
            "{bad}"
        );
    }
    world.check(&[first.id, second.id, third.id]).await;
}

#[tokio::test]
async fn one_of_twenty_concurrent_requests_gets_a_name() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let all = (0..20).map(|_| begin(&world, draft(&agent, Some("only"), None)));
    let all = futures_util::future::join_all(all).await;
    let made: Vec<SessionId> = all.iter().flatten().map(|row| row.id).collect();
    assert_eq!(made.len(), 1);
    assert!(
        all.iter()
            .flat_map(|row| row.as_ref().err())
            .all(|err| matches!(err, EngineError::Conflict { .. }))
    );
    world.check(&made).await;
}

#[tokio::test]
async fn unnamed_sessions_get_a_generated_name_which_a_fork_does_not_inherit() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let a = begin(&world, draft(&agent, None, None)).await.unwrap();
    let b = begin(&world, draft(&agent, None, Some(&a.name))).await.unwrap();
    assert_ne!(a.name, b.name);
    assert_eq!((name::check(&a.name), b.parent), (Ok(()), Some(a.id)));
    let draft = |name: Option<&str>| {
        let name = name.map(str::to_owned);
        overmind_engine::request::ForkDraft { name, ..Default::default() }
    };
    let fork = world.engine.session_fork(&world.by, b.id, draft(None)).await.unwrap();
    assert!(fork.name != b.name && fork.parent.is_none(), "{fork:?}");
    let named = world.engine.session_fork(&world.by, b.id, draft(Some("again"))).await.unwrap();
    assert_eq!(named.name, "again");
    let taken = world.engine.session_fork(&world.by, b.id, draft(Some("again"))).await;
    assert!(matches!(taken, Err(EngineError::Conflict { .. })), "{taken:?}");
    let wrong = world.engine.session_fork(&world.by, b.id, draft(Some("No Name"))).await;
    assert!(matches!(wrong, Err(EngineError::Invalid { .. })), "{wrong:?}");
    for id in [fork.id, named.id] {
        world.until(id, &[SessionStatus::AwaitingInput]).await;
    }
    world.check(&[a.id, b.id, fork.id, named.id]).await;
}

#[tokio::test]
async fn a_cascade_ends_all_descendants_and_no_siblings() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let top = begin(&world, draft(&agent, Some("top"), None)).await.unwrap();
    let mut below = Vec::new();
    for n in 0..3 {
        let child = begin(&world, draft(&agent, None, Some("top"))).await.unwrap();
        for _ in 0..n {
            below.push(begin(&world, draft(&agent, None, Some(&child.name))).await.unwrap().id);
        }
        below.push(child.id);
    }
    let beside = begin(&world, draft(&agent, Some("beside"), None)).await.unwrap();
    // An ended child leaves its own children below the tree.
    let gone = below.last().copied().unwrap();
    world.engine.session_cancel(&world.by, gone).await.unwrap();

    let row = world.engine.session_cancel_all(&world.by, top.id).await.unwrap();
    assert_eq!((row.id, row.status), (top.id, SessionStatus::Canceled));
    for id in &below {
        let row = world.engine.session_fetch(&world.by, *id).await.unwrap();
        assert_eq!(row.status, SessionStatus::Canceled, "{}", row.name);
    }
    let still = world.engine.session_fetch(&world.by, beside.id).await.unwrap();
    assert_eq!(still.status, SessionStatus::AwaitingInput);
    let again = world.engine.session_cancel_all(&world.by, top.id).await.unwrap_err();
    assert_eq!(again, EngineError::conflict("Run is already finished"));
    let orphan = begin(&world, draft(&agent, None, Some(&top.id.to_string()))).await.unwrap_err();
    assert_eq!(orphan, EngineError::conflict("Parent is already finished"));
    let unknown = begin(&world, draft(&agent, None, Some("top"))).await.unwrap_err();
    assert_eq!(unknown, EngineError::not_found("Parent"));
    below.push(top.id);
    world.check(&below).await;
}

#[tokio::test]
async fn the_depth_of_a_tree_is_limited() {
    let world = world().await;
    let agent = world.agent("stub", |_| ()).await;
    let mut last = begin(&world, draft(&agent, Some("depth-1"), None)).await.unwrap();
    for n in 2..=16 {
        let name = format!("depth-{n}");
        last = begin(&world, draft(&agent, Some(&name), Some(&last.name))).await.unwrap();
    }
    let deeper = begin(&world, draft(&agent, None, Some(&last.name))).await.unwrap_err();
    assert!(
        matches!(deeper, EngineError::Invalid { ref field, .. } if field == "parent"),
        "{deeper}"
    );
}
