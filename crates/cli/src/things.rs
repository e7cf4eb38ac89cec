//! Tools, memory, keys, and `get`: the smaller nouns.

use std::io::Read as _;

use clap::ValueEnum as _;
use overmind_api::{KeyCreate, MemoryItem, MemorySearch, MemoryStore, Role, ToolCallRequest};
use overmind_core::memory::MemoryFilter;
use serde_json::{Value, json};

use crate::args::Format;
use crate::args_more::{KeyCommand, Kind, MemoryCommand, ToolCommand, spelled};
use crate::args_resource::GetArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::ids;
use crate::output::table::{Table, Tone};
use crate::output::{clean, when};
use crate::remote::Remote;
use crate::show::{self, cell, dim};

/// # Errors
///
/// Returns an error if the command fails; a tool that answered with an error is [`Exit::Failed`].
pub async fn tool(cx: &Context, command: ToolCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        ToolCommand::List => tools(cx, &remote).await?,
        ToolCommand::Call { run, tool, args } => {
            let args: Value = serde_json::from_str(&args).map_err(|err| {
                Failure::usage(format!("the arguments are not JSON: {err}"))
                    .hint("quote them for the shell: '{\"path\":\"README.md\"}'")
            })?;
            let run = remote.find_run(&run).await?;
            let request = ToolCallRequest { tool_name: tool, args };
            let result = remote.tool_call(&run, &request).await?;
            cx.out.value(&result)?;
            if result.get("ok").and_then(Value::as_bool) != Some(true) {
                return Ok(Exit::Failed);
            }
        }
    }
    Ok(Exit::Done)
}

async fn tools(cx: &Context, remote: &Remote) -> Result<(), Failure> {
    let tools = remote.tools().await?;
    show::list(
        &cx.out,
        &tools,
        |tool| tool.name.clone(),
        |wide| {
            let mut table = Table::new(&["NAME", "CLASS", "DESCRIPTION"]);
            for tool in &tools {
                let text = if wide {
                    tool.description.as_str().into()
                } else {
                    clean::cut(&tool.description, 80)
                };
                let class = if tool.internal {
                    dim(format!("{} (always)", tool.class))
                } else {
                    cell(tool.class.as_str())
                };
                table.row(vec![cell(&tool.name), class, cell(text)]);
            }
            table
        },
        "this server has no tools",
    )
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn memory(cx: &Context, command: MemoryCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        MemoryCommand::Add { text, collection, metadata, ttl, supersedes, key } => {
            let text = if text == "-" { read_stdin()? } else { text };
            let metadata = match metadata {
                Some(text) => serde_json::from_str(&text).map_err(|err| {
                    Failure::usage(format!("--metadata is not JSON: {err}"))
                        .hint("quote it for the shell: '{\"by\":\"me\"}'")
                })?,
                None => json!({}),
            };
            let supersedes = match supersedes {
                Some(given) => Some(remote.find_memory(&given).await?),
                None => None,
            };
            let item = MemoryStore {
                metadata,
                ttl_seconds: ttl,
                supersedes,
                key,
                ..MemoryStore::new(collection, text)
            };
            let item = remote.memory_store(&item).await?;
            show::one(&cx.out, &item, &item.id.to_string(), || {
                vec![("memory", cell(item.id.to_string()))]
            })?;
        }
        MemoryCommand::Get { id } => {
            let item = remote.memory_fetch(&remote.find_memory(&id).await?).await?;
            let earlier = match &item.supersedes {
                // It may have been deleted or have expired.
                Some(id) if cx.out.for_people() => remote.memory_fetch(&id.to_string()).await.ok(),
                Some(_) | None => None,
            };
            let fields = || item_fields(&item, earlier.as_ref());
            show::one(&cx.out, &item, &item.id.to_string(), fields)?;
        }
        MemoryCommand::Reembed => {
            let mut all = 0;
            loop {
                let batch = remote.memory_reembed().await?;
                all += batch.done;
                if !batch.more {
                    break;
                }
                cx.out.detail(&format!("{all} texts have new vectors"));
            }
            let done = json!({"ok": true, "done": all});
            show::one(&cx.out, &done, &all.to_string(), || {
                vec![("new vectors", cell(all.to_string()))]
            })?;
        }
        MemoryCommand::Search { query, collection, top, filter, history } => {
            let filter = match filter {
                Some(text) => MemoryFilter::value_of(&text).map_err(|err| {
                    Failure::usage(format!("--{err}"))
                        .hint("for example: --filter lang=rust,year=2024")
                })?,
                None => json!({}),
            };
            let search =
                MemorySearch { filter, history, ..MemorySearch::new(collection, query, top) };
            let found = remote.memory_search(&search).await?;
            show::list(
                &cx.out,
                &found,
                |found| found.item.id.to_string(),
                |wide| {
                    let mut table = Table::new(&["ID", "SCORE", "AGE", "TEXT"]).right("SCORE");
                    for found in &found {
                        let mut row = item_row(cx, &found.item, wide);
                        row.remove(1);
                        row.insert(1, cell(format!("{:.3}", found.score)));
                        table.row(row);
                    }
                    table
                },
                "there are no texts in this collection; `overmind memory list` shows all",
            )?;
        }
        MemoryCommand::List { collection, limit } => {
            memories(cx, &remote, collection.as_deref(), limit).await?;
        }
        MemoryCommand::Rm { ids } => {
            for given in ids {
                let id = remote.find_memory(&given).await?;
                remote.memory_delete(&id).await?;
                if cx.out.for_people() {
                    cx.out.note(&format!("removed {id}"));
                } else {
                    show::one(&cx.out, &json!({"ok": true, "id": id}), &id, Vec::new)?;
                }
            }
        }
    }
    Ok(Exit::Done)
}

async fn memories(
    cx: &Context,
    remote: &Remote,
    collection: Option<&str>,
    limit: u32,
) -> Result<(), Failure> {
    let items = remote.memories(collection, limit).await?;
    show::list(
        &cx.out,
        &items,
        |item| item.id.to_string(),
        |wide| {
            let mut table = Table::new(&["ID", "COLLECTION", "AGE", "TEXT"]);
            for item in &items {
                table.row(item_row(cx, item, wide));
            }
            table
        },
        "there are no texts yet; store one: overmind memory add \"…\"",
    )?;
    show::tell_limit(&cx.out, items.len(), limit);
    Ok(())
}

/// The trust level of a text, and its source.
fn origin(item: &MemoryItem) -> String {
    let from = item.source_event.as_ref().map(|event| format!(", from event {event}"));
    format!("{} ({}{})", item.author, item.trust, from.unwrap_or_default())
}

/// `earlier` is the text that it replaced, if that is still there.
fn item_fields(
    item: &MemoryItem,
    earlier: Option<&MemoryItem>,
) -> Vec<(&'static str, (String, Tone))> {
    let change = earlier.map(|earlier| format!(": {} → {}", origin(earlier), origin(item)));
    let mut fields = vec![
        ("memory", cell(item.id.to_string())),
        ("collection", cell(&item.collection)),
        ("stored", cell(item.created_at.to_string())),
        ("by", cell(format!("{} ({})", item.author, item.trust))),
        ("model", cell(format!("{}, {} dimensions", item.embedding_model, item.dims))),
        ("metadata", cell(item.metadata_json.to_string())),
    ];
    let further = [
        ("expires", item.expires_at.map(|at| at.to_string())),
        ("supersedes", item.supersedes.map(|id| format!("{id}{}", change.unwrap_or_default()))),
        ("superseded by", item.superseded_by.map(|id| id.to_string())),
        ("run", item.source_run_id.map(|id| id.to_string())),
        ("event", item.source_event.clone()),
    ];
    fields.extend(further.into_iter().filter_map(|(name, text)| Some((name, cell(text?)))));
    fields.push(("text", cell(&item.text)));
    fields
}

fn item_row(cx: &Context, item: &MemoryItem, wide: bool) -> Vec<(String, Tone)> {
    let id = item.id.to_string();
    if wide {
        let text = cell(&item.text);
        vec![cell(&id), cell(&item.collection), cell(item.created_at.to_string()), text]
    } else {
        vec![
            cell(ids::short(&id)),
            cell(&item.collection),
            cell(when::ago(item.created_at, cx.now())),
            cell(clean::cut(&item.text, 80)),
        ]
    }
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut text)
        .map_err(|err| Failure::failed(format!("reading the text from standard input: {err}")))?;
    Ok(text)
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn key(cx: &Context, command: KeyCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        KeyCommand::Create { name, role, scope } => {
            let word = scope.map_or_else(|| spelled(role), spelled);
            // The variable is not meant: it would bind keys silently.
            let colony = cx.global.colony.clone();
            let role = Role::parse(&word).expect("the words of the flag are the API's");
            let made = remote.key_create(&KeyCreate { name, role, colony }).await?;
            match cx.out.format {
                Format::Json | Format::Yaml => cx.out.value(&show::to_value(&made))?,
                // The secret is what scripts want: the id can be listed, this can not.
                Format::Name => cx.out.line(&made.secret)?,
                Format::Table | Format::Wide => {
                    cx.out.line(&made.secret)?;
                    let bound = made.key.colony_name.as_ref();
                    let bound = bound.map(|colony| format!(" in the colony {colony} alone"));
                    cx.out.note(&format!(
                        "key `{}` has the role {}{}; it is shown only once",
                        clean::line(&made.key.name),
                        made.key.role,
                        clean::line(&bound.unwrap_or_default())
                    ));
                }
            }
        }
        KeyCommand::List => keys(cx, &remote).await?,
        KeyCommand::Revoke { key } => {
            let id = remote.find_key(&key).await?;
            let key = remote.key_revoke(&id).await?;
            show::one(&cx.out, &key, &id, || vec![("key", cell(format!("{} revoked", key.name)))])?;
        }
    }
    Ok(Exit::Done)
}

async fn keys(cx: &Context, remote: &Remote) -> Result<(), Failure> {
    let keys = remote.keys(1000).await?;
    show::list(
        &cx.out,
        &keys,
        |key| key.id.to_string(),
        |wide| {
            let bound = keys.iter().any(|key| key.colony_name.is_some());
            let mut header = vec!["ID", "NAME", "ROLE", "STATE", "CREATED"];
            header.extend(bound.then_some("COLONY"));
            let mut table = Table::new(&header);
            for key in &keys {
                let id = key.id.to_string();
                let state = match key.revoked_at {
                    None => ("active".to_owned(), Tone::Good),
                    Some(at) if wide => (format!("revoked {at}"), Tone::Dim),
                    Some(at) => (format!("revoked {} ago", when::ago(at, cx.now())), Tone::Dim),
                };
                let colony = key.colony_name.as_deref().unwrap_or("-");
                let mut row = vec![
                    cell(if wide { &id } else { ids::short(&id) }),
                    cell(&key.name),
                    cell(key.role.as_str()),
                    state,
                    cell(if wide {
                        key.created_at.to_string()
                    } else {
                        when::ago(key.created_at, cx.now())
                    }),
                ];
                row.extend(bound.then(|| cell(colony)));
                table.row(row);
            }
            table
        },
        "no keys; create one: overmind key create NAME --role operator",
    )
}

/// Resources, keys and tools.
///
/// # Errors
///
/// Returns an error if the things could not be listed.
pub async fn get(cx: &Context, args: &GetArgs) -> Outcome {
    let all = args.all_colonies.then(|| cx.in_all_colonies());
    let cx = all.as_ref().unwrap_or(cx);
    let Ok(kind) = Kind::from_str(&args.kind, true) else {
        return crate::resource::get(cx, args).await;
    };
    if args.watch || args.selector.is_some() || !args.names.is_empty() {
        let text = format!("{} are listed without a name, -l and -w", args.kind);
        return Err(Failure::usage(text).hint("`overmind tool` and `overmind key` say more"));
    }
    let remote = Remote::connect(cx)?;
    match kind {
        Kind::Keys => keys(cx, &remote).await?,
        Kind::Tools => tools(cx, &remote).await?,
    }
    Ok(Exit::Done)
}
