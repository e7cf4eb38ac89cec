//! Extractors for the parts of a request that handlers need: ids, bodies, queries, preconditions.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use overmind_api::{Problem, ProblemKind};
use overmind_core::ids::{ApiKeyId, ApprovalId, InboxId, LimitId, MemoryId, SessionId};
use overmind_engine::Caller;
use serde::de::DeserializeOwned;

use crate::bodies::Sender;
use crate::cx::Cx;
use crate::decode::decode;
use crate::fault::Fault;
use crate::host::single;
use crate::routes::IDEMPOTENCY_KEY;

/// The caller of a request. `front` adds it to the request after it has verified the token.
pub(crate) struct Who(pub(crate) Caller);

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        parts.extensions.get().cloned().map(Self).ok_or_else(|| {
            // Cannot happen behind `front`. Without `front`, every request is refused.
            Fault::new(ProblemKind::Unauthenticated, "the request was not authenticated")
        })
    }
}

/// One parameter of the path as text, decoded.
async fn param<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, state).await.ok()?;
    params.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

macro_rules! path_ids {
    ($($(#[$doc:meta])* $name:ident($id:ty) = $param:literal $what:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) $id);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Fault;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
                // A text that is not an id identifies no existing object: 404, not 422.
                param(parts, state, $param)
                    .await
                    .and_then(|text| text.parse().ok())
                    .map(Self)
                    .ok_or_else(|| Fault::not_found($what))
            }
        }
    )*};
}

path_ids! {
    /// `{id}` of a run.
    RunPath(SessionId) = "id" "Run";
    /// `{id}` of an agent: its id or exact name. The engine looks it up.
    AgentPath(String) = "id" "Agent";
    /// `{approval_id}`.
    ApprovalPath(ApprovalId) = "approval_id" "Approval";
    /// `{id}` of an item of the inbox.
    InboxPath(InboxId) = "id" "Inbox item";
    /// `{id}` of a limit.
    BudgetPath(LimitId) = "id" "Budget";
    /// `{id}` of a memory item.
    MemoryPath(MemoryId) = "id" "Memory item";
    /// `{id}` of a key.
    KeyPath(ApiKeyId) = "id" "Key";
    /// `{id}` of a tool server.
    McpPath(String) = "id" "MCP server";
    /// `{name}` of a loop. The engine looks it up.
    LoopPath(String) = "name" "Loop";
    /// `{name}` of a setting.
    SettingPath(String) = "name" "Setting";
    /// `{name}` of a secret.
    SecretPath(String) = "name" "Secret";
    /// `{name}` of a service.
    ServicePath(String) = "name" "Service";
    /// `{key}` of the shared state, slashes included. The engine validates it.
    KeyOfBoard(String) = "key" "Key";
    /// `{name}` of an artifact, slashes included. The engine validates it.
    ArtifactPath(String) = "name" "Artifact";
    /// `{agent}` of the permission matrix. The engine looks it up.
    AgentOfAcl(String) = "agent" "Agent";
}

/// A JSON body of at most `max_body` bytes.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    bytes: Bytes,
}

impl<T> Body<T> {
    /// The Idempotency-Key header with the fingerprint of this body, if there is one.
    ///
    /// # Errors
    ///
    /// 422 when the key is empty, too long, or not plain text.
    pub(crate) fn idempotency(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<(String, [u8; 32])>, Fault> {
        let Some(key) = single(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
        let sound =
            !key.is_empty() && key.len() <= 255 && key.bytes().all(|b| b.is_ascii_graphic());
        if !sound {
            let message = "must be 1 to 255 visible ASCII characters without spaces";
            return Err(Fault::invalid("Idempotency-Key", message));
        }
        Ok(Some((key.to_owned(), *blake3::hash(&self.bytes).as_bytes())))
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Cx>> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, cx: &Arc<Cx>) -> Result<Self, Fault> {
        let bytes = read(request, cx, cx.config.max_body).await?;
        Ok(Self { value: decode(&bytes)?, bytes })
    }
}

/// A JSON body of at most `max_large_body` bytes.
pub(crate) struct LargeBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Cx>> for LargeBody<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, cx: &Arc<Cx>) -> Result<Self, Fault> {
        let bytes = read(request, cx, cx.config.max_large_body).await?;
        Ok(Self(decode(&bytes)?))
    }
}

/// A JSON body of any kind, not only an object, of at most `max_large_body` bytes.
pub(crate) struct AnyBody(pub(crate) serde_json::Value);

impl FromRequest<Arc<Cx>> for AnyBody {
    type Rejection = Fault;

    async fn from_request(request: Request, cx: &Arc<Cx>) -> Result<Self, Fault> {
        let bytes = read(request, cx, cx.config.max_large_body).await?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|err| Fault::new(ProblemKind::Invalid, format!("the body is not JSON: {err}")))
    }
}

async fn read(request: Request, cx: &Cx, max: usize) -> Result<Bytes, Fault> {
    if !is_json(request.headers().get(header::CONTENT_TYPE)) {
        let text = "the body must be JSON: send `Content-Type: application/json`";
        return Err(Fault::new(ProblemKind::MediaType, text).closing());
    }
    let sender = sender_of(&request);
    let (parts, body) = request.into_parts();
    let within = cx.config.body_timeout;
    Ok(cx.bodies.read(&parts.headers, body, sender, max, within).await?.bytes)
}

/// Returns the sender of a request. `front` adds it to each request.
pub(crate) fn sender_of<B>(request: &axum::http::Request<B>) -> Sender {
    request.extensions().get().cloned().unwrap_or(Sender::Place(None))
}

/// `application/json` and `application/…+json`, with or without parameters.
fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let Some(text) = content_type.and_then(|value| value.to_str().ok()) else { return false };
    let media = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.strip_prefix("application/") {
        Some(kind) => kind == "json" || (kind.len() > 5 && kind.ends_with("+json")),
        None => false,
    }
}

/// The version in `If-Match: "3"`; `None` without the header and for `*`.
///
/// # Errors
///
/// 422 for anything that is not the strong ETag of one version.
pub(crate) fn if_match(headers: &HeaderMap) -> Result<Option<u32>, Fault> {
    let Some(text) = single(headers, &header::IF_MATCH)? else { return Ok(None) };
    if text.trim() == "*" {
        return Ok(None);
    }
    version_of(text)
        .map(Some)
        .ok_or_else(|| Fault::invalid("If-Match", "must be the ETag of one version, such as \"3\""))
}

/// Whether `If-None-Match` names this version.
pub(crate) fn none_match(headers: &HeaderMap, version: u32) -> bool {
    let text = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    text.is_some_and(|text| {
        text.split(',').any(|tag| {
            let tag = tag.trim();
            tag == "*" || version_of(tag.strip_prefix("W/").unwrap_or(tag)) == Some(version)
        })
    })
}

fn version_of(tag: &str) -> Option<u32> {
    let digits = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// The query of a URL. Handlers take its parameters by name; parameters that no handler takes are
/// refused.
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    /// Parses a query. A name that occurs twice is refused, because its value would be ambiguous.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let uri = format!("/?{text}")
            .parse()
            .map_err(|_| Fault::new(ProblemKind::Invalid, "the query is not `name=value&…`"))?;
        let axum::extract::Query(pairs) =
            axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri)
                .map_err(|_| Fault::new(ProblemKind::Invalid, "the query is not `name=value&…`"))?;
        let mut seen = std::collections::HashSet::new();
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !seen.insert(name.as_str())) {
            return Err(Fault::invalid(name, "is given twice in the query"));
        }
        Ok(Self { pairs })
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    pub(crate) fn take_parsed<T>(
        &mut self,
        name: &str,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(text) = self.take(name) else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| {
            let shown: String = text.chars().take(60).collect();
            Fault::invalid(name, format!("must be {wanted}, not `{shown}`"))
        })
    }

    /// Refuses parameters that the handler did not take.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = name.chars().take(60).collect();
                Err(Problem::invalid(vec![overmind_api::FieldError::new(
                    name,
                    "is not a query parameter of this path",
                )])
                .into())
            }
        }
    }
}

/// Parses a boolean. Accepts all words that earlier control planes accepted.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn several_media_types_count_as_json_and_others_do_not() {
        for (kind, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("application/+json", false),
            ("text/json", false),
            ("application/jsonx", false),
            ("application/x-www-form-urlencoded", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_json(Some(&HeaderValue::from_static(kind))), json, "{kind}");
        }
        assert!(!is_json(None));
    }

    #[test]
    fn if_match_accepts_one_strong_version() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_MATCH, HeaderValue::from_static(text));
            if_match(&headers).map_err(|fault| fault.problem().status)
        };
        assert_eq!(read("\"3\""), Ok(Some(3)));
        assert_eq!(read("*"), Ok(None));
        for bad in
            ["3", "W/\"3\"", "\"3\", \"4\"", "\"-1\"", "\"+3\"", "\"99999999999\"", "\"\"", ""]
        {
            assert_eq!(read(bad), Err(422), "{bad}");
        }
        assert_eq!(if_match(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn if_none_match_accepts_lists_and_weak_tags() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(text));
            none_match(&headers, 3)
        };
        assert!(read("\"3\"") && read("W/\"3\"") && read("\"1\", \"3\"") && read("*"));
        assert!(!read("\"4\"") && !read("3") && !read(""));
    }

    #[test]
    fn unknown_and_repeated_query_names_are_refused() {
        let mut query = Query::parse("limit=5&cursor=a%20b").unwrap();
        assert_eq!(query.take("cursor").as_deref(), Some("a b"));
        let fault = query.finish().unwrap_err();
        assert_eq!(fault.problem().error, "limit: is not a query parameter of this path");
        let fault = Query::parse("limit=5&limit=6").err().unwrap();
        assert_eq!(fault.problem().error, "limit: is given twice in the query");
        assert!(Query::parse("").unwrap().finish().is_ok());
    }

    #[test]
    fn booleans_accept_the_words_of_earlier_apis() {
        for yes in ["1", "true", "True", "yes", "on", "t", "y"] {
            assert_eq!(parse_bool(yes), Some(true), "{yes}");
        }
        assert_eq!(parse_bool("off"), Some(false));
        assert_eq!(parse_bool("maybe"), None);
        assert_eq!(parse_bool(""), None);
    }

    proptest! {
        #[test]
        fn no_query_panics(text in "[ -~]{0,80}") {
            if let Ok(query) = Query::parse(&text) {
                let _ = query.finish();
            }
        }
    }
}
