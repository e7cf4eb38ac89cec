//! Agents that run a command, and the processes of their runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use overmind_core::command as core;
use overmind_core::enclosure::Network;
use overmind_core::ids::SessionId;
use overmind_core::process::prompt;
use overmind_core::process::restart::RestartWhen;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::FieldError;
use crate::vocabulary::RunStatus;

/// The program that a command runs, which decides how its screen and output are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    #[default]
    Raw,
    Claude,
    Codex,
    /// Any program that prints lines of `{"overmind": {…}}`.
    Lines,
}

/// Whether a command ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// The command does its task and ends. Without a terminal, its stdin is closed.
    #[default]
    Task,
    /// The command takes further input until it ends.
    Session,
}

/// When a command is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    #[default]
    Never,
    #[serde(alias = "on_failure")]
    OnFailure,
    Always,
}

/// The command that an agent runs, in place of the built-in loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Command {
    /// Program and arguments. `{task}` in an argument is replaced by the run's task. If no argument
    /// contains it, a task that is not empty is appended as the last argument. With the providers
    /// `claude` and `codex`, `argv` may be empty or contain only options: the server then adds the
    /// provider's program and reads its output.
    #[cfg_attr(feature = "openapi", schema(example = json!(["make", "{task}"])))]
    pub argv: Vec<String>,
    /// Runs `argv` unchanged: `{task}` is not replaced, and the run's task is not appended. The
    /// task then only describes what is run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    pub provider: Provider,
    /// The model that the provider's program uses. It must not begin with `-`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub kind: CommandKind,
    /// Gives the command its own terminal in place of pipes.
    pub terminal: bool,
    /// Variables as `NAME=value`, added to the server's environment for commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Variables, each with the credential whose value it gets when the command starts. A
    /// credential comes from the server's `OVERMIND_CRED_NAME` or from its vault; one from the
    /// vault needs a grant. With `service:NAME` the variable gets a placeholder that gives access
    /// to that service through this server, and the variable of the service's base URL is also set.
    /// Only an admin may name credentials. The values are not stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(example = json!({"ANTHROPIC_API_KEY": "ANTHROPIC"})))]
    pub env_from: BTreeMap<String, String>,
    pub restart: Restart,
    /// Restarts allowed within `max_seconds`; 0 means no limit.
    pub max_restarts: u32,
    pub max_seconds: u32,
    /// Milliseconds before the first restart. Each further restart waits twice as long, up to one
    /// minute.
    pub backoff_ms: u32,
    /// Seconds without output or CPU use after which the command is ended as stuck; 0 means never.
    pub activity_timeout: u32,
    /// Absolute paths of files and directories of the host that the command may read in a sandbox,
    /// in addition to the system's. Only an admin may grant them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64, example = json!(["/home/ann/.nvm"])))]
    pub read: Vec<String>,
    /// Absolute paths that the command may write in a sandbox, in addition to its own. Only an
    /// admin may grant them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64))]
    pub write: Vec<String>,
    /// The network of the command in a sandbox. Default: `mesh`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<CommandNetwork>,
    /// The models that the program may request from this server: names, or prefixes that end in
    /// `*`. If empty, it may use all models of the server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64, example = json!(["claude-*"])))]
    pub models: Vec<String>,
    /// Whether the program requests models from this server, with the run's own token and no
    /// provider key. By default, Claude Code and Codex do if the server has a key for them and the
    /// agent names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// Limits of all processes of one attempt together. Only an admin may set a run's limits higher
    /// than the agent's.
    #[serde(skip_serializing_if = "CommandLimits::is_none")]
    pub limits: CommandLimits,
}

/// Limits of all processes of one attempt together, with or without a sandbox. Omitted values are
/// not limited. If the machine cannot enforce a limit, the start fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CommandLimits {
    /// Memory in MiB. The kernel kills processes that need more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 16, maximum = 16_777_216, example = 4096))]
    pub memory_mb: Option<u32>,
    /// Processes and threads at one time. Starting more fails with an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 8, maximum = 1_000_000, example = 512))]
    pub processes: Option<u32>,
    /// CPU time in percent of one processor: 150 means one and a half processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000, example = 150))]
    pub cpu_percent: Option<u32>,
}

impl CommandLimits {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl From<core::CommandLimits> for CommandLimits {
    fn from(limits: core::CommandLimits) -> Self {
        let core::CommandLimits { memory_mb, processes, cpu_percent } = limits;
        Self { memory_mb, processes, cpu_percent }
    }
}

impl From<CommandLimits> for core::CommandLimits {
    fn from(limits: CommandLimits) -> Self {
        let CommandLimits { memory_mb, processes, cpu_percent } = limits;
        Self { memory_mb, processes, cpu_percent }
    }
}

/// The network of a command in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommandNetwork {
    /// The host's network: the command reaches everything that the host reaches, and the host
    /// reaches its servers.
    Host,
    /// A loopback of its own. On it, this server answers at `http://127.0.0.1:80` for models, the
    /// mesh and the run itself, and services of the environment answer at their own ports. Nothing
    /// else is reachable.
    Mesh,
    /// A loopback of its own on which nothing else answers.
    None,
}

impl Default for Command {
    fn default() -> Self {
        core::CommandSpec::default().into()
    }
}

impl From<core::CommandSpec> for Command {
    fn from(spec: core::CommandSpec) -> Self {
        let core::CommandSpec {
            argv,
            exact,
            provider,
            model,
            kind,
            terminal,
            env,
            env_from,
            restart,
            activity_timeout,
            read,
            write,
            network,
            models,
            gateway,
            limits,
        } = spec;
        let texts = |paths: Vec<PathBuf>| {
            paths.into_iter().map(|path| path.to_string_lossy().into_owned()).collect()
        };
        Self {
            argv,
            exact,
            provider: match provider {
                prompt::Provider::Raw => Provider::Raw,
                prompt::Provider::Claude => Provider::Claude,
                prompt::Provider::Codex => Provider::Codex,
                prompt::Provider::Lines => Provider::Lines,
            },
            model,
            kind: match kind {
                core::CommandKind::Task => CommandKind::Task,
                core::CommandKind::Session => CommandKind::Session,
            },
            terminal,
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            env_from: env_from.into_iter().collect(),
            restart: match restart.when {
                RestartWhen::Never => Restart::Never,
                RestartWhen::OnFailure => Restart::OnFailure,
                RestartWhen::Always => Restart::Always,
            },
            max_restarts: restart.max_restarts,
            max_seconds: restart.max_seconds,
            backoff_ms: restart.backoff_ms,
            activity_timeout,
            read: texts(read),
            write: texts(write),
            network: network.map(|network| match network {
                Network::Host => CommandNetwork::Host,
                Network::Mesh => CommandNetwork::Mesh,
                Network::None => CommandNetwork::None,
            }),
            models,
            gateway,
            limits: limits.into(),
        }
    }
}

impl From<Command> for core::CommandSpec {
    fn from(command: Command) -> Self {
        let pair = |text: String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (text, String::new()),
        };
        Self {
            argv: command.argv,
            exact: command.exact,
            provider: match command.provider {
                Provider::Raw => prompt::Provider::Raw,
                Provider::Claude => prompt::Provider::Claude,
                Provider::Codex => prompt::Provider::Codex,
                Provider::Lines => prompt::Provider::Lines,
            },
            model: command.model,
            kind: match command.kind {
                CommandKind::Task => core::CommandKind::Task,
                CommandKind::Session => core::CommandKind::Session,
            },
            terminal: command.terminal,
            env: command.env.into_iter().map(pair).collect(),
            env_from: command.env_from.into_iter().collect(),
            restart: core::RestartRules {
                when: match command.restart {
                    Restart::Never => RestartWhen::Never,
                    Restart::OnFailure => RestartWhen::OnFailure,
                    Restart::Always => RestartWhen::Always,
                },
                max_restarts: command.max_restarts,
                max_seconds: command.max_seconds,
                backoff_ms: command.backoff_ms,
            },
            activity_timeout: command.activity_timeout,
            read: command.read.into_iter().map(PathBuf::from).collect(),
            write: command.write.into_iter().map(PathBuf::from).collect(),
            network: command.network.map(|network| match network {
                CommandNetwork::Host => Network::Host,
                CommandNetwork::Mesh => Network::Mesh,
                CommandNetwork::None => Network::None,
            }),
            models: command.models,
            gateway: command.gateway,
            limits: command.limits.into(),
        }
    }
}

impl Command {
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        if let Some(odd) = self.env.iter().find(|text| !text.contains('=') || text.starts_with('='))
        {
            errors.push(FieldError::new("command.env", format!("must be NAME=value, not `{odd}`")));
        }
        if let Err(err) = core::CommandSpec::from(self.clone()).check() {
            errors.push(FieldError::new("command", err.to_string()));
        }
    }
}

/// The process of a run whose agent runs a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// Number of times that it was started.
    pub life: u32,
    /// Id of the main process while it runs.
    pub pid: Option<u32>,
    pub restarts: u32,
    /// Exit code of the last attempt that ended.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Time of the next restart, while it waits for one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub restart_at: Option<Timestamp>,
    /// Whether it was asked to end and still runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The provider's own id of the conversation.
    pub conversation: Option<String>,
    /// Whether somebody removed a part of its log while it ran: the log is then incomplete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_removed: bool,
}

impl From<core::CommandRow> for Process {
    fn from(row: core::CommandRow) -> Self {
        let core::CommandRow {
            life,
            pid,
            restarts,
            exit_code,
            signal,
            restart_at,
            stopping,
            conversation,
            log_removed,
        } = row;
        Self {
            life,
            pid,
            restarts,
            exit_code,
            signal,
            restart_at,
            stopping,
            conversation,
            log_removed,
        }
    }
}

/// Body of `POST /api/runs/{id}/stop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunStop {
    /// Sends KILL at once, without TERM first.
    #[serde(default)]
    pub kill: bool,
    /// Seconds between TERM and KILL, at most 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 3600, default = 10))]
    pub grace: Option<u32>,
}

impl RunStop {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        match self.grace {
            Some(grace) if grace > 3600 => {
                vec![FieldError::new("grace", format!("must be at most 3600, not {grace}"))]
            }
            Some(_) | None => Vec::new(),
        }
    }
}

/// Body of `POST /api/runs/{id}/send`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunSend {
    /// The text to send, at most 200,000 bytes.
    pub text: String,
    /// Sends the text unchanged, without a line end after it.
    #[serde(default)]
    pub raw: bool,
    /// Hides the text from the log and from the event. What the program itself writes is not
    /// hidden.
    #[serde(default)]
    pub secret: bool,
}

/// Resources that a run's processes use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessUsage {
    /// Processor time in milliseconds since the start, including processes that have ended.
    pub cpu_ms: u64,
    pub resident_bytes: u64,
    pub processes: u32,
    /// Length of the log in bytes.
    pub log_bytes: u64,
    /// Time of the last output.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub last_output_at: Timestamp,
}

/// Resources that one run's processes use, as an entry of [`RunUsages`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunUsage {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    pub name: String,
    pub status: RunStatus,
    pub life: u32,
    /// Id of the main process.
    pub pid: u32,
    pub restarts: u32,
    /// The question to which it waits for an answer.
    pub prompt: Option<String>,
    #[serde(flatten)]
    pub usage: ProcessUsage,
}

/// Resources that the processes of all runs use now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunUsages {
    /// Time of the measurement, at most half a second ago.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// The runs, newest first, at most 4,000.
    pub runs: Vec<RunUsage>,
    /// Whether there are more runs than listed.
    pub more: bool,
}
