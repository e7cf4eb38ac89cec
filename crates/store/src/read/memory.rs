//! Finds memory items by id, by date and by vector. [`super::words`] searches by words.
//!
//! A search by vector is exact. If the vectors fit into [`crate::vectors`], their bounds determine
//! the order in which the file is read and when to stop. Otherwise all vectors of the collection
//! are read one by one, with constant memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use overmind_core::ids::{ColonyId, EffectId, MemoryId};
use overmind_core::memory::{MemoryFilter, MemoryItem};
use overmind_core::store::{MemoryMatch, MemoryScope, Page};
use overmind_core::time::Timestamp;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params, params_from_iter};

use super::queries::{MAX_PAGE, bounded, many, one};
use super::rows::{self, Cells, blob, floats, int};
use crate::error::Outcome;
use crate::vectors::{Bound, Key, Vectors, length};

/// The number of vectors that are checked before the remaining bounds are sorted.
const FIRST_LOOK: usize = 512;

const FROM: &str = "FROM memory_items m JOIN collections c ON c.n = m.collection
    LEFT JOIN memory_vectors v ON v.item = m.n";

pub(crate) fn fetch(conn: &Connection, id: MemoryId) -> Outcome<Option<MemoryItem>> {
    let sql = format!("SELECT {} {FROM} WHERE m.id = ?1", rows::MEMORY);
    one(conn, &sql, [blob(id.as_u128())], rows::memory)
}

pub(crate) fn by_key(conn: &Connection, key: EffectId) -> Outcome<Option<MemoryItem>> {
    let sql = format!(
        "SELECT {} {FROM} WHERE m.id = (SELECT item FROM memory_keys WHERE key = ?1)",
        rows::MEMORY
    );
    one(conn, &sql, [blob(key.as_u128())], rows::memory)
}

/// The filter of a search for single items.
pub(super) struct Wanted<'a> {
    collection: i64,
    now: Timestamp,
    history: bool,
    filter: &'a MemoryFilter,
    sql: String,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(scope: &'a MemoryScope, collection: i64) -> Self {
        let sql = format!(
            "SELECT {} {FROM} WHERE m.n = ?1 AND m.collection = ?2
               AND (m.expires_at IS NULL OR m.expires_at > ?3)
               AND (?4 OR m.superseded_by IS NULL)",
            rows::MEMORY
        );
        Self { collection, now: scope.now, history: scope.history, filter: &scope.filter, sql }
    }

    /// The item with the row number `n`, if it passes the filter.
    pub(super) fn item(&self, conn: &Connection, n: i64) -> Outcome<Option<MemoryItem>> {
        let with = params![n, self.collection, self.now.as_micros(), self.history];
        let found = one(conn, &self.sql, with, |row| {
            if !self.filter.is_empty() {
                // The metadata is checked before the text is read, which may be long.
                let metadata = Cells::new(row, "memory_items").json(rows::MEMORY_METADATA)?;
                if !self.filter.holds(&metadata) {
                    return Ok(None);
                }
            }
            rows::memory(row).map(Some)
        })?;
        Ok(found.flatten())
    }

    /// The cosine of the item with the row number `n`, if it passes the filter.
    fn cosine(&self, conn: &Connection, n: i64, query: &[f32]) -> Outcome<Option<f32>> {
        let sql = "SELECT v.vector, m.metadata FROM memory_vectors v
               JOIN memory_items m ON m.n = v.item
             WHERE v.item = ?1 AND m.collection = ?2
               AND (m.expires_at IS NULL OR m.expires_at > ?3)
               AND (?4 OR m.superseded_by IS NULL)";
        let with = params![n, self.collection, self.now.as_micros(), self.history];
        let found = one(conn, sql, with, |row| {
            let cells = Cells::new(row, "memory_vectors");
            if !self.filter.is_empty() && !self.filter.holds(&cells.json(1)?) {
                return Ok(None);
            }
            Ok(cosine(query, cells.blob(0)?))
        })?;
        Ok(found.flatten())
    }
}

pub(crate) fn list(
    conn: &Connection,
    scope: &MemoryScope,
    page: Page<MemoryId>,
) -> Outcome<Vec<MemoryItem>> {
    let mut with = Vec::with_capacity(4);
    let place = match &scope.collection {
        None => {
            with.push(Sql::Blob(blob(scope.colony.as_u128()).to_vec()));
            "m.colony = ?"
        }
        Some(name) => {
            let Some(n) = number(conn, scope.colony, name)? else { return Ok(Vec::new()) };
            with.push(Sql::Integer(n));
            "m.collection = ?"
        }
    };
    let mut sql = format!(
        "SELECT {} {FROM} WHERE {place} AND (m.expires_at IS NULL OR m.expires_at > ?)",
        rows::MEMORY
    );
    with.push(Sql::Integer(scope.now.as_micros()));
    if !scope.history {
        sql.push_str(" AND m.superseded_by IS NULL");
    }
    if let Some(after) = page.after {
        sql.push_str(" AND m.id < ?");
        with.push(Sql::Blob(blob(after.as_u128()).to_vec()));
    }
    sql.push_str(" ORDER BY m.id DESC");
    let limit = usize::try_from(bounded(page.limit, MAX_PAGE)).unwrap_or(1);
    let mut find = conn.prepare_cached(&sql)?;
    let mut found = find.query(params_from_iter(with))?;
    let mut items = Vec::new();
    while items.len() < limit {
        let Some(row) = found.next()? else { break };
        let item = rows::memory(row)?;
        if scope.filter.holds(&item.metadata) {
            items.push(item);
        }
    }
    Ok(items)
}

pub(super) fn number(conn: &Connection, colony: ColonyId, name: &str) -> Outcome<Option<i64>> {
    let sql = "SELECT n FROM collections WHERE colony = ?1 AND name = ?2";
    one(conn, sql, params![blob(colony.as_u128()), name], |row| {
        Cells::new(row, "collections").int(0)
    })
}

pub(crate) fn stale(
    conn: &Connection,
    model: &str,
    dims: Option<u32>,
    now: Timestamp,
    after: Option<MemoryId>,
    limit: u32,
) -> Outcome<Vec<MemoryItem>> {
    let sql = format!(
        "SELECT {} {FROM} WHERE m.id > ?1 AND (m.expires_at IS NULL OR m.expires_at > ?2)
           AND (m.embedding_model <> ?3 OR v.dims <> ?4)
         ORDER BY m.id LIMIT ?5",
        rows::MEMORY
    );
    let after = blob(after.map_or(0, |id| id.as_u128()));
    let with = params![after, now.as_micros(), model, dims, bounded(limit, MAX_PAGE)];
    many(conn, &sql, with, rows::memory)
}

pub(crate) fn expired(
    conn: &Connection,
    now: Timestamp,
    limit: u32,
) -> Outcome<Vec<overmind_core::store::ExpiredMemory>> {
    let sql = "SELECT m.id, m.colony, c.name FROM memory_items m
           JOIN collections c ON c.n = m.collection
         WHERE m.expires_at <= ?1 AND m.expires_at IS NOT NULL ORDER BY m.expires_at LIMIT ?2";
    many(conn, sql, params![now.as_micros(), bounded(limit, MAX_PAGE)], |row| {
        let cells = Cells::new(row, "memory_items");
        Ok((
            MemoryId::from_u128(cells.u128(0)?),
            ColonyId::from_u128(cells.u128(1)?),
            cells.text(2)?,
        ))
    })
}

#[derive(Clone, Copy, Debug)]
struct Near {
    cosine: f32,
    n: i64,
}

impl Ord for Near {
    /// The greatest is dropped first: the farthest and, of equals, the oldest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.cosine.total_cmp(&self.cosine).then(other.n.cmp(&self.n))
    }
}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Near {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Near {}

/// The best items so far.
struct Best {
    limit: usize,
    heap: BinaryHeap<Near>,
}

impl Best {
    fn push(&mut self, near: Near) {
        self.heap.push(near);
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
    }

    /// Whether an item whose cosine is at most `most` can still be among the best.
    fn admits(&self, most: f32) -> bool {
        self.heap.len() < self.limit || self.heap.peek().is_some_and(|worst| most >= worst.cosine)
    }
}

/// The items nearest to `vector` by cosine, best first.
pub(crate) fn nearest(
    conn: &Connection,
    vectors: &Vectors,
    scope: &MemoryScope,
    model: &str,
    vector: &[f32],
    limit: u32,
) -> Outcome<Vec<MemoryMatch>> {
    let Some(name) = scope.collection.as_deref() else { return Ok(Vec::new()) };
    let Some(collection) = number(conn, scope.colony, name)? else { return Ok(Vec::new()) };
    let long = length(vector.iter().copied());
    if long == 0.0 || !long.is_finite() {
        // A vector without a direction is near to nothing.
        return Ok(Vec::new());
    }
    let query: Vec<f32> = vector.iter().map(|part| part / long).collect();
    let limit = usize::try_from(bounded(limit, MAX_PAGE)).unwrap_or(1);
    let mut best = Best { limit, heap: BinaryHeap::with_capacity(limit + 1) };
    let wanted = Wanted::new(scope, collection);
    let key = Key { collection, model: model.to_owned(), dims: query.len() };
    match vectors.bounds(conn, &key, &query)? {
        Some(bounds) => by_bounds(conn, &wanted, &query, bounds, &mut best)?,
        None => one_by_one(conn, &wanted, &key, &query, &mut best)?,
    }
    let mut matches = Vec::with_capacity(best.heap.len());
    // Ascending order means best first here.
    for near in best.heap.into_sorted_vec() {
        if let Some(item) = wanted.item(conn, near.n)? {
            matches.push(MemoryMatch { item, bm25: f64::from(near.cosine) });
        }
    }
    Ok(matches)
}

/// Checks vectors from the highest bound down, until no bound can change the result.
fn by_bounds(
    conn: &Connection,
    wanted: &Wanted<'_>,
    query: &[f32],
    mut bounds: Vec<Bound>,
    best: &mut Best,
) -> Outcome<()> {
    let mut rest = &mut bounds[..];
    let mut look = FIRST_LOOK.max(2 * best.limit);
    while !rest.is_empty() {
        // Sorting all bounds would cost more than checking those that matter.
        let high_first = |a: &Bound, b: &Bound| b.most.total_cmp(&a.most);
        let part = if look < rest.len() {
            rest.select_nth_unstable_by(look, high_first);
            let (part, others) = rest.split_at_mut(look);
            rest = others;
            part
        } else {
            std::mem::take(&mut rest)
        };
        part.sort_unstable_by(high_first);
        for bound in &*part {
            if !best.admits(bound.most) {
                return Ok(());
            }
            if let Some(cosine) = wanted.cosine(conn, bound.item, query)? {
                best.push(Near { cosine, n: bound.item });
            }
        }
        look *= 4;
    }
    Ok(())
}

/// Reads all vectors from the file.
fn one_by_one(
    conn: &Connection,
    wanted: &Wanted<'_>,
    key: &Key,
    query: &[f32],
    best: &mut Best,
) -> Outcome<()> {
    let mut find = conn.prepare_cached(
        "SELECT item, vector FROM memory_vectors
         WHERE collection = ?1 AND model = ?2 AND dims = ?3",
    )?;
    let mut found = find.query(params![key.collection, key.model, int(key.dims as u64)])?;
    while let Some(row) = found.next()? {
        let cells = Cells::new(row, "memory_vectors");
        let n = cells.int(0)?;
        let near = cosine(query, cells.blob(1)?);
        if near.is_some_and(|near| best.admits(near))
            && let Some(cosine) = wanted.cosine(conn, n, query)?
        {
            best.push(Near { cosine, n });
        }
    }
    Ok(())
}

/// The cosine with a query of unit length; `None` for a vector without a direction.
fn cosine(query: &[f32], stored: &[u8]) -> Option<f32> {
    let (mut dot, mut square) = (0.0_f32, 0.0_f32);
    for (ours, theirs) in query.iter().zip(floats(stored)) {
        dot += ours * theirs;
        square += theirs * theirs;
    }
    let cosine = dot / square.sqrt();
    cosine.is_finite().then_some(cosine)
}
