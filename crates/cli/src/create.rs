//! `create`: a resource from flags, where that is shorter than a document.

use clap::{Args, Subcommand};
use overmind_api::{Period, RESOURCE_API_VERSION, Resource, SandboxLevel};
use serde_json::{Map, Value, json};

use crate::args::Format;
use crate::args_budget::PeriodArg;
use crate::args_more::SandboxArg;
use crate::context::Context;
use crate::exit::{Exit, Outcome};
use crate::remote::Remote;
use crate::show;

/// The kind, in paths and in documents.
const COLONY: [&str; 2] = ["colony", "Colony"];

#[derive(Clone, Debug, Subcommand)]
pub enum CreateCommand {
    /// Create a colony
    #[command(visible_aliases = ["namespace", "ns"])]
    #[command(after_help = "\
Examples:
  overmind create colony team-a
  overmind create colony team-b --runs 20 --running 4 --sandbox namespace --usd 50 --per month
  overmind key create bob --role operator --colony team-a
  overmind -n team-a ps

Change it with `overmind edit colony NAME`. More: docs/colonies.md")]
    Colony(ColonyArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ColonyArgs {
    /// Name: small letters, digits, hyphens and dots
    pub name: String,
    /// Quota of runs that have not ended; further ones are refused
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub runs: Option<u32>,
    /// Quota of runs that run at the same time; further ones wait
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub running: Option<u32>,
    /// Weakest sandbox of its runs
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub sandbox: Option<SandboxArg>,
    /// Limit of what its model calls cost together, in US dollars
    #[arg(long, value_name = "N")]
    pub usd: Option<f64>,
    /// Limit of the tokens of its model calls together, input and output
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Period of the limit
    #[arg(long, value_enum, value_name = "PERIOD", default_value = "total")]
    pub per: PeriodArg,
}

/// # Errors
///
/// Returns an error if there is a colony of this name, or the caller is no admin.
pub(crate) async fn create(cx: &Context, command: &CreateCommand) -> Outcome {
    let CreateCommand::Colony(args) = command;
    let remote = Remote::connect(cx)?;
    let document = document(args);
    let made = remote.client().resource_put(COLONY[0], &args.name, &document).await?;
    shown(cx, &made.resource)?;
    Ok(Exit::Done)
}

fn shown(cx: &Context, made: &Resource) -> Result<(), crate::exit::Failure> {
    match cx.out.format {
        Format::Name => cx.out.line(&made.reference())?,
        Format::Json | Format::Yaml => cx.out.value(&show::to_value(made))?,
        Format::Table | Format::Wide => {
            cx.out.line(&format!("{} created", made.reference()))?;
            let name = &made.metadata.name;
            cx.out.note(&format!("work in it: overmind -n {name} run …; OVERMIND_COLONY={name}"));
        }
    }
    Ok(())
}

/// The document that the flags mean. Resource version 0: it must not exist yet.
fn document(args: &ColonyArgs) -> Value {
    let mut spec = Map::new();
    let put = |at: &mut Map<String, Value>, field: &str, value: Option<Value>| {
        if let Some(value) = value {
            at.insert(field.to_owned(), value);
        }
    };
    let mut quota = Map::new();
    put(&mut quota, "runs", args.runs.map(Into::into));
    put(&mut quota, "running", args.running.map(Into::into));
    put(&mut spec, "quota", (!quota.is_empty()).then(|| quota.into()));
    let level = args.sandbox.map(|level| SandboxLevel::from(level).as_str());
    put(&mut spec, "sandbox", level.map(Into::into));
    if args.usd.is_some() || args.tokens.is_some() {
        let mut budget = Map::new();
        put(&mut budget, "usd", args.usd.map(Into::into));
        put(&mut budget, "tokens", args.tokens.map(Into::into));
        put(&mut budget, "per", Some(Period::from(args.per).as_str().into()));
        put(&mut spec, "budget", Some(budget.into()));
    }
    json!({
        "apiVersion": RESOURCE_API_VERSION,
        "kind": COLONY[1],
        "metadata": {"name": args.name, "resourceVersion": "0"},
        "spec": spec,
    })
}
