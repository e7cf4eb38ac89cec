//! Telemetry with OpenTelemetry's conventions for generative AI: spans and histograms.
//!
//! Pure: [`told`] converts one event of the log to the spans that it ends. Nothing is measured or
//! stored during the work, because the log contains everything for a span, and ids are derived, see
//! [`crate::trace`]. So a session that was recovered three times has one span, with the same ids as
//! without a recovery, and an exporter needs no store.
//!
//! * [`Known`]: the facts from a session's first event that all of its spans share.
//! * [`told`]: `invoke_agent`, `chat`, `embeddings` and `execute_tool` spans.
//! * [`figures`]: histograms of the same calls.

pub mod figures;
mod known;
mod map;
mod said;

use crate::time::Timestamp;
use crate::trace::{SpanId, TraceId, Traceparent};

pub use self::known::Known;
pub use self::map::{ENDS, Lens, Measured, TOLD, Told, told};

/// Longest text of an attribute, in bytes. Longer texts of models and tools are cut.
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

/// Counts of an exporter, for status displays.
pub trait Exports: Send + Sync + std::fmt::Debug {
    /// Returns the number of spans that the collector accepted.
    fn spans_sent(&self) -> u64;
    /// Returns the number of spans that were lost.
    fn spans_dropped(&self) -> u64;
    /// Returns the number of failed requests to the collector.
    fn failures(&self) -> u64;
}

/// Names and values; each name occurs once.
pub type Attrs = Vec<(&'static str, Attr)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The work was done in this process.
    Internal,
    /// The work was requested from another service.
    Client,
}

/// One unit of work, from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    /// Spans of other traces to which it also belongs.
    pub links: Vec<Traceparent>,
    pub name: String,
    pub kind: SpanKind,
    pub start: Timestamp,
    /// The end, not before `start`.
    pub end: Timestamp,
    pub attrs: Attrs,
    /// The error, if it failed.
    pub error: Option<String>,
}
