//! Durable state on SQLite: the port [`overmind_core::store::Store`] for one machine.
//!
//! [`Sqlite::open`] is the entry point. One thread writes, in groups (`writer`); a few read
//! (`read`); one copies the write-ahead log back (`wal`). Secrets are masked before anything is
//! queued ([`redact`], called from `prepare`); `audit` checks what is at rest; [`restore`]
//! restores a backup.
//!
//! An acknowledged commit is on disk: every group ends with an fsync (`synchronous = FULL`). A
//! refused commit leaves no trace. A lock file gives the store to one process at a time. A store
//! that lost acknowledged data is not opened silently: see [`OnLoss`].
//!
//! The store contains no business rules: it knows what a session row is, not when it may change.
//! Guards and uniqueness are the only reasons to refuse a commit that fits on the disk.
//!
//! Limits: lists return at most 1,000 rows and 10,000 events at once, whatever limit was requested;
//! counters beyond 2⁶³−1 are stored as that; the file does not shrink after retention, but its
//! space is reused.

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
