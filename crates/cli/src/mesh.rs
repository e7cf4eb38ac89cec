//! The mesh: shared state, topics, mail, permissions.

use std::io::Read as _;

use overmind_api::{
    AclEntry, AgentMessage, BlackboardEntry, BlackboardHistory, BlackboardListQuery,
    BlackboardPutQuery, CanQuery, Letter, LetterId, LetterIds, LetterListQuery, LetterReceive,
    MeshEvent, Permissions, SubscribeQuery,
};
use overmind_client::Page;
use overmind_core::acl;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::args::Format;
use crate::args_mesh::{
    AclCommand, AclPattern, CanArgs, MailCommand, MailIds, MeshCommand, MeshPutArgs, PublishArgs,
    SubscribeTopicArgs, Verb,
};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::clean;
use crate::output::table::Table;
use crate::output::when;
use crate::remote::Remote;
use crate::show::{self, cell, or_dash};

/// The number of times that a broken watch is resumed.
const RESUMES: u32 = 20;

/// JSON, or else a text.
fn value_of(given: &str) -> Result<Value, Failure> {
    let text = if given == "-" { stdin()? } else { given.to_owned() };
    Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|err| Failure::failed(format!("reading standard input: {err}")))?;
    Ok(text)
}

/// All pages, up to `limit`.
async fn gather<T: DeserializeOwned>(
    remote: &Remote,
    mut page: Page<T>,
    limit: u32,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    loop {
        let more = all.len() + page.items.len() < limit as usize;
        let next = if more { remote.client().page_next(&page).await? } else { None };
        all.extend(page.items);
        match next {
            Some(next) => page = next,
            None => break,
        }
    }
    all.truncate(limit as usize);
    Ok(all)
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn mesh(cx: &Context, command: MeshCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    match command {
        MeshCommand::Publish(args) => return publish(cx, &args).await,
        MeshCommand::Subscribe(args) => return subscribe_topic(cx, args).await,
        MeshCommand::Get { key } => {
            let entry = client.board_fetch(&key).await?;
            show::one(&cx.out, &entry, &entry.key, || fields(&entry))?;
        }
        MeshCommand::History { key } => history(cx, &client.board_history(&key).await?)?,
        MeshCommand::Put(MeshPutArgs { key, value, ttl, if_version, new }) => {
            let query = BlackboardPutQuery {
                ttl,
                version: if new { Some(0) } else { if_version },
                ..BlackboardPutQuery::default()
            };
            let entry = client.board_put(&key, &value_of(&value)?, &query).await?;
            show::one(&cx.out, &entry, &entry.key, || fields(&entry))?;
        }
        MeshCommand::List { prefix, limit } => {
            let query = BlackboardListQuery {
                prefix: Some(prefix),
                limit: Some(limit.min(1000)),
                ..BlackboardListQuery::default()
            };
            let all = gather(&remote, client.board_list(&query).await?, limit).await?;
            entries(cx, &all)?;
        }
        MeshCommand::Watch { prefix } => {
            let mut watch = client.board_watch(&prefix, RESUMES).await?;
            while let Some(change) = watch.next().await {
                let change = serde_json::to_string(&change?).unwrap_or_default();
                cx.out.line(&change)?;
            }
        }
        MeshCommand::Rm { key, if_version } => {
            client.board_delete(&key, if_version).await?;
            let done = json!({"ok": true, "key": key});
            show::one(&cx.out, &done, &key, || vec![("deleted", cell(key.as_str()))])?;
        }
        MeshCommand::Agents => {
            let agents = client.mesh_agents().await?;
            let empty = "there are no agents: overmind agent create";
            show::list(
                &cx.out,
                &agents,
                |agent| agent.name.clone(),
                |_| {
                    let mut table = Table::new(&["AGENT", "WAITING", "CAPABILITIES"]);
                    for agent in &agents {
                        table.row(vec![
                            cell(agent.name.as_str()),
                            cell(agent.waiting.to_string()),
                            cell(agent.capabilities.join(", ")),
                        ]);
                    }
                    table
                },
                empty,
            )?;
        }
    }
    Ok(Exit::Done)
}

fn fields(entry: &BlackboardEntry) -> Vec<(&'static str, (String, crate::output::table::Tone))> {
    vec![
        ("key", cell(entry.key.as_str())),
        ("value", cell(entry.value.to_string())),
        ("version", cell(entry.version.to_string())),
        ("written by", cell(entry.written_by.as_str())),
        ("updated at", cell(entry.updated_at.to_string())),
        ("expires at", or_dash(entry.expires_at.map(|at| at.to_string()))),
    ]
}

/// Shows the changes of a key. As a value, with whether there may be more.
fn history(cx: &Context, past: &BlackboardHistory) -> Result<(), Failure> {
    if matches!(cx.out.format, Format::Json | Format::Yaml) {
        cx.out.value(&show::to_value(past))?;
        return Ok(());
    }
    show::list(
        &cx.out,
        &past.changes,
        |one| one.version.to_string(),
        |wide| {
            let run: &[&str] = if wide { &["RUN"] } else { &[] };
            let names = [&["VERSION", "CHANGE", "BY", "AGE"], run].concat();
            let mut table = Table::new(&names).right("VERSION");
            for one in &past.changes {
                let mut row = vec![
                    cell(one.version.to_string()),
                    cell(one.change.as_str()),
                    or_dash(one.by.clone()),
                    cell(when::ago(one.at, cx.now())),
                ];
                if wide {
                    row.push(or_dash(one.run_id.map(|id| id.to_string())));
                }
                table.row(row);
            }
            table
        },
        "no change of this key is among the newest events of the mesh",
    )?;
    if past.truncated && !past.changes.is_empty() {
        cx.out.note(
            "there may be older changes: the list has at most 100, among the newest 5,000 events of \
             the mesh",
        );
    }
    Ok(())
}

fn entries(cx: &Context, all: &[BlackboardEntry]) -> Result<(), Failure> {
    show::list(
        &cx.out,
        all,
        |entry| entry.key.clone(),
        |wide| {
            let mut table = Table::new(&["KEY", "VERSION", "WRITTEN BY", "VALUE"]);
            for entry in all {
                let value = entry.value.to_string();
                table.row(vec![
                    cell(entry.key.as_str()),
                    cell(entry.version.to_string()),
                    cell(entry.written_by.as_str()),
                    cell(if wide { value } else { clean::cut(&value, 60).into_owned() }),
                ]);
            }
            table
        },
        "no key has this prefix, or you may not read it",
    )
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn publish(cx: &Context, args: &PublishArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let event = MeshEvent {
        id: None,
        topic: args.topic.clone(),
        source: None,
        payload: value_of(&args.payload)?,
        timestamp: None,
    };
    let done = remote.client().topic_publish(&event).await?;
    let id = done.id.map(|id| id.to_string()).unwrap_or_default();
    show::one(&cx.out, &done, &id, || {
        vec![
            ("event", cell(id.as_str())),
            ("notified", cell(done.subscribers_notified.to_string())),
            ("full", cell(done.full.join(", "))),
        ]
    })?;
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn subscribe_topic(cx: &Context, args: SubscribeTopicArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    let SubscribeTopicArgs { topic, agent, remove } = args;
    let Some(topic) = topic else {
        let all = client.topic_list(agent.as_deref()).await?;
        show::list(
            &cx.out,
            &all,
            |one| one.topic.clone(),
            |_| {
                let mut table = Table::new(&["TOPIC", "AGENT", "SINCE"]);
                for one in &all {
                    table.row(vec![
                        cell(one.topic.as_str()),
                        cell(one.agent_id.to_string()),
                        cell(one.created_at.to_string()),
                    ]);
                }
                table
            },
            "there are no subscriptions",
        )?;
        return Ok(Exit::Done);
    };
    let wish = SubscribeQuery { topic: topic.clone(), agent_id: agent };
    if remove {
        let done = client.topic_unsubscribe(&wish).await?;
        show::one(&cx.out, &done, &topic, || {
            vec![("unsubscribed", cell(done.unsubscribed.to_string()))]
        })?;
        return Ok(if done.unsubscribed { Exit::Done } else { Exit::NotFound });
    }
    let done = client.topic_subscribe(&wish).await?;
    show::one(&cx.out, &done, &topic, || vec![("subscribed", cell(topic.as_str()))])?;
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn mail(cx: &Context, command: MailCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    match command {
        MailCommand::Send { to, message, kind, reply_to, ttl } => {
            let message =
                AgentMessage { reply_to, ttl, ..AgentMessage::new(to, kind, value_of(&message)?) };
            let sent = client.message_send(&message).await?;
            show::one(&cx.out, &sent, &sent.id.to_string(), || {
                vec![("message", cell(sent.id.to_string())), ("to", cell(sent.to.as_str()))]
            })?;
        }
        MailCommand::List { agent, dead, limit } => {
            let query = LetterListQuery {
                agent_id: agent,
                dead: dead.then_some(true),
                limit: Some(limit.min(1000)),
                cursor: None,
            };
            let all = gather(&remote, client.message_list(&query).await?, limit).await?;
            letters(cx, &all)?;
        }
        MailCommand::Read { agent, limit, wait, ack } => {
            let wish =
                LetterReceive { agent_id: agent.clone(), limit: Some(limit), wait_ms: wait * 1000 };
            let all = client.message_receive(&wish).await?;
            letters(cx, &all)?;
            if ack && !all.is_empty() {
                let ids = all.iter().map(|letter| letter.id).collect();
                client.message_ack(&LetterIds { agent_id: agent, ids }).await?;
            }
        }
        MailCommand::Ack(MailIds { ids, agent }) => {
            let asked = LetterIds { agent_id: agent, ids: parsed(&ids)? };
            let done = client.message_ack(&asked).await?;
            return told(cx, &done.ids, asked.ids.len(), &done);
        }
        MailCommand::Requeue(MailIds { ids, agent }) => {
            let asked = LetterIds { agent_id: agent, ids: parsed(&ids)? };
            let done = client.message_requeue(&asked).await?;
            return told(cx, &done.ids, asked.ids.len(), &done);
        }
    }
    Ok(Exit::Done)
}

fn parsed(ids: &[String]) -> Result<Vec<LetterId>, Failure> {
    let parse = |id: &String| {
        id.parse().map_err(|err| {
            Failure::usage(format!("{err}")).hint("`overmind mail list` shows the ids")
        })
    };
    ids.iter().map(parse).collect()
}

fn told<T: serde::Serialize>(cx: &Context, ids: &[LetterId], asked: usize, done: &T) -> Outcome {
    let shown: Vec<String> = ids.iter().map(ToString::to_string).collect();
    show::one(&cx.out, done, &shown.join("\n"), || {
        vec![("done", cell(format!("{} of {asked}", ids.len())))]
    })?;
    Ok(if ids.len() == asked { Exit::Done } else { Exit::NotFound })
}

fn letters(cx: &Context, all: &[Letter]) -> Result<(), Failure> {
    show::list(
        &cx.out,
        all,
        |letter| letter.id.to_string(),
        |wide| {
            let mut table = Table::new(&["ID", "FROM", "TYPE", "STATE", "SENT", "PAYLOAD"]);
            for letter in all {
                let payload = letter.payload.to_string();
                let kind = letter.topic.as_ref().unwrap_or(&letter.kind);
                table.row(vec![
                    cell(letter.id.to_string()),
                    cell(letter.from_agent.as_str()),
                    cell(kind.as_str()),
                    cell(letter.why_dead.as_ref().unwrap_or(&letter.state).as_str()),
                    cell(letter.timestamp.to_string()),
                    cell(if wide { payload } else { clean::cut(&payload, 60).into_owned() }),
                ]);
            }
            table
        },
        "no messages wait",
    )
}

fn verb_of(verb: Verb) -> acl::Verb {
    match verb {
        Verb::Message => acl::Verb::Message,
        Verb::Publish => acl::Verb::Publish,
        Verb::Subscribe => acl::Verb::Subscribe,
        Verb::Read => acl::Verb::Read,
        Verb::Write => acl::Verb::Write,
        Verb::Api => acl::Verb::Api,
        Verb::Model => acl::Verb::Model,
        Verb::Spawn => acl::Verb::Spawn,
    }
}

/// # Errors
///
/// Returns an error if the command fails; a denial is [`Exit::Denied`].
pub async fn can(cx: &Context, args: CanArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let CanArgs { agent, verb, object } = args;
    let query = CanQuery {
        agent: (agent != "me").then_some(agent),
        verb: verb_of(verb).as_str().to_owned(),
        object,
    };
    let can = remote.client().acl_can(&query).await?;
    let word = if can.allowed { "allowed" } else { "denied" };
    show::one(&cx.out, &can, word, || {
        vec![
            ("verdict", cell(word)),
            ("rule", cell(can.rule.as_str())),
            ("ask for", or_dash(can.ask_for.clone())),
        ]
    })?;
    Ok(if can.allowed { Exit::Done } else { Exit::Denied })
}

/// # Errors
///
/// Returns an error if the command fails.
pub async fn acl(cx: &Context, command: AclCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    let client = remote.client();
    match command {
        AclCommand::Can(args) => return can(cx, args).await,
        AclCommand::List => {
            let all = client.acl_list().await?.entries;
            show::list(
                &cx.out,
                &all,
                |entry| entry.agent.clone(),
                |_| {
                    let mut table = Table::new(&["AGENT", "FROM", "MAY"]);
                    for entry in &all {
                        table.row(vec![
                            cell(entry.agent.as_str()),
                            cell(entry.origin.as_str()),
                            cell(summary(&entry.permissions)),
                        ]);
                    }
                    table
                },
                "there are no entries: agents may do nothing in the mesh; `overmind acl allow` adds one",
            )?;
        }
        AclCommand::Show { agent } => {
            let found = client.acl_effective(&agent).await?;
            show::one(&cx.out, &found, &found.agent, || {
                let mut lines = vec![("agent", cell(found.agent.as_str()))];
                for layer in &found.layers {
                    let entry = layer.entry.as_deref().unwrap_or("(no entry: nothing)");
                    let may = summary(&layer.permissions);
                    lines.push(("layer", cell(format!("{}: {entry}: {may}", layer.agent))));
                }
                lines
            })?;
        }
        AclCommand::Set { agent, file } => {
            let text = if file.as_os_str() == "-" {
                stdin()?
            } else {
                std::fs::read_to_string(&file)
                    .map_err(|err| Failure::failed(format!("reading {}: {err}", file.display())))?
            };
            let permissions: Permissions = serde_json::from_str(&text)
                .map_err(|err| Failure::usage(format!("{}: {err}", file.display())))?;
            changed(cx, &client.acl_put(&agent, &permissions, None).await?, &agent)?;
        }
        AclCommand::Allow(AclPattern { agent, verb, pattern }) => {
            edit(
                cx,
                &remote,
                &agent,
                |list| {
                    if !list.contains(&pattern) {
                        list.push(pattern.clone());
                    }
                    true
                },
                verb,
            )
            .await?;
        }
        AclCommand::Revoke(AclPattern { agent, verb, pattern }) => {
            edit(
                cx,
                &remote,
                &agent,
                |list| {
                    let before = list.len();
                    list.retain(|known| *known != pattern);
                    before != list.len()
                },
                verb,
            )
            .await?;
        }
        AclCommand::Rm { agent } => changed(cx, &client.acl_delete(&agent).await?, &agent)?,
    }
    Ok(Exit::Done)
}

/// Changes one list of an entry: the current list, or an empty one.
async fn edit(
    cx: &Context,
    remote: &Remote,
    agent: &str,
    change: impl FnOnce(&mut Vec<String>) -> bool,
    verb: Verb,
) -> Result<(), Failure> {
    let all = remote.client().acl_list().await?;
    let own = all.entries.into_iter().find(|entry: &AclEntry| entry.agent == agent);
    let mut permissions: acl::Permissions =
        own.map(|entry| entry.permissions.into()).unwrap_or_default();
    if !change(permissions.of_mut(verb_of(verb))) {
        let message = format!("`{agent}` has no such pattern of its own");
        return Err(Failure::new(Exit::NotFound, message).hint("overmind acl list"));
    }
    let permissions = Permissions::from(permissions);
    let done = remote.client().acl_put(agent, &permissions, Some(all.version)).await?;
    changed(cx, &done, agent)
}

fn changed(cx: &Context, done: &overmind_api::AclChanged, agent: &str) -> Result<(), Failure> {
    show::one(&cx.out, done, agent, || {
        vec![("entry", cell(agent)), ("version", cell(done.version.to_string()))]
    })
}

fn summary(permissions: &Permissions) -> String {
    let own = acl::Permissions::from(permissions.clone());
    let lists = acl::Verb::ALL.into_iter().filter(|verb| !own.of(*verb).is_empty());
    let lists: Vec<String> =
        lists.map(|verb| format!("{verb} {}", own.of(verb).join(" "))).collect();
    if lists.is_empty() { "nothing".to_owned() } else { lists.join("; ") }
}
