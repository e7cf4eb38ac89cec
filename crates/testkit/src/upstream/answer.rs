//! The replies of a script, and every possible failure of them.

use std::time::Duration;

use bytes::Bytes;
use overmind_core::model::{StopReason, Usage};
use serde_json::Value;

use super::encode;
use super::{Received, Wire};

/// The fields of a request that `messages/count_tokens` takes.
const COUNTED: [&str; 8] = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "mcp_servers",
    "context_management",
];

/// A model's reply, before it is put into a wire format.
#[derive(Clone, Debug, Default)]
pub struct Say {
    pub(super) reasoning: String,
    /// Set with the reasoning: Anthropic signs it, OpenAI Responses encrypts it.
    pub(super) seal: String,
    pub(super) text: String,
    /// Id, name, JSON text of the arguments.
    pub(super) calls: Vec<(String, String, String)>,
    pub(super) usage: Usage,
    pub(super) stop: Option<StopReason>,
}

impl Say {
    pub fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// A reply of calls only; add them with [`Say::call`].
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Thinks `text` before it speaks, sealed so that only the provider can check it.
    #[must_use]
    pub fn reasoning(mut self, text: &str) -> Self {
        self.reasoning = text.to_owned();
        self.seal = "c2VhbGVk+/=".to_owned();
        self
    }

    #[must_use]
    pub fn call(self, id: &str, name: &str, args: &Value) -> Self {
        self.raw_call(id, name, &args.to_string())
    }

    /// A call whose arguments need not be JSON.
    #[must_use]
    pub fn raw_call(mut self, id: &str, name: &str, args: &str) -> Self {
        self.calls.push((id.to_owned(), name.to_owned(), args.to_owned()));
        self
    }

    /// Input tokens (cached ones included) and output tokens.
    #[must_use]
    pub fn usage(mut self, input_tokens: u64, output_tokens: u64) -> Self {
        self.usage.input_tokens = input_tokens;
        self.usage.output_tokens = output_tokens;
        self
    }

    /// Of the input: read from the cache, and written to it; of the output: reasoning.
    #[must_use]
    pub fn usage_details(mut self, cached: u64, written: u64, reasoning: u64) -> Self {
        self.usage.cached_input_tokens = cached;
        self.usage.cache_write_tokens = written;
        self.usage.reasoning_tokens = reasoning;
        self
    }

    /// Otherwise: tool calls if there are calls, else the end.
    #[must_use]
    pub fn stop(mut self, stop: StopReason) -> Self {
        self.stop = Some(stop);
        self
    }

    pub(super) fn stop_reason(&self) -> StopReason {
        let usual = if self.calls.is_empty() { StopReason::End } else { StopReason::ToolCalls };
        self.stop.unwrap_or(usual)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Say(Say),
    /// An error in the shape of the request's format.
    Status {
        status: u16,
        kind: String,
        message: String,
    },
    Raw {
        status: u16,
        content_type: String,
        body: Bytes,
    },
    /// Takes the request and never answers.
    Hang,
    /// Takes the request and closes the connection.
    HangUp,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Whole,
    /// The connection closes in the middle.
    Cut,
    /// Nothing follows, and the connection stays open.
    Stall,
}

/// One answer of a script.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) kind: Kind,
    pub(super) headers: Vec<(String, String)>,
    /// One JSON document instead of a stream.
    pub(super) whole: bool,
    pub(super) pings: bool,
    pub(super) drip: Duration,
    pub(super) ending: Ending,
    /// The number of events to send; the rest is dropped.
    n_events: Option<usize>,
    error_after: Option<(String, String)>,
    newline: &'static str,
    split: Split,
}

#[derive(Clone, Debug)]
enum Split {
    Events,
    EveryByte,
    /// At these bytes of the whole stream.
    At(Vec<usize>),
}

impl From<Say> for Answer {
    fn from(say: Say) -> Self {
        Self::of(Kind::Say(say))
    }
}

impl Answer {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            headers: Vec::new(),
            whole: false,
            pings: false,
            drip: Duration::ZERO,
            ending: Ending::Whole,
            n_events: None,
            error_after: None,
            newline: "\n",
            split: Split::Events,
        }
    }

    pub fn say(say: Say) -> Self {
        say.into()
    }

    /// An error in the shape of the request's format. `kind` is its `type`, and its `code`.
    pub fn status(status: u16, kind: &str, message: &str) -> Self {
        Self::of(Kind::Status { status, kind: kind.to_owned(), message: message.to_owned() })
    }

    /// Any other answer.
    pub fn raw(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let content_type = content_type.to_owned();
        Self::of(Kind::Raw { status, content_type, body: body.into() })
    }

    /// An answer to `messages/count_tokens`: so many tokens, or 400 for a field that it does not take.
    pub fn count(request: &Received, tokens: u64) -> Self {
        let fields = request.body.as_object().into_iter().flatten();
        let mut odd = fields.filter(|(name, _)| !COUNTED.contains(&name.as_str()));
        match odd.next() {
            Some((name, _)) => {
                let text = format!("{name}: Extra inputs are not permitted");
                let body = encode::error(Wire::Messages, "invalid_request_error", &text);
                Self::raw(400, "application/json", body.to_string())
            }
            None => {
                let body = serde_json::json!({"input_tokens": tokens}).to_string();
                Self::raw(200, "application/json", body)
            }
        }
    }

    /// A redirect to another URL.
    pub fn redirect(status: u16, to: &str) -> Self {
        Self::raw(status, "text/plain", "moved").header("location", to)
    }

    /// Takes the request and never answers.
    pub fn hang() -> Self {
        Self::of(Kind::Hang)
    }

    /// Takes the request and closes the connection without a word.
    pub fn hang_up() -> Self {
        Self::of(Kind::HangUp)
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Answers in one JSON document although a stream was asked for, as some servers do.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Adds the format's pings and comments between events.
    #[must_use]
    pub fn pings(mut self) -> Self {
        self.pings = true;
        self
    }

    /// Ends lines with CRLF.
    #[must_use]
    pub fn crlf(mut self) -> Self {
        self.newline = "\r\n";
        self
    }

    /// Waits so long before each piece.
    #[must_use]
    pub fn drip(mut self, wait: Duration) -> Self {
        self.drip = wait;
        self
    }

    /// Sends each byte separately.
    #[must_use]
    pub fn every_byte(mut self) -> Self {
        self.split = Split::EveryByte;
        self
    }

    /// Cuts the stream into pieces at these bytes instead of between events.
    #[must_use]
    pub fn split_at(mut self, at: impl IntoIterator<Item = usize>) -> Self {
        self.split = Split::At(at.into_iter().collect());
        self
    }

    /// Closes the connection after `n` events.
    #[must_use]
    pub fn cut_after(mut self, n: usize) -> Self {
        self.n_events = Some(n);
        self.ending = Ending::Cut;
        self
    }

    /// Ends the body in good order after `n` events, without the ones that say why.
    #[must_use]
    pub fn end_after(mut self, n: usize) -> Self {
        self.n_events = Some(n);
        self
    }

    /// Falls silent after `n` events.
    #[must_use]
    pub fn stall_after(mut self, n: usize) -> Self {
        self.n_events = Some(n);
        self.ending = Ending::Stall;
        self
    }

    /// Sends an error event after `n` events, as a provider does that is overloaded.
    #[must_use]
    pub fn error_after(mut self, n: usize, kind: &str, message: &str) -> Self {
        self.n_events = Some(n);
        self.error_after = Some((kind.to_owned(), message.to_owned()));
        self
    }

    /// The stream in the pieces in which it is sent.
    pub(super) fn pieces(&self, mut events: Vec<String>, wire: Wire) -> Vec<Bytes> {
        if let Some(n) = self.n_events {
            events.truncate(n);
        }
        if let Some((kind, message)) = &self.error_after {
            events.push(encode::error_event(wire, kind, message));
        }
        let events = events.into_iter().map(|event| event.replace('\n', self.newline));
        match &self.split {
            Split::Events => events.map(Bytes::from).collect(),
            Split::EveryByte => {
                let all = Bytes::from(events.collect::<String>());
                (0..all.len()).map(|at| all.slice(at..=at)).collect()
            }
            Split::At(at) => {
                let mut rest = Bytes::from(events.collect::<String>());
                let mut pieces = Vec::new();
                let mut before = 0;
                for at in at {
                    let len = at.saturating_sub(before).min(rest.len());
                    pieces.push(rest.split_to(len));
                    before = (*at).max(before);
                }
                pieces.push(rest);
                pieces.retain(|piece| !piece.is_empty());
                pieces
            }
        }
    }
}
