//! The arguments of the mesh: `mesh`, `publish`, `subscribe-topic`, `mail`, `can`, `acl`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use crate::duration;

#[derive(Debug, Subcommand)]
pub enum MeshCommand {
    /// Show the value of a key
    #[command(after_help = "\
Examples:
  overmind mesh get tasks/42
  overmind mesh get tasks/42 -o json | jq .value")]
    Get {
        /// The key: tasks/42
        key: String,
    },
    /// Show who changed a key and when
    #[command(after_help = "\
Examples:
  overmind mesh history tasks/42
  overmind mesh history tasks/42 -o json | jq '.changes[0].by'")]
    History {
        /// The key, also one that was deleted: tasks/42
        key: String,
    },
    /// Write a value
    #[command(after_help = "\
Examples:
  overmind mesh put tasks/42 '{\"state\":\"open\"}'
  overmind mesh put notes/today \"a text\"            text that is not JSON
  overmind mesh put locks/build me --new --ttl 60     only if the key does not exist
  overmind mesh put tasks/42 - --if-version 3 < task.json")]
    Put(MeshPutArgs),
    /// List keys that begin with a prefix
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind mesh list
  overmind mesh list tasks/")]
    List {
        /// Prefix of the keys, without wildcards
        #[arg(default_value = "")]
        prefix: String,
        /// Maximum number of keys
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Print each change of keys as a line of JSON
    #[command(after_help = "\
Example:
  overmind mesh watch tasks/ | jq .key")]
    Watch {
        /// Prefix of the keys
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Delete a key
    #[command(after_help = "\
Examples:
  overmind mesh rm tasks/42
  overmind mesh rm tasks/42 --if-version 3")]
    Rm {
        /// The key
        key: String,
        /// Only if this is the current version of the key
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Publish an event to a topic
    #[command(after_help = "\
Example:
  overmind mesh publish build.done '{\"commit\":\"1f2e\"}'")]
    Publish(PublishArgs),
    /// Subscribe an agent to topics, or list subscriptions
    #[command(after_help = "\
Examples:
  overmind mesh subscribe 'build.*' --agent writer
  overmind mesh subscribe 'build.*' --agent writer --remove
  overmind mesh subscribe                     list all")]
    Subscribe(SubscribeTopicArgs),
    /// List agents with what they can do and how many messages wait for them
    #[command(after_help = "\
Example:
  overmind mesh agents")]
    Agents,
}

#[derive(Debug, Args)]
pub struct MeshPutArgs {
    /// The key: tasks/42
    pub key: String,
    /// JSON, or a text; `-` reads standard input
    pub value: String,
    /// Lifetime of the key: 90s, 10m, 2d; a bare number is seconds
    #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u64>(0, u64::MAX))]
    pub ttl: Option<u64>,
    /// Only if this is the current version of the key
    #[arg(long, value_name = "N", conflicts_with = "new")]
    pub if_version: Option<u64>,
    /// Only if the key does not exist
    #[arg(long)]
    pub new: bool,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// Words separated by dots or slashes: build.done
    pub topic: String,
    /// Payload: JSON, or a text
    #[arg(default_value = "{}")]
    pub payload: String,
}

#[derive(Debug, Args)]
pub struct SubscribeTopicArgs {
    /// A topic; `*` matches one word, `**` at the end all following ones. Without a topic, list
    pub topic: Option<String>,
    /// Agent that subscribes [default in a run: its own agent]
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
    /// Remove the subscription
    #[arg(long, requires = "topic")]
    pub remove: bool,
}

#[derive(Debug, Subcommand)]
pub enum MailCommand {
    /// Send a message to an agent
    #[command(after_help = "\
Examples:
  overmind mail send writer \"the build is done\"
  overmind mail send capability:search '{\"query\":\"rust\"}' --type task_request")]
    Send {
        /// An agent's name or id, or `capability:WORD`
        to: String,
        /// JSON, or a text; `-` reads standard input
        message: String,
        /// The type of the message
        #[arg(long = "type", value_name = "WORD", default_value = "query")]
        kind: String,
        /// The id of the message that it answers
        #[arg(long, value_name = "ID")]
        reply_to: Option<String>,
        /// Time until an unacknowledged message is dead: 90s, 10m; a bare number is seconds
        #[arg(long, value_name = "DURATION", value_parser = duration::whole::<u64>(0, u64::MAX))]
        ttl: Option<u64>,
    },
    /// List waiting messages without receiving them
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind mail list --agent writer
  overmind mail list --dead                   messages that nobody acknowledged")]
    List {
        /// Agent of the mailbox [default in a run: its own agent]
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// List dead messages instead
        #[arg(long)]
        dead: bool,
        /// Maximum number of messages
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Receive messages; they are delivered again unless you acknowledge them
    #[command(after_help = "\
Examples:
  overmind mail read --agent writer
  overmind mail read --agent writer --wait 30s --ack")]
    Read {
        /// Agent of the mailbox [default in a run: its own agent]
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// Maximum number of messages
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
        /// How long to wait for the first one, up to 30s; a bare number is seconds
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::whole::<u64>(0, 30))]
        wait: u64,
        /// Acknowledge the messages at once
        #[arg(long)]
        ack: bool,
    },
    /// Acknowledge messages, also dead ones; this removes them
    #[command(after_help = "\
Example:
  overmind mail ack 019a --agent writer")]
    Ack(MailIds),
    /// Give messages back, also dead ones, so that they can be received again
    #[command(after_help = "\
Example:
  overmind mail requeue 019a")]
    Requeue(MailIds),
}

#[derive(Debug, Args)]
pub struct MailIds {
    /// The messages' ids
    #[arg(required = true, num_args = 1..=100)]
    pub ids: Vec<String>,
    /// Agent of the mailbox [default in a run: its own agent]
    #[arg(long, value_name = "AGENT")]
    pub agent: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    Message,
    Publish,
    Subscribe,
    Read,
    Write,
    Api,
    Model,
    Spawn,
}

#[derive(Debug, Args)]
pub struct CanArgs {
    /// An agent's name or id, or a run's id; `me` in a run
    pub agent: String,
    /// The action
    #[arg(value_enum)]
    pub verb: Verb,
    /// The object of the action: an agent, a topic, a key, a service, a model
    pub object: String,
}

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// Show whether an agent may do something, and by which rule
    #[command(after_help = "\
Examples:
  overmind acl can writer message editor
  overmind acl can writer write drafts/1      6 is the exit code of a denial")]
    Can(CanArgs),
    /// List the entries of the permission matrix
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Example:
  overmind acl list")]
    List,
    /// Show the permissions of an agent, and which entries limit them
    #[command(after_help = "\
Examples:
  overmind acl show writer
  overmind acl show writer -o json > writer.json")]
    Show {
        /// An agent's name or id, or a run's id; `me` in a run
        agent: String,
    },
    /// Write the whole entry of an agent; it replaces the entry in the file
    #[command(after_help = "\
Examples:
  overmind acl set writer writer.json
  echo '{\"can_message\":[\"*\"]}' | overmind acl set default -")]
    Set {
        /// The agent's name, or `default`
        agent: String,
        /// The permissions as JSON; `-` reads standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Add a pattern to an agent's list
    #[command(after_help = "\
Examples:
  overmind acl allow writer message editor
  overmind acl allow writer write 'drafts/**'      `*` stops at a slash, `**` does not")]
    Allow(AclPattern),
    /// Remove a pattern from an agent's list
    #[command(after_help = "\
Example:
  overmind acl revoke writer message editor")]
    Revoke(AclPattern),
    /// Remove an agent's entry, so that the file's entry applies again
    #[command(after_help = "\
Example:
  overmind acl rm writer                      the default applies again")]
    Rm {
        /// The agent's name
        agent: String,
    },
}

#[derive(Debug, Args)]
pub struct AclPattern {
    /// The agent's name, or `default`
    pub agent: String,
    /// The permission
    #[arg(value_enum)]
    pub verb: Verb,
    /// The object, or a pattern of objects
    pub pattern: String,
}
