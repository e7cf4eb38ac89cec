//! Records that go, and what they own with them.

use overmind_core::record::decide::{self, Cascade, Deletion, Stamp};
use overmind_core::record::rows::RecordQuery;
use overmind_core::record::{KindInfo, Name, Owner, Record, RecordVerb};
use overmind_core::store::{Commit, StoreError};
use tokio_util::sync::CancellationToken;

use super::{RecordError, TRIES, absent, key};
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// Records read at once.
const PAGE: u32 = 500;
/// Holds an owner until what it owns is gone: what Kubernetes calls the same.
const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of what a record owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CascadeWish {
    /// The record goes first, then what it owns.
    Background,
    /// What it owns goes first; the record stays, marked, while any of that is held.
    Foreground,
    /// What it owns stays, without an owner.
    Orphan,
}

/// What became of a record that was to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordDeleted {
    Gone,
    /// Finalizers hold it, or what it owns does.
    Marked,
}

impl Engine {
    /// Deletes a record. `was`: only if it is at this resource version.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`EngineError::NotFound`], [`RecordError::Changed`].
    pub async fn record_delete(
        &self,
        by: &Caller,
        info: &KindInfo,
        name: &Name,
        cascade: CascadeWish,
        was: Option<u64>,
    ) -> Result<RecordDeleted, RecordError> {
        by.require((info.role)(RecordVerb::Delete))?;
        let key = key(info, name.clone())?;
        for _ in 0..TRIES {
            let found = self.records.record_fetch(key.clone()).await?;
            let record = found.ok_or_else(|| absent(&key))?;
            if let Some(wanted) = was.filter(|was| *was != record.changed) {
                return Err(RecordError::Changed { key, wanted, found: record.changed });
            }
            match self.deleted(&by.name, record, cascade).await {
                Ok(done) => return Ok(done),
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
            Box::pin(self.after_gone(by, &record)).await?;
        }
        Ok(done)
    }

    /// What follows when a record is gone: what it owned goes, and an owner that waited for it.
    pub(super) async fn after_gone(&self, by: &str, gone: &Record) -> Result<(), StoreError> {
        self.delete_owned(by, Owner::Record(gone.id)).await?;
        let Some(Owner::Record(owner)) = gone.owner else { return Ok(()) };
        let Some(owner) = self.records.record_by_id(owner).await? else { return Ok(()) };
        let waits = owner.deleting.is_some() && owner.finalizers.iter().any(|f| f == FOREGROUND);
        if !waits || !self.owned(Owner::Record(owner.id)).await?.is_empty() {
            return Ok(());
        }
        let stamp = Stamp { now: self.cortex.clock.now(), by };
        if let Some(write) = decide::finalize(&owner, FOREGROUND, stamp) {
            let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
            write.join(&mut commit);
            self.cortex.store.commit(commit).await?;
            if owner.finalizers.len() == 1 {
                Box::pin(self.after_gone(by, &owner)).await?;
            }
        }
        Ok(())
    }

    /// Deletes what an owner has, and what that owns in turn. What is held stays, marked.
    async fn delete_owned(&self, by: &str, owner: Owner) -> Result<(), StoreError> {
        for record in self.owned(owner).await? {
            self.delete_one(by, record).await?;
        }
        Ok(())
    }

    /// Deletes a record whatever others make of it meanwhile.
    async fn delete_one(&self, by: &str, record: Record) -> Result<(), StoreError> {
        let mut found = Some(record);
        for _ in 0..TRIES {
            let Some(record) = found else { return Ok(()) };
            let id = record.id;
            match Box::pin(self.deleted(by, record, CascadeWish::Background)).await {
                Err(StoreError::Conflict { .. }) => found = self.records.record_by_id(id).await?,
                done => return done.map(drop),
            }
        }
        Ok(())
    }

    /// All that an owner has.
    async fn owned(&self, owner: Owner) -> Result<Vec<Record>, StoreError> {
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

    /// Deletes records whose owners are gone: what a crash left between the two.
    ///
    /// # Errors
    ///
    /// What the store says.
    pub async fn record_orphans_delete(&self) -> Result<u64, EngineError> {
        let (mut after, mut count) = (None, 0);
        loop {
            let orphans = self.records.record_orphans(after, PAGE).await?;
            let Some(last) = orphans.last() else { return Ok(count) };
            after = Some(last.id);
            for orphan in orphans {
                self.delete_one("system", orphan).await?;
                count += 1;
            }
        }
    }

    /// Looks once, after a start, for what the last life left behind.
    pub(crate) async fn record_sweep(self, stop: CancellationToken) {
        let swept = tokio::select! {
            () = stop.cancelled() => return,
            swept = self.record_orphans_delete() => swept,
        };
        match swept {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "records without their owner deleted"),
            Err(err) => {
                tracing::warn!(error = %err, "records without their owner were not deleted")
            }
        }
    }
}
