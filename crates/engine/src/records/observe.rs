//! Writes of reconcilers to records: observations, and completed finalizers.

use overmind_core::ids::RecordId;
use overmind_core::record::condition::{self, Condition};
use overmind_core::record::decide::{self, Refusal, Stamp};
use overmind_core::record::rows::RecordChange;
use overmind_core::record::{KindInfo, Record, RecordVerb};
use overmind_core::store::{Commit, StoreError};
use overmind_core::time::Timestamp;
use serde_json::{Map, Value};

use super::RecordError;
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// An observation about a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The status without its conditions. `None` leaves it unchanged.
    pub fields: Option<Map<String, Value>>,
    /// Each replaces the condition of its type; the others stay.
    pub conditions: Vec<Condition>,
    /// When the record is to be deleted. `None` leaves it unchanged.
    pub expires_at: Option<Timestamp>,
}

impl Engine {
    /// Writes an observation about a record, if it is still as it was `found`. The generation
    /// stays. Returns the current record; without a change nothing is written.
    ///
    /// # Errors
    ///
    /// [`RecordError::Changed`] if it must be read again, [`RecordError::Invalid`] if the status is
    /// too large; [`EngineError::Forbidden`], [`EngineError::NotFound`], and the store's errors.
    pub async fn record_status(
        &self,
        by: &Caller,
        info: &KindInfo,
        found: &Record,
        observed: Observed,
    ) -> Result<Record, RecordError> {
        by.require((info.role)(RecordVerb::Status))?;
        let now = self.cortex.clock.now();
        let status = self.status_of(found, &observed);
        let stamp = Stamp { now, by: &by.name };
        let write = decide::status(info, found, status.clone(), observed.expires_at, stamp);
        let write = write.map_err(|refusal| match refusal {
            Refusal::Invalid { wrong, .. } => {
                RecordError::Invalid(wrong.into_iter().map(|one| (0, one)).collect())
            }
            refusal @ Refusal::Deleting { .. } => EngineError::conflict(refusal.to_string()).into(),
        })?;
        let Some(write) = write else { return Ok(found.clone()) };
        let mut record = Record { status, ..found.clone() };
        if let RecordChange::Status(change) = &write.change {
            record.version = change.version;
            record.terms.clone_from(&change.terms);
            record.due = change.due;
            record.expires_at = change.expires_at;
            record.updated_at = change.updated_at;
            record.written_by.clone_from(&change.written_by);
        }
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        write.join(&mut commit);
        match self.cortex.store.commit(commit).await {
            Ok(done) => {
                record.changed = done.global;
                Ok(record)
            }
            Err(StoreError::Conflict { .. }) => {
                let key = found.key.clone();
                match self.records.record_by_id(found.id).await? {
                    None => Err(super::absent(&key).into()),
                    Some(now) => {
                        Err(RecordError::Changed { key, wanted: found.changed, found: now.changed })
                    }
                }
            }
            Err(err) => Err(err.into()),
        }
    }

    /// The whole status, masked as the store masks it, so that a repeated observation is no change.
    fn status_of(&self, found: &Record, observed: &Observed) -> Value {
        let mut status = match &observed.fields {
            None => found.status.clone(),
            Some(fields) => {
                let mut fields = fields.clone();
                match found.status.get("conditions") {
                    Some(kept) => fields.insert("conditions".into(), kept.clone()),
                    None => fields.remove("conditions"),
                };
                Value::Object(fields)
            }
        };
        let store = &self.cortex.store;
        store.redact_record(&mut status);
        for new in &observed.conditions {
            let mut new = new.clone();
            let mut message = Value::String(std::mem::take(&mut new.message));
            store.redact(&mut message);
            if let Value::String(masked) = message {
                new.message = masked;
            }
            condition::set_in(&mut status, new);
        }
        status
    }

    /// Removes a completed finalizer from a record. The last one of a record that is being deleted
    /// releases it, and the records that it owns. Returns whether the record is gone now; it may
    /// already be, or lack that finalizer.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`RecordError::Contended`], and the store's errors.
    pub async fn record_finalize(
        &self,
        by: &Caller,
        info: &KindInfo,
        id: RecordId,
        finalizer: &str,
    ) -> Result<bool, RecordError> {
        by.require((info.role)(RecordVerb::Status))?;
        let Some(record) = self.records.record_by_id(id).await? else { return Ok(true) };
        let key = record.key.clone();
        self.finalized(&by.name, record, finalizer).await.map_err(|err| match err {
            StoreError::Conflict { .. } => RecordError::Contended(key.to_string()),
            err => err.into(),
        })
    }
}
