//! `overmind scale` and `overmind rollout`: fleets, lineages and sentinels, as kubectl's hands know deployments.

use std::fmt;
use std::time::Duration;

use clap::{Args, Subcommand};
use overmind_api::Resource;
use overmind_client::ResourceNews;
use overmind_core::fleet::FleetStatus;
use overmind_core::record::condition::{Condition, ConditionStatus};
use serde_json::{Value, json};

use crate::context::Context;
use crate::duration;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Table;
use crate::output::when;
use crate::remote::Remote;
use crate::resource;
use crate::show::{self, cell, dim};

/// The kinds with a template that is rolled out. A name without a kind is of the first.
const KINDS: [&str; 3] = ["fleet", "lineage", "sentinel"];

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  overmind scale fleet/web --replicas 5
  overmind scale web --replicas 0             ends all runs; their work stays on their branches
  overmind scale lineage/scribe --replicas 2")]
pub struct ScaleArgs {
    /// NAME or fleet/NAME of a fleet, or lineage/NAME
    pub fleet: String,
    /// Number of runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub replicas: u32,
    /// Only if this is the current number
    #[arg(long, value_name = "N")]
    pub current_replicas: Option<u32>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum RolloutCommand {
    /// Show the progress of a rollout until it is complete
    #[command(after_help = "\
Example:
  overmind rollout status fleet/web --timeout 5m")]
    Status {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
        /// Give up after: 5s, 10m
        #[arg(long, value_name = "DURATION", value_parser = duration::seconds)]
        timeout: Option<f64>,
        /// Show it once
        #[arg(long)]
        once: bool,
    },
    /// List the revisions of the template
    #[command(after_help = "\
Examples:
  overmind rollout history fleet/web
  overmind rollout history web --revision 2   that template")]
    History {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
        /// Show the template of this one
        #[arg(long, value_name = "N")]
        revision: Option<u32>,
    },
    /// Go back to an earlier template; this creates a new revision
    #[command(after_help = "\
Examples:
  overmind rollout undo fleet/web
  overmind rollout undo web --to-revision 2")]
    Undo {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
        /// Revision [default: the previous one]
        #[arg(long, value_name = "N")]
        to_revision: Option<u32>,
    },
    /// Pause a rollout: changes of the template wait
    #[command(after_help = "\
Example:
  overmind rollout pause fleet/web")]
    Pause {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
    },
    /// Resume a rollout
    #[command(after_help = "\
Example:
  overmind rollout resume fleet/web")]
    Resume {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
    },
    /// Replace all runs, one after the other
    #[command(after_help = "\
Example:
  overmind rollout restart fleet/web")]
    Restart {
        /// NAME or fleet/NAME of a fleet, or lineage/NAME, sentinel/NAME
        fleet: String,
    },
}

/// A fleet, a lineage or a sentinel.
struct Named {
    kind: &'static str,
    name: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// `fleet/web`, `deployment/web` and `web` are the same.
fn named(given: &str) -> Result<Named, Failure> {
    let (word, name) = given.split_once('/').unwrap_or((KINDS[0], given));
    match overmind_api::kind_of(word) {
        Ok(info) if KINDS.contains(&info.name) && !name.is_empty() => {
            Ok(Named { kind: info.name, name: name.to_owned() })
        }
        Ok(_) | Err(_) => Err(Failure::usage(format!(
            "`{given}` is not a fleet, lineage or sentinel"
        ))
        .hint(
            "name one: fleet/NAME, lineage/NAME or sentinel/NAME; `overmind get fleets` lists them",
        )),
    }
}

fn field(one: &mut Resource) -> Result<&mut serde_json::Map<String, Value>, Failure> {
    let spec = one.spec.as_object_mut();
    spec.ok_or_else(|| Failure::failed("the server's fleet has no spec"))
}

/// # Errors
///
/// Returns an error if it could not be scaled.
pub(crate) async fn scale(cx: &Context, args: &ScaleArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let of = named(&args.fleet)?;
    if of.kind == "sentinel" {
        let text = format!("{of} has no replicas: it has one run on each hive that matches");
        return Err(Failure::usage(text).hint("change spec.selector: `overmind edit` or `apply`"));
    }
    let set = |one: &mut Resource| {
        let spec = field(one)?;
        if spec.contains_key("scale") {
            let text = format!("the number of runs of {of} follows its `spec.scale`");
            return Err(Failure::usage(text).hint(format!("overmind edit {of}")));
        }
        let now = spec.get("replicas").and_then(Value::as_u64).unwrap_or(1);
        if args.current_replicas.is_some_and(|wanted| u64::from(wanted) != now) {
            let text = format!("{of} has replicas: {now}");
            return Err(Failure::new(Exit::Conflict, text));
        }
        spec.insert("replicas".into(), json!(args.replicas));
        Ok(())
    };
    let done = resource::change(&remote, of.kind, &of.name, set).await?;
    told(cx, &done.resource, "scaled")
}

fn told(cx: &Context, one: &Resource, word: &str) -> Outcome {
    match cx.out.for_people() {
        true => cx.out.line(&format!("{} {word}", one.reference()))?,
        false => show::one(&cx.out, one, &one.reference(), Vec::new)?,
    }
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the command fails; a rollout that is not complete in time is [`Exit::Failed`].
pub(crate) async fn command(cx: &Context, command: RolloutCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        RolloutCommand::Status { fleet, timeout, once } => {
            let of = named(&fleet)?;
            let all = status(cx, &remote, &of, once);
            let Some(seconds) = timeout else { return all.await };
            match tokio::time::timeout(Duration::from_secs_f64(seconds), all).await {
                Ok(done) => done,
                Err(_) => {
                    let text = format!("{of} was not rolled out within {seconds} s");
                    let hint = format!("overmind describe {} {}", of.kind, of.name);
                    Err(Failure::failed(text).hint(hint))
                }
            }
        }
        RolloutCommand::History { fleet, revision } => {
            history(cx, &remote, &named(&fleet)?, revision).await
        }
        RolloutCommand::Undo { fleet, to_revision } => {
            undo(cx, &remote, &named(&fleet)?, to_revision).await
        }
        RolloutCommand::Pause { fleet } => paused(cx, &remote, &named(&fleet)?, true).await,
        RolloutCommand::Resume { fleet } => paused(cx, &remote, &named(&fleet)?, false).await,
        RolloutCommand::Restart { fleet } => {
            let at = cx.now().to_string();
            let set = |one: &mut Resource| {
                let template = field(one)?.get_mut("template").and_then(Value::as_object_mut);
                let template = template.ok_or_else(|| Failure::failed("it has no template"))?;
                template.insert("restartedAt".into(), json!(at));
                Ok(())
            };
            let of = named(&fleet)?;
            let done = resource::change(&remote, of.kind, &of.name, set).await?;
            told(cx, &done.resource, "restarted")
        }
    }
}

fn condition<'a>(status: &'a FleetStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|one| one.kind == kind)
}

/// The progress in one line, and whether the rollout has ended.
fn far(one: &Resource) -> (String, bool) {
    let status = FleetStatus::read(&one.status);
    if status.observed_generation < one.metadata.generation {
        return ("the change has not been processed yet".to_owned(), false);
    }
    let ready = condition(&status, "Ready");
    if ready.is_some_and(|ready| ready.status == ConditionStatus::True) {
        let text = format!("{} of {} are available", status.ready, status.replicas);
        return (format!("revision {} is rolled out: {text}", status.revision), true);
    }
    let waits = condition(&status, "Waiting");
    let waits = waits.filter(|waits| waits.status == ConditionStatus::True);
    let said = waits.or_else(|| condition(&status, "Progressing"));
    let text = said.map(|said| format!("{}: {}", said.reason, said.message)).unwrap_or_default();
    (text, said.is_some_and(|said| said.reason == "Paused"))
}

async fn status(cx: &Context, remote: &Remote, of: &Named, once: bool) -> Outcome {
    let (mut last, name) = (String::new(), &of.name);
    loop {
        let found = remote.client().resource_fetch(of.kind, name).await?;
        let mut tell = |one: &Resource| -> Result<bool, Failure> {
            let (text, done) = far(one);
            if text != last {
                match cx.out.for_people() {
                    true => cx.out.line(&text)?,
                    false => {
                        cx.out.streamed(&json!({of.kind: name, "status": text, "done": done}))?
                    }
                }
                last = text;
            }
            Ok(done)
        };
        if tell(&found)? || once {
            return Ok(Exit::Done);
        }
        let after = found.metadata.resource_version.clone();
        let mut stream = remote.client().resource_watch(of.kind, None, after, 10).await?;
        while let Some(news) = stream.next().await {
            match news {
                Ok(ResourceNews::Put(one)) if one.metadata.uid == found.metadata.uid => {
                    if tell(&one)? {
                        return Ok(Exit::Done);
                    }
                }
                Ok(ResourceNews::Gone(gone)) if gone.uid == found.metadata.uid => {
                    let text = format!("{of} was deleted");
                    return Err(Failure::new(Exit::NotFound, text));
                }
                Ok(_) => {}
                // It is read again.
                Err(_) => break,
            }
        }
    }
}

/// The packs of a fleet by revision.
async fn packs(remote: &Remote, of: &Named) -> Result<Vec<(u64, Resource)>, Failure> {
    let fleet = remote.client().resource_fetch(of.kind, &of.name).await?;
    let query = overmind_api::ResourceListQuery {
        owner: Some(fleet.metadata.uid),
        ..overmind_api::ResourceListQuery::default()
    };
    let found = resource::listed(remote, "pack", &query).await?;
    let revision = |one: &Resource| one.spec.get("revision").and_then(Value::as_u64);
    let mut packs: Vec<_> =
        found.into_iter().filter_map(|one| Some((revision(&one)?, one))).collect();
    packs.sort_by_key(|(revision, _)| *revision);
    Ok(packs)
}

fn of_revision(packs: Vec<(u64, Resource)>, of: &Named, wanted: u32) -> Result<Resource, Failure> {
    let known = packs.iter().map(|(revision, _)| revision.to_string()).collect::<Vec<_>>();
    let found = packs.into_iter().find(|(revision, _)| *revision == u64::from(wanted));
    found.map(|(_, pack)| pack).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("{of} has no revision {wanted}"))
            .hint(format!("it has {}", known.join(", ")))
    })
}

async fn history(cx: &Context, remote: &Remote, of: &Named, revision: Option<u32>) -> Outcome {
    let packs = packs(remote, of).await?;
    if let Some(revision) = revision {
        let pack = of_revision(packs, of, revision)?;
        cx.out.value(pack.spec.get("template").unwrap_or(&Value::Null))?;
        return Ok(Exit::Done);
    }
    let values: Vec<&Resource> = packs.iter().map(|(_, pack)| pack).collect();
    show::list(
        &cx.out,
        &values,
        |pack| pack.reference(),
        |_| {
            let mut table = Table::new(&["REVISION", "AGE", "AGENT", "PACK"]).right("REVISION");
            for (revision, pack) in &packs {
                let agent = pack.spec.pointer("/template/agent").and_then(Value::as_str);
                let age = when::ago(pack.metadata.creation_timestamp, cx.now());
                table.row(vec![
                    cell(revision.to_string()),
                    cell(age),
                    cell(agent.unwrap_or(crate::command::AGENT)),
                    dim(&pack.metadata.name),
                ]);
            }
            table
        },
        "no revision yet",
    )?;
    Ok(Exit::Done)
}

async fn undo(cx: &Context, remote: &Remote, of: &Named, to: Option<u32>) -> Outcome {
    let mut packs = packs(remote, of).await?;
    let pack = match to {
        Some(to) => of_revision(packs, of, to)?,
        None => {
            packs.pop();
            let before = packs.pop().map(|(_, pack)| pack);
            before.ok_or_else(|| {
                let text = format!("{of} has no revision before this one");
                Failure::new(Exit::NotFound, text)
            })?
        }
    };
    let template = pack.spec.get("template").cloned().unwrap_or(Value::Null);
    let set = |one: &mut Resource| {
        field(one)?.insert("template".into(), template.clone());
        Ok(())
    };
    let done = resource::change(remote, of.kind, &of.name, set).await?;
    let revision = pack.spec.get("revision").and_then(Value::as_u64).unwrap_or_default();
    let word = match done.outcome.as_str() {
        "unchanged" => format!("already has the template of revision {revision}"),
        _ => format!("goes back to the template of revision {revision}"),
    };
    told(cx, &done.resource, &word)
}

async fn paused(cx: &Context, remote: &Remote, of: &Named, paused: bool) -> Outcome {
    let set = |one: &mut Resource| {
        let spec = field(one)?;
        match paused {
            true => drop(spec.insert("paused".into(), json!(true))),
            false => drop(spec.remove("paused")),
        }
        Ok(())
    };
    let done = resource::change(remote, of.kind, &of.name, set).await?;
    let word = match (done.outcome.as_str(), paused) {
        ("unchanged", true) => "was paused already",
        ("unchanged", false) => "was not paused",
        (_, true) => "paused",
        (_, false) => "resumed",
    };
    told(cx, &done.resource, word)
}
