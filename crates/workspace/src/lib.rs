//! What a session works in and must give back: worktree, ports, databases, services.
//!
//! * [`tree`]: a working tree for each session, that shares no state with the primary checkout but
//!   read-only objects; what becomes of the work in it. Start with [`Trees`].
//! * [`pool`]: such trees made ready before anybody asks.
//! * [`git`]: running git so that nothing in a repository decides what runs.
//! * [`config`]: `.overmind.yml`, the contract; [`ports`], [`database`], [`services`] and [`mod@env`] are
//!   what it asks for.
//! * [`lease`]: all of that for one session, made in order and given back in order, also after a
//!   crash; [`leaks`] finds what is left. Start with [`lease::Workspace`].
//! * [`rooms`]: the port of the engine, [`overmind_core::room::Rooms`], over all of it. Start with
//!   [`rooms::LocalRooms`].

pub mod config;
mod copy;
pub mod database;
pub mod env;
pub mod git;
mod hooks;
pub mod leaks;
pub mod lease;
mod opener;
mod owner;
pub mod pool;
pub mod ports;
pub mod rooms;
pub mod secrets;
pub mod services;
mod sys;
pub mod tree;

pub use copy::Copied;
pub use tree::Trees;
