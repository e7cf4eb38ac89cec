//! Budgets: reserve before a call and settle after it, so that no cost is lost in between.
//!
//! The ledger is in memory and decides under a lock. Its decisions go, in their order, to one task
//! that makes them durable in groups ([`writer`]). A reservation is on disk before its [`Ticket`]
//! is returned. A dropped ticket is settled at its maximum cost; so are tickets that a crash left,
//! at the next start. If the disk refuses a reservation, it is undone.

mod admin;
mod follow;
mod meter;
mod native;
mod turn;
mod writer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::budget::{
    Ask, CallRecord, Ended, Halt, KeyName, Ledger, Prices, Refusal, Reservation, Scope, Settled,
    Spend,
};
use overmind_core::ids::{CallId, ColonyId, IdSource, RecordId, SessionId};
use overmind_core::model::Usage;
use overmind_core::record::Owner;
use overmind_core::record::rows::RecordRows;
use overmind_core::store::{NewEvent, Store, StoreError, StreamId};
use overmind_core::time::{Clock, Timestamp};
use serde_json::json;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use self::admin::group_of;
pub use self::admin::{Halting, LimitView, NewLimit, Raise};
pub(crate) use self::native::{Held, Unheld};
use self::writer::{End, Op};

/// Maximum number of sessions whose scopes are cached.
const KEPT_LINES: usize = 10_000;
/// Maximum number of levels of parent sessions and owners to which a call is charged.
const GENERATIONS: usize = 32;
/// A repeated refusal is recorded once in this time.
const REFUSALS: Duration = Duration::from_secs(60);
/// Maximum number of different refusals that are remembered for that.
const KEPT_REFUSALS: usize = 1_000;
/// The setting that stores an emergency stop.
const HALT: &str = "budget/halt";

/// Why there is no ticket, or why a settlement is not on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A limit, an unknown price or an emergency stop refuses it. Nothing was reserved.
    #[error("{}", .0.message())]
    Refused(Box<Refusal>),
    /// A call with this id is in progress.
    #[error("call {0} is already in progress")]
    Twice(CallId),
    /// The reservation could not be made durable and was undone; or a settlement was not written,
    /// so the next start settles the call at its maximum cost.
    #[error("the budget could not be saved")]
    Store(#[source] StoreError),
}

/// A reservation that is on disk. Pass it to [`Budgets::settle`] or [`Budgets::release`]; if it is
/// dropped instead, its maximum cost counts.
#[derive(Debug)]
#[must_use = "a ticket that is dropped counts at its worst"]
pub struct Ticket {
    ask: Ask,
    budgets: Budgets,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being returned to the caller, so nothing was sent yet.
    Fresh,
    /// The caller owns it.
    Open,
    Done,
}

impl Ticket {
    pub fn call(&self) -> CallId {
        self.ask.call
    }

    /// The request for which it was made.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.stage {
            Stage::Done => {}
            Stage::Fresh => {
                let record = CallRecord::of(&self.ask, Ended::Cancelled);
                let _ = self.budgets.end(self.ask.call, Outcome::Nothing, record, UNWATCHED);
            }
            Stage::Open => {
                let record = CallRecord::of(&self.ask, Ended::Unknown);
                let _ = self.budgets.end(self.ask.call, Outcome::Worst, record, UNWATCHED);
            }
        }
    }
}

/// The result of a decision.
enum Decided {
    Now(Ticket),
    /// The ticket follows once the reservation is on disk.
    Later(oneshot::Receiver<Result<Ticket, StoreError>>),
}

/// Decisions that wait to be made durable by [`Budgets::write`].
#[derive(Debug)]
pub(crate) struct Waiting(mpsc::UnboundedReceiver<Op>);

/// The result of a call.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Spent(Spend),
    Worst,
    Nothing,
}

/// The call belongs to this process, and a caller waits for its end on disk; or nobody does.
const WATCHED: (bool, bool) = (false, true);
const UNWATCHED: (bool, bool) = (false, false);

/// The budgets of one engine; clones share them.
#[derive(Clone, Debug)]
pub struct Budgets(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    prices: Arc<dyn Prices>,
    ledger: Mutex<Ledger>,
    /// The queue is unbounded, because each sender waits for an answer, or holds a ticket and sends
    /// once more. Values are sent under the ledger's lock, so that their order is that of the
    /// decisions.
    queue: mpsc::UnboundedSender<Op>,
    /// The number of queued ends of calls.
    ends: AtomicUsize,
    /// Notified when earlier spending for a new limit was read.
    ready: Notify,
    records: Arc<dyn RecordRows>,
    lines: Mutex<HashMap<SessionId, Arc<[Scope]>>>,
    refused: Mutex<HashMap<Repeat, Repeated>>,
    /// Locked while limits change, one after the other.
    limits: tokio::sync::Mutex<()>,
    /// Incremented when a refused call may succeed: a reservation has ended, or a limit has
    /// changed.
    freed: watch::Sender<u64>,
    /// Incremented by changes of the inbox; see `Cortex::inbox`.
    inbox: watch::Sender<u64>,
}

/// Identifies refusals that are the same to a reader.
type Repeat = (Option<SessionId>, &'static str, Option<Scope>);

#[derive(Debug)]
struct Repeated {
    told: Timestamp,
    since: u64,
}

/// The dependencies of [`Budgets::load`].
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) prices: Arc<dyn Prices>,
    pub(crate) records: Arc<dyn RecordRows>,
    pub(crate) inbox: watch::Sender<u64>,
}

impl Budgets {
    /// Reads limits, windows and the rest of a crash. Calls that were under way then are settled at
    /// their maximum cost; these entries are the first in the queue.
    pub(crate) async fn load(parts: Parts) -> Result<(Self, Waiting), StoreError> {
        let Parts { store, clock, ids, prices, records, inbox } = parts;
        let snapshot = store.budget_snapshot().await?;
        let halt = store.setting_fetch(HALT.to_owned()).await?;
        let left: Vec<Ask> = snapshot.open.iter().map(|open| open.ask.clone()).collect();
        let mut ledger = Ledger::load(snapshot);
        ledger.set_halt(halt.and_then(|halt| serde_json::from_value::<Halt>(halt).ok()));
        let (queue, waiting) = mpsc::unbounded_channel();
        let budgets = Self(Arc::new(Inner {
            store,
            clock,
            ids,
            prices,
            ledger: Mutex::new(ledger),
            queue,
            ends: AtomicUsize::new(0),
            ready: Notify::new(),
            records,
            lines: Mutex::default(),
            refused: Mutex::default(),
            limits: tokio::sync::Mutex::default(),
            freed: watch::Sender::new(0),
            inbox,
        }));
        if !left.is_empty() {
            tracing::warn!(
                calls = left.len(),
                "model calls of the last run are settled at their worst"
            );
        }
        for ask in left {
            let record = CallRecord::of(&ask, Ended::Unknown);
            let _ = budgets.end(ask.call, Outcome::Worst, record, (true, false));
        }
        Ok((budgets, Waiting(waiting)))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Each change of the ledger is one step that cannot stop halfway.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when a call that was refused because of current reservations may be tried again.
    pub(crate) fn freed(&self) -> watch::Receiver<u64> {
        self.0.freed.subscribe()
    }

    /// Notifies that something was freed.
    fn free(&self) {
        self.0.freed.send_modify(|times| *times = times.wrapping_add(1));
    }

    /// The known prices.
    pub fn prices(&self) -> &Arc<dyn Prices> {
        &self.0.prices
    }

    /// A new id for a call.
    pub fn call_id(&self) -> CallId {
        CallId::mint(&*self.0.ids)
    }

    /// All scopes to which a call of `ask` is charged.
    async fn scopes(&self, ask: &Ask) -> Result<Vec<Scope>, StoreError> {
        let mut scopes = vec![Scope::Swarm, Scope::Colony(ask.colony)];
        scopes.extend(ask.agent.map(Scope::Agent));
        if let Some(session) = ask.session {
            scopes.extend(self.line(session).await?.iter().copied());
        } else {
            scopes.extend(KeyName::of(&ask.caller).map(Scope::Key));
        }
        Ok(scopes)
    }

    /// A session and its parents, itself last, each after the records for which it exists. The
    /// owner of a record is read once: a change is only followed after the next start.
    async fn line(&self, session: SessionId) -> Result<Arc<[Scope]>, StoreError> {
        let kept = || self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get(&session) {
            return Ok(Arc::clone(known));
        }
        let mut line = vec![Scope::Session(session)];
        let mut at = self.0.store.session_fetch(session).await?;
        let exists = at.is_some();
        for _ in 0..GENERATIONS {
            let Some(row) = at else { break };
            self.owners_above(row.owner, &mut line).await?;
            let Some(parent) = row.parent else { break };
            if line.contains(&Scope::Session(parent)) {
                break;
            }
            line.push(Scope::Session(parent));
            at = self.0.store.session_fetch(parent).await?;
        }
        line.reverse();
        let line: Arc<[Scope]> = line.into();
        if exists {
            let mut kept = kept();
            if kept.len() >= KEPT_LINES {
                kept.clear();
            }
            kept.insert(session, Arc::clone(&line));
        }
        Ok(line)
    }

    /// Adds a record and its owners, itself first, each once.
    async fn owners_above(
        &self,
        mut owner: Option<RecordId>,
        line: &mut Vec<Scope>,
    ) -> Result<(), StoreError> {
        for _ in 0..GENERATIONS {
            let Some(id) = owner.filter(|id| !line.contains(&Scope::Owner(*id))) else { break };
            line.push(Scope::Owner(id));
            let record = self.0.records.record_by_id(id).await?;
            owner = match record.and_then(|record| record.owner) {
                Some(Owner::Record(above)) => Some(above),
                Some(Owner::Session(_)) | None => None,
            };
        }
        Ok(())
    }

    /// Whether a hard limit applies to calls of a session.
    pub async fn is_bounded(&self, ask: &Ask) -> Result<bool, BudgetError> {
        let scopes = self.scopes(ask).await.map_err(BudgetError::Store)?;
        Ok(self.ledger().is_bounded(&scopes))
    }

    /// Reserves the maximum cost of a call. When this returns a ticket, the reservation is on disk;
    /// nothing may be sent before.
    ///
    /// # Errors
    ///
    /// [`BudgetError`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future undoes the reservation.
    pub async fn reserve(&self, ask: Ask) -> Result<Ticket, BudgetError> {
        self.reserve_noting(ask, |_| true).await
    }

    /// Works as [`Budgets::reserve`], but refusals for which `notes` returns false are not
    /// recorded.
    async fn reserve_noting(
        &self,
        ask: Ask,
        notes: fn(&Refusal) -> bool,
    ) -> Result<Ticket, BudgetError> {
        match self.decided(&ask, notes).await? {
            Decided::Now(ticket) => Ok(ticket),
            Decided::Later(answer) => ticket_of(answer).await,
        }
    }

    async fn decided(
        &self,
        ask: &Ask,
        notes: fn(&Refusal) -> bool,
    ) -> Result<Decided, BudgetError> {
        let scopes = self.scopes(ask).await.map_err(BudgetError::Store)?;
        loop {
            let ready = self.0.ready.notified();
            tokio::pin!(ready);
            // It is enabled before the check, so that no notification in between is missed.
            ready.as_mut().enable();
            match self.decide(ask, &scopes) {
                Ok(Some(decided)) => return Ok(decided),
                Ok(None) => {}
                Err(BudgetError::Refused(refusal)) => {
                    if notes(&refusal) {
                        self.note(ask, &refusal);
                    }
                    return Err(BudgetError::Refused(Box::new(self.named(*refusal).await)));
                }
                Err(err) => return Err(err),
            }
            ready.await;
        }
    }

    /// A refusal that contains a readable name of the limit's scope.
    async fn named(&self, refusal: Refusal) -> Refusal {
        let Some(scope) = refusal.scope() else { return refusal };
        match self.name_of(scope).await {
            Some(name) => refusal.naming(name),
            None => refusal,
        }
    }

    /// The readable name of a scope with an id: `agent:coder`, `session:fix`, `fleet/web`. `None`
    /// if the scope contains it already, or its object is gone.
    async fn name_of(&self, scope: Scope) -> Option<String> {
        let Inner { store, records, .. } = &*self.0;
        match scope {
            Scope::Agent(id) => {
                let agent = store.agent_fetch(id).await.ok()??;
                Some(format!("agent:{}", agent.spec.name))
            }
            Scope::Session(id) => {
                let row = store.session_fetch(id).await.ok()??;
                Some(format!("session:{}", row.name))
            }
            Scope::Owner(id) => {
                let record = records.record_by_id(id).await.ok()??;
                Some(record.key.to_string())
            }
            Scope::Colony(id) if id != ColonyId::DEFAULT => {
                let record = RecordId::from_u128(id.as_u128());
                let record = records.record_by_id(record).await.ok()??;
                Some(format!("colony:{}", record.key.name))
            }
            Scope::Swarm | Scope::Colony(_) | Scope::Key(_) => None,
        }
    }

    /// Decides; `None` if something must be read first.
    fn decide(&self, ask: &Ask, scopes: &[Scope]) -> Result<Option<Decided>, BudgetError> {
        let mut ledger = self.ledger();
        if ledger.is_open(ask.call) {
            return Err(BudgetError::Twice(ask.call));
        }
        if !ledger.is_ready(scopes) {
            return Ok(None);
        }
        let moved = match ledger.reserve(ask, scopes) {
            Ok(moved) => moved,
            Err(refusal) => return Err(BudgetError::Refused(Box::new(refusal))),
        };
        if moved.is_empty() && ask.worst.microusd == Some(0) {
            // It costs nothing and is charged to no limit, so a crash may lose it.
            let ticket = Ticket { ask: ask.clone(), budgets: self.clone(), stage: Stage::Open };
            return Ok(Some(Decided::Now(ticket)));
        }
        let (reply, answer) = oneshot::channel();
        let ticket = Ticket { ask: ask.clone(), budgets: self.clone(), stage: Stage::Fresh };
        let reservation = Reservation { ask: ask.clone(), scopes: scopes.to_vec() };
        let op = Op::Reserve { reservation: Box::new(reservation), moved, ticket, reply };
        if let Err(SendError(op)) = self.0.queue.send(op) {
            ledger.release(ask.call);
            drop(ledger);
            op.defuse();
            return Err(BudgetError::Store(ended()));
        }
        Ok(Some(Decided::Later(answer)))
    }

    /// Ends a call that cost `spend` and stores its record, in one commit. A cost above the
    /// reservation counts and is reported. If `spend` has no price, the reserved one counts.
    ///
    /// # Errors
    ///
    /// [`BudgetError::Store`] if the store is closed or damaged: the next start settles the call at
    /// its maximum cost. A full disk is waited for.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing: the call is settled.
    pub async fn settle(
        &self,
        mut ticket: Ticket,
        spend: Spend,
        record: CallRecord,
    ) -> Result<(), BudgetError> {
        ticket.stage = Stage::Done;
        let answer = self.end(ticket.ask.call, Outcome::Spent(spend), record, WATCHED);
        written(answer).await
    }

    /// Ends a call that was not billed, and stores its record.
    ///
    /// # Errors
    ///
    /// The same as for [`Budgets::settle`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing: the call is released.
    pub async fn release(&self, mut ticket: Ticket, record: CallRecord) -> Result<(), BudgetError> {
        ticket.stage = Stage::Done;
        let answer = self.end(ticket.ask.call, Outcome::Nothing, record, WATCHED);
        written(answer).await
    }

    /// Decides how a call ends, and queues that. `None` if the call is not open, or nobody waits
    /// for the disk.
    fn end(
        &self,
        call: CallId,
        outcome: Outcome,
        mut record: CallRecord,
        (recovered, waited): (bool, bool),
    ) -> Option<oneshot::Receiver<Result<(), StoreError>>> {
        let mut ledger = self.ledger();
        let settled = match outcome {
            Outcome::Nothing => {
                let (reservation, moved) = ledger.release(call)?;
                let (spend, reached) = (Spend::NONE, Vec::new());
                Settled { reservation, spend, moved, above: false, absurd: false, reached }
            }
            Outcome::Spent(spend) => ledger.settle(call, spend)?,
            Outcome::Worst => ledger.settle_at_worst(call)?,
        };
        let Settled { reservation, spend, moved, above, absurd, reached } = settled;
        if absurd {
            let (provider, model, told) = (&record.provider, &record.model, record.usage);
            tracing::warn!(%call, provider, model, usage = ?told, "a provider tells of more tokens than any call has: what was reserved is counted");
        }
        // Daily sums and windows use the same time.
        record.started_at = reservation.ask.at;
        record.microusd = spend.microusd;
        record.at_most = match outcome {
            Outcome::Spent(_) => record.at_most || absurd,
            Outcome::Worst => true,
            Outcome::Nothing => false,
        } && spend.microusd.is_some_and(|cost| cost > 0);
        let told = record.usage.input_tokens.saturating_add(record.usage.output_tokens);
        if told == 0 || absurd {
            record.usage = Usage { input_tokens: spend.tokens, ..Usage::default() };
        }
        let released = matches!(outcome, Outcome::Nothing);
        let now = self.0.clock.now();
        let (reply, answer) = waited.then(oneshot::channel).unzip();
        // The session's log already contains such a call.
        let idle = moved.is_empty()
            && spend.microusd == Some(0)
            && reservation.ask.worst.microusd == Some(0)
            && reservation.ask.caller == native::ENGINE;
        let end =
            End { reservation, record, spend, released, above, absurd, recovered, reached, now };
        let op = Op::End { end: Box::new(end), moved, idle, reply };
        self.0.ends.fetch_add(1, Ordering::Relaxed);
        // If the queue is closed, the dropped reply informs the waiting caller.
        let _ = self.0.queue.send(op);
        drop(ledger);
        self.free();
        answer
    }

    /// Records a refusal, unless the same was just recorded.
    fn note(&self, ask: &Ask, refusal: &Refusal) {
        let key: Repeat = (ask.session, refusal.code(), refusal.scope());
        let now = self.0.clock.now();
        let times = {
            let mut refused = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.len() >= KEPT_REFUSALS && !refused.contains_key(&key) {
                refused.clear();
            }
            match refused.get_mut(&key) {
                // If the clock went back, it is recorded again, which is harmless.
                Some(known) if known.told <= now && now.since(known.told) < REFUSALS => {
                    known.since += 1;
                    return;
                }
                Some(known) => {
                    known.told = now;
                    std::mem::take(&mut known.since) + 1
                }
                None => {
                    refused.insert(key, Repeated { told: now, since: 0 });
                    1
                }
            }
        };
        let event = NewEvent {
            stream: ask.session.map_or(StreamId::System, StreamId::Session),
            kind: "budget.refused",
            ts: now,
            payload: json!({
                "call_id": ask.call, "run_id": ask.session, "agent_id": ask.agent,
                "caller": ask.caller, "provider": ask.provider, "model": ask.model,
                "worst": ask.worst, "times": times, "refusal": refusal,
            }),
        };
        let _ = self.0.queue.send(Op::Note { event });
    }
}

async fn written(
    answer: Option<oneshot::Receiver<Result<(), StoreError>>>,
) -> Result<(), BudgetError> {
    let Some(answer) = answer else { return Ok(()) };
    match answer.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(err)) => Err(BudgetError::Store(err)),
        Err(_) => Err(BudgetError::Store(ended())),
    }
}

fn ended() -> StoreError {
    StoreError::Closed { detail: "the budgets are no longer kept".into() }
}

/// Returns the ticket once its reservation is on disk.
async fn ticket_of(
    answer: oneshot::Receiver<Result<Ticket, StoreError>>,
) -> Result<Ticket, BudgetError> {
    match answer.await {
        Ok(Ok(mut ticket)) => {
            ticket.stage = Stage::Open;
            Ok(ticket)
        }
        Ok(Err(err)) => Err(BudgetError::Store(err)),
        Err(_) => Err(BudgetError::Store(ended())),
    }
}
