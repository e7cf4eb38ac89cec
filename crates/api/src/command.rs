//! Agents that are commands, and the processes of their runs.

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

/// Whose program a command is, for what its screen and its output mean.
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
    /// It does its task and ends; behind pipes its input is closed.
    #[default]
    Task,
    /// It takes more input until it ends.
    Session,
}

/// When a command is started again.
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

/// The command that an agent is, in place of a loop of ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Command {
    /// Program and arguments. `{task}` in an argument becomes the run's task; where it stands
    /// nowhere, a task that is not empty is the last argument. With the providers `claude` and
    /// `codex` it may be empty, or hold only options: the program is theirs then, and its output
    /// is read.
    #[cfg_attr(feature = "openapi", schema(example = json!(["make", "{task}"])))]
    pub argv: Vec<String>,
    /// `argv` is run as it is: `{task}` means nothing in it, and the run's task, which only says what
    /// is run, is not added.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    pub provider: Provider,
    /// The model that the provider's program is to use. It does not begin with `-`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub kind: CommandKind,
    /// A terminal of its own in place of pipes.
    pub terminal: bool,
    /// `NAME=value`, added to the environment of the server's commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Variables, and the credentials of the server that they get when it is started: those that
    /// the server has as `OVERMIND_CRED_NAME` or in its vault, where they need a grant. With
    /// `service:NAME` it is a placeholder that opens that service through this server, and the
    /// variable of its base URL is set beside it. Only an admin may name any. The values are
    /// stored nowhere.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(example = json!({"ANTHROPIC_API_KEY": "ANTHROPIC"})))]
    pub env_from: BTreeMap<String, String>,
    pub restart: Restart,
    /// Restarts within `max_seconds`; 0 is no bound.
    pub max_restarts: u32,
    pub max_seconds: u32,
    /// Milliseconds before the first restart; each further one waits twice as long, up to a minute.
    pub backoff_ms: u32,
    /// Seconds without output or work after which it is ended as stuck; 0 is never.
    pub activity_timeout: u32,
    /// In a sandbox: files and directories of the host that it may read beyond the system's, by
    /// absolute paths. An admin's to grant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64, example = json!(["/home/ann/.nvm"])))]
    pub read: Vec<String>,
    /// In a sandbox: what it may also write. An admin's to grant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64))]
    pub write: Vec<String>,
    /// In a sandbox: its network. Left out: the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<CommandNetwork>,
    /// The models that its program may ask this server for: names, or beginnings that end in `*`.
    /// Empty: all that the server has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64, example = json!(["claude-*"])))]
    pub models: Vec<String>,
    /// Whether its program asks this server for models, with the run's own token and no key. Left
    /// out: Claude Code and Codex do, where the server has a key for them and the agent names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<bool>,
    /// Bounds of all processes of one attempt. Only an admin may grant wider ones than the agent's.
    #[serde(skip_serializing_if = "CommandLimits::is_none")]
    pub limits: CommandLimits,
}

/// Bounds of all processes of one attempt, in a sandbox or in none. What is left out is not
/// bounded. A machine that cannot keep a bound refuses the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CommandLimits {
    /// MiB. Who needs more is killed by the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 16, maximum = 16_777_216, example = 4096))]
    pub memory_mb: Option<u32>,
    /// At once, threads among them. Who starts more gets an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 8, maximum = 1_000_000, example = 512))]
    pub processes: Option<u32>,
    /// Of one processor's time: 150 is one and a half processors.
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
    /// The host's: what it serves is reached from the host, and it reaches what the host reaches.
    Host,
    /// A loopback of its own, on which this server answers at `http://127.0.0.1:80` for models,
    /// the mesh and the run itself, and services of its environment at their own ports. Nothing else is
    /// reached.
    Mesh,
    /// A loopback of its own, and nothing else.
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

/// The process of a run whose agent is a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// How often it was started.
    pub life: u32,
    /// Of the main process, while it runs.
    pub pid: Option<u32>,
    pub restarts: u32,
    /// Of the last attempt that ended.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// When it is started again, while it waits for that.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub restart_at: Option<Timestamp>,
    /// It was asked to end, and has not yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// The provider's own id of the conversation.
    pub conversation: Option<String>,
    /// Somebody removed a part of its log while it ran: what the log holds is not all that it wrote.
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
    /// KILL at once in place of TERM first.
    #[serde(default)]
    pub kill: bool,
    /// Seconds between TERM and KILL; at most an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 3600, default = 10))]
    pub grace: Option<u32>,
}

impl RunStop {
    /// What is wrong with the values; empty when nothing is.
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
    /// At most 200,000 bytes.
    pub text: String,
    /// As it is, without a line end after it.
    #[serde(default)]
    pub raw: bool,
    /// Neither the log nor the event shows the text. What the program itself writes is its own.
    #[serde(default)]
    pub secret: bool,
}

/// What a run's processes use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessUsage {
    /// Processor time since the start, in milliseconds, ended processes included.
    pub cpu_ms: u64,
    pub resident_bytes: u64,
    pub processes: u32,
    /// Where the log ends.
    pub log_bytes: u64,
    /// Since when nothing was written.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub last_output_at: Timestamp,
}

/// What one run's processes use, in a list of all that live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunUsage {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    pub name: String,
    pub status: RunStatus,
    pub life: u32,
    /// Of the main process.
    pub pid: u32,
    pub restarts: u32,
    /// What it waits for an answer to.
    pub prompt: Option<String>,
    #[serde(flatten)]
    pub usage: ProcessUsage,
}

/// What the processes of all runs use now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunUsages {
    /// When it was measured: at most half a second ago.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Newest run first, at most 4,000.
    pub runs: Vec<RunUsage>,
    /// There are more runs than that.
    pub more: bool,
}
