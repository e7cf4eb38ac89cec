//! The state of artifacts after a crash, a restart, a backup and a full disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_core::artifact::{Artifact, ArtifactName};
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::store::{Change, Commit, Store, StreamId};
use overmind_store::{Options, Replace, Sqlite, restore};
use overmind_testkit::store_conformance::{World, at, event, one_change};
use serde_json::json;

use crate::open;

fn artifact(world: &World, session: SessionId, name: &str, content: &[u8]) -> Artifact {
    Artifact {
        colony: ColonyId::DEFAULT,
        session,
        name: ArtifactName::parse(name).unwrap(),
        version: 1,
        file: EffectId::mint(world.ids()),
        bytes: content.len() as u64,
        media_type: "text/plain".into(),
        hash: *blake3::hash(content).as_bytes(),
        is_text: true,
        is_masked: false,
        author: "a".into(),
        created_at: at(1),
        updated_at: at(1),
        place: 0,
    }
}

async fn save(store: &Sqlite, row: &Artifact, content: &[u8]) {
    let hold = store.artifact_write(row.session, row.file, content.to_vec()).await.unwrap();
    let commit = Commit {
        guards: vec![],
        events: vec![event(StreamId::Session(row.session), json!({}))],
        changes: vec![Change::ArtifactPut(Box::new(row.clone()))],
    };
    store.commit(commit).await.unwrap();
    drop(hold);
}

async fn read(store: &Sqlite, row: &Artifact) -> Option<Vec<u8>> {
    let content = store.artifact_open(row.session, row.file).await.unwrap()?;
    Some(content.read(0, 1 << 20).await.unwrap())
}

fn place(dir: &Path, row: &Artifact) -> PathBuf {
    dir.join("s.db.artifacts").join(row.session.to_string()).join(row.file.to_string())
}

/// Waits for a condition that another thread makes true.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        pause.tick().await;
    }
}

#[tokio::test]
async fn a_start_removes_content_files_without_a_row_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::default();
    let session = world.session_id();
    let store = open(dir.path());
    let kept = artifact(&world, session, "kept", b"kept");
    save(&store, &kept, b"kept").await;
    // The states after a kill between file and commit: complete, partial, and of another session.
    let whole = artifact(&world, session, "whole", b"");
    drop(store.artifact_write(session, whole.file, b"whole".to_vec()).await.unwrap());
    let alone = artifact(&world, world.session_id(), "alone", b"");
    drop(store.artifact_write(alone.session, alone.file, b"alone".to_vec()).await.unwrap());
    let part = place(dir.path(), &kept).with_extension("part");
    fs::write(&part, "a part").unwrap();
    let foreign = dir.path().join("s.db.artifacts/notes.txt");
    fs::write(&foreign, "not ours").unwrap();
    store.close().await.unwrap();
    drop(store);

    let store = open(dir.path());
    until("the sweep has passed", || {
        let there = |row| place(dir.path(), row).exists();
        !there(&whole) && !part.exists() && !place(dir.path(), &alone).parent().unwrap().exists()
    })
    .await;
    assert_eq!(read(&store, &kept).await.as_deref(), Some(&b"kept"[..]));
    assert!(foreign.exists(), "what is called otherwise is not ours");
}

#[tokio::test]
async fn a_sweep_keeps_files_that_are_being_saved() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::default();
    let session = world.session_id();
    {
        let store = open(dir.path());
        for _ in 0..300 {
            let file = EffectId::mint(world.ids());
            drop(store.artifact_write(session, file, b"left".to_vec()).await.unwrap());
        }
        store.close().await.unwrap();
    }
    // Beside the sweep of all these.
    let store = open(dir.path());
    let mut saved = Vec::new();
    for n in 0..50 {
        let row = artifact(&world, session, &format!("{n}"), b"x");
        save(&store, &row, format!("content {n}").as_bytes()).await;
        saved.push(row);
    }
    until("the sweep has passed", || {
        fs::read_dir(dir.path().join("s.db.artifacts").join(session.to_string())).unwrap().count()
            == saved.len()
    })
    .await;
    for (n, row) in saved.iter().enumerate() {
        assert_eq!(read(&store, row).await.unwrap(), format!("content {n}").into_bytes());
    }
}

#[tokio::test]
async fn store_files_have_mode_0600() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::default();
    let store = open(dir.path());
    let row = artifact(&world, world.session_id(), "a", b"x");
    save(&store, &row, b"x").await;
    let path = place(dir.path(), &row);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&dir.path().join("s.db.artifacts")), 0o700);
}

#[tokio::test]
async fn an_unwritable_content_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fs::write(dir.path().join("s.db.artifacts"), "in the way").unwrap();
    let world = World::default();
    let (session, file) = (world.session_id(), EffectId::mint(world.ids()));
    let err = store.artifact_write(session, file, b"x".to_vec()).await.unwrap_err().to_string();
    assert!(err.contains("s.db.artifacts") && err.contains("keeping an artifact"), "{err}");
}

#[tokio::test]
async fn a_backup_contains_artifacts_and_a_restore_brings_them_back() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::default();
    let store = open(dir.path());
    let session = world.session_id();
    let row = artifact(&world, session, "a", b"one");
    save(&store, &row, b"one").await;
    let orphan = EffectId::mint(world.ids());
    drop(store.artifact_write(session, orphan, b"no row".to_vec()).await.unwrap());
    let copy = dir.path().join("copy.db");
    let bytes = store.backup(copy.clone()).await.unwrap();
    assert_eq!(bytes, copy.metadata().unwrap().len() + 3);
    let beside = dir.path().join("copy.db.artifacts").join(session.to_string());
    let names: Vec<_> = fs::read_dir(&beside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [row.file.to_string().as_str()], "what rows name, and nothing else");
    store.backup(copy.clone()).await.unwrap_err();

    let two = Artifact { version: 2, ..artifact(&world, session, "a", b"two") };
    save(&store, &two, b"two").await;
    store.artifact_drop(session, row.file).await.unwrap();
    assert_eq!(read(&store, &row).await, None);
    store.close().await.unwrap();
    drop(store);
    let aside = restore(&copy, &dir.path().join("s.db"), Replace::KeepAside).unwrap().unwrap();
    let store = open(dir.path());
    assert_eq!(store.artifact_fetch(session, row.name.clone()).await.unwrap().unwrap().version, 1);
    assert_eq!(read(&store, &row).await.as_deref(), Some(&b"one"[..]));
    assert_eq!(read(&store, &two).await, None);
    store.close().await.unwrap();
    drop(store);
    let old = Sqlite::open(Options::new(aside)).unwrap();
    assert_eq!(read(&old, &two).await.as_deref(), Some(&b"two"[..]), "the old ones went aside");
    let deleted = Change::ArtifactDelete { session, name: two.name.clone() };
    old.commit(one_change(deleted)).await.unwrap();
}

#[tokio::test]
async fn links_pipes_and_other_names_in_a_backup_are_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (world, store) = (World::default(), open(dir.path()));
    let session = world.session_id();
    let row = artifact(&world, session, "a", b"one");
    save(&store, &row, b"one").await;
    let copy = dir.path().join("copy.db");
    store.backup(copy.clone()).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    // A file of the host with a name that an artifact could have.
    let (outside, file) = (dir.path().join("outside"), EffectId::mint(world.ids()).to_string());
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join(&file), "of the host").unwrap();
    let beside = dir.path().join("copy.db.artifacts");
    let own = beside.join(session.to_string());
    let linked = beside.join(world.session_id().to_string());
    symlink(&outside, &linked).unwrap();
    symlink(outside.join(&file), own.join(&file)).unwrap();
    let pipe = own.join(EffectId::mint(world.ids()).to_string());
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    fs::write(own.join("notes"), "no artifact").unwrap();
    fs::create_dir(beside.join("..x")).unwrap();
    let to = dir.path().join("new/s.db");
    restore(&copy, &to, Replace::Never).unwrap();
    let restored = to.with_file_name("s.db.artifacts");
    let names = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(&restored), [session.to_string()]);
    assert_eq!(names(&restored.join(session.to_string())), [row.file.to_string()]);
    // Nor is a link in place of the directory followed.
    fs::rename(&beside, dir.path().join("moved")).unwrap();
    symlink(&outside, &beside).unwrap();
    let to = dir.path().join("another/s.db");
    let err = restore(&copy, &to, Replace::Never).unwrap_err();
    assert!(err.to_string().contains("not a directory") && !to.exists(), "{err}");
}
