//! The trace of a piece of work, in the form of W3C Trace Context.
//!
//! Span ids are *derived* from ids in the log: a session's trace and its spans are the same after a
//! crash, in every replay and in every process. Nothing has to be stored or passed along, except a
//! trace that somebody outside began.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use serde::{Deserialize, Serialize};

use crate::ids::{CallId, EffectId, SessionId};

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(NonZeroU128);

/// The id of a span in a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(NonZeroU64);

/// A span in the form for others: the header `traceparent`, the variable `TRACEPARENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traceparent {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the origin of the trace wants it recorded.
    pub sampled: bool,
}

/// The name of the header and of the field in MCP's `_meta`.
pub const TRACEPARENT: &str = "traceparent";
/// The environment variable with the same value.
pub const TRACEPARENT_VARIABLE: &str = "TRACEPARENT";

fn derived(tag: &[u8], id: u128) -> blake3::Hash {
    let mut hash = blake3::Hasher::new_derive_key("overmind 2026 trace context");
    hash.update(tag).update(&id.to_be_bytes());
    hash.finalize()
}

impl TraceId {
    pub fn from_u128(raw: u128) -> Option<Self> {
        NonZeroU128::new(raw).map(Self)
    }

    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }

    /// Returns the trace of a session that was started without one.
    pub fn of_session(id: SessionId) -> Self {
        Self::of(b"session", id.as_u128())
    }

    /// Returns the trace of a model call without a session and without a given trace.
    pub fn of_call(id: CallId) -> Self {
        Self::of(b"call", id.as_u128())
    }

    fn of(tag: &[u8], id: u128) -> Self {
        let hash = derived(tag, id);
        let mut raw = [0; 16];
        raw.copy_from_slice(&hash.as_bytes()[..16]);
        Self(NonZeroU128::new(u128::from_be_bytes(raw)).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    pub fn from_u64(raw: u64) -> Option<Self> {
        NonZeroU64::new(raw).map(Self)
    }

    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }

    /// Returns the span of a whole session.
    pub fn of_session(id: SessionId) -> Self {
        Self::of(b"session", id.as_u128())
    }

    /// Returns the span of a tool call, or of a model call of the engine's own.
    pub fn of_effect(id: EffectId) -> Self {
        Self::of(b"effect", id.as_u128())
    }

    /// Returns the span of a model call that was passed on.
    pub fn of_call(id: CallId) -> Self {
        Self::of(b"call", id.as_u128())
    }

    fn of(tag: &[u8], id: u128) -> Self {
        let hash = derived(tag, id);
        let mut raw = [0; 8];
        // Not the bytes that a trace of the same id has.
        raw.copy_from_slice(&hash.as_bytes()[16..24]);
        Self(NonZeroU64::new(u64::from_be_bytes(raw)).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl Traceparent {
    /// Parses the header's value. `None` if it is invalid; as the recommendation requires, it is
    /// then ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let lower =
            |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let mut parts = text.trim_matches([' ', '\t']).splitn(5, '-');
        let [version, trace, span, flags] =
            [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let lengths = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
        if !lengths || ![version, trace, span, flags].into_iter().all(lower) || version == "ff" {
            return None;
        }
        // Later versions may say more behind it; this one does not.
        if version == "00" && parts.next().is_some() {
            return None;
        }
        Some(Self {
            trace: TraceId::from_u128(u128::from_str_radix(trace, 16).ok()?)?,
            span: SpanId::from_u64(u64::from_str_radix(span, 16).ok()?)?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        })
    }

    /// Returns the span of a session in its trace: the given one, or its own.
    pub fn of_session(id: SessionId, given: Option<Self>) -> Self {
        Self {
            trace: given.map_or_else(|| TraceId::of_session(id), |given| given.trace),
            span: SpanId::of_session(id),
            sampled: given.is_none_or(|given| given.sampled),
        }
    }

    /// Returns another span of the same trace.
    #[must_use]
    pub fn at(self, span: SpanId) -> Self {
        Self { span, ..self }
    }
}

impl Serialize for Traceparent {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Traceparent {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a traceparent"))
    }
}

/// The trace of a session, for the programs that do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trail {
    /// The session's own span, or the given one if spans are not recorded.
    pub here: Traceparent,
    /// Whether this server's spans are recorded. Otherwise the given span is passed on unchanged,
    /// because a span that nobody records would break the trace.
    pub recorded: bool,
}

impl Trail {
    /// Returns the trail of a session; `None` if spans are not recorded and no trace was given.
    pub fn of_session(id: SessionId, given: Option<Traceparent>, recorded: bool) -> Option<Self> {
        match recorded {
            true => Some(Self { here: Traceparent::of_session(id, given), recorded }),
            false => given.map(|here| Self { here, recorded }),
        }
    }

    /// Returns `span` of the session in the form for others.
    pub fn at(self, span: SpanId) -> Traceparent {
        match self.recorded {
            true => self.here.at(span),
            false => self.here,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_w3c_recommendation_round_trips() {
        let parsed = Traceparent::parse(HEADER).unwrap();
        assert_eq!(parsed.to_string(), HEADER);
        assert!(parsed.sampled);
        assert_eq!(Traceparent::parse(&format!(" {HEADER}\t")), Some(parsed));
        let later = HEADER.replace("00-4", "cc-4") + "-what-the-future-will-be-like";
        assert_eq!(Traceparent::parse(&later), Some(parsed));
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        ] {
            assert_eq!(Traceparent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_session_has_the_given_trace_or_its_own() {
        let id = SessionId::from_u128(7);
        let own = Traceparent::of_session(id, None);
        assert_eq!(own, Traceparent::of_session(id, None));
        assert_ne!(own.trace, TraceId::of_session(SessionId::from_u128(8)));
        let given = Traceparent::parse(HEADER).unwrap();
        let under = Traceparent::of_session(id, Some(given));
        assert_eq!((under.trace, under.span), (given.trace, own.span));
        let quiet = Traceparent { sampled: false, ..given };
        assert!(!Traceparent::of_session(id, Some(quiet)).sampled);
    }

    #[test]
    fn an_unrecorded_span_is_in_no_traceparent() {
        let (id, effect) = (SessionId::from_u128(7), SpanId::of_effect(EffectId::from_u128(1)));
        let given = Traceparent::parse(HEADER).unwrap();
        assert_eq!(Trail::of_session(id, None, false), None);
        let passed = Trail::of_session(id, Some(given), false).unwrap();
        assert_eq!(passed.at(effect), given);
        let recorded = Trail::of_session(id, Some(given), true).unwrap();
        assert_eq!(recorded.at(effect), given.at(effect));
    }

    proptest! {
        #[test]
        fn a_traceparent_round_trips(trace in 1_u128.., span in 1_u64.., sampled: bool) {
            let given = Traceparent {
                trace: TraceId::from_u128(trace).unwrap(),
                span: SpanId::from_u64(span).unwrap(),
                sampled,
            };
            prop_assert_eq!(Traceparent::parse(&given.to_string()), Some(given));
            let json = serde_json::to_string(&given).unwrap();
            prop_assert_eq!(serde_json::from_str::<Traceparent>(&json).unwrap(), given);
        }

        #[test]
        fn no_text_panics(text in "[0-9a-fA-Fxyz -]{0,70}") {
            if let Some(read) = Traceparent::parse(&text) {
                prop_assert!(Traceparent::parse(&read.to_string()).is_some());
            }
        }
    }
}
