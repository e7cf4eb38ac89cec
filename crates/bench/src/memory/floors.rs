//! The duration of a search without Overmind.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use overmind_memory::terms;

use super::corpus::Corpus;
use super::speed::texts;
use crate::percentile;

/// Questions that are asked of the bare index, which takes long for each.
const QUESTIONS: usize = 40;
/// Passes over the bare vectors.
const PASSES: usize = 20;
/// Sums that are kept side by side, so that the compiler can use wide registers.
const LANES: usize = 16;

/// The median: FTS5's own ranking of all items with any word of a question, 5 results.
///
/// # Errors
///
/// SQLite's.
pub(super) fn words(dir: &Path, corpus: &Corpus, items: usize) -> rusqlite::Result<Duration> {
    let conn = rusqlite::Connection::open(dir.join("floor-words.db"))?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL;
         CREATE VIRTUAL TABLE t USING fts5(text, content = '', tokenize = 'unicode61');
         BEGIN;",
    )?;
    for text in texts(corpus, items) {
        conn.prepare_cached("INSERT INTO t (text) VALUES (?1)")?.execute([text])?;
    }
    conn.execute_batch("COMMIT")?;
    let by_hand = corpus.questions.iter().filter(|question| !question.known_item);
    let mut took = Vec::new();
    for question in by_hand.take(QUESTIONS) {
        let quoted: Vec<String> =
            terms(&question.text).into_iter().map(|word| format!("\"{word}\"")).collect();
        let start = Instant::now();
        let mut find =
            conn.prepare_cached("SELECT rowid FROM t WHERE t MATCH ?1 ORDER BY rank LIMIT 5")?;
        let mut rows = find.query([quoted.join(" OR ")])?;
        while rows.next()?.is_some() {}
        took.push(start.elapsed());
    }
    took.sort_unstable();
    Ok(percentile(&took, 0.5))
}

/// In the middle: one thread's pass over the vectors of so many items in single precision.
pub(super) fn scan(items: usize, dims: usize) -> Duration {
    let part = |n: usize| f32::from(u16::try_from(n % 251).unwrap_or(0)) - 125.0;
    let vectors: Vec<f32> = (0..items * dims).map(part).collect();
    let query: Vec<f32> = (0..dims).map(part).collect();
    let mut took: Vec<Duration> = (0..PASSES)
        .map(|_| {
            let start = Instant::now();
            let best = vectors.chunks_exact(dims).map(|row| dot(row, &query)).fold(0.0, f32::max);
            black_box(best);
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    percentile(&took, 0.5)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
    let mut sums = [0.0_f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_bare_product_is_the_sum_of_the_products() {
        let a: Vec<f32> = (0_u8..32).map(f32::from).collect();
        assert!((super::dot(&a, &[2.0; 32]) - 2.0 * 496.0).abs() < 0.5);
    }
}
