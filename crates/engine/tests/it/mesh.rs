//! The mesh: shared state, topics, letters, permissions, spawn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use overmind_core::acl::{OnMessage, Permissions, PermissionsFile, Verb};
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{Mesh, MeshAct, MeshError, MeshSpawn};
use overmind_core::row::{Role, SessionStatus};
use overmind_core::store::{Commit, EventQuery, NewEvent, StreamId};
use overmind_engine::{BoardWrite, Caller, EngineError, LetterDraft, MeshDoor, Rights};
use overmind_testkit::ports::{FakeModels, FakeTools, calls, says};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::world::World;

type Reply = Result<overmind_core::model::ModelReply, overmind_core::model::ModelFailure>;

fn ask(question: &str) -> Reply {
    calls(&[("ask_user", json!({"message": question}))])
}

async fn world(replies: impl IntoIterator<Item = Reply>) -> World {
    World::new(FakeTools::ok(), FakeModels::new(replies)).await
}

fn all() -> Permissions {
    let any = || vec!["**".to_owned()];
    Permissions {
        can_message: any(),
        can_publish: any(),
        can_subscribe: any(),
        blackboard_read: any(),
        blackboard_write: any(),
        allowed_apis: any(),
        models: any(),
        spawn: any(),
        on_message: OnMessage::Wake,
    }
}

async fn permit(world: &World, entries: &[(&str, Permissions)]) {
    let permissions: BTreeMap<String, Permissions> =
        entries.iter().map(|(name, own)| ((*name).to_owned(), own.clone())).collect();
    world
        .engine
        .permissions_loaded(PermissionsFile { permissions }, "test")
        .await
        .expect("the matrix is sound");
}

/// A named agent with a session that hangs in a tool, and the session's own caller.
async fn at_work(world: &World, name: &str) -> (SessionId, Caller) {
    let agent = world.agent("gpt-test", |draft| draft.name = name.to_owned()).await;
    let run = world.run(&agent, "work").await;
    world.until(run, &[SessionStatus::AwaitingInput, SessionStatus::Running]).await;
    (run, of(run))
}

fn of(session: SessionId) -> Caller {
    Caller::new(session.to_string(), Rights::Session { session, epoch: 1 })
}

fn value(value: Value) -> BoardWrite {
    BoardWrite { value, ..BoardWrite::default() }
}

async fn kinds(world: &World) -> Vec<String> {
    let query = EventQuery { stream: Some(StreamId::Mesh), after: 0, kinds: &[], limit: 10_000 };
    let events = world.store.events(query).await.expect("the log is read");
    events.into_iter().map(|event| event.kind.into()).collect()
}

#[tokio::test]
async fn keys_are_written_compared_and_deleted_with_one_event_per_change() {
    let world = world([]).await;
    let (engine, by) = (&world.engine, &world.by);
    let first = engine.board_put(by, None, "tasks/1", value(json!([1, 2]))).await.unwrap();
    assert_eq!((first.version, first.written_by.as_str()), (1, "admin"));
    let write = |version, n| BoardWrite { version: Some(version), ..value(json!(n)) };
    let second = engine.board_put(by, None, "tasks/1", write(1, 2)).await.unwrap();
    assert_eq!((second.version, second.created_at), (2, first.created_at));
    let stale = engine.board_put(by, None, "tasks/1", write(1, 3)).await.unwrap_err();
    let stood = |key: &str, wanted, found| {
        Conflict::new(ConflictKind::BoardKey, key, Stands::Version(wanted), found)
    };
    let what = stood("tasks/1", 1, Stands::Version(2));
    assert_eq!(stale, EngineError::conflict_of(what, "`tasks/1` stands at version 2, not 1"));
    let absent = engine.board_put(by, None, "tasks/2", write(3, 3)).await.unwrap_err();
    let what = stood("tasks/2", 3, Stands::Absent);
    let words = "`tasks/2` is not there, so not at version 3";
    assert_eq!(absent, EngineError::conflict_of(what, words));
    engine.board_put(by, None, "tasks/2", write(0, 3)).await.unwrap();
    assert!(engine.board_put(by, None, "tasks/2", write(0, 3)).await.is_err());
    assert_eq!(engine.board_get(by, None, "tasks/1").await.unwrap().value, json!(2));
    engine.board_delete(by, None, "tasks/1", Some(2)).await.unwrap();
    let gone = engine.board_get(by, None, "tasks/1").await.unwrap_err();
    assert_eq!(gone, EngineError::NotFound { message: "Key not found: tasks/1".into() });
    assert_eq!(
        kinds(&world).await,
        ["blackboard.put", "blackboard.put", "blackboard.put", "blackboard.deleted"]
    );
    let long = "x".repeat(300_000);
    let err = engine.board_put(by, None, "a", value(json!(long))).await.unwrap_err();
    assert!(matches!(err, EngineError::Invalid { .. }), "{err:?}");
    world.check(&[]).await;
}

#[tokio::test]
async fn versions_of_a_deleted_key_continue_and_never_repeat() {
    let world = world([]).await;
    let (engine, by) = (&world.engine, &world.by);
    let write = |version, n| BoardWrite { version: Some(version), ..value(json!(n)) };
    engine.board_put(by, None, "k", value(json!(1))).await.unwrap();
    engine.board_put(by, None, "k", value(json!(2))).await.unwrap();
    engine.board_delete(by, None, "k", Some(2)).await.unwrap();
    // Only if it does not exist, which is version 0.
    let again = engine.board_put(by, None, "k", write(0, 3)).await.unwrap();
    assert_eq!((again.version, &again.value), (3, &json!(3)));
    // A caller who read the earlier version 2 (or 1) of the key has not read this one.
    for stale in [1, 2] {
        let err = engine.board_put(by, None, "k", write(stale, 9)).await.unwrap_err();
        assert_eq!(err.to_string(), format!("`k` stands at version 3, not {stale}"));
        assert!(err.is_conflict_of(ConflictKind::BoardKey), "{err:?}");
    }
    // Nor across an expiry.
    let brief = BoardWrite { ttl: Some(1), ..write(3, 4) };
    assert_eq!(engine.board_put(by, None, "k", brief).await.unwrap().version, 4);
    let mut mesh = engine.mesh_watch();
    let swept = async {
        while !kinds(&world).await.contains(&"blackboard.expired".to_owned()) {
            let _ = mesh.changed().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), swept).await.expect("the sweep comes");
    assert_eq!(engine.board_put(by, None, "k", write(0, 5)).await.unwrap().version, 5);
    world.check(&[]).await;
}

#[tokio::test]
async fn the_history_of_a_key_requires_read_permission_and_reports_truncation() {
    let world = world([ask("which?")]).await;
    let (engine, by) = (&world.engine, &world.by);
    let own = Permissions { blackboard_read: vec!["tasks/*".into()], ..all() };
    permit(&world, &[("ann", own)]).await;
    let (session, ann) = at_work(&world, "ann").await;
    engine.board_put(&ann, None, "tasks/1", value(json!("first"))).await.unwrap();
    engine.board_put(by, None, "tasks/1", value(json!([1]))).await.unwrap();
    engine.board_put(by, None, "tasks/12", value(json!(0))).await.unwrap();
    engine.board_delete(by, None, "tasks/1", None).await.unwrap();
    let past = engine.board_history(&ann, Some("ann"), "tasks/1").await.unwrap();
    let words: Vec<_> = past
        .changes
        .iter()
        .map(|one| format!("{} {} {}", one.version, one.change, one.by.as_deref().unwrap_or("-")))
        .collect();
    assert_eq!(words, ["2 deleted admin", "2 put admin", "1 put ann"], "also of one that is gone");
    assert_eq!((past.changes[2].session, past.changes[2].bytes), (Some(session), Some(7)));
    assert!(!past.truncated);

    engine.board_put(by, None, "secret/1", value(json!(1))).await.unwrap();
    for (given, key) in [(None, "secret/1"), (Some("bob"), "tasks/1"), (None, "other")] {
        let refused = engine.board_history(&ann, given, key).await.unwrap_err();
        assert!(matches!(refused, EngineError::Forbidden { .. }), "{key}: {refused:?}");
    }
    let viewer = Caller::new("vera", Rights::Role(Role::Viewer));
    assert_eq!(engine.board_history(&viewer, None, "secret/1").await.unwrap().changes.len(), 1);
    let none = engine.board_history(by, None, "tasks/9").await.unwrap_err();
    assert_eq!(none.to_string(), "Key not found: tasks/9");
    let bad = engine.board_history(by, None, "a//b").await.unwrap_err();
    assert!(matches!(bad, EngineError::Invalid { .. }), "{bad:?}");

    join_all((0..101).map(|n| engine.board_put(by, None, "much", value(json!(n))))).await;
    let past = engine.board_history(by, None, "much").await.unwrap();
    let ends = (past.changes[0].version, past.changes.last().unwrap().version);
    assert_eq!((past.changes.len(), ends, past.truncated), (100, (101, 2), true));

    // Older changes may be hidden behind the events that were read, so the answer does not say that
    // there are none.
    let told = NewEvent {
        stream: StreamId::Mesh,
        kind: "letter.sent",
        ts: engine.now(),
        payload: json!({"key": "tasks/1"}),
    };
    let commit = Commit { events: vec![told; 4_999], ..Commit::default() };
    world.store.commit(commit).await.unwrap();
    assert_eq!(engine.board_history(by, None, "much").await.unwrap().changes.len(), 1);
    engine.board_put(by, None, "newest", value(json!(1))).await.unwrap();
    for (key, changes, truncated) in
        [("tasks/1", 0, true), ("tasks/9", 0, true), ("much", 0, true), ("newest", 1, false)]
    {
        let past = engine.board_history(by, None, key).await.unwrap();
        assert_eq!((past.changes.len(), past.truncated), (changes, truncated), "{key}");
    }
    engine.session_cancel(by, session).await.unwrap();
    world.check(&[session]).await;
}

#[tokio::test]
async fn history_is_written_once_and_never_changes() {
    let world = world([]).await;
    let (engine, by) = (&world.engine, &world.by);
    engine.board_put(by, None, "history/1", value(json!("a"))).await.unwrap();
    for (done, says) in [
        (
            engine.board_put(by, None, "history/1", value(json!("b"))).await.map(drop),
            "`history/1` is there, and history/ is written once: take a new key",
        ),
        (
            engine.board_delete(by, None, "history/1", None).await,
            "`history/1` stays: what is below history/ is never deleted",
        ),
        (
            engine
                .board_put(by, None, "history/2", BoardWrite { ttl: Some(5), ..value(json!(1)) })
                .await
                .map(drop),
            "what is below history/ stays; it takes no ttl",
        ),
    ] {
        assert_eq!(done.unwrap_err().to_string(), says);
    }
    assert_eq!(engine.board_get(by, None, "history/1").await.unwrap().value, json!("a"));
}

#[tokio::test]
async fn expired_keys_are_never_read_and_are_collected() {
    let world = world([]).await;
    let (engine, by) = (&world.engine, &world.by);
    let brief = BoardWrite { ttl: Some(1), ..value(json!(1)) };
    let entry = engine.board_put(by, None, "a/1", brief).await.unwrap();
    engine.board_put(by, None, "a/2", value(json!(2))).await.unwrap();
    let mut mesh = engine.mesh_watch();
    let wait = async {
        loop {
            mesh.borrow_and_update();
            if kinds(&world).await.contains(&"blackboard.expired".to_owned()) {
                return;
            }
            // However often it is read while it changes, it exists or not, and is never expired.
            let past = engine.now() >= entry.expires_at.unwrap();
            let found = engine.board_get(by, None, "a/1").await;
            assert!(!past || found.is_err(), "{found:?}");
            let _ = tokio::time::timeout(Duration::from_millis(100), mesh.changed()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the sweep comes");
    assert!(engine.board_get(by, None, "a/1").await.is_err());
    let found = engine.board_list(by, None, "a/", None, 10).await.unwrap();
    assert_eq!(found.entries.len(), 1);
    let row = world.store.board_list(entry.colony, "a/".into(), None, 10).await.unwrap();
    assert_eq!(row.len(), 1, "the row is gone, too");
}

#[tokio::test]
async fn one_of_several_writers_at_a_version_wins_and_no_version_is_lost() {
    let world = world([]).await;
    let mut won = 0_u64;
    for round in 0..20_u64 {
        let writers = (0..6).map(|n| {
            let version = Some(round).filter(|_| n < 4);
            let write = BoardWrite { version, ..value(json!({"round": round, "n": n})) };
            world.engine.board_put(&world.by, None, if n < 4 { "cas" } else { "free" }, write)
        });
        let results = join_all(writers).await;
        let (cas, free) = results.split_at(4);
        assert_eq!(cas.iter().filter(|done| done.is_ok()).count(), 1, "round {round}");
        assert!(free.iter().all(Result::is_ok));
        won += 1;
        let entry = world.engine.board_get(&world.by, None, "cas").await.unwrap();
        assert_eq!(entry.version, won);
        assert_eq!(cas.iter().flatten().next().unwrap().value, entry.value);
    }
    assert_eq!(world.engine.board_get(&world.by, None, "free").await.unwrap().version, 40);
    world.check(&[]).await;
}

#[tokio::test]
async fn a_token_identifies_its_agent_and_the_matrix_decides() {
    let world = world([ask("x?"), ask("y?")]).await;
    let (run, ann) = at_work(&world, "ann").await;
    let (engine, put) = (&world.engine, value(json!(1)));
    let denied = engine.board_put(&ann, None, "notes/a", put.clone()).await.unwrap_err();
    assert_eq!(
        denied.to_string(),
        "Agent ann cannot write notes/a (there is no entry `ann` and none `default`); ask for \
         `notes/a` in blackboard_write of `ann`: overmind acl allow 'ann' write 'notes/a'"
    );
    let own = Permissions {
        blackboard_write: vec!["notes/*".into()],
        blackboard_read: vec!["notes/*".into()],
        ..Permissions::default()
    };
    permit(&world, &[("ann", own.clone())]).await;
    let entry = engine.board_put(&ann, Some("ann"), "notes/a", put.clone()).await.unwrap();
    assert_eq!(entry.written_by, "ann");
    assert!(engine.board_put(&ann, None, "notes/a/b", put.clone()).await.is_err());
    // A caller with a false identity is refused, whatever the name.
    for other in ["bob", "mesh", "orchestrator", "admin"] {
        let err = engine.board_get(&ann, Some(other), "notes/a").await.unwrap_err();
        assert!(matches!(&err, EngineError::Forbidden { message } if message.contains("token")));
        assert!(engine.board_get(&world.by, Some("ann"), "notes/a").await.is_err());
    }
    engine.board_put(&world.by, None, "notes/b", put.clone()).await.unwrap();
    engine.board_put(&world.by, None, "other/b", put.clone()).await.unwrap();
    let found = engine.board_list(&ann, None, "no", None, 10).await.unwrap();
    assert_eq!(found.entries.len(), 2);
    assert!(engine.board_list(&ann, None, "other/", None, 10).await.is_err());
    // The entry of the API replaces the file's, at once.
    let version =
        engine.acl_put(&world.by, "ann", Some(Permissions::default()), Some(0)).await.unwrap();
    assert!(engine.board_get(&ann, None, "notes/a").await.is_err());
    assert!(engine.acl_put(&world.by, "ann", Some(own), Some(0)).await.is_err(), "it is at 1");
    engine.acl_put(&world.by, "ann", None, Some(version)).await.unwrap();
    assert!(engine.board_get(&ann, None, "notes/a").await.is_ok());
    let viewer = Caller::new("eve", Rights::Role(Role::Viewer));
    assert!(engine.board_get(&viewer, None, "notes/a").await.is_ok());
    assert!(engine.board_put(&viewer, None, "notes/a", put).await.is_err());
    let (name, verdict) = engine.acl_can(&ann, None, Verb::Read, "notes/x").await.unwrap();
    assert_eq!((name.as_str(), verdict.allowed), ("ann", true));
    let denials = kinds(&world).await.into_iter().filter(|kind| kind == "acl.denied").count();
    assert_eq!(denials, 4);
    world.engine.session_cancel(&world.by, run).await.unwrap();
}

#[tokio::test]
async fn messages_are_redelivered_with_the_same_id_until_acknowledged() {
    let dir = Arc::new(TempDir::new().unwrap());
    let world = World::at(Arc::clone(&dir), FakeTools::ok(), FakeModels::new([ask("x?")]), 8).await;
    let queue = Permissions { on_message: OnMessage::Queue, ..all() };
    permit(&world, &[("default", queue)]).await;
    let (_, ann) = at_work(&world, "ann").await;
    let bob = world.agent("gpt-test", |draft| draft.name = "bob".into()).await;
    let engine = &world.engine;
    engine.topic_subscribe(&world.by, Some("bob"), "news.*").await.unwrap();
    let draft = |n: i32| LetterDraft {
        to: "bob".into(),
        kind: "query".into(),
        payload: json!({"n": n}),
        ..LetterDraft::default()
    };
    let one = engine.letter_send(&ann, Some("ann"), draft(1)).await.unwrap();
    assert_eq!((one.from.as_str(), one.to.as_str()), ("ann", "bob"));
    let done = engine.topic_publish(&ann, None, "news.eu", json!({"a": 1})).await.unwrap();
    assert_eq!((done.notified, done.full.len()), (1, 0));
    assert_eq!(engine.topic_publish(&ann, None, "news.eu.de", json!(1)).await.unwrap().notified, 0);
    let read = engine.letters_receive(&world.by, Some("bob"), 10, Duration::ZERO).await.unwrap();
    let ids: Vec<_> = read.iter().map(|letter| letter.id).collect();
    assert_eq!(ids, [one.id, done.id.unwrap()]);
    assert_eq!((read[1].topic.as_deref(), read[1].mark.attempts), (Some("news.eu"), 1));
    let again = engine.letters_receive(&world.by, Some("bob"), 10, Duration::ZERO).await.unwrap();
    assert_eq!(again, [], "they are held");
    // A restart loses no message: returned messages are delivered once more, unchanged.
    engine.drain(Duration::from_secs(5)).await;
    drop(world);
    let world = World::at(dir, FakeTools::ok(), FakeModels::new([]), 8).await;
    let engine = &world.engine;
    let requeued = engine.letters_requeue(&world.by, Some(&bob), ids.clone()).await.unwrap();
    assert_eq!(requeued, ids);
    let read = engine.letters_receive(&world.by, Some("bob"), 10, Duration::ZERO).await.unwrap();
    assert_eq!(read.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids);
    assert_eq!(read[0].mark.attempts, 2);
    let gone = engine.letters_acknowledge(&world.by, Some("bob"), ids.clone()).await.unwrap();
    assert_eq!(gone, ids);
    assert_eq!(engine.letters_acknowledge(&world.by, Some("bob"), ids).await.unwrap(), []);
    assert_eq!(engine.letters_waiting(bob.parse().unwrap()), 0);
    assert_eq!(engine.topic_subscriptions(&world.by, None).await.unwrap().len(), 1);
    world.check(&[]).await;
}

#[tokio::test]
async fn a_waiting_reader_gets_a_message_at_once_and_a_full_mailbox_is_reported() {
    let world = world([]).await;
    let queue = Permissions { on_message: OnMessage::Queue, ..all() };
    permit(&world, &[("default", queue)]).await;
    world.agent("gpt-test", |draft| draft.name = "bob".into()).await;
    let engine = world.engine.clone();
    let draft = || LetterDraft { to: "bob".into(), kind: "query".into(), ..LetterDraft::default() };
    let reading = engine.letters_receive(&world.by, Some("bob"), 1, Duration::from_secs(20));
    let sending = async {
        // Once it waits, and not before.
        tokio::task::yield_now().await;
        engine.letter_send(&world.by, None, draft()).await.unwrap()
    };
    let (read, sent) = tokio::join!(reading, sending);
    assert_eq!(read.unwrap()[0].id, sent.id);
    let rest = (0..999).map(|_| engine.letter_send(&world.by, None, draft()));
    assert!(join_all(rest).await.iter().all(Result::is_ok));
    let full = engine.letter_send(&world.by, None, draft()).await.unwrap_err();
    assert_eq!(
        full.to_string(),
        "the mailbox of `bob` is full: 1000 letters wait in it; send again when it has read some"
    );
    engine.topic_subscribe(&world.by, Some("bob"), "**").await.unwrap();
    let done = engine.topic_publish(&world.by, None, "a", json!(1)).await.unwrap();
    assert_eq!((done.notified, done.full), (0, vec!["bob".to_owned()]));
}

#[tokio::test]
async fn a_message_wakes_a_waiting_session_and_starts_one_if_the_matrix_allows_it() {
    let world = world([ask("what now?"), says("done"), says("also done")]).await;
    let starts = Permissions { on_message: OnMessage::Start, ..all() };
    permit(&world, &[("ann", all()), ("carl", starts)]).await;
    let (run, _) = at_work(&world, "ann").await;
    world.until(run, &[SessionStatus::AwaitingInput]).await;
    let send = |to: &str| LetterDraft {
        to: to.to_owned(),
        kind: "query".into(),
        payload: json!({"text": "go on"}),
        ..LetterDraft::default()
    };
    let sent = world.engine.letter_send(&world.by, None, send("ann")).await.unwrap();
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
    let told = format!("{:?}", world.models.requests.lock().unwrap().last().unwrap().messages);
    assert!(
        told.contains(&format!("Message {} (query) from the agent `admin`", sent.id)),
        "{told}"
    );
    assert!(told.contains("go on"), "{told}");
    let carl = world.agent("gpt-test", |draft| draft.name = "carl".into()).await;
    world.engine.letter_send(&world.by, None, send("carl")).await.unwrap();
    let query = overmind_engine::request::SessionQuery {
        agent: Some(carl.parse().unwrap()),
        ..Default::default()
    };
    let mut log = world.engine.log_watch();
    let started = async {
        loop {
            log.borrow_and_update();
            let page = overmind_core::store::Page { limit: 9, after: None };
            let rows = world.engine.session_list(&world.by, query.clone(), page).await.unwrap();
            if let Some(row) = rows.first() {
                return row.clone();
            }
            log.changed().await.unwrap();
        }
    };
    let row = tokio::time::timeout(Duration::from_secs(20), started).await.expect("a session");
    assert!(row.task.contains("go on") && row.created_by == "postmaster", "{row:?}");
    world.ended(row.id).await;
    world.check(&[run, row.id]).await;
}

#[tokio::test]
async fn messages_wait_while_the_dispatcher_is_paused_and_are_delivered_by_a_pass() {
    let world = world([ask("what now?"), ask("and now?"), says("done")]).await;
    permit(&world, &[("ann", all())]).await;
    let (run, _) = at_work(&world, "ann").await;
    let row = world.until(run, &[SessionStatus::AwaitingInput]).await;
    let (engine, by) = (&world.engine, &world.by);
    let send = |text: &str| LetterDraft {
        to: "ann".into(),
        kind: "query".into(),
        payload: json!({"text": text}),
        ..LetterDraft::default()
    };
    assert!(engine.loop_pause(by, "dispatcher").await.unwrap().paused);
    // After a pass that may be in progress.
    engine.loop_run(by, "dispatcher").await.unwrap();
    engine.letter_send(by, None, send("one")).await.unwrap();
    assert_eq!(engine.letters_waiting(row.agent), 1);
    // A pass by hand delivers it, and the pause continues.
    let ran = engine.loop_run(by, "dispatcher").await.unwrap();
    assert!(ran.paused && ran.last.unwrap().result.is_ok());
    world.until_true("it is brought", || engine.letters_waiting(row.agent) == 0).await;
    world.until(run, &[SessionStatus::AwaitingInput]).await;
    engine.letter_send(by, None, send("two")).await.unwrap();
    assert_eq!(engine.letters_waiting(row.agent), 1);
    engine.loop_resume(by, "dispatcher").await.unwrap();
    assert_eq!(world.ended(run).await.status, SessionStatus::Succeeded);
}

#[tokio::test]
async fn a_child_belongs_to_its_parent_and_has_no_more_permissions() {
    let world = world(std::iter::repeat_with(|| ask("x?")).take(20)).await;
    let own = Permissions {
        blackboard_read: vec!["plans/**".into()],
        spawn: vec!["helper".into(), "wide".into()],
        ..Permissions::default()
    };
    permit(&world, &[("boss", own), ("wide", all())]).await;
    let (run, boss) = at_work(&world, "boss").await;
    world.agent("gpt-test", |draft| draft.name = "wide".into()).await;
    let (engine, by) = (&world.engine, &world.by);
    engine.board_put(by, None, "plans/a", value(json!(1))).await.unwrap();
    engine.board_put(by, None, "secret/a", value(json!(1))).await.unwrap();
    let wish = |role: &str, agent: Option<&str>| MeshSpawn {
        role: role.into(),
        agent: agent.map(str::to_owned),
        task: "help".into(),
        ..MeshSpawn::default()
    };
    let denied = engine.spawn(&boss, None, wish("thief", None)).await.unwrap_err();
    assert!(matches!(denied, EngineError::Forbidden { .. }), "{denied:?}");
    let child = engine.spawn(&boss, Some("boss"), wish("helper", None)).await.unwrap();
    assert_eq!((child.session.parent, child.spawned_by.as_str()), (Some(run), "boss"));
    assert!(child.agent.starts_with("spawn_"), "{}", child.agent);
    let helper = of(child.session.id);
    assert!(engine.board_get(&helper, None, "plans/a").await.is_ok(), "as its parent");
    assert!(engine.board_get(&helper, None, "secret/a").await.is_err());
    let wide = engine.spawn(&boss, None, wish("", Some("wide"))).await.unwrap();
    let wide = of(wide.session.id);
    assert!(engine.board_get(&wide, None, "plans/a").await.is_ok());
    let err = engine.board_get(&wide, None, "secret/a").await.unwrap_err();
    assert!(err.to_string().contains("a child may no more than its parents"), "{err}");
    for _ in 2..8 {
        engine.spawn(&boss, None, wish("helper", None)).await.unwrap();
    }
    let many = engine.spawn(&boss, None, wish("helper", None)).await.unwrap_err();
    assert!(many.to_string().starts_with("this run has 8 unfinished children"), "{many}");
    engine.session_cancel_all(by, run).await.unwrap();
}

#[tokio::test]
async fn tools_act_as_their_session_and_a_repeated_call_changes_nothing() {
    let world = world([ask("x?")]).await;
    permit(&world, &[("default", all())]).await;
    let (run, _) = at_work(&world, "ann").await;
    world.agent("gpt-test", |draft| draft.name = "bob".into()).await;
    let door = MeshDoor::default();
    let effect = |n| EffectId::from_u128(n);
    let write =
        || MeshAct::Write { key: "a".into(), value: json!({"n": 1}), ttl: None, version: None };
    // It waits for the engine.
    let (done, ()) = tokio::join!(door.act(run, effect(1), write()), async {
        door.open(world.engine.clone());
    });
    assert_eq!(done.unwrap(), json!({"key": "a", "written": true, "version": 1}));
    assert_eq!(door.act(run, effect(1), write()).await.unwrap()["version"], 1);
    assert_eq!(door.act(run, effect(2), write()).await.unwrap()["version"], 2);
    let send = || MeshAct::Send {
        to: "bob".into(),
        kind: "query".into(),
        payload: json!("x"),
        reply_to: None,
    };
    let first = door.act(run, effect(3), send()).await.unwrap();
    assert_eq!(door.act(run, effect(3), send()).await.unwrap(), first);
    let letters = world.engine.letters_list(&world.by, Some("bob"), false, 0, 9).await.unwrap();
    assert_eq!(letters.len(), 1);
    // Its own messages: the next call acknowledges those that this one has read.
    let draft = |n: i32| LetterDraft {
        to: "ann".into(),
        kind: "q".into(),
        payload: json!(n),
        ..Default::default()
    };
    let quiet = Permissions { on_message: OnMessage::Queue, ..all() };
    permit(&world, &[("default", quiet)]).await;
    world.engine.letter_send(&world.by, None, draft(1)).await.unwrap();
    let read = || MeshAct::Receive { limit: 9, wait_seconds: 0 };
    let one = door.act(run, effect(4), read()).await.unwrap();
    assert_eq!(one["count"], 1);
    assert_eq!(door.act(run, effect(4), read()).await.unwrap(), one, "done again after a crash");
    world.engine.letter_send(&world.by, None, draft(2)).await.unwrap();
    let two = door.act(run, effect(5), read()).await.unwrap();
    assert_eq!(two["messages"][0]["payload"], 2);
    let left = world.engine.letters_list(&world.by, Some("ann"), false, 0, 9).await.unwrap();
    assert_eq!(left.len(), 1, "the first is gone");
    door.close();
    let closed = door.act(run, effect(6), read()).await.unwrap_err();
    assert!(matches!(closed, MeshError::Unavailable(_)), "{closed:?}");
    world.engine.session_cancel(&world.by, run).await.unwrap();
    world.check(&[run]).await;
}
