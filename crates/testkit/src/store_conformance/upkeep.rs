//! Secrets, checkpoints, retention, counts, the end.

use overmind_core::ids::SessionId;
use overmind_core::row::SessionStatus;
use overmind_core::store::{
    Change, Commit, EventQuery, IdempotentAnswer, Store, StoreError, StreamId,
};
use serde_json::json;

use super::memory::{store_texts, words};
use super::{World, at, event, of_stream, one_change, one_event, poll_once};

pub(super) async fn secrets_never_come_to_rest(store: &dyn Store, world: &World) {
    // Put together here so that no scanner takes this file for a leak.
    let tail = "A1b2C3d4E5f6G7h8I9j0";
    let secret = format!("ghp_{tail}");
    let text = format!("push with {secret} please");
    let masked = text.replace(&secret, "[redacted:github-token]");
    let mut value = json!({ "keep": 1, "deep": [{ "text": text }] });
    let wanted = json!({ "keep": 1, "deep": [{ "text": masked }] });

    let mut session = world.session();
    session.task = text.clone();
    session.prompt = Some(text.clone());
    session.final_answer = Some(text.clone());
    session.error = Some(value.clone());
    let mut step = world.step(session.id, 0);
    step.input = value.clone();
    step.output = Some(value.clone());
    step.error = Some(text.clone());
    let mut item = world.memory("c", &text);
    item.metadata = value.clone();
    let mut agent = world.agent("a");
    agent.spec.role = text.clone();
    store
        .commit(Commit {
            guards: vec![],
            events: vec![event(StreamId::System, value.clone())],
            changes: vec![
                Change::SessionInsert(Box::new(session.clone())),
                Change::SessionUpdate(Box::new(session.clone())),
                Change::StepPut(Box::new(step.clone())),
                Change::MemoryInsert { item: Box::new(item.clone()), key: None },
                Change::AgentPut(Box::new(agent.clone())),
                Change::SettingPut { key: "s".into(), value: value.clone(), at: at(1) },
            ],
        })
        .await
        .unwrap();
    let events = store.events(of_stream(StreamId::System, 0, 1)).await.unwrap();
    assert_eq!(events[0].value(), wanted);
    let stored = store.session_fetch(session.id).await.unwrap().unwrap();
    assert_eq!(stored.task, masked);
    assert_eq!(stored.prompt.as_deref(), Some(&*masked));
    assert_eq!(stored.final_answer.as_deref(), Some(&*masked));
    assert_eq!(stored.error.as_ref(), Some(&wanted));
    let stored = store.step_fetch(step.id).await.unwrap().unwrap();
    assert_eq!((&stored.input, stored.output.as_ref()), (&wanted, Some(&wanted)));
    assert_eq!(stored.error.as_deref(), Some(&*masked));
    let stored = store.memory_fetch(item.id).await.unwrap().unwrap();
    assert_eq!((stored.text.as_str(), &stored.metadata), (&*masked, &wanted));
    assert_eq!(words(store, "c", &[&secret], 9).await, [""; 0]);
    let stored = store.agent_fetch(agent.id).await.unwrap().unwrap();
    assert_eq!(stored.spec.role, masked);
    assert_eq!(store.setting_fetch("s".into()).await.unwrap(), Some(wanted.clone()));
    // The same rule, for callers that show before they store.
    store.redact(&mut value);
    assert_eq!(value, wanted);
    store.redact(&mut value);
    assert_eq!(value, wanted, "twice is once");
}

pub(super) async fn checkpoints_cover_what_changed(store: &dyn Store, world: &World) {
    assert_eq!(store.checkpoint(at(1)).await.unwrap(), None, "an empty log has no heads");
    let stream = StreamId::Session(world.session_id());
    store.commit(one_event(stream, json!({}))).await.unwrap();
    let before = store.audit().await.unwrap();
    assert_eq!((before.events, before.checkpoints, before.unsigned_tail), (1, 0, 1));
    assert_eq!(store.checkpoint(at(2)).await.unwrap(), Some(1));
    assert_eq!(store.checkpoint(at(3)).await.unwrap(), None);
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    store.commit(one_event(stream, json!({}))).await.unwrap();
    assert_eq!(store.checkpoint(at(4)).await.unwrap(), Some(2));
    store.commit(one_event(stream, json!({}))).await.unwrap();
    let report = store.audit().await.unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.events, report.streams, report.checkpoints), (4, 2, 2));
    assert_eq!(report.unsigned_tail, 1);
    assert!(!report.key.is_empty());
    assert_eq!(store.stats().await.unwrap().last_checkpoint, Some(2));
}

/// Inserts a session that ended at `finished`, with a step and `events` events.
async fn ended_session(
    store: &dyn Store,
    world: &World,
    finished: i64,
    events: usize,
) -> SessionId {
    let mut row = world.session();
    row.status = SessionStatus::Succeeded;
    row.finished_at = Some(at(finished));
    let stream = StreamId::Session(row.id);
    let step = world.step(row.id, 0);
    let commit = Commit {
        guards: vec![],
        events: vec![event(stream, json!({})); events],
        changes: vec![
            Change::SessionInsert(Box::new(row.clone())),
            Change::StepPut(Box::new(step)),
        ],
    };
    store.commit(commit).await.unwrap();
    row.id
}

pub(super) async fn retention_removes_what_ended_and_explains_it(store: &dyn Store, world: &World) {
    let mut old = Vec::new();
    for n in 0..120 {
        old.push(ended_session(store, world, n, 3).await);
        // Others in between, so that the removed numbers are no single run.
        store.commit(one_event(StreamId::System, json!({ "n": n }))).await.unwrap();
    }
    store.checkpoint(at(500)).await.unwrap();
    let young = ended_session(store, world, 2_000, 2).await;
    let mut running = world.session();
    running.status = SessionStatus::Running;
    running.finished_at = Some(at(1));
    store.commit(one_change(Change::SessionInsert(Box::new(running.clone())))).await.unwrap();
    for (key, seen) in [("old", 5), ("new", 5_000)] {
        let answer = IdempotentAnswer { fingerprint: [0; 32], resource: key.into() };
        let (scope, key) = ("s".into(), key.into());
        let put = Change::IdempotencyPut { scope, key, answer, at: at(seen) };
        store.commit(one_change(put)).await.unwrap();
    }
    let before = store.stats().await.unwrap();

    let pruned = store.prune(at(1_000), at(3_000)).await.unwrap();
    assert_eq!((pruned.sessions, pruned.events, pruned.steps), (120, 360, 120));
    let again = store.prune(at(1_000), at(3_001)).await.unwrap();
    assert_eq!((again.sessions, again.events, again.steps), (0, 0, 0));
    for id in &old {
        assert_eq!(store.session_fetch(*id).await.unwrap(), None);
        assert_eq!(store.step_list(*id, None, 9).await.unwrap(), []);
        assert_eq!(store.events(of_stream(StreamId::Session(*id), 0, 9)).await.unwrap(), []);
    }
    assert!(store.session_fetch(young).await.unwrap().is_some());
    assert!(store.session_fetch(running.id).await.unwrap().is_some(), "it has not ended");
    let fetch = |key: &str| store.idempotency_fetch("s".into(), key.into());
    assert_eq!(fetch("old").await.unwrap(), None);
    assert!(fetch("new").await.unwrap().is_some());

    let records =
        EventQuery { kinds: &["retention.pruned"], ..of_stream(StreamId::System, 0, 999) };
    let records = store.events(records).await.unwrap();
    assert_eq!(records.len(), 120);
    assert_eq!(records[0].ts, at(3_000));
    assert_eq!(records[0].value()["stream"], json!(old[0].to_string()));
    assert_eq!(records[0].value()["events"], json!(3));
    let after = store.stats().await.unwrap();
    assert_eq!(after.events, before.events - 360 + 120);
    assert_eq!(store.audit().await.unwrap().findings, []);
    store.checkpoint(at(3_002)).await.unwrap();
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
}

pub(super) async fn one_session_is_removed_once_it_has_ended(store: &dyn Store, world: &World) {
    let young = ended_session(store, world, 2_000, 3).await;
    let other = ended_session(store, world, 2_000, 2).await;
    let mut running = world.session();
    running.status = SessionStatus::Running;
    store.commit(one_change(Change::SessionInsert(Box::new(running.clone())))).await.unwrap();
    assert_eq!(store.session_remove(running.id, at(3_000)).await.unwrap(), None);
    assert_eq!(store.session_remove(world.session().id, at(3_000)).await.unwrap(), None);
    let removed = store.session_remove(young, at(3_000)).await.unwrap().unwrap();
    assert_eq!((removed.sessions, removed.events, removed.steps), (1, 3, 1));
    assert_eq!(store.session_remove(young, at(3_001)).await.unwrap(), None, "it is gone");
    assert_eq!(store.session_fetch(young).await.unwrap(), None);
    assert_eq!(store.events(of_stream(StreamId::Session(young), 0, 9)).await.unwrap(), []);
    assert!(store.session_fetch(other).await.unwrap().is_some());
    assert!(store.session_fetch(running.id).await.unwrap().is_some());
    let records = EventQuery { kinds: &["retention.pruned"], ..of_stream(StreamId::System, 0, 9) };
    let records = store.events(records).await.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].value()["stream"], json!(young.to_string()));
    assert_eq!(store.audit().await.unwrap().findings, []);
}

pub(super) async fn counts_follow_the_changes(store: &dyn Store, world: &World) {
    let empty = store.stats().await.unwrap();
    assert_eq!((empty.events, empty.streams, empty.agents, empty.memory_items), (0, 0, 0, 0));
    assert_eq!(empty.last_checkpoint, None);
    for n in 0..3 {
        let mut row = world.session();
        if n == 0 {
            row.status = SessionStatus::Failed;
        }
        let mut commit = one_event(StreamId::Session(row.id), json!({}));
        commit.changes.push(Change::SessionInsert(Box::new(row)));
        store.commit(commit).await.unwrap();
    }
    store.commit(one_change(Change::AgentPut(Box::new(world.agent("a"))))).await.unwrap();
    store_texts(store, world, "c", &["one", "two"]).await;
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.events, stats.streams, stats.agents, stats.memory_items), (3, 3, 1, 2));
    let count = |status| {
        stats.sessions_by_status.iter().find(|(known, _)| *known == status).map(|(_, n)| *n)
    };
    assert_eq!(count(SessionStatus::Queued), Some(2));
    assert_eq!(count(SessionStatus::Failed), Some(1));
    assert_eq!(count(SessionStatus::Running), Some(0));
    assert!(stats.bytes > 0 && stats.schema > 0 && !stats.location.is_empty());
}

pub(super) async fn a_closed_store_says_so(store: &dyn Store, world: &World) {
    let stream = StreamId::Session(world.session_id());
    // Accepted work is completed.
    let mut accepted = store.commit(one_event(stream, json!({})));
    let done = poll_once(&mut accepted).await;
    store.close().await.unwrap();
    if !done {
        accepted.await.unwrap();
    }
    let closed = |err: StoreError| assert!(matches!(err, StoreError::Closed { .. }), "{err:?}");
    closed(store.commit(one_event(stream, json!({}))).await.unwrap_err());
    closed(store.session_fetch(world.session_id()).await.unwrap_err());
    closed(store.events(of_stream(stream, 0, 9)).await.unwrap_err());
    closed(store.stats().await.unwrap_err());
    closed(store.audit().await.unwrap_err());
    closed(store.checkpoint(at(1)).await.unwrap_err());
    closed(store.prune(at(1), at(1)).await.unwrap_err());
    closed(store.backup("/nowhere/x".into()).await.unwrap_err());
    closed(store.close().await.unwrap_err());
}
