//! Memory over the real store, over an embeddings endpoint on a socket, and
//! over model files.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod endpoint;
mod hybrid;
mod life;
mod support;
mod table;
mod words;
