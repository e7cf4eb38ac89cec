//! Agents that are commands: any program in place of a loop of our own.
//!
//! A session of such an agent has *lives*, one after the other: each is one start of the command.
//! What ends a life, whether another begins and when is decided by the session like everything
//! else ([`crate::session`]); a Hive keeps the process ([`crate::process`]).

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process::prompt::{Provider, Question};
use crate::process::restart::{RestartPolicy, RestartWhen};
use crate::process::{EndedBy, ExitStatus};
use crate::time::Timestamp;

/// Stands for the session's task in an argument.
pub const TASK: &str = "{task}";
/// Longest command line, program and arguments together, in bytes.
pub const MAX_ARGV: usize = 120_000;

/// Whether a command ends by itself or goes on until somebody ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// It does its task and ends. Behind pipes its input is closed.
    #[default]
    Task,
    /// It takes more input for as long as it lives.
    Session,
}

/// The command of an agent, as a user writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// Program and arguments. `{task}` in an argument becomes the task; where it stands nowhere
    /// and the task is not empty, the task is the last argument. Empty with a provider of its own
    /// program.
    #[serde(default)]
    pub argv: Vec<String>,
    #[serde(default)]
    pub provider: Provider,
    #[serde(default)]
    pub kind: CommandKind,
    /// A terminal of its own in place of pipes.
    #[serde(default)]
    pub terminal: bool,
    /// Added to what every session's environment has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    #[serde(default)]
    pub restart: RestartRules,
    /// Seconds without output after which a life is ended as stuck; 0 is never.
    #[serde(default)]
    pub activity_timeout: u32,
}

/// [`RestartPolicy`] as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartRules {
    pub when: RestartWhen,
    /// Within `max_seconds`; 0 is no bound.
    pub max_restarts: u32,
    pub max_seconds: u32,
    pub backoff_ms: u32,
}

impl Default for RestartRules {
    fn default() -> Self {
        Self { when: RestartWhen::Never, max_restarts: 5, max_seconds: 60, backoff_ms: 1000 }
    }
}

impl From<RestartRules> for RestartPolicy {
    fn from(rules: RestartRules) -> Self {
        Self {
            when: rules.when,
            max_restarts: rules.max_restarts,
            within: Duration::from_secs(u64::from(rules.max_seconds)),
            backoff: Duration::from_millis(u64::from(rules.backoff_ms)),
            ..Self::default()
        }
    }
}

/// What is wrong with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command is empty: give a program and its arguments")]
    Empty,
    #[error("the command contains a NUL character")]
    Nul,
    #[error("the command has more than {MAX_ARGV} bytes: hand long texts over in a file")]
    TooLong,
    #[error("the name of a variable of the environment is empty or contains `=`")]
    Variable,
}

impl CommandSpec {
    /// Whether this can be run.
    ///
    /// # Errors
    ///
    /// [`CommandError`], in words for a user.
    pub fn check(&self) -> Result<(), CommandError> {
        if self.argv.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(CommandError::Empty);
        }
        let texts = self.argv.iter().chain(self.env.iter().flat_map(|(name, text)| [name, text]));
        if texts.clone().any(|text| text.contains('\0')) {
            return Err(CommandError::Nul);
        }
        if texts.map(String::len).sum::<usize>() > MAX_ARGV {
            return Err(CommandError::TooLong);
        }
        let odd = |name: &str| name.is_empty() || name.contains('=');
        match self.env.iter().any(|(name, _)| odd(name)) {
            true => Err(CommandError::Variable),
            false => Ok(()),
        }
    }

    /// The command line for this task.
    pub fn line(&self, task: &str) -> Vec<String> {
        let mut found = false;
        let mut argv: Vec<String> = self
            .argv
            .iter()
            .map(|arg| {
                found |= arg.contains(TASK);
                arg.replace(TASK, task)
            })
            .collect();
        if !found && !task.is_empty() {
            argv.push(task.to_owned());
        }
        argv
    }
}

/// What a Hive is to run for one life.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Which life of the session: the first is 1.
    pub life: u32,
    pub argv: Vec<String>,
    /// Beside what every session's environment has.
    pub env: Vec<(String, String)>,
    pub terminal: bool,
    /// Whether its input stays open.
    pub input: bool,
    pub provider: Provider,
    /// To be said when this much time passed without output.
    pub silence: Option<Duration>,
    /// Where it begins, in the session's room. `None`: it has none, and works in its workspace.
    pub directory: Option<PathBuf>,
}

/// How the life of a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeEnded {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why there is neither: it did not start, or its keeper was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub at: Timestamp,
    /// Processes that it left behind and that were ended after it.
    #[serde(default)]
    pub leftovers: u32,
    /// Processes that could not be ended.
    #[serde(default)]
    pub survivors: u32,
    pub by: EndedBy,
}

impl LifeEnded {
    /// Of a life of which nobody knows how its command ended, or that never began.
    pub fn lost(reason: String, at: Timestamp) -> Self {
        let (exit_code, signal, reason) = (None, None, Some(reason));
        let (leftovers, survivors, by) = (0, 0, EndedBy::Itself);
        Self { exit_code, signal, reason, at, leftovers, survivors, by }
    }

    /// `None` when it is not known how the command itself ended.
    pub fn status(&self) -> Option<ExitStatus> {
        match (self.exit_code, self.signal) {
            (Some(code), _) => Some(ExitStatus::Code(code)),
            (None, Some(signal)) => Some(ExitStatus::Signal(signal)),
            (None, None) => None,
        }
    }

    /// In words, after "the command".
    pub fn told(&self) -> String {
        match (self.status(), &self.reason) {
            (Some(ExitStatus::Code(code)), _) => format!("exited with {code}"),
            (Some(ExitStatus::Signal(signal)), _) => format!("was ended by signal {signal}"),
            (None, Some(reason)) => format!("is gone: {reason}"),
            (None, None) => "is gone".to_owned(),
        }
    }
}

/// What a Hive notices about a life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// It waits for a person.
    Waits(Question),
    /// It does not wait any more: somebody answered in its terminal, or it went on by itself.
    GoesOn,
    /// No output for as long as its agent allows.
    Silent { seconds: u64 },
    /// The provider's own id of the conversation, by which it is resumed.
    Conversation { id: String },
    /// The provider's result: the last one counts.
    Result { text: String, is_error: bool, cost_microusd: Option<u64>, details: Value },
}

/// How somebody wants a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// TERM to all of its processes, and KILL after this long.
    Stop {
        grace_ms: u32,
    },
    Kill,
}

/// What reaches a session about its command.
#[derive(Clone, Debug, PartialEq)]
pub enum LifeInput {
    /// The program runs.
    Started {
        effect: u64,
        pid: u32,
    },
    Ended {
        effect: u64,
        end: LifeEnded,
    },
    Noticed {
        effect: u64,
        notice: Notice,
    },
    StopAsked {
        how: StopHow,
        by: String,
    },
    /// The delay before the next life is over.
    Due,
}

/// What a Hive says about a life while it goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum LifeWord {
    Started { pid: u32 },
    Noticed(Notice),
}

/// What a session wants of a life under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifeOrder {
    End {
        how: StopHow,
        reason: String,
    },
    /// A line for its input. `by`: the person whose words these are.
    Type {
        text: String,
        by: String,
    },
}

/// A session's command as a list shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRow {
    /// The life under way, or the last one; 0 before the first.
    pub life: u32,
    /// Of the main process, while it runs.
    pub pid: Option<u32>,
    /// Restarts in all.
    pub restarts: u32,
    /// Of the last life that ended.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// When the next life begins, while it waits for that.
    pub restart_at: Option<Timestamp>,
    /// The provider's own id of the conversation.
    pub conversation: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(argv: &[&str]) -> CommandSpec {
        CommandSpec {
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            ..CommandSpec::default()
        }
    }

    #[test]
    fn the_task_stands_where_it_is_wanted_else_at_the_end() {
        assert_eq!(spec(&["a", "-p", "{task}", "x"]).line("do"), ["a", "-p", "do", "x"]);
        assert_eq!(spec(&["a", "--say={task}!"]).line("it's"), ["a", "--say=it's!"]);
        assert_eq!(spec(&["a", "-v"]).line("do it"), ["a", "-v", "do it"]);
        assert_eq!(spec(&["a"]).line(""), ["a"]);
        // What a task says is never taken for more than a task.
        assert_eq!(spec(&["a", "{task}"]).line("{task} $(x)"), ["a", "{task} $(x)"]);
    }

    #[test]
    fn commands_that_cannot_be_run_are_refused() {
        assert_eq!(spec(&["sh", "-c", "true"]).check(), Ok(()));
        assert_eq!(spec(&[]).check(), Err(CommandError::Empty));
        assert_eq!(spec(&[" "]).check(), Err(CommandError::Empty));
        assert_eq!(spec(&["a", "b\0"]).check(), Err(CommandError::Nul));
        assert_eq!(spec(&["a", &"x".repeat(MAX_ARGV)]).check(), Err(CommandError::TooLong));
        let env = vec![("A=B".to_owned(), "c".to_owned())];
        let odd = CommandSpec { env, ..spec(&["a"]) };
        assert_eq!(odd.check(), Err(CommandError::Variable));
    }
}
