//! Streams put over, event by event: whatever answers becomes chunks of chat, and those become what
//! was asked for.

use std::collections::BTreeMap;

use overmind_core::relay::{Dialect, Endpoint};
use serde_json::{Value, json};

use super::Back;
use super::reply::{
    finish_of_stop, message_item, response, stop_of_finish, stopped_by, usage_to_chat,
    usage_to_messages, usage_to_responses,
};
use super::tools::input_of;
use crate::sse::Event;

/// One stream under way.
#[derive(Debug)]
pub struct Stream {
    from: From,
    to: To,
    /// The provider said that it is done.
    ended: bool,
}

#[derive(Debug)]
enum From {
    Chat,
    Messages(FromMessages),
}

#[derive(Debug)]
enum To {
    Chat { include_usage: bool },
    Messages(Box<ToMessages>),
    Responses(Box<ToResponses>),
}

impl Stream {
    /// `model`: as the caller named it. `include_usage`: whether a chat stream tells its figures.
    pub fn new(
        asked: Endpoint,
        answered: Endpoint,
        model: &str,
        include_usage: bool,
        back: Back,
    ) -> Self {
        let from = match answered {
            Endpoint::Messages | Endpoint::CountTokens => From::Messages(FromMessages {
                model: model.to_owned(),
                created: back.created,
                ..FromMessages::default()
            }),
            Endpoint::Chat | Endpoint::Responses | Endpoint::Embeddings => From::Chat,
        };
        let to = match asked {
            Endpoint::Messages | Endpoint::CountTokens => To::Messages(Box::new(ToMessages {
                model: model.to_owned(),
                back,
                ..ToMessages::default()
            })),
            Endpoint::Responses => To::Responses(Box::new(ToResponses {
                model: model.to_owned(),
                back,
                ..ToResponses::default()
            })),
            Endpoint::Chat | Endpoint::Embeddings => To::Chat { include_usage },
        };
        Self { from, to, ended: false }
    }

    /// Takes an event and appends what follows from it.
    ///
    /// # Errors
    ///
    /// What is not understood of it, in words.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) -> Result<(), String> {
        if event.data.trim() == "[DONE]" {
            self.done(out);
            return Ok(());
        }
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|err| format!("an event of its stream is no JSON: {err}"))?;
        let failed = value["type"] == "error" || value.get("error").is_some_and(Value::is_object);
        if failed {
            self.failed(&value, out);
            return Ok(());
        }
        match &mut self.from {
            From::Chat => self.to.chunk(&value, out),
            From::Messages(from) => {
                let mut chunks = Vec::new();
                let ended = from.event(&value, &mut chunks);
                if value["type"] == "ping" {
                    out.extend_from_slice(b": ping\n\n");
                }
                for chunk in &chunks {
                    self.to.chunk(chunk, out)?;
                }
                if ended {
                    self.done(out);
                }
                Ok(())
            }
        }
    }

    /// The end of the connection; whether the stream had come to its own before.
    pub fn end(&mut self, out: &mut Vec<u8>) -> bool {
        // Some servers leave out `[DONE]`: then the reason to stop says that it was the end.
        if !self.ended && self.to.has_finished() {
            self.done(out);
        }
        self.ended
    }

    fn done(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.to.done(out);
        }
    }

    /// An error in the middle, in the words of the one and the shape of the other.
    fn failed(&mut self, value: &Value, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let status = match value["error"]["type"].as_str() {
            Some("overloaded_error") => 529,
            Some("rate_limit_error") => 429,
            Some("invalid_request_error") => 400,
            _ => 500,
        };
        let body = value.to_string();
        let dialect = match self.to {
            To::Messages(_) => Dialect::Anthropic,
            To::Chat { .. } | To::Responses(_) => Dialect::OpenAi,
        };
        let error = super::error(dialect, status, body.as_bytes());
        let error: Value = serde_json::from_slice(&error).unwrap_or_default();
        match &mut self.to {
            To::Chat { .. } => data(&error, out),
            To::Messages(_) => named("error", &error, out),
            To::Responses(to) => {
                let mut failed = response(&to.id, &to.model.as_str().into(), "", &to.back);
                failed["status"] = "failed".into();
                failed["error"] =
                    json!({"code": "server_error", "message": error["error"]["message"]});
                to.say("response.failed", json!({"response": failed}), out);
            }
        }
    }
}

impl To {
    fn chunk(&mut self, chunk: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Chat { include_usage } => {
                let empty = chunk["choices"].as_array().is_some_and(Vec::is_empty);
                if *include_usage || !empty {
                    data(chunk, out);
                }
                Ok(())
            }
            Self::Messages(to) => to.chunk(chunk, out),
            Self::Responses(to) => {
                to.chunk(chunk, out);
                Ok(())
            }
        }
    }

    fn has_finished(&self) -> bool {
        match self {
            Self::Chat { .. } => false,
            Self::Messages(to) => to.finish.is_some(),
            Self::Responses(to) => to.finish.is_some(),
        }
    }

    fn done(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Chat { .. } => out.extend_from_slice(b"data: [DONE]\n\n"),
            Self::Messages(to) => to.done(out),
            Self::Responses(to) => to.done(out),
        }
    }
}

fn data(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("data: {value}\n\n").as_bytes());
}

fn named(name: &str, value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("event: {name}\ndata: {value}\n\n").as_bytes());
}

/// Reads a stream of Messages as chunks of chat.
#[derive(Debug, Default)]
struct FromMessages {
    id: String,
    model: String,
    created: i64,
    usage: serde_json::Map<String, Value>,
    /// By the index of its block, the index of a call.
    calls: BTreeMap<u64, usize>,
    finish: Option<&'static str>,
}

impl FromMessages {
    /// Whether it was the last one.
    fn event(&mut self, event: &Value, chunks: &mut Vec<Value>) -> bool {
        let index = event["index"].as_u64().unwrap_or(0);
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                let message = &event["message"];
                self.id = message["id"].as_str().unwrap_or_default().to_owned();
                if let Some(model) = message["model"].as_str() {
                    model.clone_into(&mut self.model);
                }
                self.count(&message["usage"]);
                chunks.push(self.chunk(json!({"role": "assistant", "content": ""}), None));
            }
            "content_block_start" => {
                let block = &event["content_block"];
                if block["type"] == "tool_use" {
                    let n = self.calls.len();
                    self.calls.insert(index, n);
                    let call = json!({
                        "index": n, "id": block["id"], "type": "function",
                        "function": {"name": block["name"], "arguments": ""},
                    });
                    chunks.push(self.chunk(json!({"tool_calls": [call]}), None));
                } else if let Some(said) = block["text"].as_str().filter(|said| !said.is_empty()) {
                    chunks.push(self.chunk(json!({"content": said}), None));
                }
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                if let Some(said) = delta["text"].as_str() {
                    chunks.push(self.chunk(json!({"content": said}), None));
                }
                if let (Some(args), Some(n)) =
                    (delta["partial_json"].as_str(), self.calls.get(&index))
                {
                    let call = json!({"index": n, "function": {"arguments": args}});
                    chunks.push(self.chunk(json!({"tool_calls": [call]}), None));
                }
            }
            "message_delta" => {
                self.count(&event["usage"]);
                if let Some(stop) = event["delta"]["stop_reason"].as_str() {
                    self.finish = Some(finish_of_stop(stop));
                }
            }
            "message_stop" => {
                chunks.push(self.chunk(json!({}), Some(self.finish.unwrap_or("stop"))));
                let mut last = self.chunk(json!({}), None);
                last["choices"] = json!([]);
                last["usage"] = usage_to_chat(&Value::Object(self.usage.clone()));
                chunks.push(last);
                return true;
            }
            _ => {}
        }
        false
    }

    fn count(&mut self, usage: &Value) {
        for (name, value) in usage.as_object().into_iter().flatten() {
            if value.is_u64() {
                self.usage.insert(name.clone(), value.clone());
            }
        }
    }

    fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model,
            "choices": [
                {"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}
            ],
        })
    }
}

/// The first of a chunk's choices; there is one, since more are not asked for.
fn choice(chunk: &Value) -> Option<&Value> {
    chunk["choices"].as_array()?.first()
}

/// What a delta of a call is of: by its index, or where there is none, by its id.
fn call_index(call: &Value, last: Option<u64>) -> u64 {
    call["index"].as_u64().or(last).unwrap_or(0)
}

/// Writes chunks of chat as a stream of Messages.
#[derive(Debug, Default)]
struct ToMessages {
    model: String,
    back: Back,
    started: bool,
    /// Blocks that were begun so far.
    blocks: u64,
    open: Option<Block>,
    /// Calls whose block was closed.
    closed: Vec<u64>,
    usage: Value,
    finish: Option<String>,
    /// The text that it ended at.
    stopped: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Call(u64),
}

impl ToMessages {
    fn start(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let model = chunk["model"].as_str().filter(|model| !model.is_empty());
        let model = model.unwrap_or(&self.model);
        let message = json!({
            "id": chunk["id"], "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0,
                      "cache_read_input_tokens": 0, "output_tokens": 0},
        });
        named("message_start", &json!({"type": "message_start", "message": message}), out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(block) = self.open.take() {
            if let Block::Call(index) = block {
                self.closed.push(index);
            }
            let index = self.blocks - 1;
            named(
                "content_block_stop",
                &json!({"type": "content_block_stop", "index": index}),
                out,
            );
        }
    }

    fn begin(&mut self, block: Block, content: &Value, out: &mut Vec<u8>) {
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

    fn chunk(&mut self, chunk: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let Some(choice) = choice(chunk) else { return Ok(()) };
        self.start(chunk, out);
        let delta = &choice["delta"];
        for key in ["content", "refusal"] {
            if let Some(said) = delta[key].as_str().filter(|said| !said.is_empty()) {
                if self.open != Some(Block::Text) {
                    self.begin(Block::Text, &json!({"type": "text", "text": ""}), out);
                }
                self.delta(&json!({"type": "text_delta", "text": said}), out);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let last = match self.open {
                Some(Block::Call(index)) => Some(index),
                Some(Block::Text) | None => None,
            };
            let index = call_index(call, last);
            if self.closed.contains(&index) {
                return Err("its stream goes on with a call after the next one began".to_owned());
            }
            if self.open != Some(Block::Call(index)) {
                let id = call["id"].as_str().filter(|id| !id.is_empty());
                let id = id.map_or_else(|| format!("call_{index}"), str::to_owned);
                let block = json!({
                    "type": "tool_use", "id": id, "name": call["function"]["name"], "input": {},
                });
                self.begin(Block::Call(index), &block, out);
            }
            let args = call["function"]["arguments"].as_str().filter(|args| !args.is_empty());
            if let Some(args) = args {
                self.delta(&json!({"type": "input_json_delta", "partial_json": args}), out);
            }
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
            self.stopped = stopped_by(choice, &self.back).map(str::to_owned);
        }
        Ok(())
    }

    fn done(&mut self, out: &mut Vec<u8>) {
        self.start(&Value::Null, out);
        self.close(out);
        let stop = match self.stopped {
            Some(_) => "stop_sequence",
            None => stop_of_finish(self.finish.as_deref().unwrap_or_default()),
        };
        let last = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": self.stopped},
            "usage": usage_to_messages(&self.usage),
        });
        named("message_delta", &last, out);
        named("message_stop", &json!({"type": "message_stop"}), out);
    }
}

/// Writes chunks of chat as a stream of Responses.
#[derive(Debug, Default)]
struct ToResponses {
    id: Value,
    model: String,
    back: Back,
    started: bool,
    sequence: u64,
    /// Finished items.
    items: Vec<Value>,
    open: Option<Item>,
    usage: Value,
    finish: Option<String>,
}

#[derive(Debug)]
enum Item {
    Message { text: String },
    Call { index: u64, id: String, name: String, args: String },
}

impl ToResponses {
    fn say(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(kind, &event, out);
    }

    fn start(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.id = chunk["id"].clone();
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
        let begun = response(&self.id, &self.model.as_str().into(), "", &self.back);
        self.say("response.created", json!({"response": begun}), out);
        self.say("response.in_progress", json!({"response": begun}), out);
    }

    fn begin(&mut self, item: Item, out: &mut Vec<u8>) {
        self.close(out);
        let n = self.items.len();
        match &item {
            Item::Message { .. } => {
                let mut added = message_item(&format!("msg_{n}"), "");
                added["status"] = "in_progress".into();
                added["content"] = json!([]);
                self.say(
                    "response.output_item.added",
                    json!({"output_index": n, "item": added}),
                    out,
                );
                let part = json!({"type": "output_text", "text": "", "annotations": []});
                let event = json!({
                    "item_id": format!("msg_{n}"), "output_index": n, "content_index": 0,
                    "part": part,
                });
                self.say("response.content_part.added", event, out);
            }
            Item::Call { id, name, .. } => {
                let added = self.back.names.item(n, id, name, "", "in_progress");
                self.say(
                    "response.output_item.added",
                    json!({"output_index": n, "item": added}),
                    out,
                );
            }
        }
        self.open = Some(item);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let n = self.items.len();
        let item = match self.open.take() {
            None => return,
            Some(Item::Message { text }) => {
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
            Some(Item::Call { id, name, args, .. }) => {
                let item = self.back.names.item(n, &id, &name, &args, "completed");
                let at = json!({"item_id": item["id"], "output_index": n});
                if self.back.names.is_custom(&name) {
                    let input = input_of(&args);
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

    fn chunk(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let Some(choice) = choice(chunk) else { return };
        self.start(chunk, out);
        let delta = &choice["delta"];
        if let Some(said) = delta["content"].as_str().filter(|said| !said.is_empty()) {
            if !matches!(self.open, Some(Item::Message { .. })) {
                self.begin(Item::Message { text: String::new() }, out);
            }
            let n = self.items.len();
            if let Some(Item::Message { text }) = &mut self.open {
                text.push_str(said);
            }
            let event = json!({
                "item_id": format!("msg_{n}"), "output_index": n, "content_index": 0,
                "delta": said,
            });
            self.say("response.output_text.delta", event, out);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let last = match &self.open {
                Some(Item::Call { index, .. }) => Some(*index),
                Some(Item::Message { .. }) | None => None,
            };
            let at = call_index(call, last);
            let same = last == Some(at);
            if !same {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let mut id = text(&call["id"]);
                if id.is_empty() {
                    id = format!("call_{at}");
                }
                let name = text(&call["function"]["name"]);
                self.begin(Item::Call { index: at, id, name, args: String::new() }, out);
            }
            let more = call["function"]["arguments"].as_str().filter(|args| !args.is_empty());
            if let (Some(more), Some(Item::Call { name, args, .. })) = (more, &mut self.open) {
                args.push_str(more);
                // A text is told when it is whole: pieces of JSON are no pieces of it.
                if !self.back.names.is_custom(name) {
                    let n = self.items.len();
                    let event =
                        json!({"item_id": format!("fc_{n}"), "output_index": n, "delta": more});
                    self.say("response.function_call_arguments.delta", event, out);
                }
            }
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
    }

    fn done(&mut self, out: &mut Vec<u8>) {
        self.start(&Value::Null, out);
        self.close(out);
        let finish = self.finish.take().unwrap_or_else(|| "stop".to_owned());
        let mut whole = response(&self.id, &self.model.as_str().into(), &finish, &self.back);
        whole["output"] = std::mem::take(&mut self.items).into();
        whole["usage"] = usage_to_responses(&self.usage);
        let kind = match whole["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        self.say(kind, json!({"response": whole}), out);
    }
}
