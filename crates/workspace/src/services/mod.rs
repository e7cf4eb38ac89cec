//! Services beside a session: processes, containers, compose projects.
//!
//! Each strategy makes its resource under a name that is derived from the session, and undoes it by
//! that name alone; [`lease`](crate::lease) decides when.

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
