//! Arguments of `logs` and `events`.

use clap::Args;

#[derive(Clone, Debug, Args)]
pub struct LogsArgs {
    /// The run: an id, a name, or a unique part of one [default: the newest run]
    pub id: Option<String>,
    /// Continue until the run is idle or ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only lines since this time, or of the last 500ms, 90s, 10m, 2h or 1d
    #[arg(long, value_name = "TIME", conflicts_with = "tail")]
    pub since: Option<String>,
    /// Only lines that match this regular expression
    #[arg(long, value_name = "PATTERN")]
    pub grep: Option<String>,
    /// The original lines of Claude Code, Codex and similar programs, not in words
    #[arg(long)]
    pub raw: bool,
    /// All commands, each line with the name of its run; with --follow also commands that start later
    #[arg(short, long, conflicts_with = "id")]
    pub all: bool,
}

#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// The run: an id, a name, or a unique part of one [default: all streams]
    pub id: Option<String>,
    /// Keep running, and print events as they happen
    #[arg(short, long)]
    pub follow: bool,
    /// Maximum number of events (without --follow)
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// One line of JSON for each event, with its offset for --from first. Continues as
    /// events happen; the stream of one run ends with the run
    #[arg(long, conflicts_with_all = ["follow", "limit"])]
    pub stream: bool,
    /// With --stream: begin with the event at this offset, 0 for the first of all [default: with
    /// the next one]
    #[arg(long, value_name = "OFFSET", requires = "stream")]
    pub from: Option<u64>,
    /// With --stream: only events whose type begins with this; can be repeated
    #[arg(long, value_name = "PREFIX", requires = "stream")]
    pub kind: Vec<String>,
    /// With --stream: end after the newest event
    #[arg(long, requires = "from")]
    pub no_follow: bool,
}
