//! Translates streams: the decoder of our own calls turns the provider's stream into pieces, which
//! are written as events of the caller's format.

use overmind_core::relay::{Dialect, Endpoint};
use serde_json::{Value, json};

use super::Back;
use super::reply::{
    args_of, call_id, finish_of, id_of, message_item, response, stop_of, usage_to_chat,
    usage_to_messages, usage_to_responses,
};
use super::tools::input_of;
use crate::relay::{MAX_TRANSLATED, format_of};
use crate::sse::Event;
use crate::wire::{Broken, Decoder, Draft, Heard, WireCall};

/// The translation of one stream.
#[derive(Debug)]
pub struct Stream {
    /// `None` once the stream has ended.
    from: Option<Decoder>,
    to: To,
    model: String,
    has_begun: bool,
    /// The bytes of all events so far, since their texts are kept until the end.
    taken: usize,
    broken: Option<String>,
}

#[derive(Debug)]
enum To {
    Chat(ToChat),
    Messages(ToMessages),
    Responses(Box<ToResponses>),
}

impl Stream {
    /// `model` is the name that the caller gave. `include_usage` tells whether a chat stream
    /// reports its usage.
    pub fn new(
        asked: Endpoint,
        answered: Endpoint,
        model: &str,
        include_usage: bool,
        back: Back,
    ) -> Self {
        let to = match asked {
            Endpoint::Messages | Endpoint::CountTokens => {
                To::Messages(ToMessages { back, ..ToMessages::default() })
            }
            Endpoint::Responses => {
                To::Responses(Box::new(ToResponses { back, ..ToResponses::default() }))
            }
            Endpoint::Chat | Endpoint::Embeddings => {
                let created = back.created;
                To::Chat(ToChat { created, include_usage, ..ToChat::default() })
            }
        };
        let from = Some(Decoder::new(format_of(answered)));
        Self { from, to, model: model.to_owned(), has_begun: false, taken: 0, broken: None }
    }

    /// Takes an event and appends the resulting events.
    ///
    /// # Errors
    ///
    /// Describes the event that is not understood. The stream is then over, and the appended events
    /// say so.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) -> Result<(), String> {
        let Some(from) = &mut self.from else { return Ok(()) };
        self.taken += event.data.len();
        if self.taken > MAX_TRANSLATED {
            let why = format!("its answer has more than {MAX_TRANSLATED} bytes");
            return Err(self.breaks(why, out));
        }
        let mut heard = Vec::new();
        let taken = from.event(event, &mut heard);
        let is_finished = from.is_finished();
        if taken.is_ok() && from.has_begun() {
            self.begin(out);
        }
        self.pieces(heard, out)?;
        match taken {
            Ok(()) if is_finished => self.done(out),
            Ok(()) => {
                if matches!(self.to, To::Chat(_) | To::Responses(_)) && is_ping(event) {
                    out.extend_from_slice(b": ping\n\n");
                }
                Ok(())
            }
            Err(Broken::Said { raw, said: _ }) => {
                self.failed(&serde_json::from_str(&raw).unwrap_or_default(), out);
                Ok(())
            }
            Err(Broken::Nonsense(why)) => Err(self.breaks(format!("its stream: {why}"), out)),
            Err(Broken::Cut) => Err(self.breaks(EARLY.to_owned(), out)),
        }
    }

    /// Handles the end of the connection. Returns whether the stream was complete; if not, the
    /// appended events report the error.
    pub fn end(&mut self, out: &mut Vec<u8>) -> bool {
        match &self.from {
            None => self.broken.is_none(),
            Some(from) if from.may_end() => self.done(out).is_ok(),
            Some(_) => {
                self.breaks(EARLY.to_owned(), out);
                false
            }
        }
    }

    /// Why the stream is incomplete.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(from) = self.from.as_ref().filter(|_| !self.has_begun) else { return };
        self.has_begun = true;
        let (id, model) = from.head();
        let model = if model.is_empty() { &self.model } else { model };
        match &mut self.to {
            To::Chat(to) => to.begin(id, model, out),
            To::Messages(to) => to.begin(id, model, out),
            To::Responses(to) => to.begin(id, model, out),
        }
    }

    fn pieces(&mut self, heard: Vec<Heard>, out: &mut Vec<u8>) -> Result<(), String> {
        for piece in heard {
            self.begin(out);
            let told = match &mut self.to {
                To::Chat(to) => {
                    to.piece(piece, out);
                    true
                }
                To::Messages(to) => to.piece(piece, out),
                To::Responses(to) => to.piece(piece, out),
            };
            if !told {
                let why = "its stream goes on with a call after the next one began";
                return Err(self.breaks(why.to_owned(), out));
            }
        }
        Ok(())
    }

    fn done(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let Some(from) = self.from.take() else { return Ok(()) };
        let mut heard = Vec::new();
        let has_begun = self.has_begun;
        let draft = match from.finish(&mut heard) {
            Ok(draft) => draft,
            Err(_) if has_begun => return Err(self.breaks(EARLY.to_owned(), out)),
            Err(_) => return Err(self.breaks("it sent no answer".to_owned(), out)),
        };
        self.pieces(heard, out)?;
        match &mut self.to {
            To::Chat(to) => to.done(&draft, out),
            To::Messages(to) => to.done(&draft, out),
            To::Responses(to) => to.done(&draft, out),
        }
        Ok(())
    }

    /// Ends the stream before its end.
    fn breaks(&mut self, why: String, out: &mut Vec<u8>) -> String {
        let message = format!("the provider's answer broke off: {why}");
        self.failed(&json!({"error": {"type": "api_error", "message": message}}), out);
        self.broken = Some(why.clone());
        why
    }

    /// Writes an error in the middle of a stream, with the provider's message in the caller's
    /// format.
    fn failed(&mut self, value: &Value, out: &mut Vec<u8>) {
        self.from = None;
        let status = match value["error"]["type"].as_str() {
            Some("overloaded_error") => 529,
            Some("rate_limit_error") => 429,
            Some("invalid_request_error") => 400,
            _ => 500,
        };
        let dialect = match self.to {
            To::Messages(_) => Dialect::Anthropic,
            To::Chat(_) | To::Responses(_) => Dialect::OpenAi,
        };
        let error = super::error(dialect, status, value.to_string().as_bytes());
        let error: Value = serde_json::from_slice(&error).unwrap_or_default();
        match &mut self.to {
            To::Chat(_) => data(&error, out),
            To::Messages(_) => named("error", &error, out),
            To::Responses(to) => {
                let mut failed = response(&to.id, &to.model, None, &to.back);
                failed["status"] = "failed".into();
                failed["error"] =
                    json!({"code": "server_error", "message": error["error"]["message"]});
                to.say("response.failed", json!({"response": failed}), out);
            }
        }
    }
}

/// The error for a stream that ended early although the connection was closed properly.
const EARLY: &str = "it ended its answer too early";

fn is_ping(event: &Event) -> bool {
    event.name == "ping" || event.data.replace(' ', "") == r#"{"type":"ping"}"#
}

fn data(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("data: {value}\n\n").as_bytes());
}

fn named(name: &str, value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("event: {name}\ndata: {value}\n\n").as_bytes());
}

/// Writes a chat stream.
#[derive(Debug, Default)]
struct ToChat {
    id: Value,
    model: String,
    created: i64,
    include_usage: bool,
    /// For each started call, whether it had arguments.
    calls: Vec<bool>,
}

impl ToChat {
    fn chunk(&self, delta: &Value, finish: Option<&str>, out: &mut Vec<u8>) {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
        data(&self.whole(&json!([choice])), out);
    }

    fn whole(&self, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model, "choices": choices,
        })
    }

    fn begin(&mut self, id: &str, model: &str, out: &mut Vec<u8>) {
        self.id = id_of(id);
        model.clone_into(&mut self.model);
        self.chunk(&json!({"role": "assistant", "content": ""}), None, out);
    }

    fn piece(&mut self, piece: Heard, out: &mut Vec<u8>) {
        match piece {
            Heard::Text(said) => self.chunk(&json!({"content": said}), None, out),
            Heard::Reasoning(_) => {}
            Heard::Call { n, id, name } => {
                self.calls.resize(self.calls.len().max(n + 1), false);
                let call = json!({
                    "index": n, "id": call_id(n, &id), "type": "function",
                    "function": {"name": name, "arguments": ""},
                });
                self.chunk(&json!({"tool_calls": [call]}), None, out);
            }
            Heard::Args { n, text } => {
                if let Some(had) = self.calls.get_mut(n) {
                    *had |= !text.trim().is_empty();
                }
                let call = json!({"index": n, "function": {"arguments": text}});
                self.chunk(&json!({"tool_calls": [call]}), None, out);
            }
        }
    }

    fn done(&mut self, draft: &Draft, out: &mut Vec<u8>) {
        for (n, _) in
            std::mem::take(&mut self.calls).into_iter().enumerate().filter(|(_, had)| !had)
        {
            self.piece(Heard::Args { n, text: "{}".to_owned() }, out);
        }
        self.chunk(&json!({}), Some(finish_of(draft.stop)), out);
        if self.include_usage {
            let mut last = self.whole(&json!([]));
            last["usage"] = usage_to_chat(draft.usage);
            data(&last, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// Writes a stream of Messages.
#[derive(Debug, Default)]
struct ToMessages {
    back: Back,
    /// The number of blocks that have begun so far.
    blocks: u64,
    open: Option<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Call(usize),
}

impl ToMessages {
    fn begin(&mut self, id: &str, model: &str, out: &mut Vec<u8>) {
        let message = json!({
            "id": id_of(id), "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0,
                      "cache_read_input_tokens": 0, "output_tokens": 0},
        });
        named("message_start", &json!({"type": "message_start", "message": message}), out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let stop = json!({"type": "content_block_stop", "index": self.blocks - 1});
            named("content_block_stop", &stop, out);
        }
    }

    fn block(&mut self, block: Block, content: &Value, out: &mut Vec<u8>) {
        self.close(out);
        let event = json!({
            "type": "content_block_start", "index": self.blocks, "content_block": content,
        });
        named("content_block_start", &event, out);
        self.open = Some(block);
        self.blocks += 1;
    }

    fn delta(&self, delta: &Value, out: &mut Vec<u8>) {
        let index = self.blocks.saturating_sub(1);
        let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
        named("content_block_delta", &event, out);
    }

    /// Writes a piece. Returns whether that is possible now: blocks come one after the other.
    fn piece(&mut self, piece: Heard, out: &mut Vec<u8>) -> bool {
        match piece {
            Heard::Text(said) => {
                if self.open != Some(Block::Text) {
                    self.block(Block::Text, &json!({"type": "text", "text": ""}), out);
                }
                self.delta(&json!({"type": "text_delta", "text": said}), out);
            }
            Heard::Reasoning(_) => {}
            Heard::Call { n, id, name } => {
                let id = call_id(n, &id);
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.block(Block::Call(n), &block, out);
            }
            Heard::Args { n, text } => {
                if self.open != Some(Block::Call(n)) {
                    return false;
                }
                self.delta(&json!({"type": "input_json_delta", "partial_json": text}), out);
            }
        }
        true
    }

    fn done(&mut self, draft: &Draft, out: &mut Vec<u8>) {
        self.close(out);
        let (stop, stopped) = stop_of(draft, &self.back);
        let last = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": stopped},
            "usage": usage_to_messages(draft.usage),
        });
        named("message_delta", &last, out);
        named("message_stop", &json!({"type": "message_stop"}), out);
    }
}

/// Writes a stream of Responses.
#[derive(Debug, Default)]
struct ToResponses {
    id: String,
    model: String,
    back: Back,
    sequence: u64,
    /// The finished items.
    items: Vec<Value>,
    open: Option<Item>,
}

#[derive(Debug)]
enum Item {
    Message(String),
    Call(usize, WireCall),
}

impl ToResponses {
    fn say(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(kind, &event, out);
    }

    fn begin(&mut self, id: &str, model: &str, out: &mut Vec<u8>) {
        id.clone_into(&mut self.id);
        model.clone_into(&mut self.model);
        let begun = response(&self.id, &self.model, None, &self.back);
        self.say("response.created", json!({"response": begun}), out);
        self.say("response.in_progress", json!({"response": begun}), out);
    }

    fn item(&mut self, item: Item, out: &mut Vec<u8>) {
        self.close(out);
        let n = self.items.len();
        let added = match &item {
            Item::Message(_) => {
                let mut added = message_item(&format!("msg_{n}"), "");
                added["status"] = "in_progress".into();
                added["content"] = json!([]);
                added
            }
            Item::Call(_, call) => self.back.names.item(n, &call.id, &call.name, "", "in_progress"),
        };
        self.say("response.output_item.added", json!({"output_index": n, "item": added}), out);
        if let Item::Message(_) = item {
            let part = json!({"type": "output_text", "text": "", "annotations": []});
            let event = json!({
                "item_id": format!("msg_{n}"), "output_index": n, "content_index": 0, "part": part,
            });
            self.say("response.content_part.added", event, out);
        }
        self.open = Some(item);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(Item::Call(at, call)) = &self.open
            && call.args.is_empty()
        {
            self.piece(Heard::Args { n: *at, text: "{}".to_owned() }, out);
        }
        let n = self.items.len();
        let item = match self.open.take() {
            None => return,
            Some(Item::Message(text)) => {
                let id = format!("msg_{n}");
                let at = json!({"item_id": id, "output_index": n, "content_index": 0});
                let mut done = at.clone();
                done["text"] = text.as_str().into();
                self.say("response.output_text.done", done, out);
                let mut done = at;
                done["part"] = json!({"type": "output_text", "text": text, "annotations": []});
                self.say("response.content_part.done", done, out);
                message_item(&id, &text)
            }
            Some(Item::Call(_, call)) => {
                let args = args_of(&call.args);
                let item = self.back.names.item(n, &call.id, &call.name, args, "completed");
                let at = json!({"item_id": item["id"], "output_index": n});
                if self.back.names.is_custom(&call.name) {
                    let input = input_of(args);
                    let mut more = at.clone();
                    more["delta"] = input.as_str().into();
                    self.say("response.custom_tool_call_input.delta", more, out);
                    let mut done = at;
                    done["input"] = input.into();
                    self.say("response.custom_tool_call_input.done", done, out);
                } else {
                    let mut done = at;
                    done["arguments"] = args.into();
                    self.say("response.function_call_arguments.done", done, out);
                }
                item
            }
        };
        let done = json!({"output_index": n, "item": item});
        self.say("response.output_item.done", done, out);
        self.items.push(item);
    }

    /// Writes a piece. Returns whether that is possible now: items come one after the other.
    fn piece(&mut self, piece: Heard, out: &mut Vec<u8>) -> bool {
        match piece {
            Heard::Text(said) => {
                if !matches!(self.open, Some(Item::Message(_))) {
                    self.item(Item::Message(String::new()), out);
                }
                let n = self.items.len();
                if let Some(Item::Message(text)) = &mut self.open {
                    text.push_str(&said);
                }
                let event = json!({
                    "item_id": format!("msg_{n}"), "output_index": n, "content_index": 0,
                    "delta": said,
                });
                self.say("response.output_text.delta", event, out);
            }
            Heard::Reasoning(_) => {}
            Heard::Call { n, id, name } => {
                let call = WireCall { id: call_id(n, &id), name, args: String::new() };
                self.item(Item::Call(n, call), out);
            }
            Heard::Args { n, text } => {
                let Some(Item::Call(_, call)) =
                    self.open.as_mut().filter(|open| matches!(open, Item::Call(at, _) if *at == n))
                else {
                    return false;
                };
                call.args.push_str(&text);
                // The input of a custom tool is sent when it is complete: pieces of its JSON are no
                // pieces of the text.
                if !self.back.names.is_custom(&call.name) {
                    let n = self.items.len();
                    let event =
                        json!({"item_id": format!("fc_{n}"), "output_index": n, "delta": text});
                    self.say("response.function_call_arguments.delta", event, out);
                }
            }
        }
        true
    }

    fn done(&mut self, draft: &Draft, out: &mut Vec<u8>) {
        self.close(out);
        let mut whole = response(&self.id, &self.model, Some(draft.stop), &self.back);
        whole["output"] = std::mem::take(&mut self.items).into();
        whole["usage"] = usage_to_responses(draft.usage);
        let kind = match whole["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        self.say(kind, json!({"response": whole}), out);
    }
}
