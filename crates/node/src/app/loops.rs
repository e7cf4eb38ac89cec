//! The server's periodic work, as loops of the engine's runner.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::memory::Memory;
use overmind_core::store::Store as _;
use overmind_core::time::Timestamp;
use overmind_engine::{Caller, Engine};

use crate::config::Config;

/// The interval of searches for homes that no session needs.
const HOMES_EVERY: Duration = Duration::from_hours(1);
/// The interval of searches for idle sessions that rest too long.
const RESTS_EVERY: Duration = Duration::from_mins(5);
/// The interval of searches for work without a decision.
const UNDECIDED_EVERY: Duration = Duration::from_hours(1);
/// The interval of searches for data that retention may remove.
const RETENTION_EVERY: Duration = Duration::from_hours(1);
/// The interval of searches for expired memory, and how much of it one commit removes.
const COLLECT_EVERY: Duration = Duration::from_mins(5);
const COLLECT_BATCH: u32 = 200;

/// A loop that runs a function at a fixed interval.
struct Every<Pass> {
    name: &'static str,
    every: Duration,
    pass: Pass,
}

impl<Pass, Done> Reconcile for Every<Pass>
where
    Pass: FnMut(Timestamp) -> Done + Send,
    Done: Future<Output = Result<String, String>> + Send + 'static,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn pace(&self) -> Pace {
        Pace::every(self.every)
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        let done = (self.pass)(now);
        Box::pin(async move { done.await.map(Report::new) })
    }
}

/// Starts the loops: checkpoints of the log, expired memory and, if configured, undecided work and
/// retention.
pub(super) async fn start(
    config: &Config,
    engine: &Engine,
    store: Arc<overmind_store::Sqlite>,
    memory: Arc<dyn Memory>,
) {
    let pass = move |now| {
        let store = Arc::clone(&store);
        async move {
            match store.checkpoint(now).await {
                Ok(Some(number)) => Ok(format!("signed checkpoint {number}")),
                Ok(None) => Ok(String::new()),
                Err(err) => Err(format!("signing a checkpoint failed: {err}")),
            }
        }
    };
    engine.loop_add(Every { name: "checkpoints", every: config.checkpoint_every, pass }).await;
    let pass = move |_| collect(Arc::clone(&memory));
    engine.loop_add(Every { name: "expired-memory", every: COLLECT_EVERY, pass }).await;
    let of = engine.clone();
    let pass = move |now: Timestamp| {
        let engine = of.clone();
        async move {
            let removed = engine.homes_sweep(now).await;
            let removed = removed.map_err(|err| format!("looking for homes of runs: {err}"))?;
            Ok(counted(u64::from(removed), "removed"))
        }
    };
    engine.loop_add(Every { name: "homes", every: HOMES_EVERY, pass }).await;
    if let Some(longest) = config.rest {
        let of = engine.clone();
        let pass = move |now: Timestamp| {
            let engine = of.clone();
            async move {
                let ended = engine.rests_end(&Caller::admin(), now, longest).await;
                let ended = ended.map_err(|err| format!("looking for long rests: {err}"))?;
                Ok(counted(u64::from(ended), "ended"))
            }
        };
        engine.loop_add(Every { name: "rests", every: RESTS_EVERY, pass }).await;
    }
    if let Some(waits) = config.undecided {
        let of = engine.clone();
        let pass = move |now: Timestamp| {
            let engine = of.clone();
            async move {
                let parked = engine.park_undecided(&Caller::admin(), now.before(waits)).await;
                let parked = parked.map_err(|err| format!("looking for undecided work: {err}"))?;
                Ok(counted(u64::from(parked), "put on their branches"))
            }
        };
        engine.loop_add(Every { name: "undecided-work", every: UNDECIDED_EVERY, pass }).await;
    }
    if let Some(older_than) = config.retention {
        let of = engine.clone();
        let pass = move |_| {
            let engine = of.clone();
            async move {
                let pruned = engine.prune(&Caller::admin(), older_than).await;
                let pruned = pruned.map_err(|err| format!("retention failed: {err}"))?;
                Ok(counted(pruned.sessions, "runs removed"))
            }
        };
        engine.loop_add(Every { name: "retention", every: RETENTION_EVERY, pass }).await;
    }
}

/// It works in batches, so that other commits continue between them.
async fn collect(memory: Arc<dyn Memory>) -> Result<String, String> {
    let mut all = 0;
    loop {
        let gone = memory.collect(COLLECT_BATCH).await;
        let gone = gone.map_err(|err| format!("removing expired memory failed: {err}"))?;
        all += gone;
        if gone < u64::from(COLLECT_BATCH) {
            return Ok(counted(all, "removed"));
        }
    }
}

fn counted(count: u64, what: &str) -> String {
    if count == 0 { String::new() } else { format!("{count} {what}") }
}
