//! The one task that makes decisions of the ledger durable: in their order, in groups.
//!
//! What waits while a group is being written becomes the next group: one commit with one row for
//! each window that moved, however many calls moved it. A group that the store refuses is taken
//! back as far as it reserves; what it ends is tried again until it is written.
//!
//! What nobody waits for and no limit counts, the ends of free calls, is gathered for a moment
//! ([`LINGER`]): alone it would cost the session that asked a turn of the disk. Whoever reads calls
//! or sums has it written first ([`Budgets::flush`]).

use std::collections::BTreeMap;
use std::time::Duration;

use overmind_core::budget::{
    BudgetChange, CallRecord, Limit, Moved, Reached, Reservation, WindowKey, Windowed, period,
};
use overmind_core::ids::InboxId;
use overmind_core::inbox::{InboxItem, InboxKind, InboxState};
use overmind_core::store::{Change, Commit, NewEvent, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Budgets, Stage, Ticket, Waiting};

/// Most decisions in one commit.
const GROUP: usize = 256;
/// How long the ends of free calls are gathered. A crash may forget those of this time.
const LINGER: Duration = Duration::from_millis(50);
/// How long to wait before a commit that the disk refused is tried again.
const DISK_RETRY: Duration = Duration::from_millis(500);

type Reply = oneshot::Sender<Result<(), StoreError>>;

#[derive(Debug)]
pub(super) enum Op {
    Reserve {
        reservation: Box<Reservation>,
        moved: Moved,
        ticket: Ticket,
        reply: oneshot::Sender<Result<Ticket, StoreError>>,
    },
    End {
        record: Box<CallRecord>,
        moved: Moved,
        event: NewEvent,
        reached: Vec<Reached>,
        /// Free, counted nowhere, and waited for by nobody.
        idle: bool,
        reply: Reply,
    },
    /// Answered when all before it is written, or has been refused once.
    Flush { reply: Reply },
    /// Something to tell of that changes nothing.
    Note { event: NewEvent },
    /// A limit that the ledger has already. `fresh` when what was spent before is to be looked
    /// up; `before` is what stood there.
    Put {
        limit: Box<Limit>,
        before: Option<Box<Limit>>,
        moved: Moved,
        fresh: bool,
        event: NewEvent,
        /// Changes of the same commit.
        also: Vec<Change>,
        reply: Reply,
    },
    /// Written as it stands, alone; `then` runs when it is.
    Alone { commit: Commit, then: Then, reply: Reply },
}

/// What follows from a commit that is durable.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    Remove(overmind_core::ids::LimitId),
    Resume,
}

impl Op {
    /// Lets go of it without consequences: nothing of it is known to anyone.
    pub(super) fn defuse(self) {
        if let Self::Reserve { mut ticket, .. } = self {
            ticket.stage = Stage::Done;
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

    /// Whether it may be gathered for a moment.
    fn is_idle(&self) -> bool {
        matches!(self, Self::End { idle: true, .. })
    }
}

impl Budgets {
    /// Writes until `stop` is cancelled, and then what has been queued by then.
    pub(crate) async fn write(self, waiting: Waiting, stop: CancellationToken) {
        let Waiting(mut ops) = waiting;
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(op) => op,
                None => tokio::select! {
                    biased;
                    op = ops.recv() => match op {
                        Some(op) => op,
                        None => return,
                    },
                    () = stop.cancelled() => {
                        ops.close();
                        match ops.try_recv() {
                            Ok(op) => op,
                            Err(_) => return,
                        }
                    }
                },
            };
            if first.is_alone() {
                self.one(first).await;
                continue;
            }
            let mut group = vec![first];
            next = gather(&mut ops, &mut group);
            if next.is_none() && group.iter().all(Op::is_idle) {
                next = self.linger(&mut ops, &mut group, &stop).await;
            }
            self.group(group, &mut ops, &mut next, &stop).await;
        }
    }

    /// Fills a group of which nothing hurries, until something does, it is full, or [`LINGER`] is
    /// over. Answers what cannot be in it and comes next.
    async fn linger(
        &self,
        ops: &mut mpsc::UnboundedReceiver<Op>,
        group: &mut Vec<Op>,
        stop: &CancellationToken,
    ) -> Option<Op> {
        let until = self.0.clock.sleep_until(self.0.clock.now().after(LINGER));
        tokio::pin!(until);
        while group.len() < GROUP {
            let op = tokio::select! {
                biased;
                op = ops.recv() => op?,
                () = &mut until => return None,
                () = stop.cancelled() => return None,
            };
            if op.is_alone() {
                return Some(op);
            }
            let hurries = !op.is_idle();
            group.push(op);
            if hurries {
                return gather(ops, group);
            }
        }
        None
    }

    /// Has everything written that was decided until now: reads of the store find it then. A
    /// store that refuses is waited for once.
    pub(super) async fn flush(&self) {
        let (reply, answer) = oneshot::channel();
        {
            // In the order of the decisions, as all others.
            let _ledger = self.ledger();
            let _ = self.0.queue.send(Op::Flush { reply });
        }
        // Refused, or nobody writes any more: the store says so itself.
        let _ = answer.await;
    }

    /// Writes a group, and tries again what must not be lost.
    async fn group(
        &self,
        mut group: Vec<Op>,
        ops: &mut mpsc::UnboundedReceiver<Op>,
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
                    let warned = group
                        .iter()
                        .any(|op| matches!(op, Op::End { reached, .. } if !reached.is_empty()));
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
            group = self.take_back(group, &err, again);
            if group.is_empty() {
                return;
            }
            let at = self.0.clock.now().after(DISK_RETRY);
            tokio::select! {
                () = self.0.clock.sleep_until(at) => {}
                () = stop.cancelled() => {}
            }
            // Whoever asked in the meantime is not kept waiting for a disk that is full.
            if next.is_none() {
                *next = gather(ops, &mut group);
            }
        }
    }

    /// Takes back what a group reserves. What it ends is kept to be written `again`.
    fn take_back(&self, group: Vec<Op>, err: &StoreError, again: bool) -> Vec<Op> {
        let mut kept = Vec::new();
        for op in group {
            match op {
                Op::Reserve { mut ticket, reply, .. } => {
                    ticket.stage = Stage::Done;
                    self.ledger().release(ticket.call());
                    let _ = reply.send(Err(err.clone()));
                }
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
                    // As it was: the new limit was never there.
                    let mut ledger = self.ledger();
                    match before {
                        Some(before) => drop(ledger.put(*before, limit.updated_at)),
                        None => drop(ledger.remove(limit.id)),
                    }
                }
                self.0.ready.notify_waiters();
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
            // All that was decided before is on disk, and all that is decided from here on finds
            // the new window.
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

/// Fills a group; answers what cannot be in it and comes next.
fn gather(ops: &mut mpsc::UnboundedReceiver<Op>, group: &mut Vec<Op>) -> Option<Op> {
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
            // Whoever does not wait any more sent nothing: the ticket knows.
            let _ = reply.send(done.map(|()| ticket));
        }
        Op::End { reply, .. } | Op::Flush { reply } => drop(reply.send(done)),
        Op::Put { reply, .. } | Op::Alone { reply, .. } => drop(reply.send(done)),
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
                reserved.push(json!({
                    "call_id": ask.call, "run_id": ask.session, "model": ask.model,
                    "worst": ask.worst,
                }));
                at = at.max(Some(ask.at));
                changes.push(budget(BudgetChange::ReservationPut((**reservation).clone())));
                moves.extend(moved);
            }
            Op::End { record, moved, event, reached, .. } => {
                events.push(event.clone());
                changes.push(budget(BudgetChange::ReservationDelete(record.call)));
                changes.push(budget(BudgetChange::CallInsert((**record).clone())));
                moves.extend(moved);
                for reached in reached {
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
        // One event for all of a group: each call has its own when it ends.
        let payload = json!({"calls": reserved});
        events.push(NewEvent { stream: StreamId::System, kind: "budget.reserved", ts, payload });
    }
    changes.extend(merged(moves.into_iter()));
    Commit { guards: Vec::new(), events, changes }
}

/// What is told when a soft limit is reached: an event, and an item of the inbox that may be
/// answered with more.
fn warning(reached: &Reached, record: &CallRecord) -> (NewEvent, InboxItem) {
    let Reached { limit, key, window } = reached;
    let at = record.started_at;
    let details = json!({
        "why": "soft_limit", "limit_id": limit.id, "scope": limit.scope, "period": limit.period,
        "microusd": limit.microusd_in(key.start), "tokens": limit.tokens_in(key.start),
        "spent_microusd": window.spent.microusd, "spent_tokens": window.spent.tokens,
        "resets_at": key.period.end(key.start), "call_id": record.call,
    });
    let title =
        format!("{} has reached its soft limit of this {}", limit.scope, limit.period.as_str());
    let event = NewEvent {
        stream: StreamId::System,
        kind: "budget.soft_limit",
        ts: at,
        payload: details.clone(),
    };
    let item = InboxItem {
        // One for each window and call that reached it: a changed limit may warn again.
        id: InboxId::from_u128(record.call.as_u128() ^ limit.id.as_u128().rotate_left(64)),
        colony: record.colony,
        session: None,
        agent: record.agent,
        agent_name: String::new(),
        epoch: 0,
        kind: InboxKind::Raise,
        state: InboxState::Open,
        title,
        details,
        group: Some(super::admin::group_of(limit.id)),
        asked_at: at,
        expires_at: key.period.end(key.start),
        answered_at: None,
        answered_by: None,
        answer: None,
        changed: 0,
    };
    (event, item)
}
