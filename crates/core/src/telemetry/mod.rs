//! What is told of our work by OpenTelemetry's conventions for generative AI: spans and figures.
//!
//! Pure: [`told`] turns one event of the log into the spans that it ends. Nothing is measured or
//! kept while work is under way, for all that a span says stands in the log; ids are derived, see
//! [`crate::trace`]. So a session that was recovered three times has one span, with the ids it
//! would have had without, and whoever tells of it needs no store of its own.
//!
//! * [`Known`]: what a session's first event says of it, which all of its spans share.
//! * [`told`]: `invoke_agent`, `chat`, `embeddings` and `execute_tool` spans.
//! * [`figures`]: histograms of what the same calls took.

pub mod figures;
mod known;
mod map;
mod said;

use crate::time::Timestamp;
use crate::trace::{SpanId, TraceId, Traceparent};

pub use self::known::Known;
pub use self::map::{ENDS, Lens, Measured, TOLD, Told, told};

/// Longest text of an attribute, in bytes: what models and tools say is cut there.
pub const MAX_TEXT: usize = 16 << 10;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    Text(String),
    Whole(i64),
    Float(f64),
    Texts(Vec<String>),
}

impl From<&str> for Attr {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(MAX_TEXT)].to_owned())
    }
}

impl From<String> for Attr {
    fn from(mut text: String) -> Self {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        Self::Text(text)
    }
}

impl From<u64> for Attr {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// How telling goes, for whoever shows that.
pub trait Exports: Send + Sync + std::fmt::Debug {
    /// Spans that the collector took.
    fn spans_sent(&self) -> u64;
    /// Spans that nobody will see.
    fn spans_dropped(&self) -> u64;
    /// Requests to the collector that failed.
    fn failures(&self) -> u64;
}

/// Names and values, each name once.
pub type Attrs = Vec<(&'static str, Attr)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Done here.
    Internal,
    /// Asked of somebody else.
    Client,
}

/// One thing that was done, from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    /// Spans of other traces that it belongs to as well.
    pub links: Vec<Traceparent>,
    pub name: String,
    pub kind: SpanKind,
    pub start: Timestamp,
    /// Not before `start`.
    pub end: Timestamp,
    pub attrs: Attrs,
    /// Why it failed, if it did.
    pub error: Option<String>,
}
