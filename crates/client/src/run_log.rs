//! What a run's command has written, as it comes.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::TargetPath;

/// Which part of a log, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// From this place on; excludes `tail` and `since`.
    pub offset: Option<u64>,
    /// Only the last so many lines; excludes `since`.
    pub tail: Option<u64>,
    /// Only lines written since this time.
    pub since: Option<String>,
    /// Go on until the run ends. A quiet program is silent for as long as it likes: nothing but
    /// the end of the connection ends this.
    pub follow: bool,
    /// Only lines in which this regular expression is found.
    pub grep: Option<String>,
    /// Without colours and other control sequences.
    pub strip: bool,
    /// One JSON object a line, with places to go on from, in place of the text alone.
    pub objects: bool,
}

/// A log under way.
#[derive(Debug)]
pub struct RunLog {
    body: Incoming,
    target: String,
    follow: bool,
}

/// How long a server may say nothing while it reads a log that is there.
const SILENCE: Duration = Duration::from_secs(60);

impl RunLog {
    pub(crate) async fn open(
        client: &Client,
        run: &str,
        options: &LogOptions,
    ) -> Result<Self, ClientError> {
        let target = TargetPath::new("/api/runs")
            .segment(run)
            .then("/log")
            .query("offset", options.offset)
            .query("tail", options.tail)
            .query("since", options.since.as_ref())
            .query("follow", options.follow.then_some(true))
            .query("grep", options.grep.as_ref())
            .query("strip", options.strip.then_some(true))
            .query("format", options.objects.then_some("ndjson"));
        let response = client
            .connections()
            .open(&Call {
                method: Method::GET,
                target: target.as_str(),
                headers: Vec::new(),
                body: None,
                patience: Patience::Long,
                also_fine: &[],
            })
            .await?;
        let target = client.target().to_string();
        Ok(Self { body: response.into_body(), target, follow: options.follow })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when the connection broke: go on from the last object's `next`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = match self.follow {
                true => self.body.frame().await,
                false => match tokio::time::timeout(SILENCE, self.body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => {
                        let target = self.target.clone();
                        return Err(ClientError::Timeout { target, after: SILENCE });
                    }
                },
            };
            match frame {
                None => return Ok(None),
                Some(Err(err)) => {
                    let attempt = "reading a log".to_owned();
                    let (target, source) = (self.target.clone(), Box::new(err));
                    return Err(ClientError::Broken { target, attempt, source });
                }
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}
