//! A compact in-memory copy of the vectors of memory, for fast exact search.
//!
//! A table holds the vectors of one collection, model and size with one byte for each component, a
//! quarter of their size in the file, and is read in one pass. The result is still exact: each
//! vector is stored with the error of its bytes, so that each cosine is known between two bounds.
//! The caller reads vectors from the file in the order of their upper bounds and stops when no
//! bound exceeds its results (`read::nearest`).
//!
//! A table is made at the first search that needs it and then follows the file: a search reads the
//! changes since the last one (`memory_vectors.rev`) inside of its own transaction. Nothing is
//! stored if memory is not searched by vector, and never more than [`MAX_BYTES`]: the least
//! recently used table is dropped first, and a table that does not fit alone is searched in the
//! file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, params};

use crate::error::Outcome;
use crate::read::rows::{Cells, floats, unsigned};

/// Maximum number of bytes of all tables together: 166,000 vectors of 1,536 dimensions, or 900,000
/// of 256.
pub(crate) const MAX_BYTES: usize = 256 << 20;
/// About how many bytes a vector takes besides its components.
const ROW_BYTES: usize = 40;
/// Components that are summed before the sum is widened: 256 · 127 · 32,767 fits an `i32`.
const BLOCK: usize = 256;
/// The error that single-precision rounding may add to a bound.
const ROUNDING: f32 = 1e-5;

/// The collection, model and size of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) collection: i64,
    pub(crate) model: String,
    pub(crate) dims: usize,
}

/// The tables of one store.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// The tables with the number of their last use.
    held: HashMap<Key, (u64, Arc<Mutex<Table>>)>,
    uses: u64,
}

/// The vectors of one key.
#[derive(Debug, Default)]
pub(crate) struct Table {
    dims: usize,
    /// The last change that the table contains.
    rev: i64,
    items: Vec<i64>,
    /// `dims` components for each item.
    parts: Vec<i8>,
    /// The value of one step of a component, for each item.
    steps: Vec<f32>,
    /// The distance of each unit vector from the value of its bytes.
    slack: Vec<f32>,
    places: HashMap<i64, u32>,
}

/// An item and the upper bound of its cosine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) most: f32,
    pub(crate) item: i64,
}

impl Vectors {
    /// The bounds of all items of a table against `query`, unordered; `None` if the table is too
    /// large for memory.
    pub(crate) fn bounds(
        &self,
        conn: &Connection,
        key: &Key,
        query: &[f32],
    ) -> Outcome<Option<Vec<Bound>>> {
        let rows: i64 = conn
            .prepare_cached("SELECT items FROM collections WHERE n = ?1")?
            .query_row([key.collection], |row| row.get(0))?;
        let rows = usize::try_from(unsigned(rows, "collections.items")?).unwrap_or(usize::MAX);
        if rows.saturating_mul(key.dims + ROW_BYTES) > MAX_BYTES {
            self.tables.lock().unwrap_or_else(PoisonError::into_inner).held.remove(key);
            return Ok(None);
        }
        let table = self.table(key);
        // A panic during a change may have left the table incomplete.
        let mut held = table.lock().unwrap_or_else(|broken| {
            let mut held = broken.into_inner();
            *held = Table::default();
            held
        });
        if let Err(fault) = held.follow(conn, key) {
            *held = Table::default();
            return Err(fault);
        }
        let bounds = held.scan(query);
        drop(held);
        table.clear_poison();
        self.make_room(key);
        Ok(Some(bounds))
    }

    fn table(&self, key: &Key) -> Arc<Mutex<Table>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.uses += 1;
        let now = tables.uses;
        let (used, table) = tables.held.entry(key.clone()).or_default();
        *used = now;
        Arc::clone(table)
    }

    /// Drops the least recently used tables until the rest fits.
    fn make_room(&self, keep: &Key) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // A table that is being read is not counted now; it is checked next time.
            let bytes: usize = tables
                .held
                .values()
                .filter_map(|(_, table)| table.try_lock().ok().map(|table| table.bytes()))
                .sum();
            if bytes <= MAX_BYTES {
                return;
            }
            let others = tables.held.iter().filter(|(key, _)| *key != keep);
            let Some(oldest) =
                others.min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())
            else {
                return;
            };
            tables.held.remove(&oldest);
        }
    }
}

impl Table {
    fn bytes(&self) -> usize {
        self.parts.capacity() + self.items.len() * ROW_BYTES
    }

    /// Reads the changes since the last time.
    fn follow(&mut self, conn: &Connection, key: &Key) -> Outcome<()> {
        let (rev, floor): (i64, i64) = conn
            .prepare_cached("SELECT rev, floor FROM memory_state")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if rev <= self.rev && self.dims == key.dims {
            return Ok(());
        }
        if self.dims != key.dims || self.rev < floor {
            *self = Self { dims: key.dims, rev: -1, ..Self::default() };
        } else {
            let mut find = conn.prepare_cached(
                "SELECT item FROM memory_vectors_gone WHERE rev > ?1 ORDER BY rev",
            )?;
            let mut found = find.query([self.rev])?;
            while let Some(row) = found.next()? {
                self.remove(Cells::new(row, "memory_vectors_gone").int(0)?);
            }
        }
        // Items that were removed and added again are among these.
        let mut find = conn.prepare_cached(
            "SELECT item, vector FROM memory_vectors
             WHERE collection = ?1 AND model = ?2 AND dims = ?3 AND rev > ?4",
        )?;
        let dims = i64::try_from(key.dims).unwrap_or(i64::MAX);
        let mut found = find.query(params![key.collection, key.model, dims, self.rev])?;
        while let Some(row) = found.next()? {
            let cells = Cells::new(row, "memory_vectors");
            self.put(cells.int(0)?, cells.blob(1)?);
        }
        self.rev = rev;
        Ok(())
    }

    fn remove(&mut self, item: i64) {
        let Some(place) = self.places.remove(&item) else { return };
        let place = place as usize;
        let last = self.items.len() - 1;
        self.items.swap_remove(place);
        self.steps.swap_remove(place);
        self.slack.swap_remove(place);
        self.parts.copy_within(last * self.dims.., place * self.dims);
        self.parts.truncate(last * self.dims);
        if let Some(moved) = self.items.get(place) {
            self.places.insert(*moved, u32::try_from(place).unwrap_or(u32::MAX));
        }
    }

    /// Adds a vector, or skips it if it has no direction.
    fn put(&mut self, item: i64, stored: &[u8]) {
        self.remove(item);
        let length = length(floats(stored));
        if length == 0.0 || !length.is_finite() || stored.len() != 4 * self.dims {
            return;
        }
        let largest = floats(stored).fold(0.0_f32, |most, part| most.max(part.abs())) / length;
        let step = largest / 127.0;
        let mut off = 0.0_f32;
        for part in floats(stored) {
            let part = part / length;
            #[expect(clippy::cast_possible_truncation, reason = "within -127..=127 and rounded")]
            let byte = (part / step).round().clamp(-127.0, 127.0) as i8;
            off += (part - f32::from(byte) * step).powi(2);
            self.parts.push(byte);
        }
        self.places.insert(item, u32::try_from(self.items.len()).unwrap_or(u32::MAX));
        self.items.push(item);
        self.steps.push(step);
        self.slack.push(off.sqrt());
    }

    /// The bounds against `query`, which has unit length.
    fn scan(&self, query: &[f32]) -> Vec<Bound> {
        let largest = query.iter().fold(0.0_f32, |most, part| most.max(part.abs()));
        let step = largest / 32_767.0;
        #[expect(clippy::cast_possible_truncation, reason = "within i16 and rounded")]
        let fine: Vec<i16> = query
            .iter()
            .map(|part| (part / step).round().clamp(-32_767.0, 32_767.0) as i16)
            .collect();
        let off = query
            .iter()
            .zip(&fine)
            .map(|(part, fine)| (part - f32::from(*fine) * step).powi(2))
            .sum::<f32>()
            .sqrt();
        let rows = self.parts.chunks_exact(self.dims.max(1));
        let places = self.items.iter().zip(self.steps.iter().zip(&self.slack));
        rows.zip(places)
            .map(|(row, (item, (own, slack)))| {
                #[expect(clippy::cast_precision_loss, reason = "ROUNDING is more than it loses")]
                let about = dot(row, &fine) as f32 * step * own;
                // |q·v − q′·v′| ≤ |q|·|v − v′| + |q − q′|·|v′|
                Bound { most: about + slack + off * (1.0 + slack) + ROUNDING, item: *item }
            })
            .collect()
    }
}

/// Written so that the compiler makes one multiply-and-add for eight components.
fn dot(a: &[i8], b: &[i16]) -> i64 {
    a.chunks(BLOCK)
        .zip(b.chunks(BLOCK))
        .map(|(a, b)| {
            let sum: i32 =
                a.iter().zip(b).map(|(a, b)| i32::from(i16::from(*a)) * i32::from(*b)).sum();
            i64::from(sum)
        })
        .sum()
}

/// The length of a vector.
pub(crate) fn length(parts: impl Iterator<Item = f32>) -> f32 {
    parts.map(|part| part * part).sum::<f32>().sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(vector: &[f32]) -> Vec<u8> {
        vector.iter().flat_map(|part| part.to_le_bytes()).collect()
    }

    fn unit(vector: &[f32]) -> Vec<f32> {
        let length = length(vector.iter().copied());
        vector.iter().map(|part| part / length).collect()
    }

    proptest! {
        #[test]
        fn cosines_never_exceed_their_bound(
            vectors in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 300), 1..20),
            query in prop::collection::vec(-1.0_f32..1.0, 300),
        ) {
            prop_assume!(length(query.iter().copied()) > 0.1);
            let query = unit(&query);
            let mut table = Table { dims: 300, ..Table::default() };
            for (n, vector) in vectors.iter().enumerate() {
                table.put(i64::try_from(n).unwrap(), &bytes(vector));
            }
            for bound in table.scan(&query) {
                let vector = unit(&vectors[usize::try_from(bound.item).unwrap()]);
                let cosine: f32 = vector.iter().zip(&query).map(|(a, b)| a * b).sum();
                prop_assert!(cosine <= bound.most, "{cosine} {}", bound.most);
                prop_assert!(bound.most - cosine < 0.05, "{cosine} {}", bound.most);
            }
        }
    }

    #[test]
    fn removing_moves_the_last_vector_into_the_gap() {
        let mut table = Table { dims: 2, ..Table::default() };
        for (item, vector) in [(1, [1.0, 0.0]), (2, [0.0, 1.0]), (3, [0.0, -1.0])] {
            table.put(item, &bytes(&vector));
        }
        table.put(9, &bytes(&[0.0, 0.0]));
        table.put(8, &bytes(&[1.0]));
        table.remove(1);
        table.remove(1);
        table.put(2, &bytes(&[1.0, 1.0]));
        let mut found: Vec<(i64, i32)> = table
            .scan(&[0.0, 1.0])
            .iter()
            .map(|bound| {
                #[expect(clippy::cast_possible_truncation, reason = "a small number")]
                let tenths = (bound.most * 10.0).round() as i32;
                (bound.item, tenths)
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(2, 7), (3, -10)]);
        table.remove(2);
        table.remove(3);
        assert!(table.scan(&[0.0, 1.0]).is_empty());
        assert_eq!(table.parts.len(), 0);
    }

    #[test]
    fn the_largest_sums_do_not_overflow() {
        assert_eq!(dot(&[127; 300], &[32_767; 300]), 300 * 127 * 32_767);
        assert_eq!(dot(&[-127; 300], &[32_767; 300]), -300 * 127 * 32_767);
    }
}
