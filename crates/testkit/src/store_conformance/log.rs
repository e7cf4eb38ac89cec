//! Events, guards, groups of commits.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{AgentId, ColonyId, SessionId};
use overmind_core::row::SessionStatus;
use overmind_core::store::{
    Change, Commit, EventQuery, Guard, LogEvent, Page, Store, StoreError, StreamId, chain_hash,
};
use serde_json::{Value, json};

use super::{World, at, event, first, of_stream, one_change, one_event, poll_once, refused};

pub(super) async fn events_get_places_without_gaps(store: &dyn Store, world: &World) {
    let (a, b) = (StreamId::Session(world.session_id()), StreamId::Session(world.session_id()));
    let commit = |streams: &[StreamId]| Commit {
        events: streams.iter().map(|stream| event(*stream, json!({}))).collect(),
        ..Commit::default()
    };
    let done = store.commit(commit(&[a, StreamId::System, a, b])).await.unwrap();
    assert_eq!(done.global, 4);
    assert_eq!(done.places, [(a, 1), (StreamId::System, 1), (a, 2), (b, 1)]);
    let done = store.commit(commit(&[b, a])).await.unwrap();
    assert_eq!((done.global, done.places), (6, vec![(b, 2), (a, 3)]));
    let nothing = store.commit(Commit::default()).await.unwrap();
    assert_eq!((nothing.global, nothing.places), (6, vec![]));
}

pub(super) async fn events_are_chained_by_the_ports_hash(store: &dyn Store, world: &World) {
    let stream = StreamId::Session(world.session_id());
    for n in 0..5 {
        let nested = json!({ "b": [1.5, null], "a": true });
        let payload = json!({ "n": n, "text": "ü \u{0} \" \\ 🐝", "nested": nested });
        store.commit(one_event(stream, payload)).await.unwrap();
        store.commit(one_event(StreamId::System, json!({ "n": n }))).await.unwrap();
    }
    for stream in [stream, StreamId::System] {
        let events = store.events(of_stream(stream, 0, 100)).await.unwrap();
        assert_eq!(events.len(), 5);
        let mut prev = [0; 32];
        for (n, event) in (1..).zip(&events) {
            assert_eq!((event.stream, event.seq), (stream, n));
            assert_eq!((&*event.kind, event.ts), ("test.done", at(1)));
            let hash = chain_hash(&prev, stream, event.seq, event.ts, &event.kind, &event.payload);
            assert_eq!(event.hash, hash);
            assert_eq!(event.value()["n"], json!(n - 1));
            prev = hash;
        }
    }
    let events = store.events(of_stream(stream, 0, 1)).await.unwrap();
    assert_eq!(events[0].value()["text"], json!("ü \u{0} \" \\ 🐝"));
}

pub(super) async fn events_are_read_in_parts(store: &dyn Store, world: &World) {
    let stream = StreamId::Session(world.session_id());
    for n in 0..20_u64 {
        let mut commit = one_event(stream, json!({ "n": n }));
        if n % 2 == 0 {
            commit.events[0].kind = "test.even";
        }
        commit.events.push(event(StreamId::System, json!({ "n": n })));
        store.commit(commit).await.unwrap();
    }
    let seqs =
        |events: Vec<LogEvent>| -> Vec<u64> { events.iter().map(|event| event.seq).collect() };
    let globals =
        |events: Vec<LogEvent>| -> Vec<u64> { events.iter().map(|event| event.global).collect() };
    let part = store.events(of_stream(stream, 7, 3)).await.unwrap();
    assert_eq!(seqs(part), [8, 9, 10]);
    let part = store.events(of_stream(stream, 20, 3)).await.unwrap();
    assert_eq!(seqs(part), [0; 0]);
    let all = EventQuery { stream: None, after: 0, kinds: &[], limit: 10_000 };
    assert_eq!(globals(store.events(all.clone()).await.unwrap()), (1..=40).collect::<Vec<_>>());
    let later = EventQuery { after: 38, ..all.clone() };
    assert_eq!(globals(store.events(later).await.unwrap()), [39, 40]);
    let even = EventQuery { kinds: &["test.even", "test.none"], limit: 4, ..all };
    let even = store.events(even).await.unwrap();
    assert!(even.iter().all(|event| &*event.kind == "test.even"));
    assert_eq!(seqs(even), [1, 3, 5, 7]);
    let none = EventQuery { kinds: &["test.none"], ..of_stream(stream, 0, 9) };
    assert_eq!(seqs(store.events(none).await.unwrap()), [0; 0]);

    let newest = store.events_newest(Some(stream), first(2)).await.unwrap();
    assert_eq!(seqs(newest), [20, 19]);
    let older = Page { limit: 3, after: Some(3) };
    assert_eq!(seqs(store.events_newest(Some(stream), older).await.unwrap()), [2, 1]);
    let newest = store.events_newest(None, Page { limit: 3, after: Some(40) }).await.unwrap();
    assert_eq!(globals(newest), [39, 38, 37]);
    // A limit of zero is taken as one: an empty page would look like the end.
    assert_eq!(seqs(store.events(of_stream(stream, 0, 0)).await.unwrap()), [1]);
}

pub(super) async fn many_writers_at_once_leave_no_gap(store: &dyn Store, world: &World) {
    let streams: Vec<_> = (0..16).map(|_| StreamId::Session(world.session_id())).collect();
    let writers = streams.iter().map(|stream| async move {
        for n in 0..25_u64 {
            let mut commit = one_event(*stream, json!({ "n": n }));
            commit.events.push(event(StreamId::System, json!({})));
            let done = store.commit(commit).await.unwrap();
            assert_eq!(done.places[0], (*stream, n + 1));
        }
    });
    join_all(writers).await;
    let all = EventQuery { stream: None, after: 0, kinds: &[], limit: 10_000 };
    let globals: Vec<u64> =
        store.events(all).await.unwrap().iter().map(|event| event.global).collect();
    assert_eq!(globals, (1..=16 * 25 * 2).collect::<Vec<_>>());
    for stream in streams.iter().chain([&StreamId::System]) {
        let events = store.events(of_stream(*stream, 0, 10_000)).await.unwrap();
        let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    }
}

pub(super) async fn a_refused_commit_leaves_no_trace(store: &dyn Store, world: &World) {
    let row = world.session();
    let stream = StreamId::Session(row.id);
    store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
    store.commit(one_event(stream, json!({}))).await.unwrap();
    // The last change fails; a new stream, a known stream and other changes come before it.
    let other = StreamId::Session(world.session_id());
    let refused_commit = Commit {
        guards: vec![],
        events: vec![event(stream, json!({})), event(other, json!({}))],
        changes: vec![
            Change::SettingPut { key: "k".into(), value: json!(1), at: at(1) },
            Change::MemoryInsert { item: Box::new(world.memory("c", "never")), key: None },
            Change::SessionInsert(Box::new(row.clone())),
        ],
    };
    // At once with others, so that it shares their transaction where there are groups.
    let (before, refusal, after) = tokio::join!(
        store.commit(one_event(other, json!({ "n": 1 }))),
        store.commit(refused_commit.clone()),
        store.commit(one_event(other, json!({ "n": 2 }))),
    );
    before.unwrap();
    refused(refusal);
    after.unwrap();
    refused(store.commit(refused_commit).await);
    assert_eq!(store.setting_fetch("k".into()).await.unwrap(), None);
    let memory = store.memory_list(super::within(None), first(10)).await.unwrap();
    assert_eq!(memory, []);
    assert_eq!(store.events(of_stream(stream, 0, 10)).await.unwrap().len(), 1);
    let done = store.commit(one_event(other, json!({ "n": 3 }))).await.unwrap();
    assert_eq!(done.places, [(other, 3)], "the refused one used no number");
    assert_eq!(done.global, 4);
}

pub(super) async fn guards_hold_or_refuse(store: &dyn Store, world: &World) {
    let mut row = world.session();
    row.epoch = 3;
    row.status = SessionStatus::Running;
    let agent = world.agent("a");
    store
        .commit(Commit {
            changes: vec![
                Change::SessionInsert(Box::new(row.clone())),
                Change::AgentPut(Box::new(agent.clone())),
            ],
            ..Commit::default()
        })
        .await
        .unwrap();
    let with =
        |guard: Guard| Commit { guards: vec![guard], ..one_event(StreamId::System, json!({})) };
    let epoch = |epoch| with(Guard::SessionEpoch { session: row.id, epoch });
    let ended = |epoch| with(Guard::SessionEnded { session: row.id, epoch });
    store.commit(epoch(3)).await.unwrap();
    refused(store.commit(ended(3)).await);
    // The type of a refusal names its subject.
    let about = async |commit: Commit| match store.commit(commit).await {
        Err(StoreError::Conflict { what, guard: Some(0) }) => *what,
        other => panic!("{other:?}"),
    };
    let stands = |session: SessionId, expected, found| Conflict {
        kind: ConflictKind::Session,
        name: session.to_string(),
        expected,
        found,
    };
    assert_eq!(about(epoch(2)).await, stands(row.id, Stands::Epoch(2), Stands::Epoch(3)));
    assert_eq!(about(epoch(4)).await, stands(row.id, Stands::Epoch(4), Stands::Epoch(3)));
    let stranger = world.session_id();
    let of_stranger = about(with(Guard::SessionEpoch { session: stranger, epoch: 3 })).await;
    assert_eq!(of_stranger, stands(stranger, Stands::Epoch(3), Stands::Absent));
    let of_stranger = about(with(Guard::SessionExists { session: stranger })).await;
    assert_eq!(of_stranger, stands(stranger, Stands::Present, Stands::Absent));
    store.commit(with(Guard::SessionExists { session: row.id })).await.unwrap();
    let version = |version| with(Guard::AgentVersion { agent: agent.id, version });
    store.commit(version(1)).await.unwrap();
    refused(store.commit(version(2)).await);
    refused(
        store
            .commit(with(Guard::AgentVersion { agent: AgentId::mint(world.ids()), version: 1 }))
            .await,
    );

    let free = |colony, name: &str| with(Guard::NameFree { colony, name: name.into() });
    let elsewhere = ColonyId::from_u128(7);
    let taken = about(free(row.colony, &row.name)).await;
    assert_eq!(taken, *Conflict::taken(ConflictKind::SessionName, &row.name));
    store.commit(free(row.colony, "another")).await.unwrap();
    store.commit(free(elsewhere, &row.name)).await.unwrap();

    row.status = SessionStatus::Canceled;
    store.commit(one_change(Change::SessionUpdate(Box::new(row.clone())))).await.unwrap();
    refused(store.commit(epoch(3)).await);
    let ended = |epoch| with(Guard::SessionEnded { session: row.id, epoch });
    store.commit(ended(3)).await.unwrap();
    refused(store.commit(ended(2)).await);
    store.commit(free(row.colony, &row.name)).await.unwrap();
    store.commit(with(Guard::SessionExists { session: row.id })).await.unwrap();
    // Guards alone are checked too, and write nothing.
    let alone = Commit {
        guards: vec![Guard::SessionEpoch { session: row.id, epoch: 3 }],
        ..Commit::default()
    };
    refused(store.commit(alone).await);
    let events = store.events(of_stream(StreamId::System, 0, 100)).await.unwrap();
    assert_eq!(events.len(), 8, "one for each guard that held");
}

pub(super) async fn guards_see_the_commits_before_them(store: &dyn Store, world: &World) {
    let mut row = world.session();
    row.status = SessionStatus::Running;
    store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
    // If many callers raise the same epoch at the same moment, exactly one wins.
    let raise = |by: u32| {
        let mut next = row.clone();
        next.epoch = 1;
        next.created_by = format!("racer {by}");
        Commit {
            guards: vec![Guard::SessionEpoch { session: row.id, epoch: 0 }],
            ..one_change(Change::SessionUpdate(Box::new(next)))
        }
    };
    let results = join_all((0..20).map(|by| store.commit(raise(by)))).await;
    let winners: Vec<usize> = (0..20).filter(|by| results[*by].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    let stored = store.session_fetch(row.id).await.unwrap().unwrap();
    assert_eq!(stored.created_by, format!("racer {}", winners[0]));
}

pub(super) async fn the_listener_hears_of_every_commit_with_events(
    store: &dyn Store,
    world: &World,
) {
    let heard: Arc<Mutex<Vec<(StreamId, u64)>>> = Arc::default();
    let replaced = Arc::clone(&heard);
    store.listen(Box::new(move |_| {
        replaced.lock().unwrap_or_else(PoisonError::into_inner).push((StreamId::System, 999));
    }));
    store.listen(Box::new({
        let heard = Arc::clone(&heard);
        move |places| heard.lock().unwrap_or_else(PoisonError::into_inner).extend(places)
    }));
    let stream = StreamId::Session(world.session_id());
    let mut commit = one_event(stream, json!({}));
    commit.events.push(event(StreamId::System, json!({})));
    store.commit(commit).await.unwrap();
    store.commit(Commit::default()).await.unwrap();
    refused(
        store
            .commit(Commit {
                guards: vec![Guard::SessionExists { session: world.session_id() }],
                ..one_event(stream, json!({}))
            })
            .await,
    );
    store.commit(one_event(stream, json!({}))).await.unwrap();
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(heard, [(stream, 1), (StreamId::System, 1), (stream, 2)]);
}

pub(super) async fn a_dropped_commit_is_whole_or_absent(store: &dyn Store, world: &World) {
    let stream = StreamId::Session(world.session_id());
    for n in 0..50_u64 {
        let key = format!("k{n}");
        let mut commit = one_event(stream, json!({ "n": n }));
        commit.changes.push(Change::SettingPut { key, value: json!(n), at: at(1) });
        let mut waiting = store.commit(commit);
        // Polled once or never, then dropped.
        if n % 2 == 0 {
            poll_once(&mut waiting).await;
        }
        drop(waiting);
    }
    // Everything queued before this is settled when this is.
    store.commit(one_event(stream, json!({ "n": 50 }))).await.unwrap();
    let events = store.events(of_stream(stream, 0, 100)).await.unwrap();
    let happened: Vec<Value> = events.iter().map(|event| event.value()["n"].clone()).collect();
    for n in 0..50_u64 {
        let setting = store.setting_fetch(format!("k{n}")).await.unwrap();
        assert_eq!(setting.is_some(), happened.contains(&json!(n)), "{n}");
    }
}
