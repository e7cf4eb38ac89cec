//! The best values that the machine reaches without Overmind.

use std::time::{Duration, Instant};

use super::{Figure, Setting, ms, percentile, rate};
use crate::doctor::disk::sync_times;
use crate::exit::Failure;

/// Measured once, used by every metric of the run.
#[derive(Clone, Copy, Debug)]
pub struct Floors {
    /// A small append made durable, in the middle.
    pub fsync: Duration,
    /// One row committed durably by SQLite alone, in the middle.
    pub commit: Duration,
    /// Rows a second when SQLite alone commits 256 of them at a time.
    pub rows: f64,
}

/// Rows of one commit of the grouped floor: what 64 sessions with four events each give.
const GROUP: u32 = 256;

impl Floors {
    /// # Errors
    ///
    /// Returns an error if the measurement fails.
    pub fn measure(setting: &Setting) -> Result<Self, Failure> {
        let syncs = setting.count(500) as usize;
        let fsync = sync_times(&setting.dir, syncs)
            .map_err(|err| Failure::failed(format!("measuring fsync: {err}")))?;
        let (commit, rows) = sqlite(setting)
            .map_err(|err| Failure::failed(format!("measuring bare SQLite: {err}")))?;
        Ok(Self { fsync: percentile(&fsync, 0.5), commit, rows })
    }

    /// Returns them as separate metrics.
    pub fn figures(&self) -> Vec<Figure> {
        vec![
            Figure::new("floor fsync", ms(self.fsync), "ms")
                .note("512 bytes appended and synced, in the middle"),
            Figure::new("floor sqlite commit", ms(self.commit), "ms")
                .note("one row, WAL, synchronous=FULL, in the middle"),
            Figure::new("floor sqlite rows", self.rows, "rows/s")
                .note("256 rows of an event's size a commit, no hash, no index but the key"),
        ]
    }
}

fn sqlite(setting: &Setting) -> Result<(Duration, f64), rusqlite::Error> {
    let conn = rusqlite::Connection::open(setting.dir.join("floor.db"))?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE e (id INTEGER PRIMARY KEY, stream BLOB, seq INT, kind TEXT, ts INT,
                         payload TEXT, hash BLOB);",
    )?;
    let insert = "INSERT INTO e (stream, seq, kind, ts, payload, hash) VALUES (?1,?2,?3,?4,?5,?6)";
    let payload = "x".repeat(200);
    let row = |n: u32| -> Result<usize, rusqlite::Error> {
        let values = (&[7_u8; 16], n, "step.finished", 0, &payload, &[9_u8; 32]);
        conn.prepare_cached(insert)?.execute(values)
    };
    let mut took = Vec::new();
    for n in 0..setting.count(500) {
        let start = Instant::now();
        row(n)?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let groups = setting.count(100);
    let start = Instant::now();
    for group in 0..groups {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        for n in 0..GROUP {
            row(group * GROUP + n)?;
        }
        conn.execute_batch("COMMIT")?;
    }
    Ok((percentile(&took, 0.5), rate(groups * GROUP, start.elapsed())))
}
