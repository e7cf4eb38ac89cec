//! The arguments of `overmind vault`. No argument ever takes a secret's value.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Subcommand)]
pub enum VaultCommand {
    /// Set a secret; its value is asked for, or read from standard input or a file
    #[command(after_help = "\
Examples:
  overmind vault set openai_api_key                   asks, and shows nothing
  pass show openai | overmind vault set openai_api_key --from-stdin
  overmind vault set tls_key --from-file key.pem --keep 2

A value is never an argument: it would be visible in the shell's history and in the list of processes.")]
    Set(VaultSetArgs),
    /// List the secrets, without their values
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Example:
  overmind vault list")]
    List,
    /// Remove a secret with all its versions
    #[command(after_help = "\
Example:
  overmind vault rm openai_api_key")]
    Rm {
        /// The secret
        name: String,
    },
    /// Give a secret a new value, or renew the master key
    #[command(after_help = "\
Examples:
  overmind vault rotate openai_api_key                asks for the new value
  overmind vault rotate openai_api_key --to 3         the value of version 3 again
  overmind vault rotate --master                      a new master key for all secrets
  overmind vault rotate --master --passphrase         the same, under a passphrase

Users of a secret get the new value with their next call; nothing is restarted.")]
    Rotate(VaultRotateArgs),
    /// Set many secrets from a .env file, standard input or this command's environment
    #[command(after_help = "\
Examples:
  overmind vault import .env
  overmind vault import - < .env
  overmind vault import --env                         OVERMIND_CRED_NAME and OPENLEGION_CRED_NAME

All are set, or none.")]
    Import {
        /// The file; `-` is standard input
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "env")]
        file: Option<PathBuf>,
        /// Use the credentials in this command's environment
        #[arg(long, conflicts_with = "file")]
        env: bool,
    },
    /// Let agents use a secret or a service
    #[command(after_help = "\
Examples:
  overmind vault grant coder --service anthropic      calls of it; the key stays here
  overmind vault grant 'build-*' --secret npm_token   the value, in the environment of commands

Without a grant, agents can use no secret and no service.")]
    Grant(VaultGrantArgs),
    /// Revoke a grant; give the same names as for `grant`
    #[command(after_help = "\
Example:
  overmind vault revoke coder --service anthropic")]
    Revoke(VaultGrantArgs),
    /// List the grants
    #[command(after_help = "\
Example:
  overmind vault grants")]
    Grants,
    /// List the services, and whether there is a key for each
    #[command(after_help = "\
Example:
  overmind vault services")]
    Services,
    /// Declare a service; this can replace a built-in one
    #[command(after_help = "\
Example:
  overmind vault declare tracker --base-url https://api.tracker.example/v2 --auth 'header X-Token' \\
      --secret tracker_token --allow 'GET /issues/**' --allow 'POST|PATCH /issues/*'")]
    Declare(VaultDeclareArgs),
    /// Remove a declaration; a built-in service of that name applies again
    #[command(after_help = "\
Example:
  overmind vault undeclare tracker")]
    Undeclare {
        /// The service
        name: String,
    },
    /// Show whether the vault is unlocked, and where its key is stored
    #[command(after_help = "\
Example:
  overmind vault status")]
    Status,
    /// Unlock the vault; asks for its passphrase
    #[command(after_help = "\
Examples:
  overmind vault unlock                       asks for the passphrase
  pass show overmind | overmind vault unlock --from-stdin")]
    Unlock {
        /// Read the passphrase from standard input
        #[arg(long)]
        from_stdin: bool,
        /// Remove the passphrase: store the key in a file again
        #[arg(long, conflicts_with = "from_stdin")]
        key_file: bool,
    },
}

// Where a value comes from; without either it is asked for. (A doc comment would become the help of
// the command.)
#[derive(Debug, Args)]
pub struct ValueArgs {
    /// Read the value from standard input
    #[arg(long)]
    pub from_stdin: bool,
    /// Read the value from a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "from_stdin")]
    pub from_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct VaultSetArgs {
    /// The secret's name: ASCII characters, digits, `_`, `-` and `.`; stored in lower case
    pub name: String,
    // Taken so that it can be refused without a usage error that repeats it.
    #[arg(hide = true, num_args = 0.., allow_hyphen_values = true, value_name = "VALUE")]
    pub refused: Vec<String>,
    #[command(flatten)]
    pub value: ValueArgs,
    /// Number of older versions to keep
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep: u32,
}

#[derive(Debug, Args)]
pub struct VaultRotateArgs {
    /// The secret
    #[arg(required_unless_present = "master")]
    pub name: Option<String>,
    #[arg(hide = true, num_args = 0.., allow_hyphen_values = true, value_name = "VALUE")]
    pub refused: Vec<String>,
    /// Renew the master key instead
    #[arg(long, conflicts_with_all = ["name", "from_stdin", "from_file", "to"])]
    pub master: bool,
    /// Ask for a new passphrase that protects the master key
    #[arg(long, requires = "master")]
    pub passphrase: bool,
    #[command(flatten)]
    pub value: ValueArgs,
    /// Restore the value of this version
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["from_stdin", "from_file"])]
    pub to: Option<u32>,
    /// Number of older versions to keep
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep: u32,
}

#[derive(Debug, Args)]
pub struct VaultGrantArgs {
    /// Names of agents; `*` stands for any characters
    pub agent: String,
    /// Names of secrets
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "service",
        conflicts_with = "service"
    )]
    pub secret: Option<String>,
    /// Names of services
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
}

#[derive(Debug, Args)]
pub struct VaultDeclareArgs {
    /// The service: small letters, digits, `_` and `-`
    pub name: String,
    /// `https://HOST[:PORT][/PATH]`
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub base_url: String,
    /// Where the key is sent: bearer, `header NAME`, `query NAME`, `basic USER` or none
    #[arg(long, value_name = "PLACE", default_value = "bearer")]
    pub auth: String,
    /// The secret with the service's key
    #[arg(long, value_name = "NAME")]
    pub secret: String,
    /// What may be called: methods and a path, `*` within a part of it, `**` for the rest
    #[arg(long = "allow", value_name = "METHODS PATH", required = true)]
    pub allow: Vec<String>,
    /// Allow unencrypted HTTP to another machine
    #[arg(long)]
    pub plaintext: bool,
}
