//! Translates a request of OpenAI Responses to a chat request.

use serde_json::{Map, Value, json};

use super::tools::{Names, args_of, is_trace_of_hosted};
use super::{Done, Untranslatable, list, nothing, object, text};

pub(super) fn request(fields: &Map<String, Value>) -> Done<(Map<String, Value>, Names)> {
    let (tools, names) = match fields.get("tools") {
        None | Some(Value::Null) => Default::default(),
        Some(tools) => Names::read("tools", tools)?,
    };
    let mut out = Map::new();
    let mut messages = Vec::new();
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        match name.as_str() {
            // These fields are preferences, or concern only what the provider stores.
            "input"
            | "include"
            | "store"
            | "metadata"
            | "client_metadata"
            | "prompt_cache_key"
            | "prompt_cache_retention"
            | "service_tier"
            | "safety_identifier"
            | "truncation"
            | "stream_options" => {}
            // Without tools there is nothing to choose.
            "tool_choice" | "parallel_tool_calls"
                if tools.is_empty() && !names.left_out().is_empty() => {}
            "model" | "temperature" | "top_p" | "parallel_tool_calls" | "user" => {
                out.insert(name.clone(), value.clone());
            }
            "stream" => {
                out.insert(name.clone(), value.clone());
                if value == true {
                    out.insert("stream_options".to_owned(), json!({"include_usage": true}));
                }
            }
            "instructions" => {
                messages.push(json!({"role": "system", "content": text(name, value)?}));
            }
            "max_output_tokens" => {
                out.insert("max_completion_tokens".to_owned(), value.clone());
            }
            "tools" => {
                if !tools.is_empty() {
                    out.insert(name.clone(), tools.clone().into());
                }
            }
            "tool_choice" => {
                let choice = match (value.as_str(), value["type"].as_str()) {
                    (Some("auto" | "none" | "required"), _) => value.clone(),
                    (None, Some("function" | "custom")) => {
                        let there = called(name, value, &names)?;
                        json!({"type": "function", "function": {"name": there}})
                    }
                    _ => return Err(Untranslatable::new(name, "it is not known there")),
                };
                out.insert(name.clone(), choice);
            }
            "reasoning" => {
                if let Some(effort @ Value::String(_)) = value.get("effort") {
                    out.insert("reasoning_effort".to_owned(), effort.clone());
                }
            }
            "text" => format(value, &mut out)?,
            "background" => nothing(name, value, &[json!(false)])?,
            "top_logprobs" => nothing(name, value, &[json!(0)])?,
            _ => nothing(name, value, &[])?,
        }
    }
    match fields.get("input").unwrap_or(&Value::Null) {
        Value::String(said) => messages.push(json!({"role": "user", "content": said})),
        items => {
            for (n, item) in list("input", items)?.iter().enumerate() {
                put(&format!("input[{n}]"), item, &names, &mut messages)?;
            }
        }
    }
    out.insert("messages".to_owned(), joined(messages).into());
    Ok((out, names))
}

/// Joins adjacent messages of the system or of the user into one, because many models never saw
/// them separate.
fn joined(messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let same = out.last_mut().filter(|last| {
            last["role"] == message["role"]
                && matches!(message["role"].as_str(), Some("system" | "user"))
        });
        let Some(last) = same else {
            out.push(message);
            continue;
        };
        let joined = match (last["content"].take(), message["content"].clone()) {
            (Value::String(one), Value::String(other)) => format!("{one}\n\n{other}").into(),
            (one, other) => {
                let parts = |content| match content {
                    Value::Array(parts) => parts,
                    text => vec![json!({"type": "text", "text": text})],
                };
                [parts(one), parts(other)].concat().into()
            }
        };
        last["content"] = joined;
    }
    out
}

/// The chat name of the tool that `value` names.
fn called(at: &str, value: &Value, names: &Names) -> Done<String> {
    let name = text(&format!("{at}.name"), &value["name"])?;
    Ok(names.there(value["namespace"].as_str(), name))
}

fn format(text: &Value, out: &mut Map<String, Value>) -> Done<()> {
    let format = &text["format"];
    let made = match format["type"].as_str() {
        None | Some("text") => return Ok(()),
        Some("json_schema") => {
            let mut schema = object("text.format", format)?.clone();
            schema.shift_remove("type");
            json!({"type": "json_schema", "json_schema": schema})
        }
        Some("json_object") => json!({"type": "json_object"}),
        Some(_) => return Err(Untranslatable::new("text.format.type", "it is not known there")),
    };
    out.insert("response_format".to_owned(), made);
    Ok(())
}

/// Adds an item to the messages. Calls are added to the assistant message before them.
fn put(at: &str, item: &Value, names: &Names, messages: &mut Vec<Value>) -> Done<()> {
    match item["type"].as_str() {
        None | Some("message") => {
            let role = match item["role"].as_str() {
                Some("developer" | "system") => "system",
                Some("user") => "user",
                Some("assistant") => "assistant",
                _ => {
                    let why = "it is none of developer, system, user and assistant";
                    return Err(Untranslatable::new(format!("{at}.role"), why));
                }
            };
            let content = content(at, &item["content"], role == "user")?;
            messages.push(json!({"role": role, "content": content}));
        }
        Some(kind @ ("function_call" | "custom_tool_call")) => {
            let args = match kind {
                "function_call" => item["arguments"].clone(),
                _ => args_of(&item["input"]).into(),
            };
            let call = json!({
                "id": item["call_id"], "type": "function",
                "function": {"name": called(at, item, names)?, "arguments": args},
            });
            let last = messages.last_mut().filter(|last| last["role"] == "assistant");
            match last {
                Some(last) => match &mut last["tool_calls"] {
                    Value::Array(calls) => calls.push(call),
                    none => *none = json!([call]),
                },
                None => messages
                    .push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            }
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let id = text(&format!("{at}.call_id"), &item["call_id"])?;
            let (said, images) = match &item["output"] {
                Value::String(said) => (said.clone(), Vec::new()),
                parts => {
                    let parts = content(at, parts, true)?;
                    let all = parts.as_array().cloned().unwrap_or_default();
                    let (texts, images): (Vec<Value>, Vec<Value>) =
                        all.into_iter().partition(|part| part["type"] == "text");
                    let texts: Vec<&str> =
                        texts.iter().filter_map(|part| part["text"].as_str()).collect();
                    match parts.as_str() {
                        Some(said) => (said.to_owned(), images),
                        None => (texts.join("\n"), images),
                    }
                }
            };
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": said}));
            if !images.is_empty() {
                messages.push(json!({"role": "user", "content": images}));
            }
        }
        // These items are encrypted for their own provider, or were executed by it.
        Some("reasoning") => {}
        Some(kind) if is_trace_of_hosted(kind) => {}
        Some(kind) => {
            let why = format!("`{kind}` has no counterpart there");
            return Err(Untranslatable::new(format!("{at}.type"), why));
        }
    }
    Ok(())
}

/// One text if there is nothing but text, otherwise a list of parts.
fn content(at: &str, content: &Value, images: bool) -> Done<Value> {
    let at = format!("{at}.content");
    let all = match content {
        Value::String(_) => return Ok(content.clone()),
        _ => list(&at, content)?,
    };
    let mut parts = Vec::new();
    for (n, part) in all.iter().enumerate() {
        let at = format!("{at}[{n}]");
        parts.push(match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => {
                json!({"type": "text", "text": text(&at, &part["text"])?})
            }
            Some("refusal") => json!({"type": "text", "text": text(&at, &part["refusal"])?}),
            Some("input_image") if images => {
                let url = text(&format!("{at}.image_url"), &part["image_url"])?;
                let mut image = json!({"url": url});
                if let Some(detail @ Value::String(_)) = part.get("detail") {
                    image["detail"] = detail.clone();
                }
                json!({"type": "image_url", "image_url": image})
            }
            _ => {
                let why = "only texts, and images of users, are supported there";
                return Err(Untranslatable::new(format!("{at}.type"), why));
            }
        });
    }
    if parts.iter().all(|part| part["type"] == "text") {
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        return Ok(texts.join("\n").into());
    }
    Ok(parts.into())
}
