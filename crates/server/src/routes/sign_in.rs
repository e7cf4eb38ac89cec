//! Links that sign a browser in to the dashboard.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use overmind_api::SignInLink;
use overmind_core::row::Role;

use crate::auth;
use crate::cx::Cx;
use crate::extract::{Query, Who};
use crate::fault::Fault;
use crate::links::VALID;
use crate::page::json;

/// Makes a link that signs a browser in as you, once, within a minute.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/api/sign-in/links", tag = "server",
    responses((status = 200, body = SignInLink))
))]
pub(crate) async fn link_create(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    headers: HeaderMap,
    query: Query,
) -> Result<Response, Fault> {
    query.finish()?;
    caller.require(Role::Viewer)?;
    let code = cx.links.make(&caller.name, auth::token(&headers)?);
    let expires_at = cx.engine.now().after(VALID);
    Ok(json(&SignInLink { path: format!("/login?code={code}"), expires_at }))
}
