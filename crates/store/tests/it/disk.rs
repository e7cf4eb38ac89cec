//! Disks that are full, slow to empty, or not to be written.

use std::fs;
use std::path::{Path, PathBuf};

use overmind_core::row::SessionStatus;
use overmind_core::store::{Change, Commit, EventQuery, Store, StoreError, StreamId};
use overmind_store::{Options, Sqlite};
use overmind_testkit::store_conformance::{World, at, event, one_event};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::json;

fn is_full(err: &StoreError) -> bool {
    matches!(err, StoreError::Full { .. }) && err.is_transient()
}

/// An ended session with a large event.
fn large(world: &World, n: i64) -> Commit {
    let mut row = world.session();
    row.status = SessionStatus::Succeeded;
    row.finished_at = Some(at(n));
    Commit {
        guards: vec![],
        events: vec![event(StreamId::Session(row.id), json!({ "text": "z".repeat(60_000) }))],
        changes: vec![Change::SessionInsert(Box::new(row))],
    }
}

#[tokio::test]
async fn a_full_disk_refuses_whole_commits_until_space_returns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let mut options = Options::new(&path);
    options.max_bytes = Some(3 << 20);
    let store = Sqlite::open(options).unwrap();
    let world = World::default();
    let mut acknowledged = 0;
    let err = loop {
        match store.commit(large(&world, acknowledged)).await {
            Ok(done) => {
                acknowledged += 1;
                assert_eq!(done.global, acknowledged.cast_unsigned());
            }
            Err(err) => break err,
        }
        assert!(acknowledged < 1_000, "the bound does not hold");
    };
    assert!(is_full(&err), "{err:?}");
    assert!(acknowledged > 10);
    // Nothing of the refused commit exists, and acknowledged commits do.
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.events, acknowledged.cast_unsigned());
    // Many at once: all of them are refused or whole.
    let at_once = (0..8).map(|n| store.commit(large(&world, 1_000 + n)));
    for result in futures_of(at_once).await {
        assert!(is_full(&result.unwrap_err()));
    }
    assert_eq!(store.audit().await.unwrap().findings, []);

    let pruned = store.prune(at(10), at(9_999)).await.unwrap();
    assert_eq!(pruned.sessions, 10);
    let done = store.commit(large(&world, 5_000)).await.unwrap();
    assert_eq!(done.global, (acknowledged + 11).cast_unsigned(), "ten records, then this");
    assert_eq!(store.audit().await.unwrap().findings, []);
    store.close().await.unwrap();
    let store = Sqlite::open(Options::new(&path)).unwrap();
    assert_eq!(store.stats().await.unwrap().events, (acknowledged + 1).cast_unsigned());
    assert_eq!(store.audit().await.unwrap().findings, []);
}

/// All of them at the same time.
async fn futures_of<T: Send>(futures: impl Iterator<Item = overmind_core::Fut<'_, T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|future| (future, None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, answer) in &mut waiting {
            if answer.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *answer = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    waiting.into_iter().map(|(_, answer)| answer.unwrap()).collect()
}

/// A small file system in memory, removed when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `None` where this process may not mount.
    fn mount(at: &Path, bytes: usize) -> Option<Self> {
        let size = std::ffi::CString::new(format!("size={bytes},mode=0700")).unwrap();
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        match mount("tmpfs", at, "tmpfs", MountFlags::empty(), size.as_c_str()) {
            Ok(()) => Some(Self(at.to_owned())),
            Err(err) => {
                eprintln!("skipped: root may not mount here: {err}");
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn needs_root_a_full_disk_is_reported_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(dir.path(), 8 << 20) else { return };
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![1; 3 << 20]).unwrap();
    let path = disk.0.join("s.db");
    let store = Sqlite::open(Options::new(&path)).unwrap();
    let world = World::default();
    let mut acknowledged = 0;
    let err = loop {
        match store.commit(large(&world, acknowledged)).await {
            Ok(_) => acknowledged += 1,
            Err(err) => break err,
        }
    };
    assert!(is_full(&err), "{err:?}");
    assert!(err.to_string().contains("free space"), "{err}");
    assert!(acknowledged > 3, "{acknowledged}");
    let again = store.commit(large(&world, 1)).await.unwrap_err();
    assert!(is_full(&again), "{again:?}");
    // Reads continue, and acknowledged commits exist.
    let all = EventQuery { stream: None, after: 0, kinds: &[], limit: 10_000 };
    let events = store.events(all).await.unwrap();
    assert_eq!(events.len() as u64, acknowledged.cast_unsigned());

    fs::remove_file(&ballast).unwrap();
    let done = store.commit(large(&world, 1)).await.unwrap();
    assert_eq!(done.global, (acknowledged + 1).cast_unsigned());
    assert_eq!(store.audit().await.unwrap().findings, []);
    store.close().await.unwrap();
    let store = Sqlite::open(Options::new(&path)).unwrap();
    assert_eq!(store.stats().await.unwrap().events, (acknowledged + 1).cast_unsigned());
    drop(store);
    drop(disk);
}

#[tokio::test]
async fn needs_root_a_read_only_disk_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(dir.path(), 8 << 20) else { return };
    let path = disk.0.join("s.db");
    let store = Sqlite::open(Options::new(&path)).unwrap();
    store.commit(one_event(StreamId::System, json!({}))).await.unwrap();
    drop(store);
    mount_remount(&disk.0, MountFlags::RDONLY, c"").unwrap();
    let err = Sqlite::open(Options::new(&path)).unwrap_err();
    assert!(matches!(err, StoreError::ReadOnly { .. }), "{err:?}");
    assert!(err.to_string().contains("mount"), "{err}");
    drop(disk);
}
