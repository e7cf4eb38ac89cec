//! Completions that know what there is: runs, agents, models, kinds and names of resources.
//!
//! The shells' scripts ask this program at each tab. It asks the server, and offers nothing of it
//! where no server answers in time: a tab never fails.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::builder::ValueHint;
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use overmind_api::{MAX_LIMIT, ResourceListQuery, RunBasic, RunStatus};
use overmind_core::budget::Prices as _;
use overmind_node::config::Env;
use overmind_node::config::settings::SETTINGS;

use crate::args::Global;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Remote;
use crate::{parse, session, whole};

/// The variable by which the shells' scripts ask.
pub const ASKS: &str = "_OVERMIND_COMPLETE";

/// Longest time that a tab waits for the server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Runs and names that are offered at most, newest first.
const MOST: u32 = 500;

/// The kinds of values that an argument accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Runs,
    /// Runs that have not ended.
    OpenRuns,
    /// Runs that wait for an answer.
    WaitingRuns,
    Agents,
    Models,
    /// `KIND`, `KIND/NAME`.
    Kinds,
    /// Names of the kind that precedes them.
    Names,
    Keys,
    Secrets,
    Servers,
    Loops,
    Crons,
    Budgets,
    Settings,
    Help,
}

/// Answers the shell, if it asks; `false` if it does not, and this is a usual start.
///
/// # Errors
///
/// When the shell is not known, or the answer cannot be written.
#[expect(clippy::disallowed_methods, reason = "the shell asks before there is a configuration")]
pub fn asked() -> Result<bool, Failure> {
    if std::env::var_os(ASKS).is_none() {
        return Ok(false);
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(grammar)
        .var(ASKS)
        .try_complete(args, here.as_deref())
        .map_err(|err| Failure::failed(err.to_string()))
}

/// Prints a shell's script, which asks this program at each tab.
///
/// # Errors
///
/// Returns an error for an unknown shell.
pub fn script(cx: &Context, shell: clap_complete::Shell) -> Outcome {
    let name = shell.to_string();
    let shells = clap_complete::env::Shells::builtins();
    let Some(shell) = shells.completer(&name) else {
        return Err(Failure::failed(format!("there are no completions for {name}")));
    };
    let mut text = Vec::new();
    shell.write_registration(ASKS, "overmind", "overmind", "overmind", &mut text)?;
    cx.out.text(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Done)
}

/// The whole grammar, in which arguments know what may stand there.
fn grammar() -> Command {
    known(built(), &[])
}

/// The whole grammar with what is else built only for the command that is said.
fn built() -> Command {
    let mut whole = whole::command();
    whole.build();
    whole
}

/// In place: the order of arguments is that of positions.
fn known(command: Command, path: &[String]) -> Command {
    let said: Vec<&str> = path.iter().map(String::as_str).collect();
    let command = command.mut_args(|arg| match source(&said, &arg) {
        Some(source) => {
            let completer = ArgValueCompleter::new(move |begun: &OsStr| offered(source, begun));
            arg.value_hint(ValueHint::Unknown).add(completer)
        }
        None => arg,
    });
    command.mut_subcommands(|below| {
        let path = [path, &[below.get_name().to_owned()]].concat();
        known(below, &path)
    })
}

/// The kind of values that an argument accepts, by the command and the argument's name.
fn source(path: &[&str], arg: &Arg) -> Option<Source> {
    let id = arg.get_id().as_str();
    Some(match (path, id) {
        (["run"], "words") | (_, "agent" | "agents") => Source::Agents,
        (_, "model") => Source::Models,
        (["stop" | "kill" | "cancel" | "attach" | "input"], "id" | "ids") => Source::OpenRuns,
        (["approve" | "deny" | "answer"], "id" | "ids") | (["inbox", "show"], "id") => {
            Source::WaitingRuns
        }
        (
            [
                "logs" | "events" | "send" | "top" | "monitor" | "info" | "result" | "subscribe"
                | "wait" | "replay" | "fork" | "work" | "done" | "undo" | "rm" | "url",
            ],
            "id" | "ids" | "run",
        )
        | (["diff"], "a" | "b")
        | (["artifact" | "tool" | "sandbox", _], "run" | "of")
        | (["run"], "parent")
        | (["ps"], "children") => Source::Runs,
        (["get" | "describe" | "delete" | "edit" | "label"], "kind") | (["explain"], "field") => {
            Source::Kinds
        }
        (["get" | "describe" | "delete" | "edit"], "name" | "names") | (["label"], "words") => {
            Source::Names
        }
        (["key", "revoke"], "key") => Source::Keys,
        (["vault", "rm" | "rotate"], "name") => Source::Secrets,
        (["mcp", _], "id") if path != ["mcp", "add"] => Source::Servers,
        (["loop", _], "name") => Source::Loops,
        (["cron", _], "name" | "names") if path != ["cron", "add"] => Source::Crons,
        (["budget", "rm"], "id") => Source::Budgets,
        (["config", _], "key" | "keys") => Source::Settings,
        (["help"], "words") | (["man"], "of") => Source::Help,
        _ => return None,
    })
}

/// Returns the existing names that begin with the typed text.
fn offered(source: Source, begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    // The meaning of the word before this one: words behind `--`.
    let args: Vec<OsString> =
        std::env::args_os().skip_while(|arg| arg.as_os_str() != "--").skip(1).collect();
    let found = match source {
        Source::Settings => SETTINGS.iter().map(|it| (it.key.into(), it.help.into())).collect(),
        Source::Help => help(),
        _ => asked_of_server(source, begun, &args).unwrap_or_default(),
    };
    let fitting = found.into_iter().filter(|(name, _): &(String, String)| name.starts_with(begun));
    fitting
        .map(|(name, about)| {
            let about = Some(about).filter(|about| !about.is_empty());
            CompletionCandidate::new(name).help(about.map(Into::into))
        })
        .collect()
}

fn help() -> Vec<(String, String)> {
    let groups = whole::GROUPS.iter().map(|group| (group.name.to_owned(), group.about.to_owned()));
    let whole = whole::command();
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
    let about = |command: &Command| command.get_about().map(ToString::to_string);
    let commands =
        shown.map(|command| (command.get_name().to_owned(), about(command).unwrap_or_default()));
    commands.chain(groups).collect()
}

fn asked_of_server(
    source: Source,
    begun: &str,
    args: &[OsString],
) -> Result<Vec<(String, String)>, Failure> {
    let cx = Context::new(global(args), Env::of_process())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(err.to_string()))?;
    runtime.block_on(async {
        let found = Box::pin(fetched(&cx, source, begun, args));
        tokio::time::timeout(PATIENCE, found).await.unwrap_or(Ok(Vec::new()))
    })
}

/// The options that select the server, as far as they are given.
fn global(args: &[OsString]) -> Global {
    let mut said: Vec<OsString> = vec!["overmind".into()];
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let named = ["--data", "--server", "--config", "--colony", "--namespace"]
            .into_iter()
            .find(|it| text.starts_with(it));
        match named {
            Some(name) if text == name => {
                said.extend([word.clone()].into_iter().chain(words.next().cloned()))
            }
            Some(_) => said.push(word.clone()),
            None => {}
        }
    }
    said.push("status".into());
    parse::quickly(&said).map_or_else(parse::no_globals, |cli| cli.global)
}

async fn fetched(
    cx: &Context,
    source: Source,
    begun: &str,
    args: &[OsString],
) -> Result<Vec<(String, String)>, Failure> {
    let names = |all: Vec<String>| all.into_iter().map(|name| (name, String::new())).collect();
    if source == Source::Models {
        let config = cx.config(None)?;
        let table = overmind_node::app::models(&config, None)?.table();
        let priced = table.into_iter().map(|row| row.model).filter(|model| !model.contains('*'));
        let configured = config.providers.iter().flat_map(|provider| {
            provider.models.iter().map(|model| format!("{}:{model}", provider.name))
        });
        let mut all: Vec<String> = priced.chain(configured).collect();
        all.push("deterministic".to_owned());
        all.sort();
        all.dedup();
        return Ok(names(all));
    }
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    Ok(match source {
        Source::Runs | Source::OpenRuns | Source::WaitingRuns => {
            let statuses: Vec<RunStatus> = match source {
                Source::Runs => Vec::new(),
                Source::OpenRuns => {
                    RunStatus::ALL.iter().copied().filter(|it| !session::ended(*it)).collect()
                }
                _ => vec![RunStatus::AwaitingInput, RunStatus::AwaitingApproval],
            };
            let runs: Vec<RunBasic> = remote.runs(&statuses, None, MOST).await?;
            let line = |run: RunBasic| {
                let task = crate::output::clean::line(&run.task).into_owned();
                (
                    run.name,
                    format!(
                        "{}: {}",
                        session::state(run.status),
                        crate::output::clean::cut(&task, 50)
                    ),
                )
            };
            runs.into_iter().map(line).collect()
        }
        Source::Agents => {
            let agents = remote.agents(MOST).await?;
            let mut all: Vec<(String, String)> =
                agents.into_iter().map(|agent| (agent.name, agent.model)).collect();
            for name in crate::command::built_in_names() {
                if !all.iter().any(|(known, _)| known == name) {
                    all.push((name.to_owned(), String::new()));
                }
            }
            all
        }
        Source::Kinds => match begun.split_once('/') {
            Some((kind, _)) => {
                let found = named(&remote, kind).await?;
                names(found.into_iter().map(|name| format!("{kind}/{name}")).collect())
            }
            None => {
                let kinds = client.kind_list().await?;
                names(kinds.into_iter().flat_map(|kind| [kind.name, kind.plural]).collect())
            }
        },
        Source::Names => match kind_said(args) {
            Some(kind) => names(named(&remote, &kind).await?),
            None => Vec::new(),
        },
        Source::Keys => {
            let keys = remote.keys(MOST).await?.into_iter();
            names(keys.filter(|key| key.revoked_at.is_none()).map(|key| key.name).collect())
        }
        Source::Secrets => {
            names(remote.secrets().await?.into_iter().map(|secret| secret.name).collect())
        }
        Source::Servers => {
            let all = remote.mcp_list().await?;
            names(all.iter().filter_map(|it| it["id"].as_str().map(str::to_owned)).collect())
        }
        Source::Loops => names(client.loop_list().await?.into_iter().map(|it| it.name).collect()),
        Source::Crons => names(named(&remote, "ritual").await?),
        Source::Budgets => names(crate::budget::scopes(&remote).await?),
        Source::Models | Source::Settings | Source::Help => Vec::new(),
    })
}

/// The names of a kind's resources.
async fn named(remote: &Remote, kind: &str) -> Result<Vec<String>, Failure> {
    let query =
        ResourceListQuery { limit: Some(MAX_LIMIT.min(MOST)), ..ResourceListQuery::default() };
    let page = remote.client().resource_list(kind, &query).await?;
    Ok(page.items.into_iter().map(|resource| resource.metadata.name).collect())
}

/// The kind in `get KIND NAME`: what follows the verb.
fn kind_said(args: &[OsString]) -> Option<String> {
    const VERBS: [&str; 5] = ["get", "describe", "delete", "edit", "label"];
    let mut words = args.iter().filter_map(|word| word.to_str());
    words.find(|word| VERBS.contains(word))?;
    words.find(|word| !word.starts_with('-')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn each_argument_with_a_name_has_completions() {
        grammar().debug_assert();
        let whole = built();
        let arg = |path: &[&str], id: &str| {
            let command = path.iter().fold(&whole, |command, name| {
                command.find_subcommand(name).unwrap_or_else(|| panic!("{path:?}"))
            });
            let arg = command.get_arguments().find(|arg| arg.get_id() == id);
            source(path, arg.unwrap_or_else(|| panic!("{path:?} {id}")))
        };
        for (path, id, wanted) in [
            (&["logs"][..], "id", Source::Runs),
            (&["done"], "ids", Source::Runs),
            (&["stop"], "ids", Source::OpenRuns),
            (&["approve"], "ids", Source::WaitingRuns),
            (&["run"], "agent", Source::Agents),
            (&["run"], "words", Source::Agents),
            (&["run"], "model", Source::Models),
            (&["agent", "create"], "model", Source::Models),
            (&["agent", "rm"], "agents", Source::Agents),
            (&["get"], "kind", Source::Kinds),
            (&["get"], "names", Source::Names),
            (&["mcp", "rm"], "id", Source::Servers),
            (&["vault", "rm"], "name", Source::Secrets),
            (&["loop", "run"], "name", Source::Loops),
            (&["cron", "pause"], "name", Source::Crons),
            (&["budget", "rm"], "id", Source::Budgets),
        ] {
            assert_eq!(arg(path, id), Some(wanted), "{path:?} {id}");
        }
        assert_eq!(arg(&["mcp", "add"], "id"), None);
        assert_eq!(arg(&["prune"], "dry_run"), None);
    }

    #[test]
    fn completion_uses_the_kind_and_the_server_typed_so_far() {
        let kind = |line| kind_said(&words(line));
        assert_eq!(kind("overmind get -w agents co").as_deref(), Some("agents"));
        assert_eq!(kind("overmind logs"), None);
        let said = global(&words("overmind --data /tmp/x get --server=unix:/s agents c"));
        assert_eq!(said.data.as_deref(), Some(std::path::Path::new("/tmp/x")));
        assert_eq!(said.server.as_deref(), Some("unix:/s"));
        assert_eq!(global(&words("overmind get --data")).data, None);
    }
}
