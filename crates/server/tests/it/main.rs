//! The server in front of a real engine over a real store, spoken to byte by byte.
//!
//! Tools and models are the testkit's: what they do is not this crate's business. The whole
//! product, with real tools and the typed client, is tested in the program's crate.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

mod agents;
mod artifacts;
mod colonies;
mod doors;
mod hostile;
mod inbox;
mod kills;
mod lapsed;
mod lifecycle;
mod proxy;
mod replay;
mod resources;
mod rest;
mod rooms;
mod runs;
mod surface;
mod watch;
mod world;
