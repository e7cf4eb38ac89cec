//! Translates a chat request to a request of Anthropic Messages.

use serde_json::{Map, Value, json};

use super::{Done, Untranslatable, list, nothing, object, text};
use crate::wire::anthropic::BLANK;

/// The limit for a call that names none; Anthropic requires one.
const MAX_TOKENS: u64 = 8192;

pub(super) fn request(chat: &Map<String, Value>) -> Done<Map<String, Value>> {
    let mut out = Map::new();
    out.insert("model".to_owned(), chat.get("model").cloned().unwrap_or_default());
    out.insert("max_tokens".to_owned(), MAX_TOKENS.into());
    let mut parallel = true;
    let mut choice = None;
    for (name, value) in chat {
        if value.is_null() {
            continue;
        }
        match name.as_str() {
            "model"
            | "messages"
            | "stream_options"
            | "metadata"
            | "store"
            | "service_tier"
            | "prompt_cache_key"
            | "prompt_cache_retention"
            | "safety_identifier" => {}
            "max_tokens" | "max_completion_tokens" => {
                out.insert("max_tokens".to_owned(), value.clone());
            }
            "temperature" if value.as_f64().is_some_and(|t| t > 1.0) => {
                return Err(Untranslatable::new(name, "it may be 1 at most there"));
            }
            "temperature" | "top_p" | "stream" => {
                out.insert(name.clone(), value.clone());
            }
            "stop" => {
                let stops = if value.is_array() { value.clone() } else { json!([value]) };
                out.insert("stop_sequences".to_owned(), stops);
            }
            "user" => {
                out.insert("metadata".to_owned(), json!({"user_id": value}));
            }
            "tools" => {
                let tools = list(name, value)?.iter().enumerate();
                let tools = tools.map(|(n, one)| tool(&format!("tools[{n}]"), one));
                out.insert("tools".to_owned(), tools.collect::<Done<Vec<Value>>>()?.into());
            }
            "tool_choice" => choice = Some(tool_choice(value)?),
            "parallel_tool_calls" => parallel = value.as_bool().unwrap_or(true),
            "reasoning_effort" => match value.as_str() {
                Some("none" | "minimal") => {}
                Some(_) => config(&mut out).insert_key("effort", value.clone()),
                None => return Err(Untranslatable::new(name, "it must be a text")),
            },
            "response_format" => match value["type"].as_str() {
                Some("text") => {}
                Some("json_schema") => {
                    let schema = value["json_schema"]["schema"].clone();
                    let format = json!({"type": "json_schema", "schema": schema});
                    config(&mut out).insert_key("format", format);
                }
                _ => {
                    let why = "only text and json_schema are supported there";
                    return Err(Untranslatable::new("response_format.type", why));
                }
            },
            "n" => nothing(name, value, &[json!(1)])?,
            "logprobs" => nothing(name, value, &[json!(false)])?,
            "presence_penalty" | "frequency_penalty" | "top_logprobs" => {
                nothing(name, value, &[json!(0), json!(0.0)])?;
            }
            "modalities" => nothing(name, value, &[json!(["text"])])?,
            _ => nothing(name, value, &[])?,
        }
    }
    if !parallel && out.contains_key("tools") {
        let choice = choice.get_or_insert_with(|| json!({"type": "auto"}));
        if choice["type"] != "none" {
            choice["disable_parallel_tool_use"] = true.into();
        }
    }
    if let Some(choice) = choice {
        out.insert("tool_choice".to_owned(), choice);
    }
    let (system, messages) = conversation(chat.get("messages").unwrap_or(&Value::Null))?;
    if !system.is_empty() {
        out.insert("system".to_owned(), system.into());
    }
    out.insert("messages".to_owned(), messages.into());
    Ok(out)
}

/// The field `output_config`, created if it is missing.
fn config(out: &mut Map<String, Value>) -> &mut Value {
    out.entry("output_config").or_insert_with(|| json!({}))
}

trait InsertKey {
    fn insert_key(&mut self, key: &str, value: Value);
}

impl InsertKey for Value {
    fn insert_key(&mut self, key: &str, value: Value) {
        if let Self::Object(map) = self {
            map.insert(key.to_owned(), value);
        }
    }
}

fn tool(at: &str, tool: &Value) -> Done<Value> {
    if tool["type"] != "function" {
        let why = "only tools of type `function` are supported there";
        return Err(Untranslatable::new(format!("{at}.type"), why));
    }
    let function = object(&format!("{at}.function"), &tool["function"])?;
    let mut out = json!({
        "name": function.get("name").cloned().unwrap_or_default(),
        "input_schema": match function.get("parameters") {
            Some(schema @ Value::Object(_)) => schema.clone(),
            _ => json!({"type": "object", "properties": {}}),
        },
    });
    if let Some(text @ Value::String(_)) = function.get("description") {
        out["description"] = text.clone();
    }
    if function.get("strict") == Some(&Value::Bool(true)) {
        out["strict"] = true.into();
    }
    if let Some(cache) = tool.get("cache_control").filter(|cache| cache.is_object()) {
        out["cache_control"] = cache.clone();
    }
    Ok(out)
}

fn tool_choice(choice: &Value) -> Done<Value> {
    match (choice.as_str(), choice["type"].as_str()) {
        (Some("auto"), _) => Ok(json!({"type": "auto"})),
        (Some("none"), _) => Ok(json!({"type": "none"})),
        (Some("required"), _) => Ok(json!({"type": "any"})),
        (None, Some("function")) => Ok(json!({"type": "tool", "name": choice["function"]["name"]})),
        _ => Err(Untranslatable::new("tool_choice", "it is none of those that are known there")),
    }
}

/// The system prompt and the messages; adjacent messages of one role become one.
fn conversation(messages: &Value) -> Done<(Vec<Value>, Vec<Value>)> {
    let mut system = Vec::new();
    let mut out: Vec<(&str, Vec<Value>)> = Vec::new();
    for (n, message) in list("messages", messages)?.iter().enumerate() {
        let at = format!("messages[{n}]");
        let content = &message["content"];
        let (side, blocks) = match message["role"].as_str() {
            Some("system" | "developer") => {
                system.extend(parts(&at, content, false)?);
                continue;
            }
            Some("user") => {
                let mut blocks = parts(&at, content, true)?;
                if blocks.is_empty() {
                    // The blank text separates two answers, or is the whole request, so it cannot
                    // be dropped.
                    blocks.push(json!({"type": "text", "text": BLANK}));
                }
                ("user", blocks)
            }
            Some("tool") => {
                let id = text(&format!("{at}.tool_call_id"), &message["tool_call_id"])?;
                let result = match content {
                    Value::String(_) => content.clone(),
                    _ => parts(&at, content, true)?.into(),
                };
                let block = json!({"type": "tool_result", "tool_use_id": id, "content": result});
                ("user", vec![block])
            }
            Some("assistant") => ("assistant", assistant(&at, message)?),
            _ => {
                let why = "it is none of system, developer, user, assistant and tool";
                return Err(Untranslatable::new(format!("{at}.role"), why));
            }
        };
        if blocks.is_empty() {
            continue;
        }
        match out.last_mut() {
            Some((last, all)) if *last == side => all.extend(blocks),
            _ => out.push((side, blocks)),
        }
    }
    let out = out.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
    Ok((system, out.collect()))
}

fn assistant(at: &str, message: &Value) -> Done<Vec<Value>> {
    let mut blocks = match &message["content"] {
        Value::Null => Vec::new(),
        content => parts(at, content, false)?,
    };
    nothing(&format!("{at}.function_call"), &message["function_call"], &[])?;
    nothing(&format!("{at}.audio"), &message["audio"], &[])?;
    let calls = match &message["tool_calls"] {
        Value::Null => &[][..],
        calls => list(&format!("{at}.tool_calls"), calls)?,
    };
    for (n, call) in calls.iter().enumerate() {
        let at = format!("{at}.tool_calls[{n}]");
        let function = &call["function"];
        let args = function["arguments"].as_str().unwrap_or_default();
        let input: Value = match args.trim() {
            "" => json!({}),
            args => overmind_core::json::read(args.as_bytes()).unwrap_or(Value::Null),
        };
        if !input.is_object() {
            let why = "arguments must be a JSON object there";
            return Err(Untranslatable::new(format!("{at}.function.arguments"), why));
        }
        blocks.push(json!({
            "type": "tool_use", "id": call["id"], "name": function["name"], "input": input,
        }));
    }
    Ok(blocks)
}

/// Whether a part is a blank text, which Anthropic refuses.
fn is_blank(part: &Value) -> bool {
    let said = part["text"].as_str().or(part["refusal"].as_str());
    said.is_some_and(|said| said.trim().is_empty())
}

/// The blocks of a content, without blank texts. `images` tells whether images are allowed here.
fn parts(at: &str, content: &Value, images: bool) -> Done<Vec<Value>> {
    let at = format!("{at}.content");
    let all = match content {
        Value::String(text) if text.trim().is_empty() => return Ok(Vec::new()),
        Value::String(text) => return Ok(vec![json!({"type": "text", "text": text})]),
        _ => list(&at, content)?,
    };
    let mut out = Vec::new();
    for (n, part) in all.iter().enumerate() {
        let at = format!("{at}[{n}]");
        let mut block = match part["type"].as_str() {
            Some("text" | "refusal") if is_blank(part) => continue,
            Some("text") => json!({"type": "text", "text": text(&at, &part["text"])?}),
            Some("refusal") => json!({"type": "text", "text": text(&at, &part["refusal"])?}),
            Some("image_url") if images => {
                let url = text(&format!("{at}.image_url.url"), &part["image_url"]["url"])?;
                json!({"type": "image", "source": source(&at, url)?})
            }
            _ => {
                let why = "only texts, and images of users, are supported there";
                return Err(Untranslatable::new(format!("{at}.type"), why));
            }
        };
        if let Some(cache) = part.get("cache_control").filter(|cache| cache.is_object()) {
            block["cache_control"] = cache.clone();
        }
        out.push(block);
    }
    Ok(out)
}

fn source(at: &str, url: &str) -> Done<Value> {
    let Some(data) = url.strip_prefix("data:") else {
        return Ok(json!({"type": "url", "url": url}));
    };
    match data.split_once(";base64,") {
        Some((kind, data)) => {
            let kind = kind.split(';').next().unwrap_or_default();
            Ok(json!({"type": "base64", "media_type": kind, "data": data}))
        }
        None => {
            let why = "a data URL must be base64 there";
            Err(Untranslatable::new(format!("{at}.image_url.url"), why))
        }
    }
}
