//! Backups under load, and the way back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_core::store::{EventQuery, Store, StoreError, StreamId};
use overmind_store::{Options, Replace, Sqlite, restore};
use overmind_testkit::store_conformance::{at, one_event};
use serde_json::json;

use crate::open;

const ALL: EventQuery = EventQuery { stream: None, after: 0, kinds: &[], limit: 10_000 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_consistent_and_contains_all_earlier_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(dir.path()));
    for n in 0..200 {
        store.commit(one_event(StreamId::System, json!({ "n": n }))).await.unwrap();
    }
    store.checkpoint(at(1)).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        load.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let payload = json!({ "text": "x".repeat(2_000) });
                store.commit(one_event(StreamId::System, payload)).await.unwrap();
            }
        });
    }
    let to = dir.path().join("copy.db");
    let before = store.stats().await.unwrap().events;
    let bytes = store.backup(to.clone()).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    load.join_all().await;

    let found = to.metadata().unwrap();
    assert_eq!((found.len(), found.mode() & 0o7777), (bytes, 0o600));
    let err = store.backup(to.clone()).await.unwrap_err();
    assert!(matches!(err, StoreError::Conflict { .. }), "{err:?}");
    let err = store.backup(dir.path().join("no/where.db")).await.unwrap_err();
    assert!(matches!(err, StoreError::NotFound { .. }), "{err:?}");
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".part"))
        .collect();
    assert_eq!(left, [""; 0], "nothing half done is left");

    // The same key: the copy's checkpoints are ours.
    let mut options = Options::new(&to);
    options.key_path = Some(dir.path().join("checkpoint.key"));
    let copy = Sqlite::open(options).unwrap();
    let report = copy.audit().await.unwrap();
    assert_eq!(report.findings, []);
    assert!(report.events >= before, "{} < {before}", report.events);
    let last = store.stats().await.unwrap().events;
    assert!(report.events <= last);
}

#[tokio::test]
async fn a_restored_store_equals_the_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s.db"), dir.path().join("copy.db"));
    let store = open(dir.path());
    store.commit(one_event(StreamId::System, json!({ "n": 1 }))).await.unwrap();
    store.backup(copy.clone()).await.unwrap();
    store.commit(one_event(StreamId::System, json!({ "n": 2 }))).await.unwrap();

    // A running store is never replaced.
    for replace in [Replace::Never, Replace::KeepAside] {
        let err = restore(&copy, &path, replace).unwrap_err();
        assert!(matches!(err, StoreError::Locked { .. }), "{err:?}");
    }
    store.close().await.unwrap();
    let err = restore(&copy, &path, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::Conflict { .. }), "{err:?}");
    let aside = restore(&copy, &path, Replace::KeepAside).unwrap().unwrap();
    assert_eq!(aside, dir.path().join("s.db.old-1"));
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);

    let store = open(dir.path());
    assert_eq!(store.events(ALL).await.unwrap().len(), 1);
    assert_eq!(store.audit().await.unwrap().findings, []);
    let done = store.commit(one_event(StreamId::System, json!({ "n": 3 }))).await.unwrap();
    assert_eq!(done.global, 2);
    drop(store);
    let mut options = Options::new(&aside);
    options.key_path = Some(dir.path().join("checkpoint.key"));
    let old = Sqlite::open(options).unwrap();
    assert_eq!(old.events(ALL).await.unwrap().len(), 2, "the old store is whole");
    drop(old);

    // To an empty place, and a second time over the first.
    let fresh = dir.path().join("new/s.db");
    assert_eq!(restore(&copy, &fresh, Replace::Never).unwrap(), None);
    let again = restore(&copy, &path, Replace::KeepAside).unwrap().unwrap();
    assert_eq!(again, dir.path().join("s.db.old-2"));
}

#[tokio::test]
async fn a_killed_store_is_set_aside_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("s.db"), dir.path().join("copy.db"));
    let store = open(dir.path());
    store.backup(copy.clone()).await.unwrap();
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    // The state after a kill: the database, and a log that was not copied back.
    let killed = dir.path().join("killed");
    fs::create_dir(&killed).unwrap();
    for name in ["s.db", "s.db-wal"] {
        fs::copy(dir.path().join(name), killed.join(name)).unwrap();
    }
    fs::copy(dir.path().join("checkpoint.key"), killed.join("checkpoint.key")).unwrap();
    assert!(killed.join("s.db-wal").metadata().unwrap().len() > 0);
    drop(store);
    drop(path);
    let aside = restore(&copy, &killed.join("s.db"), Replace::KeepAside).unwrap().unwrap();
    let restored = open(&killed);
    assert_eq!(restored.events(ALL).await.unwrap(), []);
    let mut options = Options::new(aside);
    options.key_path = Some(killed.join("checkpoint.key"));
    let old = Sqlite::open(options).unwrap();
    assert_eq!(old.events(ALL).await.unwrap().len(), 1, "its log went with it");
}

#[test]
fn a_backup_that_is_no_regular_file_is_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (to, pipe, link) =
        (dir.path().join("to.db"), dir.path().join("pipe"), dir.path().join("link"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for from in [pipe, link, "/dev/zero".into(), dir.path().to_owned()] {
        let err = restore(&from, &to, Replace::Never).unwrap_err();
        assert!(err.to_string().contains("not a regular file"), "{}: {err}", from.display());
    }
    assert!(!to.exists());
}

#[tokio::test]
async fn a_damaged_or_newer_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..300 {
        let payload = json!({ "n": n, "text": "y".repeat(300) });
        store.commit(one_event(StreamId::System, payload)).await.unwrap();
    }
    let copy = dir.path().join("copy.db");
    store.backup(copy.clone()).await.unwrap();
    let to = dir.path().join("to.db");
    let pristine = fs::read(&copy).unwrap();

    let mut damaged = pristine.clone();
    let half = damaged.len() / 2;
    damaged[half..half + 4096].fill(0x5a);
    fs::write(&copy, damaged).unwrap();
    let err = restore(&copy, &to, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::Corrupt { .. }), "{err:?}");

    fs::write(&copy, &pristine[..pristine.len() / 2]).unwrap();
    let err = restore(&copy, &to, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::Corrupt { .. }), "{err:?}");

    fs::write(&copy, &pristine).unwrap();
    let conn = rusqlite::Connection::open(&copy).unwrap();
    conn.pragma_update(None, "user_version", 999).unwrap();
    drop(conn);
    let err = restore(&copy, &to, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::TooNew { .. }), "{err:?}");

    fs::write(&copy, "").unwrap();
    let err = restore(&copy, &to, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::Corrupt { .. }), "{err:?}");
    let err = restore(&dir.path().join("none.db"), &to, Replace::Never).unwrap_err();
    assert!(matches!(err, StoreError::NotFound { .. }), "{err:?}");
    assert!(!to.exists(), "a refused restore makes nothing");
}
