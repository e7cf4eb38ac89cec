//! Budgets: what a decision costs when there is a long history, and how many calls a second can
//! be reserved and settled durably.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_cli::exit::Failure;
use overmind_core::budget::{
    Ask, BudgetChange, CallRecord, Ended, Ledger, Limit, Period, Scope, Snapshot, Source, Spend,
    UnknownPrice, Windowed,
};
use overmind_core::ids::{CallId, ColonyId, LimitId};
use overmind_core::model::Usage;
use overmind_core::store::{Change, Commit, Store};
use overmind_core::time::Clock as _;
use overmind_engine::{BudgetError, Caller, Engine, NewLimit};
use overmind_node::app::clock::{SystemClock, SystemIds};
use overmind_store::{Options, Sqlite};
use tokio::task::JoinSet;

use super::engine::start_app;
use super::floors::Floors;
use super::{Figure, Goal, Setting, ms, percentile, rate};

/// Calls of the history, in a thorough run.
const HISTORY: u32 = 1_000_000;
/// Calls of one commit while the history is made.
const BULK: u32 = 1_000;
/// Concurrent calls.
const CALLERS: u32 = 128;

pub(super) async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("budgets")?;
    let history = setting.count(HISTORY);
    let data = dir.join("data");
    let app = start_app(&dir).await?;
    let _ = app.stop(std::future::pending()).await;
    past(&data.join("overmind.db"), history).await?;

    let app = start_app(&dir).await?;
    let engine = app.engine();
    for period in Period::ALL {
        for scope in [Scope::Swarm, Scope::Colony(ColonyId::DEFAULT)] {
            let new = NewLimit {
                scope,
                period,
                soft: false,
                microusd: Some(1 << 50),
                tokens: Some(1 << 50),
                unknown_price: UnknownPrice::Deny,
            };
            engine.budget_put(&Caller::admin(), new).await?;
        }
    }
    let mut alone = Vec::new();
    for _ in 0..setting.count(500) {
        let start = Instant::now();
        let ticket = engine.budgets().reserve(ask()).await.map_err(told)?;
        alone.push(start.elapsed());
        let record = CallRecord::of(ticket.ask(), Ended::Completed);
        engine.budgets().settle(ticket, Spend::new(7, 120), record).await.map_err(told)?;
    }
    alone.sort_unstable();

    let each = setting.count(400);
    let mut callers = JoinSet::new();
    let start = Instant::now();
    for _ in 0..CALLERS {
        callers.spawn(call(engine.clone(), each));
    }
    while let Some(done) = callers.join_next().await {
        done.map_err(|err| Failure::failed(format!("a caller ended: {err}")))?.map_err(told)?;
    }
    let elapsed = start.elapsed();
    let decided = decisions(history)?;
    let _ = app.stop(std::future::pending()).await;
    Ok(vec![
        Figure::new("budget decision", decided.as_secs_f64() * 1e6, "µs")
            .goal(Goal::Most(50.0))
            .note(format!("eight hard limits apply; {history} calls have been settled before")),
        Figure::new("budget reservation p50", ms(percentile(&alone, 0.5)), "ms")
            .floor("bare SQLite commit", ms(floors.commit))
            .goal(Goal::OverFloor(0.5))
            .note(format!(
                "one at a time, until it is on disk; {history} calls stand in the store"
            )),
        Figure::new("budgeted calls", rate(CALLERS * each, elapsed), "calls/s")
            .goal(Goal::Least(6_000.0))
            .note(format!(
                "{CALLERS} at once; each is reserved, then settled and recorded, durably"
            )),
    ])
}

fn told(err: BudgetError) -> Failure {
    Failure::failed(overmind_node::app::chain(&err))
}

fn ask() -> Ask {
    Ask {
        call: CallId::mint(&SystemIds),
        session: None,
        agent: None,
        colony: ColonyId::DEFAULT,
        caller: "bench".into(),
        provider: "bench".into(),
        model: "bench".into(),
        worst: Spend::new(10, 200),
        at: SystemClock.now(),
    }
}

async fn call(engine: Engine, count: u32) -> Result<(), BudgetError> {
    for _ in 0..count {
        let ticket = engine.budgets().reserve(ask()).await?;
        let record = CallRecord::of(ticket.ask(), Ended::Completed);
        engine.budgets().settle(ticket, Spend::new(7, 120), record).await?;
    }
    Ok(())
}

/// Writes calls as an engine would have.
async fn past(db: &std::path::Path, count: u32) -> Result<(), Failure> {
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(Options::new(db))?);
    for _ in 0..count / BULK {
        let changes = (0..BULK).map(|_| {
            let usage = Usage { input_tokens: 100, output_tokens: 20, ..Usage::default() };
            let microusd = Some(7);
            let record = CallRecord::of(&ask(), Ended::Completed);
            let record = CallRecord { usage, microusd, ..record };
            Change::Budget(Box::new(BudgetChange::CallInsert(Box::new(record))))
        });
        store.commit(Commit { changes: changes.collect(), ..Commit::default() }).await?;
    }
    store.close().await?;
    Ok(())
}

/// The decision alone: the ledger after so many calls.
fn decisions(history: u32) -> Result<Duration, Failure> {
    let scopes = [Scope::Swarm, Scope::Colony(ColonyId::DEFAULT)];
    let now = SystemClock.now();
    let limits = Period::ALL.into_iter().flat_map(|period| {
        scopes.map(|scope| Limit {
            id: LimitId::of(scope, period, false),
            scope,
            period,
            soft: false,
            microusd: Some(1 << 50),
            tokens: Some(1 << 50),
            unknown_price: UnknownPrice::Deny,
            source: Source::Set,
            extra: None,
            by: "bench".into(),
            created_at: now,
            updated_at: now,
        })
    });
    let mut ledger = Ledger::load(Snapshot { limits: limits.collect(), ..Snapshot::default() });
    let refused = |_| Failure::failed("the limits of the measurement are too small".to_owned());
    let one = |ledger: &mut Ledger| {
        let ask = ask();
        let start = Instant::now();
        let moved: Vec<Windowed> = ledger.reserve(&ask, &scopes).map_err(refused)?;
        let took = start.elapsed();
        std::hint::black_box(&moved);
        ledger.settle(ask.call, Spend::new(7, 120));
        Ok::<Duration, Failure>(took)
    };
    for _ in 0..history {
        one(&mut ledger)?;
    }
    let mut took = Vec::new();
    for _ in 0..10_000 {
        took.push(one(&mut ledger)?);
    }
    took.sort_unstable();
    Ok(percentile(&took, 0.5))
}
