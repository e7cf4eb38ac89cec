//! `/runs/new`: starts a run.

use askama::Template;
use http::StatusCode;
use overmind_api::{Agent, AgentStatus, Resource, Run, SandboxLevel};
use overmind_view::clean;
use serde_json::{Map, Value, json};

use crate::form::Fields;
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// The command of an agent that runs its task as a shell command line.
const SHELL: [&str; 3] = ["sh", "-c", "{task}"];

#[derive(Template)]
#[template(path = "start.html")]
struct Page {
    frame: Frame,
    /// Ids and names of agents, the format of their task if it is not prose, and whether each is
    /// selected.
    agents: Vec<(String, String, &'static str, bool)>,
    sandboxes: Vec<(&'static str, bool)>,
    /// Names and directories of projects, and whether each is selected.
    projects: Vec<(String, String, bool)>,
    /// Names of contexts, and whether each is selected.
    contexts: Vec<(String, bool)>,
    /// Names of memory claims, and whether each is selected.
    claims: Vec<(String, bool)>,
    /// Labels as `key=value`, separated by commas.
    labels: String,
    task: String,
    /// The typed amount in US dollars.
    usd: String,
    name: String,
    workspace: String,
    /// Whether the visitor may name a directory of the host, as only admins may.
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
    // The agent of commands is made when it is first named, and is in the list from then on.
    drop(ask.port.call(ask.secret, Call::get("/api/agents/command")).await);
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
        let takes_line = agent.command.as_ref().is_some_and(|command| command.argv == SHELL);
        let kind = if takes_line { " (the task is a line for the shell)" } else { "" };
        (id, clean::line(&agent.name).into_owned(), kind, is)
    });
    let projects = named(ask, "project").await.into_iter().filter_map(|one| {
        let path = one.spec.get("path").and_then(Value::as_str)?.to_owned();
        let is = path == fields.get("project");
        Some((clean::line(&one.metadata.name).into_owned(), path, is))
    });
    let ticks = async |kind: &str, field: &'static str| -> Vec<(String, bool)> {
        let named = named(ask, kind).await.into_iter().map(|one| {
            let is = fields.all(field).any(|name| name == one.metadata.name);
            (one.metadata.name, is)
        });
        named.collect()
    };
    let contexts = ticks("context", "context").await;
    let claims = ticks("memoryclaim", "claim").await;
    let sandbox = fields.get("sandbox");
    let level = |level: &SandboxLevel| (level.as_str(), level.as_str() == sandbox);
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let page = Page {
        frame: Frame::new("Start a run", "/runs", ask.visitor, ask.secret, refusal),
        agents: agents.collect(),
        sandboxes: SandboxLevel::ALL.iter().map(level).collect(),
        projects: projects.collect(),
        contexts,
        claims,
        labels: fields.get("labels").to_owned(),
        task: fields.raw("task").to_owned(),
        usd: fields.get("usd").to_owned(),
        name: fields.get("name").to_owned(),
        workspace: fields.get("workspace").to_owned(),
        names_project: ask.visitor.role == overmind_api::Role::Admin,
    };
    Ok(html(status, &page))
}

pub(crate) async fn begin(ask: &Ask<'_>, fields: &Fields) -> Result<Html, Refusal> {
    let body = match draft(fields) {
        Ok(body) => body,
        Err(refusal) => return show(ask, fields, Some(refusal)).await,
    };
    let reply = ask.port.call(ask.secret, Call::post("/api/runs", body)).await;
    match reply.value::<Run>() {
        Ok(run) => Ok(see_other(&format!("/runs/{}", run.id))),
        Err(refusal) => show(ask, fields, Some(refusal)).await,
    }
}

/// Returns the resources of a kind; none if they may not be read.
async fn named(ask: &Ask<'_>, kind: &str) -> Vec<Resource> {
    let call = Call::get(format!("/api/resources/{kind}?limit=1000"));
    ask.port.call(ask.secret, call).await.value().unwrap_or_default()
}

/// Converts a form to a request of the API.
///
/// # Errors
///
/// Returns the mistake if a label is not `key=value`, or if there are both a project and a
/// directory.
fn draft(fields: &Fields) -> Result<Value, Refusal> {
    let wrong = |message: String| Refusal { status: StatusCode::UNPROCESSABLE_ENTITY, message };
    let mut body = Map::new();
    body.insert("agent_id".to_owned(), fields.get("agent").into());
    body.insert("task".to_owned(), fields.raw("task").into());
    let (project, path) = (fields.get("project"), fields.get("workspace"));
    if !project.is_empty() && !path.is_empty() {
        return Err(wrong("choose a project or name a directory, not both".to_owned()));
    }
    let workspace = if project.is_empty() { path } else { project };
    let given = [
        ("name", fields.get("name")),
        ("sandbox", fields.get("sandbox")),
        ("workspace", workspace),
    ];
    for (key, value) in given.into_iter().filter(|(_, value)| !value.is_empty()) {
        body.insert(key.to_owned(), value.into());
    }
    let usd = fields.get("usd");
    if !usd.is_empty() {
        let Some(usd) =
            usd.trim_start_matches('$').parse::<f64>().ok().filter(|usd| usd.is_finite())
        else {
            return Err(wrong(format!("`{usd}` is not an amount; write dollars, such as 2.50")));
        };
        body.insert("budget".to_owned(), json!({"usd": usd}));
    }
    let mut labels = Map::new();
    for part in fields.get("labels").split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(wrong(format!("`{part}` is not a label; write key=value")));
        };
        labels.insert(key.trim().to_owned(), value.trim().into());
    }
    if !labels.is_empty() {
        body.insert("labels".to_owned(), Value::Object(labels));
    }
    for (field, key) in [("context", "contexts"), ("claim", "memory_claims")] {
        let names: Vec<&str> = fields.all(field).filter(|name| !name.is_empty()).collect();
        if !names.is_empty() {
            body.insert(key.to_owned(), json!(names));
        }
    }
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_run_of_the_api() {
        let read = |text: &str| draft(&Fields::parse(text));
        let whole = read(
            "agent=sh&task=+x&name=&sandbox=namespace&project=/srv/web&workspace=&labels=app%3Dweb,+a%3D&context=b&context=c&claim=notes",
        );
        let want = json!({"agent_id": "sh", "task": " x", "sandbox": "namespace",
            "workspace": "/srv/web", "labels": {"app": "web", "a": ""}, "contexts": ["b", "c"],
            "memory_claims": ["notes"]});
        assert_eq!(whole.unwrap(), want);
        let bounded = read("agent=sh&task=&usd=%242.50").unwrap();
        assert_eq!(bounded["budget"], json!({"usd": 2.5}));
        for wrong in ["2,50", "much", "inf", "NaN"] {
            let refusal = read(&format!("agent=sh&task=&usd={wrong}")).unwrap_err();
            assert!(refusal.message.contains("is not an amount"), "{refusal:?}");
        }
        let least = read("agent=sh&task=").unwrap();
        assert_eq!(least, json!({"agent_id": "sh", "task": ""}));
        assert!(read("agent=sh&labels=app").unwrap_err().message.contains("`app` is not a label"));
        let both = read("agent=sh&project=/a&workspace=/b").unwrap_err();
        assert!(both.message.contains("not both"));
    }
}
