//! Who decides what a session does next, as far as that is a pure function.

pub mod prompt;
pub mod rules;
