//! Memory over the real store, and over an embeddings endpoint on a socket.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod endpoint;
mod hybrid;
mod support;
mod words;
