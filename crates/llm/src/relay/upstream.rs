//! The connections for relayed calls: hyper's client and its pool, with no layers around them.
//!
//! Our own calls go through `reqwest`. Relayed calls must not have some of its layers
//! (redirections, decompression, cookies) and get others elsewhere (time limits, retries). These
//! layers would cost each call more than all our own decisions about it. The shared settings are
//! explained at [`Gateway::client`](crate::Gateway): no proxy, no redirection, the same connection
//! limits.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue, USER_AGENT};
use http::uri::Scheme;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::Service;

use super::carrier::Carrier;

/// How long an idle connection may wait for its next call.
pub(crate) const POOL_IDLE: Duration = Duration::from_secs(60);
/// Maximum number of idle connections to one provider.
pub(crate) const POOL_SIZE: usize = 256;
/// The time of silence after which a peer is pinged, and the interval of the pings.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// How many times a call is sent again if the provider returned it unprocessed, as HTTP/2 allows.
const SENT_BACK: u32 = 2;

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("overmind/", env!("CARGO_PKG_VERSION")));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Calls that one HTTP/2 connection carries before another is opened. Providers allow 100 or 128
/// and let further calls wait.
const STREAMS: usize = 64;
/// Maximum number of HTTP/2 connections to one provider. If all are full, the one with the fewest
/// calls takes more.
const LANES: usize = 32;

/// Calls providers over HTTP/1.1 or, if TLS negotiates it, HTTP/2. Clones share their connections.
#[derive(Clone, Debug)]
pub(crate) struct Upstream(Arc<[Arc<Lane>]>);

/// A client with its own connections; over HTTP/2 it has one connection to each provider.
#[derive(Debug)]
struct Lane {
    client: Client<Connector, Full<Bytes>>,
    /// The TLS calls in progress, to any provider.
    calls: AtomicUsize,
}

/// A call's slot in a lane, held until its answer is dropped.
#[derive(Debug)]
struct Place(Arc<Lane>);

impl Place {
    /// Takes a slot in the first lane that has room: few connections are better than many.
    fn take(lanes: &[Arc<Lane>]) -> Self {
        let calls = |lane: &&Arc<Lane>| lane.calls.load(Ordering::Relaxed);
        let room = lanes.iter().find(|lane| calls(lane) < STREAMS);
        let lane = room.or_else(|| lanes.iter().min_by_key(calls)).unwrap_or(&lanes[0]);
        lane.calls.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(lane))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    body: Incoming,
    _place: Option<Place>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Unasked {
    /// There was no connection, so nothing was sent.
    pub(crate) is_connect: bool,
    /// The provider reported that it did not process the call.
    pub(crate) is_sent_back: bool,
    pub(crate) err: BoxError,
}

impl Upstream {
    /// `connect` is the longest time that a connection may take to open, including TLS.
    pub(crate) fn new(connect: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(connect));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let connector = Connector { http, tls: Arc::default(), limit: connect };
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_SIZE);
        let client = || builder.build(connector.clone());
        let lane = |_| Arc::new(Lane { client: client(), calls: AtomicUsize::new(0) });
        Self((0..LANES).map(lane).collect())
    }

    /// Sends a call and returns the head of the provider's answer.
    ///
    /// # Errors
    ///
    /// [`Unasked`] tells whether the call can have reached the provider.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the call, and also its connection if that carries no other call.
    pub(crate) async fn post(
        &self,
        to: &Uri,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<AnswerBody>, Unasked> {
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        headers.entry(USER_AGENT).or_insert(AGENT);
        // Only HTTP/2 reports that a call was not processed, and we use HTTP/2 over TLS only.
        let may_be_h2 = to.scheme() == Some(&Scheme::HTTPS);
        let mut again = may_be_h2.then(|| (headers.clone(), SENT_BACK));
        let place = may_be_h2.then(|| Place::take(&self.0));
        let client = &place.as_ref().map_or(&self.0[0], |place| &place.0).client;
        loop {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = to.clone();
            *request.headers_mut() = headers;
            let err = match client.request(request).await {
                Ok(response) => return Ok(response.map(|body| AnswerBody { body, _place: place })),
                Err(err) => err,
            };
            match &mut again {
                Some((same, left)) if *left > 0 && is_sent_back(&err) => {
                    *left -= 1;
                    headers = same.clone();
                }
                Some(_) | None => {
                    let (is_connect, is_sent_back) = (err.is_connect(), is_sent_back(&err));
                    return Err(Unasked { is_connect, is_sent_back, err: Box::new(err) });
                }
            }
        }
    }
}

/// The next bytes of a body; `None` at its end. Trailers are dropped.
///
/// # Errors
///
/// Fails if the connection was lost or the data is not valid HTTP.
///
/// # Cancel safety
///
/// Dropping the future loses no data.
pub(crate) async fn chunk(answer: &mut AnswerBody) -> Result<Option<Bytes>, hyper::Error> {
    loop {
        match answer.body.frame().await {
            None => return Ok(None),
            Some(Err(err)) => return Err(err),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Whether the provider reports that it did not begin a call: it closes the connection, or refuses
/// the one stream.
fn is_sent_back(err: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(err);
    while let Some(err) = next {
        if let Some(err) = err.downcast_ref::<h2::Error>() {
            let closes = err.is_go_away() && err.reason() == Some(h2::Reason::NO_ERROR);
            let refuses = err.is_reset() && err.reason() == Some(h2::Reason::REFUSED_STREAM);
            return err.is_remote() && (closes || refuses);
        }
        next = err.source();
    }
    false
}

/// Opens connections, with TLS if the address asks for it.
#[derive(Clone, Debug)]
struct Connector {
    http: HttpConnector,
    /// Made when the first address needs it, because it holds the machine's certificates.
    tls: Arc<OnceLock<Result<Arc<rustls::ClientConfig>, String>>>,
    limit: Duration,
}

impl Service<Uri> for Connector {
    type Response = Carrier;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Self { mut http, tls, limit } = self.clone();
        Box::pin(async move {
            let connecting = async {
                if to.scheme() != Some(&Scheme::HTTPS) {
                    return Ok(Carrier::Plain(http.call(to).await?));
                }
                let config = tls.get_or_init(trusting).clone().map_err(io::Error::other)?;
                let secured = HttpsConnector::from((http, config)).call(to).await?;
                Ok(Carrier::Secured(Box::new(secured)))
            };
            match tokio::time::timeout(limit, connecting).await {
                Ok(done) => done,
                Err(_) => {
                    let text = format!("no connection after {} s", limit.as_secs_f64());
                    Err(io::Error::new(io::ErrorKind::TimedOut, text).into())
                }
            }
        })
    }
}

/// The TLS configuration, which trusts the machine's certificates.
fn trusting() -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(&provider))
        .map_err(|err| format!("reading this machine's certificates: {err}"))?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .map_err(|err| err.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
