//! The only module of this crate that may use `unsafe`; everything it exports is safe to call.
//!
//! It adds one function to FTS5: [`RANK`], BM25 with weights that the caller has counted. FTS5's
//! own `bm25()` reads the whole list of every word of every search again, to count the rows that
//! contain it, and looks up the length of every matching row. These two steps take most of its
//! time: on 100,000 items thirty times as long as the search. Here the caller passes the weights,
//! and the length of a row is looked up only if the row can still be among the best.

#![allow(unsafe_code)]

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use rusqlite::{Connection, ffi};

/// Called as `memory_rank(memory_words, parameters)`. Returns the row's score, higher is better, or
/// 0 for a row that cannot be among the best `keep`. [`parameters`] makes the parameters.
pub(crate) const RANK: &CStr = c"memory_rank";

/// The usual constants of BM25, which FTS5 also uses.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// The maximum contribution of a word, however often it is in a row, in units of its weight.
pub(crate) const MOST: f64 = SATURATION + 1.0;
/// The index of the text's column.
const TEXT: c_int = 1;

/// The parameters for scoring rows: `keep` is how many of the best are needed (`None`: all). There
/// is one weight for every phrase of the search, in its order; 0 ignores a phrase.
pub(crate) fn parameters(keep: Option<u32>, weights: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut bytes = u64::from(keep.unwrap_or(0)).to_ne_bytes().to_vec();
    bytes.extend(weights.flat_map(f64::to_ne_bytes));
    bytes
}

/// Registers [`RANK`] on a connection.
///
/// # Errors
///
/// Returns SQLite's error if it has no FTS5 or no memory.
pub(crate) fn register(conn: &Connection) -> rusqlite::Result<()> {
    // SAFETY: the handle is used while `conn` is borrowed, and is not closed here.
    let db = unsafe { conn.handle() };
    let mut api: *mut ffi::fts5_api = ptr::null_mut();
    let mut statement: *mut ffi::sqlite3_stmt = ptr::null_mut();
    // SAFETY: this is how SQLite documents getting FTS5's interface: the pointer's type has this
    // name, `api` outlives the statement, and the statement is finalized in every case (of null
    // too, which does nothing).
    let done = unsafe {
        let sql = c"SELECT fts5(?1)".as_ptr();
        let mut done = ffi::sqlite3_prepare_v2(db, sql, -1, &raw mut statement, ptr::null_mut());
        if done == ffi::SQLITE_OK {
            let place = (&raw mut api).cast::<c_void>();
            let kind = c"fts5_api_ptr".as_ptr();
            done = ffi::sqlite3_bind_pointer(statement, 1, place, kind, None);
        }
        if done == ffi::SQLITE_OK {
            ffi::sqlite3_step(statement);
        }
        let finished = ffi::sqlite3_finalize(statement);
        if done == ffi::SQLITE_OK { finished } else { done }
    };
    check(done)?;
    // SAFETY: FTS5 has set it, or left it null; it lives as long as the connection.
    let create = unsafe { api.as_ref() }.and_then(|api| api.xCreateFunction);
    let Some(create) = create else { return check(ffi::SQLITE_ERROR) };
    // SAFETY: the function has the type that is asked for, and needs no data of its own.
    check(unsafe { create(api, RANK.as_ptr(), ptr::null_mut(), Some(rank), None) })
}

fn check(code: c_int) -> rusqlite::Result<()> {
    if code == ffi::SQLITE_OK {
        return Ok(());
    }
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("adding memory_rank".into())))
}

/// The state that one search keeps between rows.
struct Ranking {
    /// How many of the best are needed; 0 for all.
    keep: usize,
    weights: Vec<f64>,
    /// The average number of words in a text.
    average: f64,
    /// The best scores so far, the worst of them on top.
    best: BinaryHeap<Reverse<Score>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ranking {
    fn new(parameters: &[u8], average: f64) -> Option<Self> {
        let (keep, weights) = parameters.split_first_chunk()?;
        let keep = usize::try_from(u64::from_ne_bytes(*keep)).ok()?;
        let (weights, []) = weights.as_chunks() else { return None };
        let weights = weights.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect();
        Some(Self { keep, weights, average, best: BinaryHeap::new() })
    }

    /// The score of a text of `length` words that contains each phrase `often` times.
    fn score(&self, often: impl Iterator<Item = u32>, length: f64) -> f64 {
        let norm = SATURATION * (1.0 - LENGTH + LENGTH * length / self.average);
        let often = often.map(f64::from);
        self.weights.iter().zip(often).map(|(weight, n)| weight * n * MOST / (n + norm)).sum()
    }

    /// Whether a score can still be among the best.
    fn admits(&self, score: f64) -> bool {
        self.keep == 0
            || self.best.len() < self.keep
            || self.best.peek().is_some_and(|Reverse(worst)| score >= worst.0)
    }

    fn take(&mut self, score: f64) {
        if self.keep > 0 {
            self.best.push(Reverse(Score(score)));
            if self.best.len() > self.keep {
                self.best.pop();
            }
        }
    }
}

/// FTS5 calls this for every row that matches.
///
/// # Safety
///
/// Only FTS5 may call it, with the arguments that it documents for auxiliary functions.
unsafe extern "C" fn rank(
    api: *const ffi::Fts5ExtensionApi,
    row: *mut ffi::Fts5Context,
    answer: *mut ffi::sqlite3_context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: all come from FTS5 and are valid for this call; see `scored`.
    unsafe {
        match scored(api, row, count, values) {
            Ok(score) => ffi::sqlite3_result_double(answer, score),
            Err(code) => ffi::sqlite3_result_error_code(answer, code),
        }
    }
}

/// # Safety
///
/// The caller must meet the contract of [`rank`].
unsafe fn scored(
    api: *const ffi::Fts5ExtensionApi,
    row: *mut ffi::Fts5Context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) -> Result<f64, c_int> {
    // SAFETY: the interface is valid for this call, by this function's contract.
    let api = unsafe { api.as_ref() }.ok_or(ffi::SQLITE_MISUSE)?;
    let (Some(get), Some(size)) = (api.xGetAuxdata, api.xColumnSize) else {
        return Err(ffi::SQLITE_MISUSE);
    };
    // SAFETY: what is kept there was put there by `begin`, and FTS5 drops it only when the search
    // has ended; calls of one search do not overlap.
    let kept = unsafe { get(row, 0).cast::<Ranking>().as_mut() };
    let ranking = match kept {
        Some(ranking) => ranking,
        // SAFETY: as above, by this function's contract.
        None => unsafe { begin(api, row, count, values)? },
    };
    let mut often = [0_u32; 64];
    let mut more = Vec::new();
    let often: &mut [u32] = if ranking.weights.len() <= often.len() {
        &mut often[..ranking.weights.len()]
    } else {
        more.resize(ranking.weights.len(), 0);
        &mut more
    };
    let mut words = 0_u32;
    for (phrase, (often, weight)) in (0..).zip(often.iter_mut().zip(&ranking.weights)) {
        if *weight > 0.0 {
            // SAFETY: as above; `begin` has checked that there are so many phrases.
            *often = unsafe { occurrences(api, row, phrase)? };
            words = words.saturating_add(*often);
        }
    }
    // A shorter text scores higher, and this text has at least these words.
    if !ranking.admits(ranking.score(often.iter().copied(), f64::from(words))) {
        return Ok(0.0);
    }
    let mut length: c_int = 0;
    // SAFETY: as above; the column exists.
    done(unsafe { size(row, TEXT, &raw mut length) })?;
    let score = ranking.score(often.iter().copied(), f64::from(length));
    ranking.take(score);
    Ok(score)
}

/// Reads the parameters at the first row of a search.
///
/// # Safety
///
/// The caller must meet the contract of [`rank`].
unsafe fn begin<'a>(
    api: &ffi::Fts5ExtensionApi,
    row: *mut ffi::Fts5Context,
    count: c_int,
    values: *mut *mut ffi::sqlite3_value,
) -> Result<&'a mut Ranking, c_int> {
    let (Some(rows), Some(total), Some(phrases), Some(set)) =
        (api.xRowCount, api.xColumnTotalSize, api.xPhraseCount, api.xSetAuxdata)
    else {
        return Err(ffi::SQLITE_MISUSE);
    };
    if count != 1 {
        return Err(ffi::SQLITE_MISUSE);
    }
    let (mut items, mut words) = (0_i64, 0_i64);
    // SAFETY: there is one value, and its bytes stay as they are until it is asked for in
    // another form; the two results are written to places of ours.
    let (parameters, phrases) = unsafe {
        let value = *values;
        let bytes = ffi::sqlite3_value_blob(value).cast::<u8>();
        let length = usize::try_from(ffi::sqlite3_value_bytes(value)).unwrap_or(0);
        done(rows(row, &raw mut items))?;
        done(total(row, TEXT, &raw mut words))?;
        let bytes = if bytes.is_null() { &[] } else { std::slice::from_raw_parts(bytes, length) };
        (bytes, phrases(row))
    };
    #[expect(clippy::cast_precision_loss, reason = "an average, of far less than 2^53 words")]
    let average = (words as f64 / items.max(1) as f64).max(1.0);
    let ranking = Ranking::new(parameters, average).ok_or(ffi::SQLITE_MISUSE)?;
    if usize::try_from(phrases) != Ok(ranking.weights.len()) {
        return Err(ffi::SQLITE_MISUSE);
    }
    let kept = Box::into_raw(Box::new(ranking));
    // SAFETY: FTS5 takes it over, and calls `forget` once: at the end, or now if this fails.
    done(unsafe { set(row, kept.cast(), Some(forget)) })?;
    // SAFETY: it lives until the search ends, which is not before this row has its score, and
    // nobody else has it.
    Ok(unsafe { &mut *kept })
}

/// # Safety
///
/// FTS5 calls it once, with the value that [`begin`] passed to it.
unsafe extern "C" fn forget(kept: *mut c_void) {
    // SAFETY: it came out of a box of this type.
    drop(unsafe { Box::from_raw(kept.cast::<Ranking>()) });
}

/// Counts how often a phrase occurs in the row.
///
/// # Safety
///
/// The caller must meet the contract of [`rank`], and the phrase must exist.
unsafe fn occurrences(
    api: &ffi::Fts5ExtensionApi,
    row: *mut ffi::Fts5Context,
    phrase: c_int,
) -> Result<u32, c_int> {
    let (Some(first), Some(next)) = (api.xPhraseFirst, api.xPhraseNext) else {
        return Err(ffi::SQLITE_MISUSE);
    };
    let mut at = ffi::Fts5PhraseIter { a: ptr::null(), b: ptr::null() };
    let (mut column, mut offset): (c_int, c_int) = (0, 0);
    let mut often = 0;
    // SAFETY: the iterator is FTS5's to fill, and nothing else moves it before the end, which
    // FTS5 tells by a column below 0.
    unsafe {
        done(first(row, phrase, &raw mut at, &raw mut column, &raw mut offset))?;
        while column >= 0 {
            often += 1;
            next(row, &raw mut at, &raw mut column, &raw mut offset);
        }
    }
    Ok(often)
}

fn done(code: c_int) -> Result<(), c_int> {
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(code) }
}

#[cfg(test)]
mod tests {
    use rusqlite::params;

    use super::*;

    fn index(texts: &[String]) -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        register(&conn).unwrap();
        conn.execute_batch("CREATE VIRTUAL TABLE w USING fts5(scope, text, content = '')").unwrap();
        for text in texts {
            conn.execute("INSERT INTO w (scope, text) VALUES ('c', ?1)", [text]).unwrap();
        }
        conn
    }

    fn ranked(
        conn: &Connection,
        search: &str,
        keep: Option<u32>,
        weights: &[f64],
    ) -> Vec<(i64, f64)> {
        let mut find = conn
            .prepare(
                "SELECT rowid, memory_rank(w, ?2) FROM w WHERE w MATCH ?1
                 ORDER BY 2 DESC, 1 DESC LIMIT ?3",
            )
            .unwrap();
        let with = parameters(keep, weights.iter().copied());
        let most = keep.map_or(-1, i64::from);
        let rows =
            find.query_map(params![search, with, most], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn results_are_ordered_by_bm25_and_a_limit_does_not_change_them() {
        let texts: Vec<String> = (0_u32..400)
            .map(|n| {
                let often = ["one ", "two ", "three "].iter().zip([3, 7, 2]);
                let words: String =
                    often.map(|(word, of)| word.repeat((n % of) as usize)).collect();
                words + &"filler ".repeat((n * 37 % 23 + 1) as usize)
            })
            .collect();
        let conn = index(&texts);
        let search = "text : (one OR two OR three)";
        let count = |word: &str| -> f64 {
            conn.query_row("SELECT count(*) FROM w WHERE w MATCH ?1", [word], |row| row.get(0))
                .unwrap()
        };
        let weights: Vec<f64> = ["one", "two", "three"]
            .into_iter()
            .map(|word| ((400.0 - count(word) + 0.5) / (count(word) + 0.5)).ln().max(1e-6))
            .collect();
        let all = ranked(&conn, search, None, &weights);
        let mut find = conn
            .prepare("SELECT rowid, -bm25(w) FROM w WHERE w MATCH ?1 ORDER BY 2 DESC, 1 DESC")
            .unwrap();
        let theirs: Vec<(i64, f64)> = find
            .query_map([search], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(all.len(), theirs.len());
        // FTS5 counts the one word of the other column into every length.
        let near = |a: f64, b: f64| (a - b).abs() < 0.05 * b.abs() + 1e-5;
        for (ours, theirs) in all.iter().zip(&theirs) {
            assert!(near(ours.1, theirs.1), "{ours:?} {theirs:?}");
        }
        for keep in [1, 5, 50] {
            assert_eq!(ranked(&conn, search, Some(keep), &weights), all[..keep as usize]);
        }
    }

    #[test]
    fn a_zero_weight_ignores_a_phrase_and_invalid_parameters_are_an_error() {
        let conn = index(&["a b".into(), "a b b b".into(), "a".into()]);
        let found = ranked(&conn, "text : (a OR b)", Some(3), &[0.0, 1.0]);
        assert_eq!(found.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [2, 1, 3]);
        assert!(found[2].1.abs() < f64::EPSILON);
        let sql = "SELECT memory_rank(w, ?1) FROM w WHERE w MATCH 'a OR b'";
        for wrong in [vec![], vec![0; 8], parameters(None, [1.0].into_iter()), vec![0; 25]] {
            assert!(conn.query_row(sql, [wrong], |_| Ok(())).is_err());
        }
        let sql = "SELECT memory_rank(w) FROM w WHERE w MATCH 'a OR b'";
        assert!(conn.query_row(sql, [], |_| Ok(())).is_err());
        assert!(conn.query_row("SELECT memory_rank(1, 2)", [], |_| Ok(())).is_err());
    }

    #[test]
    fn many_phrases_are_supported() {
        let conn = index(&["w1 w99".into(), "w1".into()]);
        let search: Vec<String> = (0..100).map(|n| format!("w{n}")).collect();
        let found = ranked(&conn, &search.join(" OR "), Some(2), &[1.0; 100]);
        assert_eq!(found.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 2]);
    }
}
