//! The cost of a call: counted while its answer passes, and settled once.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use overmind_core::budget::{Ask, Asked, CallRecord, Content, Ended, Spend};
use overmind_core::model::{Models, Usage};
use overmind_core::relay::{
    Answer, Call, CallError, Cut, Dialect, Endpoint, Hop, Peek, Pieces, Refusal, RefusalKind,
};
use overmind_core::trace::Traceparent;

use super::priced;
use crate::Engine;
use crate::budgets::Ticket;
use crate::passes::{LAPSED, Pass};

/// The parts of a request that are kept for its record.
#[derive(Debug)]
pub(super) struct Seen {
    endpoint: Endpoint,
    /// The maximum number of input tokens.
    prompt: u64,
    /// Whether an option of the request may raise its price.
    surcharged: bool,
    /// Bytes that are kept of each text; 0 means none.
    capture: usize,
    request: Option<Content>,
    asked: Asked,
}

/// Headers with the program's own session.
const CLIENT_SESSIONS: [&str; 3] = ["x-claude-code-session-id", "session_id", "session-id"];
/// Longest name of a model under which costs are listed, in bytes.
const MAX_MODEL: usize = 256;
/// Longest name of a session that is kept, in bytes.
const MAX_CLIENT_SESSION: usize = 128;

/// The program's name of its own session. It is shown to people, so it must be printable and short.
fn client_session(headers: &HeaderMap) -> Option<String> {
    let named = CLIENT_SESSIONS.iter().find_map(|name| headers.get(*name))?.to_str().ok()?;
    let fits = !named.is_empty() && named.len() <= MAX_CLIENT_SESSION;
    (fits && named.bytes().all(|b| b.is_ascii_graphic())).then(|| named.to_owned())
}

impl Seen {
    pub(super) fn of(call: &Call, capture: usize, trace: Option<Traceparent>) -> Self {
        let request = (capture > 0).then(|| {
            let mut said = Said::default();
            said.hear(&call.body, capture);
            said.content()
        });
        let model = call.peek.model.trim();
        let model = (model.len() <= MAX_MODEL).then(|| model.to_owned());
        let asked = Asked { model, client_session: client_session(&call.headers), trace };
        let Peek { prompt_bound: prompt, surcharge, .. } = &call.peek;
        let (prompt, surcharged) = (*prompt, surcharge.is_some());
        Self { endpoint: call.endpoint, prompt, surcharged, capture, request, asked }
    }
}

/// A text that is kept up to a limit.
#[derive(Debug, Default)]
struct Said {
    hash: blake3::Hasher,
    kept: Vec<u8>,
}

impl Said {
    fn hear(&mut self, bytes: &[u8], most: usize) {
        self.hash.update(bytes);
        let room = most.saturating_sub(self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
    }

    fn content(self) -> Content {
        Content {
            digest: self.hash.finalize().to_hex().to_string(),
            text: String::from_utf8_lossy(&self.kept).into_owned(),
        }
    }
}

/// The open account of one call.
pub(super) struct Tab {
    models: Arc<dyn Models>,
    ask: Ask,
    hold: Ticket,
    seen: Seen,
    began: Instant,
}

impl Tab {
    pub(super) fn new(engine: &Engine, ask: Ask, hold: Ticket, seen: Seen) -> Self {
        Self { models: Arc::clone(&engine.models), ask, hold, seen, began: Instant::now() }
    }

    /// Closes it: there was no answer, and only `lost` is billed.
    pub(super) fn failed(self, refusal: &Refusal, lost: Option<Spend>, dialect: Dialect) {
        let (hold, mut record) = self.unanswered(refusal, Ended::Failed);
        record.status = refusal.status(dialect);
        record.usage.add(unseen(lost));
        record.at_most = lost.is_some();
        hold.end(lost, record);
    }

    /// Closes it: a provider was called, and its answer is no longer wanted. As nothing of the
    /// answer was seen, the maximum cost counts.
    pub(super) fn forsaken(self, refusal: &Refusal) {
        let (hold, record) = self.unanswered(refusal, Ended::Cut);
        hold.end_at_worst(record);
    }

    fn unanswered(self, refusal: &Refusal, ended: Ended) -> (Ticket, CallRecord) {
        let mut record = CallRecord::of(&self.ask, ended);
        self.seen.endpoint.as_str().clone_into(&mut record.format);
        record.total_ms = ms(self.began);
        record.request = self.seen.request;
        record.asked = self.seen.asked;
        record.ending.error = Some(CallError::new(refusal.kind.as_str(), &refusal.message));
        (self.hold, record)
    }

    /// `lost` is what earlier called providers may bill.
    pub(super) fn opened(
        self,
        answer: Answer,
        hops: &[Hop],
        lost: Option<Spend>,
        pass: Pass,
    ) -> Relayed {
        let Answer { hop, status, headers, body } = answer;
        let kind = headers.get("content-type").map(HeaderValue::as_bytes);
        let is_stream =
            kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with(b"text/event-stream"));
        let first_byte_ms = ms(self.began);
        let said = (self.seen.capture > 0).then(Box::default);
        let length = headers.get("content-length").and_then(|value| value.to_str().ok());
        let body = RelayedBody {
            length: length.and_then(|text| text.parse().ok()),
            pieces: Some(body),
            passed: 0,
            between: is_stream.then_some(Between::default()),
            pass,
            open: Some(Box::new(Open {
                tab: self,
                hop: hops[hop].clone(),
                status,
                first_byte_ms,
                said,
                lost: lost.map(Box::new),
            })),
        };
        Relayed { status, headers, body }
    }
}

/// A relayed answer.
#[derive(Debug)]
pub struct Relayed {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: RelayedBody,
}

/// The body. If it is dropped before its end, the call is settled by the streamed part.
pub struct RelayedBody {
    /// `None` after the end.
    pieces: Option<Box<dyn Pieces>>,
    /// The length in the head.
    length: Option<u64>,
    passed: u64,
    /// The position in a stream of events.
    between: Option<Between>,
    pass: Pass,
    open: Option<Box<Open>>,
}

struct Open {
    tab: Tab,
    hop: Hop,
    status: u16,
    first_byte_ms: u64,
    /// `None` if nothing is kept. Its hasher needs two kilobytes.
    said: Option<Box<Said>>,
    /// It is almost never set.
    lost: Option<Box<Spend>>,
}

/// The last bytes of a stream of events, which show whether an event is complete.
#[derive(Debug)]
struct Between([u8; 4]);

impl Default for Between {
    fn default() -> Self {
        Self(*b"\n\n\n\n")
    }
}

impl Between {
    fn pass(&mut self, bytes: &[u8]) {
        match bytes.last_chunk() {
            Some(last) => self.0 = *last,
            None => {
                self.0.rotate_left(bytes.len());
                let kept = self.0.len() - bytes.len();
                self.0[kept..].copy_from_slice(bytes);
            }
        }
    }

    fn events(&self) -> bool {
        [b"\n\n".as_slice(), b"\n\r\n", b"\r\r"].iter().any(|end| self.0.ends_with(end))
    }
}

impl fmt::Debug for RelayedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayedBody").field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl RelayedBody {
    /// The next bytes as they come; `None` at the end.
    ///
    /// When the call's token ends, nothing more of the answer is passed on, and the connection to
    /// the provider is closed. If a stream is between two events, an error in the format of its API
    /// is its last event.
    ///
    /// # Errors
    ///
    /// [`Cut`] if the answer is incomplete.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no data.
    pub async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        let open = self.open.as_mut()?;
        let came = tokio::select! {
            biased;
            () = self.pass.ended() => return self.lapsed(),
            came = self.pieces.as_mut()?.next() => came,
        };
        match came {
            Ok(Some(bytes)) => {
                self.passed += bytes.len() as u64;
                if let Some(between) = &mut self.between {
                    between.pass(&bytes);
                }
                if let Some(said) = &mut open.said {
                    said.hear(&bytes, open.tab.seen.capture);
                }
                Some(Ok(bytes))
            }
            Ok(None) => {
                self.settle(Ended::Completed, None);
                None
            }
            Err(cut) => {
                tracing::info!(why = %cut, "the answer to a model call broke off");
                self.settle(Ended::Cut, Some(CallError::new(Ended::Cut.as_str(), &cut.why)));
                Some(Err(cut))
            }
        }
    }

    /// Whether the caller has everything that the head promised, or the final usage, and so asks
    /// for no more.
    fn is_whole(&self) -> bool {
        self.length.is_some_and(|length| self.passed >= length)
            || self.pieces.as_ref().is_some_and(|pieces| pieces.tally().is_final)
    }

    /// Returns the last bytes after the token has ended, if anything can be sent.
    fn lapsed(&mut self) -> Option<Result<Bytes, Cut>> {
        if self.is_whole() {
            self.settle(Ended::Completed, None);
            return None;
        }
        let refusal = Refusal::new(RefusalKind::Unauthenticated, LAPSED);
        let endpoint = self.open.as_ref().map(|open| open.tab.seen.endpoint);
        self.settle(Ended::Cut, Some(CallError::new(refusal.kind.as_str(), LAPSED)));
        let between = self.between.as_ref().is_some_and(Between::events);
        match endpoint {
            // More bytes than the head promises would be invalid HTTP.
            Some(endpoint) if between && self.length.is_none() => {
                Some(Ok(refusal.event(endpoint).into()))
            }
            Some(_) | None => Some(Err(Cut { why: LAPSED.to_owned() })),
        }
    }

    fn settle(&mut self, ended: Ended, error: Option<CallError>) {
        let (Some(open), Some(pieces)) = (self.open.take(), self.pieces.take()) else { return };
        let Open { tab, hop, status, first_byte_ms, said, lost } = *open;
        let lost = lost.map(|lost| *lost);
        let Tab { models, ask, hold, seen, began } = tab;
        let mut record = CallRecord::of(&ask, ended);
        record.provider.clone_from(&hop.provider);
        record.model.clone_from(&hop.model);
        hop.endpoint.as_str().clone_into(&mut record.format);
        record.status = status;
        record.first_byte_ms = Some(first_byte_ms);
        record.total_ms = ms(began);
        record.request = seen.request;
        record.asked = seen.asked;
        record.response = said.map(|said| said.content());
        let mut tally = pieces.tally();
        // This also closes the connection to the provider, unless another call can use it.
        drop(pieces);
        record.ending = std::mem::take(&mut tally.ending);
        if record.ending.error.is_none() {
            record.ending.error = error;
        }
        if status >= 400 {
            record.ended = Ended::Failed;
            record.usage.add(unseen(lost));
            record.at_most = lost.is_some();
            hold.end(lost, record);
            return;
        }
        if !seen.endpoint.is_billed() {
            hold.end(Some(Spend::NONE), record);
            return;
        }
        if tally.usage.is_none() && tally.said_bytes == 0 {
            // No usage was reported or understood, so the number of passed bytes is used.
            tally.said_bytes = self.passed;
        }
        if let Some(model) = &tally.model {
            record.model.clone_from(model);
        }
        record.usage = tally.settled(seen.prompt);
        record.at_most = !tally.is_final || lost.is_some();
        let Usage { input_tokens, output_tokens, .. } = record.usage;
        let cost = models.upstreams().and_then(|all| all.cost(&hop, &record.usage));
        let cost = cost.and_then(|cost| priced(cost, seen.surcharged));
        let spend = Spend { microusd: cost, tokens: input_tokens.saturating_add(output_tokens) };
        record.usage.add(unseen(lost));
        hold.end(Some(spend.plus(lost.unwrap_or(Spend::NONE))), record);
    }
}

/// Tokens of unknown kind.
fn unseen(lost: Option<Spend>) -> Usage {
    Usage { input_tokens: lost.map_or(0, |lost| lost.tokens), ..Usage::default() }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        if self.open.is_none() {
            return;
        }
        self.settle(if self.is_whole() { Ended::Completed } else { Ended::Cancelled }, None);
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function answers, without calling it.
    fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_stream_is_between_two_events_after_any_cut() {
        for (stream, whole) in [
            ("", true),
            ("data: 1\n\n", true),
            ("data: 1\r\n\r\n", true),
            ("data: 1\r\r", true),
            (": ping\n\n", true),
            ("data: 1\n", false),
            ("data: 1\r\n", false),
            ("data: {\"a", false),
            ("data: 1\n\nd", false),
            ("d", false),
        ] {
            for size in 1..=stream.len().max(1) {
                let mut between = Between::default();
                stream.as_bytes().chunks(size).for_each(|piece| between.pass(piece));
                assert_eq!(between.events(), whole, "{stream:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn forwarding_a_stream_takes_little_memory() {
        let next = size(RelayedBody::next);
        let (body, open) = (size_of::<RelayedBody>(), size_of::<Open>());
        assert!(next + body + open <= 900, "{next} + {body} + {open} bytes");
    }
}
