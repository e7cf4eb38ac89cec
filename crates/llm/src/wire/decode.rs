//! The decoder: it takes events and returns pieces and one draft. Our own calls and the translation
//! of relayed calls use it.

use overmind_core::json;
use overmind_core::model::StopReason;
use serde_json::Value;

use super::halves::Halves;
use super::usage::Told;
use super::{Pieces, anthropic, chat, responses};
use crate::config::Format;
use crate::fail::Said;
use crate::sse::Event;

/// A tool call as it appears on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WireCall {
    pub(crate) id: String,
    /// The name on the wire, which may be an alias.
    pub(crate) name: String,
    /// JSON text, which may be incomplete.
    pub(crate) args: String,
}

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Heard {
    Text(String),
    Reasoning(String),
    /// The call `n` has begun; its name may still be an alias.
    Call {
        n: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of the call `n`.
    Args {
        n: usize,
        text: String,
    },
}

/// A whole reply, before names, ids, arguments and price are converted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    /// The provider's own id of the reply.
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<WireCall>,
    pub(crate) usage: Told,
    pub(crate) stop: StopReason,
    /// The caller's stop text that was reached, if the provider reports it.
    pub(crate) stopped: Option<String>,
    pub(crate) model: String,
    pub(crate) pieces: Pieces,
}

/// Why a stream yields no reply.
#[derive(Clone, Debug)]
pub(crate) enum Broken {
    /// The provider reported an error in an event.
    Said { said: Said, raw: String },
    /// The stream is not of this format.
    Nonsense(String),
    /// The stream ended too early.
    Cut,
}

/// One reply that is being received.
#[derive(Debug)]
pub(crate) struct Decoder {
    reply: Reply,
    halves: Halves,
    has_begun: bool,
}

#[derive(Debug)]
enum Reply {
    Responses(responses::Reply),
    Chat(chat::Reply),
    Anthropic(anthropic::Reply),
}

impl Decoder {
    pub(crate) fn new(format: Format) -> Self {
        let reply = match format {
            Format::OpenAiResponses => Reply::Responses(responses::Reply::default()),
            Format::OpenAiChat => Reply::Chat(chat::Reply::default()),
            Format::AnthropicMessages => Reply::Anthropic(anthropic::Reply::default()),
        };
        Self { reply, halves: Halves::default(), has_begun: false }
    }

    /// Takes one event.
    pub(crate) fn event(&mut self, event: &Event, out: &mut Vec<Heard>) -> Result<(), Broken> {
        let data = event.data.trim();
        if data == "[DONE]" {
            self.rest(out)?;
            if let Reply::Chat(reply) = &mut self.reply {
                reply.done();
            }
            return Ok(());
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut values = Vec::new();
        let read = self.halves.read(data.as_bytes(), &mut values);
        if event.name == "error"
            && let Some(value) = values.last()
        {
            return Err(Broken::Said { said: Said::of_value(value), raw: data.to_owned() });
        }
        for value in &values {
            self.value(value, out)?;
        }
        read.map_err(|err| {
            Broken::Nonsense(format!("an event's data is not JSON ({err}): {}", quote(data)))
        })
    }

    fn value(&mut self, value: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        if value["type"] == "error" || is_error(value) {
            return Err(Broken::Said { said: Said::of_value(value), raw: value.to_string() });
        }
        self.has_begun = true;
        match &mut self.reply {
            Reply::Responses(reply) => reply.event(value, out),
            Reply::Chat(reply) => reply.event(value, out),
            Reply::Anthropic(reply) => reply.event(value, out),
        }
    }

    /// Takes events that were held back for a following one.
    fn rest(&mut self, out: &mut Vec<Heard>) -> Result<(), Broken> {
        match self.halves.rest() {
            Some(value) => self.value(&value, out),
            None => Ok(()),
        }
    }

    /// Takes a reply in one piece, from a server that does not stream.
    pub(crate) fn whole(&mut self, body: &[u8], out: &mut Vec<Heard>) -> Result<(), Broken> {
        let value: Value = json::read(body).map_err(|err| {
            let body = String::from_utf8_lossy(body);
            Broken::Nonsense(format!("it is not JSON ({err}): {}", quote(&body)))
        })?;
        self.whole_value(&value, out)
    }

    pub(crate) fn whole_value(
        &mut self,
        value: &Value,
        out: &mut Vec<Heard>,
    ) -> Result<(), Broken> {
        if is_error(value) {
            return Err(Broken::Said { said: Said::of_value(value), raw: value.to_string() });
        }
        match &mut self.reply {
            Reply::Responses(reply) => reply.whole(value, out),
            Reply::Chat(reply) => reply.whole(value, out),
            Reply::Anthropic(reply) => reply.whole(value, out),
        }
    }

    /// Whether the provider has marked the end of the reply.
    pub(crate) fn is_finished(&self) -> bool {
        match &self.reply {
            Reply::Responses(reply) => reply.is_finished(),
            Reply::Chat(reply) => reply.is_finished(),
            Reply::Anthropic(reply) => reply.is_finished(),
        }
    }

    /// Whether the connection may end here. Some chat servers omit `[DONE]`; there the stop reason
    /// marks the end.
    pub(crate) fn may_end(&self) -> bool {
        match &self.reply {
            Reply::Chat(reply) => reply.is_finished() || reply.has_stopped(),
            Reply::Responses(_) | Reply::Anthropic(_) => self.is_finished(),
        }
    }

    /// Whether any part of the reply was understood.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The reply's id and the model's name, as far as they are known.
    pub(crate) fn head(&self) -> (&str, &str) {
        match &self.reply {
            Reply::Responses(reply) => reply.head(),
            Reply::Chat(reply) => reply.head(),
            Reply::Anthropic(reply) => reply.head(),
        }
    }

    /// Returns the reply.
    ///
    /// # Errors
    ///
    /// [`Broken::Cut`] if the provider gave no stop reason, because then the rest is missing.
    pub(crate) fn finish(mut self, out: &mut Vec<Heard>) -> Result<Draft, Broken> {
        self.rest(out)?;
        match self.reply {
            Reply::Responses(reply) => reply.finish(),
            Reply::Chat(reply) => reply.finish(),
            Reply::Anthropic(reply) => reply.finish(),
        }
    }
}

fn is_error(value: &Value) -> bool {
    value.get("error").is_some_and(|error| !error.is_null())
}

/// The beginning of a text, for an error message.
fn quote(text: &str) -> String {
    text.chars().take(120).collect()
}

pub(crate) fn str_of<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn owned(value: &Value, path: &str) -> String {
    str_of(value, path).to_owned()
}

#[cfg(test)]
mod tests {
    use overmind_core::model::ModelDelta;
    use overmind_testkit::upstream::{Say, Wire, stream_of};
    use serde_json::json;

    use super::*;
    use crate::alias::Aliases;
    use crate::sse;
    use crate::wire::Deltas;

    /// The draft and the deltas of a stream that comes in these pieces.
    fn decode(wire: Wire, pieces: &[&[u8]]) -> (Draft, Vec<ModelDelta>) {
        let mut decoder = Decoder::new(match wire {
            Wire::Chat => Format::OpenAiChat,
            Wire::Responses => Format::OpenAiResponses,
            Wire::Messages => Format::AnthropicMessages,
        });
        let mut parser = sse::Parser::default();
        let mut heard = Vec::new();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, &mut events).unwrap();
            for event in events.drain(..) {
                decoder.event(&event, &mut heard).unwrap();
            }
        }
        assert!(decoder.is_finished(), "{wire:?}");
        let draft = decoder.finish(&mut heard).unwrap();
        let names = Aliases::default();
        let mut deltas = Deltas::new(&names);
        (draft, heard.into_iter().filter_map(|heard| deltas.delta(heard)).collect())
    }

    /// All kinds of content, and as short as can be: the test is quadratic.
    fn rich() -> Say {
        Say::text("ü🦀")
            .reasoning("日")
            .call("a", "t", &json!({ "ö": 1 }))
            .call("b", "u", &json!({}))
            .usage(9, 5)
    }

    #[test]
    fn a_stream_cut_at_any_byte_gives_the_same_reply_and_the_same_deltas() {
        for wire in Wire::ALL {
            let stream = stream_of(wire, &rich(), false).concat();
            let bytes = stream.as_bytes();
            let whole = decode(wire, &[bytes]);
            assert_eq!((whole.0.calls.len(), whole.0.text.as_str()), (2, "ü🦀"), "{wire:?}");
            for at in 0..=bytes.len() {
                let (left, right) = bytes.split_at(at);
                assert_eq!(decode(wire, &[left, right]), whole, "{wire:?} cut at {at}");
            }
        }
    }

    #[test]
    fn a_stream_with_any_line_ends_and_pings_cut_at_any_byte_has_the_same_events() {
        for wire in Wire::ALL {
            let plain = stream_of(wire, &rich(), true).concat();
            let whole = sse::parse_all(plain.as_bytes(), usize::MAX).unwrap();
            for newline in ["\r\n", "\r"] {
                let stream = plain.replace('\n', newline);
                for at in 0..=stream.len() {
                    let (left, right) = stream.as_bytes().split_at(at);
                    let mut parser = sse::Parser::default();
                    let mut events = Vec::new();
                    parser.push(left, &mut events).unwrap();
                    parser.push(right, &mut events).unwrap();
                    events.extend(parser.finish().unwrap());
                    assert_eq!(events, whole, "{wire:?} cut at {at}");
                }
            }
        }
    }

    #[test]
    fn dialects_of_chat_are_understood() {
        let chunk = |delta: Value, finish: Value| {
            format!(
                "data: {}\n\n",
                json!({
                    "model": "m",
                    "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
                })
            )
        };
        let calls = |pieces: &[Value]| {
            let mut stream: String = pieces
                .iter()
                .map(|piece| chunk(json!({ "tool_calls": [piece] }), Value::Null))
                .collect();
            stream.push_str(&chunk(json!({}), "stop".into()));
            stream.push_str("data: [DONE]\n\n");
            let (draft, _) = decode(Wire::Chat, &[stream.as_bytes()]);
            assert_eq!(draft.stop, StopReason::ToolCalls, "`stop` with calls means the calls");
            draft
                .calls
                .into_iter()
                .map(|call| format!("{} {} {}", call.id, call.name, call.args))
                .collect::<Vec<_>>()
        };
        let function = |name: &str, args: Value| json!({ "name": name, "arguments": args });
        // Without an index, the id distinguishes calls; a part without both continues the last call.
        assert_eq!(
            calls(&[
                json!({ "id": "1", "function": function("a", "{\"x\"".into()) }),
                json!({ "function": { "arguments": ":1}" } }),
                json!({ "id": "2", "function": function("b", "{}".into()) }),
            ]),
            ["1 a {\"x\":1}", "2 b {}"]
        );
        // The same index for all.
        assert_eq!(
            calls(&[
                json!({ "index": 0, "id": "1", "function": function("a", "{}".into()) }),
                json!({ "index": 0, "id": "2", "function": function("b", "{}".into()) }),
            ]),
            ["1 a {}", "2 b {}"]
        );
        // No ids at all, whole calls.
        assert_eq!(
            calls(&[
                json!({ "function": function("a", "{}".into()) }),
                json!({ "function": function("a", "{}".into()) })
            ]),
            [" a {}", " a {}"]
        );
        // The id again with each piece, and arguments as an object.
        assert_eq!(
            calls(&[
                json!({ "index": 0, "id": "1", "function": function("a", "{".into()) }),
                json!({ "index": 0, "id": "1", "function": { "arguments": "}" } }),
                json!({ "index": 1, "id": "2", "function": function("b", json!({ "x": 1 })) }),
            ]),
            ["1 a {}", "2 b {\"x\":1}"]
        );
        let parts = chunk(
            json!({ "reasoning": "r", "content": [{ "type": "text", "text": "t" }] }),
            "stop".into(),
        );
        let (draft, _) = decode(Wire::Chat, &[parts.as_bytes(), b"data: [DONE]\n\n"]);
        assert_eq!((draft.text.as_str(), draft.reasoning.as_str()), ("t", "r"));
    }

    #[test]
    fn a_split_character_is_joined() {
        let chat = |pieces: &[&str]| -> String {
            let chunk = |text: &&str| {
                format!(
                    "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n: ping\n\n"
                )
            };
            pieces.iter().map(chunk).collect::<String>()
                + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
        };
        for (pieces, want) in [
            (&[r"face \ud83d", r"\ude00 end"][..], "face 😀 end"),
            (&[r"\ud83d", r"\ude00\ud83d", r"\ude00"], "😀😀"),
            (&[r"a \ud83d", "b"], "a \u{fffd}b"),
            (&["a", r"\ude00 b"], "a\u{fffd} b"),
            (&[r"a \ud83d b \ud83d"], "a \u{fffd} b \u{fffd}"),
        ] {
            let (draft, deltas) = decode(Wire::Chat, &[chat(pieces).as_bytes()]);
            assert_eq!(draft.text, want);
            let told = deltas.into_iter().map(|delta| match delta {
                ModelDelta::Text(text) => text,
                other => panic!("{other:?}"),
            });
            assert_eq!(told.collect::<String>(), want);
        }
        let block = |delta: &str| {
            format!("data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{delta}}}\n\n")
        };
        let messages = format!(
            "data: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{{}}}}}}\n\n{}data: {{\"type\":\"ping\"}}\n\n{}\
             data: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"tool_use\"}}}}\n\ndata: {{\"type\":\"message_stop\"}}\n\n",
            block(r#"{"type":"input_json_delta","partial_json":"{\"a\":\"\ud83d"}"#),
            block(r#"{"type":"input_json_delta","partial_json":"\ude00\"}"}"#),
        );
        let (draft, _) = decode(Wire::Messages, &[messages.as_bytes()]);
        assert_eq!(draft.calls[0].args, r#"{"a":"😀"}"#);
        let responses = r#"data: {"type":"response.output_text.delta","delta":"face \ud83d"}

data: {"type":"response.output_text.delta","delta":"\ude00"}

data: {"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"face 😀 \ud83d"}]}]}}

"#;
        let (draft, deltas) = decode(Wire::Responses, &[responses.as_bytes()]);
        assert_eq!((draft.text.as_str(), deltas.len()), ("face 😀 \u{fffd}", 3));
    }

    #[test]
    fn redacted_thinking_is_kept_and_kinds_that_are_not_known_are_skipped() {
        let stream = concat!(
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"redacted_thinking\",\"data\":\"xyz\"}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"server_tool_use\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\",\"text\":\"so\"}}\n\n",
            "event: novelty\ndata: {\"type\":\"novelty\"}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        // There is no `message_start`: some servers lose it.
        let (draft, _) = decode(Wire::Messages, &[stream.as_bytes()]);
        assert_eq!(
            (draft.text.as_str(), draft.calls.len(), draft.usage.usage.unwrap().output_tokens),
            ("so", 0, 3)
        );
        let raw = json!({ "type": "redacted_thinking", "data": "xyz" });
        assert_eq!(draft.pieces.0, [crate::wire::Piece::Raw(raw), crate::wire::Piece::Text(2)]);
    }

    #[test]
    fn responses_with_late_items_or_only_deltas_are_complete() {
        let done = json!({ "type": "response.completed", "response": { "status": "completed", "model": "m", "output": [
            { "type": "message", "content": [{ "type": "output_text", "text": "all" }] },
            { "type": "function_call", "id": "f", "call_id": "c", "name": "t", "arguments": "{}" },
        ], "usage": null } });
        let (draft, deltas) = decode(Wire::Responses, &[format!("data: {done}\n\n").as_bytes()]);
        assert_eq!((draft.text.as_str(), draft.calls.len()), ("all", 1));
        assert_eq!(
            deltas,
            [
                ModelDelta::Text("all".into()),
                ModelDelta::ToolArgs { name: "t".into(), text: "{}".into() }
            ]
        );
        let delta = json!({ "type": "response.output_text.delta", "delta": "bit" });
        let done = json!({ "type": "response.completed", "response": { "status": "completed" } });
        let stream = format!("data: {delta}\n\ndata: {done}\n\n");
        let (draft, deltas) = decode(Wire::Responses, &[stream.as_bytes()]);
        assert_eq!((draft.text.as_str(), deltas.len()), ("bit", 1));
    }
}
