//! Decides the writes of records that somebody creates, changes or deletes: pure functions from the
//! record that was read to the writes of one commit. On a conflict, the caller reads and decides
//! again.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::bounds::{check_annotations, check_body, check_finalizers, check_labels, check_terms};
use super::condition::conditions;
use super::rows::{RecordChange, StatusChange};
use super::{FieldError, KindInfo, Owner, Record, RecordKey};
use crate::ids::RecordId;
use crate::store::{Change, Commit, Guard, NewEvent, StreamId};
use crate::time::Timestamp;

/// A record was created, or its spec or metadata changed.
pub const PUT: &str = "record.put";
/// The status of a record changed.
pub const STATUS: &str = "record.status";
/// A record was removed.
pub const DELETED: &str = "record.deleted";

/// The desired content of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    pub key: RecordKey,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// An object. Mask it first with [`crate::store::Store::redact_record`], as the store does.
    /// Otherwise a spec with a secret differs from the stored one at every put.
    pub spec: Value,
    /// `None` keeps the present value, here and in the fields below.
    pub owner: Option<Owner>,
    pub finalizers: Option<Vec<String>>,
    pub expires_at: Option<Timestamp>,
}

/// The time and the author of a write.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    pub now: Timestamp,
    pub by: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Unchanged,
    Configured,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Unchanged => "unchanged",
            Self::Configured => "configured",
        }
    }
}

/// Why a record is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// All mistakes in the record.
    #[error("{key} is not valid: {}", list(.wrong))]
    Invalid { key: RecordKey, wrong: Vec<FieldError> },
    #[error("{key} is being deleted (since {since}): apply it again after its deletion")]
    Deleting { key: RecordKey, since: Timestamp },
}

fn list(wrong: &[FieldError]) -> String {
    wrong.iter().map(FieldError::to_string).collect::<Vec<_>>().join("\n")
}

/// One write of one record. Its parts belong in the same commit.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordWrite {
    pub guard: Guard,
    pub event: NewEvent,
    pub change: RecordChange,
}

impl RecordWrite {
    /// Adds the write to a commit. A commit may write each record only once, because guards check
    /// the state before it.
    pub fn join(self, commit: &mut Commit) {
        commit.guards.push(self.guard);
        commit.events.push(self.event);
        commit.changes.push(Change::Record(Box::new(self.change)));
    }
}

/// The result of a put. `record` is the record after the write, or the present one if there is no
/// write.
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    pub outcome: Outcome,
    pub record: Record,
    pub write: Option<RecordWrite>,
}

/// Creates a record with `id`, or changes `found`, the record with the draft's key, to match the
/// draft. The status is kept.
///
/// # Errors
///
/// [`Refusal`] with all mistakes of the draft at once.
pub fn put(
    info: &KindInfo,
    found: Option<&Record>,
    draft: Draft,
    id: RecordId,
    stamp: Stamp<'_>,
) -> Result<Put, Refusal> {
    let mut wrong = check_labels(&draft.labels);
    wrong.extend(check_annotations(&draft.annotations));
    wrong.extend(check_finalizers(draft.finalizers.as_deref().unwrap_or_default()));
    let shape = check_body("spec", &draft.spec);
    // A check of a kind may count on the shape.
    let spec = if shape.is_empty() { (info.check)(&draft.spec) } else { shape };
    wrong.extend(spec);
    if !wrong.is_empty() {
        return Err(Refusal::Invalid { key: draft.key, wrong });
    }
    if let Some(since) = found.and_then(|old| old.deleting) {
        return Err(Refusal::Deleting { key: draft.key, since });
    }
    let mut record = match found {
        None => Record {
            id,
            key: draft.key.clone(),
            version: 0,
            generation: 1,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            owner: None,
            spec: draft.spec.clone(),
            status: json!({}),
            terms: Vec::new(),
            due: None,
            expires_at: None,
            deleting: None,
            finalizers: Vec::new(),
            created_at: stamp.now,
            updated_at: stamp.now,
            written_by: stamp.by.to_owned(),
            changed: 0,
        },
        Some(old) => old.clone(),
    };
    if record.spec != draft.spec {
        record.generation += 1;
        record.spec = draft.spec;
    }
    record.labels = draft.labels;
    record.annotations = draft.annotations;
    record.owner = draft.owner.or(record.owner);
    record.finalizers = draft.finalizers.unwrap_or(record.finalizers);
    record.expires_at = draft.expires_at.or(record.expires_at);
    if found == Some(&record) {
        return Ok(Put { outcome: Outcome::Unchanged, record, write: None });
    }
    let outcome = if found.is_some() { Outcome::Configured } else { Outcome::Created };
    index(info, &mut record, stamp.now)?;
    let write = Some(replace(found.map(|old| old.version), &mut record, stamp));
    Ok(Put { outcome, record, write })
}

/// Sets the status of a record, and its expiry if given. Returns `None` if nothing changes. The
/// generation is kept.
///
/// # Errors
///
/// [`Refusal::Invalid`] if the status is too large or not an object.
pub fn status(
    info: &KindInfo,
    found: &Record,
    status: Value,
    expires_at: Option<Timestamp>,
    stamp: Stamp<'_>,
) -> Result<Option<RecordWrite>, Refusal> {
    let wrong = check_body("status", &status);
    if !wrong.is_empty() {
        return Err(Refusal::Invalid { key: found.key.clone(), wrong });
    }
    let before = conditions(&found.status);
    let mut changed = conditions(&status);
    changed.retain(|condition| !before.contains(condition));
    let mut record = found.clone();
    record.status = status;
    record.expires_at = expires_at.or(record.expires_at);
    index(info, &mut record, stamp.now)?;
    if record == *found {
        return Ok(None);
    }
    let version = found.version + 1;
    let Record { id, key, status, terms, due, expires_at, .. } = record;
    let mut payload = json!({
        "id": id, "colony": key.colony, "kind": key.kind.as_str(), "name": key.name.as_str(),
        "version": version, "generation": found.generation, "by": stamp.by,
    });
    if !changed.is_empty() {
        payload["conditions"] = json!(changed);
    }
    let change = StatusChange {
        key,
        id,
        version,
        status,
        terms,
        due,
        expires_at,
        updated_at: stamp.now,
        written_by: stamp.by.to_owned(),
    };
    let change = RecordChange::Status(Box::new(change));
    Ok(Some(RecordWrite {
        guard: guard(found, Some(found.version)),
        event: event(STATUS, payload, stamp),
        change,
    }))
}

/// The result of deleting a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// It has no finalizers and is removed.
    Gone(RecordWrite),
    /// It has finalizers: it is marked, and is removed with the last one.
    Marked(RecordWrite),
    /// It was already marked.
    Pending,
}

impl Deletion {
    pub fn into_write(self) -> Option<RecordWrite> {
        match self {
            Self::Gone(write) | Self::Marked(write) => Some(write),
            Self::Pending => None,
        }
    }
}

/// Deletes a record. The caller must delete or orphan what it owns, see [`cascade`].
pub fn delete(found: &Record, stamp: Stamp<'_>) -> Deletion {
    if found.finalizers.is_empty() {
        return Deletion::Gone(removal(found, stamp));
    }
    if found.deleting.is_some() {
        return Deletion::Pending;
    }
    let mut record = Record { deleting: Some(stamp.now), ..found.clone() };
    Deletion::Marked(replace(Some(found.version), &mut record, stamp))
}

/// Removes a finalizer from a record. Removing the last one of a record that is being deleted also
/// removes the record. `None` if the record has no such finalizer.
pub fn finalize(found: &Record, finalizer: &str, stamp: Stamp<'_>) -> Option<RecordWrite> {
    let mut record = found.clone();
    record.finalizers.retain(|other| other != finalizer);
    if record.finalizers.len() == found.finalizers.len() {
        return None;
    }
    Some(match record.deleting.is_some() && record.finalizers.is_empty() {
        true => removal(found, stamp),
        false => replace(Some(found.version), &mut record, stamp),
    })
}

/// How the records of a deleted owner are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    /// They are deleted by their own rules, and so are the records that they own.
    Background,
    /// They stay, without an owner.
    Orphan,
}

/// Returns the writes on those of `candidates` that `gone` owns. For crash safety, commit
/// [`Cascade::Orphan`] with or before the owner's deletion. With [`Cascade::Background`],
/// [`super::rows::RecordRows::record_orphans`] finds the remaining records. Each deleted record
/// needs its own cascade.
pub fn cascade(
    gone: Owner,
    candidates: &[Record],
    how: Cascade,
    stamp: Stamp<'_>,
) -> Vec<RecordWrite> {
    let owned = candidates.iter().filter(|record| record.owner == Some(gone));
    let write = |record: &Record| match how {
        Cascade::Background => delete(record, stamp).into_write(),
        Cascade::Orphan => {
            let mut free = Record { owner: None, ..record.clone() };
            Some(replace(Some(record.version), &mut free, stamp))
        }
    };
    owned.filter_map(write).collect()
}

/// Sets the fields that the kind computes.
fn index(info: &KindInfo, record: &mut Record, now: Timestamp) -> Result<(), Refusal> {
    record.terms = (info.terms)(record);
    record.due = (info.due)(record, now);
    let wrong = check_terms(&record.terms);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Refusal::Invalid { key: record.key.clone(), wrong }),
    }
}

/// Returns the write that replaces the record at version `before`.
fn replace(before: Option<u64>, record: &mut Record, stamp: Stamp<'_>) -> RecordWrite {
    record.version = before.unwrap_or(0) + 1;
    record.updated_at = stamp.now;
    stamp.by.clone_into(&mut record.written_by);
    let payload = json!({
        "id": record.id, "colony": record.key.colony, "kind": record.key.kind.as_str(),
        "name": record.key.name.as_str(), "version": record.version,
        "generation": record.generation, "labels": record.labels,
        "annotations": record.annotations, "owner": record.owner.map(|owner| owner.to_string()),
        "finalizers": record.finalizers, "deleting": record.deleting, "expires_at": record.expires_at,
        "spec": record.spec, "by": stamp.by,
    });
    RecordWrite {
        guard: guard(record, before),
        event: event(PUT, payload, stamp),
        change: RecordChange::Put(Box::new(record.clone())),
    }
}

fn removal(found: &Record, stamp: Stamp<'_>) -> RecordWrite {
    let Record { id, key, version, .. } = found;
    let payload = json!({
        "id": id, "colony": key.colony, "kind": key.kind.as_str(), "name": key.name.as_str(),
        "version": version, "by": stamp.by,
    });
    RecordWrite {
        guard: guard(found, Some(*version)),
        event: event(DELETED, payload, stamp),
        change: RecordChange::Delete { key: key.clone(), id: *id, at: stamp.now },
    }
}

fn guard(record: &Record, version: Option<u64>) -> Guard {
    Guard::RecordVersion { key: record.key.clone(), version }
}

fn event(kind: &'static str, payload: Value, stamp: Stamp<'_>) -> NewEvent {
    NewEvent { stream: StreamId::Records, kind, ts: stamp.now, payload }
}

#[cfg(test)]
mod tests;
