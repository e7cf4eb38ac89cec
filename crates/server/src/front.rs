//! The one way that every request goes, whatever its path.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use overmind_core::ids::SessionId;
use overmind_core::masking::MINTED;
use overmind_core::trace::{TRACEPARENT, Traceparent};
use tower::ServiceExt;
use tracing::{Instrument, Span};

use crate::agents;
use crate::auth;
use crate::bodies::Sender;
use crate::colony;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::routes::{self, Template};

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The client's address and the one that it reached; `None` on the Unix socket.
    pub(crate) tcp: Option<(IpAddr, IpAddr)>,
    /// It came by the door of this session's sandbox.
    pub(crate) door_of: Option<SessionId>,
    /// Whether the connection uses TLS.
    pub(crate) tls: bool,
}

/// The client whose unauthenticated requests count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Address(IpAddr),
    /// The sandbox of this session, whatever it says of itself.
    Sandbox(SessionId),
}

impl Source {
    /// The source of a client with this address.
    pub(crate) fn of(client: IpAddr) -> Self {
        Self::Address(whose(client))
    }
}

impl Peer {
    /// `None`: its connections are not counted.
    pub(crate) fn source(&self) -> Option<Source> {
        match (self.door_of, self.tcp) {
            (Some(session), _) => Some(Source::Sandbox(session)),
            (None, Some((client, _))) => Some(Source::of(client)),
            (None, None) => None,
        }
    }

    fn shown(&self) -> String {
        match self.tcp {
            _ if self.door_of.is_some() => "sandbox".to_owned(),
            Some((client, _)) => client.to_string(),
            None => "unix".to_owned(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) cx: Arc<Cx>,
    router: Router,
    ids: RequestIds,
}

impl Front {
    pub(crate) fn new(cx: Arc<Cx>) -> Self {
        Self { router: routes::router(Arc::clone(&cx)), cx, ids: RequestIds::new() }
    }

    /// Answers one request. Never fails: errors become a problem in the response.
    pub(crate) async fn handle(&self, peer: Peer, mut request: Request) -> Response {
        let began = Instant::now();
        let id = self.ids.of(request.headers());
        // Not the URI: it would keep the buffer that it was read into.
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let mut caller = None;
        let health = is_health(&path);
        // The busiest path logs nothing, so it needs no span.
        let span = if health { Span::none() } else { tracing::info_span!("request", id = %id) };
        let answered = match span.in_scope(|| self.at_once(peer, &mut request)) {
            Ok(Some(response)) => Ok(response),
            Ok(None) => self.answer(peer, request, &mut caller).instrument(span).await,
            Err(fault) => Err(fault),
        };
        let mut response = answered.unwrap_or_else(IntoResponse::into_response);

        let template = response.extensions_mut().remove::<Template>();
        if let Some(fault) = response.extensions_mut().remove::<Fault>() {
            let allow = response.headers_mut().remove(header::ALLOW);
            response = fault.render(&id);
            if let Some(allow) = allow {
                response.headers_mut().insert(header::ALLOW, allow);
            }
        }
        finish(response.headers_mut(), &id);

        let route = match template {
            Some(Template(path)) => path,
            None if health => "/health",
            None => "none",
        };
        let (status, took) = (response.status().as_u16(), began.elapsed());
        self.cx.metrics.answered(&method, route, status, took);
        let ms = took.as_secs_f64() * 1e3;
        if health {
            tracing::trace!(%method, route, status, ms, "answered");
        } else {
            let (caller, peer) = (caller.as_deref().unwrap_or("-"), peer.shown());
            let path = without_tokens(&path);
            // A request may name a whole command, including secrets.
            let shown = status >= 400 || tracing::enabled!(tracing::Level::DEBUG);
            let path = if shown { self.cx.engine.masked(&path) } else { path.into_owned() };
            // Refused requests are logged by default; the others at debug only.
            if status < 400 {
                tracing::debug!(%method, route, %path, status, ms, caller, peer, id, "answered");
            } else {
                tracing::info!(%method, route, %path, status, ms, caller, peer, id, "answered");
            }
        }
        response
    }

    /// Requests that are answered without waiting: for foreign names, for redirected paths, and
    /// health checks. `None`: the request must be routed.
    fn at_once(&self, peer: Peer, request: &mut Request) -> Result<Option<Response>, Fault> {
        let cx = &self.cx;
        request.extensions_mut().insert(Sender::Place(peer.source()));
        let local = peer.tcp.map(|(_, local)| local);
        if let Err(fault) = cx.hosts.check(request.uri(), request.headers(), local) {
            return match routes::llm::Door::of(request.uri().path()) {
                Some(door) => Ok(Some(routes::llm::refused(cx, &door, &fault))),
                None => Err(fault),
            };
        }
        if let Some(moved) = without_trailing_slash(request.uri()) {
            return Ok(Some(moved));
        }
        if let Some(session) = peer.door_of {
            agents::may_ask(request.uri().path())?;
            request.extensions_mut().insert(agents::DoorOf(session));
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        Ok((reads && is_health(request.uri().path())).then(routes::health::alive))
    }

    async fn answer(
        &self,
        peer: Peer,
        mut request: Request,
        name: &mut Option<String>,
    ) -> Result<Response, Fault> {
        let cx = &self.cx;
        let path = request.uri().path();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(door) = routes::llm::Door::of(path) {
            return Ok(routes::llm::answer(cx, peer.source(), door, request, name).await);
        }
        if let Some(source) = peer.source() {
            cx.admit_source(source)?;
        }
        let strays = routes::web::is_stray(path) && reads && wants_page(request.headers());
        if peer.door_of.is_none() && (routes::web::serves(path) || strays) {
            let page = routes::web::answer(cx, &self.router, request, peer.tls, peer.tcp.is_some());
            return match AssertUnwindSafe(Box::pin(page)).catch_unwind().await {
                Ok(answered) => answered,
                Err(_) => Err(Fault::internal("a page panicked", &"see the panic above")),
            };
        }
        // Doors find the token themselves: it stands where a client of a service puts its key.
        let open = routes::services::is_door(path) || (reads && path == "/readyz");
        if !open {
            let caller = cx.engine.authenticate(auth::token(request.headers())?).await?;
            *name = Some(caller.name.clone());
            let mut caller = cx.engine.in_colony(caller, &colony::wish(request.headers())?)?;
            caller.trace = trace(request.headers());
            if let Some(session) = peer.door_of {
                agents::is_run(&caller, session)?;
            }
            if peer.tcp.is_some() {
                cx.admit_caller(&caller)?;
            }
            request.extensions_mut().insert(caller);
        }
        let routed = self.router.clone().oneshot(request);
        match AssertUnwindSafe(routed).catch_unwind().await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(never)) => match never {},
            Err(_) => Err(Fault::internal("a handler panicked", &"see the panic above")),
        }
    }
}

/// One address for all addresses of a host: a machine has all loopback addresses, and an IPv6
/// network gives each of its machines 2^64.
fn whose(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        loopback if loopback.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

/// Whether a browser asks for a page.
fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// A path for the log: text that looks like a token of ours, put there by mistake, is left out.
fn without_tokens(path: &str) -> Cow<'_, str> {
    let is_token = |part: &str| MINTED.iter().any(|minted| part.contains(minted.prefix));
    if !path.split('/').any(is_token) {
        return Cow::Borrowed(path);
    }
    let parts = path.split('/').map(|part| if is_token(part) { "…" } else { part });
    Cow::Owned(parts.collect::<Vec<_>>().join("/"))
}

/// The span that a request was made in. What is no such header is as if it was not there.
pub(crate) fn trace(headers: &HeaderMap) -> Option<Traceparent> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    match (all.next(), all.next()) {
        (Some(one), None) => Traceparent::parse(one.to_str().ok()?),
        (_, _) => None,
    }
}

fn is_health(path: &str) -> bool {
    matches!(path, "/health" | "/healthz")
}

/// On every response, also on those of failures.
fn finish(headers: &mut HeaderMap, id: &str) {
    const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    if let Ok(id) = HeaderValue::from_str(id) {
        // The request id of a forwarded answer is the provider's own, which its support needs.
        headers.entry(REQUEST_ID).or_insert(id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Answers are about now and about this caller.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// `/api/agents/` → `/api/agents`, keeping method and body (307).
///
/// Only below `/api/`: a target such as `//host/` would otherwise send the client elsewhere.
fn without_trailing_slash(uri: &Uri) -> Option<Response> {
    let path = uri.path();
    if !path.starts_with("/api/") || !path.ends_with('/') {
        return None;
    }
    let mut target = path.trim_end_matches('/').to_owned();
    if let Some(query) = uri.query() {
        target.push('?');
        target.push_str(query);
    }
    let target = HeaderValue::from_str(&target).ok()?;
    Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target)]).into_response())
}

/// Names requests, so that a client's report finds its lines in the log.
#[derive(Debug)]
struct RequestIds {
    /// Differs from start to start. Not a secret, so the hasher's random keys will do.
    start: u32,
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        let random = RandomState::new().build_hasher().finish();
        let start = u32::try_from(random >> 32).expect("32 bits were shifted out");
        Self { start, next: AtomicU64::new(1) }
    }

    /// The client's own id when it is short and plain, else a new one.
    fn of(&self, headers: &HeaderMap) -> String {
        let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        match given {
            Some(id) if (1..=64).contains(&id.len()) && id.bytes().all(plain) => id.to_owned(),
            Some(_) | None => {
                let n = self.next.fetch_add(1, Ordering::Relaxed);
                format!("req-{:08x}-{n}", self.start)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The size of what a function answers, without calling it.
    fn size<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn addresses_of_one_host_count_as_one_client() {
        for (client, counts) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.9.9.9", "127.0.0.1"),
            ("::1", "127.0.0.1"),
            ("::ffff:127.0.0.2", "127.0.0.1"),
            ("::ffff:10.0.0.2", "10.0.0.2"),
            ("10.0.0.2", "10.0.0.2"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ] {
            assert_eq!(whose(client.parse().unwrap()), counts.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn a_waiting_request_takes_little_memory() {
        let handling = size(Front::handle);
        assert!(handling <= 2_500, "{handling} bytes");
    }

    fn moved(target: &str) -> Option<String> {
        let response = without_trailing_slash(&target.parse().unwrap())?;
        assert_eq!(response.status(), 307);
        Some(response.headers()["location"].to_str().unwrap().to_owned())
    }

    #[test]
    fn a_trailing_slash_is_removed_and_the_query_kept() {
        assert_eq!(moved("/api/agents/").as_deref(), Some("/api/agents"));
        assert_eq!(
            moved("/api/runs/x/steps//?limit=1").as_deref(),
            Some("/api/runs/x/steps?limit=1")
        );
        for other in ["/", "/health/", "//evil.example/", "/api/agents", "/apix/"] {
            assert_eq!(moved(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_in_a_path_is_not_logged() {
        for (path, shown) in [
            ("/mesh/blackboard/ann/x", "/mesh/blackboard/ann/x"),
            ("/mesh/blackboard/ovs_1a.1.ff/x", "/mesh/blackboard/…/x"),
            ("/api/services/bot/botsk-ovm-1-2/send", "/api/services/bot/…/send"),
            ("/ova_12", "/…"),
            ("/ovk_12/", "/…/"),
        ] {
            assert_eq!(without_tokens(path), shown, "{path}");
        }
    }

    #[test]
    fn request_ids_are_unique_and_hostile_ones_replaced() {
        let ids = RequestIds::new();
        let mut headers = HeaderMap::new();
        let (first, second) = (ids.of(&headers), ids.of(&headers));
        assert_ne!(first, second);
        headers.insert("x-request-id", HeaderValue::from_static("trace-7.a_b"));
        assert_eq!(ids.of(&headers), "trace-7.a_b");
        for bad in ["", "a b", "x\"y", &"x".repeat(65)] {
            headers.insert("x-request-id", HeaderValue::from_str(bad).unwrap());
            assert!(ids.of(&headers).starts_with("req-"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_redirect_never_leaves_this_server(path in "/[ -~]{0,40}/") {
            let Ok(uri) = path.parse::<Uri>() else { return Ok(()) };
            if let Some(response) = without_trailing_slash(&uri) {
                let target = response.headers()["location"].to_str().unwrap();
                prop_assert!(target.starts_with("/api"), "{}", target);
            }
        }
    }
}
