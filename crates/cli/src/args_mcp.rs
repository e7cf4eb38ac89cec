//! The arguments of `overmind mcp`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Add a server, or replace the one of that name
    #[command(after_help = "\
Examples:
  overmind mcp add time -- python3 -m mcp_server_time
  overmind mcp add files --scope session --read-only /opt/mcp -- node /opt/mcp/files.js /workspace
  overmind mcp add web --url https://tools.example/mcp --secret-header X-Key=WEB_KEY
  overmind mcp add --file server.json

Agents may call its tools when their list of tools names them: `mcp.NAME.TOOL`. A secret NAME is
the server's own variable OVERMIND_CRED_NAME; its text is never stored.")]
    Add(Box<McpAddArgs>),
    /// List the servers
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind mcp list
  overmind mcp list -o wide")]
    List,
    /// List the tools of all servers, or of one
    #[command(after_help = "\
Examples:
  overmind mcp tools                          of all servers
  overmind mcp tools files")]
    Tools {
        /// The server
        id: Option<String>,
    },
    /// Approve the current definitions of tools
    #[command(after_help = "\
Examples:
  overmind mcp pin files                      all that can be approved
  overmind mcp pin --all                      all of all servers
  overmind mcp pin files read_text_file       one tool; review it first: `overmind mcp tools files`")]
    Pin {
        /// The server
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        id: Option<String>,
        /// Approve all tools of all servers that can be approved
        #[arg(long)]
        all: bool,
        /// The server's own name of the tool
        tool: Option<String>,
        /// Approve only if the tool still has this hash
        #[arg(long, requires = "tool")]
        hash: Option<String>,
    },
    /// Withdraw the approval of a tool
    #[command(after_help = "\
Example:
  overmind mcp unpin files read_text_file")]
    Unpin {
        /// The server
        id: String,
        /// The server's own name of the tool
        tool: String,
    },
    /// Serve a run's own tools over standard input and output, for the run's program
    #[command(after_help = "\
Example, in the configuration of an agent that runs as a command:
  {\"mcpServers\": {\"overmind\": {\"command\": \"overmind\", \"args\": [\"mcp\", \"serve\"]}}}

It needs OVERMIND_TOKEN, which every run's command has in its environment. Programs that speak
MCP over HTTP use /mcp at the server with that token.")]
    Serve,
    /// Stop and remove a server
    #[command(after_help = "\
Example:
  overmind mcp rm files")]
    Rm {
        /// The server
        id: String,
    },
}

#[derive(Debug, Args)]
pub struct McpAddArgs {
    /// The name of the server: a-z, 0-9, `-` and `_`
    #[arg(required_unless_present = "file")]
    pub id: Option<String>,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
    /// URL of a server that speaks HTTP
    #[arg(long, conflicts_with = "command")]
    pub url: Option<String>,
    /// Take the whole configuration from a JSON file; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["id", "command", "url"])]
    pub file: Option<PathBuf>,
    /// A variable of the program
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// A variable of the program whose value is a secret
    #[arg(long = "secret-env", value_name = "NAME=SECRET")]
    pub secret_env: Vec<String>,
    /// A header of each request
    #[arg(long = "header", value_name = "NAME=VALUE", requires = "url")]
    pub header: Vec<String>,
    /// A header of each request whose value is a secret
    #[arg(long = "secret-header", value_name = "NAME=SECRET", requires = "url")]
    pub secret_header: Vec<String>,
    /// One process for all sessions, or one for each
    #[arg(long, value_enum, default_value = "shared")]
    pub scope: ScopeArg,
    /// How the program is isolated from this machine
    #[arg(long, value_enum, default_value = "namespace")]
    pub sandbox: McpSandboxArg,
    /// A directory of this machine that the program may read
    #[arg(long = "read-only", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub read_only: Vec<PathBuf>,
    /// Allow the server to write to the whole workspace of its session
    #[arg(long)]
    pub writes_workspace: bool,
    /// Offer only tools that were pinned
    #[arg(long)]
    pub manual: bool,
    /// Keep the server even if it does not start
    #[arg(long)]
    pub keep: bool,
    /// Add the server without starting it
    #[arg(long)]
    pub disabled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// One for all sessions
    Shared,
    /// One for each session, ended with it
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum McpSandboxArg {
    /// Namespaces, seccomp, no network
    Namespace,
    /// No isolation
    None,
}
