//! What runs beside a session: processes, containers, compose projects.
//!
//! Each strategy knows how to make its resource under a name that follows from the session, and
//! how to undo it by that name alone; [`lease`](crate::lease) says when.

pub(crate) mod cgroup;
pub(crate) mod command;
pub(crate) mod compose;
pub mod confine;
pub(crate) mod container;
pub(crate) mod ready;
pub mod runner;
pub(crate) mod tree;

pub use command::CommandError;
pub use compose::ComposeError;
pub use container::ContainerError;
pub use ready::ReadyError;
