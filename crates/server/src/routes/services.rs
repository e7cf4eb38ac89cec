//! Services behind the vault: callers say method, path and body; host and key are the
//! declaration's.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response as Answer, Uri};
use axum::response::Response;
use overmind_api::{ApiProxyReply, ApiProxyRequest, ProblemKind};
use overmind_core::vault::placeholder::looks_like_one;
use overmind_core::vault::resolve::percent;
use overmind_core::vault::service::{Params, Service};
use overmind_engine::{EngineError, ServiceCall, ServiceReply};
use serde_json::{Map, Value};

use crate::agents::{self, DoorOf};
use crate::auth;
use crate::bodies::Whole;
use crate::cx::Cx;
use crate::extract::{LargeBody, Query, sender_of};
use crate::fault::Fault;
use crate::page::json;

const PREFIX: &str = "/api/services/";

/// Whether requests of this path prove who they are behind the front, with a placeholder perhaps.
pub(crate) fn is_door(path: &str) -> bool {
    path.starts_with(PREFIX) || path == "/mesh/api"
}

/// A caller's token, wherever a client of the service would put its key; and the query without it.
fn token(
    headers: &HeaderMap,
    uri: &Uri,
    service: Option<&Service>,
) -> Result<(String, Option<String>), Fault> {
    use overmind_core::vault::service::AuthPlacement;
    let query = uri.query().map(str::to_owned);
    match service.map(|service| &service.auth) {
        Some(AuthPlacement::Query(name)) => {
            let pairs: Vec<&str> = query.as_deref().unwrap_or_default().split('&').collect();
            let own = |pair: &&&str| {
                pair.split_once('=')
                    .is_some_and(|(key, value)| key == name && looks_like_one(value))
            };
            if let Some(found) = pairs.iter().find(|pair| own(pair)) {
                let value = found.split_once('=').map(|(_, value)| value.to_owned());
                let rest: Vec<&str> = pairs.iter().filter(|pair| !own(pair)).copied().collect();
                let rest = (!rest.is_empty()).then(|| rest.join("&"));
                return Ok((value.unwrap_or_default(), rest));
            }
        }
        Some(AuthPlacement::Header(name)) => {
            let value = headers.get(name.as_str()).and_then(|value| value.to_str().ok());
            if let Some(value) = value.filter(|value| looks_like_one(value)) {
                return Ok((value.to_owned(), query));
            }
        }
        Some(AuthPlacement::Bearer | AuthPlacement::Basic(_) | AuthPlacement::None) | None => {}
    }
    Ok((auth::token(headers)?.to_owned(), query))
}

async fn forward(cx: Arc<Cx>, request: Request) -> Result<Response, Fault> {
    let sender = sender_of(&request);
    let (parts, body) = request.into_parts();
    let rest = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    // Unchanged: a decoded path could be parsed differently by the service.
    let (name, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let service = cx.engine.vault().service(name);
    let (token, query) = token(&parts.headers, &parts.uri, service.as_deref())?;
    if let Some(DoorOf(session)) = parts.extensions.get() {
        agents::is_runs_token(&cx.engine, &token, *session).await?;
    }
    // Before the body is read: a caller who may call nothing must not fill the memory either.
    let who =
        cx.engine.service_caller(&token, name).await.map_err(|err| Fault::from(err).closing())?;
    let most = service.as_ref().map_or(0, |service| service.limits.request_bytes);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let most = if service.is_some() { most } else { 0 };
    let within = cx.config.body_timeout;
    let Whole { bytes, lease: _lease } =
        cx.bodies.read(&parts.headers, body, sender, most, within).await?;
    let body = bytes.to_vec();
    let headers = parts.headers.iter();
    let call = ServiceCall {
        service: name.to_owned(),
        method: parts.method.as_str().to_owned(),
        path: path.to_owned(),
        query,
        headers: headers
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body,
    };
    let engine = cx.engine.clone();
    let reply = cx.detached(async move { engine.service_call(&who, call).await }).await?;
    answer(reply)
}

fn answer(reply: ServiceReply) -> Result<Response, Fault> {
    if reply.truncated {
        let text = "the service's answer is longer than its limit (`response_bytes`)";
        return Err(Fault::new(ProblemKind::Unavailable, text));
    }
    let mut response = Answer::new(Body::from(reply.body));
    *response.status_mut() = reply
        .status
        .try_into()
        .map_err(|err| Fault::internal("a service's status is none", &err))?;
    for (name, value) in reply.headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&value)) {
            response.headers_mut().append(name, value);
        }
    }
    Ok(response)
}

macro_rules! forwards {
    ($($method:ident $name:ident $what:literal;)*) => {$(
        #[doc = $what]
        ///
        /// The token is a placeholder, a run's own, or an admin's. What the service answers comes
        /// back as it is, without the key should it stand in it.
        #[cfg_attr(feature = "openapi", utoipa::path(
            $method, path = "/api/services/{service}/{path}", tag = "vault",
            params(("service" = String, Path), ("path" = String, Path)),
            responses((status = 200, description = "Whatever the service answers"),
                (status = 403, description = "The agent has no grant"),
                (status = 422, description = "Method or path are not allowed"),
                (status = 503, description = "There is no key, or the service does not answer"))
        ))]
        pub(crate) async fn $name(
            State(cx): State<Arc<Cx>>,
            request: Request,
        ) -> Result<Response, Fault> {
            forward(cx, request).await
        }
    )*};
}

forwards! {
    get service_get "Calls a service; the server adds the key (GET).";
    post service_post "Calls a service; the server adds the key (POST).";
    patch service_patch "Calls a service; the server adds the key (PATCH).";
    delete service_delete "Calls a service; the server adds the key (DELETE).";
    put service_call_put "Calls a service; the server adds the key (PUT).";
}

/// Calls an action of a service by its name.
///
/// Only the token identifies the caller. A refusal of the service is an answer with `success: false`.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/mesh/api", tag = "vault", request_body = ApiProxyRequest,
    params(("agent_id" = Option<String>, Query, description = "The caller's own agent, as earlier clients say; any other is refused")),
    responses((status = 200, body = ApiProxyReply),
        (status = 403, description = "The agent has no grant"),
        (status = 422, description = "A field is wrong"))
))]
pub(crate) async fn mesh_api(
    State(cx): State<Arc<Cx>>,
    door: Option<Extension<DoorOf>>,
    request: Request,
) -> Result<Response, Fault> {
    let token = auth::token(request.headers())?.to_owned();
    if let Some(Extension(DoorOf(session))) = door {
        agents::is_runs_token(&cx.engine, &token, session).await?;
    }
    let mut query = Query::parse(request.uri().query().unwrap_or_default())?;
    let agent = query.take("agent_id");
    // Before anything is reported about the request, and before its body is read.
    let proved = cx.engine.service_token(&token, agent.as_deref()).await;
    proved.map_err(|err| Fault::from(err).closing())?;
    query.finish()?;
    let LargeBody(body) = LargeBody::<ApiProxyRequest>::from_request(request, &cx).await?;
    let ApiProxyRequest { service, action, params } = body;
    let who = cx.engine.service_caller(&token, &service).await?;
    let Some(action) = cx.engine.vault().action(&service, &action) else {
        let error = format!("`{service}` has no action `{action}`");
        return Ok(json(&ApiProxyReply {
            success: false,
            data: None,
            error: Some(error),
            status_code: None,
        }));
    };
    let (query, body) = match action.params {
        Params::Query => (Some(query_of(&params)?), Vec::new()),
        Params::Body => (None, Value::Object(params).to_string().into_bytes()),
    };
    let mut sent = vec![("accept".to_owned(), b"application/json".to_vec())];
    if !body.is_empty() {
        sent.push(("content-type".to_owned(), b"application/json".to_vec()));
    }
    let call = ServiceCall {
        service,
        method: action.method.as_str().to_owned(),
        path: action.path,
        query,
        headers: sent,
        body,
    };
    let engine = cx.engine.clone();
    let done = cx
        .tasks
        .spawn(async move { engine.service_call(&who, call).await })
        .await
        .map_err(|err| Fault::internal("a request's work panicked", &err))?;
    let reply = match done {
        Ok(reply) => {
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            let data = serde_json::from_str(&text).unwrap_or(Value::String(text));
            let success = (200..300).contains(&reply.status) && !reply.truncated;
            let error = (!success).then(|| format!("the service answered {}", reply.status));
            ApiProxyReply { success, data: Some(data), error, status_code: Some(reply.status) }
        }
        Err(EngineError::Unavailable { message } | EngineError::Busy { message }) => {
            ApiProxyReply { success: false, data: None, error: Some(message), status_code: None }
        }
        Err(err) => return Err(err.into()),
    };
    Ok(json(&reply))
}

fn query_of(params: &Map<String, Value>) -> Result<String, Fault> {
    let mut pairs = Vec::new();
    for (name, value) in params {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(yes) => yes.to_string(),
            Value::Null => continue,
            Value::Array(_) | Value::Object(_) => {
                let text =
                    format!("`{name}` goes into a query: it is a text, a number or a boolean");
                return Err(Fault::invalid("params", text));
            }
        };
        pairs.push(format!("{}={}", percent(name), percent(&text)));
    }
    Ok(pairs.join("&"))
}
