//! `/board`: the mesh, with shared state, agents and their topics, messages, and permissions.

use askama::Template;
use http::StatusCode;
use overmind_api::{BlackboardEntry, BlackboardHistory, Can, Letter, MeshAgent, Subscription};
use overmind_view::{
    BoardRow, BoardValue, KeyHistory, LetterRow, MayRow, MeshAgentRow, clean, tree,
};

use crate::form::encoded;
use crate::page::{Frame, Html, html};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Keys and messages per page.
const KEYS: usize = 500;
const LETTERS: usize = 50;
/// The operations that permissions name.
const VERBS: [&str; 8] =
    ["message", "publish", "subscribe", "read", "write", "api", "model", "spawn"];

#[derive(Template)]
#[template(path = "mesh.html")]
struct Page {
    frame: Frame,
    prefix: String,
    rows: Vec<BoardRow>,
    /// The query of this page of keys, which the links to histories keep.
    here: String,
    history: Option<KeyHistory>,
    /// Whether the history is of a key that is not among the rows.
    apart: bool,
    /// The query of the next page of keys.
    next: Option<String>,
    agents: Vec<MeshAgentRow>,
    /// The agent whose messages are shown, and the messages.
    mailbox: Option<(String, Vec<LetterRow>)>,
    verbs: Vec<(&'static str, bool)>,
    /// The question about permissions: the agent and the operation.
    asked: (String, String),
    may: Option<MayRow>,
}

impl Page {
    /// Whether the history that is shown is this key's.
    fn shows(&self, one: &BoardValue) -> bool {
        self.history.as_ref().is_some_and(|past| past.id == one.id)
    }
}

/// Shows the page `/board`.
pub(crate) async fn show(ask: &Ask<'_>) -> Result<Html, Refusal> {
    let now = crate::lists::time(ask, None).await;
    let prefix = ask.query.get("prefix");
    let mut here = String::new();
    for name in ["prefix", "cursor"] {
        if !ask.query.get(name).is_empty() {
            here.push_str(&format!("{name}={}&", encoded(ask.query.get(name))));
        }
    }
    let target = format!("/mesh/blackboard?{here}limit={KEYS}");
    let reply = ask.port.call(ask.secret, Call::get(target)).await;
    let next = reply.next().map(|cursor| format!("?cursor={cursor}&prefix={}", encoded(prefix)));
    let mut refusal = None;
    let entries: Vec<BlackboardEntry> = match reply.value() {
        Ok(entries) => entries,
        // A prefix that is no key is shown where it was typed.
        Err(wrong) if wrong.status.is_client_error() && !prefix.is_empty() => {
            refusal = Some(wrong);
            Vec::new()
        }
        Err(wrong) => return Err(wrong),
    };
    // The list contains the position to continue even if nothing follows.
    let next = next.filter(|_| entries.len() >= KEYS);
    let mut history = None;
    let key = ask.query.get("history");
    if !key.is_empty() {
        let key: Vec<String> = key.split('/').map(encoded).collect();
        let call = Call::get(format!("/mesh/history/{}", key.join("/")));
        match ask.port.call(ask.secret, call).await.value::<BlackboardHistory>() {
            Ok(past) => history = Some(KeyHistory::new(&past, now)),
            Err(wrong) => refusal = Some(wrong),
        }
    }
    let call = Call::get("/mesh/agents?details=true");
    let agents: Vec<MeshAgent> = ask.port.call(ask.secret, call).await.value()?;
    let call = Call::get("/mesh/subscriptions");
    let topics: Vec<Subscription> =
        ask.port.call(ask.secret, call).await.value().unwrap_or_default();
    let mut mailbox = None;
    let of = ask.query.get("of");
    if !of.is_empty() {
        let call = Call::get(format!("/mesh/messages?agent_id={}&limit={LETTERS}", encoded(of)));
        match ask.port.call(ask.secret, call).await.value::<Vec<Letter>>() {
            Ok(letters) => {
                let rows = letters.iter().map(|letter| LetterRow::new(letter, now)).collect();
                let name = agents.iter().find(|agent| agent.id.to_string() == of);
                let name = name.map_or(of, |agent| agent.name.as_str());
                mailbox = Some((clean::line(name).into_owned(), rows));
            }
            Err(wrong) => refusal = Some(wrong),
        }
    }
    let (who, verb, object) =
        (ask.query.get("agent"), ask.query.get("verb"), ask.query.get("object"));
    let mut may = None;
    if !(who.is_empty() || verb.is_empty() || object.is_empty()) {
        let (who, verb, object) = (encoded(who), encoded(verb), encoded(object));
        let call = Call::get(format!("/mesh/can?agent={who}&verb={verb}&object={object}"));
        match ask.port.call(ask.secret, call).await.value::<Can>() {
            Ok(can) => may = Some(MayRow::new(&can)),
            Err(wrong) => refusal = Some(wrong),
        }
    }
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let rows = tree(&entries, now);
    let listed = |past: &KeyHistory| entries.iter().any(|entry| entry.key == past.id);
    let apart = history.as_ref().is_some_and(|past| !listed(past));
    let page = Page {
        frame: Frame::new("Mesh", "/board", ask.visitor, ask.secret, refusal),
        prefix: prefix.to_owned(),
        rows,
        here,
        history,
        apart,
        next,
        agents: agents.iter().map(|agent| MeshAgentRow::new(agent, &topics)).collect(),
        mailbox,
        verbs: VERBS.iter().map(|word| (*word, *word == verb)).collect(),
        asked: (who.to_owned(), object.to_owned()),
        may,
    };
    Ok(html(status, &page))
}
