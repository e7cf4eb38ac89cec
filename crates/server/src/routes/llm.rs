//! Model calls of others, passed on: `/llm/openai/v1/…` and `/llm/anthropic/v1/…`.
//!
//! These are the providers' APIs and not ours: refusals have the provider's own format, nothing is
//! redirected, and the token may be in the place of the provider's key. They bypass the router, its
//! time limit and the limits by caller: an answer may stream for an hour, and calls are limited by
//! provider.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use overmind_api::ProblemKind;
use overmind_core::budget::Shape;
use overmind_core::relay::{
    Call, Dialect, Endpoint, MAX_BODY, Peek, Refusal, RefusalKind, Sent, head, retry_after_s,
};
use overmind_engine::{Caller, EngineError, RelayError, RelayedBody};
use serde_json::{Value, json};

use super::Template;
use crate::agents;
use crate::auth;
use crate::bodies::{Lease, Sender, Unread, Whole};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::front::{Source, trace};
use crate::serve::MAX_HEAD_BYTES;

/// The endpoint of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    dialect: Dialect,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Call(Endpoint),
    Models,
    Model(String),
    /// Programs check whether a server answers before they send a token.
    Hello,
    Nothing,
}

impl Door {
    /// `None`: the path is none of these. Trailing slashes do not matter.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/llm/")?.trim_end_matches('/');
        let (dialect, rest) = match rest.split_once('/').unwrap_or((rest, "")) {
            ("openai", rest) => (Dialect::OpenAi, rest),
            ("anthropic", rest) => (Dialect::Anthropic, rest),
            _ => return None,
        };
        let within = rest.strip_prefix("v1/").unwrap_or_default();
        let endpoint = Endpoint::ALL
            .into_iter()
            .find(|endpoint| endpoint.dialect() == dialect && endpoint.path() == within);
        let what = match (endpoint, within, rest) {
            (Some(endpoint), _, _) => What::Call(endpoint),
            (None, "models", _) => What::Models,
            (None, _, "" | "api/hello") => What::Hello,
            (None, within, _) => match within.strip_prefix("models/") {
                Some(name) => What::Model(name.to_owned()),
                None => What::Nothing,
            },
        };
        Some(Self { dialect, what })
    }

    fn template(&self) -> &'static str {
        match (&self.what, self.dialect) {
            (What::Call(Endpoint::Chat), _) => "/llm/openai/v1/chat/completions",
            (What::Call(Endpoint::Responses), _) => "/llm/openai/v1/responses",
            (What::Call(Endpoint::Embeddings), _) => "/llm/openai/v1/embeddings",
            (What::Call(Endpoint::Messages), _) => "/llm/anthropic/v1/messages",
            (What::Call(Endpoint::CountTokens), _) => "/llm/anthropic/v1/messages/count_tokens",
            (What::Models | What::Model(_), Dialect::OpenAi) => "/llm/openai/v1/models",
            (What::Models | What::Model(_), Dialect::Anthropic) => "/llm/anthropic/v1/models",
            (What::Hello | What::Nothing, Dialect::OpenAi) => "/llm/openai",
            (What::Hello | What::Nothing, Dialect::Anthropic) => "/llm/anthropic",
        }
    }
}

/// Larger bodies count for as long as their call is in progress.
const SMALL: usize = 1 << 20;

/// Answers one request. `name` becomes the caller's, once it is known.
pub(crate) async fn answer(
    cx: &Arc<Cx>,
    source: Option<Source>,
    door: Door,
    request: Request,
    name: &mut Option<String>,
) -> Response {
    let mut response = match Box::pin(attend(cx, source, &door, request, name)).await {
        Ok(response) => response,
        Err(refused) => refused.render(cx, door.dialect),
    };
    response.extensions_mut().insert(Template(door.template()));
    response
}

/// Requests that were refused before the path was read, in the format of this path's API.
pub(crate) fn refused(cx: &Cx, door: &Door, fault: &Fault) -> Response {
    let kind = match fault.problem().known_kind() {
        Some(ProblemKind::Forbidden) => RefusalKind::Forbidden,
        _ => RefusalKind::BadRequest,
    };
    let refused = Refused { why: kind.because(fault).into(), close: true };
    let mut response = refused.render(cx, door.dialect);
    response.extensions_mut().insert(Template(door.template()));
    response
}

/// Why there is no answer of a provider.
struct Refused {
    why: RelayError,
    /// The body was not read to its end: the connection cannot be used again.
    close: bool,
}

impl<E: Into<RelayError>> From<E> for Refused {
    fn from(why: E) -> Self {
        Self { why: why.into(), close: false }
    }
}

impl Refused {
    fn render(self, cx: &Cx, dialect: Dialect) -> Response {
        let (status, headers, body) = match &self.why {
            RelayError::Refused(refusal) => {
                let mut headers = vec![("content-type", "application/json".to_owned())];
                if let Some(wait) = refusal.retry_after {
                    headers.push(("retry-after", retry_after_s(wait).to_string()));
                }
                (refusal.status(dialect), headers, refusal.body(dialect))
            }
            RelayError::Budget(refusal) => {
                let shape = match dialect {
                    Dialect::OpenAi => Shape::OpenAi,
                    Dialect::Anthropic => Shape::Anthropic,
                };
                let wire = refusal.render(shape, cx.engine.now());
                (wire.status, wire.headers, wire.body.to_string())
            }
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        if self.close {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The answer to a client that tries the Responses API over a WebSocket: it continues with HTTP.
fn no_socket() -> Response {
    const BODY: &str = r#"{"error":{"message":"this server speaks the Responses API over HTTP only: send a POST","type":"invalid_request_error","param":null,"code":"upgrade_required"}}"#;
    let mut response = Response::new(Body::from(BODY));
    *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn attend(
    cx: &Arc<Cx>,
    source: Option<Source>,
    door: &Door,
    request: Request,
    name: &mut Option<String>,
) -> Result<Response, Refused> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if door.what == What::Hello && reads {
        return Ok(Response::new(Body::empty()));
    }
    if door.what == What::Call(Endpoint::Responses) && *request.method() == Method::GET {
        return Ok(no_socket());
    }
    // Only unauthenticated callers count by address: the others are known.
    let proved = match auth::token(request.headers()) {
        Ok(token) => cx.engine.relay_caller(token).await.map_err(unknown),
        Err(fault) => Err(RefusalKind::Unauthenticated.because(&fault)),
    };
    let mut proved = match proved {
        Ok(proved) => proved,
        Err(refusal) => {
            if let Some(source) = source
                && cx.admit_source(source).is_err()
            {
                let text = "too many requests without a valid token from here";
                let wait = Duration::from_secs(1);
                return Err(Refusal::new(RefusalKind::RateLimited, text).after(wait).into());
            }
            return Err(refusal.into());
        }
    };
    *name = Some(proved.caller.name.clone());
    if let Some(agents::DoorOf(session)) = request.extensions().get() {
        let refused = |fault| RefusalKind::Forbidden.because(&fault);
        agents::is_run(&proved.caller, *session).map_err(refused)?;
    }
    proved.caller.trace = trace(request.headers());
    match (&door.what, request.method()) {
        (What::Call(endpoint), &Method::POST) => {
            let (call, _lease) = read(cx, *endpoint, &proved.caller, request).await?;
            let relayed = cx.engine.relay(&proved, call).await?;
            let mut response = Response::new(stream_of(relayed.body));
            *response.status_mut() =
                StatusCode::from_u16(relayed.status).unwrap_or(StatusCode::BAD_GATEWAY);
            *response.headers_mut() = relayed.headers;
            Ok(response)
        }
        (What::Models, &Method::GET | &Method::HEAD) => {
            let offered = cx.engine.relay_models(&proved.caller, door.dialect).await?;
            let names: Vec<(String, String)> =
                offered.into_iter().map(|one| (one.name, one.provider)).collect();
            Ok(shown(&models(door.dialect, &names)))
        }
        (What::Model(wanted), &Method::GET | &Method::HEAD) => {
            let offered = cx.engine.relay_models(&proved.caller, door.dialect).await?;
            match offered.into_iter().find(|one| one.name == *wanted) {
                Some(one) => Ok(shown(&model(door.dialect, &one.name, &one.provider))),
                None => {
                    let text = format!("there is no model `{}` here", brief(wanted));
                    Err(Refusal::new(RefusalKind::NotFound, text).into())
                }
            }
        }
        (_, method) => {
            let path = brief(request.uri().path());
            let text = format!("there is no {method} {path} here; see docs/gateway.md");
            Err(Refusal::new(RefusalKind::NoRoute, text).into())
        }
    }
}

trait Because {
    fn because(self, fault: &Fault) -> Refusal;
}

impl Because for RefusalKind {
    fn because(self, fault: &Fault) -> Refusal {
        Refusal::new(self, fault.problem().error.clone())
    }
}

fn unknown(err: EngineError) -> Refusal {
    match err {
        EngineError::Unauthenticated { message } => {
            Refusal::new(RefusalKind::Unauthenticated, message)
        }
        err => {
            tracing::error!(error = %err, "finding out who asks for a model");
            Refusal::new(RefusalKind::Overloaded, "the server cannot find out who asks now")
                .after(Duration::from_secs(1))
        }
    }
}

/// The call that a request is.
async fn read(
    cx: &Cx,
    endpoint: Endpoint,
    caller: &Caller,
    request: Request,
) -> Result<(Call, Option<Lease>), Refused> {
    let closing = |refusal: Refusal| Refused { why: refusal.into(), close: true };
    let sender = Sender::Caller(caller.name.clone());
    let (parts, body) = request.into_parts();
    let headers = head::request(&parts.headers).map_err(closing)?;
    let within = cx.config.body_timeout;
    let read = cx.bodies.read(&parts.headers, body, sender, MAX_BODY, within).await;
    let Whole { bytes: body, lease } = read.map_err(|why| {
        let text = why.to_string();
        closing(match why {
            Unread::TooLarge { .. } => Refusal::new(RefusalKind::TooLarge, text),
            Unread::Crowded => {
                Refusal::new(RefusalKind::Overloaded, text).after(Duration::from_secs(1))
            }
            Unread::Broken | Unread::Slow { .. } => Refusal::bad_request(text),
        })
    })?;
    // The bytes read so far are in the connection's buffer, like heads: see [`head::request`].
    let body = if body.len() <= MAX_HEAD_BYTES { Bytes::copy_from_slice(&body) } else { body };
    let peek = Peek::of(endpoint, &body).map_err(|err| Refusal::bad_request(err.to_string()))?;
    let query = parts.uri.query().map(str::to_owned);
    let at = cx.engine.now();
    // The many small ones count only while they are read.
    let lease = (body.len() > SMALL).then_some(lease);
    Ok((Call { endpoint, query, headers, body, peek, at, sent: Sent::default() }, lease))
}

/// Bytes as they arrive. Dropping it with its connection closes the provider's.
fn stream_of(body: RelayedBody) -> Body {
    let pieces = stream::unfold(body, |mut body| async move {
        let piece: Result<Bytes, _> = body.next().await?;
        Some((piece, body))
    });
    Body::from_stream(pieces)
}

fn shown(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn model(dialect: Dialect, name: &str, provider: &str) -> Value {
    match dialect {
        Dialect::OpenAi => {
            json!({"id": name, "object": "model", "created": 0, "owned_by": provider})
        }
        Dialect::Anthropic => json!({
            "type": "model", "id": name, "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }),
    }
}

fn models(dialect: Dialect, names: &[(String, String)]) -> Value {
    let all: Vec<Value> =
        names.iter().map(|(name, provider)| model(dialect, name, provider)).collect();
    match dialect {
        Dialect::OpenAi => json!({"object": "list", "data": all}),
        Dialect::Anthropic => {
            let id = |one: Option<&Value>| one.map_or(Value::Null, |one| one["id"].clone());
            let (first, last) = (id(all.first()), id(all.last()));
            json!({"data": all, "has_more": false, "first_id": first, "last_id": last})
        }
    }
}

fn brief(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_found_in_the_spellings_of_clients() {
        let what = |path: &str| Door::of(path).map(|door| door.what);
        for (path, wanted) in [
            ("/llm/openai/v1/chat/completions", Some(What::Call(Endpoint::Chat))),
            ("/llm/openai/v1/responses/", Some(What::Call(Endpoint::Responses))),
            ("/llm/openai/v1/embeddings", Some(What::Call(Endpoint::Embeddings))),
            ("/llm/openai/v1/models", Some(What::Models)),
            ("/llm/openai/v1/models/org/name:8b", Some(What::Model("org/name:8b".into()))),
            ("/llm/openai/v1/messages", Some(What::Nothing)),
            ("/llm/anthropic/v1/messages", Some(What::Call(Endpoint::Messages))),
            ("/llm/anthropic/v1/messages/count_tokens", Some(What::Call(Endpoint::CountTokens))),
            ("/llm/anthropic/v1/chat/completions", Some(What::Nothing)),
            ("/llm/anthropic/api/hello", Some(What::Hello)),
            ("/llm/anthropic", Some(What::Hello)),
            ("/llm/gemini/v1/models", None),
            ("/llm", None),
            ("/api/runs", None),
        ] {
            assert_eq!(what(path), wanted, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "/llm/(openai|anthropic|x)?[ -~]{0,40}") {
            if let Some(door) = Door::of(&path) {
                prop_assert!(door.template().starts_with("/llm/"));
            }
        }
    }
}
