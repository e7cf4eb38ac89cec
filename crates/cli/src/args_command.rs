//! The grammar of what concerns runs of commands.

use clap::{Args, ValueEnum};

use crate::args_more::SandboxArg;
use crate::duration;

// Options of `run` for agents that are commands. No doc comment: it would become that of `run`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options of commands")]
pub struct CommandFlags {
    /// The agent or command, instead of the first word; `claude`, `codex`, `gemini` and `opencode`
    /// exist without being created
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
    /// Format of its output; without an agent, all words are the task of Claude Code or Codex
    #[arg(long, value_enum, value_name = "PROVIDER")]
    pub provider: Option<ProviderArg>,
    /// The model for the agent's program
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// task: it ends by itself; session: it takes input until it ends
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub kind: Option<TypeArg>,
    /// Use pipes instead of a terminal
    #[arg(long)]
    pub pipes: bool,
    /// When to restart it
    #[arg(long, value_enum, value_name = "WHEN")]
    pub restart: Option<RestartArg>,
    /// Restarts within --max-seconds after which the run fails; 0 is no limit [default: 5]
    #[arg(long, value_name = "N")]
    pub max_restarts: Option<u32>,
    /// The window of --max-restarts: 90s, 10m; a bare number is seconds [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u32>(0, u32::MAX.into()))]
    pub max_seconds: Option<u32>,
    /// Delay before the first restart: 500ms, 2s; doubles with each restart, up to a minute
    /// [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration::milliseconds_with_unit)]
    pub backoff: Option<u32>,
    /// End the program as stuck after this time without output and CPU use: 90s, 10m; 0 is never
    /// [default: 0]
    #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u32>(0, u32::MAX.into()))]
    pub activity_timeout: Option<u32>,
    /// Sandbox level: that of the agent or a stronger one [default: the agent's, and none for a
    /// command line]
    #[arg(long, value_enum, value_name = "LEVEL", hide_possible_values = true)]
    pub sandbox: Option<SandboxArg>,
    /// Network in a sandbox: host, mesh (this server and the services of its environment) or none.
    /// Only admins can give more than the agent has [default: the agent's, else mesh]
    #[arg(long, value_enum, value_name = "NETWORK", hide_possible_values = true)]
    pub network: Option<NetworkArg>,
    /// Memory limit of all its processes, such as 512M or 4G; processes beyond it are killed
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u32>,
    /// Limit of processes and threads
    #[arg(long, value_name = "N")]
    pub processes: Option<u32>,
    /// CPU limit in processors, such as 1.5
    #[arg(long, value_name = "N", value_parser = percent)]
    pub cpus: Option<u32>,
    /// Add this variable to the program's environment
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Set NAME to this credential of the server (OVERMIND_CRED_CREDENTIAL, or a secret of its
    /// vault); service:SERVICE gives a placeholder
    #[arg(long, value_name = "NAME=CREDENTIAL", value_parser = pair)]
    pub env_from: Vec<(String, String)>,
}

/// One label of a run.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    use overmind_core::record::label::{check_key, check_value};
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    check_key(key).map_err(|why| format!("the key {why}"))?;
    check_value(value).map_err(|why| format!("the value {why}"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        Some(_) | None => Err("give NAME=CREDENTIAL".to_owned()),
    }
}

/// MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.strip_suffix(['M', 'm']) {
        Some(number) => (number, 1),
        None => match text.strip_suffix(['G', 'g']) {
            Some(number) => (number, 1024),
            None => ("", 0),
        },
    };
    let number = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| "give a whole number of M or G, such as 512M or 4G".to_owned())
}

/// Hundredths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is out of range is refused before"
)]
fn percent(text: &str) -> Result<u32, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.01..=1000.0).contains(number));
    let number = number.ok_or_else(|| "give a number from 0.01 to 1000, such as 1.5".to_owned())?;
    Ok((number * 100.0).round() as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProviderArg {
    Raw,
    Claude,
    Codex,
    Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    Host,
    Mesh,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TypeArg {
    Task,
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RestartArg {
    Never,
    #[value(alias = "on_failure")]
    OnFailure,
    Always,
}

/// The states of runs, in the words of lists and of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Status {
    Queued,
    #[value(alias = "running")]
    Working,
    #[value(name = "your turn", aliases = ["your-turn", "your_turn", "idle"])]
    Idle,
    #[value(name = "needs approval", aliases = ["needs-approval", "needs_approval", "awaiting_approval"])]
    AwaitingApproval,
    #[value(name = "has a question", aliases = ["has-a-question", "has_a_question", "awaiting_input"])]
    AwaitingInput,
    #[value(alias = "succeeded")]
    Done,
    Merged,
    Discarded,
    Failed,
    #[value(alias = "canceled")]
    Stopped,
}

#[derive(Clone, Debug, Args)]
pub struct StopArgs {
    /// The runs: whole names, ids, or unique parts of ids
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// How long between TERM and KILL: 30s, 2m; a bare number is seconds [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u32>(0, 3600))]
    pub grace: Option<u32>,
    /// Also the runs that were started for them
    #[arg(long, conflicts_with = "grace")]
    pub cascade: bool,
    /// Return at once, instead of waiting until the runs have ended
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Clone, Debug, Args)]
pub struct KillArgs {
    /// The runs: whole names, ids, or unique parts of ids
    #[arg(required_unless_present = "all")]
    pub ids: Vec<String>,
    /// Also the runs that were started for them
    #[arg(long)]
    pub cascade: bool,
    /// All commands that are running
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// Text to send; a line end is added
    #[arg(required_unless_present = "secret")]
    pub words: Vec<String>,
    /// Read the text from standard input, and do not record it in log and events
    #[arg(long, conflicts_with = "words")]
    pub secret: bool,
    /// Do not add a line end
    #[arg(long)]
    pub raw: bool,
    /// Follow the run until it is idle or ends; the default on a terminal
    #[arg(short, long, conflicts_with_all = ["wait", "raw"])]
    pub follow: bool,
    /// Return as soon as the text has been sent; the default without a terminal
    #[arg(short, long, conflicts_with_all = ["follow", "wait"])]
    pub detach: bool,
    /// Wait until the run asks for input, ends, or prints nothing for a while; print its output
    #[arg(long)]
    pub wait: bool,
    /// How long --wait waits at most: 500ms, 5s, 10m; a bare number below 1000 is seconds
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::patience, requires = "wait")]
    pub timeout: f64,
}

#[derive(Clone, Debug, Args)]
pub struct AttachArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// Watch without typing; needs no terminal
    #[arg(long)]
    pub read_only: bool,
    /// Keys that detach: characters, or ctrl- and a character, separated by commas; `none` for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = crate::attach::parse_keys)]
    pub detach_key: crate::attach::DetachKeys,
}

#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Only this run, with its state and its last lines: an id, a name, or a unique part of one
    #[arg(value_name = "RUN")]
    pub id: Option<String>,
    /// Print once and exit
    #[arg(long)]
    pub once: bool,
}

#[derive(Clone, Debug, Args)]
pub struct MonitorArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// Print once and exit
    #[arg(long)]
    pub once: bool,
}

#[derive(Clone, Debug, Args)]
pub struct SubscribeArgs {
    /// Only events of this run: an id, a name, or a unique part of one; ends when it has ended
    #[arg(value_name = "RUN")]
    pub id: Option<String>,
    /// The same
    #[arg(long, value_name = "RUN", conflicts_with = "id")]
    pub run: Option<String>,
    /// Only events whose type begins with this; can be repeated
    #[arg(long, value_name = "PREFIX")]
    pub kind: Vec<String>,
    /// Begin with the event at this offset, 0 for the first of all [default: with the next one]
    #[arg(long, value_name = "OFFSET")]
    pub from: Option<u64>,
    /// End after the newest event
    #[arg(long, requires = "from")]
    pub no_follow: bool,
}

#[derive(Clone, Debug, Args)]
pub struct OneRunArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
}

#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// Runs: ids, names, or unique parts of them; with --for resources: KIND/NAME, or KIND NAME
    #[arg(required = true, value_name = "RUN")]
    pub ids: Vec<String>,
    /// What to wait for: condition=NAME, condition=NAME=STATUS, jsonpath={.status.phase}=VALUE or
    /// delete
    #[arg(long = "for", value_name = "WHAT", value_parser = crate::resource_wait::wanted)]
    pub wanted: Option<crate::resource_wait::Wanted>,
    /// Give up after: 500ms, 5s, 10m; a bare number below 1000 is seconds
    #[arg(long, value_name = "DURATION", value_parser = duration::patience)]
    pub timeout: Option<f64>,
}
