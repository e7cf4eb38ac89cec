//! What a call came to: counted while its answer passes, and settled once.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use overmind_core::budget::{Ask, Asked, CallRecord, Content, Ended, Spend};
use overmind_core::model::{Models, Usage};
use overmind_core::relay::{Answer, Call, CallError, Cut, Dialect, Endpoint, Hop, Pieces, Refusal};
use overmind_core::trace::Traceparent;

use crate::Engine;
use crate::budgets::Hold;

/// What is kept of a request for its record.
#[derive(Debug)]
pub(super) struct Seen {
    endpoint: Endpoint,
    /// No more input than this.
    prompt: u64,
    /// Bytes of each text that are kept; 0 is none.
    capture: usize,
    request: Option<Content>,
    asked: Asked,
}

/// Headers by which programs name their own session.
const CLIENT_SESSIONS: [&str; 3] = ["x-claude-code-session-id", "session_id", "session-id"];
/// Longest such name that is kept, in bytes.
const MAX_CLIENT_SESSION: usize = 128;

/// What a program calls its own session. It is shown to people: printable, and short.
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
        let asked = Asked { client_session: client_session(&call.headers), trace };
        Self { endpoint: call.endpoint, prompt: call.peek.prompt_bound, capture, request, asked }
    }
}

/// A text that is kept as far as it may be.
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

/// An open bill.
pub(super) struct Tab {
    models: Arc<dyn Models>,
    ask: Ask,
    hold: Hold,
    seen: Seen,
    began: Instant,
}

impl Tab {
    pub(super) fn new(engine: &Engine, ask: Ask, hold: Hold, seen: Seen) -> Self {
        Self { models: Arc::clone(&engine.models), ask, hold, seen, began: Instant::now() }
    }

    /// Ends it: nobody answered.
    pub(super) fn failed(self, refusal: &Refusal, dialect: Dialect) {
        let mut record = CallRecord::of(&self.ask, Ended::Failed);
        self.seen.endpoint.as_str().clone_into(&mut record.format);
        record.status = refusal.status(dialect);
        record.total_ms = ms(self.began);
        record.request = self.seen.request;
        record.asked = self.seen.asked;
        record.ending.error = Some(CallError::new(refusal.kind.as_str(), &refusal.message));
        self.hold.end(None, record);
    }

    pub(super) fn opened(self, answer: Answer, hops: &[Hop]) -> Relayed {
        let Answer { hop, status, headers, body } = answer;
        let first_byte_ms = ms(self.began);
        let length = headers.get("content-length").and_then(|value| value.to_str().ok());
        let body = RelayedBody {
            length: length.and_then(|text| text.parse().ok()),
            pieces: body,
            passed: 0,
            said: Said::default(),
            open: Some(Box::new(Open { tab: self, hop: hops[hop].clone(), status, first_byte_ms })),
        };
        Relayed { status, headers, body }
    }
}

/// An answer that is passed on.
#[derive(Debug)]
pub struct Relayed {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: RelayedBody,
}

/// Its body. Dropped before its end, the call is settled by what was streamed.
pub struct RelayedBody {
    pieces: Box<dyn Pieces>,
    /// What the head says.
    length: Option<u64>,
    passed: u64,
    said: Said,
    open: Option<Box<Open>>,
}

struct Open {
    tab: Tab,
    hop: Hop,
    status: u16,
    first_byte_ms: u64,
}

impl fmt::Debug for RelayedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayedBody").field("passed", &self.passed).finish_non_exhaustive()
    }
}

impl RelayedBody {
    /// The next bytes as they come; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Cut`]: what came is not the whole.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped loses nothing.
    pub async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        self.open.as_ref()?;
        match self.pieces.next().await {
            Ok(Some(bytes)) => {
                self.passed += bytes.len() as u64;
                let capture = self.open.as_ref().map_or(0, |open| open.tab.seen.capture);
                if capture > 0 {
                    self.said.hear(&bytes, capture);
                }
                Some(Ok(bytes))
            }
            Ok(None) => {
                self.settle(Ended::Completed, None);
                None
            }
            Err(cut) => {
                tracing::info!(why = %cut, "the answer to a model call broke off");
                self.settle(Ended::Cut, Some(&cut));
                Some(Err(cut))
            }
        }
    }

    fn settle(&mut self, ended: Ended, cut: Option<&Cut>) {
        let Some(open) = self.open.take() else { return };
        let Open { tab, hop, status, first_byte_ms } = *open;
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
        if seen.capture > 0 {
            record.response = Some(std::mem::take(&mut self.said).content());
        }
        let mut tally = self.pieces.tally();
        record.ending = std::mem::take(&mut tally.ending);
        if let Some(cut) = cut
            && record.ending.error.is_none()
        {
            record.ending.error = Some(CallError::new(ended.as_str(), &cut.why));
        }
        if status >= 400 {
            record.ended = Ended::Failed;
            hold.end(None, record);
            return;
        }
        if !seen.endpoint.is_billed() {
            hold.end(Some(Spend::NONE), record);
            return;
        }
        if tally.usage.is_none() && tally.said_bytes == 0 {
            // Nothing was told and nothing understood: what passed is what there is to go by.
            tally.said_bytes = self.passed;
        }
        if let Some(model) = &tally.model {
            record.model.clone_from(model);
        }
        record.usage = tally.settled(seen.prompt);
        let Usage { input_tokens, output_tokens, .. } = record.usage;
        let cost = models.upstreams().and_then(|all| all.cost(&hop, &record.usage));
        let spend = Spend { microusd: cost, tokens: input_tokens.saturating_add(output_tokens) };
        hold.end(Some(spend), record);
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        if self.open.is_none() {
            return;
        }
        // Whoever has all that the head promised, or the last figures, does not ask for more.
        let whole =
            self.length.is_some_and(|length| self.passed >= length) || self.pieces.tally().is_final;
        self.settle(if whole { Ended::Completed } else { Ended::Cancelled }, None);
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
