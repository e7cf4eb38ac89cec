//! Connections to one target, which are kept and reused.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use overmind_api::{COLONY_HEADER, Problem};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::error::ClientError;
use crate::target::Target;
use crate::tls;

/// Maximum number of idle connections that are kept for later requests.
const MAX_IDLE: usize = 32;
/// Largest answer that is read, in bytes; far above any page of a list.
const MAX_ANSWER: usize = 256 << 20;
/// Longest part of an unknown answer that is shown, in bytes.
const MAX_SHOWN: usize = 200;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// PEM file of the root certificates to trust in place of the machine's.
    pub ca_file: Option<PathBuf>,
    /// Time limit of the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// Time limit of one short request, including its answer. Long ones (audit, backup, tool calls,
    /// forks) wait as long as the server does.
    pub request_timeout: Duration,
    /// The trace span of all requests, in the form of the header `traceparent`.
    pub traceparent: Option<String>,
    /// The colony of all requests; `*` lists those of all colonies.
    pub colony: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ca_file: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            traceparent: None,
            colony: None,
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// How long to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Quick,
    /// The work itself is long; the server limits its duration.
    Long,
}

/// One call: the request, and how long to wait.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) target: &'a str,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) body: Option<Bytes>,
    pub(crate) patience: Patience,
    /// Statuses that are answers here and not errors, in addition to the successes.
    pub(crate) also_fine: &'static [u16],
}

impl Call<'_> {
    fn name(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// What was attempted, for errors about the body.
    pub(crate) attempt: String,
}

pub(crate) struct Connections {
    pub(crate) target: Target,
    token: Option<HeaderValue>,
    options: Options,
    idle: Mutex<Vec<Sender>>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out.
        f.debug_struct("Connections").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Connections {
    pub(crate) fn new(
        target: Target,
        token: Option<&str>,
        options: Options,
    ) -> Result<Self, ClientError> {
        let token = match token {
            None => None,
            Some(token) => {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
                        ClientError::Argument { what: "the token", why: "it is not plain text" }
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { target, token, options, idle: Mutex::default() })
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Answer, ClientError> {
        let limit = match call.patience {
            Patience::Quick => Some(self.options.request_timeout),
            Patience::Long => None,
        };
        let Some(after) = limit else { return self.call_untimed(&call).await };
        tokio::time::timeout(after, self.call_untimed(&call)).await.unwrap_or_else(|_| {
            Err(ClientError::Timeout { target: self.target.to_string(), after })
        })
    }

    async fn call_untimed(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        let attempt = call.name();
        let (response, sender) = self.send(call).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER)
            .collect()
            .await
            .map_err(|source| self.broken(&attempt, source))?
            .to_bytes();
        self.keep(sender);
        if head.status.is_success() || call.also_fine.contains(&head.status.as_u16()) {
            return Ok(Answer { headers: head.headers, body, attempt });
        }
        Err(self.refusal(attempt, head.status.as_u16(), &body))
    }

    /// Opens a stream. The connection is closed after it.
    pub(crate) async fn open(&self, call: &Call<'_>) -> Result<Response<Incoming>, ClientError> {
        let (response, _sender) = self.send(call).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = Limited::new(response.into_body(), 1 << 20).collect().await;
        let body = body.map_err(|source| self.broken(&call.name(), source))?.to_bytes();
        Err(self.refusal(call.name(), status.as_u16(), &body))
    }

    /// Upgrades the connection to another protocol. Returns the connection and the server's answer.
    pub(crate) async fn upgrade(
        &self,
        call: &Call<'_>,
    ) -> Result<(Upgraded, HeaderMap), ClientError> {
        let work = async {
            let (response, _sender) = self.send(call).await?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let headers = response.headers().clone();
                let upgraded = hyper::upgrade::on(response).await;
                let upgraded = upgraded.map_err(|source| self.broken(&call.name(), source))?;
                return Ok((upgraded, headers));
            }
            let body = Limited::new(response.into_body(), 1 << 20).collect().await;
            let body = body.map_err(|source| self.broken(&call.name(), source))?.to_bytes();
            Err(self.refusal(call.name(), status.as_u16(), &body))
        };
        let after = self.options.request_timeout;
        tokio::time::timeout(after, work).await.unwrap_or_else(|_| {
            Err(ClientError::Timeout { target: self.target.to_string(), after })
        })
    }

    fn refusal(&self, attempt: String, status: u16, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => {
                let shown: String =
                    String::from_utf8_lossy(body).trim().chars().take(MAX_SHOWN).collect();
                ClientError::Foreign {
                    target: self.target.to_string(),
                    attempt,
                    status,
                    body: shown,
                }
            }
        }
    }

    async fn send(&self, call: &Call<'_>) -> Result<(Response<Incoming>, Sender), ClientError> {
        // A kept connection may have been closed by the server in the meantime. When the request
        // never left, or asks only to read, a fresh connection gets it; else it could be done twice.
        let harmless = matches!(call.method, Method::GET | Method::HEAD);
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(self.request(call)?).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut err) => {
                    if err.take_message().is_none() && !harmless {
                        return Err(self.broken(&call.name(), err.into_error()));
                    }
                }
            }
        }
        let mut sender = self.connect().await?;
        let sent = sender.send_request(self.request(call)?).await;
        let response = sent.map_err(|err| self.broken(&call.name(), err))?;
        Ok((response, sender))
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.target)
            .header(header::HOST, self.target.authority())
            .header(header::USER_AGENT, concat!("overmind-client/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token.clone());
        }
        if let Some(span) = &self.options.traceparent {
            request = request.header("traceparent", span);
        }
        if let Some(colony) = &self.options.colony {
            request = request.header(COLONY_HEADER, colony);
        }
        let is_named = call.headers.iter().any(|(name, _)| *name == header::CONTENT_TYPE);
        if call.body.is_some() && !is_named {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(call.body.clone().unwrap_or_default())).map_err(|_| {
            ClientError::Argument {
                what: "a header or path",
                why: "it holds a forbidden character",
            }
        })
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let after = self.options.connect_timeout;
        tokio::time::timeout(after, self.connect_untimed()).await.unwrap_or_else(|_| {
            let source =
                io::Error::new(io::ErrorKind::TimedOut, format!("nothing within {after:?}"));
            Err(ClientError::Connect { target: self.target.to_string(), source })
        })
    }

    async fn connect_untimed(&self) -> Result<Sender, ClientError> {
        let fail = |source| ClientError::Connect { target: self.target.to_string(), source };
        match &self.target {
            Target::Unix(path) => self.begin(UnixStream::connect(path).await.map_err(fail)?).await,
            Target::Http(origin) => {
                let address = (origin.host.as_str(), origin.port);
                let stream = TcpStream::connect(address).await.map_err(fail)?;
                let _ = stream.set_nodelay(true);
                if !origin.tls {
                    return self.begin(stream).await;
                }
                let ca_file = self.options.ca_file.as_deref();
                let shaken = Box::pin(tls::handshake(stream, &origin.host, ca_file)).await;
                let target = || self.target.to_string();
                self.begin(shaken.map_err(|why| ClientError::Tls { target: target(), why })?).await
            }
        }
    }

    async fn begin<Io>(&self, io: Io) -> Result<Sender, ClientError>
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            handshake(TokioIo::new(io)).await.map_err(|err| self.broken("connecting", err))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a client has nothing to drain: the task ends when the connection's sender is dropped"
        )]
        tokio::spawn(async move {
            // A request that waits on it gets the error.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    fn broken(
        &self,
        attempt: &str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        let target = self.target.to_string();
        ClientError::Broken { target, attempt: attempt.to_owned(), source: source.into() }
    }

    fn take_idle(&self) -> Option<Sender> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }
}
