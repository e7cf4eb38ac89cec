//! The arguments of `overmind budget`, `costs`, `halt` and `prices`.

use clap::{Args, Subcommand, ValueEnum};

#[derive(Clone, Debug, Subcommand)]
pub enum BudgetCommand {
    /// Set a limit, or change its amounts
    #[command(after_help = "\
Examples:
  overmind budget set swarm --usd 50 --per month
  overmind budget set agent:coder --usd 5 --per day
  overmind budget set agent:coder --usd 4 --per day --soft     warns once a day
  overmind budget set key:ci --usd 10 --per month              calls of models with this API key
  overmind budget set session:019a --tokens 2000000 --per total
  overmind budget set agent:coder --tokens 2000000 --per day   beside the dollars, which stay
  overmind budget set agent:coder --no-usd --per day           only the tokens stay

A call begins only if the most that it may cost fits into every limit that applies. Days and months
are those of UTC; weeks begin on Monday.")]
    Set(BudgetSetArgs),
    /// List the limits with what is used, reserved and left
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Examples:
  overmind budget list
  overmind budget list -o json | jq '.[].spent'")]
    List,
    /// Remove a limit
    #[command(after_help = "\
Example:
  overmind budget rm agent:coder")]
    Rm {
        /// The scope, as `budget list` prints it, or the id or a unique part of it
        id: String,
    },
}

#[derive(Clone, Debug, Args)]
pub struct BudgetSetArgs {
    /// `swarm`, `colony:default`, `agent:NAME`, `session:RUN`, `key:NAME`, or a resource with runs:
    /// `fleet/NAME`, `ritual/NAME`
    pub scope: String,
    /// US dollars [default: unchanged]
    #[arg(long, value_name = "N", required_unless_present_any = ["tokens", "no_usd", "no_tokens"])]
    pub usd: Option<f64>,
    /// Input and output tokens together [default: unchanged]
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Remove the limit in dollars
    #[arg(long, conflicts_with = "usd")]
    pub no_usd: bool,
    /// Remove the limit in tokens
    #[arg(long, conflicts_with = "tokens")]
    pub no_tokens: bool,
    /// The period after which spending starts again from zero
    #[arg(long, value_enum, value_name = "PERIOD")]
    pub per: PeriodArg,
    /// Warn in the inbox instead of refusing
    #[arg(long)]
    pub soft: bool,
    /// Allow calls whose price is unknown
    #[arg(long)]
    pub allow_unknown_price: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeriodArg {
    Day,
    Week,
    Month,
    Total,
}

impl From<PeriodArg> for overmind_api::Period {
    fn from(period: PeriodArg) -> Self {
        match period {
            PeriodArg::Day => Self::Day,
            PeriodArg::Week => Self::Week,
            PeriodArg::Month => Self::Month,
            PeriodArg::Total => Self::Total,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind costs                              this month, by agent
  overmind costs --by run
  overmind costs --by day --since 2026-11-01
  overmind costs --by model -o json

A cost begins with `≤` if it is an upper bound, because a call broke off. Calls of models without a
price are in no sum: the cost names their number.")]
pub struct CostsArgs {
    /// The field by which costs are grouped
    #[arg(long, value_enum, value_name = "WHAT", default_value = "agent")]
    pub by: ByArg,
    /// First day, of UTC [default: the first of this month]
    #[arg(long, value_name = "DAY")]
    pub since: Option<String>,
    /// Last day [default: today]
    #[arg(long, value_name = "DAY")]
    pub until: Option<String>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    Agent,
    Model,
    #[value(name = "run", alias = "session")]
    Session,
    Key,
    Day,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind halt --reason \"a loop\"             runs wait at their next model call
  overmind halt --kill                        and are cancelled

With --pause, programs continue to run, but their model calls are refused. The stop lasts until
`overmind resume`, also after restarts.")]
pub struct HaltArgs {
    /// The reason, which refused callers see
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Let runs wait at their next model call; the default
    #[arg(long, conflicts_with = "kill")]
    pub pause: bool,
    /// Cancel every run that has not ended
    #[arg(long)]
    pub kill: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind prices                             the whole table
  overmind prices gpt-5                       what this model costs here

Needs no server. Your own file overrides the built-in table: see docs/budgets.md.")]
pub struct PricesArgs {
    /// A model, as agents name it
    pub model: Option<String>,
}

// More of a limit, in `approve`. (A doc comment would become the help of that command.)
#[derive(Clone, Debug, Default, Args)]
pub struct RaiseArgs {
    /// For a budget request: US dollars to add to the limit
    #[arg(long, value_name = "N")]
    pub usd: Option<f64>,
    /// For a budget request: tokens to add to the limit
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// For a budget request: raise the limit permanently, not only for its current window
    #[arg(long)]
    pub for_good: bool,
}
