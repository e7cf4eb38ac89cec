//! Reads the usage and the end of an answer while it is relayed.
//!
//! An answer that is one JSON document is followed byte by byte, without a tree, and only a few
//! values are kept: see [`Document`]. A stream is followed line by line.

use std::borrow::Cow;

use memchr::memchr2;
use overmind_core::json;
use overmind_core::model::Usage;
use overmind_core::relay::ending::{self, MAX_CHOICES};
use overmind_core::relay::{CallError, Ending, Endpoint, Tally};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::document::Document;
use super::format_of;
use crate::wire::usage;

/// Maximum length of a stream's line that is read, in bytes. Usage is on short lines, except in the
/// last event of Responses, which contains the whole answer.
const MAX_LINE: usize = 16 << 20;
/// Maximum size of an event of an unknown type that is searched for an error, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// Reads the bytes of an answer while they are relayed.
#[derive(Debug)]
pub(crate) enum Meter {
    Stream(Lines),
    Whole(Document),
    /// Nothing is read, because the body is compressed, or because it is an error that was read
    /// already.
    Blind(Box<Ending>),
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
            Self::Blind(_) => {}
        }
    }

    /// Whether a stream has reached its last event. Answers that are not streams have no such
    /// event.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Stream(lines) => lines.is_over,
            Self::Whole(_) | Self::Blind(_) => true,
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        match self {
            Self::Stream(lines) => lines.tally(),
            Self::Whole(document) => document.tally(),
            Self::Blind(ending) => Tally { ending: (**ending).clone(), ..Tally::default() },
        }
    }
}

/// The counts in a provider's `usage`; `None` if there are none.
pub(super) fn usage_of(endpoint: Endpoint, usage: &Value) -> Option<Usage> {
    usage::usage_of(format_of(endpoint), usage)
}

/// The fields that are needed from an event, in any of the formats.
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
    // Optional values stay unparsed, so that a malformed one does not prevent reading the usage.
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    incomplete_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
}

/// An output item of a Responses answer.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

/// The end of a message.
#[derive(Deserialize)]
struct Stopped<'a> {
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    index: Option<&'a RawValue>,
}

/// Why a Responses answer ended. `how` is the last word of its event's name or its status.
pub(super) fn response_end(how: &str, why: Option<&str>, calls: bool) -> &'static str {
    match (how, why) {
        ("completed", _) if calls => "tool_calls",
        ("completed", _) => "stop",
        ("incomplete", Some("content_filter")) => "content_filter",
        ("incomplete", _) => "length",
        ("failed", _) => "error",
        ("cancelled", _) => "cancelled",
        _ => "",
    }
}

/// Whether an item of Responses is a call for the caller.
pub(super) fn is_call(kind: &str) -> bool {
    matches!(kind, "function_call" | "custom_tool_call" | "local_shell_call" | "computer_call")
}

fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str(raw.get()).ok()
}

/// Reads a stream of events.
#[derive(Debug)]
pub(crate) struct Lines {
    endpoint: Endpoint,
    /// The beginning of a line that is not complete yet.
    partial: Vec<u8>,
    /// Whether the line is too long and its rest is skipped.
    skipping: bool,
    /// Whether the last event has arrived, or one that means the same.
    is_over: bool,
    /// The number of choices of a chat that have begun.
    choices: usize,
    tally: Tally,
}

impl Lines {
    fn new(endpoint: Endpoint) -> Self {
        // Answers of these endpoints are never streams.
        let is_over = matches!(endpoint, Endpoint::Embeddings | Endpoint::CountTokens);
        let tally = Tally::default();
        Self { endpoint, partial: Vec::new(), skipping: false, is_over, choices: 0, tally }
    }

    fn tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        if tally.is_final
            && let Some(usage) = tally.usage.as_mut().filter(|usage| usage.output_tokens == 0)
        {
            // The output that was already sent is counted.
            usage.output_tokens = tally.said_bytes.div_ceil(3);
        }
        tally
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
            // Only the last event of Responses can have this length.
            self.is_over = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data.first() != Some(&b'{') {
            self.is_over |= data == b"[DONE]";
            return;
        }
        let mended;
        let mut read = serde_json::from_slice::<Seen<'_>>(data);
        if read.is_err() {
            mended = json::mended(data);
            read = serde_json::from_slice(&mended);
        }
        let Ok(seen) = read else {
            // The provider sent these bytes, whatever they are, and may bill them.
            self.tally.said_bytes += u64::try_from(data.len()).unwrap_or(0);
            if data.len() <= MAX_ERROR && self.tally.ending.error.is_none() {
                self.tally.ending.error = CallError::read(data);
            }
            return;
        };
        let inner = seen.message.as_ref().or(seen.response.as_ref());
        self.ending(&seen, inner);
        self.is_over |= self.is_last(&seen);
        if self.tally.model.is_none() {
            let model = seen.model.as_ref().or_else(|| inner.and_then(|i| i.model.as_ref()));
            self.tally.model = model.filter(|name| name.len() <= 256).map(|name| name.to_string());
        }
        self.tally.said_bytes += seen.said();
        let raw = seen.usage.or_else(|| inner.and_then(|inner| inner.usage));
        let told = raw.and_then(|raw| json::read::<Value>(raw.get().as_bytes()).ok());
        let Some(usage) = told.and_then(|told| usage_of(self.endpoint, &told)) else { return };
        self.tally.usage = Some(usage::later(self.tally.usage, usage));
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

    /// Whether the answer is complete with this event. Some chat servers omit `[DONE]`; then the
    /// reasons to stop show the end.
    fn is_last(&self, seen: &Seen<'_>) -> bool {
        let kind = seen.kind.as_deref().unwrap_or_default();
        let failed = kind == "error" || seen.error.is_some_and(|error| error.get() != "null");
        failed
            || match self.endpoint {
                Endpoint::Chat => {
                    let finish = &self.tally.ending.finish;
                    let ended = finish.iter().filter(|why| !why.is_empty()).count();
                    ended > 0 && ended >= self.choices.min(MAX_CHOICES)
                }
                Endpoint::Messages => kind == "message_stop",
                Endpoint::Responses => matches!(
                    kind,
                    "response.completed"
                        | "response.incomplete"
                        | "response.failed"
                        | "response.cancelled"
                ),
                Endpoint::Embeddings | Endpoint::CountTokens => true,
            }
    }

    /// Reads from an event what it contains about the answer's end. Most events contain nothing.
    fn ending(&mut self, seen: &Seen<'_>, inner: Option<&Inner<'_>>) {
        let ending = &mut self.tally.ending;
        if ending.id.is_none() {
            let id = inner.and_then(|inner| inner.id).or(seen.id).and_then(text_of);
            ending.id = id.and_then(|id| Some(ending::word(&id)?.to_owned()));
        }
        if let Some(error) = seen.error.or_else(|| inner.and_then(|inner| inner.error)) {
            let error = json::read(error.get().as_bytes()).ok();
            ending.error = error.and_then(|error| CallError::of(&error)).or(ending.error.take());
        }
        for choice in seen.choices.iter().flatten() {
            let at = choice.index.and_then(|at| at.get().parse().ok()).unwrap_or(0_usize);
            self.choices = self.choices.max(at.saturating_add(1));
            let Some(why) = choice.finish_reason.as_deref().and_then(ending::finish) else {
                continue;
            };
            if at < MAX_CHOICES {
                // A choice that has not begun ends later, or never.
                ending.finish.resize(ending.finish.len().max(at + 1), Cow::Borrowed(""));
                ending.finish[at] = why;
            }
        }
        let why = match (seen.kind.as_deref(), inner) {
            (Some("message_delta"), _) => {
                let delta = seen.delta.map(RawValue::get).unwrap_or_default();
                serde_json::from_str::<Stopped<'_>>(delta)
                    .ok()
                    .and_then(|stopped| stopped.stop_reason.as_deref().and_then(ending::finish))
            }
            (Some(kind), Some(inner)) => kind.strip_prefix("response.").and_then(|how| {
                let items = inner.output.map(RawValue::get).unwrap_or_default();
                let items = serde_json::from_str::<Vec<Item<'_>>>(items).unwrap_or_default();
                let calls = items.iter().any(|item| item.kind.as_deref().is_some_and(is_call));
                let details = inner.incomplete_details.map(RawValue::get).unwrap_or_default();
                let details = json::read::<Value>(details.as_bytes()).unwrap_or_default();
                ending::finish(response_end(how, details["reason"].as_str(), calls))
            }),
            _ => None,
        };
        if let Some(why) = why {
            ending.finish = vec![why];
        }
    }
}

impl Seen<'_> {
    /// The number of bytes of text, reasoning and arguments.
    fn said(&self) -> u64 {
        let of_choices = self.choices.iter().flatten().filter_map(|choice| choice.delta);
        let all = of_choices.chain(self.delta).map(|raw| {
            let raw = raw.get();
            if raw.starts_with('"') {
                return raw.len().saturating_sub(2);
            }
            let Ok(Value::Object(fields)) = json::read(raw.as_bytes()) else { return 0 };
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
    fn usage_is_read_from_each_format_whole_or_streamed() {
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

    #[track_caller]
    fn ends(endpoint: Endpoint, is_stream: bool, text: &str, id: &str, finish: &[&str]) {
        for piece in [1, 2, 5, text.len()] {
            let ending = read(endpoint, is_stream, text, piece).ending;
            assert_eq!(ending.id.as_deref(), Some(id), "{text} in pieces of {piece}");
            assert_eq!(ending.finish, finish, "{text} in pieces of {piece}");
            assert_eq!(ending.error, None);
        }
    }

    #[test]
    fn finish_reasons_are_read_from_each_format() {
        let content = r#"\"finish_reason\":\"length\",{}[] \\"#;
        let chat = format!(
            r#"{{"id":"c-1","choices":[{{"index":0,"message":{{"content":"{content}","finish_reason":"x","tool_calls":[{{"type":"y"}}]}},"logprobs":null,"finish_reason":"tool_calls"}},{{"message":{{}}, "finish_reason" : "length" }}],"usage":{{}}}}"#
        );
        ends(Endpoint::Chat, false, &chat, "c-1", &["tool_call", "length"]);
        let stream = "data: {\"id\":\"c-1\",\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
                      data: {\"id\":\"c-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n\
                      data: {\"id\":\"c-1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        ends(Endpoint::Chat, true, stream, "c-1", &["stop", "length"]);
        let message = r#"{"id":"m-1","type":"message","content":[{"type":"text","text":"stop_reason"}],"stop_reason":"max_tokens","usage":{}}"#;
        ends(Endpoint::Messages, false, message, "m-1", &["length"]);
        let stream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m-1\",\"stop_reason\":null}}\n\n\
                      data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n\
                      data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":3}}\n\n";
        ends(Endpoint::Messages, true, stream, "m-1", &["tool_call"]);
        for (status, more, output, finish) in [
            ("completed", "", "", "stop"),
            ("completed", "", r#"{"type":"reasoning"},{"type":"function_call"}"#, "tool_call"),
            (
                "incomplete",
                r#""incomplete_details":{"reason":"max_output_tokens"},"#,
                r#"{"type":"function_call"}"#,
                "length",
            ),
            (
                "incomplete",
                r#""incomplete_details":{"reason":"content_filter"},"#,
                "",
                "content_filter",
            ),
        ] {
            let body = format!(
                r#"{{"id":"r-1","status":"{status}","error":null,{more}"output":[{output}],"usage":null}}"#
            );
            ends(Endpoint::Responses, false, &body, "r-1", &[finish]);
            let stream = format!(
                "data: {{\"type\":\"response.created\",\"response\":{{\"id\":\"r-1\",\"status\":\"in_progress\"}}}}\n\n\
                 data: {{\"type\":\"response.output_item.done\",\"item\":{{\"id\":\"i-1\"}}}}\n\n\
                 data: {{\"type\":\"response.{status}\",\"response\":{body}}}\n\n"
            );
            ends(Endpoint::Responses, true, &stream, "r-1", &[finish]);
        }
    }

    #[test]
    fn an_error_within_an_answer_is_its_end() {
        for (endpoint, is_stream, text, kind) in [
            (
                Endpoint::Messages,
                true,
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n",
                "overloaded_error",
            ),
            (
                Endpoint::Chat,
                true,
                "data: {\"error\":{\"message\":\"busy\",\"code\":\"server_error\"}}\n\n",
                "server_error",
            ),
            (
                Endpoint::Responses,
                true,
                "data: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"busy\",\"param\":null}\n\n",
                "server_error",
            ),
            (
                Endpoint::Responses,
                true,
                "data: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"busy\"}}}\n\n",
                "rate_limit_exceeded",
            ),
            (
                Endpoint::Responses,
                false,
                r#"{"status":"failed","error":{"code":"server_error","message":"busy"}}"#,
                "server_error",
            ),
        ] {
            for piece in [1, 7, text.len()] {
                let error = read(endpoint, is_stream, text, piece).ending.error.unwrap();
                assert_eq!((error.kind.as_str(), error.message.as_str()), (kind, "busy"), "{text}");
            }
        }
    }

    #[test]
    fn an_unusual_id_or_index_loses_no_usage() {
        let text = "data: {\"id\":7,\"choices\":[{\"index\":\"a\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3}}\n\n";
        let tally = read(Endpoint::Chat, true, text, 9);
        assert_eq!(tally.usage.unwrap().input_tokens, 3);
        assert_eq!((tally.ending.id, tally.ending.finish.len()), (None, 1));
        let text = r#"{"id":{"a":[1]},"choices":[1,"finish_reason",[{"finish_reason":"x"}]],"usage":{"prompt_tokens":3}}"#;
        let tally = read(Endpoint::Chat, false, text, 9);
        assert_eq!(tally.usage.unwrap().input_tokens, 3);
        assert_eq!((tally.ending.id, tally.ending.finish.len()), (None, 0));
    }

    #[test]
    fn a_truncated_stream_reports_its_usage() {
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
        fn documents_are_read_across_any_chunks_without_panic(
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
