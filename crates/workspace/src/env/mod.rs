//! The variables of a session, in its environment and in a file of its worktree.
//!
//! `template` is the grammar of values that refer to a session's own ports and databases, `dotenv`
//! writes such values to a file, and `file` decides where that file may be.

pub(crate) mod dotenv;
pub(crate) mod file;
pub(crate) mod template;

pub use template::{Template, TemplateError, Values};
