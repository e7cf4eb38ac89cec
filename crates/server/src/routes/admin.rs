//! The server itself: tools, events, settings, keys, state, audit, backup, retention.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use overmind_api::{
    AuditReport, BackupDone, BackupRequest, Event, Key, KeyCreate, KeyCreated, PruneDone,
    PruneRequest, Tool, Version,
};
#[cfg(feature = "openapi")]
use overmind_api::{ListQuery, ProviderKeyView, Status};
use overmind_core::ids::ApiKeyId;
use overmind_core::row::{ApiKey, Role};
use overmind_core::store::Page;
use overmind_engine::view::NewKey;

use crate::config::ProviderKey;
use crate::convert;
use crate::cx::Cx;
use crate::extract::{Body, KeyPath, Query, SettingPath, Who};
use crate::fault::Fault;
use crate::log_stream::LogSource;
use crate::page::{Window, json, list};
use crate::proof::Proof;
use crate::sse::{self, Resume};

/// Lists the registered tools by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/tools", tag = "server", responses((status = 200, body = [Tool]))
))]
pub(crate) async fn tool_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    caller.require(Role::Viewer)?;
    let tools: Vec<Tool> = cx.engine.tool_list().iter().map(Tool::from).collect();
    Ok(json(&tools))
}

/// Lists the events of all runs and of the system, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/events", tag = "server", params(ListQuery),
    responses((status = 200, body = [Event]))
))]
pub(crate) async fn event_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<u64>,
) -> Result<Response, Fault> {
    let limit = window.limit;
    let events = cx.engine.events(&caller, window.into()).await?;
    Ok(list(&uri, limit, events, |event| event.global.to_string(), Event::from))
}

/// Streams the events of all runs and of the system as server-sent events, as they come.
///
/// Each `data:` is an event, and its `id:` is its number in the whole log, to resume after
/// (`Last-Event-ID`); without one the stream begins with what comes next. It ends, with
/// `event: error` and the problem, when its token is worth nothing any more.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/events/stream", tag = "server",
    params(
        ("last_event_id" = Option<String>, Query, description = "As the header, for those who cannot set it"),
        ("Last-Event-ID" = Option<String>, Header, description = "Resume after this `id:`"),
    ),
    responses(
        (status = 200, description = "Each `data:` is an `Event`", body = String, content_type = "text/event-stream"),
        (status = 422, description = "The Last-Event-ID is wrong"),
    )
))]
pub(crate) async fn event_stream(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    proof: Proof,
    Resume(after): Resume,
) -> Result<Response, Fault> {
    // Asked before the stream begins, so that 403 is still a status.
    let head = cx.engine.events(&caller, Page { limit: 1, after: None }).await?;
    let head = head.first().map_or(0, |event| event.global);
    let log = LogSource::new(after.unwrap_or(head));
    Ok(sse::Stream::new(cx, proof, log).into_response())
}

/// Says whether a model provider's key is set, without showing it.
///
/// `name` is `openai-key`, `deepseek-key` or `anthropic-key`. Keys come from the vault (the secret
/// `openai_api_key`), the server's environment or its configuration, and cannot be set here.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/settings/{name}", tag = "server",
    params(("name" = String, Path, example = "openai-key")),
    responses((status = 200, body = ProviderKeyView), (status = 404, description = "`Setting not found`"))
))]
pub(crate) async fn setting_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    SettingPath(name): SettingPath,
) -> Result<Response, Fault> {
    caller.require(Role::Admin)?;
    let provider = name.strip_suffix("-key").unwrap_or_default();
    let key = cx.config.provider_keys.iter().find(|key| key.provider == provider);
    let key = key.ok_or_else(|| Fault::not_found("Setting"))?;
    let secret = format!("{}_api_key", key.provider);
    // As for a model call: the vault overrides the configuration.
    let looked_up = cx.engine.provider_key(&caller, &secret)?.map(|(found, place)| {
        ProviderKey::new(key.provider, Some(found.expose()), &format!("{place}: {secret}"))
    });
    Ok(json(&looked_up.as_ref().unwrap_or(key).view()))
}

/// Makes an API key. Its secret is in this answer and nowhere else.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/keys", tag = "server", request_body = KeyCreate,
    responses(
        (status = 200, body = KeyCreated),
        (status = 409, description = "A key of that name exists"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn key_create(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<KeyCreate>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let KeyCreate { name, role, colony } = body.value;
    let engine = cx.engine.clone();
    let work =
        async move { engine.key_create_in(&caller, &name, role.into(), colony.as_deref()).await };
    let NewKey { key, secret } = cx.detached(work).await?;
    Ok(json(&KeyCreated { key: key_shown(&cx, key), secret }))
}

/// A key with the name of its colony.
fn key_shown(cx: &Cx, key: ApiKey) -> Key {
    let colony_name = cx.colony_name(key.colony);
    Key { colony_name, ..Key::from(key) }
}

/// Lists API keys, newest first, revoked ones included.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/keys", tag = "server", params(ListQuery),
    responses((status = 200, body = [Key]))
))]
pub(crate) async fn key_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<ApiKeyId>,
) -> Result<Response, Fault> {
    let limit = window.limit;
    let keys = cx.engine.key_list(&caller, window.into()).await?;
    Ok(list(&uri, limit, keys, |key| key.id.to_string(), |key| key_shown(&cx, key)))
}

/// Revokes an API key at once.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/keys/{id}", tag = "server", params(("id" = String, Path)),
    responses((status = 200, body = Key), (status = 404, description = "`Key not found`"))
))]
pub(crate) async fn key_revoke(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    KeyPath(id): KeyPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let key = cx.detached(async move { engine.key_revoke(&caller, id).await }).await?;
    Ok(json(&Key::from(key)))
}

/// The state of the whole server.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/status", tag = "server", responses((status = 200, body = Status))
))]
pub(crate) async fn status(State(cx): State<Arc<Cx>>, Who(caller): Who) -> Result<Response, Fault> {
    Ok(json(&convert::status(cx.engine.status(&caller).await?)))
}

/// Which program answers.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/version", tag = "server", responses((status = 200, body = Version))
))]
pub(crate) async fn version(State(cx): State<Arc<Cx>>, Who(_): Who) -> Response {
    json(&Version { name: "overmind".to_owned(), version: cx.config.version.to_owned() })
}

/// Checks every hash and signature of the whole log.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/audit/verify", tag = "server",
    responses((status = 200, description = "`ok` says whether all is well", body = AuditReport))
))]
pub(crate) async fn audit_verify(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
) -> Result<Response, Fault> {
    Ok(json(&AuditReport::from(cx.engine.audit(&caller).await?)))
}

/// Writes a consistent copy of everything to the server's disk while the server continues.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/backup", tag = "server", request_body = BackupRequest,
    responses(
        (status = 200, body = BackupDone),
        (status = 409, description = "Something is at that path already"),
        (status = 422, description = "The path is not absolute"),
    )
))]
pub(crate) async fn backup(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<BackupRequest>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let path = body.value.path;
    let target = PathBuf::from(&path);
    let engine = cx.engine.clone();
    let bytes = cx.detached(async move { engine.backup(&caller, target).await }).await?;
    Ok(json(&BackupDone { ok: true, path, bytes }))
}

/// Removes runs that ended long ago, with their events; what went is recorded.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/prune", tag = "server", request_body = PruneRequest,
    responses((status = 200, body = PruneDone), (status = 422, description = "A field is wrong"))
))]
pub(crate) async fn prune(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<PruneRequest>,
) -> Result<Response, Fault> {
    let older_than = Duration::from_secs(body.value.older_than_seconds);
    let engine = cx.engine.clone();
    let pruned = cx.detached(async move { engine.prune(&caller, older_than).await }).await?;
    Ok(json(&PruneDone::from(pruned)))
}

/// This document.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/openapi.json", tag = "server", responses((status = 200, body = Object))
))]
pub(crate) async fn openapi(Who(_): Who) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], crate::openapi::openapi()).into_response()
}
