//! Commands in files of projects: shown, confirmed, withdrawn. For admins alone.

use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
#[cfg(feature = "openapi")]
use overmind_api::ProjectQuery;
use overmind_api::{ProjectConfirm, ProjectRevoked, ProjectTrust, path_mistake};

use crate::cx::Cx;
use crate::extract::{Body, Query, Who};
use crate::fault::Fault;
use crate::page::json;

/// The commands in the project's file, and whether an admin has confirmed them.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/api/projects/trust", tag = "projects", params(ProjectQuery),
    responses(
        (status = 200, body = ProjectTrust),
        (status = 422, description = "There is no such directory, or its file has mistakes"),
        (status = 503, description = "This server makes no rooms"),
    )
))]
pub(crate) async fn project_trust(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let project = project_of(&mut query)?;
    query.finish()?;
    let found = cx.engine.project_trust(&caller, Path::new(&project)).await?;
    Ok(json(&ProjectTrust::from(found)))
}

/// Confirms what the project's file orders, with the hash of what was read: from now on it is run.
#[cfg_attr(feature = "openapi", utoipa::path(
    put, path = "/api/projects/trust", tag = "projects", request_body = ProjectConfirm,
    responses(
        (status = 200, body = ProjectTrust),
        (status = 409, description = "The file is not the one that was read"),
        (status = 422, description = "A field is wrong; `errors` names it"),
        (status = 503, description = "This server makes no rooms"),
    )
))]
pub(crate) async fn project_confirm(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    body: Body<ProjectConfirm>,
) -> Result<Response, Fault> {
    Fault::unless_empty(body.value.check())?;
    let ProjectConfirm { project, hash, setup_network } = body.value;
    let engine = cx.engine.clone();
    let work = async move {
        engine.project_confirm(&caller, Path::new(&project), &hash, setup_network).await
    };
    Ok(json(&ProjectTrust::from(cx.detached(work).await?)))
}

/// Takes back what was confirmed: runs of the project are refused until somebody confirms it again.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/api/projects/trust", tag = "projects", params(ProjectQuery),
    responses(
        (status = 200, body = ProjectRevoked),
        (status = 422, description = "`project` is no absolute path"),
    )
))]
pub(crate) async fn project_revoke(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    mut query: Query,
) -> Result<Response, Fault> {
    let project = project_of(&mut query)?;
    query.finish()?;
    let engine = cx.engine.clone();
    let work = async move { engine.project_revoke(&caller, Path::new(&project)).await };
    Ok(json(&ProjectRevoked { revoked: cx.detached(work).await? }))
}

fn project_of(query: &mut Query) -> Result<String, Fault> {
    let project = query.take("project").ok_or_else(|| Fault::invalid("project", "is required"))?;
    match path_mistake(&project) {
        None => Ok(project),
        Some(why) => Err(Fault::invalid("project", why)),
    }
}
