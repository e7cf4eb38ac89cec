//! The daemon is killed at every point of building and ending a lease; the next one leaves
//! nothing.

use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use overmind_testkit::real::counterpart;
use overmind_testkit::soak;
use overmind_workspace::lease::{LeasePhase, TreeEnd};

use crate::support::{Bench, git, processes_of, variable};

/// Kills this process at its `n`th failpoint.
pub(crate) fn die_at(n: u32) {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    overmind_core::failpoint::arm(Box::new(move |_| {
        if SEEN.fetch_add(1, Ordering::SeqCst) + 1 == n {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
    }));
}

const PLAIN: &str = "
  names: [ADMIN_PORT]
services:
  db: {strategy: database, engine: sqlite, file: db/app.sqlite3}
  web:
    strategy: process
    command: (setsid sleep 86201 &); exec busybox httpd -f -p \"127.0.0.1:$PORT\"
    ports: [http]
    depends_on: [db]
env: {DB: '${db.file}', WEB: '${web.url}'}
env_file: .env.session
setup: (setsid sleep 86202 &); test -f \"$DB\"
teardown: 'true'
";

#[tokio::test]
#[ignore = "the other half of the crash tests"]
async fn a_daemon_that_dies() {
    let Some(root) = variable("OVERMIND_TEST_DIR") else { return };
    let number = |name: &str| variable(name).unwrap().parse::<u32>().unwrap();
    let bench = Bench::at(PathBuf::from(root));
    let workspace = bench.workspace();
    let text = variable("OVERMIND_TEST_TEXT").unwrap();
    if variable("OVERMIND_TEST_PART").as_deref() == Some("build") {
        die_at(number("OVERMIND_TEST_POINT"));
        workspace.build(bench.request("s1", &text), &bench.told).await.unwrap();
    } else {
        workspace.build(bench.request("s1", &text), &bench.told).await.unwrap();
        die_at(number("OVERMIND_TEST_POINT"));
        workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    }
}

/// Whether the daemon lived through it: then there are no more points.
fn daemon(root: &Path, part: &str, text: &str, point: u32) -> bool {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::a_daemon_that_dies", "--ignored", "--nocapture"])
        .env("OVERMIND_TEST_DIR", root)
        .env("OVERMIND_TEST_PART", part)
        .env("OVERMIND_TEST_TEXT", text)
        .env("OVERMIND_TEST_POINT", point.to_string())
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(
        killed || output.status.success(),
        "{part} {point}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    !killed
}

async fn every_point(part: &str, text: &str) -> u32 {
    let bench = Bench::new();
    git(&bench.path("project"), &["init", "-q"]);
    // Every sixth point from a random one on; every one for `cargo xtask soak`.
    let stride = soak::count(6, 1);
    let first = u32::try_from(RandomState::new().hash_one(part) % u64::from(stride)).unwrap();
    eprintln!("{part}: each {stride} points, from {first} on");
    let mut point = first.max(1);
    loop {
        let lived = daemon(&bench.root, part, text, point);
        let workspace = bench.workspace();
        let phase = workspace.sessions().first().map(|(_, phase)| *phase);
        for resumed in workspace.resume(&bench.told).await {
            let shown = format!("{resumed:?}");
            assert!(!shown.starts_with("Failed"), "{part} {point}: {shown}");
        }
        if part == "teardown" && !lived {
            // Once it began to end, it ends.
            let left = workspace.sessions();
            assert!(left.is_empty(), "{part} {point} (was {phase:?}): {left:?}");
        }
        if phase == Some(LeasePhase::Ready) {
            // It was complete before the daemon died, and so is kept until it is released.
            assert!(workspace.lease("s1").unwrap().is_some(), "{part} {point}");
            workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
        }
        bench.assert_nothing_left(&workspace).await;
        assert_eq!(processes_of(&bench.path("trees")), Vec::<String>::new(), "{part} {point}");
        if lived {
            workspace.stop_database_server().await.unwrap();
            return point;
        }
        point += stride;
    }
}

#[tokio::test]
async fn a_daemon_killed_at_any_point_of_a_setup_leaves_nothing() {
    let points = every_point("build", PLAIN).await;
    assert!(points > 20, "only {points} points were seen");
}

#[tokio::test]
async fn a_daemon_killed_at_any_point_of_a_release_leaves_nothing() {
    let points = every_point("teardown", PLAIN).await;
    assert!(points > 12, "only {points} points were seen");
}

const DATABASE: &str = "
services:
  db: {strategy: database, engine: postgres}
env: {DATABASE_URL: '${db.url}'}
";

#[tokio::test]
async fn needs_postgres_a_daemon_killed_around_a_database_leaves_none() {
    let Some(_) = counterpart("POSTGRES") else { return };
    for part in ["build", "teardown"] {
        let points = every_point(part, DATABASE).await;
        assert!(points > 6, "only {points} points were seen");
    }
}
