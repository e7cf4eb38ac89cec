//! The inbox as it changes, across broken connections.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use overmind_api::{InboxItem, InboxSnapshot, Problem};

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::sse::{Frame, Parser};

const PATH: &str = "/api/inbox/events";
const ATTEMPT: &str = "watching the inbox";
/// The server gives a sign of life every 15 seconds; after this long it is taken for gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Between two tries to resume: doubles from the first to the last of these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What the stream says.
#[derive(Clone, Debug, PartialEq)]
pub enum InboxNews {
    /// An item that is open.
    Opened(Box<InboxItem>),
    /// An item that was answered or withdrawn; it may not have been seen open before.
    Closed(Box<InboxItem>),
    /// All that was open has been told; what follows happens now.
    Snapshot(InboxSnapshot),
}

/// The inbox as it changes. Resumes by itself where the connection broke; after that an item may
/// come a second time, as it stands then.
#[derive(Debug)]
pub struct InboxWatch {
    client: Client,
    /// To resume after.
    last: Option<String>,
    max_resumes: u32,
    body: Option<Incoming>,
    parser: Parser,
    frames: VecDeque<Frame>,
    failures: u32,
    ended: bool,
}

impl InboxWatch {
    /// Connects, so that a refusal is an error here and not at the first item.
    pub(crate) async fn open(
        client: Client,
        after: Option<String>,
        max_resumes: u32,
    ) -> Result<Self, ClientError> {
        let mut watch = Self {
            client,
            last: after,
            max_resumes,
            body: None,
            parser: Parser::default(),
            frames: VecDeque::new(),
            failures: 0,
            ended: false,
        };
        watch.connect().await?;
        Ok(watch)
    }

    /// The next news; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the stream broke and could not be resumed; it is over then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call goes on.
    pub async fn next(&mut self) -> Option<Result<InboxNews, ClientError>> {
        loop {
            if self.ended {
                return None;
            }
            let mut failed = None;
            while let Some(frame) = self.frames.pop_front() {
                match self.read(frame) {
                    Ok(Some(news)) => return Some(Ok(news)),
                    Ok(None) => {}
                    Err(err) => failed = Some(err),
                }
            }
            if failed.is_none() {
                match self.pull().await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(err) => failed = Some(err),
                }
            }
            let resumed = match failed {
                Some(err) if !err.is_passing() => Err(err),
                passing => self.resume(passing).await,
            };
            if let Err(err) = resumed {
                self.ended = true;
                return Some(Err(err));
            }
        }
    }

    /// Reads more bytes. False at the end of the body.
    async fn pull(&mut self) -> Result<bool, ClientError> {
        let Some(body) = self.body.as_mut() else { return Ok(false) };
        let target = || self.client.target().to_string();
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Err(_) => return Err(ClientError::Timeout { target: target(), after: SILENCE }),
            Ok(None) => return Ok(false),
            Ok(Some(Err(err))) => {
                let (source, attempt) = (Box::new(err), ATTEMPT.to_owned());
                return Err(ClientError::Broken { target: target(), attempt, source });
            }
            Ok(Some(Ok(frame))) => frame,
        };
        if let Some(bytes) = frame.data_ref() {
            let mut out = Vec::new();
            self.parser.push(bytes, &mut out).map_err(|err| unreadable(&err))?;
            self.frames.extend(out);
        }
        Ok(true)
    }

    fn read(&mut self, frame: Frame) -> Result<Option<InboxNews>, ClientError> {
        let Frame::Message { id, event, data } = frame else {
            self.failures = 0;
            return Ok(None);
        };
        let item = || serde_json::from_str(&data).map(Box::new).map_err(|err| unreadable(&err));
        let news = match event.as_deref() {
            Some("opened") => InboxNews::Opened(item()?),
            Some("closed") => InboxNews::Closed(item()?),
            Some("snapshot") => {
                let snapshot = serde_json::from_str(&data).map_err(|err| unreadable(&err))?;
                InboxNews::Snapshot(snapshot)
            }
            Some("error") => {
                let problem: Problem =
                    serde_json::from_str(&data).map_err(|err| unreadable(&err))?;
                return Err(ClientError::Refused(Box::new(problem)));
            }
            // Newer servers may say more.
            Some(_) | None => return Ok(None),
        };
        self.failures = 0;
        self.last = id.or(self.last.take());
        Ok(Some(news))
    }

    /// Connects again after a pause, as often as allowed.
    async fn resume(&mut self, mut failed: Option<ClientError>) -> Result<(), ClientError> {
        self.body = None;
        loop {
            if self.failures >= self.max_resumes {
                return Err(failed.unwrap_or_else(|| ClientError::Broken {
                    target: self.client.target().to_string(),
                    attempt: ATTEMPT.to_owned(),
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
        headers.extend(self.last.clone().map(|id| (LAST_EVENT_ID, id)));
        let call = Call {
            method: Method::GET,
            target: PATH,
            headers,
            body: None,
            patience: Patience::Long,
            also_fine: None,
        };
        let response = self.client.connections().open(&call).await?;
        self.parser = Parser::default();
        self.frames.clear();
        self.body = Some(response.into_body());
        Ok(())
    }
}

fn unreadable(why: &dyn std::fmt::Display) -> ClientError {
    ClientError::Unreadable { attempt: ATTEMPT.to_owned(), why: why.to_string() }
}
