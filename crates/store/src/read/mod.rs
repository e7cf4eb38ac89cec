//! Reading: connections of their own, in threads of their own.
//!
//! In write-ahead mode a reader sees the last durable commit and never waits for the writer,
//! nor the writer for it. Every answer is bounded by its caller's limit and by this module's.

pub(crate) mod inbox;
pub(crate) mod memory;
pub(crate) mod mesh;
pub(crate) mod pool;
pub(crate) mod queries;
pub(crate) mod rows;
pub(crate) mod words;
