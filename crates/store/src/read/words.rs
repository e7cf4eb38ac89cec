//! Finds memory items by their words, with FTS5 and BM25.
//!
//! The inverse document frequency counts the items of all collections, not only those of the
//! searched one.
//!
//! # What keeps a search short
//!
//! Nearly all items contain a word such as `the`, and scoring them all would take a hundred times
//! as long as the rest. The search avoids that and still returns the result of scoring all items:
//!
//! * Words are taken from the rarest to the most common, while the items that contain them are at
//!   most [`MOST_ROWS`] together; the rarest is always taken. Items that contain any of these are
//!   scored by all words. The maximum score of items that contain none of them is known
//!   (`sys::MOST`). If it exceeds the worst score of the result, as many further words as needed
//!   are taken, and the search is repeated.
//! * A word in more than half of a large store has no weight in BM25. Items that contain no other
//!   word of the search come last, newest first, without a score.
//! * The index has a mark for each collection. It is used only if the collection is a small part of
//!   the store. In a large collection its list would be longer than those of the words, so the
//!   collection is checked item by item instead.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use overmind_core::store::{MemoryMatch, MemoryScope};
use rusqlite::{Connection, params};

use super::memory::{Wanted, number};
use super::queries::{MAX_PAGE, bounded, one};
use super::rows::Cells;
use crate::error::Outcome;
use crate::sys;
use crate::writer::memory::scope;

/// Maximum number of different terms of one search that are used; the rest is ignored.
const MAX_TERMS: usize = 256;
/// Maximum number of bytes of one term that are used.
const MAX_TERM_BYTES: usize = 1_024;
/// About how many items a search begins with: the sum, over its words, of the items that contain
/// each.
const MOST_ROWS: i64 = 5_000;
/// A word in more items than this is cached as common.
const COMMON: i64 = 1_000;
/// Maximum number of common words that are cached.
const REMEMBERED: usize = 4_096;
/// The weight of a word that more than half of all items contain.
const LEAST_WEIGHT: f64 = 1e-6;
/// A collection's mark is used if the collection is less than one in so many of the store.
const SMALL_PART: i64 = 4;

/// A cache of how many items contain each common word, because counting reads the word's whole
/// list.
#[derive(Debug)]
pub(crate) struct CommonWords {
    held: Mutex<Counts>,
    /// [`MOST_ROWS`], or less in a test.
    most_rows: i64,
}

impl Default for CommonWords {
    fn default() -> Self {
        Self { held: Mutex::default(), most_rows: MOST_ROWS }
    }
}

#[derive(Debug, Default)]
struct Counts {
    /// The number of items in the store when counting began.
    items: i64,
    words: HashMap<String, i64>,
}

impl CommonWords {
    /// About how many items contain `term`.
    fn count(&self, conn: &Connection, term: &str, items: i64) -> Outcome<i64> {
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            // The words are counted again if the store has grown or shrunk by an eighth.
            if (held.items - items).abs() > items / 8 || held.words.len() > REMEMBERED {
                *held = Counts { items, words: HashMap::new() };
            }
            if let Some(count) = held.words.get(term) {
                return Ok(*count);
            }
        }
        let number = |row: &rusqlite::Row<'_>| Cells::new(row, "memory_vocab").int(0);
        let sql = "SELECT doc FROM memory_vocab WHERE term = ?1";
        let count = match one(conn, sql, [term], number)? {
            Some(count) => count,
            // The index holds words without accents, and no terms of several words.
            None => {
                let sql = "SELECT count(*) FROM memory_words WHERE memory_words MATCH ?1";
                one(conn, sql, [format!("text : {}", quote(term))], number)?.unwrap_or(0)
            }
        };
        if count > COMMON {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.words.insert(term.to_owned(), count);
        }
        Ok(count)
    }

    /// The terms that occur in the index, the rarest first.
    fn weigh(&self, conn: &Connection, terms: &[String], items: i64) -> Outcome<Vec<Word>> {
        let mut known: Vec<Word> = Vec::new();
        for term in terms {
            let term = cut(term).replace('\0', " ");
            if known.len() < MAX_TERMS && known.iter().all(|other| other.term != term) {
                let count = self.count(conn, &term, items)?;
                if count > 0 {
                    known.push(Word { weight: weight(count, items), term, count });
                }
            }
        }
        // Equal counts stay in the order of the query.
        known.sort_by_key(|word| word.count);
        Ok(known)
    }
}

/// A word of a search.
#[derive(Clone, Debug, PartialEq)]
struct Word {
    term: String,
    /// About how many items contain it.
    count: i64,
    /// Its inverse document frequency.
    weight: f64,
}

impl Word {
    /// Whether many items contain it, so that it does not affect their order.
    fn idle(&self) -> bool {
        self.weight <= LEAST_WEIGHT && self.count > MOST_ROWS
    }
}

/// The inverse document frequency, as FTS5's `bm25()` computes it.
fn weight(count: i64, items: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
    let (with, without) = (count as f64, (items - count).max(0) as f64);
    ((without + 0.5) / (with + 0.5)).ln().max(LEAST_WEIGHT)
}

/// The maximum score that the words can reach together.
fn most(words: &[Word]) -> f64 {
    words.iter().map(|word| word.weight * sys::MOST).sum()
}

/// How many of the words to begin with, so that at most `most_rows` items contain them.
fn enough(words: &[Word], most_rows: i64) -> usize {
    let mut rows = 0;
    let common = |word: &&Word| {
        rows += word.count;
        rows <= most_rows
    };
    words.iter().take_while(common).count().max(1)
}

/// The items that contain any of `terms`, best first.
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
    let search = Search {
        conn,
        wanted: Wanted::new(within, collection),
        mark: (items.saturating_mul(SMALL_PART) < of_all).then_some(collection),
        limit: usize::try_from(bounded(limit, MAX_PAGE)).unwrap_or(1),
    };
    let (idle, words): (Vec<Word>, Vec<Word>) =
        common.weigh(conn, terms, of_all)?.into_iter().partition(Word::idle);
    let mut found = Found::default();
    let mut begin = enough(&words, common.most_rows).min(words.len());
    while begin > 0 {
        found = search.ranked(&words, begin)?;
        let worst = if found.matches.len() < search.limit { 0.0 } else { found.worst() };
        if begin == words.len() || most(&words[begin..]) <= worst {
            break;
        }
        begin = (begin + 1..words.len())
            .find(|begin| most(&words[*begin..]) <= worst)
            .unwrap_or(words.len());
    }
    if found.matches.len() < search.limit && !idle.is_empty() {
        search.newest(&idle, &mut found)?;
    }
    Ok(found.matches)
}

/// The items found so far, and their row numbers.
#[derive(Debug, Default)]
struct Found {
    matches: Vec<MemoryMatch>,
    rows: HashSet<i64>,
}

impl Found {
    fn worst(&self) -> f64 {
        self.matches.last().map_or(0.0, |last| last.bm25)
    }
}

struct Search<'a> {
    conn: &'a Connection,
    wanted: Wanted<'a>,
    /// The collection, if its mark in the index is worth using.
    mark: Option<i64>,
    limit: usize,
}

impl Search<'_> {
    /// The best of the items that contain any of the first `begin` words, scored by all words.
    fn ranked(&self, words: &[Word], begin: usize) -> Outcome<Found> {
        let all = any(words);
        let (expression, twice) = if begin < words.len() {
            (format!("({}) AND ({all})", any(&words[..begin])), begin)
        } else {
            (all, 0)
        };
        let expression = self.within(&expression);
        // Repeated words count once, and the mark does not count.
        let silent = twice + usize::from(self.mark.is_some());
        let weights = || std::iter::repeat_n(0.0, silent).chain(words.iter().map(|w| w.weight));
        // First the best row numbers are found, then their items are read one by one until there
        // are enough: reading the items of all matches and dropping most would cost more than the
        // search. A short sorted list is cheaper than the whole one, and is nearly always enough.
        let short = u32::try_from(self.limit * 2 + 16).unwrap_or(u32::MAX);
        for keep in [Some(short), None] {
            let mut find = self.conn.prepare_cached(
                "SELECT rowid, memory_rank(memory_words, ?2) FROM memory_words
                 WHERE memory_words MATCH ?1 ORDER BY 2 DESC, 1 DESC LIMIT ?3",
            )?;
            let with = sys::parameters(keep, weights());
            let most = keep.map_or(-1, i64::from);
            let mut rows = find.query(params![expression, with, most])?;
            let (mut seen, mut found) = (0, Found::default());
            while let Some(row) = rows.next()? {
                seen += 1;
                let cells = Cells::new(row, "memory_words");
                let n = cells.int(0)?;
                if let Some(item) = self.wanted.item(self.conn, n)? {
                    found.matches.push(MemoryMatch { item, bm25: cells.f64(1)? });
                    found.rows.insert(n);
                    if found.matches.len() == self.limit {
                        return Ok(found);
                    }
                }
            }
            if keep.is_none() || seen < short {
                return Ok(found);
            }
        }
        Ok(Found::default())
    }

    /// Adds the newest of the items that contain any of these words, until there are enough.
    fn newest(&self, words: &[Word], found: &mut Found) -> Outcome<()> {
        let mut find = self.conn.prepare_cached(
            "SELECT rowid FROM memory_words WHERE memory_words MATCH ?1 ORDER BY rowid DESC",
        )?;
        let mut rows = find.query([self.within(&any(words))])?;
        while found.matches.len() < self.limit {
            let Some(row) = rows.next()? else { break };
            let n = Cells::new(row, "memory_words").int(0)?;
            if found.rows.insert(n)
                && let Some(item) = self.wanted.item(self.conn, n)?
            {
                found.matches.push(MemoryMatch { item, bm25: MemoryMatch::IDLE });
            }
        }
        Ok(())
    }

    /// The search as an FTS5 expression, limited to the collection if its mark is used.
    fn within(&self, expression: &str) -> String {
        match self.mark {
            Some(collection) => format!("scope : \"{}\" AND ({expression})", scope(collection)),
            None => expression.to_owned(),
        }
    }
}

/// An FTS5 expression for any of the words, each quoted.
fn any(words: &[Word]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(&word.term)).collect();
    format!("text : ({})", quoted.join(" OR "))
}

/// A term as an FTS5 string, with its quotes doubled.
fn quote(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

fn cut(term: &str) -> &str {
    &term[..term.floor_char_boundary(MAX_TERM_BYTES)]
}

#[cfg(test)]
mod tests {
    use overmind_core::ids::ColonyId;
    use overmind_testkit::soak;

    use super::*;

    fn word(term: &str, count: i64) -> Word {
        Word { term: term.into(), count, weight: weight(count, 100_000) }
    }

    #[test]
    fn search_terms_are_always_quoted() {
        let words = ["a\"b", "x OR y"].map(|term| word(term, 1));
        assert_eq!(any(&words), "text : (\"a\"\"b\" OR \"x OR y\")");
        assert_eq!(cut(&"é".repeat(MAX_TERM_BYTES)).len(), MAX_TERM_BYTES);
    }

    #[test]
    fn searches_begin_with_rare_words() {
        let words = [word("owner", 300), word("change", 4_000), word("file", 20_000)];
        assert_eq!(enough(&words, MOST_ROWS), 2);
        assert_eq!(enough(&words[2..], MOST_ROWS), 1);
        assert!(!words[2].idle() && word("the", 70_000).idle());
        let few = Word { weight: weight(2, 2), count: 2, term: "a".into() };
        assert!(!few.idle(), "in a small store every word is scored");
    }

    #[test]
    fn word_counts_follow_the_store() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(
            "CREATE VIRTUAL TABLE memory_words USING fts5(scope, text, content = '',
               tokenize = 'unicode61 remove_diacritics 2');
             CREATE VIRTUAL TABLE memory_vocab USING fts5vocab (memory_words, 'row');
             INSERT INTO memory_words (scope, text) VALUES ('c1', 'un café'), ('c1', 'un thé');",
        )
        .unwrap();
        let terms = ["un", "café", "un café", "nowhere", "un"].map(str::to_owned);
        let words = CommonWords::default().weigh(&conn, &terms, 2).unwrap();
        let counts: Vec<_> = words.iter().map(|word| (word.term.as_str(), word.count)).collect();
        assert_eq!(counts, [("café", 1), ("un café", 1), ("un", 2)]);
    }

    /// A store of texts, every tenth of them in a collection of its own.
    fn store(texts: &[String]) -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        std::fs::write(&path, "").unwrap();
        let mut conn = crate::schema::open_writer(&path, None).unwrap();
        crate::schema::migrate(&mut conn).unwrap();
        sys::register(&conn).unwrap();
        let colony = ColonyId::DEFAULT.as_u128().to_be_bytes();
        for (n, name) in [(1, "large"), (2, "small")] {
            conn.execute(
                "INSERT INTO collections (n, colony, name) VALUES (?1, ?2, ?3)",
                params![n, colony, name],
            )
            .unwrap();
        }
        for (n, text) in (0_u32..).zip(texts) {
            let collection = if n % 10 == 9 { 2 } else { 1 };
            conn.execute(
                "INSERT INTO memory_items
                   (n, id, colony, collection, embedding_model, created_at, metadata, text)
                 VALUES (?1, ?2, ?3, ?4, 'm', 0, '{}', ?5)",
                params![n, u128::from(n).to_be_bytes(), colony, collection, text],
            )
            .unwrap();
            conn.execute(
                "INSERT INTO memory_words (rowid, scope, text) VALUES (?1, ?2, ?3)",
                params![n, scope(collection), text],
            )
            .unwrap();
        }
        conn.execute_batch(
            "UPDATE memory_state SET items = (SELECT count(*) FROM memory_items);
             UPDATE collections SET items =
               (SELECT count(*) FROM memory_items WHERE memory_items.collection = collections.n);",
        )
        .unwrap();
        (dir, conn)
    }

    #[test]
    fn starting_with_the_rare_words_does_not_change_the_result() {
        // Word `w9` is in half of the texts, `w0` in nearly none, some of them several times.
        let mut seed = 7_u64;
        let mut chance = move |of: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((seed >> 33) % of).expect("a small number")
        };
        let texts: Vec<String> = (0..800)
            .map(|_| {
                let mut text = String::from("start ");
                for word in 0..10_u64 {
                    if chance(1 << (10 - word)) == 0 {
                        text += &format!("w{word} ").repeat(1 + chance(4));
                    }
                }
                text + &"filler ".repeat(chance(30))
            })
            .collect();
        let (_dir, conn) = store(&texts);
        let (few, all) = (
            CommonWords { most_rows: 20, ..CommonWords::default() },
            CommonWords { most_rows: i64::MAX, ..CommonWords::default() },
        );
        let mut twice = 0;
        let rounds = soak::count(60_usize, 300);
        for round in 0..rounds {
            let terms: Vec<String> =
                (0..1 + chance(6)).map(|_| format!("w{}", chance(10))).collect();
            let collection = if round % 3 == 0 { "small" } else { "large" };
            let within = MemoryScope::new(
                ColonyId::DEFAULT,
                Some(collection.into()),
                overmind_core::time::Timestamp::default(),
            );
            for limit in [1, 5, 60] {
                let ask = |with: &CommonWords| -> Vec<(String, f64)> {
                    let found = matching(&conn, with, &within, &terms, limit).unwrap();
                    found.into_iter().map(|hit| (hit.item.id.to_string(), hit.bm25)).collect()
                };
                let (quick, whole) = (ask(&few), ask(&all));
                assert_eq!(quick.len(), whole.len(), "{terms:?}");
                for (quick, whole) in quick.iter().zip(&whole) {
                    assert_eq!(quick.0, whole.0, "{terms:?}");
                    assert!((quick.1 - whole.1).abs() < 1e-9, "{quick:?} {whole:?}");
                }
                let words = few.weigh(&conn, &terms, 800).unwrap();
                twice += usize::from(enough(&words, 20) < words.len());
            }
        }
        assert!(twice > rounds, "{twice}: the short way was hardly tried");
    }
}
