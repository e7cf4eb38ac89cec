//! Deletes records with the records that they own.

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::ColonyId;
use overmind_core::record::decide::{self, Cascade, Deletion, Stamp};
use overmind_core::record::kinds::colony::{COLONY, id_of, is_of_swarm};
use overmind_core::record::rows::{RecordChange, RecordQuery};
use overmind_core::record::{KindInfo, Name, Owner, Record, RecordVerb};
use overmind_core::store::{Commit, Guard, StoreError};

use super::{RecordError, TRIES, absent, key};
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// Records that are read at once.
pub(super) const PAGE: u32 = 500;
/// Holds an owner until the records that it owns are gone; the name is that of Kubernetes.
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The handling of the records that a record owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CascadeWish {
    /// The record is deleted first, then the records that it owns.
    Background,
    /// The records that it owns are deleted first; the record stays, marked, while any of them is
    /// held.
    Foreground,
    /// The records that it owns stay, without an owner.
    Orphan,
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordDeleted {
    Gone,
    /// Finalizers hold it, or the records that it owns do.
    Marked,
}

impl Engine {
    /// Deletes a record. With `was`, only if it has this resource version.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`],
    /// [`EngineError::NotFound`], [`RecordError::Changed`].
    pub async fn record_delete(
        &self,
        by: &Caller,
        info: &KindInfo,
        name: &Name,
        cascade: CascadeWish,
        was: Option<u64>,
    ) -> Result<RecordDeleted, RecordError> {
        by.require((info.role)(RecordVerb::Delete))?;
        let key = key(by, info, name.clone())?;
        if is_of_swarm(info) && name.as_str() == ColonyId::DEFAULT_NAME {
            let message = "the colony `default` always exists and cannot be deleted";
            return Err(EngineError::conflict(message).into());
        }
        for _ in 0..TRIES {
            let found = self.records.record_fetch(key.clone()).await?;
            let record = found.ok_or_else(|| absent(&key))?;
            if let Some(wanted) = was.filter(|was| *was != record.changed) {
                return Err(RecordError::Changed { key, wanted, found: record.changed });
            }
            match self.deleted(&by.name, record, cascade).await {
                Ok(done) if is_of_swarm(info) => {
                    self.cortex.colonies_load(&by.name).await?;
                    return Ok(done);
                }
                Ok(done) => return Ok(done),
                Err(StoreError::Conflict { what, .. }) if what.kind == ConflictKind::Colony => {
                    return Err(not_empty(name, &what.name).into());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(err) => return Err(err.into()),
            }
        }
        Err(RecordError::Contended(key.to_string()))
    }

    async fn deleted(
        &self,
        by: &str,
        mut record: Record,
        cascade: CascadeWish,
    ) -> Result<RecordDeleted, StoreError> {
        let owner = Owner::Record(record.id);
        let stamp = Stamp { now: self.cortex.clock.now(), by };
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        if record.key.kind.as_str() == COLONY.name {
            commit.guards.push(Guard::ColonyEmpty { colony: id_of(record.id) });
        }
        match cascade {
            CascadeWish::Background => {}
            CascadeWish::Orphan => {
                let owned = self.owned(owner).await?;
                for write in decide::cascade(owner, &owned, Cascade::Orphan, stamp) {
                    write.join(&mut commit);
                }
            }
            CascadeWish::Foreground => {
                Box::pin(self.delete_owned(by, owner)).await?;
                if !self.owned(owner).await?.is_empty() && record.deleting.is_none() {
                    record.finalizers.push(FOREGROUND.to_owned());
                }
            }
        }
        let deletion = decide::delete(&record, stamp);
        let done = match &deletion {
            Deletion::Gone(_) => RecordDeleted::Gone,
            Deletion::Marked(_) | Deletion::Pending => RecordDeleted::Marked,
        };
        if let Some(write) = deletion.into_write() {
            write.join(&mut commit);
        }
        if !commit.changes.is_empty() {
            self.cortex.store.commit(commit).await?;
        }
        if done == RecordDeleted::Gone {
            Box::pin(self.after_gone(by, &record)).await;
        }
        Ok(done)
    }

    /// Continues after a record is gone: deletes the records that it owned, and an owner that
    /// waited for it. The loop `garbage` retries failures.
    pub(super) async fn after_gone(&self, by: &str, gone: &Record) {
        if let Err(err) = self.cleared(by, gone).await {
            tracing::warn!(error = %err, record = %gone.key, "what it owned is deleted later");
        }
    }

    async fn cleared(&self, by: &str, gone: &Record) -> Result<(), StoreError> {
        self.delete_owned(by, Owner::Record(gone.id)).await?;
        let Some(Owner::Record(owner)) = gone.owner else { return Ok(()) };
        let Some(owner) = self.records.record_by_id(owner).await? else { return Ok(()) };
        match waits(&owner) && self.owned(Owner::Record(owner.id)).await?.is_empty() {
            true => Box::pin(self.finalized(by, owner, FOREGROUND)).await.map(drop),
            false => Ok(()),
        }
    }

    /// Removes a finalizer from a record. Returns whether the record is gone now.
    pub(super) async fn finalized(
        &self,
        by: &str,
        record: Record,
        finalizer: &str,
    ) -> Result<bool, StoreError> {
        let key = record.key.clone();
        let mut found = Some(record);
        for _ in 0..TRIES {
            let Some(record) = found else { return Ok(true) };
            let stamp = Stamp { now: self.cortex.clock.now(), by };
            let Some(write) = decide::finalize(&record, finalizer, stamp) else {
                return Ok(false);
            };
            let gone = matches!(write.change, RecordChange::Delete { .. });
            let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
            write.join(&mut commit);
            match self.cortex.store.commit(commit).await {
                Ok(_) if gone => {
                    self.after_gone(by, &record).await;
                    return Ok(true);
                }
                Ok(_) => return Ok(false),
                Err(StoreError::Conflict { .. }) => {
                    found = self.records.record_by_id(record.id).await?;
                }
                Err(err) => return Err(err),
            }
        }
        let (expected, found) = (Stands::Present, Stands::Changed);
        let what = Conflict::new(ConflictKind::Record, key, expected, found);
        Err(StoreError::Conflict { what, guard: None })
    }

    /// Deletes an owner's records, and those that they own in turn. Held records stay, marked.
    pub(super) async fn delete_owned(&self, by: &str, owner: Owner) -> Result<(), StoreError> {
        for record in self.owned(owner).await? {
            self.delete_one(by, record).await?;
        }
        Ok(())
    }

    /// Deletes a record, whatever others change meanwhile. Returns whether it is gone.
    pub(super) async fn delete_one(&self, by: &str, record: Record) -> Result<bool, StoreError> {
        let mut found = Some(record);
        for _ in 0..TRIES {
            let Some(record) = found else { return Ok(true) };
            let id = record.id;
            match Box::pin(self.deleted(by, record, CascadeWish::Background)).await {
                Err(StoreError::Conflict { .. }) => found = self.records.record_by_id(id).await?,
                done => return done.map(|done| done == RecordDeleted::Gone),
            }
        }
        Ok(false)
    }

    /// All records of an owner.
    pub(super) async fn owned(&self, owner: Owner) -> Result<Vec<Record>, StoreError> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let after = all.last().map(|record| record.key.clone());
            let query =
                RecordQuery { owner: Some(owner), after, limit: PAGE, ..RecordQuery::default() };
            let page = self.records.record_list(query).await?;
            let more = page.more && !page.records.is_empty();
            all.extend(page.records);
            if !more {
                return Ok(all);
            }
        }
    }
}

/// Why a colony is not deleted.
fn not_empty(name: &Name, what: &str) -> EngineError {
    EngineError::conflict(format!(
        "the colony `{name}` is not empty: there is {what} in it. Remove its runs (also those that \
         have ended), agents and resources (`overmind -n {name} ps -a`, `overmind -n {name} get \
         agents`), and revoke its keys (`overmind key list`)"
    ))
}

/// Whether a record is gone as soon as it owns nothing.
pub(super) fn waits(record: &Record) -> bool {
    record.deleting.is_some() && record.finalizers.iter().any(|one| one == FOREGROUND)
}
