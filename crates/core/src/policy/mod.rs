//! The pure parts of deciding a session's next action.

pub mod prompt;
pub mod rules;
