//! The store against the port's suite, against disks and owners, against kills and tampering.

#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests themselves")]

mod artifacts;
mod backup;
mod conformance;
mod crash;
mod disk;
mod loss;
mod masking;
mod opening;
mod records;
mod tampering;
mod traffic;

use std::path::Path;

use overmind_store::{Options, Sqlite};

/// Opens the store `s.db` in `dir`.
#[track_caller]
fn open(dir: &Path) -> Sqlite {
    Sqlite::open(Options::new(dir.join("s.db"))).unwrap()
}
