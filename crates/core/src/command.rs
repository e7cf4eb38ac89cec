//! Agents that run a command: any program in place of the built-in loop.
//!
//! A session of such an agent has *attempts* (`Life`), one after the other: each is one start of
//! the command. The session decides what ends an attempt and whether and when another starts, as it
//! decides everything else ([`crate::session`]). A Hive supervises the process
//! ([`crate::process`]).

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::enclosure::Network;
use crate::process::prompt::{Provider, Question};
use crate::process::provider::launch::Input;
use crate::process::provider::{Fact, Told, launch};
use crate::process::restart::{RestartPolicy, RestartWhen};
use crate::process::{EndedBy, ExitStatus, GroupLimits, GroupWish};
use crate::sandbox::SandboxLevel;
use crate::time::Timestamp;

/// Longest argument of a program, in bytes. Linux allows 128 KiB including the final zero
/// (`MAX_ARG_STRLEN`).
pub const MAX_ARGUMENT: usize = (128 << 10) - 1;

/// The placeholder for the session's task in an argument.
pub const TASK: &str = "{task}";
/// Longest command line in bytes, program and arguments together.
pub const MAX_ARGV: usize = 120_000;
/// Most granted paths of a command, of each kind.
pub const MAX_GRANTS: usize = 64;

/// Whether a command ends by itself or runs until somebody ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// The command does its task and ends. Without a terminal, its stdin is closed.
    #[default]
    Task,
    /// The command takes further input while it runs.
    Session,
}

/// The command of an agent as a user writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// Program and arguments. `{task}` in an argument is replaced by the task. If no argument
    /// contains it and the task is not empty, the task is appended as the last argument. With
    /// `claude` and `codex` it may be empty or contain only options, which are then added to the
    /// provider's program.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Runs the program and its arguments unchanged: `{task}` is not replaced and the task is not
    /// appended. The task then only describes what is run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    #[serde(default)]
    pub provider: Provider,
    /// The model that the provider's program uses. Default: the program's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default)]
    pub kind: CommandKind,
    /// Gives the command its own terminal in place of pipes.
    #[serde(default)]
    pub terminal: bool,
    /// Variables, added to the environment of every session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Variables and the credentials of the Hive whose values they get at each start. The values
    /// are not stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<(String, String)>,
    #[serde(default)]
    pub restart: RestartRules,
    /// Seconds without output or CPU use after which an attempt is ended as stuck; 0 means never.
    #[serde(default)]
    pub activity_timeout: u32,
    /// Files and directories of the host that it may read in a sandbox, in addition to the
    /// system's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
    /// Files and directories of the host that it may write in a sandbox, in addition to its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<PathBuf>,
    /// Its network in a sandbox. `None`: the mesh; see [`CommandSpec::network_in`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The models that its program may request from this server: names, or prefixes that end in
    /// `*`. If empty, it may use all models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Whether its program requests models from this server. `None`: Claude Code and Codex do, if
    /// the server has what they need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// Limits of all processes of one attempt together.
    #[serde(default, skip_serializing_if = "CommandLimits::is_none")]
    pub limits: CommandLimits,
}

/// Limits of all processes of one attempt together, with or without a sandbox. `None` means no
/// limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLimits {
    /// Memory in MiB, from 16 to 16,777,216. The kernel kills processes that need more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Processes and threads at one time, from 8 to 1,000,000. Starting more fails with an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// CPU time in percent of one processor, from 1 to 100,000: 150 means one and a half
    /// processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
}

impl CommandLimits {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn are_sound(self) -> bool {
        self.memory_mb.is_none_or(|mb| (16..=16 << 20).contains(&mb))
            && self.processes.is_none_or(|count| (8..=1_000_000).contains(&count))
            && self.cpu_percent.is_none_or(|percent| (1..=100_000).contains(&percent))
    }

    fn each(self) -> [Option<u32>; 3] {
        [self.memory_mb, self.processes, self.cpu_percent]
    }

    /// Returns whether any limit is higher than in `other`.
    fn are_wider_than(self, other: Self) -> bool {
        self.each().into_iter().zip(other.each()).any(|(own, other)| match (own, other) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(other)) => own > other,
        })
    }

    /// Returns these limits, completed with those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_mb: self.memory_mb.or(other.memory_mb),
            processes: self.processes.or(other.processes),
            cpu_percent: self.cpu_percent.or(other.cpu_percent),
        }
    }

    /// Returns the control group for an attempt.
    pub fn group(self) -> GroupWish {
        if self.is_none() {
            return GroupWish::IfPossible;
        }
        GroupWish::Bounded(GroupLimits {
            memory_bytes: self.memory_mb.map(|mb| u64::from(mb) << 20),
            pids: self.processes,
            cpus: self.cpu_percent.map(|percent| f64::from(percent) / 100.0),
        })
    }
}

/// A [`RestartPolicy`] in its written form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartRules {
    pub when: RestartWhen,
    /// Restarts allowed within `max_seconds`; 0 means no limit.
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

/// A mistake in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command is empty: give a program and its arguments")]
    Empty,
    #[error("the command contains a NUL character")]
    Nul,
    #[error("the command has more than {MAX_ARGV} bytes: pass long texts in a file")]
    TooLong,
    #[error("the name of a variable of the environment is empty or contains `=`")]
    Variable,
    #[error("the model's name is empty, begins with `-`, or has more than 200 characters")]
    Model,
    #[error(
        "`codex exec` takes no input while it runs: only a task is possible, or a command line"
    )]
    NoInput,
    #[error("`models` has at most 64 names of 1 to 200 characters")]
    Models,
    #[error(
        "`limits` are `memory_mb` from 16 to 16777216, `processes` from 8 to 1000000 and \
         `cpu_percent` from 1 to 100000"
    )]
    Limits,
    #[error(
        "granted paths must be absolute, without `..`, and not `/`; at most {MAX_GRANTS} for \
            reading and as many for writing"
    )]
    Grant,
}

impl CommandSpec {
    /// Checks that this command can be run.
    ///
    /// # Errors
    ///
    /// [`CommandError`], with the text for the user.
    pub fn check(&self) -> Result<(), CommandError> {
        let own = launch::is_own(self);
        if !own && self.argv.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(CommandError::Empty);
        }
        if own && self.provider == Provider::Codex && self.kind == CommandKind::Session {
            return Err(CommandError::NoInput);
        }
        let odd = |model: &String| {
            model.is_empty() || model.starts_with('-') || model.chars().count() > 200
        };
        if self.model.as_ref().is_some_and(odd) {
            return Err(CommandError::Model);
        }
        let odd = |model: &String| model.is_empty() || model.chars().count() > 200;
        if self.models.len() > MAX_GRANTS || self.models.iter().any(odd) {
            return Err(CommandError::Models);
        }
        let variables = self.env.iter().chain(&self.env_from);
        let texts = self.argv.iter().chain(variables.flat_map(|(name, text)| [name, text]));
        let texts = texts.chain(&self.model);
        if texts.clone().any(|text| text.contains('\0')) {
            return Err(CommandError::Nul);
        }
        if texts.map(String::len).sum::<usize>() > MAX_ARGV {
            return Err(CommandError::TooLong);
        }
        let odd = |name: &str| name.is_empty() || name.contains('=');
        if self.env.iter().chain(&self.env_from).any(|(name, _)| odd(name)) {
            return Err(CommandError::Variable);
        }
        if !self.limits.are_sound() {
            return Err(CommandError::Limits);
        }
        let lists = [&self.read, &self.write];
        if lists.iter().any(|list| list.len() > MAX_GRANTS)
            || lists.into_iter().flatten().any(|path| !may_be_granted(path))
        {
            return Err(CommandError::Grant);
        }
        Ok(())
    }

    /// Returns whether this has more access to the host than `other`: a path, the network, or a
    /// higher limit. Also true for another program with the same access, since the grant was not
    /// for that program.
    pub fn grants_more_than(&self, other: &Self) -> bool {
        let granted =
            !self.read.is_empty() || !self.write.is_empty() || reach(self.network) > reach(None);
        granted && !self.runs_as(other)
            || self
                .read
                .iter()
                .any(|path| !other.read.contains(path) && !other.write.contains(path))
            || self.write.iter().any(|path| !other.write.contains(path))
            || reach(self.network) > reach(other.network)
            || self.limits.are_wider_than(other.limits)
    }

    /// Returns whether it runs the same program in the same way, whatever its access.
    pub fn runs_as(&self, other: &Self) -> bool {
        (&self.argv, self.exact, &self.env, self.provider)
            == (&other.argv, other.exact, &other.env, other.provider)
    }

    /// Returns its network in a sandbox. The default is the mesh, except in environments that were
    /// created before there was a mesh ([`RoomMade::serves`](crate::room::RoomMade::serves)).
    pub fn network_in(&self, serves: bool) -> Network {
        self.network.unwrap_or(if serves { Network::Host } else { Network::Mesh })
    }

    /// Returns whether the system can start a program with this task as an argument. Each argument
    /// may have at most [`MAX_ARGUMENT`] bytes.
    pub fn takes(&self, task: &str) -> bool {
        task.len() <= MAX_ARGUMENT && self.line(task).iter().all(|arg| arg.len() <= MAX_ARGUMENT)
    }

    /// Returns the command line for this task.
    pub fn line(&self, task: &str) -> Vec<String> {
        if self.exact {
            return self.argv.clone();
        }
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

/// Ranks how much a network setting may reach. The default may mean the host's network, in
/// environments that were created before there was a mesh.
fn reach(network: Option<Network>) -> u8 {
    match network {
        Some(Network::None) => 0,
        Some(Network::Mesh) => 1,
        None => 2,
        Some(Network::Host) => 3,
    }
}

/// Checks only the path's text. Whether the path exists is checked when an attempt starts.
fn may_be_granted(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && path.to_str().is_some_and(|text| !text.contains('\0'))
}

/// The program that a Hive runs for one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Number of the attempt, from 1.
    pub life: u32,
    pub argv: Vec<String>,
    /// Variables, added to the environment of every session.
    pub env: Vec<(String, String)>,
    pub terminal: bool,
    pub input: Input,
    /// Whether the program is its provider's, found in the server's `PATH`.
    pub is_own: bool,
    /// Whether it has already answered. If its stdin is open for an answer, it is closed.
    pub answered: bool,
    pub provider: Provider,
    /// Variables and the credentials whose values they get.
    pub env_from: Vec<(String, String)>,
    /// Position in the session's log from which its output is read for facts; `None` if it is not
    /// read.
    pub read_from: Option<u64>,
    /// The tool calls before `read_from` for which a person was asked.
    pub asked: Vec<String>,
    /// Text typed right after the start, unchanged. `None` after the start was recorded.
    pub first: Option<String>,
    /// The conversation that it continues.
    pub conversation: Option<String>,
    /// Time without output after which the Hive reports [`Notice::Silent`].
    pub silence: Option<Duration>,
    /// Paths that it may read in a sandbox, in addition to its own.
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    pub network: Network,
    /// Ports of its environment on the host's loopback, on which it serves itself.
    pub ports: Vec<u16>,
    /// Ports on which services and databases of its environment listen.
    pub reaches: Vec<u16>,
    /// Services and databases that it cannot reach over the mesh.
    pub beyond: Vec<String>,
    /// The directory in the session's environment in which it starts. `None`: there is no
    /// environment, and it works in its workspace.
    pub directory: Option<PathBuf>,
    /// Top directory of the environment's worktree. A sandbox shows all of it.
    pub worktree: Option<PathBuf>,
    /// Whether it requests models from this server: see [`CommandSpec::gateway`].
    pub gateway: Option<bool>,
    pub limits: CommandLimits,
    /// Further directories that its sandbox shows read-only, because the worktree needs them.
    pub borrowed: Vec<PathBuf>,
    /// See [`crate::room::RoomMade::bounded`].
    pub bounded: bool,
    /// The sandbox level that the project requires. The stronger of this and the agent's level
    /// applies.
    pub sandbox: Option<SandboxLevel>,
}

/// The end of an attempt of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeEnded {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why there is neither exit code nor signal: it did not start, or its supervisor process was
    /// lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub at: Timestamp,
    /// Number of processes that it left running and that were ended after it.
    #[serde(default)]
    pub leftovers: u32,
    /// Number of processes that could not be ended.
    #[serde(default)]
    pub survivors: u32,
    pub by: EndedBy,
    /// Whether somebody removed a part of its log while it ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_removed: bool,
}

impl LifeEnded {
    /// Creates the end of an attempt that never started, or whose exit status is not known.
    pub fn lost(reason: String, at: Timestamp) -> Self {
        let (exit_code, signal, reason) = (None, None, Some(reason));
        let (leftovers, survivors, by) = (0, 0, EndedBy::Itself);
        let log_removed = false;
        Self { exit_code, signal, reason, at, leftovers, survivors, by, log_removed }
    }

    /// Returns the exit status; `None` if it is not known.
    pub fn status(&self) -> Option<ExitStatus> {
        match (self.exit_code, self.signal) {
            (Some(code), _) => Some(ExitStatus::Code(code)),
            (None, Some(signal)) => Some(ExitStatus::Signal(signal)),
            (None, None) => None,
        }
    }

    /// Returns a description that follows "the command".
    pub fn told(&self) -> String {
        match (self.status(), &self.reason) {
            (Some(ExitStatus::Code(code)), _) => format!("exited with {code}"),
            (Some(ExitStatus::Signal(signal)), _) => format!("was ended by signal {signal}"),
            (None, Some(reason)) => format!("is gone: {reason}"),
            (None, None) => "is gone".to_owned(),
        }
    }
}

/// An observation of a Hive about an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// It waits for a person.
    Waits(Question),
    /// It no longer waits: somebody answered in its terminal, or it continued by itself.
    GoesOn,
    /// It has written no output for as long as its agent allows.
    Silent { seconds: u64 },
    /// Its own protocol reported something.
    Told(Box<Told>),
}

/// How somebody wants a command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// Sends TERM to all of its processes, and KILL after this time.
    Stop {
        grace_ms: u32,
    },
    Kill,
}

/// An input of a session about its command.
#[derive(Clone, Debug, PartialEq)]
pub enum LifeInput {
    /// The program is running.
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
    /// The delay before the next attempt is over.
    Due,
}

/// A Hive's report about a running attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum LifeWord {
    Started {
        pid: u32,
    },
    Noticed(Notice),
    /// The facts in its output up to this position in the log.
    Read {
        upto: u64,
        facts: Vec<Fact>,
    },
}

/// An order of a session to a running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifeOrder {
    End {
        how: StopHow,
        reason: String,
    },
    /// Types a line into its input. `by` is the person who wrote it. `asked_at` is the log position
    /// of the question that it answers, if its protocol asked.
    Type {
        text: String,
        by: String,
        asked_at: Option<u64>,
    },
}

/// A session's command as a list shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRow {
    /// Number of the running or last attempt; 0 before the first.
    pub life: u32,
    /// Id of the main process while it runs.
    pub pid: Option<u32>,
    /// Number of restarts.
    pub restarts: u32,
    /// Exit code of the last attempt that ended.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Time of the next attempt, while the session waits for it.
    pub restart_at: Option<Timestamp>,
    /// Whether the running attempt was asked to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The provider's own id of the conversation.
    pub conversation: Option<String>,
    /// Whether somebody removed a part of its log during an attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_removed: bool,
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
    fn a_task_longer_than_an_argument_may_be_is_refused() {
        let (fits, long) = ("x".repeat(MAX_ARGUMENT), "x".repeat(MAX_ARGUMENT + 1));
        assert!(spec(&["a"]).takes(&fits) && !spec(&["a"]).takes(&long));
        assert!(!spec(&["a", "--say={task}"]).takes(&fits), "with what stands before it");
        assert!(!spec(&["a", &long]).takes("do"));
    }

    #[test]
    fn the_task_replaces_its_placeholder_or_is_appended() {
        assert_eq!(spec(&["a", "-p", "{task}", "x"]).line("do"), ["a", "-p", "do", "x"]);
        assert_eq!(spec(&["a", "--say={task}!"]).line("it's"), ["a", "--say=it's!"]);
        assert_eq!(spec(&["a", "-v"]).line("do it"), ["a", "-v", "do it"]);
        assert_eq!(spec(&["a"]).line(""), ["a"]);
        // A task is never parsed as options.
        assert_eq!(spec(&["a", "{task}"]).line("{task} $(x)"), ["a", "{task} $(x)"]);
    }

    #[test]
    fn invalid_commands_are_refused() {
        assert_eq!(spec(&["sh", "-c", "true"]).check(), Ok(()));
        assert_eq!(spec(&[]).check(), Err(CommandError::Empty));
        assert_eq!(spec(&[" "]).check(), Err(CommandError::Empty));
        assert_eq!(spec(&["a", "b\0"]).check(), Err(CommandError::Nul));
        assert_eq!(spec(&["a", &"x".repeat(MAX_ARGV)]).check(), Err(CommandError::TooLong));
        let env = vec![("A=B".to_owned(), "c".to_owned())];
        let odd = CommandSpec { env, ..spec(&["a"]) };
        assert_eq!(odd.check(), Err(CommandError::Variable));
    }

    #[test]
    fn granted_paths_must_be_absolute() {
        let granted = |path: &str| CommandSpec { read: vec![path.into()], ..spec(&["a"]) }.check();
        assert_eq!(granted("/opt/node"), Ok(()));
        for odd in ["", "/", "opt", "./opt", "/opt/../root", "/a\0b"] {
            assert_eq!(granted(odd), Err(CommandError::Grant), "{odd:?}");
        }
        let many = vec![PathBuf::from("/opt"); MAX_GRANTS + 1];
        let many = CommandSpec { write: many, ..spec(&["a"]) };
        assert_eq!(many.check(), Err(CommandError::Grant));
    }

    #[test]
    fn invalid_limits_are_refused_and_valid_limits_become_a_cgroup() {
        let limits =
            |memory_mb, processes, cpu_percent| CommandLimits { memory_mb, processes, cpu_percent };
        let with = |limits| CommandSpec { limits, ..spec(&["a"]) };
        for odd in [
            limits(Some(15), None, None),
            limits(Some((16 << 20) + 1), None, None),
            limits(None, Some(7), None),
            limits(None, Some(1_000_001), None),
            limits(None, None, Some(0)),
            limits(None, None, Some(100_001)),
        ] {
            assert_eq!(with(odd).check(), Err(CommandError::Limits), "{odd:?}");
        }
        let (none, some) = (CommandLimits::default(), limits(Some(64), None, Some(150)));
        for sound in [none, some, limits(Some(16 << 20), Some(8), Some(100_000))] {
            assert_eq!(with(sound).check(), Ok(()));
        }
        // Without a bound there is no more than without a bound.
        for (wide, tight) in [
            (none, some),
            (limits(Some(65), None, Some(150)), some),
            (limits(Some(64), None, None), some),
            (some, limits(Some(64), Some(100), Some(150))),
        ] {
            assert!(with(wide).grants_more_than(&with(tight)), "{wide:?} {tight:?}");
        }
        assert!(!with(some).grants_more_than(&with(none)));
        assert!(!with(some).grants_more_than(&with(some)));
        assert_eq!(limits(None, Some(9), None).or(some), limits(Some(64), Some(9), Some(150)));
        assert_eq!(none.group(), GroupWish::IfPossible);
        let wanted = GroupLimits { memory_bytes: Some(64 << 20), pids: None, cpus: Some(1.5) };
        assert_eq!(some.group(), GroupWish::Bounded(wanted));
        // The format from before there were bounds.
        let text = serde_json::to_string(&spec(&["a"])).unwrap();
        assert!(!text.contains("limits"), "{text}");
    }

    #[test]
    fn another_path_or_the_network_counts_as_more_access() {
        let reads = CommandSpec { read: vec!["/opt".into()], ..spec(&["a"]) };
        let writes = CommandSpec { write: vec!["/opt".into()], ..spec(&["a"]) };
        let on = |network| CommandSpec { network, ..spec(&["a"]) };
        let plain = spec(&["b"]);
        assert!(reads.grants_more_than(&plain) && writes.grants_more_than(&reads));
        for (less, more) in [(&reads, &writes), (&plain, &reads)] {
            assert!(!less.grants_more_than(more));
        }
        let growing = [Some(Network::None), Some(Network::Mesh), None, Some(Network::Host)].map(on);
        for two in growing.windows(2) {
            assert!(two[1].grants_more_than(&two[0]) && !two[0].grants_more_than(&two[1]));
        }
    }

    #[test]
    fn a_command_with_network_none_gets_the_mesh_except_in_old_environments() {
        let plain = spec(&["a"]);
        assert_eq!(plain.network_in(false), Network::Mesh);
        assert_eq!(plain.network_in(true), Network::Host);
        for chosen in [Network::Host, Network::Mesh, Network::None] {
            let chose = CommandSpec { network: Some(chosen), ..spec(&["a"]) };
            assert_eq!([chose.network_in(true), chose.network_in(false)], [chosen; 2]);
        }
    }

    #[test]
    fn a_command_without_grants_is_serialised_as_before() {
        let text = serde_json::to_value(spec(&["a"])).unwrap();
        for name in ["read", "write", "network"] {
            assert_eq!(text.get(name), None, "{name}");
        }
    }
}
