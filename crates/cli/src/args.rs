//! The grammar of the command line. The modules beside this one carry the commands out.
//!
//! The texts here are the `--help`, the manual pages and the completions at once.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

pub use crate::args_global::Global;
use crate::args_inbox::{AnswerArgs, ApproveArgs, DenyArgs, InboxArgs};
pub use crate::args_logs::{EventsArgs, LogsArgs};
use crate::args_mcp::McpCommand;
use crate::args_mesh::{
    AclCommand, CanArgs, MailCommand, MeshCommand, PublishArgs, SubscribeTopicArgs,
};
use crate::args_more::{
    AgentCommand, AuditCommand, BenchArgs, ConfigCommand, DemoArgs, KeyCommand, MemoryCommand,
    SandboxCommand, ToolCommand,
};
use crate::duration;

const AFTER_HELP: &str = "\
First steps:
  overmind demo                       watch an agent fix a failing test, no key needed
  overmind up -d                      start the server in the background
  overmind init                       in your repository: proposes an agent for it
  overmind run coder \"fix the failing test\"

`overmind help COMMAND` shows examples of any command. Topics: overmind help environments, approvals,
models, secrets, variables, output.";

/// Runs AI agents the way Kubernetes runs containers: durable, isolated, recorded.
#[derive(Debug, Parser)]
#[command(name = "overmind", version, after_help = AFTER_HELP, propagate_version = true)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

// No documentation on the values: it would make the help of every command three times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    Auto,
    Always,
    Never,
}

// Deferred: a start builds the arguments of the one command that it is.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Start the server
    #[command(after_help = "\
Examples:
  overmind up                                 in the foreground; ^C stops it gracefully
  overmind up -d                              in the background; returns when it is ready
  overmind up --listen 127.0.0.1:0            any free port
  overmind up --listen 0.0.0.0:8420 --tls-cert cert.pem --tls-key key.pem

The first SIGTERM or SIGINT lets current work finish, a second one stops the server now, a
third one aborts it. Interrupted runs continue after the next start.")]
    Up(UpArgs),
    /// Start the server in the background (older name of `up --detach`)
    #[command(hide = true)]
    Start(UpArgs),
    /// Stop the server
    #[command(
        alias = "shutdown",
        after_help = "\
Examples:
  overmind down
  overmind down --timeout 60                  waits up to a minute for current work"
    )]
    Down(DownArgs),
    /// Show the server's state
    #[command(after_help = "\
Examples:
  overmind status
  overmind status -o json | jq .running")]
    Status,
    /// Create, show and change agents
    #[command(subcommand, visible_alias = "agents")]
    #[command(after_help = "\
Examples:
  overmind agent create --name coder --model gpt-5.5
  overmind agent list")]
    Agent(AgentCommand),
    /// Give an agent a task, or run a command
    #[command(after_help = "\
Examples:
  overmind run coder \"fix the failing test\"
  overmind run --name build make -j4            a program and its arguments, unchanged
  overmind run 'make && make test'              one word with spaces: a shell command line
  overmind run -d --restart on-failure ./serve.sh
  ID=$(overmind run -q -d coder \"write: notes.txt: hello\")

Put options before a program, because the words after it are its own arguments. With an agent,
options can be before or after the task; everything after `--` is text.

On a terminal, `run` follows the run, as `docker run` does: it shows the output and asks you for
decisions; ^C detaches, and the run continues. Without a terminal, it returns when the program
runs, unless you pass --follow or --wait. When it follows or waits, it exits with the program's
exit code, or for an agent with: 0 done, 10 failed or not started, 11 stopped, 12 waits for a
human.")]
    Run(Box<RunArgs>),
    /// List runs
    #[command(after_help = "\
Examples:
  overmind ps                                 runs that have not ended
  overmind ps --all --agent coder
  overmind ps --status 'your turn,needs approval'
  overmind ps --status failed -o json")]
    Ps(PsArgs),
    /// Show what a run did, in words
    #[command(after_help = "\
Examples:
  overmind logs 019a                          a unique beginning or end of the id is enough
  overmind logs -f ses_019a…                  until the run ends
  overmind logs                               the newest run
  overmind logs --all -f                      every command, as it writes")]
    Logs(LogsArgs),
    /// Show the event log, of one run or of everything
    #[command(after_help = "\
Examples:
  overmind events                             the newest events of all streams
  overmind events 019a -f                     one run's events as they happen
  overmind events 019a -o json | jq .type
  overmind events --stream --from 0 --no-follow > events.ndjson
  overmind events --stream --from $((LAST + 1))   continues after the event LAST
  overmind events build --stream --kind process.")]
    Events(EventsArgs),
    /// List what waits for a human: approvals, questions and budget requests
    Inbox(InboxArgs),
    /// Answer a question
    Answer(AnswerArgs),
    /// Answer a run that waits for input (older name of `answer`)
    #[command(hide = true)]
    Input {
        /// The run: an id, a name, or a unique part of one
        id: String,
        /// The answer
        message: String,
    },
    /// Allow actions that wait for approval
    Approve(ApproveArgs),
    /// Refuse actions that wait for approval
    Deny(DenyArgs),
    /// Stop runs: a command gets TERM, then KILL; an agent starts no further step
    #[command(after_help = "\
Examples:
  overmind stop build
  overmind stop build fix --grace 30s          TERM, then KILL after 30 seconds
  overmind stop boss --cascade                also the runs that were started for it")]
    Stop(crate::args_command::StopArgs),
    /// End runs at once
    #[command(after_help = "\
Examples:
  overmind kill build
  overmind kill boss --cascade                also the runs that were started for it
  overmind kill --all                         every command that is running; idle runs are left")]
    Kill(crate::args_command::KillArgs),
    /// Send a message to a run; an idle or ended run continues with it
    #[command(after_help = "\
Examples:
  overmind send fix \"and add a test for it\"
  overmind send claude --wait \"and the tests?\"  shows the reply
  overmind send build yes, go on              typed into a program

If the agent is idle or has ended, it continues the same conversation with the same files. If it
is working, it gets the message before its next turn; Claude Code and Codex get it after their
current turn. A program gets it as input while it runs.")]
    Send(crate::args_command::SendArgs),
    /// Use the terminal of a run, in this one
    #[command(after_help = "\
Examples:
  overmind attach claude                      ^P ^Q detaches; the run continues
  overmind attach claude --detach-key ctrl-]
  overmind attach claude --read-only          ^C or q detaches

Several people can attach at once; the terminal has the size of the one who typed last. Exits
with 0 if you detach, and with the command's exit code when it ends.")]
    Attach(crate::args_command::AttachArgs),
    /// Watch the resource use of running commands; for one run, also its state and last lines
    #[command(after_help = "\
Examples:
  overmind top                                q quits
  overmind top build                          one run
  overmind top --once -o json")]
    Top(crate::args_command::TopArgs),
    /// Watch one run (older name of `top RUN`)
    #[command(hide = true)]
    Monitor(crate::args_command::MonitorArgs),
    /// Show everything about one run
    #[command(after_help = "\
Examples:
  overmind info build                         its state, environment, processes, measurements
  overmind info build -o json | jq -r .room.branch")]
    Info(crate::args_command::OneRunArgs),
    /// Show the result of a run; exits with its exit code
    #[command(after_help = "\
Examples:
  overmind result build
  overmind result build -o json | jq .exit_code")]
    Result(crate::args_command::OneRunArgs),
    /// Stream events as lines of JSON (older name of `events --stream`)
    #[command(hide = true)]
    Subscribe(crate::args_command::SubscribeArgs),
    /// Wait until runs have ended, and exit like the first that failed; or wait for resources
    #[command(after_help = "\
Examples:
  overmind wait build; echo $?
  overmind wait build --timeout 10m
  overmind wait --for condition=Complete quest/nightly-28374 --timeout 10m
  overmind wait --for jsonpath={.status.phase}=idle session/build
  overmind wait --for delete quest/nightly-28374")]
    Wait(crate::args_command::WaitArgs),
    /// Stop runs for good (older name of `stop`)
    #[command(hide = true)]
    Cancel {
        /// The runs: ids, names, or unique parts of them
        #[arg(required = true)]
        ids: Vec<String>,
        /// Also the runs that were started for them
        #[arg(long)]
        cascade: bool,
    },
    /// Show a run's recorded timeline, or verify that its decisions can be reproduced
    #[command(after_help = "\
Examples:
  overmind replay 019a                        the whole timeline
  overmind replay 019a --verify               decide everything again from the log")]
    Replay {
        /// The run: an id, a name, or a unique part of one
        id: String,
        /// Repeat every decision of the run from its log; fail at the first difference
        #[arg(long, conflicts_with = "follow")]
        verify: bool,
        /// Continue until the run is idle or ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Start a new run from a step of an old one
    #[command(after_help = "\
Example:
  overmind fork 019a --at 3 --model claude-sonnet-4-5")]
    Fork(ForkArgs),
    /// Compare two runs step by step, or files with what is declared
    #[command(after_help = "\
Examples:
  overmind diff 019a 019b
  overmind diff -f deploy/                    what an apply would change; exit code 1 if anything")]
    Diff {
        /// A run
        #[arg(required_unless_present = "files", conflicts_with = "files")]
        a: Option<String>,
        /// Another run
        #[arg(required_unless_present = "files")]
        b: Option<String>,
        #[command(flatten)]
        from: crate::args_resource::FileArgs,
    },
    /// Create and change resources from files: all of them or none
    Apply(crate::args_resource::ApplyArgs),
    /// Create a colony: a group of runs, agents and resources with names of its own
    #[command(subcommand)]
    Create(crate::create::CreateCommand),
    /// Show everything about resources
    Describe(crate::args_resource::DescribeArgs),
    /// Delete resources
    Delete(crate::args_resource::DeleteArgs),
    /// Change a resource in your editor
    Edit(crate::args_resource::EditArgs),
    /// Set or remove labels of a resource
    Label(crate::args_resource::LabelArgs),
    /// Show the fields of a kind
    Explain(crate::args_resource::ExplainArgs),
    /// List the kinds of resources
    #[command(after_help = "\
Example:
  overmind api-resources")]
    ApiResources,
    /// Show what a run has done in its worktree
    #[command(after_help = "\
Examples:
  overmind work fix                           a summary and the diff
  overmind work fix --stat
  overmind work fix -o json | jq -r .diff | git apply --stat")]
    Work(crate::args_room::WorkArgs),
    /// Decide about a run's work: merge it, put it on a branch, keep or discard it
    #[command(after_help = "\
Examples:
  overmind done fix --merge                   into what is checked out in the project
  overmind done fix --merge --into release -m 'Fix the login'
  overmind done fix --pr-branch fix-login     a branch to push; also while it runs
  overmind done fix build --merge             one after the other
  overmind done fix --discard --yes

The worktree of a run stays until you decide. Give the whole name. An idle run is ended first. Exit code 5 if the
run has not ended, or the merge has conflicts.")]
    Done(crate::args_room::DoneArgs),
    /// Remove runs that have ended, with their logs and artifacts
    #[command(after_help = "\
Examples:
  overmind rm fix
  overmind rm fix build --yes                 without asking
  overmind rm fix --discard --yes             also throws its undecided work away

Give the whole name. The log keeps a record that the run was removed, so that `overmind audit verify` still
holds; costs stay in the sums. Only admins may do this. Exit code 5 when the run has not ended, or its work is
undecided. To remove old runs automatically, set `store.retention_days`.")]
    Rm(crate::args_room::RmArgs),
    /// Restore the files of a run's worktree to their state before a step
    #[command(after_help = "\
Examples:
  overmind undo fix                           the latest change; once more: the change before it
  overmind undo fix --to 3                    all changes of step 3 and later steps
  overmind undo fix --to 4.1                  a snapshot by its name: also to undo an undo

Snapshots are taken before and after each step of an agent that may change files, and when a turn
of a program ends. Files that git ignores are neither saved nor restored. Exit code 5 if the run
is working, or its worktree was removed.")]
    Undo(crate::args_room::UndoArgs),
    /// Save undecided work of ended runs on their branches, and remove the worktrees
    #[command(after_help = "\
Examples:
  overmind prune --dry-run                    lists the runs and changes nothing
  overmind prune --older-than 7d

Only worktrees are removed: uncommitted changes become a commit on the run's branch, and you can
still decide about it with `overmind done`. Worktrees of runs with --keep stay.")]
    Prune(crate::args_room::PruneArgs),
    /// Show the addresses of a run's services
    #[command(after_help = "\
Examples:
  overmind url fix                            all of them
  curl $(overmind url fix web)")]
    Url(crate::args_room::UrlArgs),
    /// List tools, or call one on behalf of a run
    #[command(subcommand, visible_alias = "tools")]
    #[command(after_help = "\
Examples:
  overmind tool list
  overmind tool call build read_file '{\"path\":\"README.md\"}'")]
    Tool(ToolCommand),
    /// Store and find texts that agents remember
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind memory add \"the staging port is 8080\"
  overmind memory search \"which port\"")]
    Memory(MemoryCommand),
    /// Manage MCP tool servers
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind mcp add time -- python3 -m mcp_server_time
  overmind mcp list")]
    Mcp(McpCommand),
    /// List, save and fetch files that runs leave behind
    #[command(subcommand, visible_alias = "artifacts")]
    #[command(after_help = "\
Examples:
  overmind artifact list build
  overmind artifact get build report.md")]
    Artifact(crate::args_artifact::ArtifactCommand),
    /// Read, write and watch the state that agents share
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind mesh put tasks/42 '{\"state\":\"open\"}'
  overmind mesh list tasks/")]
    Mesh(MeshCommand),
    /// Publish an event to a topic (older name of `mesh publish`)
    #[command(hide = true)]
    Publish(PublishArgs),
    /// Subscribe an agent to topics (older name of `mesh subscribe`)
    #[command(hide = true)]
    SubscribeTopic(SubscribeTopicArgs),
    /// Send and read messages of agents
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind mail send writer \"the build is done\"
  overmind mail list")]
    Mail(MailCommand),
    /// Show whether an agent may do something (older name of `acl can`)
    #[command(hide = true)]
    Can(CanArgs),
    /// Show and change what agents may do in the mesh
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind acl list
  overmind acl allow writer message editor")]
    Acl(AclCommand),
    /// Show and control the periodic work of the server
    #[command(subcommand, visible_alias = "loops")]
    #[command(after_help = "\
Examples:
  overmind loop list
  overmind loop run retention")]
    Loop(crate::loops::LoopCommand),
    /// Print a link that opens the dashboard in a browser, signed in
    #[command(after_help = "Example:\n  overmind dash")]
    Dash,
    /// Manage API keys
    #[command(subcommand, visible_alias = "keys")]
    #[command(after_help = "\
Examples:
  overmind key create ci --role operator
  overmind key list")]
    Key(KeyCommand),
    /// Manage secrets: keys that agents use and never see
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind vault set openai_api_key
  overmind vault list")]
    Vault(crate::args_vault::VaultCommand),
    /// Run an agent or a program on a schedule
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind cron add daily \"0 9 * * 1-5\" --tz Europe/Berlin -- run researcher \"the daily report\"
  overmind cron next
  overmind cron pause daily")]
    Cron(crate::cron::CronCommand),
    /// Set the number of runs of a fleet
    Scale(crate::rollout::ScaleArgs),
    /// Show and control how a fleet's runs are replaced
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind rollout status fleet/web
  overmind rollout undo fleet/web")]
    Rollout(crate::rollout::RolloutCommand),
    /// List resources of a kind, such as fleets, runs, agents, secrets or memory
    #[command(after_help = "\
Examples:
  overmind get rituals
  overmind get context greeting -o yaml
  overmind get sessions -l app=web -w         continues and shows each change
  overmind get pods                           kubectl's names of kinds work, too

`overmind api-resources` lists all kinds; keys and tools are listed too.")]
    Get(crate::args_resource::GetArgs),
    /// Write a consistent copy of the database while the server runs
    #[command(after_help = "\
Example:
  overmind backup /var/backups/overmind-$(date +%F).db

Artifacts of runs are copied to FILE.artifacts. Neither contains the secrets of the data
directory (admin.token, token.key, the signing key).")]
    Backup {
        /// File to write, on the server's machine; it must not exist
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Replace the database with a backup; the server must be stopped
    #[command(after_help = "\
Example:
  overmind down && overmind restore overmind-2026-11-21.db && overmind up -d

The replaced database is kept in the same directory, under a name that ends in `.before-restore`.")]
    Restore {
        /// The backup
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Replace a database that holds data
        #[arg(long)]
        force: bool,
    },
    /// Set and show budgets
    #[command(subcommand, visible_alias = "budgets")]
    #[command(after_help = "\
Examples:
  overmind budget set agent:coder --usd 5 --per day
  overmind budget list")]
    Budget(crate::args_budget::BudgetCommand),
    /// Show what was spent, by agent, model, run or day
    Costs(crate::args_budget::CostsArgs),
    /// Emergency stop: no model call begins and no queued run starts
    Halt(crate::args_budget::HaltArgs),
    /// End an emergency stop
    #[command(after_help = "\
Example:
  overmind resume                             queued runs start, and model calls begin")]
    Resume,
    /// Show what models cost, with date and source; needs no server
    Prices(crate::args_budget::PricesArgs),
    /// Check the log against tampering
    #[command(subcommand)]
    #[command(after_help = "\
Example:
  overmind audit verify")]
    Audit(AuditCommand),
    /// Show and change the configuration
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind config show -o wide
  overmind config set log.level debug")]
    Config(ConfigCommand),
    /// Check what agents may do: explain a call, test recorded calls
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind policy explain --command 'git push'
  overmind policy show")]
    Policy(crate::policy_cmd::PolicyCommand),
    /// Propose an .overmind.yml for a project, and an agent for it; needs no server
    #[command(after_help = "\
Reads compose.yaml, Procfile, devcontainer.json, .env.example and package.json, prints an
.overmind.yml, and writes it to the project's top directory. If the file exists, or the directory is in no git
repository, nothing is written and the exit code is 5. A file in the earlier format is converted. Then the
command that creates an agent is printed, with a model whose
provider has a key.

Examples:
  overmind init                               for the project around this directory
  overmind init --print ~/src/shop            only shows it
  overmind init --force                       replaces the file")]
    Init(crate::init::InitArgs),
    /// Confirm the commands that a project's .overmind.yml runs
    #[command(after_help = "\
A repository brings its own setup commands and services. They run only after an admin has read
and confirmed them. If the file changes, they need a new confirmation. `overmind run` asks at the
terminal, and `overmind init` confirms the file that it writes.

Examples:
  overmind trust                              shows the commands of this project, and asks
  overmind trust --show ~/src/shop            exit code 1 if they are not confirmed
  overmind trust --yes --setup-network        for scripts; setup may install packages in sandboxes
  overmind trust --revoke")]
    Trust(crate::trust::TrustArgs),
    /// Find what could keep Overmind from working, and how to fix it
    #[command(after_help = "\
Examples:
  overmind doctor
  overmind doctor --fix

Exit code 1 if there is a problem, otherwise 0. Warnings are no problems; remains of runs that have
ended are.")]
    Doctor {
        /// Remove leftovers of removed runs that certainly belong to Overmind
        #[arg(long)]
        fix: bool,
    },
    /// Measure the sandboxes of this machine; needs no server
    #[command(subcommand)]
    #[command(after_help = "\
Examples:
  overmind sandbox levels
  overmind sandbox attest namespace")]
    Sandbox(SandboxCommand),
    /// Measure five metrics on this machine, each compared with the best that the machine can do
    #[command(after_help = "\
Examples:
  overmind bench --quick
  overmind bench -o json > metrics.json")]
    Bench(BenchArgs),
    /// Watch an agent fix a failing test, be killed in the middle, and continue
    #[command(after_help = "\
Examples:
  overmind demo                               scripted; needs no key, no Docker
  overmind demo --base-url http://127.0.0.1:11434/v1 --model qwen3
  OPENAI_API_KEY=… overmind demo --model gpt-5")]
    Demo(DemoArgs),
    /// Print completions for a shell
    #[command(after_help = "\
Examples:
  overmind completions bash > ~/.local/share/bash-completion/completions/overmind
  overmind completions zsh > ~/.zfunc/_overmind
  overmind completions fish > ~/.config/fish/completions/overmind.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Show a manual page, or write all of them to a directory
    #[command(after_help = "\
Examples:
  overmind man                                on a terminal the page, in a pipe its source (roff)
  overmind man run                            the page of a command
  overmind man ~/.local/share/man/man1        writes the page of every command there")]
    Man {
        /// A command; or a directory for one page per command: a path with a `/`, or an existing directory
        #[arg(value_name = "COMMAND|DIR", value_hint = ValueHint::DirPath)]
        of: Vec<String>,
    },
    /// Show help on a command, a group of commands or a topic
    #[command(after_help = "\
Examples:
  overmind help
  overmind help runs                          a group of commands
  overmind help agent create
  overmind help environments                  a topic: what a run works in")]
    Help {
        /// A command; a group: runs, declare, agents, keys, spending, setup; or a topic: environments,
        /// approvals, models, secrets, variables, output
        words: Vec<String>,
    },
    /// Print the OpenAPI document of this version
    #[command(hide = true)]
    Openapi,
}

#[derive(Clone, Debug, Default, Args)]
pub struct UpArgs {
    /// Run in the background; return when the server is ready
    #[arg(short, long)]
    pub detach: bool,
    /// TCP address, or `none` for the unix socket alone [default: 127.0.0.1:8420]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Certificate chain in PEM; needed beyond loopback
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<String>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<String>,
    /// Working directory of runs that name none [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub workspace: Option<String>,
    /// What to log: error, warn, info, debug, trace or directives [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How to log: auto, text or json [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Continue although the database has lost events that were acknowledged (its log was damaged or
    /// removed, or an older copy is in its place), and record that
    #[arg(long)]
    pub accept_loss: bool,
    /// Start even if the key of a provider that unfinished runs use is missing since the last start
    #[arg(long)]
    pub force: bool,
    /// This process is the one that `up -d` started
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Clone, Debug, Args)]
pub struct DownArgs {
    /// How long to wait for current work before it is interrupted: 30s, 2m; a bare number is
    /// seconds
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::whole::<u64>(0, 3600))]
    pub timeout: u64,
}

#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// An agent (its name, its id or a unique part of it) and its task; or a program and its
    /// arguments, which are passed on unchanged. One word with spaces is a shell command line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
    /// Follow the run until it is idle or ends; the default on a terminal
    #[arg(short, long)]
    pub follow: bool,
    /// Wait without output until the run is idle, ends or needs a person
    #[arg(short, long, conflicts_with = "follow")]
    pub wait: bool,
    /// End the run after its answer, instead of keeping it idle for more input; also set by
    /// OVERMIND_ONCE=1
    #[arg(long)]
    pub once: bool,
    /// Step limit; 0 is no limit [default: the agent's own limit]
    #[arg(long, value_name = "N")]
    pub step_limit: Option<u32>,
    /// Return as soon as the server has accepted the run, before its program runs
    #[arg(short, long, conflicts_with_all = ["follow", "wait"])]
    pub detach: bool,
    /// Directory to work in, in a project or its top [default: the current directory, except your
    /// home and `/`]
    #[arg(long, visible_alias = "project", value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub workspace: Option<PathBuf>,
    /// Start in this directory, relative to the one to work in
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cwd: Option<PathBuf>,
    /// Name of the run: small letters, digits and hyphens; unique among unfinished runs [default: a
    /// generated one]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The parent run: an id, a name, or a unique part of one
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Label for `overmind ps -l`; can be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = crate::args_command::label)]
    pub label: Vec<(String, String)>,
    /// Values, files and prompt of this context for the run; can be repeated
    #[arg(long, value_name = "CONTEXT")]
    pub context: Vec<String>,
    /// Use this memory claim, with `NAME:ro` to read only; can be repeated
    #[arg(long, value_name = "CLAIM")]
    pub claim: Vec<String>,
    /// Limit in US dollars for model calls of the run and the runs that it starts
    #[arg(long, value_name = "N")]
    pub usd: Option<f64>,
    /// Limit in tokens, input and output together, of the run and the runs that it starts
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Confirm the commands of the project's .overmind.yml without asking; see `overmind help
    /// trust`
    #[arg(long)]
    pub trust_project: bool,
    /// Idempotency key: a repeated request with it returns the first run
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    #[command(flatten)]
    pub command: crate::args_command::CommandFlags,
    #[command(flatten)]
    pub room: crate::args_room::RoomFlags,
}

#[derive(Clone, Debug, Default, Args)]
pub struct PsArgs {
    /// Also runs that have ended
    #[arg(short, long)]
    pub all: bool,
    /// Runs of all colonies
    #[arg(short = 'A', long)]
    pub all_colonies: bool,
    /// Only runs in one of these states, separated by commas; the states of JSON also work
    #[arg(long, value_enum, value_name = "STATE", value_delimiter = ',')]
    pub status: Vec<crate::args_command::Status>,
    /// Only runs of this agent: its name, its id, or a unique part of it
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
    /// Only runs with these labels: app=web,tier!=gold
    #[arg(short = 'l', long, conflicts_with = "children")]
    pub selector: Option<String>,
    /// Show child runs below each run
    #[arg(long)]
    pub tree: bool,
    /// Only runs that were started for this one: an id, a name, or a unique part of one
    #[arg(long, value_name = "RUN", conflicts_with_all = ["agent", "status"])]
    pub children: Option<String>,
    /// Maximum number of runs, newest first [default: 1000 rows of a table, and all of them for -q and -o
    /// json, yaml and name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: Option<u32>,
}

#[derive(Clone, Debug, Args)]
pub struct ForkArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// The new run repeats everything before this step
    #[arg(long, value_name = "STEP")]
    pub at: u32,
    /// Model for the steps after that
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Role text for the steps after that
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Name of the new run [default: a generated one]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Follow the new run until it ends
    #[arg(short, long)]
    pub follow: bool,
}
