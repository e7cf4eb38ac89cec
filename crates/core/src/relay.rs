//! The gateway for model calls: a program sends a request in a provider's own API to this server,
//! and the server passes it on with a provider key that the program never sees.
//!
//! ```text
//! head + body ─▶ [`head`] what may pass ─▶ [`peek`] model, limits ─▶ [`Upstreams::plan`] where to
//!             ─▶ [`Upstreams::open`] the answer's head ─▶ [`Pieces::next`] its bytes as they come
//! ```
//!
//! The body is passed on as bytes: a few fields are read, and only a model name that is an alias is
//! replaced. The configuration alone decides where a key is sent; nothing in a request can change
//! that.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::Fut;
use crate::model::Usage;
use crate::time::Timestamp;

mod brought;
pub mod count;
pub mod ending;
pub mod head;
pub mod peek;
mod refusal;

pub use self::ending::{CallError, Ending};
pub use self::peek::{BadBody, Peek};
pub use self::refusal::{Refusal, RefusalKind, is_trouble};

/// Largest body of a request, in bytes.
pub const MAX_BODY: usize = 32 << 20;

/// The API that a caller uses. Errors have its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

/// An operation of a provider's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// OpenAI `chat/completions`.
    Chat,
    /// OpenAI `responses`.
    Responses,
    /// OpenAI `embeddings`.
    Embeddings,
    /// Anthropic `messages`.
    Messages,
    /// Anthropic `messages/count_tokens`, which costs nothing.
    CountTokens,
}

impl Endpoint {
    pub const ALL: [Self; 5] =
        [Self::Chat, Self::Responses, Self::Embeddings, Self::Messages, Self::CountTokens];

    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings => Dialect::OpenAi,
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
        }
    }

    /// Returns the path below the dialect's `v1/`.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "messages/count_tokens",
        }
    }

    /// Returns the name in records: `chat`, `responses`, …
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
        }
    }

    /// Returns whether a call costs money.
    pub const fn is_billed(self) -> bool {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings | Self::Messages => true,
            Self::CountTokens => false,
        }
    }
}

/// One request of a caller.
#[derive(Clone, Debug)]
pub struct Call {
    pub endpoint: Endpoint,
    /// The query without the question mark. It is passed on.
    pub query: Option<String>,
    /// The headers that may be passed on: see [`head::request`].
    pub headers: HeaderMap,
    pub body: Bytes,
    pub peek: Peek,
    /// Time of arrival.
    pub at: Timestamp,
    pub sent: Sent,
}

/// Records whether a call was sent to a provider: only then can it have a cost.
#[derive(Debug, Default)]
pub struct Sent {
    begun: AtomicBool,
    lost: Mutex<Vec<usize>>,
}

impl Sent {
    /// Marks the call as sent. Call this before the first byte is sent.
    pub fn mark(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub fn is_marked(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Records that the provider of hop number `hop` received the request and that its result will
    /// never be known. It may be billed.
    pub fn lose(&self, hop: usize) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(hop);
    }

    /// Returns the hops whose result was lost, with one entry for each time.
    pub fn lost(&self) -> Vec<usize> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Clone for Sent {
    fn clone(&self) -> Self {
        Self { begun: AtomicBool::new(self.is_marked()), lost: Mutex::new(self.lost()) }
    }
}

/// A target of a call: a provider and a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub provider: String,
    /// The operation to call there. If it differs from the call's, the call is translated.
    pub endpoint: Endpoint,
    /// The model's name there.
    pub model: String,
}

/// The facts that an answer has reported so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The provider's usage; `None` before it was reported.
    pub usage: Option<Usage>,
    /// Whether the usage is final. A stream reports some at its beginning.
    pub is_final: bool,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
    /// Bytes of streamed text and arguments, from which the usage of an interrupted stream is
    /// estimated.
    pub said_bytes: u64,
    /// Why the answer stopped.
    pub ending: Ending,
}

impl Tally {
    /// Returns the usage with which to settle a call that ended or was cut here. `prompt` is the
    /// upper bound of the input if the provider did not report it.
    pub fn settled(&self, prompt: u64) -> Usage {
        // A token has some four bytes; three err on the safe side.
        let said = self.said_bytes.div_ceil(3);
        match self.usage {
            Some(usage) if self.is_final => usage,
            Some(usage) => Usage { output_tokens: usage.output_tokens.max(said), ..usage },
            None => Usage { input_tokens: prompt, output_tokens: said, ..Usage::default() },
        }
    }
}

/// An answer whose head has arrived.
pub struct Answer {
    /// Index of the hop that answered.
    pub hop: usize,
    pub status: u16,
    /// The headers that may be passed on: see [`head::response`].
    pub headers: HeaderMap,
    pub body: Box<dyn Pieces>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("hop", &self.hop)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The body of an answer.
pub trait Pieces: Send {
    /// Returns the next bytes as they arrive, or `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Cut`] if no more bytes will come and the answer is incomplete.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no bytes; the next call continues. Dropping the body closes the
    /// connection to the provider.
    fn next(&mut self) -> Fut<'_, Result<Option<Bytes>, Cut>>;

    /// Returns the facts known about the answer so far.
    fn tally(&self) -> Tally;
}

/// Why an answer is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Cut {
    /// A text for people. It contains no key.
    pub why: String,
}

/// The highest cost of a call that is known in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worst {
    /// At most this many millionths of a US dollar.
    Costs(u64),
    /// The model has no price in the table.
    Unknown,
}

/// A model that a caller may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    pub name: String,
    pub provider: String,
}

/// All providers to which calls can be passed on.
pub trait Upstreams: Send + Sync + fmt::Debug {
    /// Returns the possible targets for `model`, first choice first; never empty. Does no I/O.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if no provider serves the model in a usable form.
    fn plan(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Hop>, Refusal>;

    /// Returns the cost of `usage` at `hop` in millionths of a US dollar; `None` if the price is
    /// not known.
    fn cost(&self, hop: &Hop, usage: &Usage) -> Option<u64>;

    /// Returns the most that a call with at most this usage can cost at `hop`, with the highest of
    /// the input prices for all input.
    fn worst(&self, hop: &Hop, usage: &Usage) -> Worst;

    /// Tries one hop after the other, with useful retries, and waits for the answer's head. If
    /// there is no other hop, a provider's own error is returned as the answer. Marks
    /// [`Call::sent`] before anything is sent.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: nobody answered, or we are not to ask.
    fn open<'a>(&'a self, call: &'a Call, hops: &'a [Hop]) -> Fut<'a, Result<Answer, Refusal>>;

    /// Returns the known names: aliases, and models that the configuration lists in full.
    fn offered(&self, dialect: Dialect) -> Vec<Offered>;

    /// Returns whether a provider of this dialect is configured completely, so that the programs of
    /// agents can use this server.
    fn is_ready(&self, dialect: Dialect) -> bool;

    /// Returns how many bytes of each request and answer are stored with the record of a call; 0
    /// means none.
    fn capture(&self) -> usize;
}

/// Returns whether `allowed` contains `model`. Its entries are names, or prefixes that end in `*`.
/// ASCII case is ignored.
pub fn may_use(allowed: &[String], model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => model.starts_with(&start.to_ascii_lowercase()),
        None => model == pattern.to_ascii_lowercase(),
    })
}

/// Returns whole seconds until a refused caller should retry, at least one.
pub fn retry_after_s(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_answer_is_settled_by_its_content_and_a_complete_one_by_its_usage() {
        let told = Usage { input_tokens: 40, output_tokens: 3, ..Usage::default() };
        let mut tally = Tally { usage: Some(told), said_bytes: 100, ..Tally::default() };
        assert_eq!(tally.settled(999).output_tokens, 34);
        assert_eq!(tally.settled(999).input_tokens, 40);
        tally.is_final = true;
        assert_eq!(tally.settled(999), told);
        tally.usage = None;
        assert_eq!(tally.settled(999).input_tokens, 999, "the bound, when nothing was told");
    }

    #[test]
    fn an_allow_list_has_names_and_prefixes() {
        let allowed = ["gpt-5".to_owned(), "Claude-*".to_owned()];
        for (model, may) in [("gpt-5", true), ("GPT-5", true), ("gpt-5-mini", false)] {
            assert_eq!(may_use(&allowed, model), may, "{model}");
        }
        assert!(may_use(&allowed, "claude-opus-5"));
        assert!(!may_use(&[], "gpt-5"));
    }
}
