//! Guards about what is in a colony.

use futures_util::future::join_all;
use overmind_core::agent::AgentStatus;
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::ColonyId;
use overmind_core::row::SessionStatus;
use overmind_core::store::{Change, Commit, Guard, Store, StoreError};

use super::{World, one_change};

const A: ColonyId = ColonyId::from_u128(0xA);
const B: ColonyId = ColonyId::from_u128(0xB);

fn start(world: &World, colony: ColonyId, most: u32) -> Commit {
    let mut row = world.session();
    row.colony = colony;
    Commit {
        guards: vec![Guard::ColonyHasRoom { colony, most }],
        ..one_change(Change::SessionInsert(Box::new(row)))
    }
}

fn conflict(refused: Result<impl std::fmt::Debug, StoreError>) -> Conflict {
    match refused {
        Err(StoreError::Conflict { what, .. }) => *what,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn starts_at_the_same_time_keep_the_quota(store: &dyn Store, world: &World) {
    let results = join_all((0..12).map(|_| store.commit(start(world, A, 3)))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3, "{results:?}");
    let expected = Conflict {
        kind: ConflictKind::Quota,
        name: A.to_string(),
        expected: Stands::AtMost(3),
        found: Stands::Present,
    };
    for refused in results.into_iter().filter(Result::is_err) {
        assert_eq!(conflict(refused), expected);
    }
    // Sessions of other colonies, and those that have ended, do not count.
    store.commit(start(world, B, 1)).await.unwrap();
    conflict(store.commit(start(world, B, 1)).await);
    let mut ended = world.session();
    ended.colony = B;
    ended.status = SessionStatus::Succeeded;
    store.commit(one_change(Change::SessionInsert(Box::new(ended)))).await.unwrap();
    store.commit(start(world, B, 2)).await.unwrap();
}

pub(super) async fn a_colony_with_anything_in_it_is_not_empty(store: &dyn Store, world: &World) {
    let empty =
        |colony| Commit { guards: vec![Guard::ColonyEmpty { colony }], ..Commit::default() };
    store.commit(empty(A)).await.unwrap();
    let mut agent = world.agent("coder");
    agent.colony = A;
    store.commit(one_change(Change::AgentPut(Box::new(agent.clone())))).await.unwrap();
    let there = |what: &str| Conflict {
        kind: ConflictKind::Colony,
        name: what.to_owned(),
        expected: Stands::Absent,
        found: Stands::Present,
    };
    assert_eq!(conflict(store.commit(empty(A)).await), there("an agent"));
    store.commit(empty(B)).await.unwrap();
    agent.status = AgentStatus::Removed;
    agent.version += 1;
    store.commit(one_change(Change::AgentPut(Box::new(agent)))).await.unwrap();
    store.commit(empty(A)).await.unwrap();
    let mut row = world.session();
    row.colony = A;
    row.status = SessionStatus::Succeeded;
    store.commit(one_change(Change::SessionInsert(Box::new(row)))).await.unwrap();
    assert_eq!(conflict(store.commit(empty(A)).await), there("a run"), "also one that has ended");
}
