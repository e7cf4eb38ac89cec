//! Finding memory items: by id, by words, by vector.
//!
//! Words are matched by FTS5 with BM25, whose inverse document frequency counts the items of
//! all collections, not only the one that is searched. Vectors are compared one by one: exact,
//! and as slow as reading every vector of the collection (about 600 MB for 100,000 items of
//! 1,536 dimensions); memory stays flat.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use overmind_core::ids::{ColonyId, EffectId, MemoryId};
use overmind_core::memory::MemoryItem;
use overmind_core::store::{MemoryMatch, Page};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params, params_from_iter};

use super::queries::{MAX_PAGE, bounded, many, one};
use super::rows::{self, Cells, blob, floats, int};
use crate::error::Outcome;
use crate::writer::apply::scope;

/// Different terms of one search that count; the rest is ignored.
const MAX_TERMS: usize = 256;
/// Bytes of one term that count.
const MAX_TERM_BYTES: usize = 1_024;

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

pub(crate) fn list(
    conn: &Connection,
    colony: ColonyId,
    collection: Option<&str>,
    page: Page<MemoryId>,
) -> Outcome<Vec<MemoryItem>> {
    let mut with = Vec::with_capacity(3);
    let place = match collection {
        None => {
            with.push(Sql::Blob(blob(colony.as_u128()).to_vec()));
            "m.colony = ?"
        }
        Some(name) => {
            let Some(n) = number(conn, colony, name)? else { return Ok(Vec::new()) };
            with.push(Sql::Integer(n));
            "m.collection = ?"
        }
    };
    let mut sql = format!("SELECT {} {FROM} WHERE {place}", rows::MEMORY);
    if let Some(after) = page.after {
        sql.push_str(" AND m.id < ?");
        with.push(Sql::Blob(blob(after.as_u128()).to_vec()));
    }
    sql.push_str(" ORDER BY m.id DESC LIMIT ?");
    with.push(Sql::Integer(bounded(page.limit, MAX_PAGE)));
    many(conn, &sql, params_from_iter(with), rows::memory)
}

fn number(conn: &Connection, colony: ColonyId, name: &str) -> Outcome<Option<i64>> {
    let sql = "SELECT n FROM collections WHERE colony = ?1 AND name = ?2";
    one(conn, sql, params![blob(colony.as_u128()), name], |row| {
        Cells::new(row, "collections").int(0)
    })
}

/// Items that contain any of `terms`, best first.
pub(crate) fn matching(
    conn: &Connection,
    colony: ColonyId,
    collection: &str,
    terms: &[String],
    limit: u32,
) -> Outcome<Vec<MemoryMatch>> {
    let Some(collection) = number(conn, colony, collection)? else { return Ok(Vec::new()) };
    let Some(expression) = expression(collection, terms) else { return Ok(Vec::new()) };
    // First the best row numbers, then their items: reading the items of all matches to drop
    // most of them would cost more than the search. The scope word weighs nothing.
    let sql = format!(
        "WITH best AS MATERIALIZED (
           SELECT rowid AS n, bm25(memory_words, 0.0, 1.0) AS score FROM memory_words
           WHERE memory_words MATCH ?1 ORDER BY 2, 1 DESC LIMIT ?2)
         SELECT {}, -best.score FROM best CROSS JOIN memory_items m ON m.n = best.n
           JOIN collections c ON c.n = m.collection
           LEFT JOIN memory_vectors v ON v.item = m.n
         ORDER BY best.score, m.n DESC",
        rows::MEMORY
    );
    many(conn, &sql, params![expression, bounded(limit, MAX_PAGE)], |row| {
        let bm25 = Cells::new(row, "memory_words").f64(9)?;
        Ok(MemoryMatch { item: rows::memory(row)?, bm25 })
    })
}

/// The search in FTS5's language, with every term inside quotes; `None` when there is no term.
fn expression(collection: i64, terms: &[String]) -> Option<String> {
    let mut quoted: Vec<String> = Vec::new();
    for term in terms {
        let term = quote(term);
        if quoted.len() < MAX_TERMS && !quoted.contains(&term) {
            quoted.push(term);
        }
    }
    if quoted.is_empty() {
        return None;
    }
    Some(format!("scope : \"{}\" AND text : ({})", scope(collection), quoted.join(" OR ")))
}

/// A term as an FTS5 string: quotes doubled, and NUL, where SQLite would stop reading, a space.
fn quote(term: &str) -> String {
    let mut end = term.len().min(MAX_TERM_BYTES);
    while !term.is_char_boundary(end) {
        end -= 1;
    }
    format!("\"{}\"", term[..end].replace('"', "\"\"").replace('\0', " "))
}

#[derive(Clone, Copy, Debug)]
struct Near {
    cosine: f32,
    n: i64,
}

impl Ord for Near {
    /// The greatest is the one to drop first: the farthest, of equals the oldest.
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

/// Items nearest to `vector` by cosine, best first.
pub(crate) fn nearest(
    conn: &Connection,
    colony: ColonyId,
    collection: &str,
    model: &str,
    vector: &[f32],
    limit: u32,
) -> Outcome<Vec<MemoryMatch>> {
    let Some(collection) = number(conn, colony, collection)? else { return Ok(Vec::new()) };
    let length = norm(vector.iter().copied());
    if length == 0.0 || !length.is_finite() {
        // Without a direction nothing is near.
        return Ok(Vec::new());
    }
    let limit = usize::try_from(bounded(limit, MAX_PAGE)).unwrap_or(1);
    let mut best: BinaryHeap<Near> = BinaryHeap::with_capacity(limit + 1);
    let mut find = conn.prepare_cached(
        "SELECT item, vector FROM memory_vectors
         WHERE collection = ?1 AND model = ?2 AND dims = ?3",
    )?;
    let mut found = find.query(params![collection, model, int(vector.len() as u64)])?;
    while let Some(row) = found.next()? {
        let cells = Cells::new(row, "memory_vectors");
        let Some(cosine) = cosine(vector, length, cells.blob(1)?) else { continue };
        best.push(Near { cosine, n: cells.int(0)? });
        if best.len() > limit {
            best.pop();
        }
    }
    let sql = format!("SELECT {} {FROM} WHERE m.n = ?1", rows::MEMORY);
    let mut matches = Vec::with_capacity(best.len());
    // Ascending in this order means the best first.
    for near in best.into_sorted_vec() {
        if let Some(item) = one(conn, &sql, [near.n], rows::memory)? {
            matches.push(MemoryMatch { item, bm25: f64::from(near.cosine) });
        }
    }
    Ok(matches)
}

fn norm(parts: impl Iterator<Item = f32>) -> f32 {
    parts.map(|part| part * part).sum::<f32>().sqrt()
}

/// `None` for a vector without a direction.
fn cosine(vector: &[f32], length: f32, stored: &[u8]) -> Option<f32> {
    let (mut dot, mut square) = (0.0_f32, 0.0_f32);
    for (ours, theirs) in vector.iter().zip(floats(stored)) {
        dot += ours * theirs;
        square += theirs * theirs;
    }
    let cosine = dot / (length * square.sqrt());
    cosine.is_finite().then_some(cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_stand_in_quotes_whatever_they_contain() {
        let terms = ["a\"b".into(), "x OR y".into(), "nul\0nul".into(), "x OR y".into()];
        assert_eq!(
            expression(7, &terms).unwrap(),
            "scope : \"c7\" AND text : (\"a\"\"b\" OR \"x OR y\" OR \"nul nul\")"
        );
        assert_eq!(expression(7, &[]), None);
    }

    #[test]
    fn long_terms_are_cut_between_characters() {
        let long = "é".repeat(MAX_TERM_BYTES);
        assert_eq!(quote(&long).len(), MAX_TERM_BYTES + 2);
    }
}
