//! The store alone: the speed of durable commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::ids::{AgentId, ColonyId, HiveId, SessionId};
use overmind_core::model::Usage;
use overmind_core::name;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::store::{Change, Commit, Guard, NewEvent, Store, StoreError, StreamId};
use overmind_core::time::Clock as _;
use overmind_node::app::clock::{SystemClock, SystemIds};
use overmind_store::{Options, Sqlite};
use serde_json::json;
use tokio::task::JoinSet;

use super::floors::Floors;
use super::{Figure, Goal, Setting, ms, percentile, rate};
use crate::exit::Failure;

const WRITERS: u32 = 64;
/// Events of one commit: a step that ends and one that begins.
const EVENTS: u32 = 4;

/// # Errors
///
/// Returns an error if the measurement fails.
pub async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
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

/// An event as a step writes it.
pub fn event(session: SessionId, n: u32) -> NewEvent {
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
        cost_at_most: false,
        model_calls: 0,
        steps: 0,
        sandbox: SandboxLevel::Namespace,
        attestation: None,
        command: None,
        room: None,
        workspace: "/tmp".into(),
        forked_from: None,
        created_by: "bench".into(),
        owner: None,
        labels: BTreeMap::new(),
    }
}
