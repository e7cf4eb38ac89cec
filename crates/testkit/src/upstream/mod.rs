//! A model provider over a real socket, scripted by the test: OpenAI Chat Completions, OpenAI
//! Responses and Anthropic Messages, each exactly as its provider speaks it.
//!
//! ```text
//! let upstream = Upstream::start([
//!     Answer::status(429, "rate_limit_error", "slow down").header("retry-after", "0"),
//!     Say::text("hello").usage(10, 2).into(),
//! ]).await;
//! // … point a client at upstream.base_url() …
//! assert_eq!(upstream.requests()[1].body["model"], "gpt-5");
//! upstream.assert_clean();
//! ```
//!
//! The format of an answer follows the path of the request, so one script serves all three.
//! Requests are checked as strictly as the real providers do, and more: a request that one of them
//! would refuse gets its status 400, and [`Upstream::assert_clean`] names what was wrong.

mod answer;
mod check;
mod encode;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use answer::{Answer, Say};
pub use encode::{stream_of, whole_of};

use answer::{Ending, Kind};

/// The format of a request, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Chat,
    Responses,
    Messages,
}

impl Wire {
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    fn of_path(path: &str) -> Option<Self> {
        if path.ends_with("/chat/completions") {
            Some(Self::Chat)
        } else if path.ends_with("/responses") {
            Some(Self::Responses)
        } else if path.ends_with("/messages") {
            Some(Self::Messages)
        } else {
            None
        }
    }
}

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Null when the body was not JSON.
    pub body: Value,
    pub wire: Option<Wire>,
    /// The reasons for which the provider would have refused.
    pub violations: Vec<String>,
}

impl Received {
    /// Whether it asks how many tokens a call has, and not for one.
    pub fn is_count(&self) -> bool {
        self.path.ends_with("/messages/count_tokens")
    }
}

type Make = Box<dyn Fn(&Received) -> Answer + Send>;

/// The answers of the upstream, request by request.
#[derive(Default)]
pub struct Script {
    answers: VecDeque<Answer>,
    then: Option<Make>,
    key: Option<String>,
    strangers: bool,
    every_path: bool,
}

impl Script {
    /// These answers, each once, in this order; a request after the last gets status 500.
    pub fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self { answers: answers.into_iter().collect(), ..Self::default() }
    }

    /// The same answer to every request.
    pub fn always(answer: impl Into<Answer>) -> Self {
        let answer = answer.into();
        Self::by(move |_| answer.clone())
    }

    /// An answer made from the request. After [`Script::new`]'s answers, if there are any.
    pub fn by(answer: impl Fn(&Received) -> Answer + Send + 'static) -> Self {
        Self { then: Some(Box::new(answer)), ..Self::default() }
    }

    /// Asks for this key in each request, in the way of the request's format; without it the
    /// answer is 401.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }
}

impl Script {
    /// Answers any client: requests of foreign programs are recorded, and not refused.
    #[must_use]
    pub fn for_strangers(mut self) -> Self {
        self.strangers = true;
        self
    }

    /// Also asks the script for requests in none of the three formats: embeddings, token counts.
    #[must_use]
    pub fn every_path(mut self) -> Self {
        self.every_path = true;
        self
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

impl<const N: usize> From<[Answer; N]> for Script {
    fn from(answers: [Answer; N]) -> Self {
        Self::new(answers)
    }
}

impl From<Answer> for Script {
    fn from(answer: Answer) -> Self {
        Self::new([answer])
    }
}

impl From<Say> for Script {
    fn from(say: Say) -> Self {
        Self::new([say.into()])
    }
}

#[derive(Debug)]
struct Shared {
    script: Script,
    requests: Vec<Received>,
}

/// The running server. Dropping it closes its connections.
#[derive(Debug)]
pub struct Upstream {
    port: u16,
    shared: Arc<Mutex<Shared>>,
    /// How many connections there were, and how many are open.
    connections: watch::Receiver<(usize, usize)>,
    task: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    /// Listens on a free port of the loopback interface, on the runtime of the caller.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test's server lives as long as its handle, which aborts it"
    )]
    pub async fn start(script: impl Into<Script>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Shared { script: script.into(), requests: Vec::new() };
        let shared = Arc::new(Mutex::new(shared));
        let (count, connections) = watch::channel((0, 0));
        let task = tokio::spawn(serve(listener, shared.clone(), count));
        Self { port, shared, connections, task }
    }

    /// Without a path: `http://127.0.0.1:PORT`.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that was asked so far.
    pub fn requests(&self) -> Vec<Received> {
        lock(&self.shared).requests.clone()
    }

    /// Adds an answer to the script's end.
    pub fn push(&self, answer: impl Into<Answer>) {
        lock(&self.shared).script.answers.push_back(answer.into());
    }

    /// Answers that were not requested yet.
    pub fn left(&self) -> usize {
        lock(&self.shared).script.answers.len()
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.connections.borrow().0
    }

    /// Waits until no connection is open.
    pub async fn idle(&self) {
        let mut connections = self.connections.clone();
        // The sender lives in the task, which ends only when the listener breaks: nothing is
        // open then either.
        let _ = connections.wait_for(|(_, open)| *open == 0).await;
    }

    /// # Panics
    ///
    /// When a request was not as the provider wants it, or an answer was not asked for.
    #[track_caller]
    pub fn assert_clean(&self) {
        for (n, request) in self.requests().iter().enumerate() {
            assert!(
                request.violations.is_empty(),
                "request {n}: {:#?}\n{:#}",
                request.violations,
                request.body
            );
        }
        assert_eq!(self.left(), 0, "answers that nobody asked for");
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    listener: TcpListener,
    shared: Arc<Mutex<Shared>>,
    count: watch::Sender<(usize, usize)>,
) {
    let count = Arc::new(count);
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // Each frame is to leave as a packet of its own.
        let _ = stream.set_nodelay(true);
        count.send_modify(|(all, open)| (*all, *open) = (*all + 1, *open + 1));
        let (shared, count) = (shared.clone(), count.clone());
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, &shared));
            // A connection that breaks is what some tests are about.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            count.send_modify(|(_, open)| *open -= 1);
        });
        while connections.try_join_next().is_some() {}
    }
}

type Body = UnsyncBoxBody<Bytes, HungUp>;

/// Makes hyper close the connection in the middle.
#[derive(Debug)]
struct HungUp;

impl fmt::Display for HungUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the script hangs up")
    }
}

impl std::error::Error for HungUp {}

async fn answer(
    request: Request<Incoming>,
    shared: &Mutex<Shared>,
) -> Result<Response<Body>, HungUp> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| HungUp)?.to_bytes();
    let headers = head.headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let mut received = Received {
        path: head.uri.path().to_owned(),
        headers: headers.collect(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        wire: Wire::of_path(head.uri.path()),
        violations: Vec::new(),
    };
    if head.method != Method::POST {
        received.violations.push(format!("method {} instead of POST", head.method));
    }
    check::check(&mut received);
    let (answer, wire) = {
        let mut shared = lock(shared);
        let answer = choose(&mut shared.script, &received);
        let wire = received.wire.unwrap_or(Wire::Chat);
        shared.requests.push(received.clone());
        (answer, wire)
    };
    respond(answer, wire, &received.body).await
}

fn choose(script: &mut Script, received: &Received) -> Answer {
    if received.wire.is_none() && !script.every_path {
        return Answer::status(404, "not_found_error", "no such endpoint");
    }
    if let Some(key) = &script.key {
        let given = match received.wire {
            Some(Wire::Messages) => received.headers.get("x-api-key").cloned(),
            None if received.is_count() => received.headers.get("x-api-key").cloned(),
            Some(Wire::Chat | Wire::Responses) | None => received
                .headers
                .get("authorization")
                .and_then(|value| value.strip_prefix("Bearer "))
                .map(str::to_owned),
        };
        if given.as_ref() != Some(key) {
            return Answer::status(401, "authentication_error", "the key is wrong");
        }
    }
    if !received.violations.is_empty() && !script.strangers {
        return Answer::status(400, "invalid_request_error", &received.violations.join("; "));
    }
    match (script.answers.pop_front(), &script.then) {
        (Some(answer), _) => answer,
        (None, Some(then)) => then(received),
        (None, None) => Answer::status(500, "api_error", "the script is at its end"),
    }
}

async fn respond(answer: Answer, wire: Wire, request: &Value) -> Result<Response<Body>, HungUp> {
    let mut response = Response::builder();
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    let full =
        |bytes: Bytes| Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync();
    let done = |response: hyper::http::response::Builder, kind: &str, body| {
        Ok(response
            .header("content-type", kind)
            .body(body)
            .expect("a script's headers are headers"))
    };
    match &answer.kind {
        Kind::HangUp => Err(HungUp),
        Kind::Hang => std::future::pending().await,
        Kind::Status { status, kind, message } => {
            let body = encode::error(wire, kind, message).to_string();
            done(response.status(*status), "application/json", full(body.into()))
        }
        Kind::Raw { status, content_type, body } => {
            done(response.status(*status), content_type, full(body.clone()))
        }
        Kind::Say(say) if answer.whole || request["stream"] != true => {
            done(response, "application/json", full(whole_of(wire, say).to_string().into()))
        }
        Kind::Say(say) => {
            let pieces = answer.pieces(stream_of(wire, say, answer.pings), wire);
            done(response, "text/event-stream; charset=utf-8", paced(pieces, &answer))
        }
    }
}

/// A body that sends each piece separately and then ends as the answer says.
#[expect(
    clippy::disallowed_methods,
    reason = "a slow provider is slow in real time: the client's socket timeouts are"
)]
fn paced(pieces: Vec<Bytes>, answer: &Answer) -> Body {
    let (drip, ending) = (answer.drip, answer.ending);
    let steps = stream::unfold(pieces.into_iter(), move |mut pieces| async move {
        // A repeated request makes hyper send its buffer, so that no two pieces are in one write.
        tokio::task::yield_now().await;
        if !drip.is_zero() {
            tokio::time::sleep(drip).await;
        }
        match (pieces.next(), ending) {
            (Some(piece), _) => Some((Ok(Frame::data(piece)), pieces)),
            (None, Ending::Whole) => None,
            (None, Ending::Cut) => Some((Err(HungUp), pieces)),
            (None, Ending::Stall) => std::future::pending().await,
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(steps))
}
