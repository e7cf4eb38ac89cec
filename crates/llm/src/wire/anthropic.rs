//! Anthropic Messages: content blocks, signed thinking, prompt caching.
//!
//! It speaks version 2023-06-01, which the API and all imitations understand. How thinking is
//! requested depends on the model's generation, which its name shows: a token budget up to the 4.5
//! models, adaptive thinking with an effort after that.

use std::collections::{BTreeMap, BTreeSet};

use overmind_core::model::StopReason;
use serde_json::{Map, Value, json};

use super::decode::{WireCall, owned, str_of};
use super::pieces::{Block, plain};
use super::usage::Told;
use super::{Broken, Call, Draft, Heard, Omit, Piece, Pieces, schema};
use crate::config::Format;
use crate::conversation::Part;

pub(crate) const VERSION: &str = "2023-06-01";
/// Replaces blank text, which the API refuses.
pub(crate) const BLANK: &str = "(empty)";
const FORMAT: Format = Format::AnthropicMessages;

/// Output limit if the request names none, because the API requires one. It includes thinking.
const MAX_TOKENS: u32 = 8192;
const MAX_TOKENS_THINKING: u32 = 32_000;

/// How thinking is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thinking {
    Off,
    /// Sends `thinking.type: enabled` with a budget of so many tokens.
    Budget(u32),
    /// The model decides; the effort goes into `output_config`.
    Adaptive,
}

/// The generation of a Claude model, major and minor, from its name: `claude-opus-4-5` is (4, 5).
/// `None` for other models.
pub(super) fn generation(model: &str) -> Option<(u32, u32)> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let mut words = name.strip_prefix("claude-")?.split(['-', '.']).peekable();
    // A date is not a version.
    let number = |word: &str| word.parse::<u32>().ok().filter(|n| *n < 1000);
    // The family comes first, but came last until 3.7: `claude-3-7-sonnet`.
    words.next_if(|word| number(word).is_none());
    let major = words.next().and_then(number)?;
    Some((major, words.next().and_then(number).unwrap_or(0)))
}

fn thinking(call: &Call<'_>, omit: &BTreeSet<Omit>) -> Thinking {
    let effort = call.effort(omit);
    match generation(call.model) {
        // These models always think; the request makes the thinking visible.
        Some((5.., _)) => Thinking::Adaptive,
        Some((4, 6..)) if effort.is_some() => Thinking::Adaptive,
        Some((4, 6..)) => Thinking::Off,
        Some(_) | None => match effort {
            None | Some("none" | "minimal") => Thinking::Off,
            // A message with calls must begin with signed thinking. One from another provider has
            // none, so this turn must do without thinking.
            Some(_) if last_calls_lack_thinking(call, omit) => Thinking::Off,
            Some("low") => Thinking::Budget(2048),
            Some("medium") => Thinking::Budget(8192),
            Some(_) => Thinking::Budget(24_576),
        },
    }
}

fn last_calls_lack_thinking(call: &Call<'_>, omit: &BTreeSet<Omit>) -> bool {
    let last = call.parts.iter().rev().find_map(|part| match part {
        Part::Assistant { calls, state, .. } => {
            Some(!calls.is_empty() && call.pieces(*state, omit).is_none())
        }
        Part::User(_) | Part::Results(_) => None,
    });
    last.unwrap_or(false)
}

/// The request body.
pub(super) fn body(call: &Call<'_>, omit: &BTreeSet<Omit>) -> Map<String, Value> {
    let thinking = thinking(call, omit);
    let mut body = Map::new();
    body.insert("model".into(), call.model.into());
    let default = if thinking == Thinking::Adaptive { MAX_TOKENS_THINKING } else { MAX_TOKENS };
    let mut limit = call.request.max_output_tokens.unwrap_or(default);
    if let Thinking::Budget(budget) = thinking {
        limit = limit.saturating_add(budget);
    }
    body.insert("max_tokens".into(), limit.into());
    body.insert("stream".into(), true.into());
    if !call.request.system.is_empty() {
        // In the cached prefix, tools come before the system prompt, so one cache mark covers both.
        body.insert(
            "system".into(),
            json!([{ "type": "text", "text": call.request.system, "cache_control": { "type": "ephemeral" } }]),
        );
    }
    body.insert("messages".into(), messages(call, omit).into());
    if !call.request.tools.is_empty() {
        let tools = call.request.tools.iter().map(|tool| {
            json!({
                "name": call.names.wire(&tool.name),
                "description": tool.description,
                "input_schema": schema(&tool.schema),
            })
        });
        body.insert("tools".into(), tools.collect());
        // A model that thinks may not be forced to call a tool.
        let forced = call.must_call(omit) && thinking == Thinking::Off;
        let choice = if forced { "any" } else { "auto" };
        body.insert("tool_choice".into(), json!({ "type": choice }));
    }
    let show = (!omit.contains(&Omit::Summary)).then_some("summarized");
    match thinking {
        Thinking::Off => {
            let too_new = generation(call.model).is_some_and(|version| version >= (4, 7));
            if let Some(temperature) = call.temperature(omit).filter(|_| !too_new) {
                body.insert("temperature".into(), temperature.into());
            }
        }
        Thinking::Budget(budget) => {
            body.insert("thinking".into(), json!({ "type": "enabled", "budget_tokens": budget }));
        }
        Thinking::Adaptive => {
            let mut fields = Map::new();
            fields.insert("type".into(), "adaptive".into());
            if let Some(show) = show {
                fields.insert("display".into(), show.into());
            }
            body.insert("thinking".into(), Value::Object(fields));
            if let Some(effort) = call.effort(omit) {
                // The API has no lower effort.
                let effort = if matches!(effort, "none" | "minimal") { "low" } else { effort };
                body.insert("output_config".into(), json!({ "effort": effort }));
            }
        }
    }
    body
}

/// Builds the messages: roles alternate, the user begins and ends, and results come first in a user
/// message.
fn messages(call: &Call<'_>, omit: &BTreeSet<Omit>) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for part in &call.parts {
        let (role, blocks) = match part {
            Part::User(text) => ("user", vec![text_block(text)]),
            Part::Assistant { text, calls, state } => {
                let pieces = call.pieces(*state, omit);
                let blocks = match &pieces {
                    Some(pieces) => pieces.blocks(text, calls),
                    None => plain(text, calls).collect(),
                };
                let blocks = blocks.into_iter().filter_map(|block| match block {
                    Block::Raw(raw) => Some(raw.clone()),
                    Block::Text(text) => (!text.trim().is_empty()).then(|| text_block(text)),
                    Block::Call(made) => Some(json!({
                        "type": "tool_use",
                        "id": call.ids.wire(&made.id),
                        "name": call.names.wire(&made.name),
                        "input": match &made.args {
                            object @ Value::Object(_) => object.clone(),
                            // The API accepts only an object; this one still shows the model what
                            // it wrote.
                            other => json!({ "unparsed": other }),
                        },
                    })),
                });
                ("assistant", blocks.collect())
            }
            Part::Results(results) => {
                let blocks = results.iter().map(|result| {
                    let mut block = json!({
                        "type": "tool_result",
                        "tool_use_id": call.ids.wire(result.call_id),
                        "content": result.content,
                    });
                    if result.is_error {
                        block["is_error"] = true.into();
                    }
                    block
                });
                ("user", blocks.collect())
            }
        };
        match messages.last_mut() {
            Some((before, all)) if *before == role => all.extend(blocks),
            _ if blocks.is_empty() => {}
            _ => messages.push((role, blocks)),
        }
    }
    if messages.last().is_some_and(|(role, _)| *role == "assistant") {
        // The API cannot continue an answer, but the user can ask for more.
        messages.push(("user", vec![text_block("Continue.")]));
    }
    if let Some(block) = messages.last_mut().and_then(|(_, blocks)| blocks.last_mut()) {
        // The next request repeats everything up to this mark.
        block["cache_control"] = json!({ "type": "ephemeral" });
    }
    messages
        .into_iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect()
}

fn text_block(text: &str) -> Value {
    let text = if text.trim().is_empty() { BLANK } else { text };
    json!({ "type": "text", "text": text })
}

/// One content block that is being received.
#[derive(Debug)]
enum Open {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    Redacted(Value),
    Call {
        /// The number of calls before it.
        n: usize,
        id: String,
        name: String,
        input: Value,
        json: String,
    },
    /// A block of a kind that we ignore, such as a tool that the provider runs.
    Other,
}

/// A reply that is being received.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    id: String,
    /// The blocks by index, which is also their order.
    blocks: BTreeMap<u64, Open>,
    calls: usize,
    usage: Told,
    stop: Option<StopReason>,
    stopped: Option<String>,
    model: String,
    finished: bool,
}

impl Reply {
    pub(super) fn event(&mut self, event: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        match str_of(event, "/type") {
            "" => return Err(Broken::Nonsense("an event has no `type`".to_owned())),
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                (self.id, self.model) = (owned(message, "/id"), owned(message, "/model"));
                self.usage.take(FORMAT, &message["usage"], false);
            }
            "content_block_start" => {
                let index = index(event)?;
                let block = event.get("content_block").unwrap_or(&Value::Null);
                self.start(index, block, out);
            }
            "content_block_delta" => {
                let index = index(event)?;
                let delta = event.get("delta").unwrap_or(&Value::Null);
                let Some(block) = self.blocks.get_mut(&index) else {
                    return Err(Broken::Nonsense(format!(
                        "a delta for block {index}, which has not begun"
                    )));
                };
                grow(block, delta, out);
            }
            // Some servers send the whole input of a call with its start.
            "content_block_stop" => {
                if let Some(Open::Call { n, input: input @ Value::Object(_), json, .. }) =
                    self.blocks.get_mut(&index(event)?)
                    && json.is_empty()
                {
                    *json = input.to_string();
                    out.push(Heard::Args { n: *n, text: json.clone() });
                }
            }
            "message_delta" => {
                self.usage.take(FORMAT, &event["usage"], true);
                self.stopped(&event["delta"]);
            }
            "message_stop" => self.finished = true,
            // Pings and unknown events are ignored.
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, index: u64, block: &Value, out: &mut Vec<Heard>) {
        let open = match str_of(block, "/type") {
            "text" => {
                let text = owned(block, "/text");
                if !text.is_empty() {
                    out.push(Heard::Text(text.clone()));
                }
                Open::Text(text)
            }
            "thinking" => {
                let text = owned(block, "/thinking");
                if !text.is_empty() {
                    out.push(Heard::Reasoning(text.clone()));
                }
                Open::Thinking { text, signature: owned(block, "/signature") }
            }
            "redacted_thinking" => Open::Redacted(block.clone()),
            "tool_use" => {
                let (n, id, name) = (self.calls, owned(block, "/id"), owned(block, "/name"));
                self.calls += 1;
                out.push(Heard::Call { n, id: id.clone(), name: name.clone() });
                let input = block.get("input").cloned().unwrap_or(Value::Null);
                Open::Call { n, id, name, input, json: String::new() }
            }
            _ => Open::Other,
        };
        self.blocks.insert(index, open);
    }

    fn stopped(&mut self, end: &Value) {
        if let Some(reason) = end["stop_reason"].as_str() {
            self.stop = Some(stop_reason(reason));
            self.stopped = end["stop_sequence"].as_str().map(str::to_owned);
        }
    }

    pub(super) fn whole(&mut self, body: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        let Some(content) = body.get("content").and_then(Value::as_array) else {
            return Err(Broken::Nonsense("a message without `content`".to_owned()));
        };
        (self.id, self.model) = (owned(body, "/id"), owned(body, "/model"));
        self.usage.take(FORMAT, &body["usage"], true);
        for (index, block) in (0..).zip(content) {
            self.start(index, block, out);
            if let Some(Open::Call { n, input, .. }) = self.blocks.get(&index) {
                out.push(Heard::Args { n: *n, text: input.to_string() });
            }
        }
        self.stopped(body);
        self.finished = true;
        Ok(())
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn head(&self) -> (&str, &str) {
        (&self.id, &self.model)
    }

    pub(super) fn finish(self) -> Result<Draft, Broken> {
        let stop = self.stop.ok_or(Broken::Cut)?;
        let mut draft = Draft {
            id: self.id,
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            usage: self.usage,
            stop,
            stopped: self.stopped,
            model: self.model,
            pieces: Pieces::default(),
        };
        for block in self.blocks.into_values() {
            match block {
                Open::Text(text) => {
                    draft.pieces.push_text(text.len());
                    draft.text.push_str(&text);
                }
                Open::Thinking { text, signature } => {
                    if !draft.reasoning.is_empty() && !text.is_empty() {
                        draft.reasoning.push_str("\n\n");
                    }
                    draft.reasoning.push_str(&text);
                    // The API would refuse thinking without a signature; imitations send none.
                    if !signature.is_empty() {
                        let raw =
                            json!({ "type": "thinking", "thinking": text, "signature": signature });
                        draft.pieces.0.push(Piece::Raw(raw));
                    }
                }
                Open::Redacted(raw) => draft.pieces.0.push(Piece::Raw(raw)),
                Open::Call { n: _, id, name, input, json } => {
                    let args = if !json.is_empty() {
                        json
                    } else if input.is_null() {
                        String::new()
                    } else {
                        input.to_string()
                    };
                    draft.calls.push(WireCall { id, name, args });
                    draft.pieces.0.push(Piece::Call);
                }
                Open::Other => {}
            }
        }
        if draft.stop == StopReason::End && !draft.calls.is_empty() {
            draft.stop = StopReason::ToolCalls;
        }
        Ok(draft)
    }
}

fn index(event: &Value) -> Result<u64, Broken> {
    event
        .get("index")
        .and_then(Value::as_u64)
        .ok_or_else(|| Broken::Nonsense("an event of a content block has no `index`".to_owned()))
}

fn grow(block: &mut Open, delta: &Value, out: &mut Vec<Heard>) {
    match (block, str_of(delta, "/type")) {
        (Open::Text(text), "text_delta") => {
            let piece = str_of(delta, "/text");
            text.push_str(piece);
            out.push(Heard::Text(piece.to_owned()));
        }
        (Open::Thinking { text, .. }, "thinking_delta") => {
            let piece = str_of(delta, "/thinking");
            text.push_str(piece);
            out.push(Heard::Reasoning(piece.to_owned()));
        }
        (Open::Thinking { signature, .. }, "signature_delta") => {
            signature.push_str(str_of(delta, "/signature"));
        }
        (Open::Call { n, json, .. }, "input_json_delta") => {
            let piece = str_of(delta, "/partial_json");
            if !piece.is_empty() {
                json.push_str(piece);
                out.push(Heard::Args { n: *n, text: piece.to_owned() });
            }
        }
        // Citations and unknown kinds are ignored.
        _ => {}
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_is_read_from_the_name() {
        for (name, want) in [
            ("claude-opus-4-5-20251101", Some((4, 5))),
            ("claude-opus-4-20250514", Some((4, 0))),
            ("claude-sonnet-5", Some((5, 0))),
            ("claude-haiku-5-5", Some((5, 5))),
            ("anthropic/claude-opus-4.6", Some((4, 6))),
            ("claude-3-7-sonnet-20250219", Some((3, 7))),
            ("claude-3-haiku-20240307", Some((3, 0))),
            ("gpt-5", None),
            ("claude-instant", None),
        ] {
            assert_eq!(generation(name), want, "{name}");
        }
    }
}
