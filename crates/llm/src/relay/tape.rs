//! Tapes: relayed calls are recorded once and answered from a file from then on.
//!
//! The file has one JSON line for each call: the endpoint, the model, a digest of the body, and the
//! whole answer as the caller got it. A call is answered by the line with the same body. If there
//! is none, it is answered by the next unplayed line of the same endpoint and model, because
//! programs put times and ids into their requests but send them in the same order. Requests and
//! keys are never stored.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use overmind_core::Fut;
use overmind_core::relay::{Answer, Call, Cut, Pieces, Refusal, RefusalKind, Tally};
use serde::{Deserialize, Serialize};

use super::scan::Meter;

/// Longest answer that is recorded.
const MAX_ANSWER: usize = 16 << 20;
/// Largest tape.
const MAX_TAPE: u64 = 256 << 20;

/// One line of a tape.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    endpoint: String,
    model: String,
    /// BLAKE3 of the body, in hexadecimal.
    body: String,
    status: u16,
    content_type: String,
    answer: String,
}

impl Line {
    fn of(call: &Call, status: u16, headers: &HeaderMap) -> Self {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        Self {
            endpoint: call.endpoint.as_str().to_owned(),
            model: call.peek.model.clone(),
            body: blake3::hash(&call.body).to_hex().to_string(),
            status,
            content_type: kind.unwrap_or("application/json").to_owned(),
            answer: String::new(),
        }
    }
}

/// Records a tape.
#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    /// Held while a line is written, so that lines are written whole.
    writing: Mutex<()>,
}

impl Recorder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), writing: Mutex::default() }
    }

    /// Passes the answer on and records it when it has ended.
    pub(crate) fn listen(self: &Arc<Self>, call: &Call, answer: Answer) -> Answer {
        let Answer { hop, status, headers, body } = answer;
        let line = Line::of(call, status, &headers);
        let recorder = Arc::clone(self);
        let body =
            Box::new(Recorded { inner: body, heard: Vec::new(), line: Some(line), recorder });
        Answer { hop, status, headers, body }
    }

    fn write(&self, line: &Line) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string(line).expect("a line of texts is JSON") + "\n";
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(&self.path);
        let done = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(err) = done {
            let path = self.path.display();
            tracing::error!(error = %err, %path, "a model call could not be recorded");
        }
    }
}

struct Recorded {
    inner: Box<dyn Pieces>,
    heard: Vec<u8>,
    /// `None` once the line is written, or if it is not to be written.
    line: Option<Line>,
    recorder: Arc<Recorder>,
}

impl Pieces for Recorded {
    fn next(&mut self) -> Fut<'_, Result<Option<Bytes>, Cut>> {
        Box::pin(async move {
            let came = self.inner.next().await?;
            match &came {
                Some(bytes) if self.heard.len() + bytes.len() <= MAX_ANSWER => {
                    self.heard.extend_from_slice(bytes);
                }
                Some(_) => self.line = None,
                None => {
                    if let Some(mut line) = self.line.take() {
                        line.answer = String::from_utf8_lossy(&self.heard).into_owned();
                        self.recorder.write(&line);
                    }
                }
            }
            Ok(came)
        })
    }

    fn tally(&self) -> Tally {
        self.inner.tally()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // A caller that has the whole answer does not ask for its end.
        if let Some(mut line) = self.line.take()
            && (self.inner.tally().is_final || line.status >= 400)
        {
            line.answer = String::from_utf8_lossy(&self.heard).into_owned();
            self.recorder.write(&line);
        }
    }
}

/// Plays a tape.
#[derive(Debug)]
pub(crate) struct Player {
    path: PathBuf,
    lines: OnceLock<Result<Vec<Line>, String>>,
    /// For each line, whether it was played.
    played: Mutex<Vec<bool>>,
}

impl Player {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), lines: OnceLock::new(), played: Mutex::default() }
    }

    /// The answer that the tape has for a call.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the tape cannot be read or has no answer.
    pub(crate) fn play(&self, call: &Call) -> Result<(u16, HeaderMap, Bytes, Meter), Refusal> {
        let at = self.path.display();
        let lines = self.lines.get_or_init(|| read(&self.path)).as_ref().map_err(|why| {
            Refusal::new(RefusalKind::Internal, format!("the tape {at} cannot be played: {why}"))
        })?;
        let body = blake3::hash(&call.body).to_hex().to_string();
        let fits =
            |line: &Line| line.endpoint == call.endpoint.as_str() && line.model == call.peek.model;
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        played.resize(lines.len(), false);
        let find = |same: bool, again: bool| {
            let fitting = lines.iter().enumerate().filter(|(_, line)| fits(line));
            fitting
                .filter(|(_, line)| !same || line.body == body)
                .find(|(n, _)| again || !played[*n])
                .map(|(n, _)| n)
        };
        let found = find(true, false).or_else(|| find(true, true)).or_else(|| find(false, false));
        let Some(n) = found else {
            let text = format!(
                "the tape {at} has no {}answer for {} of model `{}`",
                if lines.iter().any(fits) { "further " } else { "" },
                call.endpoint.path(),
                call.peek.model
            );
            return Err(Refusal::new(RefusalKind::NotFound, text));
        };
        played[n] = true;
        let line = &lines[n];
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_str(&line.content_type);
        headers.insert(CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/json")));
        let streams = line.content_type.starts_with("text/event-stream");
        let mut meter = Meter::new(call.endpoint, streams);
        meter.feed(line.answer.as_bytes());
        Ok((line.status, headers, Bytes::from(line.answer.clone()), meter))
    }
}

fn read(path: &Path) -> Result<Vec<Line>, String> {
    let bytes = std::fs::metadata(path).map_err(|err| err.to_string())?.len();
    if bytes > MAX_TAPE {
        return Err(format!("it has more than {MAX_TAPE} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|err| err.to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(n, line)| {
            serde_json::from_str(line).map_err(|err| format!("its line {}: {err}", n + 1))
        })
        .collect()
}
