//! What a session works in and must give back: worktree, ports, databases, services.
//!
//! * [`tree`]: a working tree for each session, that shares no state with the primary checkout but
//!   read-only objects; what becomes of the work in it. Start with [`Trees`].
//! * [`pool`]: such trees made ready before anybody asks.
//! * [`git`]: running git so that nothing in a repository decides what runs.
//!
//! Nothing here supervises processes, and nothing uses the network.

mod copy;
pub mod git;
pub mod pool;
pub mod tree;

pub use copy::Copied;
pub use tree::Trees;
