//! The options that every command takes.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::args::When;
use crate::args_shape::{Shape, ShapeParser};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Directory of this Overmind's data [default: $OVERMIND_DATA, else ~/.local/share/overmind]
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// Configuration file [default: <data>/overmind.toml]
    #[allow(rustdoc::invalid_html_tags, reason = "it is the text of --help")]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Server to talk to: a URL or unix:PATH [default: the socket in the data directory]
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub server: Option<String>,
    /// Colony to work in; before the command also -n NAME [default: $OVERMIND_COLONY, else default]
    #[arg(long, global = true, value_name = "NAME", visible_alias = "namespace")]
    pub colony: Option<String>,
    /// How to show results: wide adds columns and absolute times, name prints ids alone
    #[arg(short, long, global = true, value_parser = ShapeParser, value_name = "FORMAT")]
    #[arg(default_value = "table")]
    pub output: Shape,
    /// The same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
    /// When to use colour; auto is on a terminal
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: When,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more: the server used, and reasons for decisions
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}
