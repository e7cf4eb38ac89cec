//! Many runs ended by one request.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use overmind_api::{RunBasic, RunKilled, RunsKill, RunsKilled};
use overmind_engine::Kills;

use crate::cx::Cx;
use crate::extract::{Body, Who};
use crate::fault::Fault;
use crate::page::json;

/// Kills many runs, each for itself: KILL to all processes of their commands at once. What has no
/// command is cancelled.
///
/// Answers when the wishes are on disk; a run has ended when its processes have.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/runs/kill", tag = "runs", request_body = RunsKill,
    responses(
        (status = 200, description = "The result of each; `ok` if all succeeded", body = RunsKilled),
        (status = 422, description = "A field is wrong; `errors` names it"),
    )
))]
pub(crate) async fn run_kill_all(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<RunsKill>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let RunsKill { ids, all, after, cascade } = body.value;
    let which = if all { Kills::All { after } } else { Kills::Named(ids) };
    let engine = cx.engine.clone();
    let work = async move { engine.session_kill_each(&caller, which, cascade).await };
    let killed = cx.detached(work).await?;
    let results: Vec<RunKilled> = killed
        .each
        .into_iter()
        .map(|(id, result)| match result {
            Ok(row) => RunKilled { id, ok: true, run: Some(RunBasic::from(row)), problem: None },
            Err(err) => {
                let problem = Some(Fault::from(err).problem().clone());
                RunKilled { id, ok: false, run: None, problem }
            }
        })
        .collect();
    let ok = results.iter().all(|result| result.ok);
    Ok(json(&RunsKilled { ok, results, next: killed.next }))
}
