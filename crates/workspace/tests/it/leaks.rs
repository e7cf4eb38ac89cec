//! Remains are found and removed, and foreign objects are left alone.

use std::process::{Command, Stdio};

use overmind_workspace::leaks::{FixError, LeakKind};
use overmind_workspace::lease::TreeEnd;

use crate::support::{Bench, processes_of, until};

const APP: &str = "
services:
  web: {strategy: process, command: exec sleep 86301, ports: [http], ready: started}
";

#[tokio::test]
async fn everything_left_by_a_lost_session_is_found_and_removed() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let lease = workspace.build(bench.request("s1", APP), &bench.told).await.unwrap();
    workspace
        .build(bench.request("s2", APP.replace("86301", "86302").as_str()), &bench.told)
        .await
        .unwrap();
    assert_eq!(workspace.leaks().await, [], "living sessions are no leaks");
    let mark = lease.env["OVERMIND_LEASE"].clone();
    // The journal is lost: only the remains show that the session existed.
    std::fs::remove_dir_all(bench.path("home/leases/s1")).unwrap();
    // And a process of another data directory, with the same session's name.
    let foreign = format!("00000000:{}", "s1");
    assert_ne!(foreign, mark);
    let mut stranger = Command::new("sleep")
        .arg("86303")
        .env("OVERMIND_LEASE", foreign)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let found = workspace.leaks().await;
    let kinds: Vec<LeakKind> = found.iter().map(|one| one.kind).collect();
    for kind in [LeakKind::Process, LeakKind::Port, LeakKind::TempFiles, LeakKind::Worktree] {
        assert!(kinds.contains(&kind), "{kind:?} in {found:#?}");
    }
    assert!(found.iter().all(|one| one.session.as_deref() == Some("s1") && !one.how.is_empty()));
    for finding in &found {
        workspace.fix(finding).await.unwrap();
    }
    assert_eq!(workspace.leaks().await, []);
    let of = |session: &str| processes_of(&bench.path("trees").join(session)).len();
    assert_eq!(of("s1"), 0);
    assert_eq!(of("s2"), 1, "others are left alone");
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();

    // An outdated finding removes nothing of the later session.
    let again = workspace.build(bench.request("s1", APP), &bench.told).await.unwrap();
    for finding in &found {
        assert!(
            matches!(workspace.fix(finding).await, Err(FixError::NotOurs { .. })),
            "{finding:?}"
        );
    }
    until("its service runs", || of("s1") == 1).await;
    assert!(again.worktree.exists());
    assert!(workspace.disk().contains_key("s1"));
    for session in ["s1", "s2"] {
        workspace.teardown(session, TreeEnd::Park, &bench.told).await.unwrap();
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn an_unreadable_journal_is_reported_and_never_removed() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let dir = bench.path("home/leases/s9");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("journal.jsonl"), "{\"record\":\"nonsense\"}\n").unwrap();
    let found = workspace.leaks().await;
    assert_eq!((found.len(), found[0].kind, found[0].fixable), (1, LeakKind::Lease, false));
    assert!(matches!(workspace.fix(&found[0]).await, Err(FixError::NotOurs { .. })));
    assert!(dir.exists());
}

#[tokio::test]
async fn a_temporary_directory_of_another_session_is_not_removed() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let lease = workspace.build(bench.request("s1", ""), &bench.told).await.unwrap();
    let temp = std::path::PathBuf::from(&lease.env["TMPDIR"]);
    assert!(temp.starts_with(bench.path("tmp")));
    std::fs::write(temp.join(".overmind-lease"), "00000000:s1").unwrap();
    let err = workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap_err();
    assert!(err.to_string().contains("it is another session's"), "{err}");
    assert!(temp.exists());
}
