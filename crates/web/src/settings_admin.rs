//! Pages of `/settings`: MCP servers with their tools, models with their keys, and API keys.

use askama::Template;
use http::StatusCode;
use overmind_api::{
    Key, KeyCreated, McpServers, ProviderKeyView, Role, SecretInfo, Status, VaultInfo,
};
use overmind_view::{KeysPage, Pill, ProviderRow, SecretRow, ServerRow, clean, vault};
use serde_json::{Value, json};

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::settings::{frame, tabs, wrong};
use crate::site::Ask;

/// Providers of models whose key the server may have: the name in the API, and the name for people.
const PROVIDERS: [(&str, &str); 3] =
    [("anthropic", "Anthropic"), ("openai", "OpenAI"), ("deepseek", "DeepSeek")];

#[derive(Template)]
#[template(path = "settings_tools.html")]
struct Tools {
    frame: Frame,
    tabs: Vec<(&'static str, &'static str, bool)>,
    servers: Vec<ServerRow>,
    /// The values in the form: id, command, arguments.
    typed: (String, String, String),
    open: bool,
}

/// Shows the page `/settings/tools`.
pub(crate) async fn tools(
    ask: &Ask<'_>,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let call = Call::get("/api/settings/mcp/servers");
    let all: McpServers = ask.port.call(ask.secret, call).await.value()?;
    let open = failed.as_ref().is_some_and(|(_, fields)| !fields.get("command").is_empty());
    let typed = failed.as_ref().map_or_else(Default::default, |(_, fields)| {
        let of = |name: &str| fields.raw(name).to_owned();
        (of("id"), of("command"), of("args"))
    });
    let (code, frame) = frame(ask, failed.map(|(refusal, _)| refusal));
    let servers = all.servers.iter().map(ServerRow::new).collect();
    let tabs = tabs(ask, "/settings/tools");
    Ok(html(code, &Tools { frame, tabs, servers, typed, open }))
}

/// Adds or removes a server, approves one or all of its tools, or revokes an approval.
pub(crate) async fn tools_act(ask: &Ask<'_>, verb: &str, fields: &Fields) -> Result<Html, Refusal> {
    let base = format!("/api/settings/mcp/servers/{}", encoded(fields.get("id")));
    let call = match verb {
        "add" => {
            let lines = fields.raw("args").lines().map(str::trim).filter(|line| !line.is_empty());
            let args: Vec<&str> = lines.collect();
            let body = json!({"id": fields.get("id"), "command": fields.get("command"),
                "args": args, "enabled": true});
            Call::post("/api/settings/mcp/servers", body)
        }
        "remove" => Call::delete(base),
        "pin" => {
            let mut body = json!({});
            for (key, name) in [("tool", "tool"), ("hash", "hash")] {
                if !fields.get(name).is_empty() {
                    body[key] = json!(fields.get(name));
                }
            }
            Call::post(format!("{base}/pin"), body)
        }
        _ => Call::post(format!("{base}/unpin"), json!({ "tool": fields.get("tool") })),
    };
    match ask.port.call(ask.secret, call).await.check() {
        Ok(()) => Ok(see_other("/settings/tools")),
        Err(refusal) => tools(ask, Some((refusal, fields))).await,
    }
}

#[derive(Template)]
#[template(path = "settings_models.html")]
struct Models {
    frame: Frame,
    tabs: Vec<(&'static str, &'static str, bool)>,
    providers: Vec<ProviderRow>,
    /// The model APIs that programs of runs can use here without a provider key.
    answers: String,
    vault: (Pill, String),
    secrets: Vec<SecretRow>,
    /// The typed name. A value is never shown again.
    name: String,
}

/// Shows the page `/settings/models`.
pub(crate) async fn models(
    ask: &Ask<'_>,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let get = |target: String| ask.port.call(ask.secret, Call::get(target));
    let mut providers = Vec::new();
    for (id, name) in PROVIDERS {
        let key: ProviderKeyView = get(format!("/api/settings/{id}-key")).await.value()?;
        providers.push(ProviderRow::new(id, name, &key));
    }
    let status: Status = get("/api/status".to_owned()).await.value()?;
    let info: VaultInfo = get("/api/vault".to_owned()).await.value()?;
    let secrets: Vec<SecretInfo> =
        get("/api/vault/secrets?limit=1000".to_owned()).await.value().unwrap_or_default();
    let name = match &failed {
        Some((_, fields)) => fields.get("name").to_owned(),
        None => ask.query.get("set").to_owned(),
    };
    let (code, mut frame) = frame(ask, failed.map(|(refusal, _)| refusal));
    frame.said = match ask.query.get("did") {
        "set" => Some("The secret is in the vault.".to_owned()),
        "removed" => Some("The secret is removed.".to_owned()),
        _ => None,
    };
    let page = Models {
        frame,
        tabs: tabs(ask, "/settings/models"),
        providers,
        answers: clean::line(&status.answers.join(", ")).into_owned(),
        vault: vault(&info),
        secrets: secrets.iter().map(|one| SecretRow::new(one, status.now)).collect(),
        name,
    };
    Ok(html(code, &page))
}

/// Sets or removes a secret of the vault.
pub(crate) async fn models_act(
    ask: &Ask<'_>,
    verb: &str,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let name = fields.get("name");
    let target = format!("/api/vault/secrets/{}", encoded(name));
    let call = match (verb, name, fields.get("value")) {
        (_, "", _) => Err(wrong("name the secret")),
        ("set", _, "") => Err(wrong("enter the value of the secret")),
        ("set", _, value) => Ok(Call::put(target, json!({ "value": value }))),
        _ => Ok(Call::delete(target)),
    };
    let done = match call {
        Ok(call) => ask.port.call(ask.secret, call).await.check(),
        Err(refusal) => Err(refusal),
    };
    match (done, verb) {
        (Ok(()), "set") => Ok(see_other("/settings/models?did=set")),
        (Ok(()), _) => Ok(see_other("/settings/models?did=removed")),
        (Err(refusal), _) => models(ask, Some((refusal, fields))).await,
    }
}

#[derive(Template)]
#[template(path = "settings_keys.html")]
struct Keys {
    frame: Frame,
    tabs: Vec<(&'static str, &'static str, bool)>,
    page: KeysPage,
    /// The query of the next page.
    next: Option<String>,
    /// The name and secret of the key that was just created. The secret is shown only this once.
    made: Option<(String, String)>,
    name: String,
    roles: Vec<(&'static str, &'static str, bool)>,
}

/// The roles and scopes of a key, each with its purpose.
const ROLES: [(Role, &str); 6] = [
    (Role::Viewer, "reads everything, changes nothing"),
    (Role::Operator, "also runs agents, answers and decides"),
    (Role::Admin, "also keys, policy, secrets and the host"),
    (Role::Runs, "runs alone: starts, answers, reads them"),
    (Role::Mcp, "tools over MCP alone"),
    (Role::Model, "calls of models alone"),
];

/// Shows the page `/settings/keys`.
pub(crate) async fn keys(
    ask: &Ask<'_>,
    made: Option<KeyCreated>,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let mut target = "/api/keys?limit=1000".to_owned();
    if !ask.query.get("cursor").is_empty() {
        target.push_str(&format!("&cursor={}", encoded(ask.query.get("cursor"))));
    }
    let reply = ask.port.call(ask.secret, Call::get(target)).await;
    let next = reply.next().map(|cursor| format!("?cursor={cursor}"));
    let keys: Vec<Key> = reply.value()?;
    let now = crate::lists::time(ask, None).await;
    let (name, role) = failed
        .as_ref()
        .map_or(("", "viewer"), |(_, fields)| (fields.get("name"), fields.get("role")));
    let roles = ROLES.map(|(one, what)| (one.as_str(), what, one.as_str() == role));
    let name = name.to_owned();
    let (code, mut frame) = frame(ask, failed.map(|(refusal, _)| refusal));
    if ask.query.get("did") == "revoked" {
        frame.said = Some("The key is revoked, and whatever it had opened is closed.".to_owned());
    }
    let page = Keys {
        frame,
        tabs: tabs(ask, "/settings/keys"),
        page: KeysPage::new(&keys, now),
        next,
        made: made.map(|made| (clean::line(&made.key.name).into_owned(), made.secret)),
        name,
        roles: roles.into(),
    };
    Ok(html(code, &page))
}

/// Creates a key and shows its secret in this answer only, or revokes a key.
pub(crate) async fn keys_act(ask: &Ask<'_>, verb: &str, fields: &Fields) -> Result<Html, Refusal> {
    if verb == "revoke" {
        let call = Call::delete(format!("/api/keys/{}", encoded(fields.get("id"))));
        return match ask.port.call(ask.secret, call).await.check() {
            Ok(()) => Ok(see_other("/settings/keys?did=revoked")),
            Err(refusal) => keys(ask, None, Some((refusal, fields))).await,
        };
    }
    let body: Value = json!({"name": fields.get("name"), "role": fields.get("role")});
    match ask.port.call(ask.secret, Call::post("/api/keys", body)).await.value::<KeyCreated>() {
        Ok(made) => keys(ask, Some(made), None).await,
        Err(refusal) => keys(ask, None, Some((refusal, fields))).await,
    }
}

/// Refuses a page that needs an admin to others, before anything is read.
pub(crate) fn admins_only(ask: &Ask<'_>) -> Result<(), Refusal> {
    if ask.visitor.rules() {
        return Ok(());
    }
    let message =
        format!("`{}` is not an admin: these settings need the role admin", ask.visitor.name);
    Err(Refusal { status: StatusCode::FORBIDDEN, message })
}
