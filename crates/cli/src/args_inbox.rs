//! The command line of the inbox: what waits for a human, and answering it.

use clap::{Args, Subcommand, ValueEnum};

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  overmind inbox                              open items; similar ones are one row
  overmind inbox --watch                      also new items, as they are added
  overmind inbox --all --kind approval        also answered items, and by whom
  overmind inbox show fix                     one item with all effects of the action
  overmind inbox proposals >> policy.toml     rules for actions that you approve repeatedly")]
pub struct InboxArgs {
    #[command(subcommand)]
    pub command: Option<InboxCommand>,
    /// Include items that were answered, expired or withdrawn
    #[arg(short, long)]
    pub all: bool,
    /// Only this kind
    #[arg(long, value_enum, value_name = "KIND")]
    pub kind: Option<Kind>,
    /// Only items of this group (its key, or a beginning of it)
    #[arg(short, long, value_name = "KEY")]
    pub group: Option<String>,
    /// Give each item a row of its own
    #[arg(long)]
    pub flat: bool,
    /// Keep running, and print items as they are added and answered
    #[arg(short, long, conflicts_with_all = ["all", "flat"])]
    pub watch: bool,
    /// Maximum number of items
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Approval,
    Question,
    #[value(name = "budget-request", alias = "raise")]
    Raise,
    Work,
}

#[derive(Clone, Debug, Subcommand)]
pub enum InboxCommand {
    /// Show one item with all its data
    #[command(after_help = "\
Examples:
  overmind inbox show build
  overmind inbox show build -o json | jq .action")]
    Show {
        /// The item or its run: an id, a unique part of one, or the run's name
        id: String,
    },
    /// Print policy rules for actions that were approved often enough
    #[command(after_help = "\
Examples:
  overmind inbox proposals
  overmind inbox proposals >> policy.toml")]
    Proposals,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind approve fix --reason \"looked at the command\"
  overmind approve fix 4f1c                   several at once
  overmind approve --group 4f1c02d3           all similar items, after you have reviewed them

An approved action starts at once and cannot be revoked; `overmind stop RUN` stops it.")]
pub struct ApproveArgs {
    /// Items or their runs: ids, unique parts of them, or names of runs
    #[arg(value_name = "ID", required_unless_present = "group", conflicts_with = "group")]
    pub ids: Vec<String>,
    /// All open items of this group (its key, or a beginning of it)
    #[arg(short, long, value_name = "KEY")]
    pub group: Option<String>,
    /// Do not ask before approving high risk or a whole group
    #[arg(short, long)]
    pub yes: bool,
    /// The reason, for the agent and the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub raise: crate::args_budget::RaiseArgs,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind deny fix --reason \"use the staging host\"
  overmind deny --group 4f1c02d3 --yes --reason \"not on a Friday\"")]
pub struct DenyArgs {
    /// Items or their runs: ids, unique parts of them, or names of runs
    #[arg(value_name = "ID", required_unless_present = "group", conflicts_with = "group")]
    pub ids: Vec<String>,
    /// All open items of this group (its key, or a beginning of it)
    #[arg(short, long, value_name = "KEY")]
    pub group: Option<String>,
    /// Do not ask before a whole group is answered
    #[arg(short, long, requires = "group")]
    pub yes: bool,
    /// The reason, for the agent and the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  overmind answer fix the port is 8080")]
pub struct AnswerArgs {
    /// The question or its run: an id, a unique part of one, or the run's name
    pub id: String,
    /// The answer; several words are joined
    #[arg(required = true, value_name = "TEXT")]
    pub text: Vec<String>,
}
