//! `/settings`: the server's health and backup, and the policy with *Explain a call*. The pages for
//! keys and tool servers are in [`crate::settings_admin`].

use askama::Template;
use http::StatusCode;
use overmind_api::{
    Agent, AuditReport, BackupDone, Leaks, Loop, PolicyExplained, SandboxLevel, Status, VaultInfo,
};
use overmind_view::{ExplainedCall, HealthData, HealthPage, PolicyRow, bytes, clean};
use serde_json::{Map, Value, json};

use crate::form::Fields;
use crate::page::{Frame, Html, html};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// The pages of the section: title, path, and whether only admins may read it.
const TABS: [(&str, &str, bool); 5] = [
    ("Health", "/settings", false),
    ("Policy", "/settings/policy", false),
    ("Tool servers", "/settings/tools", false),
    ("Models and keys", "/settings/models", true),
    ("Users", "/settings/keys", true),
];

/// Returns the tabs that the visitor may open: title, path, and whether it is the current one.
pub(crate) fn tabs(ask: &Ask<'_>, here: &str) -> Vec<(&'static str, &'static str, bool)> {
    let rules = ask.visitor.rules();
    let open = TABS.into_iter().filter(|(_, _, admin)| rules || !admin);
    open.map(|(title, path, _)| (title, path, path == here)).collect()
}

/// Returns the frame of a page of the section.
pub(crate) fn frame(ask: &Ask<'_>, refusal: Option<Refusal>) -> (StatusCode, Frame) {
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    (status, Frame::new("Settings", "/settings", ask.visitor, ask.secret, refusal))
}

pub(crate) fn wrong(message: impl Into<String>) -> Refusal {
    Refusal { status: StatusCode::UNPROCESSABLE_ENTITY, message: message.into() }
}

#[derive(Template)]
#[template(path = "settings_health.html")]
struct Health {
    frame: Frame,
    tabs: Vec<(&'static str, &'static str, bool)>,
    page: HealthPage,
    /// Whether the whole log was checked.
    verified: bool,
    /// The typed path of the backup.
    path: String,
}

/// The result of a form on the page.
#[derive(Default)]
pub(crate) struct Done<'a> {
    refusal: Option<Refusal>,
    said: Option<String>,
    audit: Option<AuditReport>,
    fields: Option<&'a Fields>,
}

/// Shows the page `/settings`.
pub(crate) async fn health(ask: &Ask<'_>, done: Done<'_>) -> Result<Html, Refusal> {
    let get = |target: &'static str| ask.port.call(ask.secret, Call::get(target));
    let status: Status = get("/api/status").await.value()?;
    let loops: Vec<Loop> = get("/api/loops").await.value().unwrap_or_default();
    let vault: Option<VaultInfo> = get("/api/vault").await.value().ok();
    // Reads the server's disk, so only users who may repair it wait for that.
    let leaks: Option<Leaks> = match ask.visitor.changes() {
        true => get("/api/rooms/leaks").await.value().ok(),
        false => None,
    };
    let Done { refusal, said, audit, fields } = done;
    let data = HealthData {
        loops: &loops,
        vault: vault.as_ref(),
        leaks: leaks.as_ref(),
        audit: audit.as_ref(),
    };
    let page = HealthPage::new(&status, &data);
    let (code, mut frame) = frame(ask, refusal);
    frame.said = said;
    let path = fields.map_or("", |fields| fields.get("path")).to_owned();
    let tabs = tabs(ask, "/settings");
    Ok(html(code, &Health { frame, tabs, page, verified: audit.is_some(), path }))
}

/// Checks the whole log, or writes a backup.
pub(crate) async fn act(ask: &Ask<'_>, verb: &str, fields: &Fields) -> Result<Html, Refusal> {
    let mut done = Done { fields: Some(fields), ..Done::default() };
    if verb == "verify" {
        let call = Call::get("/api/audit/verify");
        match ask.port.call(ask.secret, call).await.value::<AuditReport>() {
            Ok(report) => done.audit = Some(report),
            Err(refusal) => done.refusal = Some(refusal),
        }
    } else {
        let call = Call::post("/api/backup", json!({ "path": fields.get("path") }));
        match ask.port.call(ask.secret, call).await.value::<BackupDone>() {
            Ok(backup) => {
                let path = clean::line(&backup.path);
                let size = bytes(backup.bytes);
                done.said = Some(format!("The backup is at {path} on the server, {size}."));
                done.fields = None;
            }
            Err(refusal) => done.refusal = Some(refusal),
        }
    }
    health(ask, done).await
}

#[derive(Template)]
#[template(path = "settings_policy.html")]
struct PolicyPage {
    frame: Frame,
    tabs: Vec<(&'static str, &'static str, bool)>,
    policy: Option<PolicyRow>,
    /// Names of agents, and whether each is selected.
    agents: Vec<(String, bool)>,
    sandboxes: Vec<(&'static str, bool)>,
    /// The values in the form: command, tool, arguments.
    typed: (String, String, String),
    /// The selected options: worktree, untrusted, private.
    ticked: (bool, bool, bool),
    said: Option<ExplainedCall>,
}

/// Shows the page `/settings/policy`. With fields, it also shows the policy's decision about the
/// call that they describe.
pub(crate) async fn policy(ask: &Ask<'_>, fields: Option<&Fields>) -> Result<Html, Refusal> {
    let get = |target: &'static str| ask.port.call(ask.secret, Call::get(target));
    let status: Status = get("/api/status").await.value()?;
    let agents: Vec<Agent> = get("/api/agents?limit=1000").await.value().unwrap_or_default();
    let mut said = None;
    let mut refusal = None;
    if let Some(fields) = fields {
        let explained = match question(fields) {
            Ok(body) => {
                let call = Call::post("/api/policy/explain", body);
                ask.port.call(ask.secret, call).await.value::<PolicyExplained>()
            }
            Err(refusal) => Err(refusal),
        };
        match explained {
            Ok(explained) => said = Some(ExplainedCall::new(&explained)),
            Err(why) => refusal = Some(why),
        }
    }
    let of = |name: &str| fields.map_or("", |fields| fields.raw(name));
    let on = |name: &str, first: bool| fields.map_or(first, |fields| fields.get(name) == "on");
    let (code, frame) = frame(ask, refusal);
    let names = agents.iter().map(|agent| {
        let name = clean::line(&agent.name).into_owned();
        let chosen = agent.name == of("agent");
        (name, chosen)
    });
    let levels = SandboxLevel::ALL.iter().map(|one| (one.as_str(), one.as_str() == of("sandbox")));
    let page = PolicyPage {
        frame,
        tabs: tabs(ask, "/settings/policy"),
        policy: status.policy.as_ref().map(PolicyRow::new),
        agents: names.collect(),
        sandboxes: levels.collect(),
        typed: (of("command").to_owned(), of("tool").to_owned(), of("args").to_owned()),
        ticked: (on("worktree", true), on("untrusted", false), on("private", false)),
        said,
    };
    Ok(html(code, &page))
}

/// Converts a form to a request of the API.
///
/// # Errors
///
/// Returns the mistake if there is neither a command nor a tool, if there are both, or if the
/// arguments are not JSON.
fn question(fields: &Fields) -> Result<Value, Refusal> {
    let mut body = Map::new();
    match (fields.get("command"), fields.get("tool")) {
        ("", "") => return Err(wrong("write a command, or name a tool under Another tool")),
        (_, "") => {
            body.insert("command".to_owned(), fields.raw("command").into());
        }
        ("", tool) => {
            body.insert("tool".to_owned(), tool.into());
            if !fields.get("args").is_empty() {
                let args = serde_json::from_str::<Value>(fields.get("args"));
                let args =
                    args.map_err(|err| wrong(format!("the arguments are not JSON: {err}")))?;
                body.insert("args".to_owned(), args);
            }
        }
        (_, _) => return Err(wrong("write a command or name a tool, not both")),
    }
    for name in ["agent", "sandbox"] {
        if !fields.get(name).is_empty() {
            body.insert(name.to_owned(), fields.get(name).into());
        }
    }
    for name in ["worktree", "untrusted", "private"] {
        body.insert(name.to_owned(), (fields.get(name) == "on").into());
    }
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_an_explain_request_of_the_api() {
        let read = |text: &str| question(&Fields::parse(text));
        let body = read("command=rm+-rf+src&tool=&agent=fixer&sandbox=&worktree=on").unwrap();
        let want = json!({"command": "rm -rf src", "agent": "fixer", "worktree": true,
            "untrusted": false, "private": false});
        assert_eq!(body, want);
        let body = read("command=&tool=read_file&args=%7B%22path%22%3A%22a%22%7D").unwrap();
        assert_eq!((&body["tool"], &body["args"]["path"]), (&json!("read_file"), &json!("a")));
        assert!(read("").unwrap_err().message.contains("write a command"));
        assert!(read("command=ls&tool=x").unwrap_err().message.contains("not both"));
        assert!(read("tool=x&args=a").unwrap_err().message.contains("not JSON"));
    }
}
