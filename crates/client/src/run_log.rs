//! Streams the output of a run's command.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::TargetPath;

/// The part of a log to read, and its format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Starts at this position, in bytes; excludes `tail` and `since`.
    pub offset: Option<u64>,
    /// Reads only this many lines at the end; excludes `since`.
    pub tail: Option<u64>,
    /// Reads only lines written since this time.
    pub since: Option<String>,
    /// Waits for new output until the run ends. A program may be silent for any time, so only the
    /// end of the connection ends the wait.
    pub follow: bool,
    /// Reads only lines that match this regular expression.
    pub grep: Option<String>,
    /// Removes colours and other control sequences.
    pub strip: bool,
    /// Returns one JSON object per line, with its position, in place of the text alone.
    pub objects: bool,
}

/// A log that is being read.
#[derive(Debug)]
pub struct RunLog {
    body: Incoming,
    target: String,
    follow: bool,
}

/// Longest time that a server may send nothing while it reads a stored log.
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

    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the connection broke. Continue from the last object's `next`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
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
