//! Artifacts: rows and bytes.

use overmind_core::artifact::{Artifact, ArtifactName, ArtifactSums};
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::row::SessionStatus;
use overmind_core::store::{Change, Commit, Page, Store, StoreError, StreamId};
use serde_json::json;

use super::{World, at, event, first, one_change, refused};

fn name(text: &str) -> ArtifactName {
    ArtifactName::parse(text).unwrap()
}

fn artifact(world: &World, session: SessionId, called: &str, content: &[u8]) -> Artifact {
    Artifact {
        colony: ColonyId::DEFAULT,
        session,
        name: name(called),
        version: 1,
        file: EffectId::mint(world.ids()),
        bytes: content.len() as u64,
        media_type: "text/plain; charset=utf-8".into(),
        // The store keeps the given value.
        hash: [u8::try_from(content.len()).unwrap(); 32],
        is_text: true,
        is_masked: false,
        author: "writer".into(),
        created_at: at(1),
        updated_at: at(2),
        place: 0,
    }
}

fn saved(row: &Artifact) -> Commit {
    Commit {
        guards: vec![],
        events: vec![event(StreamId::Session(row.session), json!({"name": row.name.as_str()}))],
        changes: vec![Change::ArtifactPut(Box::new(row.clone()))],
    }
}

async fn save(store: &dyn Store, row: &Artifact, content: &[u8]) -> Artifact {
    let hold = store.artifact_write(row.session, row.file, content.to_vec()).await.unwrap();
    let global = store.commit(saved(row)).await.unwrap().global;
    drop(hold);
    Artifact { place: global, ..row.clone() }
}

async fn read(store: &dyn Store, session: SessionId, file: EffectId) -> Option<Vec<u8>> {
    let content = store.artifact_open(session, file).await.unwrap()?;
    let most = usize::try_from(content.bytes()).unwrap() + 1;
    Some(content.read(0, most).await.unwrap())
}

pub(super) async fn artifacts_round_trip_and_are_replaced(store: &dyn Store, world: &World) {
    let session = world.session_id();
    let one = artifact(world, session, "out/a.txt", b"one");
    let one = save(store, &one, b"one").await;
    assert_eq!(store.artifact_fetch(session, name("out/a.txt")).await.unwrap(), Some(one.clone()));
    assert_eq!(store.artifact_fetch(session, name("out/b.txt")).await.unwrap(), None);
    let elsewhere = world.session_id();
    assert_eq!(store.artifact_fetch(elsewhere, name("out/a.txt")).await.unwrap(), None);
    let content = store.artifact_open(session, one.file).await.unwrap().unwrap();
    assert_eq!(content.bytes(), 3);
    assert_eq!(content.read(1, 1).await.unwrap(), b"n");
    assert_eq!(content.read(1, 99).await.unwrap(), b"ne");
    assert_eq!(content.read(3, 9).await.unwrap(), b"");
    assert_eq!(content.read(u64::MAX, 9).await.unwrap_or_default(), b"");

    let two = Artifact { version: 2, ..artifact(world, session, "out/a.txt", b"and two") };
    let two = save(store, &two, b"and two").await;
    assert_eq!(store.artifact_fetch(session, name("out/a.txt")).await.unwrap(), Some(two.clone()));
    let sums = store.artifact_sums(session).await.unwrap();
    assert_eq!(sums, ArtifactSums { count: 1, bytes: 7 });
    store.artifact_drop(session, two.file).await.unwrap();
    assert_eq!(read(store, session, two.file).await.as_deref(), Some(&b"and two"[..]), "named");
    store.artifact_drop(session, one.file).await.unwrap();
    assert_eq!(read(store, session, one.file).await, None);
    assert_eq!(content.read(0, 9).await.unwrap(), b"one", "what was opened stays readable");
    store.artifact_drop(session, one.file).await.unwrap();

    let gone = Change::ArtifactDelete { session, name: name("out/a.txt") };
    store.commit(one_change(gone.clone())).await.unwrap();
    store.commit(one_change(gone)).await.unwrap();
    assert_eq!(store.artifact_fetch(session, name("out/a.txt")).await.unwrap(), None);
    assert_eq!(store.artifact_sums(session).await.unwrap(), ArtifactSums::default());
}

pub(super) async fn artifacts_are_listed_as_they_were_saved(store: &dyn Store, world: &World) {
    let session = world.session_id();
    let mut rows = Vec::new();
    for called in ["a", "b", "c"] {
        let row = artifact(world, session, called, b"x");
        rows.insert(0, save(store, &row, b"x").await);
    }
    assert_eq!(store.artifact_list(session, first(9)).await.unwrap(), rows);
    let again = Artifact { version: 2, ..artifact(world, session, "a", b"yy") };
    let again = save(store, &again, b"yy").await;
    rows.pop();
    rows.insert(0, again);
    assert_eq!(store.artifact_list(session, first(2)).await.unwrap(), rows[..2]);
    let after = Page { limit: 2, after: Some(rows[1].place) };
    assert_eq!(store.artifact_list(session, after).await.unwrap(), rows[2..]);
    assert_eq!(store.artifact_list(world.session_id(), first(9)).await.unwrap(), []);
    let sums = store.artifact_sums(session).await.unwrap();
    assert_eq!(sums, ArtifactSums { count: 3, bytes: 4 });
}

pub(super) async fn names_that_differ_only_in_case_are_refused(store: &dyn Store, world: &World) {
    let session = world.session_id();
    save(store, &artifact(world, session, "Report.md", b"x"), b"x").await;
    refused(store.commit(saved(&artifact(world, session, "report.MD", b"x"))).await);
    assert_eq!(store.artifact_list(session, first(9)).await.unwrap().len(), 1);
    // Those of another session are independent.
    let elsewhere = artifact(world, world.session_id(), "report.MD", b"x");
    store.commit(saved(&elsewhere)).await.unwrap();
}

pub(super) async fn bytes_that_are_held_stay_until_the_hold_ends(store: &dyn Store, world: &World) {
    let (session, file) = (world.session_id(), EffectId::mint(world.ids()));
    let hold = store.artifact_write(session, file, b"held".to_vec()).await.unwrap();
    store.artifact_drop(session, file).await.unwrap();
    assert_eq!(read(store, session, file).await.as_deref(), Some(&b"held"[..]));
    drop(hold);
    // The same call done again writes the same place.
    let hold = store.artifact_write(session, file, b"again".to_vec()).await.unwrap();
    drop(hold);
    assert_eq!(read(store, session, file).await.as_deref(), Some(&b"again"[..]));
    store.artifact_drop(session, file).await.unwrap();
    assert_eq!(read(store, session, file).await, None);
}

pub(super) async fn retention_takes_artifacts_along(store: &dyn Store, world: &World) {
    let mut old = world.session();
    (old.status, old.finished_at) = (SessionStatus::Succeeded, Some(at(5)));
    let kept = world.session();
    for row in [&old, &kept] {
        store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
    }
    let gone = save(store, &artifact(world, old.id, "a", b"gone"), b"gone").await;
    let stays = save(store, &artifact(world, kept.id, "a", b"stays"), b"stays").await;
    assert_eq!(store.prune(at(10), at(11)).await.unwrap().sessions, 1);
    assert_eq!(store.artifact_list(old.id, first(9)).await.unwrap(), []);
    assert_eq!(read(store, old.id, gone.file).await, None);
    assert_eq!(store.artifact_list(kept.id, first(9)).await.unwrap(), std::slice::from_ref(&stays));
    assert_eq!(read(store, kept.id, stays.file).await.as_deref(), Some(&b"stays"[..]));
}

pub(super) async fn secrets_never_come_to_rest_in_artifacts(store: &dyn Store, world: &World) {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    let session = world.session_id();
    let named = artifact(world, session, &format!("{secret}.txt"), b"x");
    match store.commit(saved(&named)).await {
        Err(StoreError::Other { detail, .. }) => assert_eq!(detail, "its name holds a secret"),
        other => panic!("refused, not {other:?}"),
    }
    assert_eq!(store.artifact_list(session, first(9)).await.unwrap(), []);
    let typed = Artifact {
        media_type: format!("text/{secret}"),
        author: secret.into(),
        ..artifact(world, session, "a", b"x")
    };
    let typed = save(store, &typed, b"x").await;
    let row = store.artifact_fetch(session, typed.name).await.unwrap().unwrap();
    assert!(!format!("{row:?}").contains(secret), "{row:?}");
}
