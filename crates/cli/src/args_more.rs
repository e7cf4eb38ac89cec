//! The commands that have commands of their own, and the two long jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use crate::duration;

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Create an agent
    #[command(after_help = "\
Examples:
  overmind agent create --name coder --role \"You fix failing tests.\" --model gpt-5 \\
      --tools run_shell,read_file,edit_file,list_files
  overmind agent create --name careful --model claude-sonnet-4-5 --tools run_shell --approvals run_shell
  overmind agent create -f coder.toml

A file has the same keys as the API: name, role, model, tools_allowed, sandbox, limits, …
Flags override the file.")]
    Create(Box<AgentFlags>),
    /// List agents, newest first
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind agent list
  overmind agent list -o wide")]
    List {
        /// Maximum number of agents
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Show one agent
    #[command(after_help = "\
Examples:
  overmind agent get coder
  overmind agent get coder -o yaml > coder.yaml")]
    Get {
        /// The agent: its name, its id, or a unique part of it
        agent: String,
    },
    /// Change an agent; each change creates a version, and running sessions keep theirs
    #[command(after_help = "\
Examples:
  overmind agent edit coder --model gpt-5-mini
  overmind agent edit coder --enable
  overmind agent edit coder --if-version 3 --role \"…\"")]
    Edit {
        /// The agent: its name, its id, or a unique part of it
        agent: String,
        #[command(flatten)]
        flags: Box<AgentFlags>,
        /// Enable a disabled agent
        #[arg(long)]
        enable: bool,
        /// Refuse when the agent is not at this version
        #[arg(long, value_name = "N")]
        if_version: Option<u32>,
    },
    /// Disable an agent: it gets no new runs
    #[command(after_help = "\
Example:
  overmind agent disable coder                `agent enable coder` reverses it")]
    Disable {
        /// Names, ids, or unique parts of ids
        #[arg(required = true)]
        agents: Vec<String>,
    },
    /// Enable disabled agents
    #[command(after_help = "\
Example:
  overmind agent enable coder")]
    Enable {
        /// Names, ids, or unique parts of ids
        #[arg(required = true)]
        agents: Vec<String>,
    },
    /// Remove agents; their runs stay, and their names can be used again
    #[command(after_help = "\
Example:
  overmind agent rm coder")]
    Rm {
        /// Names, ids, or unique parts of them
        #[arg(required = true)]
        agents: Vec<String>,
    },
    /// Show an agent's history, newest first
    #[command(after_help = "\
Examples:
  overmind agent versions coder
  overmind agent versions coder -o json | jq '.[].role'")]
    Versions {
        /// The agent: its name, its id, or a unique part of it
        agent: String,
    },
}

#[derive(Clone, Debug, Default, Args)]
pub struct AgentFlags {
    /// Read the agent from a TOML or JSON file; `-` is JSON on standard input
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Its name
    #[arg(long)]
    pub name: Option<String>,
    /// The role of the agent: the core of its system prompt
    #[arg(long, value_name = "TEXT")]
    pub role: Option<String>,
    /// The model: gpt-5.5, claude-sonnet-5-5, openai-chat:NAME, scripted:FILE, deterministic, …
    /// [default for a new agent: one whose provider has a key]
    #[arg(long)]
    pub model: Option<String>,
    /// Tools it may use, `none` for none; `overmind tool list` shows all [default for a new agent:
    /// run_shell and those that read and write files]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub tools: Option<Vec<String>>,
    /// Who decides: rules (deterministic) or a model
    #[arg(long, value_enum)]
    pub policy: Option<PolicyArg>,
    /// How the agent's commands are isolated from this machine
    #[arg(long, value_enum)]
    pub sandbox: Option<SandboxArg>,
    /// Tools whose calls always wait for a human; `*` is all
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub approvals: Option<Vec<String>>,
    /// What to do about an action whose result was lost in a crash
    #[arg(long, value_enum)]
    pub on_unknown: Option<OnUnknownArg>,
    /// low, medium, high, or another word of the provider
    #[arg(long, value_name = "EFFORT")]
    pub reasoning_effort: Option<String>,
    /// Token limit of one reply
    #[arg(long, value_name = "N")]
    pub max_output_tokens: Option<u32>,
    /// Step limit of a run; 0 is no limit
    #[arg(long, value_name = "N")]
    pub max_steps: Option<u32>,
    /// Longest time of a run: 90s, 10m, 2h; waiting for a human is not counted, 0 is no limit
    #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u32>(0, u32::MAX.into()))]
    pub max_seconds: Option<u32>,
    /// Maximum number of concurrent runs; 0 is the server's default
    #[arg(long, value_name = "N")]
    pub max_concurrent: Option<u32>,
    /// How many failed actions in a row end a run
    #[arg(long, value_name = "N")]
    pub failure_budget: Option<u32>,
    /// Maximum attempts of one action if its failures are transient
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    Auto,
    Deterministic,
    Model,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxArg {
    /// No isolation at all
    None,
    /// Linux namespaces, seccomp, limits
    Namespace,
    /// A hardened container
    Docker,
    /// A virtual machine with a kernel of its own
    Microvm,
}

impl From<SandboxArg> for overmind_api::SandboxLevel {
    fn from(level: SandboxArg) -> Self {
        match level {
            SandboxArg::None => Self::None,
            SandboxArg::Namespace => Self::Namespace,
            SandboxArg::Docker => Self::Docker,
            SandboxArg::Microvm => Self::Microvm,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnknownArg {
    /// A human decides
    Ask,
    /// Do it again
    Retry,
    /// Tell the agent
    Report,
}

/// The text of a value as the command line and the API both spell it.
pub fn spelled<T: ValueEnum>(value: T) -> String {
    let value = value.to_possible_value().expect("no value of ours is hidden");
    value.get_name().to_owned()
}

#[derive(Debug, Subcommand)]
pub enum ToolCommand {
    /// List all tools of the server
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind tool list
  overmind tool list -o json | jq -r '.[].name'")]
    List,
    /// Call a tool on behalf of a run; recorded like the run's own calls
    #[command(after_help = "\
Example:
  overmind tool call build read_file '{\"path\":\"README.md\"}'")]
    Call {
        /// The run: an id, or a unique beginning or end of one
        run: String,
        /// The tool
        tool: String,
        /// The arguments of the tool, a JSON object
        #[arg(default_value = "{}")]
        args: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Store a text
    #[command(after_help = "\
Example:
  overmind memory add \"the staging port is 8080\" --collection notes --metadata '{\"by\":\"me\"}'")]
    Add {
        /// The text; `-` reads it from standard input
        text: String,
        #[arg(long, default_value = "default")]
        collection: String,
        /// A JSON object to store with the text
        #[arg(long, value_name = "JSON")]
        metadata: Option<String>,
        /// Lifetime of the text: 90s, 10m, 2d; a bare number is seconds
        #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u64>(1, u64::MAX))]
        ttl: Option<u64>,
        /// The text that this one replaces; the old one is kept as history
        #[arg(long, value_name = "ID")]
        supersedes: Option<String>,
        /// Store only once under this name; later attempts return the first text
        #[arg(long, value_name = "NAME")]
        key: Option<String>,
    },
    /// Find texts by words, and by meaning when an embedding model is configured
    #[command(after_help = "\
Examples:
  overmind memory search \"which port does staging have\"
  overmind memory search deploy --collection notes --top 3")]
    Search {
        /// Any text, without special syntax
        query: String,
        #[arg(long, default_value = "default")]
        collection: String,
        /// Maximum number of texts
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
        top: u32,
        /// Only texts whose metadata fit: field=value,… or JSON such as {"year": {"gte": 2024}}
        #[arg(long, value_name = "FILTER")]
        filter: Option<String>,
        /// Include texts that were replaced by others
        #[arg(long)]
        history: bool,
    },
    /// Show one text with all its data
    #[command(after_help = "\
Example:
  overmind memory get 019a")]
    Get {
        /// The text: its id, or a unique beginning or end of it
        id: String,
    },
    /// Recompute the vectors of texts that were embedded with another model
    #[command(long_about = "\
Give texts of another embedding model, or of none, vectors of the configured one. The command works in batches;
if it is interrupted, the next call continues.")]
    #[command(after_help = "\
Example:
  overmind memory reembed                     after another embedding model was configured")]
    Reembed,
    /// List texts, newest first
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind memory list
  overmind memory list --collection notes --limit 10")]
    List {
        /// Only this collection
        #[arg(long)]
        collection: Option<String>,
        /// Maximum number of texts
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Remove texts
    #[command(after_help = "\
Example:
  overmind memory rm 019a 019b")]
    Rm {
        /// The texts: ids, or unique beginnings or ends of them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key; it is shown only once
    #[command(after_help = "\
Example:
  OVERMIND_TOKEN=$(overmind key create ci --role operator -o name)
  OPENAI_API_KEY=$(overmind key create my-script --scope model -o name)
  OVERMIND_TOKEN=$(overmind key create bob --colony team-a -o name)   reaches only team-a

A key for a program that does one thing has a scope instead of a role: `model` calls models by the
gateway, `mcp` calls tools by MCP, `runs` starts runs, reads their logs and answers the inbox.
docs/roles.md lists what each may.")]
    Create {
        /// Name of the key
        name: String,
        /// The role of the key
        #[arg(long, value_enum, default_value = "operator")]
        role: RoleArg,
        /// A single permission, instead of a role
        #[arg(long, value_enum, conflicts_with = "role")]
        scope: Option<ScopeArg>,
    },
    /// List keys
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Example:
  overmind key list")]
    List,
    /// Revoke a key
    #[command(after_help = "\
Example:
  overmind key revoke ci")]
    Revoke {
        /// The key: its name, its id, or a unique part of it
        key: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Calls models through the gateway (/llm)
    Model,
    /// Calls tools over MCP (/mcp)
    Mcp,
    /// Starts and ends runs, reads their logs, answers the inbox
    Runs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Reads everything but settings and keys
    Viewer,
    /// Also creates and changes agents and runs
    Operator,
    /// Everything
    Admin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    #[value(alias = "key")]
    Keys,
    #[value(alias = "tool")]
    Tools,
}

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Read the whole log and check every hash, number and signature
    #[command(after_help = "\
Example:
  overmind audit verify && echo unchanged

Works with the server up (it checks) or down (this command opens the database itself).
Exit code 0 if the log is intact, otherwise 1 with a list of the problems.")]
    Verify,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting, its value and where it came from
    #[command(after_help = "\
Examples:
  overmind config show
  overmind config show -o wide                 with the source of each value")]
    Show,
    /// Print the value of a setting
    #[command(after_help = "\
Examples:
  overmind config get server.listen
  overmind config get log.level -o json       with its source")]
    Get {
        /// The key of the setting, as `config show` prints it
        key: String,
    },
    /// Set a setting in the configuration file; the rest of the file stays as it is
    #[command(after_help = "\
Examples:
  overmind config set log.level debug
  overmind config set server.allowed_hosts a.example,b.example
  overmind config set models.openai_api_key - < key.txt

The server reads the file when it starts.")]
    Set {
        /// The key of the setting, as `config show` prints it
        key: String,
        /// The value of the setting; lists are separated by commas; `-` reads standard input
        value: String,
    },
    /// Remove a setting from the configuration file, so that its default applies
    #[command(after_help = "\
Example:
  overmind config unset log.level")]
    Unset {
        /// The key of the setting, as `config show` prints it
        key: String,
    },
    /// Change the configuration file in your editor; only a valid file is saved
    #[command(after_help = "\
Example:
  overmind config edit

Opens the file in $VISUAL, else $EDITOR, else vi. If there is no file yet, it starts with the sample.")]
    Edit,
    /// Print a configuration file with every setting, what it means and its default
    #[command(after_help = "\
Example:
  overmind config sample | less")]
    Sample,
    /// Print the path of the configuration file
    #[command(after_help = "\
Example:
  $EDITOR $(overmind config path)")]
    Path,
}

#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Show which levels are available on this machine, and why others are not
    #[command(after_help = "\
Example:
  overmind sandbox levels")]
    Levels,
    /// Measure a level from inside, and show the result
    #[command(after_help = "\
Example:
  overmind sandbox attest namespace -o json

Exit code 1 if the level is not available, with the reason and what to do.")]
    Attest {
        /// The level: namespace, docker, microvm or none
        #[arg(default_value = "namespace")]
        level: String,
    },
    /// Show the measurement of a run's sandbox, and verify its signature
    #[command(after_help = "\
Examples:
  overmind sandbox verify ses_0190b2c4
  overmind sandbox verify fix \"service db\"

Exit code 1 if the record does not match its signature. `overmind audit verify` checks the
records of all runs, with or without a server.")]
    Verify {
        /// The run, by its id or a unique part of it
        run: String,
        /// A service, hook or check of its environment, as `info RUN` names it [default: its commands]
        of: Option<String>,
    },
    /// Build and list images for sandboxes
    #[command(subcommand)]
    #[command(after_help = "\
Example:
  overmind sandbox image ls")]
    Image(crate::sandbox_image::ImageCommand),
}

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// Do a tenth of the work: faster and less accurate
    #[arg(long)]
    pub quick: bool,
    /// Directory to measure in, for its disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Use a real model instead of the script
    #[arg(long)]
    pub model: Option<String>,
    /// Server that speaks OpenAI's chat format (Ollama, vLLM, …); needs --model
    #[arg(long, value_name = "URL", requires = "model", value_hint = ValueHint::Url)]
    pub base_url: Option<String>,
    /// How the agent's commands are isolated from this machine
    #[arg(long, value_enum, default_value = "namespace")]
    pub sandbox: SandboxArg,
    /// Do not pause between the scenes
    #[arg(long)]
    pub fast: bool,
    /// Do not kill the server in the middle
    #[arg(long)]
    pub no_crash: bool,
    /// Keep the directory and the server, to look around
    #[arg(long)]
    pub keep: bool,
    /// Use the script even if a key for a real model is set
    #[arg(long, conflicts_with_all = ["model", "base_url"])]
    pub scripted: bool,
}
