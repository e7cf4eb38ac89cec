//! Model calls of others that pass through: a program speaks a provider's own API to us, and we
//! pass on what it says with a key that it never sees.
//!
//! ```text
//! head + body ─▶ [`head`] what may pass ─▶ [`peek`] model, limits ─▶ [`Upstreams::plan`] where to
//!             ─▶ [`Upstreams::open`] the answer's head ─▶ [`Pieces::next`] its bytes as they come
//! ```
//!
//! The body is bytes: a few fields are looked at, and nothing is changed but the model's name where
//! it is an alias. Where a key goes follows from the configuration; nothing that a caller sends
//! has a say in it.

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

/// Whose API a caller speaks; errors are in its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

/// What is asked of a provider.
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
    /// Anthropic `messages/count_tokens`: costs nothing.
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

    /// Below the dialect's `v1/`.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "messages/count_tokens",
        }
    }

    /// As it stands in records: `chat`, `responses`, …
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
        }
    }

    /// Whether a call costs money.
    pub const fn is_billed(self) -> bool {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings | Self::Messages => true,
            Self::CountTokens => false,
        }
    }
}

/// One request, as its caller made it.
#[derive(Clone, Debug)]
pub struct Call {
    pub endpoint: Endpoint,
    /// Without the question mark. Part of what is passed on.
    pub query: Option<String>,
    /// Those that may be passed on: see [`head::request`].
    pub headers: HeaderMap,
    pub body: Bytes,
    pub peek: Peek,
    /// When it came.
    pub at: Timestamp,
    pub sent: Sent,
}

/// What of a call has left for a provider: only that can have cost something.
#[derive(Debug, Default)]
pub struct Sent {
    begun: AtomicBool,
    lost: Mutex<Vec<usize>>,
}

impl Sent {
    /// To be said before the first byte leaves.
    pub fn mark(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub fn is_marked(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// A provider had the request, and what it did with it will never be known: `hop` says which of
    /// them. It may be billed.
    pub fn lose(&self, hop: usize) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(hop);
    }

    /// The hops that were asked without an end, one entry for each time.
    pub fn lost(&self) -> Vec<usize> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Clone for Sent {
    fn clone(&self) -> Self {
        Self { begun: AtomicBool::new(self.is_marked()), lost: Mutex::new(self.lost()) }
    }
}

/// One place that a call can go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub provider: String,
    /// What is asked there. Another one than the call's means translation.
    pub endpoint: Endpoint,
    /// The model's name there.
    pub model: String,
}

/// What an answer has told so far about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The provider's figures; `None` until it told them.
    pub usage: Option<Usage>,
    /// Whether those are the last ones: a stream tells some at its beginning.
    pub is_final: bool,
    /// The model that answered, in the provider's words.
    pub model: Option<String>,
    /// Bytes of text and arguments that were streamed: what a stream that was cut is judged by.
    pub said_bytes: u64,
    /// Why it stopped.
    pub ending: Ending,
}

impl Tally {
    /// What a call is settled by when its answer ended or was cut here. `prompt` bounds the input
    /// where the provider did not tell it.
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

/// An answer, of which the head is there.
pub struct Answer {
    /// Which of the hops it was.
    pub hop: usize,
    pub status: u16,
    /// Those that may be passed on: see [`head::response`].
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

/// An answer's body.
pub trait Pieces: Send {
    /// The next bytes as they come, or `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Cut`]: there will be no more, and what came is not the whole.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped loses no bytes; the next one goes on. Dropping the body closes the
    /// connection to the provider.
    fn next(&mut self) -> Fut<'_, Result<Option<Bytes>, Cut>>;

    /// What is known of the answer so far.
    fn tally(&self) -> Tally;
}

/// Why an answer has no end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Cut {
    /// In words; holds no key.
    pub why: String,
}

/// What is known about a model's price before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worst {
    /// Millionths of a US dollar at most.
    Costs(u64),
    /// It has no price in the table.
    Unknown,
}

/// A model that a caller may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    pub name: String,
    pub provider: String,
}

/// All providers that calls can be passed on to.
pub trait Upstreams: Send + Sync + fmt::Debug {
    /// Where a call for `model` can go, first choice first; never empty. Without I/O.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: no provider serves it in a form that can be had.
    fn plan(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Hop>, Refusal>;

    /// What `usage` costs at `hop`, in millionths of a US dollar; `None`: no known price.
    fn cost(&self, hop: &Hop, usage: &Usage) -> Option<u64>;

    /// The most that a call with at most these figures can cost at `hop`: all input at the
    /// dearest of the prices of input.
    fn worst(&self, hop: &Hop, usage: &Usage) -> Worst;

    /// Asks one hop after the other until one answers, with the retries that can help, and waits
    /// for the answer's head. A provider's own error is an answer when there is no other hop. Marks
    /// [`Call::sent`] before anything leaves.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: nobody answered, or we are not to ask.
    fn open<'a>(&'a self, call: &'a Call, hops: &'a [Hop]) -> Fut<'a, Result<Answer, Refusal>>;

    /// Names that are known: aliases, and models that the configuration lists in full.
    fn offered(&self, dialect: Dialect) -> Vec<Offered>;

    /// Whether a provider of this dialect has what it needs, so that agents' programs can be
    /// pointed here.
    fn is_ready(&self, dialect: Dialect) -> bool;

    /// Bytes of each request and of each answer that are kept with the record of a call; 0 is
    /// none.
    fn capture(&self) -> usize;
}

/// Whether `model` is among `allowed`: names, or beginnings that end in `*`. ASCII case does not
/// matter.
pub fn may_use(allowed: &[String], model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => model.starts_with(&start.to_ascii_lowercase()),
        None => model == pattern.to_ascii_lowercase(),
    })
}

/// Until a refused caller should come again, in whole seconds, at least one.
pub fn retry_after_s(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_answer_is_settled_by_what_came_and_a_whole_one_by_its_figures() {
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
    fn an_allow_list_has_names_and_beginnings() {
        let allowed = ["gpt-5".to_owned(), "Claude-*".to_owned()];
        for (model, may) in [("gpt-5", true), ("GPT-5", true), ("gpt-5-mini", false)] {
            assert_eq!(may_use(&allowed, model), may, "{model}");
        }
        assert!(may_use(&allowed, "claude-opus-5"));
        assert!(!may_use(&[], "gpt-5"));
    }
}
