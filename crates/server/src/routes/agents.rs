//! `/api/agents`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
#[cfg(feature = "openapi")]
use overmind_api::ListQuery;
use overmind_api::{Agent, AgentCreate, AgentPatch};
use overmind_core::ids::AgentId;

use crate::convert;
use crate::cx::Cx;
use crate::extract::{AgentPath, Body, Who, if_match, none_match};
use crate::fault::Fault;
use crate::page::{Window, json, list};

/// Says that the answer is that of an earlier request with the same Idempotency-Key.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(super) fn mark_replayed(mut response: Response, replayed: bool) -> Response {
    if replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

fn tagged(agent: &Agent) -> Response {
    let mut response = json(agent);
    let tag = HeaderValue::from_str(&format!("\"{}\"", agent.version))
        .expect("digits in quotes are a header value");
    response.headers_mut().insert(header::ETAG, tag);
    response
}

/// Creates an agent.
///
/// Answers 200 and not 201, as earlier control planes did.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/agents", tag = "agents", request_body = AgentCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repeated request answer with the first one's agent")),
    responses(
        (status = 200, body = Agent),
        (status = 409, description = "The Idempotency-Key was used with another body"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn agent_create(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    headers: HeaderMap,
    body: Body<AgentCreate>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let idempotency = body.idempotency(&headers)?;
    let draft = convert::agent_draft(body.value);
    let engine = cx.engine.clone();
    let made =
        cx.detached(async move { engine.agent_create(&caller, draft, idempotency).await }).await?;
    Ok(mark_replayed(tagged(&convert::agent(made.value)), made.replayed))
}

/// Lists agents, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/agents", tag = "agents", params(ListQuery),
    responses((status = 200, body = [Agent]))
))]
pub(crate) async fn agent_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    uri: Uri,
    window: Window<AgentId>,
) -> Result<Response, Fault> {
    let limit = window.limit;
    let agents = cx.engine.agent_list(&caller, window.into()).await?;
    Ok(list(&uri, limit, agents, |agent| agent.id.to_string(), Agent::from))
}

/// Fetches one agent.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "Id or exact name")),
    responses(
        (status = 200, body = Agent, headers(("ETag" = String, description = "The version, quoted"))),
        (status = 304, description = "`If-None-Match` names this version"),
        (status = 404, description = "`Agent not found`"),
    )
))]
pub(crate) async fn agent_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(agent): AgentPath,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let agent = cx.engine.agent_fetch(&caller, &agent).await?;
    let agent = convert::agent(cx.engine.agent_view(agent));
    let response = tagged(&agent);
    if none_match(&headers, agent.version) {
        let mut unchanged = StatusCode::NOT_MODIFIED.into_response();
        if let Some(tag) = response.headers().get(header::ETAG) {
            unchanged.headers_mut().insert(header::ETAG, tag.clone());
        }
        return Ok(unchanged);
    }
    Ok(response)
}

/// Changes an agent. Omitted fields are unchanged.
#[cfg_attr(feature = "openapi", utoipa::path(
    patch, path = "/api/agents/{id}", tag = "agents", request_body = AgentPatch,
    params(
        ("id" = String, Path, description = "Id or exact name"),
        ("If-Match" = Option<String>, Header, description = "The ETag that the change is meant for"),
    ),
    responses(
        (status = 200, body = Agent, headers(("ETag" = String, description = "The new version, quoted"))),
        (status = 404, description = "`Agent not found`"),
        (status = 409, description = "Another change came between; try again"),
        (status = 412, description = "`If-Match` names another version than the current one"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn agent_patch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(agent): AgentPath,
    headers: HeaderMap,
    body: Body<AgentPatch>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let if_version = if_match(&headers)?;
    let patch = convert::agent_patch(body.value, if_version);
    let engine = cx.engine.clone();
    let changed = cx
        .detached(async move { engine.agent_patch(&caller, &agent, patch).await })
        .await
        .map_err(|fault| if if_version.is_some() { fault.conflict_is_stale() } else { fault })?;
    Ok(tagged(&convert::agent(changed)))
}

/// Disables an agent: it gets no new runs, and current runs continue.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/agents/{id}/disable", tag = "agents",
    params(("id" = String, Path, description = "Id or exact name")),
    responses((status = 200, body = Agent), (status = 404, description = "`Agent not found`"))
))]
pub(crate) async fn agent_disable(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(agent): AgentPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let agent = cx.detached(async move { engine.agent_disable(&caller, &agent).await }).await?;
    Ok(tagged(&agent.into()))
}

/// Removes an agent: it is in no list any more, and its name is free. Its runs stay.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "Id or exact name")),
    responses(
        (status = 200, body = Agent),
        (status = 404, description = "`Agent not found`"),
        (status = 409, description = "One of its runs has not ended"),
    )
))]
pub(crate) async fn agent_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(agent): AgentPath,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let agent = cx.detached(async move { engine.agent_remove(&caller, &agent).await }).await?;
    Ok(tagged(&agent.into()))
}

/// Lists all versions of an agent, newest first.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/agents/{id}/versions", tag = "agents",
    params(("id" = String, Path, description = "Id or exact name"), ListQuery),
    responses((status = 200, body = [Agent]), (status = 404, description = "`Agent not found`"))
))]
pub(crate) async fn agent_versions(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentPath(agent): AgentPath,
    uri: Uri,
    window: Window<u32>,
) -> Result<Response, Fault> {
    let limit = window.limit;
    let versions = cx.engine.agent_versions(&caller, &agent, window.into()).await?;
    Ok(list(&uri, limit, versions, |agent| agent.version.to_string(), Agent::from))
}
