//! Life signs, and the figures for a scraper.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
#[cfg(feature = "openapi")]
use overmind_api::{Okay, Ready};
use overmind_core::row::Role;

use crate::convert;
use crate::cx::Cx;
use crate::extract::Who;
use crate::fault::Fault;
use crate::metrics;
use crate::page::json;

/// The process answers.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/health", tag = "health", responses((status = 200, body = Okay))
))]
pub(crate) async fn health() -> Response {
    alive()
}

/// The process answers.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/healthz", tag = "health", responses((status = 200, body = Okay))
))]
pub(crate) async fn healthz() -> Response {
    alive()
}

/// Their responses: fixed bytes, so that the busiest path costs nothing.
pub(crate) fn alive() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], "{\"ok\":true}").into_response()
}

/// New work is taken.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/readyz", tag = "health", responses(
    (status = 200, body = Ready),
    (status = 503, description = "Draining, or the store refuses writes; `reason` says why", body = Ready),
)
))]
pub(crate) async fn readyz(State(cx): State<Arc<Cx>>) -> Response {
    let ready = if cx.stop.is_cancelled() {
        convert::ready(overmind_engine::view::Readiness::Draining)
    } else {
        convert::ready(cx.engine.readiness())
    };
    let mut response = json(&ready);
    if !ready.ok {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn wants_openmetrics(accepted: &HeaderValue) -> bool {
    accepted.to_str().is_ok_and(|text| text.contains("application/openmetrics-text"))
}

/// Figures for Prometheus, as OpenMetrics for who accepts that.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/metrics", tag = "health", responses(
    (status = 200, content(
        (String = "application/openmetrics-text"),
        (String = "text/plain"),
    )),
)
))]
pub(crate) async fn metrics(
    State(cx): State<Arc<Cx>>,
    Who(caller): Who,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    caller.require(Role::Viewer)?;
    let text = cx.metrics.text().map_err(|err| Fault::internal("metrics", &err))?;
    let accepted = headers.get_all(header::ACCEPT).iter();
    let (kind, text) = match accepted.into_iter().any(wants_openmetrics) {
        true => ("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
        false => ("text/plain; version=0.0.4; charset=utf-8", metrics::classic(&text)),
    };
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response())
}
