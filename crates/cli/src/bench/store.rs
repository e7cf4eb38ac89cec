//! The store by itself: how fast it makes things durable, and what listing a long log costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::ids::{AgentId, ColonyId, HiveId, SessionId};
use overmind_core::model::Usage;
use overmind_core::name;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{
    Change, Commit, EventQuery, Guard, NewEvent, Store, StoreError, StreamId,
};
use overmind_core::time::{Clock as _, Timestamp};
use overmind_node::app::clock::{SystemClock, SystemIds};
use overmind_store::{Options, Sqlite};
use serde_json::json;
use tokio::task::JoinSet;

use super::floors::Floors;
use super::process::rss;
use super::{Figure, Goal, Setting, ms, percentile, rate};
use crate::exit::Failure;

const WRITERS: u32 = 64;
/// Events of one commit: a step that ends and one that begins.
const EVENTS: u32 = 4;
/// Events of one commit while a long log is made.
const BULK: u32 = 1000;
/// What "flat" means, in MiB: a page of the list and the readers' caches.
const FLAT: f64 = 32.0;

pub(super) async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("store")?;
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(Options::new(dir.join("bench.db")))?);
    let each = setting.count(400);
    let mut writers = JoinSet::new();
    let start = Instant::now();
    for _ in 0..WRITERS {
        writers.spawn(write(Arc::clone(&store), each));
    }
    let mut took: Vec<Duration> = Vec::new();
    while let Some(done) = writers.join_next().await {
        took.extend(done.map_err(|err| Failure::failed(format!("a writer ended: {err}")))??);
    }
    let elapsed = start.elapsed();
    took.sort_unstable();
    store.close().await?;
    let commits = WRITERS * each;
    Ok(vec![
        Figure::new("durable events", rate(commits * EVENTS, elapsed), "events/s")
            .floor("bare SQLite, rows in groups", floors.rows)
            .goal(Goal::Least(10_000.0))
            .note(format!(
                "{WRITERS} writers, {EVENTS} events and a session's row a commit, {} commits/s",
                rate(commits, elapsed).round()
            )),
        Figure::new("commit p50", ms(percentile(&took, 0.5)), "ms")
            .floor("bare SQLite commit", ms(floors.commit)),
        Figure::new("commit p99", ms(percentile(&took, 0.99)), "ms")
            .floor("bare SQLite commit", ms(floors.commit))
            .goal(Goal::Most(25.0))
            .note("from handing the commit in to knowing that it is durable"),
    ])
}

/// Writes as a session does: a guard, some events, its row; each commit waits for the last.
async fn write(store: Arc<dyn Store>, commits: u32) -> Result<Vec<Duration>, StoreError> {
    let row = session();
    let changes = vec![Change::SessionInsert(Box::new(row.clone()))];
    store.commit(Commit { changes, ..Commit::default() }).await?;
    let mut took = Vec::new();
    for _ in 0..commits {
        let commit = Commit {
            guards: vec![Guard::SessionEpoch { session: row.id, epoch: 1 }],
            events: (0..EVENTS).map(|n| event(row.id, n)).collect(),
            changes: vec![Change::SessionUpdate(Box::new(row.clone()))],
        };
        let start = Instant::now();
        store.commit(commit).await?;
        took.push(start.elapsed());
    }
    Ok(took)
}

fn event(session: SessionId, n: u32) -> NewEvent {
    NewEvent {
        stream: StreamId::Session(session),
        kind: "step.finished",
        ts: SystemClock.now(),
        payload: json!({
            "run_id": session, "idx": n, "ok": true,
            "output": {"ok": true, "exit_code": 0, "stdout": "x".repeat(100)},
        }),
    }
}

fn session() -> SessionRow {
    let id = SessionId::mint(&SystemIds);
    SessionRow {
        id,
        colony: ColonyId::DEFAULT,
        name: name::generate(id, 0),
        parent: None,
        agent: AgentId::mint(&SystemIds),
        agent_version: 1,
        hive: Some(HiveId::LOCAL),
        epoch: 1,
        status: SessionStatus::Running,
        task: "measure".into(),
        step_limit: 0,
        created_at: SystemClock.now(),
        started_at: Some(SystemClock.now()),
        finished_at: None,
        prompt: None,
        approval: None,
        final_answer: None,
        error: None,
        usage: Usage::default(),
        cost_microusd: Some(0),
        model_calls: 0,
        steps: 0,
        sandbox: SandboxLevel::Namespace,
        attestation: None,
        command: None,
        room: None,
        workspace: "/tmp".into(),
        forked_from: None,
        created_by: "bench".into(),
    }
}

/// What it costs to read a long log from end to end, page by page.
pub(super) async fn listing(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("long")?;
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(Options::new(dir.join("bench.db")))?);
    let events = setting.count(1_000_000);
    let ids: Vec<SessionId> = (0..16).map(|_| SessionId::mint(&SystemIds)).collect();
    for bulk in 0..events / BULK {
        let id = ids[bulk as usize % ids.len()];
        let events = (0..BULK).map(|n| NewEvent {
            ts: Timestamp::from_micros(i64::from(bulk)),
            payload: json!({"n": n, "text": "a line of what some tool has said"}),
            ..event(id, n)
        });
        store.commit(Commit { events: events.collect(), ..Commit::default() }).await?;
    }
    // The first pages fill the readers' caches, which are bounded and there to be filled.
    overmind_node::sys::give_back_memory();
    read_all(&*store, Some(50_000)).await?;
    let before = rss(std::process::id());
    let start = Instant::now();
    let (read, peak) = read_all(&*store, None).await?;
    let elapsed = start.elapsed();
    store.close().await?;
    if read != u64::from(events) {
        return Err(Failure::failed(format!("{events} events were written and {read} read back")));
    }
    let growth = mib(peak.saturating_sub(before));
    Ok(vec![
        Figure::new("memory of listing", growth, "MiB")
            .goal(Goal::Most(FLAT))
            .note(format!("growth of resident memory over {events} events, in pages of 1,000")),
        Figure::new("listing events", rate(events, elapsed), "events/s"),
    ])
}

/// Reads the log in pages; how many events there were, and the most memory seen on the way.
async fn read_all(store: &dyn Store, most: Option<u64>) -> Result<(u64, u64), StoreError> {
    let (mut after, mut read, mut peak) = (0, 0, 0);
    loop {
        let query = EventQuery { stream: None, after, kinds: &[], limit: 1000 };
        let page = store.events(query).await?;
        let Some(last) = page.last() else { return Ok((read, peak)) };
        after = last.global;
        read += page.len() as u64;
        if read.is_multiple_of(20_000) {
            peak = peak.max(rss(std::process::id()));
        }
        if most.is_some_and(|most| read >= most) {
            return Ok((read, peak));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^53")]
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "files are far smaller than 2^53")]
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
