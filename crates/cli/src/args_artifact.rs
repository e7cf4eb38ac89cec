//! The arguments of `artifact`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Subcommand)]
pub enum ArtifactCommand {
    /// List the artifacts of a run, newest first
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind artifact list build
  overmind artifact list                      of the newest run; in a run: its own")]
    List {
        /// The run: an id, a name, or a unique part of one [default: the newest; in a run: itself]
        run: Option<String>,
        /// Maximum number of artifacts
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Download an artifact
    #[command(after_help = "\
Examples:
  overmind artifact get build report.md       to standard output
  overmind artifact get build out/app.zip --file app.zip
  overmind artifact get report.md             in a run: its own")]
    Get(ArtifactGetArgs),
    /// Save a file as an artifact; an artifact of the same name is replaced
    #[command(after_help = "\
Examples:
  overmind artifact save build report.md --file report.md
  git diff | overmind artifact save build changes.patch
  overmind artifact save report.md < report.md      in a run: for itself")]
    Save(ArtifactSaveArgs),
    /// Delete an artifact
    #[command(after_help = "\
Example:
  overmind artifact rm build report.md")]
    Rm(ArtifactOfRun),
}

// A run and a name, or in a run a name alone. (A doc comment would become the help of the command.)
#[derive(Debug, Args)]
pub struct ArtifactOfRun {
    /// The run (can be omitted inside a run) and the artifact's name
    #[arg(required = true, num_args = 1..=2, value_names = ["RUN", "NAME"])]
    pub of: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ArtifactGetArgs {
    #[command(flatten)]
    pub of: ArtifactOfRun,
    /// Write to this file, which must not exist
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "file")]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct ArtifactSaveArgs {
    #[command(flatten)]
    pub of: ArtifactOfRun,
    /// Read this file [default: standard input]
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Media type, such as text/csv [default: guessed]
    #[arg(long = "type", value_name = "TYPE")]
    pub media_type: Option<String>,
}
