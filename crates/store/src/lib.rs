//! Durable state on SQLite: the port [`overmind_core::store::Store`] for one machine.
//!
//! [`Sqlite::open`] is the entry point. One thread writes, in groups (`writer`); a few read
//! (`read`); one copies the write-ahead log back (`wal`). Secrets are masked before anything is
//! queued ([`redact`], called from `prepare`); `audit` checks what is at rest; [`restore`]
//! brings a backup back.
//!
//! What is acknowledged is on disk: every group ends with an fsync (`synchronous = FULL`). What
//! is refused left no trace. The store belongs to one process at a time, by a lock file. A store
//! that lost what was acknowledged is not opened without a word: see [`OnLoss`].
//!
//! No business rule lives here: the store knows what a session row is, not when it may change.
//! Guards and uniqueness are the only reasons for which it refuses a commit that fits the disk.
//!
//! Limits: lists answer at most 1,000 rows and 10,000 events at once, whatever was asked for;
//! counters beyond 2⁶³−1 are written as that; the file does not shrink after retention, its
//! space is used again.

mod artifacts;
mod attestations;
mod audit;
mod backup;
mod budgets;
mod error;
mod files;
mod key;
mod options;
mod prepare;
mod read;
mod recent;
mod records;
pub mod redact;
mod schema;
mod sqlite;
mod sys;
mod vault;
mod vectors;
mod wal;
mod witness;
mod writer;

pub use backup::{Replace, restore};
pub use options::{OnLoss, Options};
pub use sqlite::Sqlite;
