//! Kills the writing process many times, and checks the remaining state.
//!
//! `SIGKILL` proves that nothing acknowledged waits in the process; that it does not wait in
//! the kernel either is the fsync's doing, which no kill can test.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overmind_core::failpoint;
use overmind_core::store::{Change, EventQuery, Store, StreamId};
use overmind_store::Sqlite;
use overmind_testkit::soak;
use overmind_testkit::store_conformance::{World, at, one_event};
use serde_json::json;

use crate::open;

pub(crate) const DIR: &str = "OVERMIND_STORE_CRASH_DIR";
const POINT: &str = "OVERMIND_STORE_CRASH_POINT";

#[expect(clippy::disallowed_methods, reason = "how a test speaks to its own child")]
pub(crate) fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Commits without end from eight tasks, and says `<writer> <n>` when a commit is acknowledged.
/// A setting in the same commit counts along.
#[test]
#[ignore = "the crash test runs it in processes of its own"]
fn the_child_that_commits_until_it_dies() {
    let Some(dir) = told(DIR) else { return };
    if let Some(point) = told(POINT) {
        let (name, hits) = point.split_once('@').unwrap();
        let (name, hits) = (name.to_owned(), hits.parse::<u64>().unwrap());
        let seen = AtomicU64::new(0);
        failpoint::arm(Box::new(move |at| {
            if at == name && seen.fetch_add(1, Ordering::Relaxed) == hits {
                std::process::abort();
            }
        }));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(open(Path::new(&dir)));
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8_u64 {
            let store = Arc::clone(&store);
            writers.spawn(write_for_ever(store, writer));
        }
        writers.join_all().await;
    });
}

async fn write_for_ever(store: Arc<Sqlite>, writer: u64) {
    let key = format!("writer {writer}");
    let stream = stream_of(writer);
    let mut n = match store.setting_fetch(key.clone()).await.unwrap() {
        Some(value) => value.as_u64().unwrap(),
        None => 0,
    };
    loop {
        n += 1;
        let mut commit = one_event(stream, json!({ "n": n, "text": "k".repeat(6_000) }));
        commit.changes.push(Change::SettingPut { key: key.clone(), value: json!(n), at: at(1) });
        let done = store.commit(commit).await.unwrap();
        assert_eq!(done.places, [(stream, n)]);
        // One line is one write: lines do not mix, and only the last may be torn.
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{writer} {n}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

fn stream_of(writer: u64) -> StreamId {
    let world = World::default();
    let mut id = world.session_id();
    for _ in 0..writer {
        id = world.session_id();
    }
    StreamId::Session(id)
}

fn spawn(dir: &Path, point: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "crash::the_child_that_commits_until_it_dies",
            "--ignored",
            "--nocapture",
        ])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(point) = point {
        command.env(POINT, point);
    }
    command.spawn().unwrap()
}

/// Reads acknowledgements until `kill_after` of them (or the child's own end), kills, and reads
/// what was said before the end.
pub(crate) fn watch(
    mut child: Child,
    kill_after: usize,
    acknowledged: &mut HashMap<u64, u64>,
) -> usize {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut count, mut killed) = (String::new(), 0, false);
    loop {
        line.clear();
        if lines.read_line(&mut line).unwrap() == 0 {
            break;
        }
        let said = line.strip_suffix('\n').and_then(|line| line.split_once(' '));
        let numbers = said
            .and_then(|(writer, n)| Some((writer.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
        // Other lines belong to the test harness.
        if let Some((writer, n)) = numbers {
            let last: &mut u64 = acknowledged.entry(writer).or_default();
            *last = n.max(*last);
            count += 1;
        }
        if count >= kill_after && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    assert!(!child.wait().unwrap().success(), "the child was to die");
    count
}

/// Everything acknowledged exists, rows and events agree, and the audit finds nothing.
fn check(dir: &Path, acknowledged: &HashMap<u64, u64>) {
    let store = open(dir);
    let run = async {
        assert_eq!(store.audit().await.unwrap().findings, []);
        for writer in 0..8 {
            let least = acknowledged.get(&writer).copied().unwrap_or(0);
            let newest = overmind_core::store::Page { limit: 1, after: None };
            let newest = store.events_newest(Some(stream_of(writer)), newest).await.unwrap();
            let seq = newest.first().map_or(0, |event| event.seq);
            assert!(seq >= least, "writer {writer}: {least} was acknowledged, {seq} is there");
            let row = store.setting_fetch(format!("writer {writer}")).await.unwrap();
            let row = row.map_or(0, |value| value.as_u64().unwrap());
            assert_eq!(row, seq, "writer {writer}: the row and the log disagree");
        }
        let one = EventQuery { stream: None, after: 0, kinds: &[], limit: 1 };
        store.events(one).await.unwrap();
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run);
}

#[test]
fn acknowledged_events_survive_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = HashMap::new();
    // A fixed walk over the numbers of acknowledgements after which to kill.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut total = 0;
    for round in 0..25 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let kill_after = usize::try_from(random % 200).unwrap() + 1;
        total += watch(spawn(dir.path(), None), kill_after, &mut acknowledged);
        if round % 5 == 4 {
            check(dir.path(), &acknowledged);
        }
    }
    assert!(total >= 25, "the children acknowledged something");
}

#[test]
fn acknowledged_events_survive_every_failpoint() {
    for (point, hits) in [
        ("store.in_group", [0, 30]),
        ("store.before_commit", [0, 30]),
        ("store.after_commit_before_promise", [0, 30]),
        ("store.after_commit_before_ack", [0, 30]),
        ("store.wal_copy", [0, 1]),
        ("store.wal_restart", [0, 1]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut acknowledged = HashMap::new();
        // One of the two in every run; both for `cargo xtask soak`.
        let first = usize::try_from(RandomState::new().hash_one(point) % 2).unwrap();
        let hits = hits.into_iter().cycle().skip(first).take(soak::count(1, 2));
        for hit in hits {
            watch(
                spawn(dir.path(), Some(&format!("{point}@{hit}"))),
                usize::MAX,
                &mut acknowledged,
            );
            check(dir.path(), &acknowledged);
        }
    }
}
