//! The client against servers that misbehave: each test plays one, byte by byte.
//!
//! The tests with our own server are in the program's crate, through the whole product.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

mod calls;
mod peer;
mod replay;
