//! Reading, with separate connections on separate threads.
//!
//! In write-ahead mode a reader sees the last durable commit, and reader and writer never wait for
//! each other. Every result is limited by its caller and by this module.

pub(crate) mod inbox;
pub(crate) mod memory;
pub(crate) mod mesh;
pub(crate) mod pool;
pub(crate) mod queries;
pub(crate) mod rows;
pub(crate) mod words;
