//! Applies changes of records to their tables.

use std::collections::BTreeSet;

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::RecordId;
use overmind_core::record::rows::{MAX_TOMBSTONES, RecordChange, StatusChange};
use overmind_core::record::{Owner, Record, RecordKey, Terms, earlier};
use overmind_core::store::StoreError;
use overmind_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use crate::error::{Fault, Outcome};
use crate::prepare::json_text;
use crate::read::rows::{blob, int, opt_blob, opt_time};
use crate::redact::Redactor;
use crate::writer::apply::taken;

/// A [`RecordChange`] whose JSON is already written. Fields that are texts here are empty in the
/// record.
#[derive(Debug)]
pub(crate) enum Write {
    Put { record: Box<Record>, texts: Texts, spec: String, annotations: String, finalizers: String },
    Status { change: Box<StatusChange>, status: String, terms: String },
    Delete { key: RecordKey, id: RecordId, at: Timestamp },
}

#[derive(Debug)]
pub(crate) struct Texts {
    labels: String,
    terms: String,
    status: String,
}

/// Masks secrets by the rule for events, so that a row equals its event. Names, labels and
/// finalizers are compared and used again, so one that contains a secret is refused instead of
/// masked.
pub(crate) fn prepare(
    change: RecordChange,
    redactor: &Redactor,
) -> Result<(Write, usize), StoreError> {
    let masked = |body: &mut Value| {
        let mut body = body.take();
        redactor.record(&mut body);
        json_text(&body)
    };
    Ok(match change {
        RecordChange::Put(mut record) => {
            refuse_secrets(&record, redactor)?;
            let mut annotations = json!(std::mem::take(&mut record.annotations));
            redactor.value(&mut annotations);
            let texts = Texts {
                labels: json_text(&json!(record.labels)),
                terms: terms_text(&mut record.terms, redactor),
                status: masked(&mut record.status),
            };
            let spec = masked(&mut record.spec);
            let annotations = json_text(&annotations);
            let finalizers = json_text(&json!(record.finalizers));
            let size = spec.len() + texts.status.len() + texts.labels.len() + annotations.len();
            (Write::Put { record, texts, spec, annotations, finalizers }, size)
        }
        RecordChange::Status(mut change) => {
            let status = masked(&mut change.status);
            let terms = terms_text(&mut change.terms, redactor);
            let size = status.len() + terms.len();
            (Write::Status { change, status, terms }, size)
        }
        RecordChange::Delete { key, id, at } => (Write::Delete { key, id, at }, 0),
    })
}

fn refuse_secrets(record: &Record, redactor: &Redactor) -> Result<(), StoreError> {
    let holds = |text: &str| redactor.text(&mut text.to_owned());
    let labels = record.labels.iter().find(|(key, value)| holds(key) || holds(value));
    let what = if holds(record.key.name.as_str()) {
        "its name".to_owned()
    } else if let Some((key, _)) = labels {
        // The message names a key that is no secret itself.
        if holds(key) { "a label key".to_owned() } else { format!("its label `{key}`") }
    } else if record.annotations.keys().any(|key| holds(key)) {
        "an annotation key".to_owned()
    } else if record.finalizers.iter().any(|finalizer| holds(finalizer)) {
        "a finalizer".to_owned()
    } else {
        return Ok(());
    };
    Err(StoreError::Other {
        attempt: format!("keeping a record of kind {}", record.key.kind),
        detail: format!("{what} holds a secret: choose another, and change the secret"),
    })
}

/// The terms as pairs of JSON text, with secrets masked.
fn terms_text(terms: &mut Terms, redactor: &Redactor) -> String {
    let pairs = std::mem::take(terms).into_iter().map(|mut term| {
        redactor.text(&mut term.value);
        json!([term.name, term.value])
    });
    json_text(&pairs.collect())
}

/// Refuses unless the record has exactly this version, or with `None` unless it does not exist.
pub(crate) fn stands_at(conn: &Connection, key: &RecordKey, version: Option<u64>) -> Outcome<()> {
    let found: Option<i64> = conn
        .prepare_cached(
            "SELECT version FROM records WHERE kind = ?1 AND colony = ?2 AND name = ?3",
        )?
        .query_row(
            params![key.kind.as_str(), blob(key.colony.as_u128()), key.name.as_str()],
            |row| row.get(0),
        )
        .optional()?;
    if found == version.map(int) {
        return Ok(());
    }
    let stands = |version: Option<u64>| version.map_or(Stands::Absent, Stands::Version);
    let found = stands(found.map(i64::cast_unsigned));
    Err(Fault::conflict(Conflict::new(ConflictKind::Record, key, stands(version), found)))
}

/// `changed` is the global number of the change's event.
pub(crate) fn apply(conn: &Connection, write: &Write, changed: u64) -> Outcome<()> {
    match write {
        Write::Put { record, texts, spec, annotations, finalizers } => {
            put(conn, record, texts, [spec, annotations, finalizers], changed)
        }
        Write::Status { change, status, terms } => set_status(conn, change, status, terms, changed),
        Write::Delete { key, id, at } => delete(conn, key, *id, *at, changed),
    }
}

fn put(
    conn: &Connection,
    record: &Record,
    texts: &Texts,
    [spec, annotations, finalizers]: [&String; 3],
    changed: u64,
) -> Outcome<()> {
    let Record { id, key, .. } = record;
    let before = entries_of(conn, *id)?;
    let (owner, owner_is_session) = match record.owner {
        None => (None, false),
        Some(Owner::Record(owner)) => (Some(owner.as_u128()), false),
        Some(Owner::Session(owner)) => (Some(owner.as_u128()), true),
    };
    let written = conn
        .prepare_cached(
            "INSERT INTO records (id, kind, colony, name, version, generation, changed, owner,
               owner_is_session, wake, due, expires_at, deleting, created_at, updated_at,
               written_by, finalizers, terms, labels, annotations, status, spec)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
               ?18, ?19, ?20, ?21, ?22)
             ON CONFLICT (id) DO UPDATE SET
               version = excluded.version, generation = excluded.generation,
               changed = excluded.changed, owner = excluded.owner,
               owner_is_session = excluded.owner_is_session, wake = excluded.wake,
               due = excluded.due, expires_at = excluded.expires_at, deleting = excluded.deleting,
               updated_at = excluded.updated_at, written_by = excluded.written_by,
               finalizers = excluded.finalizers, terms = excluded.terms, labels = excluded.labels,
               annotations = excluded.annotations, status = excluded.status, spec = excluded.spec
             WHERE kind = excluded.kind AND colony = excluded.colony AND name = excluded.name",
        )?
        .execute(params![
            blob(id.as_u128()),
            key.kind.as_str(),
            blob(key.colony.as_u128()),
            key.name.as_str(),
            int(record.version),
            int(record.generation),
            int(changed),
            opt_blob(owner),
            owner_is_session,
            opt_time(record.wake()),
            opt_time(record.due),
            opt_time(record.expires_at),
            opt_time(record.deleting),
            record.created_at.as_micros(),
            record.updated_at.as_micros(),
            record.written_by,
            finalizers,
            texts.terms,
            texts.labels,
            annotations,
            texts.status,
            spec,
        ])
        .map_err(|err| taken(err.into(), ConflictKind::Record, || key.to_string()))?;
    if written == 0 {
        let (expected, found) = (Stands::At(key.to_string()), Stands::Changed);
        return Err(Fault::conflict(Conflict::new(ConflictKind::Record, id, expected, found)));
    }
    reindex(conn, key.kind.as_str(), *id, &before, &entries(&texts.labels, &texts.terms)?)
}

fn set_status(
    conn: &Connection,
    change: &StatusChange,
    status: &str,
    terms: &str,
    changed: u64,
) -> Outcome<()> {
    let StatusChange { key, id, .. } = change;
    let texts: Option<(String, String)> = conn
        .prepare_cached("SELECT labels, terms FROM records WHERE id = ?1")?
        .query_row([blob(id.as_u128())], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((labels, old_terms)) = texts else {
        return Err(Fault::missing(key.to_string()));
    };
    conn.prepare_cached(
        "UPDATE records SET version = ?2, changed = ?3, wake = ?4, due = ?5, expires_at = ?6,
           updated_at = ?7, written_by = ?8, terms = ?9, status = ?10
         WHERE id = ?1",
    )?
    .execute(params![
        blob(id.as_u128()),
        int(change.version),
        int(changed),
        opt_time(earlier(change.due, change.expires_at)),
        opt_time(change.due),
        opt_time(change.expires_at),
        change.updated_at.as_micros(),
        change.written_by,
        terms,
        status,
    ])?;
    if terms == old_terms {
        return Ok(());
    }
    let (before, after) = (entries(&labels, &old_terms)?, entries(&labels, terms)?);
    reindex(conn, key.kind.as_str(), *id, &before, &after)
}

fn delete(
    conn: &Connection,
    key: &RecordKey,
    id: RecordId,
    at: Timestamp,
    changed: u64,
) -> Outcome<()> {
    let before = entries_of(conn, id)?;
    reindex(conn, key.kind.as_str(), id, &before, &BTreeSet::new())?;
    let removed =
        conn.prepare_cached("DELETE FROM records WHERE id = ?1")?.execute([blob(id.as_u128())])?;
    if removed == 0 {
        return Err(Fault::missing(key.to_string()));
    }
    conn.prepare_cached(
        "INSERT INTO record_tombs (id, kind, colony, name, at, changed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        blob(id.as_u128()),
        key.kind.as_str(),
        blob(key.colony.as_u128()),
        key.name.as_str(),
        at.as_micros(),
        int(changed),
    ])?;
    let too_old = conn.last_insert_rowid() - i64::from(MAX_TOMBSTONES);
    if too_old > 0 {
        conn.prepare_cached(
            "UPDATE record_horizon
             SET changed = (SELECT max(changed) FROM record_tombs WHERE n <= ?1)
             WHERE EXISTS (SELECT 1 FROM record_tombs WHERE n <= ?1)",
        )?
        .execute([too_old])?;
        conn.prepare_cached("DELETE FROM record_tombs WHERE n <= ?1")?.execute([too_old])?;
    }
    Ok(())
}

/// The rows of a record in `record_terms`: term and value.
type Entries = BTreeSet<(String, String)>;

fn entries_of(conn: &Connection, id: RecordId) -> Outcome<Entries> {
    let texts: Option<(String, String)> = conn
        .prepare_cached("SELECT labels, terms FROM records WHERE id = ?1")?
        .query_row([blob(id.as_u128())], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    texts.map_or(Ok(Entries::new()), |(labels, terms)| entries(&labels, &terms))
}

fn entries(labels: &str, terms: &str) -> Outcome<Entries> {
    let damaged = |at: &str| Fault::Row { at: at.to_owned(), why: "it is not JSON".into() };
    let labels: Entries =
        serde_json::from_str::<std::collections::BTreeMap<String, String>>(labels)
            .map_err(|_| damaged("records.labels"))?
            .into_iter()
            .collect();
    let terms: Vec<(String, String)> =
        serde_json::from_str(terms).map_err(|_| damaged("records.terms"))?;
    Ok(labels
        .into_iter()
        .chain(terms.into_iter().map(|(name, value)| (term(&name), value)))
        .collect())
}

/// The name of a kind's term in `record_terms`, which also holds the keys of labels.
pub(super) fn term(name: &str) -> String {
    format!(":{name}")
}

fn reindex(
    conn: &Connection,
    kind: &str,
    id: RecordId,
    before: &Entries,
    after: &Entries,
) -> Outcome<()> {
    let mut remove = conn.prepare_cached(
        "DELETE FROM record_terms WHERE kind = ?1 AND term = ?2 AND value = ?3 AND id = ?4",
    )?;
    for (term, value) in before.difference(after) {
        remove.execute(params![kind, term, value, blob(id.as_u128())])?;
    }
    let mut insert = conn.prepare_cached(
        "INSERT OR IGNORE INTO record_terms (kind, term, value, id) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for (term, value) in after.difference(before) {
        insert.execute(params![kind, term, value, blob(id.as_u128())])?;
    }
    Ok(())
}
