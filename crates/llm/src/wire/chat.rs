//! OpenAI Chat Completions and its dialects: DeepSeek's `reasoning_content`, the `reasoning` of
//! others, missing indexes and ids, whole calls in one chunk, no `[DONE]`.

use std::collections::BTreeSet;

use overmind_core::model::StopReason;
use serde_json::{Map, Value, json};

use super::decode::{WireCall, owned, str_of};
use super::usage::Told;
use super::{Broken, Call, Draft, Heard, Omit, Piece, Pieces, args_text, schema};
use crate::config::{Format, Rest};
use crate::conversation::Part;

/// The request body.
pub(super) fn body(call: &Call<'_>, omit: &BTreeSet<Omit>) -> Map<String, Value> {
    let mut messages = Vec::new();
    if !call.request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": call.request.system }));
    }
    for part in &call.parts {
        match part {
            Part::User(text) => messages.push(json!({ "role": "user", "content": text })),
            Part::Assistant { text, calls, state } => {
                let mut message = Map::new();
                message.insert("role".into(), "assistant".into());
                let content = if text.is_empty() { Value::Null } else { text.as_ref().into() };
                message.insert("content".into(), content);
                // The reasoning goes back as `{"reasoning_content": "…"}`, under the name it came
                // with.
                if let Some(pieces) = call.pieces(*state, omit) {
                    for piece in pieces.0 {
                        if let Piece::Raw(Value::Object(fields)) = piece {
                            message.extend(fields);
                        }
                    }
                }
                if !calls.is_empty() {
                    let calls = calls.iter().map(|made| {
                        json!({
                            "id": call.ids.wire(&made.id),
                            "type": "function",
                            "function": {
                                "name": call.names.wire(&made.name),
                                "arguments": args_text(&made.args),
                            },
                        })
                    });
                    message.insert("tool_calls".into(), calls.collect());
                }
                messages.push(Value::Object(message));
            }
            Part::Results(results) => messages.extend(results.iter().map(|result| {
                json!({
                    "role": "tool",
                    "tool_call_id": call.ids.wire(result.call_id),
                    "content": result.content,
                })
            })),
        }
    }
    let mut body = Map::new();
    body.insert("model".into(), call.model.into());
    body.insert("messages".into(), messages.into());
    body.insert("stream".into(), true.into());
    if !omit.contains(&Omit::StreamOptions) {
        body.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    if !call.request.tools.is_empty() {
        let tools = call.request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "function": {
                    "name": call.names.wire(&tool.name),
                    "description": tool.description,
                    "parameters": schema(&tool.schema),
                },
            })
        });
        body.insert("tools".into(), tools.collect());
        let choice = if call.must_call(omit) { "required" } else { "auto" };
        body.insert("tool_choice".into(), choice.into());
    }
    if let Some(limit) = call.request.max_output_tokens {
        // OpenAI renamed this field; most others know only the old name.
        let new_name =
            (call.provider.rest == Rest::TakeUnclaimed) != omit.contains(&Omit::MaxTokensName);
        let name = if new_name { "max_completion_tokens" } else { "max_tokens" };
        body.insert(name.into(), limit.into());
    }
    if let Some(temperature) = call.temperature(omit) {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(effort) = call.effort(omit) {
        body.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = &call.provider.thinking {
        body.insert("thinking".into(), json!({ "type": thinking }));
    }
    body
}

/// A reply that is being received.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    id: String,
    text: String,
    reasoning: String,
    /// The name of the field that carried the reasoning.
    reasoning_field: &'static str,
    calls: Vec<Open>,
    usage: Told,
    stop: Option<StopReason>,
    stopped: Option<String>,
    refused: bool,
    model: String,
    done: bool,
}

/// A call that is being received.
#[derive(Debug, Default)]
struct Open {
    /// The index of its pieces, if the server sends one.
    index: Option<u64>,
    call: WireCall,
    /// Whether its beginning was reported.
    is_told: bool,
}

impl Reply {
    pub(super) fn event(&mut self, chunk: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        let choices = chunk.get("choices").and_then(Value::as_array);
        let usage = chunk.get("usage").filter(|usage| usage.is_object());
        if choices.is_none() && usage.is_none() {
            return Err(Broken::Nonsense("a chunk has neither `choices` nor `usage`".to_owned()));
        }
        if let Some(usage) = usage {
            self.usage.take(Format::OpenAiChat, usage, true);
        }
        for (known, path) in [(&mut self.model, "/model"), (&mut self.id, "/id")] {
            if known.is_empty() {
                str_of(chunk, path).clone_into(known);
            }
        }
        // Only one choice was requested; further ones are ignored.
        for choice in choices.into_iter().flatten().take(1) {
            if let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) {
                self.delta(delta, out);
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.stop = Some(match reason {
                    "length" => StopReason::MaxTokens,
                    "content_filter" => StopReason::Refusal,
                    _ => StopReason::End,
                });
                // OpenAI's API does not send reasoning; servers of open models (vLLM, SGLang) do.
                let mut said =
                    ["/stop_reason", "/matched_stop"].map(|at| owned(choice, at)).into_iter();
                let said = said.find(|said| !said.is_empty());
                self.stopped = said.filter(|_| reason == "stop");
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<Heard>) {
        for field in ["reasoning_content", "reasoning"] {
            let piece = str_of(delta, &format!("/{field}"));
            if !piece.is_empty() {
                self.reasoning_field = field;
                self.reasoning.push_str(piece);
                out.push(Heard::Reasoning(piece.to_owned()));
                // A server that sends both fields sends the same text twice.
                break;
            }
        }
        let mut text = |piece: &str| {
            if !piece.is_empty() {
                self.text.push_str(piece);
                out.push(Heard::Text(piece.to_owned()));
            }
        };
        match delta.get("content") {
            Some(Value::String(piece)) => text(piece),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| text(str_of(part, "/text"))),
            _ => {}
        }
        let refusal = str_of(delta, "/refusal");
        if !refusal.is_empty() {
            text(refusal);
            self.refused = true;
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.call(call, out);
        }
    }

    fn call(&mut self, piece: &Value, out: &mut Vec<Heard>) {
        let index = piece.get("index").and_then(Value::as_u64);
        let id = str_of(piece, "/id");
        let name = str_of(piece, "/function/name");
        // A piece continues a call if it has the call's index, or neither an index nor an id. Some
        // servers give every call the index 0 but different ids; such a piece begins a new call.
        let at = self.calls.iter().rposition(|Open { index: i, call, .. }| {
            *i == index && (id.is_empty() || call.id.is_empty() || call.id == id)
        });
        let n = match (at, index) {
            (Some(at), Some(_)) => at,
            (Some(at), None) if id.is_empty() && name.is_empty() => at,
            (Some(_) | None, _) => {
                self.calls.push(Open { index, ..Open::default() });
                self.calls.len() - 1
            }
        };
        let Open { call, is_told, .. } = &mut self.calls[n];
        if call.id.is_empty() {
            call.id.push_str(id);
        }
        if call.name.is_empty() {
            call.name.push_str(name);
        }
        let text = match piece.pointer("/function/arguments") {
            Some(Value::String(text)) => text.clone(),
            // Some servers send the object itself instead of its text.
            Some(object @ Value::Object(_)) => object.to_string(),
            _ => String::new(),
        };
        let is_something = !call.name.is_empty() || !text.is_empty();
        if is_something && !*is_told {
            *is_told = true;
            out.push(Heard::Call { n, id: call.id.clone(), name: call.name.clone() });
        }
        if !text.is_empty() {
            call.args.push_str(&text);
            out.push(Heard::Args { n, text });
        }
    }

    pub(super) fn whole(&mut self, body: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        self.event(body, out)?;
        self.done = true;
        Ok(())
    }

    pub(super) fn done(&mut self) {
        self.done = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.done
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    pub(super) fn head(&self) -> (&str, &str) {
        (&self.id, &self.model)
    }

    pub(super) fn finish(self) -> Result<Draft, Broken> {
        let calls: Vec<WireCall> = self.calls.into_iter().map(|open| open.call).collect();
        let stop = match self.stop {
            _ if self.refused => StopReason::Refusal,
            Some(StopReason::End | StopReason::ToolCalls) if !calls.is_empty() => {
                StopReason::ToolCalls
            }
            Some(stop) => stop,
            None => return Err(Broken::Cut),
        };
        let mut pieces = Pieces::default();
        if !self.reasoning.is_empty() {
            pieces.0.push(Piece::Raw(json!({ self.reasoning_field: self.reasoning })));
        }
        Ok(Draft {
            id: self.id,
            text: self.text,
            reasoning: self.reasoning,
            calls,
            usage: self.usage,
            stop,
            stopped: self.stopped,
            model: self.model,
            pieces,
        })
    }
}
