//! Arguments of the verbs for declared things.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

#[derive(Clone, Debug, Args)]
pub struct FileArgs {
    /// File or directory of documents in YAML or JSON; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// Read directories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind apply -f context.yaml
  overmind apply -f deploy/ --dry-run         what would change; nothing is written
  overmind apply -f deploy/ --prune -l app=web   also deletes resources with the label that are in no document
  overmind get contexts -o yaml | overmind apply -f -

All documents are applied, or none. Every mistake is listed with its file, line and column.")]
pub struct ApplyArgs {
    #[command(flatten)]
    pub from: FileArgs,
    /// Check everything and write nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    #[arg(value_name = "WHERE", value_parser = ["server", "client", "none"])]
    pub dry_run: Option<String>,
    /// Also delete resources that match the selector, have no owner and are in no document
    #[arg(long, requires = "selector")]
    pub prune: bool,
    /// Labels that the documents must have
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
pub struct GetArgs {
    /// What to list: a kind, or KIND/NAME
    pub kind: String,
    /// Only these
    pub names: Vec<String>,
    /// Only resources with these labels: app=web,tier!=gold
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Keep running and show each change
    #[arg(short, long)]
    pub watch: bool,
    /// Include all colonies
    #[arg(short = 'A', long)]
    pub all_colonies: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind describe context greeting
  overmind describe context/greeting")]
pub struct DescribeArgs {
    /// A kind, or KIND/NAME
    pub kind: String,
    /// Which ones
    pub names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CascadeArg {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind delete context greeting
  overmind delete -f deploy/
  overmind delete context -l app=web --ignore-not-found
  overmind delete context greeting --cascade=orphan   resources that it owns stay")]
pub struct DeleteArgs {
    /// A kind, or KIND/NAME
    #[arg(required_unless_present = "files")]
    pub kind: Option<String>,
    /// Which ones
    pub names: Vec<String>,
    #[command(flatten)]
    pub from: FileArgs,
    /// Select by labels
    #[arg(short = 'l', long, conflicts_with_all = ["names", "files"])]
    pub selector: Option<String>,
    /// Treatment of the resources that it owns: deleted afterwards, deleted first, or kept
    #[arg(long, value_enum, default_value = "background")]
    pub cascade: CascadeArg,
    /// A missing resource is not an error
    #[arg(long)]
    pub ignore_not_found: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example:
  overmind edit context greeting

Opens the document in $VISUAL, else $EDITOR, else vi. When somebody else has changed it meanwhile,
nothing is written: their change is shown, your text is kept in a file, and the exit code is 5.")]
pub struct EditArgs {
    /// A kind, or KIND/NAME
    pub kind: String,
    /// Which one
    pub name: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind label context greeting tier=gold
  overmind label context/greeting tier-       removes the label")]
pub struct LabelArgs {
    /// A kind, or KIND/NAME
    pub kind: String,
    /// A name, then KEY=VALUE to set a label and KEY- to remove one
    #[arg(required = true)]
    pub words: Vec<String>,
    /// Accepted for compatibility with kubectl: labels are always overwritten
    #[arg(long, hide = true)]
    pub overwrite: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind explain context
  overmind explain context.spec.values")]
pub struct ExplainArgs {
    /// A kind, or a field of one: KIND.spec.FIELD
    pub field: String,
}
