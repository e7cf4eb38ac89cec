//! Applies changes of memory: items, words, vectors, and the numbers by which an index follows the
//! vectors.

use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::ids::{ColonyId, MemoryId};
use overmind_core::memory::MemoryItem;
use rusqlite::{Connection, OptionalExtension, params};

use super::apply::taken;
use crate::error::{Fault, Outcome};
use crate::read::rows::{blob, int, opt_blob, opt_time};

/// How many removed vectors are remembered; an index that is further behind is read again.
const GONE_KEPT: i64 = 100_000;
/// After how many changes older ones are forgotten.
const GONE_SWEEP: i64 = 1_024;

pub(super) fn insert(
    conn: &Connection,
    item: &MemoryItem,
    metadata: &str,
    vector: &[u8],
) -> Outcome<()> {
    let collection = collection_number(conn, item.colony, &item.collection)?;
    if let Some(old) = item.supersedes {
        supersede(conn, old, item.id, collection)?;
    }
    conn.prepare_cached(
        "INSERT INTO memory_items
           (id, colony, collection, embedding_model, created_at, source, metadata, text,
            expires_at, supersedes, superseded_by, author, trust, source_event)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?
    .execute(params![
        blob(item.id.as_u128()),
        blob(item.colony.as_u128()),
        collection,
        item.embedding_model,
        item.created_at.as_micros(),
        opt_blob(item.source.map(|session| session.as_u128())),
        metadata,
        item.text,
        opt_time(item.expires_at),
        opt_blob(item.supersedes.map(|old| old.as_u128())),
        opt_blob(item.superseded_by.map(|new| new.as_u128())),
        item.provenance.author,
        item.provenance.trust.as_str(),
        item.provenance.event
    ])
    .map_err(|err| taken(err.into(), ConflictKind::Memory, || item.id.to_string()))?;
    let n = conn.last_insert_rowid();
    conn.prepare_cached("INSERT INTO memory_words (rowid, scope, text) VALUES (?1, ?2, ?3)")?
        .execute(params![n, scope(collection), item.text])?;
    count(conn, collection, 1)?;
    put_vector(conn, n, collection, &item.embedding_model, vector)
}

/// Marks `old` as replaced.
fn supersede(conn: &Connection, old: MemoryId, new: MemoryId, collection: i64) -> Outcome<()> {
    let changed = conn
        .prepare_cached(
            "UPDATE memory_items SET superseded_by = ?2
             WHERE id = ?1 AND collection = ?3 AND superseded_by IS NULL",
        )?
        .execute(params![blob(old.as_u128()), blob(new.as_u128()), collection])?;
    if changed == 1 {
        return Ok(());
    }
    let (expected, found) = (Stands::Present, Stands::Changed);
    Err(Fault::conflict(Conflict::new(ConflictKind::Memory, old, expected, found)))
}

pub(super) fn delete(conn: &Connection, id: MemoryId) -> Outcome<()> {
    let found: Option<(i64, i64)> = conn
        .prepare_cached("SELECT n, collection FROM memory_items WHERE id = ?1")?
        .query_row([blob(id.as_u128())], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((n, collection)) = found else { return Ok(()) };
    drop_vector(conn, n)?;
    conn.prepare_cached("DELETE FROM memory_items WHERE n = ?1")?.execute([n])?;
    conn.prepare_cached("DELETE FROM memory_words WHERE rowid = ?1")?.execute([n])?;
    count(conn, collection, -1)
}

pub(super) fn embed(conn: &Connection, id: MemoryId, model: &str, vector: &[u8]) -> Outcome<()> {
    let found: Option<(i64, i64)> = conn
        .prepare_cached(
            "UPDATE memory_items SET embedding_model = ?2 WHERE id = ?1 RETURNING n, collection",
        )?
        .query_row(params![blob(id.as_u128()), model], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((n, collection)) = found else { return Ok(()) };
    drop_vector(conn, n)?;
    put_vector(conn, n, collection, model, vector)
}

fn put_vector(
    conn: &Connection,
    item: i64,
    collection: i64,
    model: &str,
    vector: &[u8],
) -> Outcome<()> {
    if vector.is_empty() {
        return Ok(());
    }
    let rev = next_rev(conn)?;
    conn.prepare_cached(
        "INSERT INTO memory_vectors (item, collection, model, dims, vector, rev)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![item, collection, model, int(vector.len() as u64 / 4), vector, rev])?;
    Ok(())
}

/// Removes the vector and records its removal.
fn drop_vector(conn: &Connection, item: i64) -> Outcome<()> {
    let gone =
        conn.prepare_cached("DELETE FROM memory_vectors WHERE item = ?1")?.execute([item])?;
    if gone == 0 {
        return Ok(());
    }
    let rev = next_rev(conn)?;
    conn.prepare_cached("INSERT INTO memory_vectors_gone (rev, item) VALUES (?1, ?2)")?
        .execute([rev, item])?;
    if rev % GONE_SWEEP == 0 {
        conn.prepare_cached("DELETE FROM memory_vectors_gone WHERE rev <= ?1")?
            .execute([rev - GONE_KEPT])?;
        conn.prepare_cached("UPDATE memory_state SET floor = max(floor, ?1)")?
            .execute([rev - GONE_KEPT])?;
    }
    Ok(())
}

fn next_rev(conn: &Connection) -> Outcome<i64> {
    Ok(conn
        .prepare_cached("UPDATE memory_state SET rev = rev + 1 RETURNING rev")?
        .query_row([], |row| row.get(0))?)
}

fn count(conn: &Connection, collection: i64, by: i64) -> Outcome<()> {
    conn.prepare_cached("UPDATE collections SET items = items + ?2 WHERE n = ?1")?
        .execute([collection, by])?;
    conn.prepare_cached("UPDATE memory_state SET items = items + ?1")?.execute([by])?;
    Ok(())
}

/// The word that represents a collection in the full-text index.
pub(crate) fn scope(collection: i64) -> String {
    format!("c{collection}")
}

fn collection_number(conn: &Connection, colony: ColonyId, name: &str) -> Outcome<i64> {
    let colony = blob(colony.as_u128());
    let known = conn
        .prepare_cached("SELECT n FROM collections WHERE colony = ?1 AND name = ?2")?
        .query_row(params![colony, name], |row| row.get(0))
        .optional()?;
    if let Some(n) = known {
        return Ok(n);
    }
    conn.prepare_cached("INSERT INTO collections (colony, name) VALUES (?1, ?2)")?
        .execute(params![colony, name])?;
    Ok(conn.last_insert_rowid())
}
