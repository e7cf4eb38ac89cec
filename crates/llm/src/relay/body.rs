//! The body of a relayed answer: unchanged, without the usage that only we asked for, or translated
//! to another format.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use memchr::memmem;
use overmind_core::Fut;
use overmind_core::relay::{Cut, Pieces, Tally};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::OwnedSemaphorePermit;

use super::scan::Meter;
use super::upstream::{AnswerBody, chunk};
use crate::fail;
use crate::sse;
use crate::translate::Stream;

/// Maximum number of bytes that are buffered until an event is complete.
const MAX_HELD: usize = 64 * 1024;

/// The error for a stream that ended before its last event although the connection was closed
/// properly.
const EARLY: &str = "it ended its answer too early";

/// How the bytes are changed.
pub(crate) enum Shape {
    AsItIs,
    Swallow(Swallow),
    Translated { parser: sse::Parser, stream: Box<Stream> },
}

/// A body that is read from a provider's socket, or that was already read from it.
pub(crate) struct Body {
    /// `None` when everything was read.
    pub(crate) response: Option<AnswerBody>,
    pub(crate) ready: VecDeque<Bytes>,
    pub(crate) shape: Shape,
    pub(crate) meter: Meter,
    pub(crate) idle: Duration,
    pub(crate) until: Instant,
    /// The provider's name, for messages.
    pub(crate) provider: String,
    pub(crate) _place: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("provider", &self.provider).finish_non_exhaustive()
    }
}

impl Body {
    async fn pull(&mut self) -> Result<Option<Bytes>, Cut> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Ok(Some(bytes));
            }
            let Some(response) = &mut self.response else {
                // The text for the caller has already been sent.
                return match &self.shape {
                    Shape::Translated { stream, .. } => match stream.broken().map(str::to_owned) {
                        Some(why) => Err(self.cut(&why)),
                        None => Ok(None),
                    },
                    Shape::AsItIs | Shape::Swallow(_) => Ok(None),
                };
            };
            let left = self.until.saturating_duration_since(Instant::now());
            let came = tokio::time::timeout(self.idle.min(left), chunk(response)).await;
            match came {
                Ok(Ok(Some(bytes))) => {
                    self.meter.feed(&bytes);
                    match &mut self.shape {
                        // The common case needs no copy.
                        Shape::AsItIs => return Ok(Some(bytes)),
                        Shape::Swallow(swallow) => {
                            self.ready.extend(swallow.push(bytes));
                        }
                        Shape::Translated { parser, stream } => {
                            let mut out = Vec::new();
                            let done = translate(parser, stream, &bytes, &mut out);
                            if !out.is_empty() {
                                self.ready.push_back(out.into());
                            }
                            match done {
                                Ok(()) => {}
                                Err(why) if stream.broken().is_none() => {
                                    return Err(self.cut(&why));
                                }
                                Err(_) => self.response = None,
                            }
                        }
                    }
                }
                Ok(Ok(None)) => {
                    self.response = None;
                    self.meter.feed(b"\n");
                    match &mut self.shape {
                        Shape::AsItIs | Shape::Swallow(_) if !self.meter.is_over() => {
                            return Err(self.cut(EARLY));
                        }
                        Shape::AsItIs => {}
                        Shape::Swallow(swallow) => self.ready.extend(swallow.rest()),
                        Shape::Translated { parser, stream } => {
                            let mut out = Vec::new();
                            if let Ok(Some(event)) = std::mem::take(parser).finish() {
                                // If the stream is broken, `stream` itself knows why.
                                let _ = stream.event(&event, &mut out);
                            }
                            stream.end(&mut out);
                            if !out.is_empty() {
                                self.ready.push_back(out.into());
                            }
                        }
                    }
                }
                Ok(Err(err)) => {
                    self.response = None;
                    let why = fail::chain(&err);
                    return Err(self.cut(&format!("the connection was lost: {why}")));
                }
                Err(_) => {
                    self.response = None;
                    let why = match left < self.idle {
                        true => "its answer took longer than a call may take".to_owned(),
                        false => format!("it sent nothing for {} s", self.idle.as_secs_f64()),
                    };
                    return Err(self.cut(&why));
                }
            }
        }
    }

    fn cut(&mut self, why: &str) -> Cut {
        self.response = None;
        Cut { why: format!("provider {}: {why}", self.provider) }
    }
}

/// Feeds a piece of a stream. Comments, which are keep-alive pings, stay comments.
fn translate(
    parser: &mut sse::Parser,
    stream: &mut Stream,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut events = Vec::new();
    parser.push(bytes, &mut events).map_err(|err| err.to_string())?;
    for event in &events {
        stream.event(event, out)?;
    }
    if out.is_empty() && bytes.starts_with(b":") {
        out.extend_from_slice(b": ping\n\n");
    }
    Ok(())
}

impl Pieces for Body {
    fn next(&mut self) -> Fut<'_, Result<Option<Bytes>, Cut>> {
        Box::pin(async move {
            let came = self.pull().await;
            if came.is_err() {
                // An error discards what the HTTP server has not written yet. This yield lets it
                // write first.
                tokio::task::yield_now().await;
            }
            came
        })
    }

    fn tally(&self) -> Tally {
        self.meter.tally()
    }
}

/// Removes the usage from a chat stream whose caller did not ask for it. The usage is the one event
/// without choices. An event is passed on when it is complete; providers send events that way.
#[derive(Debug, Default)]
pub(crate) struct Swallow {
    held: Vec<u8>,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<IgnoredAny>,
    usage: Option<IgnoredAny>,
}

impl Swallow {
    /// The part of `bytes` and of the buffer that may be passed on.
    fn push(&mut self, bytes: Bytes) -> Option<Bytes> {
        if self.held.is_empty() && bytes.ends_with(b"\n\n") && !may_hold_figures(&bytes) {
            return Some(bytes);
        }
        self.held.extend_from_slice(&bytes);
        let mut out = Vec::new();
        let mut from = 0;
        while let Some(end) = event_end(&self.held[from..]) {
            let event = &self.held[from..from + end];
            if !is_figures(event) {
                out.extend_from_slice(event);
            }
            from += end;
        }
        self.held.drain(..from);
        if self.held.len() > MAX_HELD {
            out.append(&mut self.held);
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn rest(&mut self) -> Option<Bytes> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty() && !is_figures(&held)).then(|| held.into())
    }
}

fn may_hold_figures(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"choices\":[]").is_some()
        || memmem::find(bytes, b"\"choices\": []").is_some()
}

/// The length of the first event, including the empty line that ends it.
fn event_end(bytes: &[u8]) -> Option<usize> {
    let mut line = 0;
    for end in memchr::memchr_iter(b'\n', bytes) {
        if matches!(&bytes[line..end], b"" | b"\r") {
            return Some(end + 1);
        }
        line = end + 1;
    }
    None
}

fn is_figures(event: &[u8]) -> bool {
    let mut lines =
        event.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let (Some(data), None) = (lines.next(), lines.next()) else { return false };
    serde_json::from_slice::<Chunk>(data)
        .is_ok_and(|chunk| chunk.choices.is_empty() && chunk.usage.is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n\
                          : ping\n\n\
                          data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 1}}\n\n\
                          data: [DONE]\n\n";

    #[test]
    fn a_streamed_body_takes_little_memory() {
        fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let pull = size(Body::pull);
        let (body, meter, shape) = (size_of::<Body>(), size_of::<Meter>(), size_of::<Shape>());
        assert!(pull + body <= 750, "{pull} + {body} ({meter} {shape}) bytes");
    }

    fn through(stream: &str, pieces: usize) -> String {
        let mut swallow = Swallow::default();
        let mut out = Vec::new();
        for piece in stream.as_bytes().chunks(pieces) {
            out.extend(swallow.push(Bytes::copy_from_slice(piece)).unwrap_or_default());
        }
        out.extend(swallow.rest().unwrap_or_default());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_usage_event_is_removed() {
        for pieces in 1..=STREAM.len() {
            let out = through(STREAM, pieces);
            assert!(!out.contains("prompt_tokens"), "pieces of {pieces}: {out}");
            assert!(out.contains("hi") && out.contains(": ping") && out.ends_with("[DONE]\n\n"));
            let crlf = STREAM.replace('\n', "\r\n");
            assert!(!through(&crlf, pieces).contains("prompt_tokens"));
        }
    }

    #[test]
    fn whole_events_pass_without_a_copy() {
        let bytes = Bytes::from_static(b"data: {\"choices\":[{}]}\n\n");
        let passed = Swallow::default().push(bytes.clone()).unwrap();
        assert_eq!(passed.as_ptr(), bytes.as_ptr());
    }

    proptest! {
        #[test]
        fn values_other_than_usage_pass_unchanged(text in "(data: |\\{|\\}|\n|\r|a|:){0,60}", pieces in 1_usize..9) {
            prop_assert_eq!(through(&text, pieces), text);
        }
    }
}
