//! `/mesh/…`: shared state, messages, topics, and agents.
//!
//! Of the earlier fleet's paths `/mesh/api` is the vault's, and `/mesh/cron` and `/webhook/…` are
//! not there yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;
use overmind_api::{
    AgentHistory, AgentMessage, BlackboardEntry, BlackboardHistory, BlackboardRevision, Letter,
    LetterDone, LetterIds, LetterReceive, MeshAgent, MeshEvent, MessageReceived, Okay, Published,
    Register, Registered, SpawnDone, SpawnRequest, SubscribeQuery, Subscribed, Subscription,
    Unsubscribed,
};
#[cfg(feature = "openapi")]
use overmind_api::{BlackboardListQuery, BlackboardPutQuery, LetterListQuery};
use overmind_core::mesh::{BoardEntry, MeshSpawn};
use overmind_engine::{BoardChange, BoardWrite, LetterDraft};

use crate::cx::Cx;
use crate::extract::{
    AgentPath, AnyBody, Body, KeyOfBoard, LargeBody, Query, Who, if_match, parse_bool,
};
use crate::fault::Fault;
use crate::mesh_stream::BoardSource;
use crate::page::{Hex, Window, json, next_link};
use crate::proof::Proof;
use crate::sse;

fn entry(entry: &BoardEntry) -> Response {
    let mut response = json(&BlackboardEntry::from(entry.clone()));
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", entry.version)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Lists keys that begin with `prefix`, by key, as far as the caller may read them.
///
/// A page may be shorter than `limit`, or empty, and still have a next one.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/blackboard", tag = "mesh", params(BlackboardListQuery),
    responses(
        (status = 200, body = [BlackboardEntry]),
        (status = 403, description = "`Agent X cannot read P`"),
    )
))]
pub(crate) async fn board_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<Hex>::take(&mut query)?;
    let prefix = query.take("prefix").unwrap_or_default();
    let agent = query.take("agent_id");
    query.finish()?;
    let after = window.after.map(|Hex(key)| key);
    let found =
        cx.engine.board_list(&caller, agent.as_deref(), &prefix, after, window.limit).await?;
    let rows: Vec<BlackboardEntry> = found.entries.into_iter().map(Into::into).collect();
    let mut response = json(&rows);
    let link = found.next.and_then(|key| next_link(&uri, &Hex(key).to_string()));
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Reads a key.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/blackboard/{key}", tag = "mesh",
    params(("key" = String, Path, description = "With its slashes"), ("agent_id" = Option<String>, Query)),
    responses(
        (status = 200, body = BlackboardEntry),
        (status = 403, description = "`Agent X cannot read K`"),
        (status = 404, description = "`Key not found: K`, also when it has expired"),
    )
))]
pub(crate) async fn board_get(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    KeyOfBoard(key): KeyOfBoard,
    mut query: Query,
) -> Result<Response, Fault> {
    let agent = query.take("agent_id");
    query.finish()?;
    Ok(entry(&*cx.engine.board_get(&caller, agent.as_deref(), &key).await?))
}

/// Writes a key: the body is the value, any JSON of at most 256 KiB.
///
/// With `If-Match: "3"` or `version=3` only if the key stands at that version; with
/// `If-None-Match: *` or `version=0` only if it is not there. What is below `history/` is written
/// once.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/mesh/blackboard/{key}", tag = "mesh",
    params(("key" = String, Path, description = "With its slashes"), BlackboardPutQuery),
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses(
        (status = 200, body = BlackboardEntry),
        (status = 403, description = "`Agent X cannot write K`"),
        (status = 409, description = "It has another version, or is below `history/` and exists"),
        (status = 412, description = "Like 409, if a header required the version"),
        (status = 422, description = "The key, the value or the ttl is wrong"),
    )
))]
pub(crate) async fn board_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    KeyOfBoard(key): KeyOfBoard,
    headers: HeaderMap,
    mut query: Query,
    AnyBody(value): AnyBody,
) -> Result<Response, Fault> {
    let agent = query.take("agent_id");
    let ttl = query.take_parsed("ttl", "a number of seconds", |text| text.parse().ok())?;
    let workflow = query.take("workflow_id");
    let (version, by_header) = wanted_version(&headers, &mut query)?;
    query.finish()?;
    let write = BoardWrite { value, ttl, workflow, version, effect: None };
    let done = cx.engine.board_put(&caller, agent.as_deref(), &key, write).await;
    let done = done.map_err(Fault::from);
    let done = done.map_err(|fault| if by_header { fault.conflict_is_stale() } else { fault })?;
    Ok(entry(&done))
}

/// The version that a change requires, and whether a header gave it.
fn wanted_version(headers: &HeaderMap, query: &mut Query) -> Result<(Option<u64>, bool), Fault> {
    let wanted = "a version: a whole number from 0";
    let asked = query.take_parsed("version", wanted, |text| text.parse::<u64>().ok())?;
    let matched = if_match(headers)?.map(u64::from);
    let none = headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == b"*");
    let header = matched.or(none.then_some(0));
    match (asked, header) {
        (Some(_), Some(_)) => Err(Fault::invalid("version", "is said by a header already")),
        (asked, header) => Ok((asked.or(header), header.is_some())),
    }
}

/// Deletes a key. Keys below `history/` cannot be deleted.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/mesh/blackboard/{key}", tag = "mesh",
    params(("key" = String, Path, description = "With its slashes"),
        ("agent_id" = Option<String>, Query), ("version" = Option<u64>, Query)),
    responses(
        (status = 200, body = Okay),
        (status = 403, description = "`Agent X cannot write K`"),
        (status = 404, description = "`Key not found: K`"),
        (status = 409, description = "It has another version, or is below `history/`"),
    )
))]
pub(crate) async fn board_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    KeyOfBoard(key): KeyOfBoard,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Fault> {
    let agent = query.take("agent_id");
    let (version, by_header) = wanted_version(&headers, &mut query)?;
    query.finish()?;
    let done = cx.engine.board_delete(&caller, agent.as_deref(), &key, version).await;
    let done = done.map_err(Fault::from);
    done.map_err(|fault| if by_header { fault.conflict_is_stale() } else { fault })?;
    Ok(json(&Okay { ok: true }))
}

/// Lists the newest changes of a key, newest first, also of a key that was removed.
///
/// At most 100, among the newest 5,000 events of the mesh. Earlier values are not stored.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/history/{key}", tag = "mesh",
    params(("key" = String, Path, description = "With its slashes"), ("agent_id" = Option<String>, Query)),
    responses(
        (status = 200, body = BlackboardHistory),
        (status = 403, description = "`Agent X cannot read K`"),
        (status = 404, description = "`Key not found: K`: it does not exist, and no change of it is logged"),
    )
))]
pub(crate) async fn board_history(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    KeyOfBoard(key): KeyOfBoard,
    mut query: Query,
) -> Result<Response, Fault> {
    let agent = query.take("agent_id");
    query.finish()?;
    let past = cx.engine.board_history(&caller, agent.as_deref(), &key).await?;
    let revision = |one: BoardChange| {
        let BoardChange { version, change, by, session, bytes, at } = one;
        BlackboardRevision { version, change, by, run_id: session, bytes, at }
    };
    let changes = past.changes.into_iter().map(revision).collect();
    Ok(json(&BlackboardHistory { key, changes, truncated: past.truncated }))
}

/// Streams changes of keys that begin with `prefix`, as far as the caller may read them.
///
/// Begins now, or after `Last-Event-ID`. Each message is a `BlackboardChange`; a message without
/// data but with an id says how far the stream has looked. It ends, with an `error`, when the token
/// is worth nothing any more.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/watch", tag = "mesh",
    params(("prefix" = Option<String>, Query), ("last_event_id" = Option<u64>, Query),
        ("Last-Event-ID" = Option<u64>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 403, description = "`Agent X cannot read P`"))
))]
pub(crate) async fn board_watch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Fault> {
    let prefix = query.take("prefix").unwrap_or_default();
    let last = query.take("last_event_id");
    query.finish()?;
    let after = sse::resume_after(&headers, last.as_deref(), |text| text.parse().ok())?;
    let after = match after {
        Some(after) => after,
        None => cx.engine.mesh_head().await?,
    };
    // Refused here, and not inside the stream.
    cx.engine.board_changes(&caller, &prefix, after).await?;
    let source = BoardSource::new(prefix, after);
    Ok(sse::Stream::new(cx, proof, source).into_response())
}

/// Sends a message to an agent. It is durable when this answers, and delivered at least once.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/message", tag = "mesh", request_body = AgentMessage,
    responses(
        (status = 200, body = MessageReceived),
        (status = 403, description = "`F cannot message T`"),
        (status = 404, description = "`No agent found for target: T`"),
        (status = 503, description = "Its mailbox is full"),
    )
))]
pub(crate) async fn message_send(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<AgentMessage>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.check())?;
    let priority = body.priority();
    let AgentMessage { from_agent, to, kind, payload, workflow_id, reply_to, ttl, .. } = body;
    let draft = LetterDraft {
        to,
        kind,
        payload,
        workflow: workflow_id,
        reply_to,
        priority,
        ttl,
        effect: None,
    };
    let sent = cx.engine.letter_send(&caller, from_agent.as_deref(), draft).await?;
    let (from, kind) = (sent.from, sent.kind);
    Ok(json(&MessageReceived { received: true, from, kind, id: sent.id, to: sent.to }))
}

/// Lists letters in the order in which they came. It delivers no messages.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/messages", tag = "mesh", params(LetterListQuery),
    responses((status = 200, body = [Letter]))
))]
pub(crate) async fn message_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    mut query: Query,
) -> Result<Response, Fault> {
    let window = Window::<u64>::take(&mut query)?;
    let agent = query.take("agent_id");
    let dead = query.take_parsed("dead", "true or false", parse_bool)?.unwrap_or(false);
    query.finish()?;
    let (limit, after) = (window.limit, window.after.unwrap_or(0));
    let letters = cx.engine.letters_list(&caller, agent.as_deref(), dead, after, limit).await?;
    let now = cx.engine.now();
    // A page ends early when payloads are large, so only an empty one is the last.
    let last = letters.last().map(|letter| letter.place.to_string());
    let rows: Vec<Letter> = letters.into_iter().map(|letter| Letter::at(letter, now)).collect();
    let mut response = json(&rows);
    if let Some(link) = last.and_then(|cursor| next_link(&uri, &cursor)) {
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Hands out letters, oldest first. Whoever reads one acknowledges it in time, or it can be read
/// again: after 30 s, then after twice as long each time, and after 5 times it is dead.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/messages/receive", tag = "mesh", request_body = LetterReceive,
    responses((status = 200, body = [Letter]))
))]
pub(crate) async fn message_receive(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<LetterReceive>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let LetterReceive { agent_id, limit, wait_ms } = body.value;
    let wait = Duration::from_millis(wait_ms);
    let letters =
        cx.engine.letters_receive(&caller, agent_id.as_deref(), limit.unwrap_or(10), wait).await?;
    let now = cx.engine.now();
    let letters: Vec<Letter> = letters.into_iter().map(|letter| Letter::at(letter, now)).collect();
    Ok(json(&letters))
}

/// Acknowledges messages, also dead ones, and removes them.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/messages/ack", tag = "mesh", request_body = LetterIds,
    responses((status = 200, body = LetterDone))
))]
pub(crate) async fn message_ack(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<LetterIds>,
) -> Result<Response, Fault> {
    let LetterIds { agent_id, ids } = body.value;
    let ids = cx.engine.letters_acknowledge(&caller, agent_id.as_deref(), ids).await?;
    Ok(json(&LetterDone { ok: true, ids }))
}

/// Gives letters back, dead ones too: they can be read at once.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/messages/requeue", tag = "mesh", request_body = LetterIds,
    responses((status = 200, body = LetterDone))
))]
pub(crate) async fn message_requeue(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<LetterIds>,
) -> Result<Response, Fault> {
    let LetterIds { agent_id, ids } = body.value;
    let ids = cx.engine.letters_requeue(&caller, agent_id.as_deref(), ids).await?;
    Ok(json(&LetterDone { ok: true, ids }))
}

/// Publishes to a topic: one message for each agent with a matching subscription.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/publish", tag = "mesh", request_body = MeshEvent,
    responses(
        (status = 200, body = Published),
        (status = 403, description = "`Agent S cannot publish to T`"),
    )
))]
pub(crate) async fn topic_publish(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LargeBody(body): LargeBody<MeshEvent>,
) -> Result<Response, Fault> {
    let MeshEvent { topic, source, payload, .. } = body;
    let done = cx.engine.topic_publish(&caller, source.as_deref(), &topic, payload).await?;
    let overmind_engine::Published { id, notified, full } = done;
    Ok(json(&Published { subscribers_notified: notified, id, full }))
}

fn subscription(mut query: Query) -> Result<SubscribeQuery, Fault> {
    let topic = query.take("topic").ok_or_else(|| Fault::invalid("topic", "is required"))?;
    let agent_id = query.take("agent_id");
    query.finish()?;
    Ok(SubscribeQuery { topic, agent_id })
}

/// Subscribes an agent to a topic, or to a pattern of topics. It survives restarts.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/subscribe", tag = "mesh", params(SubscribeQuery),
    responses(
        (status = 200, body = Subscribed),
        (status = 403, description = "`Agent X cannot subscribe to T`"),
    )
))]
pub(crate) async fn topic_subscribe(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    let SubscribeQuery { topic, agent_id } = subscription(query)?;
    cx.engine.topic_subscribe(&caller, agent_id.as_deref(), &topic).await?;
    Ok(json(&Subscribed { subscribed: true }))
}

/// Takes a subscription back.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/mesh/subscribe", tag = "mesh", params(SubscribeQuery),
    responses((status = 200, body = Unsubscribed))
))]
pub(crate) async fn topic_unsubscribe(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    let SubscribeQuery { topic, agent_id } = subscription(query)?;
    let unsubscribed = cx.engine.topic_unsubscribe(&caller, agent_id.as_deref(), &topic).await?;
    Ok(json(&Unsubscribed { unsubscribed }))
}

/// Lists subscriptions: the caller's own, one agent's, or with a role all.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/subscriptions", tag = "mesh",
    params(("agent_id" = Option<String>, Query)),
    responses((status = 200, body = [Subscription]))
))]
pub(crate) async fn topic_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let agent = query.take("agent_id");
    query.finish()?;
    let all = cx.engine.topic_subscriptions(&caller, agent.as_deref()).await?;
    let all: Vec<Subscription> = all.iter().map(|one| Subscription::from(&**one)).collect();
    Ok(json(&all))
}

/// Remembers what an agent can do, and subscribes it to the topics that its permissions name
/// without a wildcard.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/register", tag = "mesh", request_body = Register,
    responses((status = 200, body = Registered))
))]
pub(crate) async fn register(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<Register>,
) -> Result<Response, Fault> {
    let Register { agent_id, capabilities, port: _ } = body.value;
    cx.engine.mesh_register(&caller, agent_id.as_deref(), capabilities).await?;
    Ok(json(&Registered { registered: true }))
}

/// Agents by name, each with where it is found; with `details=true` a list that says more.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/agents", tag = "mesh",
    params(("details" = Option<bool>, Query)),
    responses((status = 200, body = std::collections::BTreeMap<String, String>))
))]
pub(crate) async fn mesh_agent_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let details = query.take_parsed("details", "true or false", parse_bool)?.unwrap_or(false);
    query.finish()?;
    let agents = cx.engine.mesh_agents(&caller).await?;
    if details {
        let shown = agents.into_iter().map(|agent| {
            let overmind_engine::MeshAgent { id, name, capabilities, registered, waiting } = agent;
            MeshAgent { id, name, capabilities, registered, waiting }
        });
        return Ok(json(&shown.collect::<Vec<_>>()));
    }
    let shown: BTreeMap<String, String> =
        agents.into_iter().map(|agent| (agent.name, format!("/api/agents/{}", agent.id))).collect();
    Ok(json(&shown))
}

/// Starts a child run: of an existing agent, or of a new one with the caller's tools and limits.
///
/// A run's own token starts it beneath that run, at most 4 deep and 8 at once.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/spawn", tag = "mesh", request_body = SpawnRequest,
    responses(
        (status = 200, body = SpawnDone),
        (status = 403, description = "`Agent X cannot spawn A`"),
        (status = 409, description = "Too many children, or too deep"),
    )
))]
pub(crate) async fn spawn(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<SpawnRequest>,
) -> Result<Response, Fault> {
    let SpawnRequest { agent, role, spawned_by, system_prompt, model, ttl, task } = body.value;
    let role = role.unwrap_or_else(|| "assistant".to_owned());
    let model = (!model.is_empty()).then_some(model);
    let trace = caller.trace;
    let wish = MeshSpawn { agent, role, system_prompt, model, task, ttl, trace };
    let engine = cx.engine.clone();
    let work = async move { engine.spawn(&caller, spawned_by.as_deref(), wish).await };
    let done = cx.detached(work).await?;
    Ok(json(&SpawnDone {
        agent_id: done.agent,
        url: format!("/api/runs/{}", done.session.id),
        role: done.role,
        ready: true,
        spawned_by: done.spawned_by,
        ttl: done.ttl,
        run_id: done.session.id,
    }))
}

/// The latest actions of an agent.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/agents/{id}/history", tag = "mesh",
    params(("id" = String, Path, description = "An agent's id or name"),
        ("requesting_agent" = Option<String>, Query), ("days" = Option<u32>, Query)),
    responses(
        (status = 200, body = AgentHistory),
        (status = 403, description = "The caller cannot message the agent"),
        (status = 404, description = "`Agent not found: A`"),
    )
))]
pub(crate) async fn agent_history(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(id): AgentPath,
    mut query: Query,
) -> Result<Response, Fault> {
    let given = query.take("requesting_agent").filter(|given| !given.is_empty());
    // The last runs are listed, however old.
    let _ = query.take("days");
    query.finish()?;
    let (agent_id, role, logs) = cx.engine.mesh_history(&caller, given.as_deref(), &id).await?;
    Ok(json(&AgentHistory { agent_id, role, logs, memory: String::new() }))
}

#[cfg(test)]
mod tests {
    use super::Hex;

    #[test]
    fn a_key_cursor_round_trips() {
        for key in ["tasks/1", "context/München", ""] {
            assert_eq!(
                Hex(key.to_owned()).to_string().parse::<Hex>().map(|key| key.0),
                Ok(key.to_owned())
            );
        }
        for bad in ["6", "zz", "ff", "６６"] {
            assert!(bad.parse::<Hex>().is_err(), "{bad}");
        }
    }
}
