//! `/runs` and `/agents`.

use askama::Template;
use http::StatusCode;
use overmind_api::{Agent, RunBasic, RunStatus};
use overmind_view::{AgentRow, AgentsPage, RunRow, RunsPage};

use crate::form::encoded;
use crate::page::{Frame, Html, html};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Rows per page.
const ROWS: usize = 100;

#[derive(Template)]
#[template(path = "runs.html")]
struct Runs {
    frame: Frame,
    page: RunsPage,
    name: String,
    agent: String,
    /// Each state, and whether it is selected.
    states: Vec<(&'static str, bool)>,
    filtered: bool,
    /// The query of the next page.
    next: Option<String>,
}

pub(crate) async fn runs(ask: &Ask<'_>) -> Result<Html, Refusal> {
    let (name, agent, state) =
        (ask.query.get("q"), ask.query.get("agent"), ask.query.get("status"));
    let mut target = format!("/api/runs?view=basic&limit={ROWS}");
    let mut filter = String::new();
    if !name.is_empty() {
        target.push_str(&format!("&name={}", encoded(&format!("{name}*"))));
        filter.push_str(&format!("&q={}", encoded(name)));
    }
    for (key, value) in [("agent", agent), ("status", state)] {
        if !value.is_empty() {
            let part = format!("&{key}={}", encoded(value));
            target.push_str(&part);
            filter.push_str(&part);
        }
    }
    if !ask.query.get("cursor").is_empty() {
        target.push_str(&format!("&cursor={}", encoded(ask.query.get("cursor"))));
    }
    let reply = ask.port.call(ask.secret, Call::get(target)).await;
    // A filter that the API refuses is shown where it was typed.
    let (rows, refusal) = match reply.value::<Vec<RunBasic>>() {
        Ok(rows) => (rows, None),
        Err(refusal) if refusal.status.is_client_error() => (Vec::new(), Some(refusal)),
        Err(refusal) => return Err(refusal),
    };
    let now = time(ask, rows.first().map(|run| run.created_at)).await;
    let next = reply.next().map(|cursor| format!("?cursor={cursor}{filter}"));
    let page = RunsPage {
        rows: rows.iter().map(|run| RunRow::new(run, now)).collect(),
        next: next.clone(),
    };
    let states = RunStatus::ALL.iter().map(|one| (one.as_str(), one.as_str() == state)).collect();
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let frame = Frame::new("Sessions", "/runs", ask.visitor, ask.secret, refusal);
    let (name, agent) = (name.to_owned(), agent.to_owned());
    let filtered = !filter.is_empty();
    Ok(html(status, &Runs { frame, page, name, agent, states, filtered, next }))
}

/// Returns the server's time, or the given time if the caller may not read it.
pub(crate) async fn time(
    ask: &Ask<'_>,
    or: Option<overmind_api::Timestamp>,
) -> overmind_api::Timestamp {
    let reply = ask.port.call(ask.secret, Call::get("/api/status")).await;
    let status = reply.value::<overmind_api::Status>().ok();
    status.map(|status| status.now).or(or).unwrap_or_default()
}

#[derive(Template)]
#[template(path = "agents.html")]
struct Agents {
    frame: Frame,
    page: AgentsPage,
}

pub(crate) async fn agents(ask: &Ask<'_>) -> Result<Html, Refusal> {
    let reply = ask.port.call(ask.secret, Call::get("/api/agents?limit=1000")).await;
    let agents: Vec<Agent> = reply.value()?;
    let now = time(ask, agents.first().map(|agent| agent.updated_at)).await;
    let rows = agents.iter().map(|agent| AgentRow::new(agent, now)).collect();
    let frame = Frame::new("Agents", "/agents", ask.visitor, ask.secret, None);
    Ok(html(StatusCode::OK, &Agents { frame, page: AgentsPage { rows } }))
}
