//! Tool servers (MCP).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use overmind_api::{McpPin, McpServer, McpServerPut, McpServers, McpUnpin};
use overmind_engine::{Caller, Engine};

use crate::cx::Cx;
use crate::extract::{Body, McpPath, Query, Who};
use crate::fault::Fault;
use crate::page::json;

fn all(engine: &Engine, caller: &Caller) -> Result<Response, Fault> {
    Ok(json(&McpServers { ok: true, servers: engine.tool_server_list(caller)? }))
}

fn one(server: serde_json::Value) -> Response {
    json(&McpServer { ok: true, server })
}

/// Lists the tool servers with their tools.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/settings/mcp/servers", tag = "server",
    responses((status = 200, body = McpServers))
))]
pub(crate) async fn mcp_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    all(&cx.engine, &caller)
}

/// Shows one tool server.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/settings/mcp/servers/{id}", tag = "server",
    params(("id" = String, Path)),
    responses((status = 200, body = McpServer), (status = 404, description = "`MCP server not found`"))
))]
pub(crate) async fn mcp_fetch(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    McpPath(id): McpPath,
) -> Result<Response, Fault> {
    Ok(one(cx.engine.tool_server(&caller, &id)?))
}

/// Adds a tool server, or replaces the one with its id; answers with all of them.
///
/// Waits until it has answered or failed, which its `state` says.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/settings/mcp/servers", tag = "server",
    request_body = McpServerPut,
    responses(
        (status = 200, body = McpServers),
        (status = 409, description = "The server cannot be added now"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn mcp_put(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<McpServerPut>,
) -> Result<Response, Fault> {
    let (engine, by) = (cx.engine.clone(), caller.clone());
    let McpServerPut(config) = body.value;
    cx.detached(async move { engine.tool_server_put(&by, config).await }).await?;
    all(&cx.engine, &caller)
}

/// Ends a tool server and forgets it; answers with those that are left.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/settings/mcp/servers/{id}", tag = "server",
    params(("id" = String, Path)),
    responses((status = 200, body = McpServers), (status = 404, description = "`MCP server not found`"))
))]
pub(crate) async fn mcp_remove(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    McpPath(id): McpPath,
) -> Result<Response, Fault> {
    let (engine, by) = (cx.engine.clone(), caller.clone());
    cx.detached(async move { engine.tool_server_remove(&by, &id).await }).await?;
    all(&cx.engine, &caller)
}

/// Approves tools of a server as they are offered now.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/settings/mcp/servers/{id}/pin", tag = "server",
    request_body = McpPin, params(("id" = String, Path)),
    responses(
        (status = 200, body = McpServer),
        (status = 404, description = "`MCP server not found`"),
        (status = 409, description = "The tool is refused, or not what was seen"),
    )
))]
pub(crate) async fn mcp_pin(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    McpPath(id): McpPath,
    body: Body<McpPin>,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let McpPin { tool, hash } = body.value;
    let work =
        async move { engine.tool_server_pin(&caller, &id, tool.as_deref(), hash.as_deref()).await };
    Ok(one(cx.detached(work).await?))
}

/// Takes the approval of a tool back.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/settings/mcp/servers/{id}/unpin", tag = "server",
    request_body = McpUnpin, params(("id" = String, Path)),
    responses(
        (status = 200, body = McpServer),
        (status = 404, description = "`MCP server not found`"),
        (status = 409, description = "The tool has no approval"),
    )
))]
pub(crate) async fn mcp_unpin(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    McpPath(id): McpPath,
    body: Body<McpUnpin>,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let work = async move { engine.tool_server_unpin(&caller, &id, &body.value.tool).await };
    Ok(one(cx.detached(work).await?))
}
