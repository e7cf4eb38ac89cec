//! Loops of the server: listed, paused, resumed, run.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use overmind_api::Loop;
use overmind_core::row::Role;

use crate::cx::Cx;
use crate::extract::{LoopPath, Query, Who};
use crate::fault::Fault;
use crate::page::json;

/// Lists what the server looks at again and again, by name.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/loops", tag = "server", responses((status = 200, body = [Loop]))
))]
pub(crate) async fn loop_list(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    let all: Vec<Loop> = cx.engine.loop_list(&caller)?.into_iter().map(Loop::from).collect();
    Ok(json(&all))
}

/// Pauses a loop, also over restarts. A pass in progress continues.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/loops/{name}/pause", tag = "server",
    params(("name" = String, Path, example = "retention")),
    responses((status = 200, body = Loop), (status = 404, description = "There is no such loop"))
))]
pub(crate) async fn loop_pause(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LoopPath(name): LoopPath,
) -> Result<Response, Fault> {
    caller.require(Role::Admin)?;
    let engine = cx.engine.clone();
    let work = async move { engine.loop_pause(&caller, &name).await };
    Ok(json(&Loop::from(cx.detached(work).await?)))
}

/// Ends the pause of a loop; a pass begins at once.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/loops/{name}/resume", tag = "server",
    params(("name" = String, Path, example = "retention")),
    responses((status = 200, body = Loop), (status = 404, description = "There is no such loop"))
))]
pub(crate) async fn loop_resume(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LoopPath(name): LoopPath,
) -> Result<Response, Fault> {
    caller.require(Role::Admin)?;
    let engine = cx.engine.clone();
    let work = async move { engine.loop_resume(&caller, &name).await };
    Ok(json(&Loop::from(cx.detached(work).await?)))
}

/// Does one pass of a loop, paused or not, and answers when it has ended. A pass that failed is in the
/// answer's `last`.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/loops/{name}/run", tag = "server",
    params(("name" = String, Path, example = "retention")),
    responses(
        (status = 200, body = Loop),
        (status = 404, description = "There is no such loop"),
        (status = 503, description = "Too many wait for a pass of it, or the server stops"),
    )
))]
pub(crate) async fn loop_run(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    LoopPath(name): LoopPath,
) -> Result<Response, Fault> {
    caller.require(Role::Admin)?;
    let engine = cx.engine.clone();
    let work = async move { engine.loop_run(&caller, &name).await };
    Ok(json(&Loop::from(cx.detached(work).await?)))
}
