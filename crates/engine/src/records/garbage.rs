//! The loop `garbage`: deletes records that no other code deletes.
//!
//! It deletes records whose owner is gone and expired records, and releases owners that wait for
//! the records that they own. Deletions do the same at once; the loop handles crashes between two
//! commits, removed runs, and expiry.

use std::time::Duration;

use overmind_core::Fut;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::record::{Owner, Record};
use overmind_core::store::{StoreError, StreamId};
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use super::delete::{FOREGROUND, PAGE, waits};
use crate::Engine;
use crate::error::EngineError;

/// The time between two passes without a change: the longest time that a record outlives its
/// expiry.
const EVERY: Duration = Duration::from_mins(1);
/// The shortest time between two passes caused by changes. A pass reads every record with an owner.
const GAP: Duration = Duration::from_secs(10);
/// The name under which it deletes.
const BY: &str = "system";

pub(crate) struct Garbage {
    engine: Engine,
    changes: watch::Receiver<u64>,
    /// The last change before the last pass.
    seen: u64,
    /// No change starts a pass before this time.
    rests: Timestamp,
}

impl Garbage {
    pub(crate) fn new(engine: Engine) -> Self {
        let changes = engine.cortex.watchers.watch(StreamId::Records);
        let (seen, rests) = (*changes.borrow(), engine.cortex.clock.now());
        Self { engine, changes, seen, rests }
    }
}

impl Reconcile for Garbage {
    fn name(&self) -> &'static str {
        "garbage"
    }

    fn pace(&self) -> Pace {
        Pace::every(EVERY).at_once()
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(async move {
            let seen = self.seen;
            if self.changes.wait_for(|now| *now != seen).await.is_err() {
                // Nothing changes any more: the engine is stopping.
                std::future::pending::<()>().await;
            }
            self.engine.cortex.clock.sleep_until(self.rests).await;
        })
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            self.seen = *self.changes.borrow();
            self.rests = now.after(GAP);
            self.engine.record_collect(now).await.map(Report::new)
        })
    }
}

/// The sum of many results: a failure does not stop the others.
#[derive(Default)]
struct Tally {
    done: u64,
    error: Option<StoreError>,
}

impl Tally {
    fn add(&mut self, done: Result<bool, StoreError>) {
        match done {
            Ok(done) => self.done += u64::from(done),
            Err(err) => self.error = Some(err),
        }
    }

    fn total(self) -> Result<u64, StoreError> {
        self.error.map_or(Ok(self.done), Err)
    }
}

impl Engine {
    /// Deletes records whose owners are gone, which a crash in between can leave. Returns how many
    /// are gone; finalizers may hold others.
    ///
    /// # Errors
    ///
    /// Returns the store's error; the other records are deleted anyway.
    pub async fn record_orphans_delete(&self) -> Result<u64, EngineError> {
        let (mut after, mut tally) = (None, Tally::default());
        loop {
            let orphans = self.records.record_orphans(after, PAGE).await?;
            let Some(last) = orphans.last() else { return Ok(tally.total()?) };
            after = Some(last.id);
            for orphan in orphans {
                tally.add(self.delete_one(BY, orphan).await);
            }
        }
    }

    /// Deletes expired records. Returns how many are gone.
    async fn record_expired_delete(&self, now: Timestamp) -> Result<u64, StoreError> {
        let (mut after, mut tally) = (None, Tally::default());
        loop {
            let expired = self.records.record_expired(now, after, PAGE).await?;
            let last = expired.last().and_then(|last| Some((last.expires_at?, last.id)));
            let Some(last) = last else { return tally.total() };
            after = Some(last);
            for record in expired {
                tally.add(self.delete_one(BY, record).await);
            }
        }
    }

    /// Continues deletions in which owned records are deleted first. Returns how many of the owners
    /// are gone.
    async fn record_waiting_release(&self) -> Result<u64, StoreError> {
        let (mut after, mut tally) = (None, Tally::default());
        loop {
            let deleting = self.records.record_deleting(after, PAGE).await?;
            let Some(last) = deleting.last() else { return tally.total() };
            after = Some(last.id);
            for owner in deleting.into_iter().filter(waits) {
                tally.add(self.released(owner).await);
            }
        }
    }

    async fn released(&self, owner: Record) -> Result<bool, StoreError> {
        let id = owner.id;
        // The last owned record releases the owner.
        self.delete_owned(BY, Owner::Record(id)).await?;
        let Some(owner) = self.records.record_by_id(id).await? else { return Ok(true) };
        match waits(&owner) && self.owned(Owner::Record(id)).await?.is_empty() {
            true => self.finalized(BY, owner, FOREGROUND).await,
            false => Ok(false),
        }
    }

    async fn record_collect(&self, now: Timestamp) -> Result<String, String> {
        let orphans = self.record_orphans_delete().await.map_err(|err| err.to_string());
        let expired = self.record_expired_delete(now).await.map_err(|err| err.to_string());
        let released = self.record_waiting_release().await.map_err(|err| err.to_string());
        let unbound = self.budgets().unbind_records().await.map_err(|err| err.to_string());
        let mut said = Vec::new();
        for (count, what) in [
            (orphans?, "without their owner deleted"),
            (expired?, "expired"),
            (released?, "deleted after what they owned"),
            (unbound?, "gone, whose limits are removed"),
        ] {
            if count > 0 {
                said.push(format!("{count} {what}"));
            }
        }
        Ok(said.join(", "))
    }
}
