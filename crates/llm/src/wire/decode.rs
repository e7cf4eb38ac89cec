//! The decoder's door: events in, deltas and one draft out.

use overmind_core::model::{ModelDelta, StopReason, Usage};
use serde_json::Value;

use super::{Pieces, anthropic, chat, responses};
use crate::fail::Said;
use crate::sse::Event;

/// A tool call as it stands on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WireCall {
    pub(crate) id: String,
    /// Still an alias.
    pub(crate) name: String,
    /// JSON text, whole or not.
    pub(crate) args: String,
}

/// A whole reply, before ids, names, arguments and price are made ours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<WireCall>,
    pub(crate) usage: Usage,
    pub(crate) stop: StopReason,
    pub(crate) model: String,
    pub(crate) pieces: Pieces,
}

/// Why a stream gives no reply.
#[derive(Clone, Debug)]
pub(crate) enum Broken {
    /// The provider says so, in an event.
    Said { said: Said, raw: String },
    /// The stream is not of this format.
    Nonsense(String),
    /// The stream ended too early.
    Cut,
}

/// One reply on its way in.
#[derive(Debug)]
pub(crate) enum Decoder<'a> {
    Responses(responses::Reply<'a>),
    Chat(chat::Reply<'a>),
    Anthropic(anthropic::Reply<'a>),
}

impl Decoder<'_> {
    /// Takes one event.
    pub(crate) fn event(&mut self, event: &Event, out: &mut Vec<ModelDelta>) -> Result<(), Broken> {
        let data = event.data.trim();
        if data == "[DONE]" {
            if let Self::Chat(reply) = self {
                reply.done();
            }
            return Ok(());
        }
        if data.is_empty() {
            return Ok(());
        }
        let value: Value = serde_json::from_str(data).map_err(|err| {
            Broken::Nonsense(format!("an event's data is not JSON ({err}): {}", quote(data)))
        })?;
        let is_error = event.name == "error"
            || value.get("type").and_then(Value::as_str) == Some("error")
            || value.get("error").is_some_and(|error| !error.is_null());
        if is_error {
            return Err(Broken::Said { said: Said::of_value(&value), raw: data.to_owned() });
        }
        match self {
            Self::Responses(reply) => reply.event(&value, out),
            Self::Chat(reply) => reply.event(&value, out),
            Self::Anthropic(reply) => reply.event(&value, out),
        }
    }

    /// Takes a reply that came in one piece, from a server that does not stream.
    pub(crate) fn whole(&mut self, body: &str, out: &mut Vec<ModelDelta>) -> Result<(), Broken> {
        let value: Value = serde_json::from_str(body)
            .map_err(|err| Broken::Nonsense(format!("it is not JSON ({err}): {}", quote(body))))?;
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Broken::Said { said: Said::of_value(&value), raw: body.to_owned() });
        }
        match self {
            Self::Responses(reply) => reply.whole(&value, out),
            Self::Chat(reply) => reply.whole(&value, out),
            Self::Anthropic(reply) => reply.whole(&value, out),
        }
    }

    /// The provider has said that nothing more comes.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Self::Responses(reply) => reply.is_finished(),
            Self::Chat(reply) => reply.is_finished(),
            Self::Anthropic(reply) => reply.is_finished(),
        }
    }

    /// The reply.
    ///
    /// # Errors
    ///
    /// [`Broken::Cut`] when the provider has not said why it stopped: the rest is missing.
    pub(crate) fn finish(self) -> Result<Draft, Broken> {
        match self {
            Self::Responses(reply) => reply.finish(),
            Self::Chat(reply) => reply.finish(),
            Self::Anthropic(reply) => reply.finish(),
        }
    }
}

/// The beginning of a text, for a message.
fn quote(text: &str) -> String {
    text.chars().take(120).collect()
}

/// A count of tokens. Providers leave counts out, send null, and may send nonsense; no sum of
/// what comes out of here overflows.
pub(crate) fn tokens(value: &Value, path: &str) -> u64 {
    const MOST: u64 = 1 << 40;
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0).min(MOST)
}

pub(crate) fn str_of<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn owned(value: &Value, path: &str) -> String {
    str_of(value, path).to_owned()
}

#[cfg(test)]
mod tests {
    use overmind_testkit::upstream::{Say, Wire, stream_of};
    use serde_json::json;

    use super::*;
    use crate::alias::Aliases;
    use crate::sse;

    fn decoder(wire: Wire, names: &Aliases) -> Decoder<'_> {
        match wire {
            Wire::Chat => Decoder::Chat(chat::Reply::new(names)),
            Wire::Responses => Decoder::Responses(responses::Reply::new(names)),
            Wire::Messages => Decoder::Anthropic(anthropic::Reply::new(names)),
        }
    }

    /// The draft and the deltas of a stream that comes in these pieces.
    fn decode(wire: Wire, pieces: &[&[u8]]) -> (Draft, Vec<ModelDelta>) {
        let names = Aliases::default();
        let mut decoder = decoder(wire, &names);
        let mut parser = sse::Parser::default();
        let mut deltas = Vec::new();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, &mut events).unwrap();
            for event in events.drain(..) {
                decoder.event(&event, &mut deltas).unwrap();
            }
        }
        assert!(decoder.is_finished(), "{wire:?}");
        (decoder.finish().unwrap(), deltas)
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
        // No index: the id tells calls apart, and what has neither goes on with the last.
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
    fn counts_that_nobody_can_have_used_do_not_overflow() {
        let huge = json!({
            "prompt_tokens": u64::MAX, "completion_tokens": -1, "prompt_tokens_details": null,
        });
        assert_eq!(tokens(&huge, "/prompt_tokens"), 1 << 40);
        assert_eq!(tokens(&huge, "/completion_tokens"), 0);
        assert_eq!(tokens(&huge, "/prompt_tokens_details/cached_tokens"), 0);
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
            (draft.text.as_str(), draft.calls.len(), draft.usage.output_tokens),
            ("so", 0, 3)
        );
        let raw = json!({ "type": "redacted_thinking", "data": "xyz" });
        assert_eq!(draft.pieces.0, [crate::wire::Piece::Raw(raw), crate::wire::Piece::Text(2)]);
    }

    #[test]
    fn a_response_whose_items_come_only_at_the_end_or_only_as_deltas_is_whole() {
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
