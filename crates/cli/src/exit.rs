//! How the program ends: a documented code, a message, a remedy.

use std::io;
use std::process::ExitCode;

/// The codes of `overmind --help` and docs/cli.md. Scripts rely on them: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    NotFound,
    Unreachable,
    Conflict,
    Denied,
    RunFailed,
    RunCanceled,
    RunWaits,
    /// The exit code of `wait`: that of the run's own command.
    OfCommand(u8),
}

impl Exit {
    /// The exit code as a shell shows it; a value that fits no exit code becomes 255.
    pub fn of_command(code: i32) -> Self {
        match u8::try_from(code) {
            Ok(0) => Self::Done,
            Ok(code) => Self::OfCommand(code),
            Err(_) => Self::OfCommand(255),
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Unreachable => 4,
            Self::Conflict => 5,
            Self::Denied => 6,
            Self::RunFailed => 10,
            Self::RunCanceled => 11,
            Self::RunWaits => 12,
            Self::OfCommand(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// What was attempted, on which object, and why it failed. Empty if the reader closed the pipe.
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

    /// A refusal by the server, with what the person typed in place of `Run`.
    #[must_use]
    pub fn of_run(mut self, given: &str) -> Self {
        if let Some(rest) = self.message.strip_prefix("Run ") {
            self.message = format!("{given} {rest}");
        }
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<overmind_node::config::ConfigError> for Failure {
    fn from(err: overmind_node::config::ConfigError) -> Self {
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

/// The result of a command that succeeded.
pub type Outcome = Result<Exit, Failure>;
