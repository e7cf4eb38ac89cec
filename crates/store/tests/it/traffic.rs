//! Much at once: groups, readers beside a writer, a log that starts over, hostile words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overmind_core::ids::ColonyId;
use overmind_core::store::{Change, Commit, MemoryScope, Store, StoreError, StreamId};
use overmind_store::{Options, Sqlite};
use overmind_testkit::soak;
use overmind_testkit::store_conformance::{World, at, one_change, one_event};
use proptest::prelude::*;
use serde_json::json;

use crate::open;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_only_whole_commits_of_concurrent_writers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    let world = World::default();
    let row = world.session();
    store.commit(one_change(Change::SessionInsert(Box::new(row.clone())))).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, stop, id) = (Arc::clone(&store), Arc::clone(&stop), row.id);
        readers.spawn(async move {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                // The row first: the log may only be ahead of it, never behind.
                let row = store.session_fetch(id).await.unwrap().unwrap();
                let stream = StreamId::Session(id);
                let newest = store
                    .events_newest(
                        Some(stream),
                        overmind_core::store::Page { limit: 1, after: None },
                    )
                    .await
                    .unwrap();
                let seq = newest.first().map_or(0, |event| event.seq);
                assert!(seq >= u64::from(row.steps), "{seq} < {}", row.steps);
                assert!(u64::from(row.steps) >= last, "went back");
                last = u64::from(row.steps);
            }
            last
        });
    }
    for n in 1..=300 {
        let mut next = row.clone();
        next.steps = n;
        let mut commit = one_event(StreamId::Session(row.id), json!({ "n": n }));
        commit.changes.push(Change::SessionUpdate(Box::new(next)));
        store.commit(commit).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for last in readers.join_all().await {
        assert!(last > 0, "a reader never saw anything");
    }
}

#[tokio::test]
async fn the_write_ahead_log_restarts_during_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let wal = dir.path().join("s.db-wal");
    let mut largest = 0;
    let world = World::default();
    // 120 MB in all; the log is to be copied back from 16 MB on.
    for _ in 0..120 {
        let mut item = world.memory("c", "large");
        item.embedding = vec![0.5; (1 << 20) / 4];
        let item = Box::new(item);
        store.commit(one_change(Change::MemoryInsert { item, key: None })).await.unwrap();
        largest = largest.max(wal.metadata().unwrap().len());
    }
    assert!(largest > 16 << 20, "the log never reached its bound: {largest}");
    assert!(largest < 72 << 20, "the log did not start over: {largest}");
    store.close().await.unwrap();
    assert_eq!(wal.metadata().map_or(0, |found| found.len()), 0, "closing empties the log");
}

#[tokio::test]
async fn checkpoints_are_signed_automatically() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path().join("s.db"));
    options.checkpoint_every = 10;
    let store = Sqlite::open(options).unwrap();
    let world = World::default();
    for n in 0..35 {
        store
            .commit(one_event(StreamId::Session(world.session_id()), json!({ "n": n })))
            .await
            .unwrap();
    }
    let report = store.audit().await.unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.checkpoints, report.unsigned_tail), (3, 5));
    drop(store);
    // After a restart it continues there, and the last five were signed at the end.
    let store = open(dir.path());
    let report = store.audit().await.unwrap();
    assert_eq!((report.checkpoints, report.unsigned_tail), (4, 0));
    assert_eq!(store.checkpoint(at(1)).await.unwrap(), None);
}

#[tokio::test]
async fn unsigned_events_are_remembered_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let world = World::default();
    for _ in 0..3 {
        store.commit(one_event(StreamId::Session(world.session_id()), json!({}))).await.unwrap();
    }
    // The state after a kill.
    let killed = dir.path().join("killed");
    std::fs::create_dir(&killed).unwrap();
    for name in ["s.db", "s.db-wal", "checkpoint.key"] {
        std::fs::copy(dir.path().join(name), killed.join(name)).unwrap();
    }
    let copy = open(&killed);
    assert_eq!(copy.audit().await.unwrap().unsigned_tail, 3);
    assert_eq!(copy.checkpoint(at(1)).await.unwrap(), Some(1));
    let report = copy.audit().await.unwrap();
    assert_eq!((report.findings, report.unsigned_tail), (vec![], 0));
}

#[tokio::test]
async fn a_panicking_listener_does_not_stop_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let heard = Arc::new(AtomicU64::new(0));
    store.listen(Box::new({
        let heard = Arc::clone(&heard);
        move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
            panic!("the listener's own mistake");
        }
    }));
    for _ in 0..3 {
        store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    }
    assert_eq!(heard.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn the_last_handle_can_be_dropped_on_any_thread() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    // On the writer's own thread, by a listener that holds the store.
    let held = std::sync::Mutex::new(Some(Arc::clone(&store)));
    let (told, hears) = tokio::sync::oneshot::channel();
    let told = std::sync::Mutex::new(Some(told));
    let released = Arc::new(std::sync::Barrier::new(2));
    let until = Arc::clone(&released);
    store.listen(Box::new(move |_| {
        until.wait();
        drop(held.lock().unwrap().take());
        if let Some(told) = told.lock().unwrap().take() {
            told.send(()).unwrap();
        }
    }));
    let mut waiting = store.commit(one_event(StreamId::System, json!({})));
    std::future::poll_fn(|cx| {
        let _ = waiting.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
    drop(waiting);
    drop(store);
    released.wait();
    hears.await.unwrap();
    // The writer ends and releases the lock; nothing else has to be waited for.
    let path = dir.path().join("s.db");
    let reopened = loop {
        match Sqlite::open(Options::new(&path)) {
            Ok(store) => break store,
            Err(StoreError::Locked { .. }) => tokio::task::yield_now().await,
            Err(err) => panic!("{err}"),
        }
    };
    assert_eq!(reopened.stats().await.unwrap().events, 1);
}

#[tokio::test]
async fn commits_larger_than_the_queue_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let world = World::default();
    let mut item = world.memory("c", "very large");
    item.embedding = vec![0.5; (72 << 20) / 4];
    let mut large = one_event(StreamId::System, json!({}));
    large.changes.push(Change::MemoryInsert { item: Box::new(item.clone()), key: None });
    let (large, small) =
        tokio::join!(store.commit(large), store.commit(one_event(StreamId::System, json!({}))));
    assert_eq!(large.unwrap().global.max(small.unwrap().global), 2);
    let found = store.memory_fetch(item.id).await.unwrap().unwrap();
    assert_eq!(found.embedding.len(), item.embedding.len());
}

#[tokio::test]
async fn the_size_of_a_page_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let world = World::default();
    let changes = (0..1_100).map(|_| Change::SessionInsert(Box::new(world.session()))).collect();
    store.commit(Commit { changes, ..Commit::default() }).await.unwrap();
    let page = overmind_core::store::Page { limit: u32::MAX, after: None };
    let list = store.session_list(overmind_core::store::SessionFilter::default(), page);
    assert_eq!(list.await.unwrap().len(), 1_000);
}

/// Terms of any characters, and pieces of FTS5's own language.
fn terms() -> impl Strategy<Value = Vec<String>> {
    let piece = prop_oneof![
        any::<String>(),
        proptest::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter),
        proptest::sample::select(vec![
            "\"", "\u{0}", "*", "(", ")", " AND ", " OR ", " NOT ", "NEAR(", ":", "text", "scope",
            "c1", "^", "+", "-", "{", "}", ",", "'", ";", "--", "\\", "bees",
        ])
        .prop_map(str::to_owned),
    ];
    let term = proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat());
    proptest::collection::vec(term, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak::count(100, 2000)))]

    #[test]
    fn no_search_term_is_parsed_as_syntax(terms in terms()) {
        static BUILT: std::sync::OnceLock<(tempfile::TempDir, Sqlite, tokio::runtime::Runtime)> =
            std::sync::OnceLock::new();
        let (_, store, runtime) = BUILT.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let world = World::default();
            let closed = "bees bees bees and or not near text scope";
            for (collection, text) in [("open", "bees dance"), ("closed", closed)] {
                let item = Box::new(world.memory(collection, text));
                let insert = one_change(Change::MemoryInsert { item, key: None });
                runtime.block_on(store.commit(insert)).unwrap();
            }
            (dir, store, runtime)
        });
        let scope = MemoryScope::new(ColonyId::DEFAULT, Some("open".into()), at(9));
        let found = runtime
            .block_on(store.memory_match(scope, terms.clone(), 10))
            .unwrap();
        // Whatever the terms are, only this collection's item can be found, and only by a word.
        prop_assert!(found.len() <= 1);
        for hit in &found {
            prop_assert_eq!(&hit.item.collection, "open");
            let words: String = terms.join(" ").to_lowercase();
            prop_assert!(words.contains("bees") || words.contains("dance"), "{:?}", terms);
        }
    }
}
