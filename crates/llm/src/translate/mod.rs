//! Translates between the formats of providers, for programs that speak one format while their
//! model speaks another. The functions are pure: values in, values out.
//!
//! Chat is the format in between: Messages ↔ chat and Responses → chat exist, so Responses →
//! Messages takes both steps. Answers are read with the decoders of our own calls (`wire`) and
//! written in the format of the caller. Translated are text, system prompts, tools and their
//! choice, results, images, stop reasons, streams and usage. A field that has no counterpart and
//! would change the meaning of the call is refused by name. Preferences that do not change the
//! answer's meaning (caching, user ids, service tiers, summaries of thoughts) are dropped, and so
//! are thoughts, which no other provider accepts.

mod from_messages;
mod reply;
mod responses;
mod stream;
mod to_messages;
mod tools;

use bytes::Bytes;
use overmind_core::json as outside;
use overmind_core::relay::{Dialect, Endpoint};
use serde_json::{Map, Value, json};

pub use self::stream::Stream;
pub use self::tools::Names;
use crate::alias::{Aliases, MAX_CHAT_ID};
use crate::relay::format_of;
use crate::wire::{Broken, Decoder};

/// Why a request has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{field}` cannot be put into the format of this model's provider: {why}; leave it out, or name a \
     model whose provider speaks this API"
)]
pub struct Untranslatable {
    /// The path of the field: `messages[2].content[0].type`.
    pub field: String,
    pub why: String,
}

impl Untranslatable {
    fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }
}

type Done<T> = Result<T, Untranslatable>;

/// Whether calls of `from` can be made as calls of `to`.
pub fn is_known(from: Endpoint, to: Endpoint) -> bool {
    use Endpoint::{Chat, Messages, Responses};
    from == to || matches!((from, to), (Chat | Responses, Messages) | (Messages | Responses, Chat))
}

/// The state that is needed to translate the answer back.
#[derive(Clone, Debug, Default)]
pub struct Back {
    /// The time of the request, in seconds since 1970.
    pub created: i64,
    /// The tools that have another name in the provider's format.
    pub names: Names,
    /// The caller's stop texts.
    stops: Vec<String>,
}

/// Translates the body for `to`, with `model` as its model, and returns the state for its answer.
///
/// # Errors
///
/// [`Untranslatable`] names the field.
pub fn request(from: Endpoint, to: Endpoint, body: &[u8], model: &str) -> Done<(Bytes, Back)> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|err| Untranslatable::new("body", format!("it is not JSON: {err}")))?;
    let Value::Object(fields) = value else {
        return Err(Untranslatable::new("body", "it is no object"));
    };
    let mut back = Back::default();
    let mut made = request_value(from, to, fields, model, &mut back)?;
    if from != to {
        acceptable_ids(to, &mut made);
    }
    Ok((Value::Object(made).to_string().into(), back))
}

fn request_value(
    from: Endpoint,
    to: Endpoint,
    mut fields: Map<String, Value>,
    model: &str,
    back: &mut Back,
) -> Done<Map<String, Value>> {
    fields.insert("model".to_owned(), model.into());
    match (from, to) {
        _ if from == to => Ok(fields),
        (Endpoint::Chat, Endpoint::Messages) => to_messages::request(&fields),
        (Endpoint::Messages, Endpoint::Chat) => {
            let stops = fields.get("stop_sequences").and_then(Value::as_array);
            let stops = stops.into_iter().flatten().filter_map(Value::as_str);
            back.stops = stops.map(str::to_owned).collect();
            from_messages::request(&fields)
        }
        (Endpoint::Responses, Endpoint::Chat | Endpoint::Messages) => {
            let (chat, names) = responses::request(&fields)?;
            back.names = names;
            if to == Endpoint::Chat { Ok(chat) } else { to_messages::request(&chat) }
        }
        _ => Err(Untranslatable::new("model", "its provider does not have this API")),
    }
}

/// Replaces ids of calls that the provider would refuse, such as another provider's. A call and its
/// result keep one id, and an id is replaced by the same one in each request of a conversation.
fn acceptable_ids(to: Endpoint, body: &mut Map<String, Value>) {
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return };
    let mut places: Vec<&mut Value> = Vec::new();
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        for (name, value) in message.iter_mut() {
            match (name.as_str(), value) {
                ("tool_call_id", id) => places.push(id),
                ("tool_calls", Value::Array(calls)) => {
                    places.extend(calls.iter_mut().filter_map(|call| call.get_mut("id")));
                }
                ("content", Value::Array(blocks)) if to == Endpoint::Messages => {
                    for block in blocks.iter_mut().filter_map(Value::as_object_mut) {
                        let name = if block["type"] == "tool_use" { "id" } else { "tool_use_id" };
                        places.extend(block.get_mut(name));
                    }
                }
                _ => {}
            }
        }
    }
    let known = places.iter().filter_map(|id| id.as_str());
    let aliases = match to {
        Endpoint::Chat => Aliases::within(MAX_CHAT_ID, known),
        _ => Aliases::of(known),
    };
    for id in places {
        if let Some(made) = id.as_str().map(|id| aliases.wire(id).to_owned()) {
            *id = made.into();
        }
    }
}

/// Translates the body of an answer that did not stream, to the format `asked`.
///
/// # Errors
///
/// Describes the part of the answer that is not understood.
pub fn reply(
    asked: Endpoint,
    answered: Endpoint,
    body: &Value,
    back: &Back,
) -> Result<Vec<u8>, String> {
    if asked == answered {
        return Ok(body.to_string().into_bytes());
    }
    let mut decoder = Decoder::new(format_of(answered));
    let mut heard = Vec::new();
    let draft = decoder.whole_value(body, &mut heard).and_then(|()| decoder.finish(&mut heard));
    let draft = draft.map_err(|broken| match broken {
        Broken::Said { said, raw: _ } => format!("its answer is an error: {}", said.message),
        Broken::Nonsense(why) => format!("its answer: {why}"),
        Broken::Cut => "its answer does not say why it ended".to_owned(),
    })?;
    let made = match asked {
        Endpoint::Chat => reply::chat(&draft, back),
        Endpoint::Messages => reply::messages(&draft, back),
        Endpoint::Responses => reply::responses(&draft, back),
        Endpoint::Embeddings | Endpoint::CountTokens => {
            return Err("it is of another type than the requested one".to_owned());
        }
    };
    Ok(made.to_string().into_bytes())
}

/// Translates an error's body to the other dialect, with the provider's own message.
pub fn error(dialect: Dialect, status: u16, body: &[u8]) -> Vec<u8> {
    let value: Value = outside::read(body).unwrap_or(Value::Null);
    let error = value.get("error").unwrap_or(&value);
    let message = match error.get("message").and_then(Value::as_str).or(error.as_str()) {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(body).chars().take(4000).collect(),
    };
    let kind = match (dialect, status) {
        (_, 400 | 422) => "invalid_request_error",
        (_, 401) => "authentication_error",
        (_, 403) => "permission_error",
        (_, 404) => "not_found_error",
        (Dialect::Anthropic, 413) => "request_too_large",
        (_, 429) => "rate_limit_error",
        (Dialect::Anthropic, 503 | 529) => "overloaded_error",
        (Dialect::Anthropic, _) => "api_error",
        (Dialect::OpenAi, 413) => "invalid_request_error",
        (Dialect::OpenAi, _) => "server_error",
    };
    let code = error.get("code").cloned().unwrap_or(Value::Null);
    match dialect {
        Dialect::OpenAi => json!({
            "error": {"message": message, "type": kind, "param": null, "code": code},
        }),
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
    }
    .to_string()
    .into_bytes()
}

/// Checks a field that must be absent or have one of the values that have no effect.
fn nothing(field: &str, value: &Value, idle: &[Value]) -> Done<()> {
    let empty = match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if empty || idle.contains(value) {
        return Ok(());
    }
    Err(Untranslatable::new(field, "it has no counterpart there"))
}

fn text<'a>(field: &str, value: &'a Value) -> Done<&'a str> {
    value.as_str().ok_or_else(|| Untranslatable::new(field, "it must be a text"))
}

fn list<'a>(field: &str, value: &'a Value) -> Done<&'a [Value]> {
    let all = value.as_array().map(Vec::as_slice);
    all.ok_or_else(|| Untranslatable::new(field, "it must be a list"))
}

fn object<'a>(field: &str, value: &'a Value) -> Done<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| Untranslatable::new(field, "it must be an object"))
}

#[cfg(test)]
mod tests;
