//! The crate from outside: the corpus, its mutations, the language, approvals.

mod approvals;
mod corpus;
mod language;
mod properties;
mod speed;
mod traced;
