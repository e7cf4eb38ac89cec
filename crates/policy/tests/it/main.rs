//! The crate from outside: the corpus, its mutations, the language, approvals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod approvals;
mod corpus;
mod everyday;
mod fresh;
mod language;
mod properties;
mod traced;
