//! How the program ends: a documented code, a message, a remedy.

use std::io;
use std::process::ExitCode;

/// The codes of `overmind --help` and docs/cli.md. Scripts rely on them: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Unreachable = 4,
    Conflict = 5,
    Denied = 6,
    RunFailed = 10,
    RunCanceled = 11,
    RunWaits = 12,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminants are small by definition.
        Self::from(exit as u8)
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// What was attempted, on what, why it failed. Empty: the reader went away, say nothing.
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(err: crate::config::ConfigError) -> Self {
        Self { exit: Exit::Failed, hint: err.hint(), message: err.to_string() }
    }
}

impl From<io::Error> for Failure {
    /// For writing to standard output, the one bare `io::Error` that commands pass on.
    fn from(err: io::Error) -> Self {
        if err.kind() == io::ErrorKind::BrokenPipe {
            return Self { exit: Exit::Done, message: String::new(), hint: None };
        }
        Self::failed(format!("writing the result: {err}"))
    }
}

impl From<overmind_core::store::StoreError> for Failure {
    fn from(err: overmind_core::store::StoreError) -> Self {
        Self::failed(err.to_string())
    }
}

/// What a command that did its work answers.
pub type Outcome = Result<Exit, Failure>;
