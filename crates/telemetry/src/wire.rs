//! Encodes the messages of OTLP as protobuf.
//!
//! It only encodes: the one message that is read is an answer, whose content is not used. Field
//! numbers are those of `opentelemetry-proto`, which guarantees that they are stable.

use overmind_core::telemetry::figures::Histogram;
use overmind_core::telemetry::{Attr, Span, SpanKind};
use overmind_core::time::Timestamp;

/// The instrumentation scope of all spans and metrics.
const SCOPE: &str = "overmind";

/// A message that is being encoded.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    fn varint(&mut self, mut value: u64) {
        loop {
            let low = value.to_le_bytes()[0] & 0x7f;
            value >>= 7;
            if value == 0 {
                self.0.push(low);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.key(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, value: u32) {
        self.key(field, FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn double(&mut self, field: u64, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}

/// Nanoseconds since the epoch; earlier times become 0.
fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(0).saturating_mul(1000)
}

fn value(to: &mut Message, attr: &Attr) {
    match attr {
        Attr::Text(text) => to.text(1, text),
        Attr::Whole(number) => to.number(3, number.cast_unsigned()),
        Attr::Float(number) => to.double(4, *number),
        Attr::Texts(texts) => to.message(5, |array| {
            for text in texts {
                array.message(1, |value| value.text(1, text));
            }
        }),
    }
}

fn attribute(to: &mut Message, field: u64, name: &str, attr: &Attr) {
    to.message(field, |pair| {
        pair.text(1, name);
        pair.message(2, |to| value(to, attr));
    });
}

fn text_attribute(to: &mut Message, field: u64, name: &str, text: &str) {
    to.message(field, |pair| {
        pair.text(1, name);
        pair.message(2, |value| value.text(1, text));
    });
}

fn resource(to: &mut Message, resource: &[(String, String)]) {
    to.message(1, |message| {
        for (name, text) in resource {
            text_attribute(message, 1, name, text);
        }
    });
}

fn scope(to: &mut Message) {
    to.message(1, |scope| {
        scope.text(1, SCOPE);
        scope.text(2, env!("CARGO_PKG_VERSION"));
    });
}

fn span(to: &mut Message, span: &Span) {
    to.bytes(1, &span.trace.to_bytes());
    to.bytes(2, &span.id.to_bytes());
    if let Some(parent) = span.parent {
        to.bytes(4, &parent.to_bytes());
    }
    to.text(5, &span.name);
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Client => 3,
    };
    to.number(6, kind);
    to.fixed64(7, nanos(span.start));
    to.fixed64(8, nanos(span.end));
    for (name, attr) in &span.attrs {
        attribute(to, 9, name, attr);
    }
    for link in &span.links {
        to.message(13, |to| {
            to.bytes(1, &link.trace.to_bytes());
            to.bytes(2, &link.span.to_bytes());
            to.fixed32(6, u32::from(link.sampled));
        });
    }
    if let Some(error) = &span.error {
        to.message(15, |status| {
            status.text(2, error);
            status.number(3, 2);
        });
    }
    // The flag "sampled": other spans are never made.
    to.fixed32(16, 1);
}

/// `ExportTraceServiceRequest`.
pub(crate) fn traces(of: &[(String, String)], spans: &[Span]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |all| {
        resource(all, of);
        all.message(2, |all| {
            scope(all);
            for one in spans {
                all.message(2, |to| span(to, one));
            }
        });
    });
    request.0
}

/// `ExportMetricsServiceRequest`: the counts from `since` until `now`.
pub(crate) fn metrics<'a>(
    of: &[(String, String)],
    histograms: impl Iterator<Item = &'a Histogram>,
    since: Timestamp,
    now: Timestamp,
) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |all| {
        resource(all, of);
        all.message(2, |all| {
            scope(all);
            for histogram in histograms {
                all.message(2, |to| metric(to, histogram, since, now));
            }
        });
    });
    request.0
}

fn metric(to: &mut Message, histogram: &Histogram, since: Timestamp, now: Timestamp) {
    to.text(1, histogram.name);
    to.text(2, histogram.help);
    to.text(3, histogram.unit);
    to.message(9, |data| {
        for (labels, series) in &histogram.series {
            data.message(1, |point| {
                point.fixed64(2, nanos(since));
                point.fixed64(3, nanos(now));
                point.fixed64(4, series.count);
                point.double(5, series.sum);
                let counts: Vec<u8> =
                    series.buckets.iter().flat_map(|count| count.to_le_bytes()).collect();
                point.bytes(6, &counts);
                let bounds: Vec<u8> =
                    histogram.bounds.iter().flat_map(|bound| bound.to_le_bytes()).collect();
                point.bytes(7, &bounds);
                for (name, text) in labels {
                    text_attribute(point, 9, name, text);
                }
                if labels.is_empty() {
                    point.message(9, |pair| {
                        pair.text(1, "otel.metric.overflow");
                        pair.message(2, |value| value.number(2, 1));
                    });
                }
                point.double(11, series.min);
                point.double(12, series.max);
            });
        }
        // The temporality is cumulative.
        data.number(2, 2);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_protobuf_documentation_says() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        assert_eq!(message.0, b"\x08\x96\x01\x12\x07testing");
    }

    proptest! {
        #[test]
        fn a_varint_round_trips(value: u64) {
            let mut message = Message::default();
            message.varint(value);
            let read = message.0.iter().rev().fold(0_u64, |sum, byte| {
                sum << 7 | u64::from(byte & 0x7f)
            });
            prop_assert_eq!(read, value);
            let (last, before) = message.0.split_last().unwrap();
            prop_assert!(last & 0x80 == 0 && before.iter().all(|byte| byte & 0x80 != 0));
        }
    }
}
