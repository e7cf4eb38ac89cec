//! Owners, modes, locks, and files that are not ours.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use overmind_core::store::{Store, StoreError, StreamId};
use overmind_store::{Options, Sqlite};
use overmind_testkit::store_conformance::{at, one_event};
use serde_json::json;

use crate::open;

fn refusal(path: &Path) -> StoreError {
    Sqlite::open(Options::new(path)).unwrap_err()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn all_created_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("data");
    let store = Sqlite::open(Options::new(home.join("s.db"))).unwrap();
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(&home), 0o700);
    let mut names: Vec<_> = fs::read_dir(&home)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["checkpoint.key", "s.db", "s.db-shm", "s.db-wal", "s.db.lock", "s.db.witness"]
    );
    for name in names {
        assert_eq!(mode(&home.join(&name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_second_server_gets_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let err = refusal(&dir.path().join("s.db"));
    assert!(matches!(err, StoreError::Locked { .. }), "{err:?}");
    assert!(err.to_string().contains(&format!("process {}", std::process::id())), "{err}");
    // A closed store is free, even while the closed handle lives.
    store.close().await.unwrap();
    let second = open(dir.path());
    drop(store);
    assert!(matches!(refusal(&dir.path().join("s.db")), StoreError::Locked { .. }));
    drop(second);
    drop(open(dir.path()));
}

#[tokio::test]
async fn commits_survive_drop_and_close() {
    let dir = tempfile::tempdir().unwrap();
    for n in 1..=6 {
        let store = open(dir.path());
        let done = store.commit(one_event(StreamId::System, json!({ "n": n }))).await.unwrap();
        assert_eq!((done.global, done.places), (n, vec![(StreamId::System, n)]));
        if n % 2 == 0 {
            store.close().await.unwrap();
        }
        let report = open_report(&dir, store).await;
        assert_eq!((report.events, report.unsigned_tail), (n, 0), "closing signs what is left");
        assert_eq!(report.findings, []);
    }
}

async fn open_report(dir: &tempfile::TempDir, old: Sqlite) -> overmind_core::store::AuditReport {
    drop(old);
    let store = open(dir.path());
    store.audit().await.unwrap()
}

#[test]
fn a_newer_file_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    drop(open(dir.path()));
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 999).unwrap();
    drop(conn);
    let before = (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
    let err = refusal(&path);
    assert!(matches!(err, StoreError::TooNew { found: 999, known, .. } if known < 999), "{err:?}");
    assert!(err.to_string().contains("newer program"), "{err}");
    let after = (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
    assert!(before == after, "the file was touched");
    // The refused open does not keep the lock.
    assert!(matches!(refusal(&path), StoreError::TooNew { .. }));
}

#[test]
fn foreign_files_are_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let garbage = dir.path().join("garbage.db");
    fs::write(&garbage, "this is a text file, and a rather short one at that").unwrap();
    let err = refusal(&garbage);
    assert!(matches!(err, StoreError::Corrupt { .. }), "{err:?}");
    let cut = dir.path().join("cut.db");
    fs::write(&cut, b"SQLite format 3\0").unwrap();
    assert!(matches!(refusal(&cut), StoreError::Corrupt { .. }));

    let foreign = dir.path().join("foreign.db");
    let conn = rusqlite::Connection::open(&foreign).unwrap();
    conn.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
    drop(conn);
    let before = fs::read(&foreign).unwrap();
    let err = refusal(&foreign);
    assert!(err.to_string().contains("another program"), "{err}");
    assert_eq!(fs::read(&foreign).unwrap(), before);

    // A crash before the first write leaves an empty file.
    let empty = dir.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    drop(Sqlite::open(Options::new(empty)).unwrap());
}

#[test]
fn missing_and_invalid_directories_are_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let err = refusal(&dir.path().join("a/b/s.db"));
    assert!(matches!(err, StoreError::NotFound { .. }), "{err:?}");
    assert!(err.to_string().contains(&format!("{}/a", dir.path().display())), "{err}");
    fs::write(dir.path().join("file"), "x").unwrap();
    let err = refusal(&dir.path().join("file/s.db"));
    assert!(err.to_string().contains("is not a directory"), "{err}");
    assert!(!dir.path().join("a").exists());
}

#[test]
fn a_file_without_permission_is_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    if is_root() {
        // Modes do not bind root: see the test with another owner, and the one on a mount.
        return;
    }
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let err = refusal(&dir.path().join("s.db"));
    assert!(matches!(err, StoreError::ReadOnly { .. }), "{err:?}");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn needs_root_another_owners_file_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    if !is_root() {
        return;
    }
    drop(open(dir.path()));
    let path = dir.path().join("s.db");
    chown(&path, Some(65_534), None).unwrap();
    let err = refusal(&path);
    assert!(matches!(err, StoreError::ReadOnly { .. }), "{err:?}");
    assert!(err.to_string().contains("belongs to user 65534"), "{err}");
    assert!(!dir.path().join("s.db-wal").exists());
}

#[tokio::test]
async fn the_signing_key_is_stable_and_a_foreign_one_must_be_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(dir.path());
    let (first, name) = (store.public_key(), store.key_fingerprint());
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    store.checkpoint(at(1)).await.unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.public_key(), first);
    assert_eq!(store.audit().await.unwrap().key, name);
    drop(store);

    fs::remove_file(dir.path().join("checkpoint.key")).unwrap();
    let store = open(dir.path());
    assert_ne!(store.public_key(), first);
    let findings = store.audit().await.unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(format!("{findings:?}").contains(&name), "{findings:?}");
    drop(store);
    let mut options = Options::new(path);
    options.trusted_keys.push(first);
    let store = Sqlite::open(options).unwrap();
    assert_eq!(store.audit().await.unwrap().findings, []);
}

#[test]
fn debug_output_of_options_contains_no_secrets() {
    let mut options = Options::new("/data/s.db");
    options.add_secret("hunter2-hunter2");
    assert!(!format!("{options:?}").contains("hunter2"));
    assert_eq!(options.key_file(), Path::new("/data/checkpoint.key"));
    assert_eq!(Options::new("s.db").key_file(), Path::new("./checkpoint.key"));
}

#[tokio::test]
async fn secrets_are_masked_as_soon_as_they_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path().join("s.db"));
    options.add_secret("first-secret-1");
    let store = Sqlite::open(options).unwrap();
    assert!(store.learn_secret("second-secret-2"));
    assert!(!store.learn_secret("short"));
    let payload = json!({ "a": "x first-secret-1 y", "b": "second-secret-2" });
    store.commit(one_event(StreamId::System, payload)).await.unwrap();
    drop(store);
    for name in ["s.db", "s.db-wal"] {
        let bytes = fs::read(dir.path().join(name)).unwrap_or_default();
        for secret in ["first-secret-1", "second-secret-2"] {
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{secret} is in {name}");
        }
    }
}
