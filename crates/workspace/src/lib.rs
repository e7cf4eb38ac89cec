//! The resources of a session: worktree, ports, databases, services.
//!
//! * [`tree`]: a working tree for each session, which shares only read-only objects with the
//!   primary checkout; and decisions about its work. Start with [`Trees`].
//! * [`pool`]: such trees, made in advance.
//! * [`git`]: runs git so that nothing in a repository decides what runs.
//! * [`config`]: `.overmind.yml`, a project's requirements; [`ports`], [`database`], [`services`]
//!   and [`mod@env`] provide them.
//! * [`lease`]: all of that for one session, made in order and released in order, also after a
//!   crash; [`leaks`] finds remaining resources. Start with [`lease::Workspace`].
//! * [`rooms`]: implements the port of the engine, [`overmind_core::room::Rooms`], with all of it.
//!   Start with [`rooms::LocalRooms`].

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
