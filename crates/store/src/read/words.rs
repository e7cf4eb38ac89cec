//! Finding memory items by their words, with FTS5 and BM25.
//!
//! The inverse document frequency counts the items of all collections, not only the one that is
//! searched.
//!
//! # What keeps a search short
//!
//! FTS5 scores every item that holds any of the words, and a word such as `the` stands in nearly
//! all of them. Two rules bound that work:
//!
//! * Words are taken from the rarest to the most common for as long as the items that hold them
//!   are no more than [`MOST_ROWS`] together; the rarest is always taken. In a store of fewer
//!   items than that nothing is left out that could change the order much.
//! * The collection's own mark in the index is asked for only where the collection is a small
//!   part of the store. In a large one its list would be longer than those of the words, and the
//!   collection is checked item by item instead.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use overmind_core::store::{MemoryMatch, MemoryScope};
use rusqlite::{Connection, params};

use super::memory::{Wanted, number};
use super::queries::{MAX_PAGE, bounded, one};
use super::rows::Cells;
use crate::error::Outcome;
use crate::writer::memory::scope;

/// Different terms of one search that count; the rest is ignored.
const MAX_TERMS: usize = 256;
/// Bytes of one term that count.
const MAX_TERM_BYTES: usize = 1_024;
/// Items that a search looks at, about: the sum over its words of the items that hold each.
pub(crate) const MOST_ROWS: i64 = 10_000;
/// A word in more items than this is worth remembering as common.
const COMMON: i64 = 1_000;
/// Common words that are remembered.
const REMEMBERED: usize = 4_096;
/// A collection that is a smaller part of the store than one in so many is asked for by its mark.
const SMALL_PART: i64 = 4;

/// How many items hold each common word, as last counted: counting reads the word's whole list.
#[derive(Debug, Default)]
pub(crate) struct CommonWords {
    held: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Items in the store when counting began.
    items: i64,
    words: HashMap<String, i64>,
}

impl CommonWords {
    /// How many items hold `term`, about.
    fn count(&self, conn: &Connection, term: &str, items: i64) -> Outcome<i64> {
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            // A store that has grown or shrunk by an eighth is counted again.
            if (held.items - items).abs() > items / 8 || held.words.len() > REMEMBERED {
                *held = Counts { items, words: HashMap::new() };
            }
            if let Some(count) = held.words.get(term) {
                return Ok(*count);
            }
        }
        let sql = "SELECT doc FROM memory_vocab WHERE term = ?1";
        let count =
            one(conn, sql, [term], |row| Cells::new(row, "memory_vocab").int(0))?.unwrap_or(0);
        if count > COMMON {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.words.insert(term.to_owned(), count);
        }
        Ok(count)
    }

    /// The terms to search for, the rarest first.
    fn choose(&self, conn: &Connection, terms: &[String], items: i64) -> Outcome<Vec<String>> {
        let mut known: Vec<(i64, String)> = Vec::new();
        for term in terms {
            let term = cut(term).replace('\0', " ");
            if known.len() < MAX_TERMS && known.iter().all(|(_, other)| *other != term) {
                let count = if items > MOST_ROWS / 8 { self.count(conn, &term, items)? } else { 0 };
                known.push((count, term));
            }
        }
        // Equal counts stay in the order of the query.
        known.sort_by_key(|(count, _)| *count);
        let mut rows = 0;
        Ok(known
            .into_iter()
            .enumerate()
            .take_while(|(place, (count, _))| {
                rows += count;
                *place == 0 || rows <= MOST_ROWS
            })
            .map(|(_, (_, term))| term)
            .collect())
    }
}

/// Items that contain any of `terms`, best first.
pub(crate) fn matching(
    conn: &Connection,
    common: &CommonWords,
    within: &MemoryScope,
    terms: &[String],
    limit: u32,
) -> Outcome<Vec<MemoryMatch>> {
    let name = within.collection.as_deref();
    let Some(name) = name else { return Ok(Vec::new()) };
    let Some(collection) = number(conn, within.colony, name)? else { return Ok(Vec::new()) };
    let (items, of_all): (i64, i64) = conn
        .prepare_cached(
            "SELECT c.items, s.items FROM collections c, memory_state s WHERE c.n = ?1",
        )?
        .query_row([collection], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let terms = common.choose(conn, terms, of_all)?;
    let mark = (items.saturating_mul(SMALL_PART) < of_all).then_some(collection);
    let Some(expression) = expression(mark, &terms) else { return Ok(Vec::new()) };
    let wanted = Wanted::new(within, collection);
    let limit = usize::try_from(bounded(limit, MAX_PAGE)).unwrap_or(1);
    // First the best row numbers, then their items, one by one until there are enough: reading
    // the items of all matches to drop most of them would cost more than the search. A short
    // sorted list is cheaper to make than the whole one, and nearly always enough.
    let short = i64::try_from(limit * 2 + 16).unwrap_or(i64::MAX);
    for most in [short, -1] {
        let mut find = conn.prepare_cached(
            "SELECT rowid, bm25(memory_words, 0.0, 1.0) FROM memory_words
             WHERE memory_words MATCH ?1 ORDER BY 2, 1 DESC LIMIT ?2",
        )?;
        let mut found = find.query(params![expression, most])?;
        let (mut seen, mut matches) = (0, Vec::new());
        while let Some(row) = found.next()? {
            seen += 1;
            let cells = Cells::new(row, "memory_words");
            if let Some(item) = wanted.item(conn, cells.int(0)?)? {
                matches.push(MemoryMatch { item, bm25: -cells.f64(1)? });
                if matches.len() == limit {
                    return Ok(matches);
                }
            }
        }
        if seen < most || most < 0 {
            return Ok(matches);
        }
    }
    Ok(Vec::new())
}

/// The search in FTS5's language, with every term inside quotes; `None` when there is no term.
fn expression(mark: Option<i64>, terms: &[String]) -> Option<String> {
    if terms.is_empty() {
        return None;
    }
    let quoted: Vec<String> = terms.iter().map(|term| quote(term)).collect();
    let text = format!("text : ({})", quoted.join(" OR "));
    Some(match mark {
        // The mark weighs nothing in the score.
        Some(collection) => format!("scope : \"{}\" AND {text}", scope(collection)),
        None => text,
    })
}

/// A term as an FTS5 string: quotes doubled.
fn quote(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

fn cut(term: &str) -> &str {
    &term[..term.floor_char_boundary(MAX_TERM_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(terms: &[&str]) -> Vec<String> {
        let terms: Vec<String> = terms.iter().map(|term| (*term).to_owned()).collect();
        let conn = Connection::open_in_memory().unwrap();
        CommonWords::default().choose(&conn, &terms, 0).unwrap()
    }

    #[test]
    fn terms_stand_in_quotes_whatever_they_contain() {
        let terms = chosen(&["a\"b", "x OR y", "nul\0nul", "x OR y"]);
        assert_eq!(
            expression(Some(7), &terms).unwrap(),
            "scope : \"c7\" AND text : (\"a\"\"b\" OR \"x OR y\" OR \"nul nul\")"
        );
        assert_eq!(expression(None, &terms[..1]).unwrap(), "text : (\"a\"\"b\")");
        assert_eq!(expression(Some(7), &[]), None);
    }

    #[test]
    fn long_terms_are_cut_between_characters() {
        let long = "é".repeat(MAX_TERM_BYTES);
        assert_eq!(chosen(&[&long])[0].len(), MAX_TERM_BYTES);
    }

    #[test]
    fn the_most_common_words_are_left_out_and_the_rarest_never_is() {
        let conn = Connection::open_in_memory().unwrap();
        let common = CommonWords::default();
        let items = 100_000;
        let counts = [("the", 70_000), ("file", 10_001), ("owner", 300), ("change", 6_000)];
        *common.held.lock().unwrap() = Counts {
            items,
            words: counts.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect(),
        };
        let choose = |terms: &[&str]| {
            let terms: Vec<String> = terms.iter().map(|term| (*term).to_owned()).collect();
            common.choose(&conn, &terms, items).unwrap()
        };
        assert_eq!(choose(&["change", "the", "owner", "file"]), ["owner", "change"]);
        assert_eq!(choose(&["the"]), ["the"]);
        assert_eq!(choose(&["the", "file"]), ["file"]);
    }
}
