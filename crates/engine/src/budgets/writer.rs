//! The task that makes decisions of the ledger durable: in their order, in groups.
//!
//! Decisions that wait while a group is being written become the next group: one commit with one
//! row for each changed window, however many calls changed it. If the store refuses a group, its
//! reservations are undone; the ends of calls in it are tried again until they are written.
//!
//! Ends for which nobody waits are collected for a moment ([`LINGER`], [`LINGER_IDLE`]), because
//! each would otherwise need its own disk write. Before calls or sums are read, they are written
//! ([`Budgets::flush`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overmind_core::budget::{
    BudgetChange, CallRecord, Limit, Moved, Reached, Reservation, Spend, WindowKey, Windowed,
    period,
};
use overmind_core::ids::InboxId;
use overmind_core::inbox::{InboxItem, InboxKind};
use overmind_core::relay::Ending;
use overmind_core::store::{Change, Commit, NewEvent, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::native::ENGINE;
use super::{Budgets, Stage, Ticket, Waiting};

/// Maximum number of decisions in one commit.
const GROUP: usize = 256;
/// How long ends for which nobody waits are collected: a commit costs about the same for one call
/// and for fifty. After a crash in this time, their calls are settled at their maximum cost.
const LINGER: Duration = Duration::from_millis(5);
/// The same for calls that are free and charged to no limit; their sessions' logs contain them
/// already.
const LINGER_IDLE: Duration = Duration::from_millis(50);
/// The wait before a commit that the disk refused is tried again.
const DISK_RETRY: Duration = Duration::from_millis(500);

type Ops = mpsc::UnboundedReceiver<Op>;
type Reply = oneshot::Sender<Result<(), StoreError>>;

#[derive(Debug)]
pub(super) enum Op {
    Reserve {
        reservation: Box<Reservation>,
        moved: Moved,
        /// For a caller that does not begin before it is on disk.
        ticket: Ticket,
        reply: oneshot::Sender<Result<Ticket, StoreError>>,
    },
    End {
        end: Box<End>,
        moved: Moved,
        /// Whether the call is free, charged to no limit, and made by the engine's own loop.
        idle: bool,
        /// The caller that waits until it is on disk, if any.
        reply: Option<Reply>,
    },
    /// Answered when everything before it is written, or was refused once.
    Flush { reply: Reply },
    /// An event that changes nothing.
    Note { event: NewEvent },
    /// A limit that the ledger has already. `fresh` means that earlier spending must be read;
    /// `before` is the previous limit.
    Put {
        limit: Box<Limit>,
        before: Option<Box<Limit>>,
        moved: Moved,
        fresh: bool,
        event: NewEvent,
        /// Changes for the same commit.
        also: Vec<Change>,
        reply: Reply,
    },
    /// Written alone and unchanged; `then` runs when it is on disk.
    Alone { commit: Commit, then: Then, reply: Reply },
}

/// The end of a call. Its event is built when it is written.
#[derive(Debug)]
pub(super) struct End {
    pub(super) reservation: Reservation,
    pub(super) record: CallRecord,
    pub(super) spend: Spend,
    pub(super) released: bool,
    /// Whether it cost more than was reserved.
    pub(super) above: bool,
    pub(super) absurd: bool,
    /// Whether it was in progress when the last process ended.
    pub(super) recovered: bool,
    pub(super) reached: Vec<Reached>,
    pub(super) now: Timestamp,
}

/// The action after a durable commit.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    Remove(overmind_core::ids::LimitId),
    Resume,
}

impl Op {
    /// Drops it without consequences, because no caller has its id.
    pub(super) fn defuse(self) {
        if let Self::Reserve { mut ticket, .. } = self {
            ticket.stage = Stage::Done;
        }
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::End { .. })
    }

    /// Whether anybody waits until it is on disk.
    fn is_waited_for(&self) -> bool {
        match self {
            Self::End { reply, .. } => reply.is_some(),
            Self::Reserve { .. } | Self::Flush { .. } | Self::Put { .. } | Self::Alone { .. } => {
                true
            }
            Self::Note { .. } => false,
        }
    }

    fn is_alone(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Alone { .. } => true,
            Self::Reserve { .. } | Self::End { .. } | Self::Flush { .. } | Self::Note { .. } => {
                false
            }
        }
    }

    /// Whether it may be collected for a moment.
    fn is_idle(&self) -> bool {
        matches!(self, Self::End { idle: true, .. })
    }
}

impl Budgets {
    /// Writes until `stop` is cancelled, and then everything that was queued by then.
    pub(crate) async fn write(self, waiting: Waiting, stop: CancellationToken) {
        let Waiting(mut ops) = waiting;
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(op) => Some(op),
                None => tokio::select! {
                    biased;
                    op = ops.recv() => op,
                    () = stop.cancelled() => {
                        ops.close();
                        ops.recv().await
                    }
                },
            };
            let Some(first) = first else { return };
            if first.is_alone() {
                self.one(first).await;
                continue;
            }
            let mut group = vec![first];
            next = gather(&mut ops, &mut group);
            if next.is_none() && !group.iter().any(Op::is_waited_for) {
                next = self.linger(&mut ops, &mut group, &stop).await;
            }
            self.group(group, &mut ops, &mut next, &stop).await;
        }
    }

    /// Fills a group for which nobody waits, until somebody waits, it is full, or its time is over.
    /// Returns an operation that cannot join it and comes next.
    async fn linger(
        &self,
        ops: &mut Ops,
        group: &mut Vec<Op>,
        stop: &CancellationToken,
    ) -> Option<Op> {
        let begun = self.0.clock.now();
        let mut idle = group.iter().all(Op::is_idle);
        while group.len() < GROUP {
            let until = begun.after(if idle { LINGER_IDLE } else { LINGER });
            let op = tokio::select! {
                biased;
                Some(op) = ops.recv() => op,
                () = self.0.clock.sleep_until(until) => return None,
                () = stop.cancelled() => return None,
            };
            if op.is_alone() {
                return Some(op);
            }
            let hurries = op.is_waited_for();
            idle &= op.is_idle();
            group.push(op);
            if hurries {
                return gather(ops, group);
            }
        }
        None
    }

    /// Writes everything that was decided until now, so that reads of the store find it. If the
    /// store refuses, it waits only once.
    pub(crate) async fn flush(&self) {
        if self.0.ends.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (reply, answer) = oneshot::channel();
        {
            // The order of the decisions is kept.
            let _ledger = self.ledger();
            let _ = self.0.queue.send(Op::Flush { reply });
        }
        // It was refused, or the writer has ended: the store reports that itself.
        let _ = answer.await;
    }

    /// Writes a group, and tries again to write what must not be lost.
    async fn group(
        &self,
        mut group: Vec<Op>,
        ops: &mut Ops,
        next: &mut Option<Op>,
        stop: &CancellationToken,
    ) {
        loop {
            let commit = commit_of(&group);
            let done = if commit.events.is_empty() && commit.changes.is_empty() {
                Ok(())
            } else {
                self.0.store.commit(commit).await.map(drop)
            };
            let err = match done {
                Ok(()) => {
                    let done = group.iter().filter(|op| op.is_end()).count();
                    self.0.ends.fetch_sub(done, Ordering::Relaxed);
                    let warned = group
                        .iter()
                        .any(|op| matches!(op, Op::End { end, .. } if !end.reached.is_empty()));
                    group.into_iter().for_each(|op| answer(op, Ok(())));
                    if warned {
                        self.0.inbox.send_modify(|changes| *changes += 1);
                    }
                    return;
                }
                Err(err) => err,
            };
            tracing::error!(error = %err, "budgets cannot be written");
            let again = err.is_transient() && !stop.is_cancelled();
            let had = group.iter().filter(|op| op.is_end()).count();
            group = self.take_back(group, &err, again);
            let kept = group.iter().filter(|op| op.is_end()).count();
            self.0.ends.fetch_sub(had - kept, Ordering::Relaxed);
            if group.is_empty() {
                return;
            }
            let at = self.0.clock.now().after(DISK_RETRY);
            tokio::select! {
                () = self.0.clock.sleep_until(at) => {}
                () = stop.cancelled() => {}
            }
            // Callers that asked meanwhile must not wait for a full disk.
            if next.is_none() {
                *next = gather(ops, &mut group);
            }
        }
    }

    /// Undoes the reservations of a group. With `again`, the ends of calls in it are kept for
    /// another attempt.
    fn take_back(&self, group: Vec<Op>, err: &StoreError, again: bool) -> Vec<Op> {
        let mut kept = Vec::new();
        for op in group {
            match op {
                Op::Reserve { mut ticket, reply, .. } => {
                    ticket.stage = Stage::Done;
                    self.ledger().release(ticket.call());
                    let _ = reply.send(Err(err.clone()));
                }
                // It is written when there is space again.
                op @ (Op::End { .. } | Op::Note { .. }) if again => kept.push(op),
                op => answer(op, Err(err.clone())),
            }
        }
        kept
    }

    async fn one(&self, op: Op) {
        match op {
            Op::Put { limit, before, moved, fresh, event, also, reply } => {
                let done = self.put(&limit, moved, fresh, event, also).await;
                if done.is_err() {
                    // Restores the previous state: the new limit never existed.
                    let mut ledger = self.ledger();
                    match before {
                        Some(before) => drop(ledger.put(*before, limit.updated_at)),
                        None => drop(ledger.remove(limit.id)),
                    }
                }
                self.0.ready.notify_waiters();
                self.free();
                let _ = reply.send(done);
            }
            Op::Alone { commit, then, reply } => {
                let done = self.0.store.commit(commit).await.map(drop);
                if done.is_ok() {
                    match then {
                        Then::Nothing => {}
                        Then::Remove(id) => drop(self.ledger().remove(id)),
                        Then::Resume => self.ledger().set_halt(None),
                    }
                }
                self.free();
                let _ = reply.send(done);
            }
            Op::Reserve { .. } | Op::End { .. } | Op::Flush { .. } | Op::Note { .. } => {}
        }
    }

    async fn put(
        &self,
        limit: &Limit,
        mut moved: Moved,
        fresh: bool,
        event: NewEvent,
        also: Vec<Change>,
    ) -> Result<(), StoreError> {
        let (scope, period) = (limit.scope, limit.period);
        let mut changes = also;
        if fresh {
            // Everything that was decided before is on disk, and all later decisions use the new
            // window.
            let start = period.start(limit.updated_at);
            let baseline = self.0.store.budget_baseline(scope, period::day_of(start)).await?;
            moved.extend(self.ledger().loaded(scope, period, limit.updated_at, baseline));
            changes.push(budget(BudgetChange::WindowsDelete { scope, period }));
        }
        changes.push(budget(BudgetChange::LimitPut(limit.clone())));
        changes.extend(merged(moved.iter()));
        let commit = Commit { guards: Vec::new(), events: vec![event], changes };
        self.0.store.commit(commit).await.map(drop)
    }
}

/// Fills a group; returns an operation that cannot join it and comes next.
fn gather(ops: &mut Ops, group: &mut Vec<Op>) -> Option<Op> {
    while group.len() < GROUP {
        match ops.try_recv() {
            Ok(op) if op.is_alone() => return Some(op),
            Ok(op) => group.push(op),
            Err(_) => return None,
        }
    }
    None
}

fn answer(op: Op, done: Result<(), StoreError>) {
    match op {
        Op::Reserve { ticket, reply, .. } => {
            // A caller that no longer waits has sent nothing, which the ticket knows.
            let _ = reply.send(done.map(|()| ticket));
        }
        Op::End { reply: None, .. } => {}
        Op::End { reply: Some(reply), .. }
        | Op::Flush { reply }
        | Op::Put { reply, .. }
        | Op::Alone { reply, .. } => drop(reply.send(done)),
        Op::Note { .. } => {}
    }
}

fn budget(change: BudgetChange) -> Change {
    Change::Budget(Box::new(change))
}

/// One change for each window.
fn merged<'a>(moved: impl Iterator<Item = &'a Windowed>) -> impl Iterator<Item = Change> {
    let mut windows: BTreeMap<WindowKey, Windowed> = BTreeMap::new();
    for moved in moved {
        windows.entry(moved.key).and_modify(|sum| *sum = sum.and(*moved)).or_insert(*moved);
    }
    windows.into_values().map(|moved| budget(BudgetChange::WindowMove(moved)))
}

fn commit_of(group: &[Op]) -> Commit {
    let (mut events, mut changes, mut moves) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reserved, mut at) = (Vec::new(), None::<Timestamp>);
    for op in group {
        match op {
            Op::Reserve { reservation, moved, .. } => {
                let ask = &reservation.ask;
                moves.extend(moved);
                reserved.push(json!({
                    "call_id": ask.call, "run_id": ask.session, "model": ask.model,
                    "worst": ask.worst,
                }));
                at = at.max(Some(ask.at));
                changes.push(budget(BudgetChange::ReservationPut((**reservation).clone())));
            }
            Op::End { end, moved, .. } => {
                let record = &end.record;
                events.push(ended_event(end));
                changes.push(budget(BudgetChange::ReservationDelete(record.call)));
                changes.push(budget(BudgetChange::CallInsert(Box::new(record.clone()))));
                moves.extend(moved);
                for reached in &end.reached {
                    let (event, item) = warning(reached, record);
                    events.push(event);
                    changes.push(Change::InboxPut(Box::new(item)));
                }
            }
            Op::Note { event } => events.push(event.clone()),
            Op::Flush { .. } | Op::Put { .. } | Op::Alone { .. } => {}
        }
    }
    if let Some(ts) = at {
        // There is one event for the whole group: each call has its own when it ends.
        let payload = json!({"calls": reserved});
        events.push(NewEvent { stream: StreamId::System, kind: "budget.reserved", ts, payload });
    }
    changes.extend(merged(moves.into_iter()));
    Commit { guards: Vec::new(), events, changes }
}

/// The event of a call's end, in its session's stream.
fn ended_event(end: &End) -> NewEvent {
    let End { reservation, record, spend, released, above, absurd, recovered, reached: _, now } =
        end;
    let ask = &reservation.ask;
    // There is one for each call, so its map must not need to grow.
    let mut payload = Map::with_capacity(20);
    let mut tell = |name: &str, what: Value| payload.insert(name.to_owned(), what);
    tell("call_id", json!(ask.call));
    tell("run_id", json!(ask.session));
    tell("agent_id", json!(ask.agent));
    tell("caller", json!(ask.caller));
    tell("provider", json!(record.provider));
    tell("model", json!(record.model));
    tell("format", json!(record.format));
    tell("reserved", json!(ask.worst));
    tell("spent", json!(spend));
    tell("usage", json!(record.usage));
    tell("ended", json!(record.ended));
    tell("status", json!(record.status));
    tell("first_byte_ms", json!(record.first_byte_ms));
    tell("total_ms", json!(record.total_ms));
    if record.model != ask.model {
        tell("requested_model", json!(ask.model));
    }
    if let Some(session) = &record.asked.client_session {
        tell("client_session", json!(session));
    }
    if let Some(trace) = record.asked.trace {
        tell("traceparent", json!(trace));
    }
    let Ending { id, finish, error } = &record.ending;
    if let Some(id) = id {
        tell("response_id", json!(id));
    }
    if !finish.is_empty() {
        tell("finish_reasons", json!(finish));
    }
    if let Some(error) = error {
        tell("error", json!(error));
    }
    if record.at_most {
        tell("at_most", true.into());
    }
    if *above {
        tell("above_reservation", true.into());
    }
    if *absurd {
        tell("absurd_usage", true.into());
    }
    if *recovered {
        tell("recovered", true.into());
    }
    for (name, content) in [("request", &record.request), ("response", &record.response)] {
        if let Some(content) = content {
            tell(name, json!(content.digest));
        }
    }
    let payload = Value::Object(payload);
    // The session's log already contains the engine's own calls.
    let own = ask.caller == ENGINE;
    let session = ask.session.filter(|_| !own);
    NewEvent {
        stream: session.map_or(StreamId::System, StreamId::Session),
        kind: if *released { "budget.released" } else { "budget.settled" },
        ts: *now,
        payload,
    }
}

/// The event and the inbox item for a reached soft limit; the item can be answered with an
/// increase.
fn warning(reached: &Reached, record: &CallRecord) -> (NewEvent, InboxItem) {
    let Reached { limit, key, window } = reached;
    let at = record.started_at;
    let details = json!({
        "why": "soft_limit", "limit_id": limit.id, "scope": limit.scope, "period": limit.period,
        "microusd": limit.microusd_in(key.start), "tokens": limit.tokens_in(key.start),
        "spent_microusd": window.spent.microusd, "spent_tokens": window.spent.tokens,
        "resets_at": key.period.end(key.start), "call_id": record.call,
    });
    let who = if limit.scope.of_admins() { " (only an admin may raise it)" } else { "" };
    let title = format!(
        "{} has reached its soft limit of this {}{who}",
        limit.scope,
        limit.period.as_str()
    );
    let event = NewEvent {
        stream: StreamId::System,
        kind: "budget.soft_limit",
        ts: at,
        payload: details.clone(),
    };
    // There is one for each window and call that reached it, so a changed limit may warn again.
    let id = InboxId::from_u128(record.call.as_u128() ^ limit.id.as_u128().rotate_left(64));
    let item = InboxItem {
        agent: record.agent,
        group: Some(super::group_of(limit.id)),
        expires_at: key.period.end(key.start),
        ..InboxItem::open(id, record.colony, InboxKind::Raise, title, details, at)
    };
    (event, item)
}
