//! `overmind cron`: rituals in the words of the command line.

use std::collections::BTreeMap;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use overmind_api::{Resource, ResourceListQuery};
use overmind_core::record::Name;
use overmind_core::record::label::MAX_PART;
use overmind_core::ritual::RitualSpec;
use overmind_core::schedule::Schedule;
use serde_json::{Map, Value, json};

use crate::args::Format;
use crate::args_more::{SandboxArg, spelled};
use crate::args_resource::{CascadeArg, GetArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Table;
use crate::output::{when, yaml};
use crate::remote::Remote;
use crate::show::{self, cell};
use crate::{resource, run};

const KIND: &str = "ritual";

#[derive(Clone, Debug, Subcommand)]
pub enum CronCommand {
    /// Run an agent or a program on a schedule
    #[command(after_help = "\
Examples:
  overmind cron add daily \"0 9 * * 1-5\" --tz Europe/Berlin -- run researcher \"the daily report\"
  overmind cron add cleanup \"every 30m\" --concurrency forbid -- ./cleanup.sh --old
  overmind cron add nightly @daily --dry-run -- run coder \"update the dependencies\" > nightly.yaml

The words after -- are those of `overmind run`: an agent and its task, or a program. The command creates a
Ritual: `overmind get rituals`, `overmind edit ritual daily`.")]
    Add(Box<AddArgs>),
    /// List schedules
    #[command(visible_alias = "ls")]
    #[command(after_help = "\
Example:
  overmind cron list -o wide")]
    List,
    /// Show the next ticks of all schedules or of one
    #[command(after_help = "\
Examples:
  overmind cron next
  overmind cron next daily -n 10")]
    Next {
        /// Its name
        name: Option<String>,
        /// How many ticks of each
        #[arg(short = 'n', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
    /// Pause a schedule; ticks during the pause do not count as missed
    #[command(after_help = "\
Example:
  overmind cron pause daily")]
    Pause {
        /// Its name
        name: String,
    },
    /// Resume a schedule
    #[command(after_help = "\
Example:
  overmind cron resume daily")]
    Resume {
        /// Its name
        name: String,
    },
    /// Start a run now, independent of the schedule, also while it is paused
    #[command(after_help = "\
Example:
  overmind wait --for condition=Complete $(overmind cron run daily -o name)")]
    Run {
        /// Its name
        name: String,
    },
    /// Remove a schedule with its quests; their unfinished runs end
    #[command(after_help = "\
Example:
  overmind cron rm daily")]
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Clone, Debug, Args)]
pub struct AddArgs {
    /// Name: small letters, digits, hyphens and dots
    name: String,
    /// 5 cron fields, 6 with a second before them, `every 30m`, or @hourly, @daily, @weekly
    schedule: String,
    /// Time zone of the schedule: Europe/Berlin [default: UTC]
    #[arg(long = "tz", visible_alias = "time-zone", value_name = "ZONE")]
    zone: Option<String>,
    /// What to do if an earlier tick still runs: start another run, none, or end the earlier one
    #[arg(long, value_enum)]
    concurrency: Option<ConcurrencyArg>,
    /// Which missed ticks to run after the server was down: the last one, none, or all
    #[arg(long, value_enum)]
    missed: Option<MissedArg>,
    /// Delay each tick by a fixed time shorter than this: 30s, 5m
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
    /// Time limit for the runs of a tick: 10m, 2h
    #[arg(long, value_name = "DURATION")]
    deadline: Option<String>,
    /// Retries after a failed run, with a growing delay [default: 3]
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Label; can be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = crate::args_command::label)]
    label: Vec<(String, String)>,
    /// Print the document and write nothing
    #[arg(long)]
    dry_run: bool,
    /// What to run: `run AGENT TASK`, or a program and its arguments
    #[arg(last = true, required = true, value_name = "RUN")]
    words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConcurrencyArg {
    Allow,
    Forbid,
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MissedArg {
    Skip,
    Once,
    All,
}

/// The text behind `-- run`.
#[derive(Clone, Debug, Parser)]
#[command(name = "run", disable_help_flag = true)]
struct Ran {
    /// The agent, in place of the first word
    #[arg(long)]
    agent: Option<String>,
    /// A stronger sandbox than the agent's
    #[arg(long, value_enum)]
    sandbox: Option<SandboxArg>,
    /// Directory to work in
    #[arg(long, alias = "workspace")]
    project: Option<std::path::PathBuf>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// # Errors
///
/// Returns an error if the command fails.
pub(crate) async fn command(cx: &Context, command: CronCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        CronCommand::Add(args) => add(cx, &remote, &args).await,
        CronCommand::List => {
            let args = GetArgs { kind: KIND.to_owned(), ..GetArgs::default() };
            resource::get(cx, &args).await
        }
        CronCommand::Next { name, count } => next(cx, &remote, name.as_deref(), count).await,
        CronCommand::Pause { name } => suspend(cx, &remote, &name, true).await,
        CronCommand::Resume { name } => suspend(cx, &remote, &name, false).await,
        CronCommand::Run { name } => run_now(cx, &remote, &name).await,
        CronCommand::Rm { names } => {
            for name in &names {
                let cascade = CascadeArg::Background;
                resource::deleted(cx, &remote, (KIND, name), cascade, false, "deleted").await?;
            }
            Ok(Exit::Done)
        }
    }
}

async fn add(cx: &Context, remote: &Remote, args: &AddArgs) -> Outcome {
    Name::parse(&args.name).map_err(|why| Failure::usage(format!("the name {why}")))?;
    let mut template = template(cx, remote, &args.words).await?;
    if let Some(deadline) = &args.deadline {
        template.insert("deadline".into(), json!(deadline));
    }
    if let Some(retries) = args.retries {
        template.insert("retries".into(), json!(retries));
    }
    let mut spec = json!({"schedule": args.schedule, "template": template});
    let further = [
        ("timeZone", args.zone.clone()),
        ("concurrency", args.concurrency.map(spelled)),
        ("missed", args.missed.map(spelled)),
        ("jitter", args.jitter.clone()),
    ];
    for (field, value) in further {
        if let (Some(value), Some(fields)) = (value, spec.as_object_mut()) {
            fields.insert(field.to_owned(), json!(value));
        }
    }
    // In words of the command line before those of a document.
    let read = RitualSpec::read(&spec).map_err(|wrong| {
        let said = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Failure::usage(said.replace("spec.timeZone", "--tz").replace("spec.template.", "--")).hint(
            "a schedule is `0 9 * * 1-5`, `every 30m` or `@daily`; `overmind cron add --help`",
        )
    })?;
    let labels: BTreeMap<_, _> = args.label.iter().cloned().collect();
    let mut metadata = json!({"name": args.name});
    if let (false, Some(fields)) = (labels.is_empty(), metadata.as_object_mut()) {
        fields.insert("labels".into(), json!(labels));
    }
    let mut document = json!({"apiVersion": "overmind/v1", "kind": "Ritual", "metadata": metadata,
        "spec": spec});
    if args.dry_run {
        match cx.out.format {
            Format::Json => cx.out.value(&document)?,
            _ => cx.out.text(&yaml::to_string(&document))?,
        }
        return Ok(Exit::Done);
    }
    // It must not be there: `apply` and `edit` change what is.
    if let Some(fields) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        fields.insert("resourceVersion".into(), json!("0"));
    }
    let put = remote.client().resource_put(KIND, &args.name, &document).await;
    let made = put.map_err(|err| match err.status() {
        Some(409) => {
            Failure::new(Exit::Conflict, format!("there is a ritual `{}` already", args.name))
                .hint(format!("`overmind edit ritual {0}` or `overmind cron rm {0}`", args.name))
        }
        _ => err.into(),
    })?;
    show::one(&cx.out, &made.resource, &made.resource.reference(), || {
        let mut lines = vec![("ritual", cell(&args.name)), ("schedule", cell(&args.schedule))];
        let tick = read.schedule.next(cx.now());
        lines.extend(tick.map(|tick| ("next", cell(at(cx, &read.schedule, tick)))));
        lines
    })?;
    Ok(Exit::Done)
}

/// A moment, and how long until then.
fn at(cx: &Context, schedule: &Schedule, tick: overmind_api::Timestamp) -> String {
    format!("{} (in {})", schedule.shown(tick), when::span(tick.since(cx.now())))
}

/// The spec of the quests: what `overmind run` would have run.
async fn template(
    cx: &Context,
    remote: &Remote,
    words: &[String],
) -> Result<Map<String, Value>, Failure> {
    let said = words.first().is_some_and(|first| first == "run" || first == "overmind");
    let skip = match words {
        [first, second, ..] if first == "overmind" && second == "run" => 2,
        [first, ..] if first == "run" => 1,
        _ => 0,
    };
    let words = words.iter().skip(skip);
    let ran = if said {
        let found = Ran::command()
            .try_get_matches_from(["run"].into_iter().chain(words.map(String::as_str)));
        let ran = found.and_then(|found| Ran::from_arg_matches(&found));
        ran.map_err(|err| {
            let text = err.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Failure::usage(format!("behind --: {first}")).hint(
                "a scheduled run takes --agent, --sandbox and --project, then an agent and \
                    a task, or a program",
            )
        })?
    } else {
        Ran { agent: None, sandbox: None, project: None, words: words.cloned().collect() }
    };
    if let Some(option) = ran.words.first().filter(|word| word.starts_with('-')) {
        let text = format!("after --: a scheduled run has no option `{option}`");
        return Err(Failure::usage(text).hint("it takes --agent, --sandbox and --project"));
    }
    let project = match &ran.project {
        Some(project) => run::workspace(cx, Some(project), None)?,
        None if run::is_home(cx) || !remote.is_here() => None,
        None => cx.cwd.to_str().map(str::to_owned),
    };
    let dir = project.as_deref().map_or(cx.cwd.clone(), std::path::PathBuf::from);
    let (agent, rest) = match (&ran.agent, ran.words.split_first()) {
        (Some(name), _) => (Some(remote.find_agent(name).await?), ran.words.clone()),
        (None, None) => return Err(Failure::usage("give what to run, after --")),
        (None, Some((first, rest))) => match run::agent_of_word(cx, remote, first, &dir).await? {
            Some(agent) => (Some(agent), rest.to_vec()),
            None => (None, ran.words.clone()),
        },
    };
    let mut template = Map::new();
    match agent {
        Some(agent) if agent.command.is_none() || rest.len() < 2 => {
            template.insert("agent".into(), json!(agent.name));
            template.insert("task".into(), json!(rest.join(" ")));
        }
        Some(agent) => {
            let text = format!("the agent `{}` is a program and takes one task", agent.name);
            return Err(Failure::usage(text).hint("put the task in quotes"));
        }
        None => {
            let argv = match rest.as_slice() {
                [line] if run::is_line(line) => {
                    vec!["sh".to_owned(), "-c".to_owned(), line.clone()]
                }
                _ => rest,
            };
            template.insert("agent".into(), json!(remote.agent_of_commands().await?.name));
            template.insert("command".into(), json!(argv));
        }
    }
    if let Some(sandbox) = ran.sandbox {
        template.insert("sandbox".into(), json!(spelled(sandbox)));
    }
    if let Some(project) = project {
        template.insert("project".into(), json!(project));
    }
    Ok(template)
}

async fn next(cx: &Context, remote: &Remote, name: Option<&str>, count: u32) -> Outcome {
    let found = match name {
        Some(name) => vec![remote.client().resource_fetch(KIND, name).await?],
        None => resource::listed(remote, KIND, &ResourceListQuery::default()).await?,
    };
    let mut ticks = Vec::new();
    for one in &found {
        let Ok(spec) = RitualSpec::read(&one.spec) else { continue };
        if spec.suspend {
            if name.is_some() {
                cx.out.note(&format!("it is paused: `overmind cron resume {}`", one.metadata.name));
            }
            continue;
        }
        let first = spec.schedule.next(cx.now());
        let all = std::iter::successors(first, |last| spec.schedule.next(*last));
        ticks.extend(
            all.take(count as usize)
                .map(|tick| (tick, one.metadata.name.clone(), spec.schedule.shown(tick))),
        );
    }
    ticks.sort();
    let values: Vec<Value> =
        ticks.iter().map(|(tick, name, _)| json!({"at": tick, "ritual": name})).collect();
    show::list(
        &cx.out,
        &values,
        |one| one["at"].as_str().unwrap_or_default().to_owned(),
        |_| {
            let mut table = Table::new(&["RITUAL", "NEXT", "IN"]);
            for (tick, name, shown) in &ticks {
                let until = when::span(tick.since(cx.now()));
                table.row(vec![cell(name), cell(shown), cell(until)]);
            }
            table
        },
        "nothing is to run",
    )?;
    Ok(Exit::Done)
}

async fn suspend(cx: &Context, remote: &Remote, name: &str, suspend: bool) -> Outcome {
    let change = |one: &mut Resource| {
        if let Some(fields) = one.spec.as_object_mut() {
            match suspend {
                true => drop(fields.insert("suspend".into(), json!(true))),
                false => drop(fields.remove("suspend")),
            }
        }
        Ok(())
    };
    let done = resource::change(remote, KIND, name, change).await?;
    let word = match (done.outcome.as_str(), suspend) {
        ("unchanged", true) => "was paused already",
        ("unchanged", false) => "was not paused",
        (_, true) => "paused",
        (_, false) => "resumed",
    };
    match cx.out.for_people() {
        true => cx.out.line(&format!("{} {word}", done.resource.reference()))?,
        false => show::one(&cx.out, &done.resource, &done.resource.reference(), Vec::new)?,
    }
    Ok(Exit::Done)
}

/// A quest of the ritual's, named by the second; one more a second waits for the next name.
async fn run_now(cx: &Context, remote: &Remote, name: &str) -> Outcome {
    let ritual = remote.client().resource_fetch(KIND, name).await?;
    let template = ritual.spec.get("template").cloned().unwrap_or_else(|| json!({}));
    let second = cx.now().as_micros().div_euclid(1_000_000);
    let short: String = ritual.metadata.name.chars().take(200).collect();
    let mut labels = ritual.metadata.labels.clone();
    if name.len() <= MAX_PART {
        labels.insert("overmind/manual".to_owned(), "true".to_owned());
    }
    for further in 0..10 {
        let quest = match further {
            0 => format!("{short}-manual-{second}"),
            _ => format!("{short}-manual-{second}-{further}"),
        };
        let document = json!({"apiVersion": "overmind/v1", "kind": "Quest", "metadata": {
            "name": quest, "labels": labels, "resourceVersion": "0",
            "ownerReferences": [{"uid": ritual.metadata.uid}],
        }, "spec": template});
        match remote.client().resource_put("quest", &quest, &document).await {
            Ok(made) => {
                show::one(&cx.out, &made.resource, &made.resource.reference(), || {
                    vec![("quest", cell(&quest))]
                })?;
                return Ok(Exit::Done);
            }
            Err(err) if err.status() == Some(409) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Err(Failure::new(Exit::Conflict, format!("{name} was started ten times within a second")))
}
