//! `/mesh/permissions` and `/mesh/can`: permissions in the mesh.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::CanQuery;
use overmind_api::{Acl, AclChanged, AclEffective, AclEntry, AclLayer, Can, Permissions};
use overmind_core::acl::{Layer, Origin, Verb};

use crate::cx::Cx;
use crate::extract::{AgentOfAcl, Body, Query, Who, if_match};
use crate::fault::Fault;
use crate::page::json;

fn origin(origin: Origin) -> String {
    match origin {
        Origin::File => "file",
        Origin::Api => "api",
    }
    .to_owned()
}

/// Lists the entries of the matrix by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/permissions", tag = "mesh", responses((status = 200, body = Acl))
))]
pub(crate) async fn acl_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let (version, entries) = cx.engine.acl_list(&caller).await?;
    let entries = entries.into_iter().map(|entry| AclEntry {
        agent: entry.agent,
        origin: origin(entry.origin),
        permissions: entry.permissions.into(),
    });
    Ok(json(&Acl { version, entries: entries.collect() }))
}

/// The permissions of an agent, and their sources. A run's token asks about itself, as `me`.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/permissions/{agent}", tag = "mesh",
    params(("agent" = String, Path, description = "An agent's name or id, or a run's id")),
    responses((status = 200, body = AclEffective))
))]
pub(crate) async fn acl_effective(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentOfAcl(agent): AgentOfAcl,
) -> Result<Response, Fault> {
    let agent = (agent != "me").then_some(agent);
    let found = cx.engine.acl_effective(&caller, agent.as_deref()).await?;
    let layer = |layer: Layer| AclLayer {
        agent: layer.agent,
        entry: layer.entry,
        origin: layer.origin.map(origin),
        permissions: layer.permissions.into(),
    };
    let layers = found.layers.into_iter().map(layer).collect();
    Ok(json(&AclEffective { agent: found.agent, layers }))
}

/// Writes an agent's entry, which takes the place of the file's. Counts at once.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/mesh/permissions/{agent}", tag = "mesh", request_body = Permissions,
    params(("agent" = String, Path, description = "An agent's name, or `default`")),
    responses(
        (status = 200, body = AclChanged),
        (status = 412, description = "`If-Match` names another version of the matrix"),
    )
))]
pub(crate) async fn acl_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentOfAcl(agent): AgentOfAcl,
    headers: HeaderMap,
    body: Body<Permissions>,
) -> Result<Response, Fault> {
    change(cx, caller, agent, headers, Some(body.value.into())).await
}

/// Removes an agent's entry: the file's entry applies again.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/mesh/permissions/{agent}", tag = "mesh",
    params(("agent" = String, Path)),
    responses((status = 200, body = AclChanged), (status = 404, description = "`Entry not found`"))
))]
pub(crate) async fn acl_delete(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    AgentOfAcl(agent): AgentOfAcl,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    change(cx, caller, agent, headers, None).await
}

async fn change(
    cx: Arc<Cx>,
    caller: overmind_engine::Caller,
    agent: String,
    headers: HeaderMap,
    permissions: Option<overmind_core::acl::Permissions>,
) -> Result<Response, Fault> {
    let version = if_match(&headers)?.map(u64::from);
    let engine = cx.engine.clone();
    let work = async move { engine.acl_put(&caller, &agent, permissions, version).await };
    let done = cx.detached(work).await;
    let version = done.map_err(|fault| match version {
        Some(_) => fault.conflict_is_stale(),
        None => fault,
    })?;
    Ok(json(&AclChanged { ok: true, version }))
}

/// Whether an agent may do something, by which rule, and what to ask for if not.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/mesh/can", tag = "mesh", params(CanQuery),
    responses((status = 200, body = Can))
))]
pub(crate) async fn can(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let agent = query.take("agent");
    let words: Vec<_> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
    let wanted = format!("one of {}", words.join(", "));
    let verb = query.take_parsed("verb", &wanted, Verb::parse)?;
    let verb = verb.ok_or_else(|| Fault::invalid("verb", format!("is required: {wanted}")))?;
    let object = query.take("object").ok_or_else(|| Fault::invalid("object", "is required"))?;
    query.finish()?;
    let (agent, verdict) = cx.engine.acl_can(&caller, agent.as_deref(), verb, &object).await?;
    Ok(json(&Can {
        allowed: verdict.allowed,
        agent,
        verb: verb.as_str().to_owned(),
        object,
        rule: verdict.rule,
        ask_for: verdict.ask_for,
    }))
}
