//! A stream of server-sent events that survives broken connections.
//!
//! A [`Reader`] decodes its messages. All streams share the handling of heartbeats, errors, the
//! server's shutdown, and resuming after the last message.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use overmind_api::Problem;

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::sse::{Frame, Parser};

/// Time without data after which the server counts as lost. It sends a heartbeat every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Shortest and longest wait between two attempts to resume. The wait doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// One message of a stream.
pub(crate) struct Message {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: String,
}

/// The decoded message.
pub(crate) enum Said<T> {
    Item(T),
    /// The last item of the stream.
    Last(T),
    /// A message of a newer server that this client does not know.
    Unknown,
}

/// Decodes the messages of a stream.
pub(crate) trait Reader {
    type Item;

    fn read(&self, message: Message) -> Result<Said<Self::Item>, serde_json::Error>;
}

/// The start of a stream, and how often it is resumed.
#[derive(Debug)]
pub(crate) struct From {
    /// What is attempted, for errors: `watching the inbox`.
    pub(crate) attempt: String,
    /// The path and the query.
    pub(crate) target: String,
    /// The id after which the stream starts.
    pub(crate) last: Option<String>,
    /// Consecutive attempts to resume a broken stream, before its error is returned.
    pub(crate) max_resumes: u32,
    /// Whether the end of the server's data is the end of the stream. Otherwise it is a break.
    pub(crate) ends: bool,
}

#[derive(Debug)]
pub(crate) struct Stream<R> {
    client: Client,
    reader: R,
    /// Where to resume. Its `last` is updated with each message.
    from: From,
    body: Option<Incoming>,
    parser: Parser,
    frames: VecDeque<Frame>,
    failures: u32,
    /// Whether the server announced that it ends the stream early.
    cut: bool,
    ended: bool,
}

impl<R: Reader> Stream<R> {
    /// Connects at once, so that a refusal is an error here and not at the first item.
    pub(crate) async fn open(client: Client, from: From, reader: R) -> Result<Self, ClientError> {
        let mut stream = Self {
            client,
            reader,
            from,
            body: None,
            parser: Parser::default(),
            frames: VecDeque::new(),
            failures: 0,
            cut: false,
            ended: false,
        };
        stream.connect().await?;
        Ok(stream)
    }

    /// Returns the next item; `None` after the last one and after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. It is then over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub(crate) async fn next(&mut self) -> Option<Result<R::Item, ClientError>> {
        loop {
            if self.ended {
                return None;
            }
            while let Some(frame) = self.frames.pop_front() {
                match self.read(frame) {
                    Ok(Some(item)) => return Some(Ok(item)),
                    Ok(None) => {}
                    Err(err) if err.is_passing() => self.cut = true,
                    Err(err) => return Some(Err(self.over(err))),
                }
            }
            let failed = match self.pull().await {
                Ok(true) => continue,
                Ok(false) if self.from.ends && !self.cut => {
                    self.ended = true;
                    return None;
                }
                Ok(false) => None,
                Err(err) if err.is_passing() => Some(err),
                Err(err) => return Some(Err(self.over(err))),
            };
            if let Err(err) = self.resume(failed).await {
                return Some(Err(self.over(err)));
            }
        }
    }

    fn over(&mut self, err: ClientError) -> ClientError {
        self.ended = true;
        err
    }

    /// Reads more bytes. Returns false at the end of the body.
    async fn pull(&mut self) -> Result<bool, ClientError> {
        let Some(body) = self.body.as_mut() else { return Ok(false) };
        let target = || self.client.target().to_string();
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Err(_) => return Err(ClientError::Timeout { target: target(), after: SILENCE }),
            Ok(None) => return Ok(false),
            Ok(Some(Err(err))) => {
                let (source, attempt) = (Box::new(err), self.from.attempt.clone());
                return Err(ClientError::Broken { target: target(), attempt, source });
            }
            Ok(Some(Ok(frame))) => frame,
        };
        if let Some(bytes) = frame.data_ref() {
            let mut out = Vec::new();
            self.parser.push(bytes, &mut out).map_err(|err| self.unreadable(&err))?;
            self.frames.extend(out);
        }
        Ok(true)
    }

    fn read(&mut self, frame: Frame) -> Result<Option<R::Item>, ClientError> {
        let (id, event, data) = match frame {
            Frame::Message { id, event, data } => (id, event, data),
            Frame::Comment(text) => {
                // Any other comment is a heartbeat: the stream works.
                if text.starts_with("the server is shutting down") {
                    self.cut = true;
                } else {
                    self.failures = 0;
                }
                return Ok(None);
            }
        };
        if event.as_deref() == Some("error") {
            let problem: Problem =
                serde_json::from_str(&data).map_err(|err| self.unreadable(&err))?;
            return Err(ClientError::Refused(Box::new(problem)));
        }
        let said = self.reader.read(Message { id: id.clone(), event, data });
        let item = match said.map_err(|err| self.unreadable(&err))? {
            Said::Item(item) => item,
            Said::Last(item) => {
                self.ended = true;
                item
            }
            Said::Unknown => return Ok(None),
        };
        self.failures = 0;
        self.from.last = id.or(self.from.last.take());
        Ok(Some(item))
    }

    /// Connects again after a pause, as often as allowed.
    async fn resume(&mut self, mut failed: Option<ClientError>) -> Result<(), ClientError> {
        self.body = None;
        loop {
            if self.failures >= self.from.max_resumes {
                return Err(failed.unwrap_or_else(|| ClientError::Broken {
                    target: self.client.target().to_string(),
                    attempt: self.from.attempt.clone(),
                    source: "the server ended the stream".into(),
                }));
            }
            let (first, last) = PAUSES;
            let pause = first.saturating_mul(1 << self.failures.min(16)).min(last);
            self.failures += 1;
            // A pause, in the words that are not banned: nothing else is waited for here.
            let _ = tokio::time::timeout(pause, pending::<()>()).await;
            match self.connect().await {
                Ok(()) => return Ok(()),
                Err(err) if err.is_passing() => failed = Some(err),
                Err(err) => return Err(err),
            }
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let mut headers = vec![(ACCEPT, "text/event-stream".to_owned())];
        headers.extend(self.from.last.clone().map(|id| (LAST_EVENT_ID, id)));
        let call = Call {
            method: Method::GET,
            target: &self.from.target,
            headers,
            body: None,
            patience: Patience::Long,
            also_fine: &[],
        };
        let response = self.client.connections().open(&call).await?;
        self.parser = Parser::default();
        self.frames.clear();
        self.cut = false;
        self.body = Some(response.into_body());
        Ok(())
    }

    fn unreadable(&self, why: &dyn std::fmt::Display) -> ClientError {
        let attempt = self.from.attempt.clone();
        ClientError::Unreadable { attempt, why: why.to_string() }
    }
}
