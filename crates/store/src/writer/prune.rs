//! Retention: removes ended sessions with their streams and leaves records that say so.
//!
//! Each removed stream gets a `retention.pruned` event in the system stream, whose payload is
//!
//! ```json
//! {"stream": "ses_…", "head_seq": 12, "head_hash": "<hex>", "events": 12, "steps": 4,
//!  "globals": [[100, 3], [140, 9]]}
//! ```
//!
//! `globals` are the runs of global numbers that were removed with the stream, as first number and
//! length. A stream of very many runs has more events, with the same `stream` and only `globals`.
//! They let `audit` distinguish numbers that retention removed from other missing numbers.
//!
//! A batch is one transaction, and commits continue between batches. A session is removed as a
//! whole, so one with very many events blocks the writer until they are deleted.

use std::collections::HashMap;

use overmind_core::ids::SessionId;
use overmind_core::store::{Pruned, StreamId};
use overmind_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::log::{Log, name_of};
use crate::error::Outcome;
use crate::key::hex;
use crate::prepare::Event;
use crate::read::rows::{Cells, blob, int};

pub(crate) const PRUNED: &str = "retention.pruned";

/// A batch ends once it has removed this many events, or checked [`SESSIONS_PER_BATCH`].
const EVENTS_PER_BATCH: u64 = 2_000;
const SESSIONS_PER_BATCH: i64 = 50;
const KEYS_PER_BATCH: i64 = 2_000;
/// Maximum number of runs of global numbers in one record.
const RUNS_PER_RECORD: usize = 2_000;

/// The result of one batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) pruned: Pruned,
    pub(crate) streams: Vec<StreamId>,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) places: Vec<(StreamId, u64)>,
    /// Whether there may be more to remove.
    pub(crate) more: bool,
}

/// Removes one batch in the current transaction.
pub(super) fn batch(
    conn: &Connection,
    log: &mut Log,
    before: Timestamp,
    now: Timestamp,
) -> Outcome<Batch> {
    let mut batch = Batch::default();
    let ended = ended(conn, before)?;
    batch.more = int(ended.len() as u64) == SESSIONS_PER_BATCH;
    for session in ended {
        if batch.pruned.events >= EVENTS_PER_BATCH {
            batch.more = true;
            break;
        }
        remove(conn, log, session, now, &mut batch)?;
    }
    count(conn, &batch)?;
    let keys = conn
        .prepare_cached(
            "DELETE FROM idempotency WHERE id IN
               (SELECT id FROM idempotency WHERE at < ?1 ORDER BY at LIMIT ?2)",
        )?
        .execute([before.as_micros(), KEYS_PER_BATCH])?;
    batch.more |= int(keys as u64) == KEYS_PER_BATCH;
    if !batch.more {
        forget_attestations(conn, before)?;
    }
    Ok(batch)
}

/// Removes one session in the current transaction, if it has ended; otherwise the batch is empty.
pub(super) fn one(
    conn: &Connection,
    log: &mut Log,
    session: SessionId,
    now: Timestamp,
) -> Outcome<Batch> {
    let mut batch = Batch::default();
    let ended = conn
        .prepare_cached(
            "SELECT 1 FROM sessions
             WHERE id = ?1 AND finished_at IS NOT NULL
               AND status IN ('succeeded', 'failed', 'canceled')",
        )?
        .exists([blob(session.as_u128())])?;
    if ended {
        remove(conn, log, session, now, &mut batch)?;
        count(conn, &batch)?;
    }
    Ok(batch)
}

/// Counts the removed events, for `audit`.
fn count(conn: &Connection, batch: &Batch) -> Outcome<()> {
    conn.prepare_cached("UPDATE retention SET events = events + ?1")?
        .execute([int(batch.pruned.events)])?;
    Ok(())
}

/// Removes attestation records that no session names any more. Recent ones are kept, because a
/// session may be about to name them. Sessions are searched only if there is an old record.
fn forget_attestations(conn: &Connection, before: Timestamp) -> Outcome<()> {
    conn.prepare_cached(
        "DELETE FROM attestations WHERE at < ?1
           AND digest NOT IN
             (SELECT json_extract(attestation, '$.digest') FROM sessions
              WHERE attestation IS NOT NULL)
           AND digest NOT IN
             (SELECT json_extract(one.value, '$.attestation.digest')
              FROM sessions, json_each(room, '$.attested') AS one
              WHERE room IS NOT NULL)",
    )?
    .execute([before.as_micros()])?;
    Ok(())
}

fn ended(conn: &Connection, before: Timestamp) -> Outcome<Vec<SessionId>> {
    let mut find = conn.prepare_cached(
        "SELECT id FROM sessions
         WHERE finished_at < ?1 AND finished_at IS NOT NULL
           AND status IN ('succeeded', 'failed', 'canceled')
         ORDER BY finished_at LIMIT ?2",
    )?;
    let mut found = find.query([before.as_micros(), SESSIONS_PER_BATCH])?;
    let mut sessions = Vec::new();
    while let Some(row) = found.next()? {
        sessions.push(SessionId::from_u128(Cells::new(row, "sessions").u128(0)?));
    }
    Ok(sessions)
}

fn remove(
    conn: &Connection,
    log: &mut Log,
    session: SessionId,
    now: Timestamp,
    batch: &mut Batch,
) -> Outcome<()> {
    let steps = conn
        .prepare_cached("DELETE FROM steps WHERE session = ?1")?
        .execute([blob(session.as_u128())])?;
    conn.prepare_cached("DELETE FROM inbox WHERE session = ?1")?
        .execute([blob(session.as_u128())])?;
    conn.prepare_cached("DELETE FROM model_calls WHERE session = ?1")?
        .execute([blob(session.as_u128())])?;
    conn.prepare_cached("DELETE FROM artifacts WHERE session = ?1")?
        .execute([blob(session.as_u128())])?;
    // Few sessions have labels, so their rows are found by the labels that the session has.
    conn.prepare_cached(
        "DELETE FROM session_labels WHERE session = ?1 AND (label, value) IN
           (SELECT one.key, one.value FROM sessions, json_each(sessions.labels) AS one
            WHERE sessions.id = ?1)",
    )?
    .execute([blob(session.as_u128())])?;
    conn.prepare_cached("DELETE FROM sessions WHERE id = ?1")?
        .execute([blob(session.as_u128())])?;
    batch.sessions.push(session);
    batch.pruned.sessions += 1;
    batch.pruned.steps += steps as u64;

    let stream = StreamId::Session(session);
    let head: Option<(i64, i64, [u8; 32])> = conn
        .prepare_cached("SELECT n, head_seq, head_hash FROM streams WHERE name = ?1")?
        .query_row([name_of(stream).as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((n, head_seq, head_hash)) = head else { return Ok(()) };
    let runs = runs(conn, n)?;
    let events = conn.prepare_cached("DELETE FROM events WHERE stream = ?1")?.execute([n])?;
    conn.prepare_cached("DELETE FROM streams WHERE n = ?1")?.execute([n])?;
    batch.pruned.events += events as u64;
    batch.streams.push(stream);

    let mut chunks = runs.chunks(RUNS_PER_RECORD);
    let first = json!({
        "stream": stream.to_string(),
        "head_seq": head_seq,
        "head_hash": hex(&head_hash),
        "events": events,
        "steps": steps,
        "globals": chunks.next().unwrap_or_default(),
    });
    let rest = chunks.map(|runs| json!({ "stream": stream.to_string(), "globals": runs }));
    for payload in std::iter::once(first).chain(rest) {
        let event =
            Event { stream: StreamId::System, kind: PRUNED, ts: now, payload: payload.to_string() };
        let seq = log.append(conn, &event)?;
        batch.places.push((StreamId::System, seq));
    }
    Ok(())
}

/// The global numbers of a stream as runs of first number and length. Only the index is read.
fn runs(conn: &Connection, n: i64) -> Outcome<Vec<(u64, u64)>> {
    let mut find =
        conn.prepare_cached("SELECT global FROM events WHERE stream = ?1 ORDER BY seq")?;
    let mut found = find.query(params![n])?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    while let Some(row) = found.next()? {
        let global = Cells::new(row, "events").u64(0)?;
        match runs.last_mut() {
            Some((first, count)) if *first + *count == global => *count += 1,
            Some(_) | None => runs.push((global, 1)),
        }
    }
    Ok(runs)
}

/// The content of a record, as `audit` reads it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) stream: StreamId,
    /// Head number and hash; only in a stream's first record.
    pub(crate) head: Option<(u64, String)>,
    pub(crate) globals: Vec<(u64, u64)>,
}

impl Record {
    /// `None` when the payload is not a record.
    pub(crate) fn parse(payload: &str) -> Option<Self> {
        let fields: HashMap<String, serde_json::Value> = serde_json::from_str(payload).ok()?;
        let stream = fields.get("stream")?.as_str()?.parse().ok()?;
        let head = match (fields.get("head_seq"), fields.get("head_hash")) {
            (Some(seq), Some(hash)) => Some((seq.as_u64()?, hash.as_str()?.to_owned())),
            _ => None,
        };
        let globals = fields
            .get("globals")?
            .as_array()?
            .iter()
            .map(|run| Some((run.get(0)?.as_u64()?, run.get(1)?.as_u64()?)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { stream, head, globals })
    }
}
