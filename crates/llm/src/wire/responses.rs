//! OpenAI Responses without state at the provider: `store` is `false`, and the encrypted reasoning
//! goes back with the conversation.

use std::collections::{BTreeSet, HashMap};

use overmind_core::model::StopReason;
use serde_json::{Map, Value, json};

use super::decode::{WireCall, owned, str_of};
use super::pieces::{Block, plain};
use super::usage::Told;
use super::{Broken, Call, Draft, Heard, Omit, Piece, Pieces, args_text, schema};
use crate::config::Format;
use crate::conversation::Part;
use crate::fail::Said;

/// The request body.
pub(super) fn body(call: &Call<'_>, omit: &BTreeSet<Omit>) -> Map<String, Value> {
    let mut input = Vec::new();
    for part in &call.parts {
        match part {
            Part::User(text) => input.push(json!({
                "type": "message",
                "role": "user",
                "content": [{ "type": "input_text", "text": text }],
            })),
            Part::Assistant { text, calls, state } => {
                let pieces = call.pieces(*state, omit);
                let blocks = match &pieces {
                    Some(pieces) => pieces.blocks(text, calls),
                    None => plain(text, calls).collect(),
                };
                input.extend(blocks.into_iter().map(|block| match block {
                    Block::Raw(item) => item.clone(),
                    Block::Text(text) => json!({
                        "type": "message",
                        "role": "assistant",
                        "content": [{ "type": "output_text", "text": text }],
                    }),
                    Block::Call(made) => json!({
                        "type": "function_call",
                        "call_id": call.ids.wire(&made.id),
                        "name": call.names.wire(&made.name),
                        "arguments": args_text(&made.args),
                    }),
                }));
            }
            Part::Results(results) => input.extend(results.iter().map(|result| {
                json!({
                    "type": "function_call_output",
                    "call_id": call.ids.wire(result.call_id),
                    "output": result.content,
                })
            })),
        }
    }
    let mut body = Map::new();
    body.insert("model".into(), call.model.into());
    if !call.request.system.is_empty() {
        body.insert("instructions".into(), call.request.system.as_str().into());
    }
    body.insert("input".into(), input.into());
    body.insert("stream".into(), true.into());
    body.insert("store".into(), false.into());
    if !call.request.tools.is_empty() {
        let tools = call.request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": call.names.wire(&tool.name),
                "description": tool.description,
                "parameters": schema(&tool.schema),
                // The API's default is strict, which would rewrite schemas with optional fields.
                "strict": false,
            })
        });
        body.insert("tools".into(), tools.collect());
        let choice = if call.must_call(omit) { "required" } else { "auto" };
        body.insert("tool_choice".into(), choice.into());
    }
    if let Some(limit) = call.request.max_output_tokens {
        body.insert("max_output_tokens".into(), limit.into());
    }
    if let Some(temperature) = call.temperature(omit) {
        body.insert("temperature".into(), temperature.into());
    }
    let mut reasoning = Map::new();
    if let Some(effort) = call.effort(omit) {
        reasoning.insert("effort".into(), effort.into());
    }
    if call.reasoning && !omit.contains(&Omit::Summary) {
        reasoning.insert("summary".into(), "auto".into());
    }
    if !reasoning.is_empty() {
        body.insert("reasoning".into(), Value::Object(reasoning));
    }
    if call.reasoning && !omit.contains(&Omit::Include) {
        body.insert("include".into(), json!(["reasoning.encrypted_content"]));
    }
    body
}

/// A reply that is being received.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    id: String,
    /// The text that was already returned as pieces, to find out whether an item adds more.
    text: String,
    reasoning: String,
    /// The numbers of calls that have begun, by item id.
    begun: HashMap<String, usize>,
    /// The calls (by item id) of which some arguments were already returned.
    streamed: BTreeSet<String>,
    items: Vec<Value>,
    usage: Told,
    stop: Option<StopReason>,
    model: String,
}

impl Reply {
    pub(super) fn event(&mut self, event: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        match str_of(event, "/type") {
            "" => return Err(Broken::Nonsense("an event has no `type`".to_owned())),
            "response.output_text.delta" | "response.refusal.delta" => {
                self.text_delta(str_of(event, "/delta"), out);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.reasoning_delta(str_of(event, "/delta"), out);
            }
            "response.reasoning_summary_part.added" if !self.reasoning.is_empty() => {
                self.reasoning_delta("\n\n", out);
            }
            "response.output_item.added" if str_of(event, "/item/type") == "function_call" => {
                self.begin(str_of(event, "/item/id"), &event["item"], out);
            }
            "response.function_call_arguments.delta" => {
                let item = str_of(event, "/item_id");
                let n = self.begin(item, &Value::Null, out);
                self.streamed.insert(item.to_owned());
                out.push(Heard::Args { n, text: owned(event, "/delta") });
            }
            "response.output_item.done" => {
                if let Some(item) = event.get("item") {
                    self.item(item.clone(), out);
                }
            }
            "response.completed" | "response.incomplete" => {
                let response = event.get("response").unwrap_or(&Value::Null);
                self.completed(response, out);
            }
            "response.failed" => {
                let response = event.get("response").unwrap_or(event);
                return Err(Broken::Said {
                    said: Said::of_value(response),
                    raw: event.to_string(),
                });
            }
            // These events repeat what other events contain.
            _ => {}
        }
        Ok(())
    }

    /// The number of a call, which begins here if it is new.
    fn begin(&mut self, id: &str, item: &Value, out: &mut Vec<Heard>) -> usize {
        let n = self.begun.len();
        // A call without an id never matches an earlier one.
        let key = if id.is_empty() { format!("call {n}") } else { id.to_owned() };
        *self.begun.entry(key).or_insert_with(|| {
            out.push(Heard::Call { n, id: owned(item, "/call_id"), name: owned(item, "/name") });
            n
        })
    }

    fn text_delta(&mut self, piece: &str, out: &mut Vec<Heard>) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            out.push(Heard::Text(piece.to_owned()));
        }
    }

    fn reasoning_delta(&mut self, piece: &str, out: &mut Vec<Heard>) {
        if !piece.is_empty() {
            self.reasoning.push_str(piece);
            out.push(Heard::Reasoning(piece.to_owned()));
        }
    }

    /// Takes a whole item and returns the parts that no delta contained.
    fn item(&mut self, item: Value, out: &mut Vec<Heard>) {
        match str_of(&item, "/type") {
            "message" => {
                let before: usize = self.items.iter().map(|item| message_text(item).0.len()).sum();
                let (text, _) = message_text(&item);
                let seen = self.text.len().saturating_sub(before);
                if let Some(rest) = text.get(seen..).map(str::to_owned) {
                    self.text_delta(&rest, out);
                }
            }
            "function_call" if !self.streamed.contains(str_of(&item, "/id")) => {
                let n = self.begin(str_of(&item, "/id"), &item, out);
                out.push(Heard::Args { n, text: owned(&item, "/arguments") });
            }
            "reasoning" if self.reasoning.is_empty() => {
                self.reasoning_delta(&reasoning_text(&item), out);
            }
            _ => {}
        }
        self.items.push(item);
    }

    fn completed(&mut self, response: &Value, out: &mut Vec<Heard>) {
        if self.items.is_empty() {
            for item in response.get("output").and_then(Value::as_array).into_iter().flatten() {
                self.item(item.clone(), out);
            }
        }
        self.usage.take(Format::OpenAiResponses, &response["usage"], true);
        self.id = owned(response, "/id");
        self.model = owned(response, "/model");
        self.stop = Some(match str_of(response, "/incomplete_details/reason") {
            "" => StopReason::End,
            "content_filter" => StopReason::Refusal,
            _ => StopReason::MaxTokens,
        });
    }

    pub(super) fn whole(&mut self, body: &Value, out: &mut Vec<Heard>) -> Result<(), Broken> {
        match str_of(body, "/status") {
            "completed" | "incomplete" => {
                self.completed(body, out);
                Ok(())
            }
            status => Err(Broken::Nonsense(format!("a response of status `{status}`"))),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.stop.is_some()
    }

    pub(super) fn head(&self) -> (&str, &str) {
        (&self.id, &self.model)
    }

    pub(super) fn finish(self) -> Result<Draft, Broken> {
        let stop = self.stop.ok_or(Broken::Cut)?;
        let mut draft = Draft {
            id: self.id,
            text: String::new(),
            reasoning: self.reasoning,
            calls: Vec::new(),
            usage: self.usage,
            stop,
            stopped: None,
            model: self.model,
            pieces: Pieces::default(),
        };
        for item in self.items {
            match str_of(&item, "/type") {
                "message" => {
                    let (text, refused) = message_text(&item);
                    draft.pieces.push_text(text.len());
                    draft.text.push_str(&text);
                    if refused {
                        draft.stop = StopReason::Refusal;
                    }
                }
                "function_call" => {
                    draft.calls.push(WireCall {
                        id: owned(&item, "/call_id"),
                        name: owned(&item, "/name"),
                        args: owned(&item, "/arguments"),
                    });
                    draft.pieces.0.push(Piece::Call);
                }
                // Reasoning without its encrypted content is useless to the provider, which stores
                // nothing.
                "reasoning" if !str_of(&item, "/encrypted_content").is_empty() => {
                    draft.pieces.0.push(Piece::Raw(item_to_send(item)));
                }
                _ => {}
            }
        }
        if draft.text.is_empty() && draft.calls.is_empty() && !self.text.is_empty() {
            // This server streams deltas but never sends an item.
            draft.pieces.push_text(self.text.len());
            draft.text = self.text;
        }
        if draft.stop == StopReason::End && !draft.calls.is_empty() {
            draft.stop = StopReason::ToolCalls;
        }
        Ok(draft)
    }
}

/// Removes the fields that are allowed only in output.
fn item_to_send(item: Value) -> Value {
    let mut item = item;
    if let Some(fields) = item.as_object_mut() {
        fields.retain(|key, _| {
            matches!(key.as_str(), "type" | "id" | "summary" | "encrypted_content")
        });
        fields.entry("summary").or_insert_with(|| json!([]));
    }
    item
}

/// The text of a message item, and whether it is a refusal.
fn message_text(item: &Value) -> (String, bool) {
    if str_of(item, "/type") != "message" {
        return (String::new(), false);
    }
    let mut text = String::new();
    let mut refused = false;
    for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
        text.push_str(str_of(part, "/text"));
        let refusal = str_of(part, "/refusal");
        refused |= !refusal.is_empty();
        text.push_str(refusal);
    }
    (text, refused)
}

fn reasoning_text(item: &Value) -> String {
    let texts = |key: &str| -> Vec<&str> {
        let parts = item.get(key).and_then(Value::as_array);
        parts.into_iter().flatten().map(|part| str_of(part, "/text")).collect()
    };
    let mut all = texts("summary");
    if all.is_empty() {
        all = texts("content");
    }
    all.join("\n\n")
}
