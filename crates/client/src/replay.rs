//! A run's timeline as it comes, across broken connections.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use overmind_api::{Done, Problem, Timeline};

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::TargetPath;
use crate::sse::{Frame, Parser};

/// The server gives a sign of life every 15 seconds; after this long it is taken for gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Between two tries to resume: doubles from the first to the last of these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Stay until the run ends.
    pub follow: bool,
    /// Begin after this item.
    pub after: Option<String>,
    /// Tries in a row to resume a stream that broke, before its error is handed out.
    pub max_resumes: u32,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { follow: false, after: None, max_resumes: 10 }
    }
}

/// What a replay says.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayItem {
    Entry {
        /// To resume after it: [`ReplayOptions::after`].
        id: String,
        entry: Box<Timeline>,
        /// The entry as the server sent it.
        json: String,
    },
    /// The run has ended; nothing follows.
    Done(Done),
}

/// A replay under way. Resumes by itself where the connection broke; nothing comes twice.
#[derive(Debug)]
pub struct Replay {
    client: Client,
    run: String,
    options: ReplayOptions,
    body: Option<Incoming>,
    parser: Parser,
    frames: VecDeque<Frame>,
    /// Of the last item handed out.
    last: Option<String>,
    failures: u32,
    /// The server ended the stream early and said so.
    cut: bool,
    ended: bool,
}

impl Replay {
    /// Connects, so that an unknown run is an error here and not at the first item.
    pub(crate) async fn open(
        client: Client,
        run: &str,
        options: ReplayOptions,
    ) -> Result<Self, ClientError> {
        let mut replay = Self {
            client,
            run: run.to_owned(),
            body: None,
            parser: Parser::default(),
            frames: VecDeque::new(),
            last: options.after.clone(),
            options,
            failures: 0,
            cut: false,
            ended: false,
        };
        replay.connect().await?;
        Ok(replay)
    }

    /// The next item; `None` after [`ReplayItem::Done`], and at the end of what is stored when
    /// the replay does not follow.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the stream broke and could not be resumed; the replay is over then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call goes on.
    pub async fn next(&mut self) -> Option<Result<ReplayItem, ClientError>> {
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
                // The end of a replay that does not follow and was not cut is its end.
                Ok(false) if !self.options.follow && !self.cut => {
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

    /// Reads more bytes. False at the end of the body.
    async fn pull(&mut self) -> Result<bool, ClientError> {
        let attempt = || format!("replaying {}", self.run);
        let Some(body) = self.body.as_mut() else { return Ok(false) };
        let target = || self.client.target().to_string();
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Err(_) => return Err(ClientError::Timeout { target: target(), after: SILENCE }),
            Ok(None) => return Ok(false),
            Ok(Some(Err(err))) => {
                let source = Box::new(err);
                return Err(ClientError::Broken { target: target(), attempt: attempt(), source });
            }
            Ok(Some(Ok(frame))) => frame,
        };
        if let Some(bytes) = frame.data_ref() {
            let mut out = Vec::new();
            self.parser.push(bytes, &mut out).map_err(|err| ClientError::Unreadable {
                attempt: attempt(),
                why: err.to_string(),
            })?;
            self.frames.extend(out);
        }
        Ok(true)
    }

    fn read(&mut self, frame: Frame) -> Result<Option<ReplayItem>, ClientError> {
        let unreadable = |run: &str, err: serde_json::Error| ClientError::Unreadable {
            attempt: format!("replaying {run}"),
            why: err.to_string(),
        };
        match frame {
            Frame::Comment(text) => {
                // Any other comment is a sign of life: the stream works.
                if text.starts_with("the server is shutting down") {
                    self.cut = true;
                } else {
                    self.failures = 0;
                }
                Ok(None)
            }
            Frame::Message { event: Some(event), data, .. } if event == "done" => {
                self.ended = true;
                let done = serde_json::from_str(&data).map_err(|err| unreadable(&self.run, err))?;
                Ok(Some(ReplayItem::Done(done)))
            }
            Frame::Message { event: Some(event), data, .. } if event == "error" => {
                let problem: Problem =
                    serde_json::from_str(&data).map_err(|err| unreadable(&self.run, err))?;
                Err(ClientError::Refused(Box::new(problem)))
            }
            Frame::Message { id: Some(id), event: None, data } => {
                let entry =
                    serde_json::from_str(&data).map_err(|err| unreadable(&self.run, err))?;
                self.failures = 0;
                self.last = Some(id.clone());
                Ok(Some(ReplayItem::Entry { id, entry: Box::new(entry), json: data }))
            }
            // Newer servers may say more.
            Frame::Message { .. } => Ok(None),
        }
    }

    /// Connects again after a pause, as often as allowed.
    async fn resume(&mut self, mut failed: Option<ClientError>) -> Result<(), ClientError> {
        self.body = None;
        loop {
            if self.failures >= self.options.max_resumes {
                return Err(failed.unwrap_or_else(|| ClientError::Broken {
                    target: self.client.target().to_string(),
                    attempt: format!("replaying {}", self.run),
                    source: "the server ended the stream again and again".into(),
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
        let target = TargetPath::new("/api/runs")
            .segment(&self.run)
            .then("/replay")
            .query("follow", self.options.follow.then_some(1));
        let mut headers = vec![(ACCEPT, "text/event-stream".to_owned())];
        headers.extend(self.last.clone().map(|id| (LAST_EVENT_ID, id)));
        let response = self
            .client
            .connections()
            .open(&Call {
                method: Method::GET,
                target: target.as_str(),
                headers,
                body: None,
                patience: Patience::Long,
                also_fine: None,
            })
            .await?;
        self.parser = Parser::default();
        self.frames.clear();
        self.cut = false;
        self.body = Some(response.into_body());
        Ok(())
    }
}
