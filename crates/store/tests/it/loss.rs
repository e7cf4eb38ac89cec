//! What was acknowledged and is gone: the write-ahead log damaged, cut off or removed, an older
//! copy put in the database's place. None of it may pass for a store that is whole.

use std::fs;
use std::path::{Path, PathBuf};

use overmind_core::store::{AuditFinding, EventQuery, Store, StoreError, StreamId};
use overmind_store::{OnLoss, Options, Replace, Sqlite, restore};
use overmind_testkit::store_conformance::{World, at, one_event};
use serde_json::json;

use crate::open;

const ALL: EventQuery = EventQuery { stream: None, after: 0, kinds: &[], limit: 10_000 };
/// Events of the store that [`killed`] leaves: as many in each of two streams.
const EVENTS: u64 = 40;

/// A store after a kill: all of its events in the write-ahead log.
async fn killed(dir: &Path) -> PathBuf {
    let live = dir.join("live");
    fs::create_dir(&live).unwrap();
    let store = open(&live);
    let session = StreamId::Session(World::default().session_id());
    for n in 0..EVENTS / 2 {
        for stream in [session, StreamId::System] {
            store.commit(one_event(stream, json!({ "n": n }))).await.unwrap();
        }
    }
    store.backup(dir.join("backup.db")).await.unwrap();
    let killed = dir.join("killed");
    fs::create_dir(&killed).unwrap();
    for entry in fs::read_dir(&live).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), killed.join(entry.file_name())).unwrap();
    }
    killed.join("s.db")
}

fn with(path: &Path, on_loss: OnLoss) -> Result<Sqlite, StoreError> {
    let mut options = Options::new(path);
    options.on_loss = on_loss;
    Sqlite::open(options)
}

fn log(path: &Path) -> PathBuf {
    path.with_file_name("s.db-wal")
}

/// Flips a bit in the middle of the log.
fn flip(path: &Path) {
    let mut bytes = fs::read(log(path)).unwrap();
    let half = bytes.len() / 2;
    bytes[half] ^= 0x10;
    fs::write(log(path), bytes).unwrap();
}

fn cut(path: &Path) {
    let file = fs::File::options().write(true).open(log(path)).unwrap();
    file.set_len(file.metadata().unwrap().len() / 3).unwrap();
}

fn remove(path: &Path) {
    fs::remove_file(log(path)).unwrap();
}

/// All at once, as after a power cut with a disk that acknowledges too early.
fn zero(path: &Path) {
    let len = log(path).metadata().unwrap().len();
    fs::write(log(path), vec![0; usize::try_from(len).unwrap()]).unwrap();
}

fn remove_all(path: &Path) {
    remove(path);
    fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn lost_acknowledged_events_are_refused_reported_and_accepted_only_explicitly() {
    let whole: &[fn(&Path)] = &[flip, cut, remove, zero, remove_all];
    for (which, damage) in whole.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = killed(dir.path()).await;
        damage(&path);
        let bytes = || [&path, &log(&path)].map(|file| fs::read(file).unwrap_or_default());
        let before = bytes();
        let err = Sqlite::open(Options::new(&path)).unwrap_err();
        assert!(matches!(err, StoreError::Lost { .. }), "{which}: {err:?}");
        assert!(!err.is_transient());
        let text = err.to_string();
        assert!(text.contains("acknowledged events since 2026-01-01T"), "{which}: {text}");
        assert!(text.contains("system ends at ") && text.contains("of 20"), "{which}: {text}");
        // The damaged files are kept unchanged for an investigation.
        assert!(bytes() == before, "{which}: the files were changed");

        // It can be opened for reading, unless nothing is left. Nothing is added to it.
        match with(&path, OnLoss::ReadOnly) {
            Ok(store) => {
                let found = store.audit().await.unwrap().findings;
                let lost =
                    |one: &AuditFinding| matches!(one, AuditFinding::Lost { promised: 20, .. });
                assert!(found.len() == 2 && found.iter().all(lost), "{which}: {found:?}");
                let more = store.commit(one_event(StreamId::System, json!({}))).await;
                assert!(matches!(more, Err(StoreError::Lost { .. })), "{which}: {more:?}");
                store.close().await.unwrap_err();
            }
            Err(err) => {
                assert!(matches!(err, StoreError::Lost { .. }), "{which}: {err:?}");
                assert!(text.contains("40 acknowledged events since"), "{which}: {text}");
            }
        }
        let err = Sqlite::open(Options::new(&path)).unwrap_err();
        assert_eq!(err.to_string(), text, "{which}: looking changed what is said");

        let store = with(&path, OnLoss::Accept { now: at(77) }).unwrap();
        let events = store.events(ALL).await.unwrap();
        let said = events.last().unwrap();
        assert_eq!((&*said.kind, said.ts), ("store.loss_accepted", at(77)));
        let lost: serde_json::Value = serde_json::from_str(&said.payload).unwrap();
        assert_eq!(lost["events"], EVENTS + 1 - events.len() as u64, "{which}: {lost}");
        assert_eq!(lost["streams"].as_array().unwrap().len(), 2, "{which}: {lost}");
        assert_eq!(store.audit().await.unwrap().findings, [], "{which}");
        store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
        drop(store);
        // From here on it is a store like any other.
        assert_eq!(open(path.parent().unwrap()).audit().await.unwrap().findings, [], "{which}");
    }
}

#[tokio::test]
async fn killed_closed_pruned_and_restored_stores_have_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path()).await;
    let home = path.parent().unwrap();
    for _ in 0..2 {
        let store = open(home);
        assert_eq!(store.events(ALL).await.unwrap().len() as u64, EVENTS);
        assert_eq!(store.audit().await.unwrap().findings, []);
    }
    // An empty log is the result of a normal close.
    remove_if_there(&log(&path));
    let world = World::default();
    let store = open(home);
    let mut ended = world.session();
    ended.status = overmind_core::row::SessionStatus::Succeeded;
    ended.finished_at = Some(at(1));
    let mut commit = one_event(StreamId::Session(ended.id), json!({}));
    commit.changes.push(overmind_core::store::Change::SessionInsert(Box::new(ended)));
    store.commit(commit).await.unwrap();
    assert_eq!(store.prune(at(10), at(11)).await.unwrap().sessions, 1);
    assert_eq!(store.audit().await.unwrap().findings, []);
    drop(store);
    drop(open(home));

    // An older copy in its place is a loss, unless it was put there by `restore`.
    let old = fs::read(dir.path().join("backup.db")).unwrap();
    fs::write(&path, old).unwrap();
    let err = Sqlite::open(Options::new(&path)).unwrap_err();
    assert!(err.to_string().contains("an older copy was put in its place"), "{err}");
    restore(&dir.path().join("backup.db"), &path, Replace::KeepAside).unwrap().unwrap();
    assert_eq!(open(home).audit().await.unwrap().findings, []);
    // The same if the database was missing, and only the files beside it were left.
    drop(open(home).commit(one_event(StreamId::System, json!({}))).await.unwrap());
    fs::remove_file(&path).unwrap();
    restore(&dir.path().join("backup.db"), &path, Replace::Never).unwrap().unwrap();
    assert_eq!(open(home).audit().await.unwrap().findings, []);
}

fn remove_if_there(path: &Path) {
    if path.exists() {
        assert_eq!(path.metadata().unwrap().len(), 0);
        fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn a_removed_write_ahead_log_is_detected_and_saved_at_close() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    assert_eq!(store.trouble(), None);
    fs::remove_file(dir.path().join("s.db-wal")).unwrap();
    let trouble = store.trouble().unwrap();
    assert!(trouble.contains("s.db-wal was removed") && trouble.contains("`overmind down`"));
    store.close().await.unwrap();
    assert_eq!(open(dir.path()).events(ALL).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_damaged_or_foreign_witness_raises_no_false_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let path = killed(dir.path()).await;
    let witness = path.with_file_name("s.db.witness");
    let pristine = fs::read(&witness).unwrap();
    let (database, wal) = (fs::read(&path).unwrap(), fs::read(log(&path)).unwrap());
    let put_back = |damaged: &[u8]| {
        fs::write(&path, &database).unwrap();
        fs::write(log(&path), &wal).unwrap();
        fs::write(&witness, damaged).unwrap();
    };
    for at in (0..usize::try_from(EVENTS).unwrap() * 128).step_by(409) {
        let mut bytes = pristine.clone();
        bytes[at] ^= 1;
        // One promise is lost; the others still show a loss.
        put_back(&bytes);
        remove(&path);
        let err = Sqlite::open(Options::new(&path)).unwrap_err();
        assert!(matches!(err, StoreError::Lost { .. }), "{at}: {err:?}");
        put_back(&bytes);
        assert_eq!(open(path.parent().unwrap()).audit().await.unwrap().findings, [], "{at}");
    }
    put_back(&pristine);
    fs::remove_file(path.with_file_name("checkpoint.key")).unwrap();
    drop(Sqlite::open(Options::new(&path)).unwrap());
}
