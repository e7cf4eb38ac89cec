//! `/runs/new`: starting a run.

use askama::Template;
use http::StatusCode;
use overmind_api::{Agent, AgentStatus, Run, SandboxLevel};
use overmind_view::clean;
use serde_json::{Value, json};

use crate::form::Fields;
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

#[derive(Template)]
#[template(path = "start.html")]
struct Page {
    frame: Frame,
    /// Ids and names of agents, and whether each is chosen.
    agents: Vec<(String, String, bool)>,
    sandboxes: Vec<(&'static str, bool)>,
    task: String,
    name: String,
    workspace: String,
    /// Only admins may name a directory of the host.
    names_project: bool,
}

pub(crate) async fn show(
    ask: &Ask<'_>,
    fields: &Fields,
    refusal: Option<Refusal>,
) -> Result<Html, Refusal> {
    if !ask.visitor.acts() {
        let message = format!("`{}` may look and not start runs", ask.visitor.name);
        return Err(Refusal { status: StatusCode::FORBIDDEN, message });
    }
    let reply = ask.port.call(ask.secret, Call::get("/api/agents?limit=1000")).await;
    let agents: Vec<Agent> = reply.value()?;
    let chosen = match fields.get("agent") {
        "" => ask.query.get("agent"),
        given => given,
    };
    let agents = agents.into_iter().filter(|agent| agent.status == AgentStatus::Active);
    let agents = agents.map(|agent| {
        let id = agent.id.to_string();
        let is = agent.name == chosen || id == chosen;
        (id, clean::line(&agent.name).into_owned(), is)
    });
    let sandbox = fields.get("sandbox");
    let level = |level: &SandboxLevel| (level.as_str(), level.as_str() == sandbox);
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let page = Page {
        frame: Frame::new("Start a run", "/runs", ask.visitor, ask.secret, refusal),
        agents: agents.collect(),
        sandboxes: SandboxLevel::ALL.iter().map(level).collect(),
        task: fields.raw("task").to_owned(),
        name: fields.get("name").to_owned(),
        workspace: fields.get("workspace").to_owned(),
        names_project: ask.visitor.role == overmind_api::Role::Admin,
    };
    Ok(html(status, &page))
}

pub(crate) async fn begin(ask: &Ask<'_>, fields: &Fields) -> Result<Html, Refusal> {
    let mut body = json!({"agent_id": fields.get("agent"), "task": fields.raw("task")});
    for key in ["name", "workspace", "sandbox"] {
        if let (false, Value::Object(body)) = (fields.get(key).is_empty(), &mut body) {
            body.insert(key.to_owned(), fields.get(key).into());
        }
    }
    let reply = ask.port.call(ask.secret, Call::post("/api/runs", body)).await;
    match reply.value::<Run>() {
        Ok(run) => Ok(see_other(&format!("/runs/{}", run.id))),
        Err(refusal) => show(ask, fields, Some(refusal)).await,
    }
}
