//! What a session finds in its environment, and in a file of its worktree.
//!
//! `template` is the grammar of values that refer to a session's own ports and databases,
//! `dotenv` how such values are written to a file, `file` where that file may stand.

pub(crate) mod dotenv;
pub(crate) mod file;
pub(crate) mod template;

pub use template::{Template, TemplateError, Values};
