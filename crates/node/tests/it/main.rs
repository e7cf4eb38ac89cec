//! The whole server in one process.

mod api;
