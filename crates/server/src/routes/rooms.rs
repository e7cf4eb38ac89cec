//! Environments: `work` and `done` of a run, leaks of the machine.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use overmind_api::{Leaks, RoomDone, RoomDoneResult, RoomUndo, RoomUndone, RoomWork, Run};

use crate::cx::Cx;
use crate::extract::{Body, RunPath, Who};
use crate::fault::Fault;
use crate::page::json;

/// The changes of a run in its environment, compared with its base commit.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/runs/{id}/work", tag = "runs", params(("id" = String, Path)),
    responses(
        (status = 200, body = RoomWork),
        (status = 404, description = "`Run not found`, or nothing of its work is there any more"),
        (status = 409, description = "The run has no environment, or it is still being created"),
    )
))]
pub(crate) async fn run_work(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
) -> Result<Response, Fault> {
    Ok(json(&RoomWork::from(cx.engine.session_work(&caller, id).await?)))
}

/// Decides over the run's work: merged, on a branch, kept or discarded. While its command runs
/// only a branch can be made of it.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/done", tag = "runs", request_body = RoomDone,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = RoomDoneResult),
        (status = 404, description = "`Run not found`, or nothing of its work is there any more"),
        (status = 409, description = "The run has not ended or has no room, a merge has conflicts, or it changes files that run by themselves and were not accepted"),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn run_done(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<RoomDone>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let (message, accept) = (body.value.message.clone(), body.value.accept.clone());
    let done = body.value.into();
    let engine = cx.engine.clone();
    let work = async move { engine.session_done(&caller, id, done, message, &accept).await };
    let (run, decision) = cx.detached(work).await?;
    Ok(json(&RoomDoneResult { run: Run::from(run), decision: decision.into() }))
}

/// Brings the files of the run's worktree back to a snapshot: those are taken before and after each
/// step that may change something, and at the end of a command's turn. What the files are now is saved
/// first. Refused while the run works.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/{id}/undo", tag = "runs", request_body = RoomUndo,
    params(("id" = String, Path)),
    responses(
        (status = 200, body = RoomUndone),
        (status = 404, description = "`Run not found`"),
        (status = 409, description = "The run works, has no worktree (any more), or nothing was changed"),
        (status = 422, description = "There is no such snapshot; `errors` names the field"),
    )
))]
pub(crate) async fn run_undo(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    RunPath(id): RunPath,
    body: Body<RoomUndo>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let engine = cx.engine.clone();
    let work = async move { engine.session_undo(&caller, id, body.value.to).await };
    Ok(json(&RoomUndone::from(cx.detached(work).await?)))
}

/// Looks for everything of rooms that no living run accounts for.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/rooms/leaks", tag = "rooms",
    responses(
        (status = 200, body = Leaks),
        (status = 503, description = "This server makes no rooms"),
    )
))]
pub(crate) async fn room_leaks(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
) -> Result<Response, Fault> {
    Ok(json(&Leaks::from(cx.engine.rooms_leaks(&caller).await?)))
}

/// Removes those that certainly belong to the server, and returns the rest.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/rooms/fix", tag = "rooms",
    responses(
        (status = 200, body = Leaks),
        (status = 503, description = "This server makes no rooms"),
    )
))]
pub(crate) async fn room_fix(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
) -> Result<Response, Fault> {
    let engine = cx.engine.clone();
    let left = cx.detached(async move { engine.rooms_fix(&caller).await }).await?;
    Ok(json(&Leaks::from(left)))
}
