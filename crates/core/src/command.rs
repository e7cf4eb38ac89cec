//! Agents that are commands: any program in place of a loop of our own.
//!
//! A session of such an agent has *lives*, one after the other: each is one start of the command.
//! What ends a life, whether another begins and when is decided by the session like everything
//! else ([`crate::session`]); a Hive keeps the process ([`crate::process`]).

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

/// Longest argument of a program, in bytes: Linux takes 128 KiB with the zero at the end
/// (`MAX_ARG_STRLEN`).
pub const MAX_ARGUMENT: usize = (128 << 10) - 1;

/// Stands for the session's task in an argument.
pub const TASK: &str = "{task}";
/// Longest command line, program and arguments together, in bytes.
pub const MAX_ARGV: usize = 120_000;
/// Most paths that a command is granted, of each kind.
pub const MAX_GRANTS: usize = 64;

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
    /// and the task is not empty, the task is the last argument. With `claude` and `codex` it may
    /// be empty, or hold only options: then the program is the provider's, and these are added.
    #[serde(default)]
    pub argv: Vec<String>,
    /// The program and its arguments are run as they are: `{task}` means nothing in them, and the
    /// task, which only says what is run, is not added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    #[serde(default)]
    pub provider: Provider,
    /// The model that the provider's program is to use; the program's own choice without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default)]
    pub kind: CommandKind,
    /// A terminal of its own in place of pipes.
    #[serde(default)]
    pub terminal: bool,
    /// Added to what every session's environment has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Variables and the credentials of the Hive that they get at each start. The values are
    /// stored nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<(String, String)>,
    #[serde(default)]
    pub restart: RestartRules,
    /// Seconds without output after which a life is ended as stuck; 0 is never.
    #[serde(default)]
    pub activity_timeout: u32,
    /// In a sandbox: files and directories of the host that it may read beyond the system's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
    /// In a sandbox: files and directories of the host that it may write beyond its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<PathBuf>,
    /// In a sandbox: its network. `None`: the mesh; see [`CommandSpec::network_in`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The models that its program may ask this server for: names, or beginnings that end in `*`.
    /// Empty: all there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Whether its program is told to ask this server for models. `None`: Claude Code and Codex
    /// are, where the server has what they need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// Of all that one life starts.
    #[serde(default, skip_serializing_if = "CommandLimits::is_none")]
    pub limits: CommandLimits,
}

/// Bounds of all that one life of a command starts, sandbox or none. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLimits {
    /// In MiB, from 16 to 16,777,216. Who needs more is killed by the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// At once, threads among them, from 8 to 1,000,000. Who starts more gets an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Of one processor's time, from 1 to 100,000: 150 is one and a half processors.
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

    /// Whether anything is bounded less than by `other`.
    fn are_wider_than(self, other: Self) -> bool {
        self.each().into_iter().zip(other.each()).any(|(own, other)| match (own, other) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(other)) => own > other,
        })
    }

    /// These, and those of `other` where there is none of these.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_mb: self.memory_mb.or(other.memory_mb),
            processes: self.processes.or(other.processes),
            cpu_percent: self.cpu_percent.or(other.cpu_percent),
        }
    }

    /// The control group that a life gets.
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
        "grants must be absolute paths without `..`, and not `/`; at most {MAX_GRANTS} to read \
            and as many to write"
    )]
    Grant,
}

impl CommandSpec {
    /// Whether this can be run.
    ///
    /// # Errors
    ///
    /// [`CommandError`], in words for a user.
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

    /// Whether this is granted more of the host than `other`: a path, the network, or what its
    /// bounds hold back; or the same for another program, whose grant it is not.
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

    /// Whether it runs the same program in the same way; not with what rights.
    pub fn runs_as(&self, other: &Self) -> bool {
        (&self.argv, self.exact, &self.env, self.provider)
            == (&other.argv, other.exact, &other.env, other.provider)
    }

    /// Its network in a sandbox: the mesh, where nobody chose, but in rooms of before
    /// ([`RoomMade::serves`](crate::room::RoomMade::serves)).
    pub fn network_in(&self, serves: bool) -> Network {
        self.network.unwrap_or(if serves { Network::Host } else { Network::Mesh })
    }

    /// Whether the system starts a program with this task among its arguments: of each it takes
    /// [`MAX_ARGUMENT`] bytes at most.
    pub fn takes(&self, task: &str) -> bool {
        task.len() <= MAX_ARGUMENT && self.line(task).iter().all(|arg| arg.len() <= MAX_ARGUMENT)
    }

    /// The command line for this task.
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

/// How much a choice of network may come to reach. No choice may come to be the host's,
/// in rooms of before.
fn reach(network: Option<Network>) -> u8 {
    match network {
        Some(Network::None) => 0,
        Some(Network::Mesh) => 1,
        None => 2,
        Some(Network::Host) => 3,
    }
}

/// By its words alone; what is there is looked at when a life begins.
fn may_be_granted(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.file_name().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && path.to_str().is_some_and(|text| !text.contains('\0'))
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
    pub input: Input,
    /// The program is its provider's: it is found in the server's `PATH`.
    pub is_own: bool,
    /// What it was to answer has been answered: an input that is open until then is closed.
    pub answered: bool,
    pub provider: Provider,
    /// Variables and the credentials that they get.
    pub env_from: Vec<(String, String)>,
    /// From where in the session's log its output is read for facts; `None` when it is not.
    pub read_from: Option<u64>,
    /// Typed right after the start, as it is. There until the start has been recorded.
    pub first: Option<String>,
    /// The conversation that it is to go on with.
    pub conversation: Option<String>,
    /// To be said when this much time passed without output.
    pub silence: Option<Duration>,
    /// In a sandbox: what it may read and write beyond its own, and its network.
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    pub network: Network,
    /// Its room's ports on the host's loopback that it is to serve on itself.
    pub ports: Vec<u16>,
    /// Those on which services and databases of its room listen.
    pub reaches: Vec<u16>,
    /// Those that it does not reach over the mesh.
    pub beyond: Vec<String>,
    /// Where it begins, in the session's room. `None`: it has none, and works in its workspace.
    pub directory: Option<PathBuf>,
    /// The top of the room's worktree: all of it is shown in a sandbox.
    pub worktree: Option<PathBuf>,
    /// Whether it is told to ask this server for models: see [`CommandSpec::gateway`].
    pub gateway: Option<bool>,
    pub limits: CommandLimits,
    /// What its sandbox shows beside that, read-only, for the worktree to be whole.
    pub borrowed: Vec<PathBuf>,
    /// See [`crate::room::RoomMade::bounded`].
    pub bounded: bool,
    /// What the project asks its commands to run in; the stronger of this and the agent's holds.
    pub sandbox: Option<SandboxLevel>,
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
    /// Somebody removed a part of its log while it ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_removed: bool,
}

impl LifeEnded {
    /// Of a life of which nobody knows how its command ended, or that never began.
    pub fn lost(reason: String, at: Timestamp) -> Self {
        let (exit_code, signal, reason) = (None, None, Some(reason));
        let (leftovers, survivors, by) = (0, 0, EndedBy::Itself);
        let log_removed = false;
        Self { exit_code, signal, reason, at, leftovers, survivors, by, log_removed }
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
    /// What its own protocol said.
    Told(Box<Told>),
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
    Started {
        pid: u32,
    },
    Noticed(Notice),
    /// What its output said, up to this place in the log.
    Read {
        upto: u64,
        facts: Vec<Fact>,
    },
}

/// What a session wants of a life under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifeOrder {
    End {
        how: StopHow,
        reason: String,
    },
    /// A line for its input. `by`: the person whose words these are; `asked_at`: where in the log
    /// the line begins that they answer, if its protocol asked.
    Type {
        text: String,
        by: String,
        asked_at: Option<u64>,
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
    /// The life under way was asked to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The provider's own id of the conversation.
    pub conversation: Option<String>,
    /// Somebody removed a part of its log while one of its lives went on.
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
    fn a_task_that_is_longer_than_an_argument_may_be_is_not_taken() {
        let (fits, long) = ("x".repeat(MAX_ARGUMENT), "x".repeat(MAX_ARGUMENT + 1));
        assert!(spec(&["a"]).takes(&fits) && !spec(&["a"]).takes(&long));
        assert!(!spec(&["a", "--say={task}"]).takes(&fits), "with what stands before it");
        assert!(!spec(&["a", &long]).takes("do"));
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

    #[test]
    fn what_is_granted_is_named_by_whole_paths() {
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
    fn bounds_are_sound_tighter_or_wider_and_become_a_group() {
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
        // As it was written before there were bounds.
        let text = serde_json::to_string(&spec(&["a"])).unwrap();
        assert!(!text.contains("limits"), "{text}");
    }

    #[test]
    fn more_is_a_path_or_the_network_that_the_other_has_not() {
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
    fn the_mesh_is_the_network_of_who_chose_none_but_in_rooms_of_before() {
        let plain = spec(&["a"]);
        assert_eq!(plain.network_in(false), Network::Mesh);
        assert_eq!(plain.network_in(true), Network::Host);
        for chosen in [Network::Host, Network::Mesh, Network::None] {
            let chose = CommandSpec { network: Some(chosen), ..spec(&["a"]) };
            assert_eq!([chose.network_in(true), chose.network_in(false)], [chosen; 2]);
        }
    }

    #[test]
    fn a_command_without_grants_is_written_as_it_was_before_there_were_any() {
        let text = serde_json::to_value(spec(&["a"])).unwrap();
        for name in ["read", "write", "network"] {
            assert_eq!(text.get(name), None, "{name}");
        }
    }
}
