//! Figures of an answer, read as it passes.
//!
//! An answer as one JSON document is followed byte by byte, without a tree and without keeping more
//! than the two values that are wanted. A stream is followed line by line.

use std::borrow::Cow;

use memchr::memchr2;
use overmind_core::model::Usage;
use overmind_core::relay::{Endpoint, Tally};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Longest value that is kept: figures are short.
const MAX_VALUE: usize = 16 * 1024;
/// Longest line of a stream that is read; figures come on short ones, but for the last one of
/// Responses, which holds the whole answer.
const MAX_LINE: usize = 16 << 20;

/// Reads what passes.
#[derive(Debug)]
pub(crate) enum Meter {
    Stream(Lines),
    Whole(Document),
    /// Nothing is read: an error, or packed bytes.
    Blind,
}

impl Meter {
    pub(crate) fn new(endpoint: Endpoint, is_stream: bool) -> Self {
        match is_stream {
            true => Self::Stream(Lines::new(endpoint)),
            false => Self::Whole(Document::new(endpoint)),
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Stream(lines) => lines.feed(bytes),
            Self::Whole(document) => document.feed(bytes),
            Self::Blind => {}
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        match self {
            Self::Stream(lines) => lines.tally.clone(),
            Self::Whole(document) => document.tally(),
            Self::Blind => Tally::default(),
        }
    }
}

/// The figures in a provider's `usage`; `None` when it is no object.
pub(crate) fn usage_of(endpoint: Endpoint, usage: &Value) -> Option<Usage> {
    usage.as_object()?;
    let n = |keys: &[&str]| {
        let found = keys.iter().try_fold(usage, |value, key| value.get(key));
        found.and_then(Value::as_u64).unwrap_or(0)
    };
    Some(match endpoint {
        Endpoint::Chat | Endpoint::Embeddings => Usage {
            input_tokens: n(&["prompt_tokens"]),
            output_tokens: n(&["completion_tokens"]),
            cached_input_tokens: n(&["prompt_tokens_details", "cached_tokens"])
                .max(n(&["prompt_cache_hit_tokens"])),
            cache_write_tokens: n(&["prompt_tokens_details", "cache_write_tokens"]),
            reasoning_tokens: n(&["completion_tokens_details", "reasoning_tokens"]),
        },
        Endpoint::Responses => Usage {
            input_tokens: n(&["input_tokens"]),
            output_tokens: n(&["output_tokens"]),
            cached_input_tokens: n(&["input_tokens_details", "cached_tokens"]),
            cache_write_tokens: n(&["input_tokens_details", "cache_write_tokens"]),
            reasoning_tokens: n(&["output_tokens_details", "reasoning_tokens"]),
        },
        // Here the input is what was neither read from the cache nor written to it.
        Endpoint::Messages | Endpoint::CountTokens => {
            let (read, written) =
                (n(&["cache_read_input_tokens"]), n(&["cache_creation_input_tokens"]));
            Usage {
                input_tokens: n(&["input_tokens"]).saturating_add(read).saturating_add(written),
                output_tokens: n(&["output_tokens"]),
                cached_input_tokens: read,
                cache_write_tokens: written,
                reasoning_tokens: 0,
            }
        }
    })
}

/// What is wanted of an event, of whatever format.
#[derive(Deserialize)]
struct Seen<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<Inner<'a>>,
    #[serde(borrow, default)]
    response: Option<Inner<'a>>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

/// Reads a stream of events.
#[derive(Debug)]
pub(crate) struct Lines {
    endpoint: Endpoint,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// That line is too long: the rest of it is passed over.
    skipping: bool,
    tally: Tally,
}

impl Lines {
    fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, partial: Vec::new(), skipping: false, tally: Tally::default() }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            if std::mem::take(&mut self.skipping) {
                self.partial.clear();
            } else if self.partial.is_empty() {
                self.line(&bytes[..end]);
            } else {
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(&bytes[..end]);
                self.line(&line);
                line.clear();
                self.partial = line;
            }
            bytes = &bytes[end + 1..];
        }
        if self.skipping || self.partial.len() + bytes.len() > MAX_LINE {
            self.skipping = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data.first() != Some(&b'{') {
            return;
        }
        let Ok(seen) = serde_json::from_slice::<Seen<'_>>(data) else {
            // Whatever it is, it was sent, and something may be billed for it.
            self.tally.said_bytes += u64::try_from(data.len()).unwrap_or(0);
            return;
        };
        let inner = seen.message.as_ref().or(seen.response.as_ref());
        if self.tally.model.is_none() {
            let model = seen.model.as_ref().or_else(|| inner.and_then(|i| i.model.as_ref()));
            self.tally.model = model.filter(|name| name.len() <= 256).map(|name| name.to_string());
        }
        self.tally.said_bytes += seen.said();
        let raw = seen.usage.or_else(|| inner.and_then(|inner| inner.usage));
        let told = raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let Some(usage) = told.and_then(|told| usage_of(self.endpoint, &told)) else { return };
        let before = self.tally.usage.unwrap_or_default();
        // Anthropic tells the input at the beginning, and may or may not repeat it at the end.
        let usage = Usage {
            input_tokens: usage.input_tokens.max(before.input_tokens),
            output_tokens: usage.output_tokens.max(before.output_tokens),
            cached_input_tokens: usage.cached_input_tokens.max(before.cached_input_tokens),
            cache_write_tokens: usage.cache_write_tokens.max(before.cache_write_tokens),
            reasoning_tokens: usage.reasoning_tokens.max(before.reasoning_tokens),
        };
        self.tally.usage = Some(usage);
        self.tally.is_final |= match self.endpoint {
            Endpoint::Chat | Endpoint::Embeddings => seen
                .choices
                .as_ref()
                .is_none_or(|all| all.iter().all(|choice| choice.finish_reason.is_some())),
            Endpoint::Messages | Endpoint::CountTokens => {
                seen.kind.as_deref() == Some("message_delta")
            }
            Endpoint::Responses => matches!(
                seen.kind.as_deref(),
                Some("response.completed" | "response.incomplete" | "response.failed")
            ),
        };
    }
}

impl Seen<'_> {
    /// Bytes of text, reasoning and arguments.
    fn said(&self) -> u64 {
        let of_choices = self.choices.iter().flatten().filter_map(|choice| choice.delta);
        let all = of_choices.chain(self.delta).map(|raw| {
            let raw = raw.get();
            if raw.starts_with('"') {
                return raw.len().saturating_sub(2);
            }
            let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(raw) else { return 0 };
            fields
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "type" | "role" | "stop_reason"))
                .map(|(_, value)| match value {
                    Value::String(text) => text.len(),
                    Value::Array(_) => value.to_string().len(),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => 0,
                })
                .sum()
        });
        u64::try_from(all.sum::<usize>()).unwrap_or(u64::MAX)
    }
}

/// Follows a JSON document and keeps the values of `usage` and `model` at its top.
#[derive(Debug)]
pub(crate) struct Document {
    endpoint: Endpoint,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// At the top, where a name may come; else a value is due.
    name_next: bool,
    /// The text of the name that is being read, or was read last.
    name: Vec<u8>,
    reading_name: bool,
    /// The value that is being kept.
    keeping: Option<Wanted>,
    value: Vec<u8>,
    usage: Option<Value>,
    model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Usage,
    Model,
}

impl Document {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            depth: 0,
            in_string: false,
            escaped: false,
            name_next: false,
            name: Vec::new(),
            reading_name: false,
            keeping: None,
            value: Vec::new(),
            usage: None,
            model: None,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            // Within texts that nobody wants, from quote to quote.
            if self.in_string && !self.escaped && !self.reading_name && self.keeping.is_none() {
                match memchr2(b'"', b'\\', &bytes[at..]) {
                    None => return,
                    Some(skip) => at += skip,
                }
            }
            self.byte(bytes[at]);
            at += 1;
        }
    }

    fn byte(&mut self, byte: u8) {
        if self.keeping.is_some() {
            let ends = !self.in_string && self.depth == 1 && matches!(byte, b',' | b'}');
            if ends {
                self.kept();
            } else if self.value.len() < MAX_VALUE {
                self.value.push(byte);
            } else {
                self.keeping = None;
            }
        }
        if self.in_string {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == b'"' {
                self.in_string = false;
                self.reading_name = false;
            } else if self.reading_name && self.name.len() < 64 {
                self.name.push(byte);
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.name_next {
                    self.reading_name = true;
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.name_next = self.depth == 1 && byte == b'{';
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' if self.depth == 1 => self.name_next = true,
            b':' if self.depth == 1 && self.name_next => {
                self.name_next = false;
                self.keeping = match self.name.as_slice() {
                    b"usage" => Some(Wanted::Usage),
                    b"model" => Some(Wanted::Model),
                    _ => None,
                };
                self.value.clear();
            }
            _ => {}
        }
    }

    fn kept(&mut self) {
        let value = serde_json::from_slice::<Value>(&self.value).ok();
        match (self.keeping.take(), value) {
            (Some(Wanted::Usage), Some(value @ Value::Object(_))) => self.usage = Some(value),
            (Some(Wanted::Model), Some(Value::String(name))) if name.len() <= 256 => {
                self.model = Some(name);
            }
            _ => {}
        }
    }

    fn tally(&self) -> Tally {
        let usage = self.usage.as_ref().and_then(|usage| usage_of(self.endpoint, usage));
        Tally { is_final: usage.is_some(), usage, model: self.model.clone(), said_bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(endpoint: Endpoint, is_stream: bool, text: &str, piece: usize) -> Tally {
        let mut meter = Meter::new(endpoint, is_stream);
        text.as_bytes().chunks(piece).for_each(|piece| meter.feed(piece));
        meter.tally()
    }

    #[track_caller]
    fn check(endpoint: Endpoint, is_stream: bool, text: &str, want: Usage) {
        for piece in [1, 2, 3, 7, text.len()] {
            let tally = read(endpoint, is_stream, text, piece);
            assert_eq!(tally.usage, Some(want), "{text} in pieces of {piece}");
            assert!(tally.is_final);
            assert_eq!(tally.model.as_deref(), Some("m-1"));
        }
    }

    #[test]
    fn figures_are_read_from_each_format_whole_or_streamed() {
        let want = Usage {
            input_tokens: 100,
            output_tokens: 20,
            cached_input_tokens: 60,
            reasoning_tokens: 5,
            ..Usage::default()
        };
        let chat = r#"{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":60},"completion_tokens_details":{"reasoning_tokens":5}}"#;
        let whole = format!(
            r#"{{"choices":[{{"message":{{"content":"\"usage\":{{}} \\","usage":1}}}}],"model": "m-1" , "usage" : {chat} }}"#
        );
        check(Endpoint::Chat, false, &whole, want);
        let stream = format!(
            "data: {{\"model\":\"m-1\",\"choices\":[{{\"delta\":{{\"content\":\"hi\"}},\"finish_reason\":null}}],\"usage\":null}}\n\n: ping\n\n\
             data: {{\"model\":\"m-1\",\"choices\":[],\"usage\":{chat}}}\n\ndata: [DONE]\n\n"
        );
        check(Endpoint::Chat, true, &stream, want);
        let responses = r#"{"input_tokens":100,"output_tokens":20,"input_tokens_details":{"cached_tokens":60},"output_tokens_details":{"reasoning_tokens":5}}"#;
        check(
            Endpoint::Responses,
            false,
            &format!(r#"{{"model":"m-1","output":[],"usage":{responses}}}"#),
            want,
        );
        check(
            Endpoint::Responses,
            true,
            &format!(
                "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"model\":\"m-1\",\"usage\":{responses}}}}}\n\n"
            ),
            want,
        );
        let want = Usage { cache_write_tokens: 10, reasoning_tokens: 0, ..want };
        let first = r#"{"input_tokens":30,"cache_read_input_tokens":60,"cache_creation_input_tokens":10,"output_tokens":1}"#;
        check(
            Endpoint::Messages,
            true,
            &format!(
                "event: message_start\r\ndata: {{\"type\":\"message_start\",\"message\":{{\"model\":\"m-1\",\"usage\":{first}}}}}\r\n\r\n\
                 event: ping\r\ndata: {{\"type\":\"ping\"}}\r\n\r\n\
                 event: message_delta\r\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{{\"output_tokens\":20}}}}\r\n\r\n"
            ),
            want,
        );
    }

    #[test]
    fn a_stream_that_was_cut_has_told_how_much_it_said() {
        let text = "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m-1\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n\
                    data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"twelve bytes\"}}\n\n\
                    data: {\"type\":\"content_block_de";
        let tally = read(Endpoint::Messages, true, text, 5);
        assert!(!tally.is_final);
        assert_eq!(tally.said_bytes, 12);
        assert_eq!(
            tally.settled(0),
            Usage { input_tokens: 7, output_tokens: 4, ..Usage::default() }
        );
    }

    proptest! {
        #[test]
        fn nothing_panics_and_a_document_is_read_however_it_is_cut(
            text in "(\\PC|\\{|\\}|\"|\\\\|,|:|\n|data: ){0,60}",
            content in ".{0,30}",
            piece in 1_usize..20,
        ) {
            for is_stream in [true, false] {
                read(Endpoint::Chat, is_stream, &text, piece);
            }
            let body = json!({
                "a": {"usage": {"prompt_tokens": 9}, "b": [content, {"model": text}]},
                "model": "m-1",
                "usage": {"prompt_tokens": 3, "completion_tokens": 4},
            });
            let tally = read(Endpoint::Chat, false, &body.to_string(), piece);
            let want = Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() };
            prop_assert_eq!(tally.usage, Some(want));
        }
    }
}
