//! Translates a request of Anthropic Messages to a chat request.

use serde_json::{Map, Value, json};

use super::{Done, Untranslatable, list, nothing, text};

/// Maximum number of stop texts that OpenAI accepts.
const MAX_STOPS: usize = 4;

pub(super) fn request(fields: &Map<String, Value>) -> Done<Map<String, Value>> {
    let mut out = Map::new();
    let mut messages = Vec::new();
    let model = fields.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
    let reasons = crate::route::is_reasoning(&model);
    out.insert("model".to_owned(), model.as_str().into());
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        match name.as_str() {
            // These fields are preferences (how to think, what to keep, whom to bill) and do not
            // change what is asked.
            "model" | "messages" | "metadata" | "service_tier" | "thinking"
            | "context_management" | "cache_control" => {}
            "system" => {
                if let Some(said) = system(value)? {
                    messages.push(json!({"role": "system", "content": said}));
                }
            }
            "max_tokens" => {
                // Only OpenAI's models know the new name; other servers know the old one.
                let new = reasons || model.starts_with("gpt-") || model.starts_with("chatgpt-");
                let name = if new { "max_completion_tokens" } else { "max_tokens" };
                out.insert(name.to_owned(), value.clone());
            }
            // Reasoning models refuse every other temperature.
            "temperature" if reasons && value.as_f64() == Some(1.0) => {}
            "temperature" | "top_p" => {
                out.insert(name.clone(), value.clone());
            }
            "stream" => {
                out.insert(name.clone(), value.clone());
                if value == true {
                    out.insert("stream_options".to_owned(), json!({"include_usage": true}));
                }
            }
            "stop_sequences" => {
                if list(name, value)?.len() > MAX_STOPS {
                    let why = format!("there may be {MAX_STOPS} at most there");
                    return Err(Untranslatable::new(name, why));
                }
                out.insert("stop".to_owned(), value.clone());
            }
            "tools" => {
                let tools = list(name, value)?.iter().enumerate();
                let tools = tools.map(|(n, one)| tool(&format!("tools[{n}]"), one));
                let tools = tools.collect::<Done<Vec<Value>>>()?;
                if !tools.is_empty() {
                    out.insert("tools".to_owned(), tools.into());
                }
            }
            "tool_choice" => {
                let choice = match value["type"].as_str() {
                    Some("auto") => json!("auto"),
                    Some("any") => json!("required"),
                    Some("none") => json!("none"),
                    Some("tool") => {
                        json!({"type": "function", "function": {"name": value["name"]}})
                    }
                    _ => return Err(Untranslatable::new("tool_choice.type", "it is not known")),
                };
                out.insert("tool_choice".to_owned(), choice);
                if value["disable_parallel_tool_use"] == true {
                    out.insert("parallel_tool_calls".to_owned(), false.into());
                }
            }
            "output_config" => output_config(value, reasons, &mut out)?,
            _ => nothing(name, value, &[])?,
        }
    }
    let all = list("messages", fields.get("messages").unwrap_or(&Value::Null))?;
    for (n, message) in all.iter().enumerate() {
        let at = format!("messages[{n}]");
        let content = &message["content"];
        match message["role"].as_str() {
            Some("user") => user(&at, content, &mut messages)?,
            Some("assistant") => messages.push(assistant(&at, content)?),
            Some("system") => {
                if let Some(said) = system(content)? {
                    messages.push(json!({"role": "system", "content": said}));
                }
            }
            _ => {
                let why = "it is neither user nor assistant";
                return Err(Untranslatable::new(format!("{at}.role"), why));
            }
        }
    }
    out.insert("messages".to_owned(), messages.into());
    Ok(out)
}

fn output_config(config: &Value, reasons: bool, out: &mut Map<String, Value>) -> Done<()> {
    for (name, value) in config.as_object().into_iter().flatten() {
        match name.as_str() {
            "effort" => {
                if reasons {
                    let effort = if value == "max" { json!("high") } else { value.clone() };
                    out.insert("reasoning_effort".to_owned(), effort);
                }
            }
            "format" if value["type"] == "json_schema" => {
                let schema = json!({"name": "answer", "schema": value["schema"], "strict": true});
                let format = json!({"type": "json_schema", "json_schema": schema});
                out.insert("response_format".to_owned(), format);
            }
            _ => nothing(&format!("output_config.{name}"), value, &[])?,
        }
    }
    Ok(())
}

/// The system prompt as one text.
fn system(value: &Value) -> Done<Option<String>> {
    let said = match value {
        Value::String(said) => said.clone(),
        _ => {
            let blocks = list("system", value)?.iter().enumerate();
            let said = blocks.map(|(n, block)| text(&format!("system[{n}].text"), &block["text"]));
            said.collect::<Done<Vec<&str>>>()?.join("\n\n")
        }
    };
    Ok((!said.is_empty()).then_some(said))
}

fn tool(at: &str, tool: &Value) -> Done<Value> {
    if tool.get("type").is_some_and(|kind| kind != "custom") {
        let why = "the provider's own tools are not available elsewhere";
        return Err(Untranslatable::new(format!("{at}.type"), why));
    }
    let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
    if let Some(said @ Value::String(_)) = tool.get("description") {
        function["description"] = said.clone();
    }
    Ok(json!({"type": "function", "function": function}))
}

/// Adds a user message. Tool results come first, as one message each, because they must directly
/// follow their calls.
fn user(at: &str, content: &Value, out: &mut Vec<Value>) -> Done<()> {
    if let Value::String(said) = content {
        out.push(json!({"role": "user", "content": said}));
        return Ok(());
    }
    let mut rest = Vec::new();
    for (n, block) in list(&format!("{at}.content"), content)?.iter().enumerate() {
        let at = format!("{at}.content[{n}]");
        if block["type"] != "tool_result" {
            rest.push(part(&at, block)?);
            continue;
        }
        let id = text(&format!("{at}.tool_use_id"), &block["tool_use_id"])?;
        let mut said = String::new();
        match &block["content"] {
            Value::Null => {}
            Value::String(whole) => said.clone_from(whole),
            parts => {
                for (n, one) in list(&format!("{at}.content"), parts)?.iter().enumerate() {
                    let at = format!("{at}.content[{n}]");
                    match one["text"].as_str() {
                        Some(one) if said.is_empty() => said.push_str(one),
                        Some(one) => said.extend(["\n", one]),
                        // A tool message cannot hold an image, so the image follows in a user
                        // message.
                        None => rest.push(part(&at, one)?),
                    }
                }
            }
        }
        if block["is_error"] == true && !said.starts_with("Error") {
            said.insert_str(0, "Error: ");
        }
        out.push(json!({"role": "tool", "tool_call_id": id, "content": said}));
    }
    match rest.as_slice() {
        [] => {}
        [one] if one["type"] == "text" => {
            out.push(json!({"role": "user", "content": one["text"]}));
        }
        _ => out.push(json!({"role": "user", "content": rest})),
    }
    Ok(())
}

fn part(at: &str, block: &Value) -> Done<Value> {
    match block["type"].as_str() {
        Some("text") => Ok(json!({"type": "text", "text": text(at, &block["text"])?})),
        Some("image") => {
            let source = &block["source"];
            let url = match source["type"].as_str() {
                Some("base64") => {
                    let kind = text(&format!("{at}.source.media_type"), &source["media_type"])?;
                    let data = text(&format!("{at}.source.data"), &source["data"])?;
                    format!("data:{kind};base64,{data}")
                }
                Some("url") => text(&format!("{at}.source.url"), &source["url"])?.to_owned(),
                _ => {
                    let why = "only base64 and url are supported there";
                    return Err(Untranslatable::new(format!("{at}.source.type"), why));
                }
            };
            Ok(json!({"type": "image_url", "image_url": {"url": url}}))
        }
        Some("document") if block["source"]["type"] == "text" => {
            Ok(json!({"type": "text", "text": text(at, &block["source"]["data"])?}))
        }
        _ => {
            let why = "only texts, images and results of tools are supported there";
            Err(Untranslatable::new(format!("{at}.type"), why))
        }
    }
}

fn assistant(at: &str, content: &Value) -> Done<Value> {
    if let Value::String(said) = content {
        return Ok(json!({"role": "assistant", "content": said}));
    }
    let (mut said, mut calls) = (String::new(), Vec::new());
    for (n, block) in list(&format!("{at}.content"), content)?.iter().enumerate() {
        match block["type"].as_str() {
            Some("text") => {
                said.push_str(text(&format!("{at}.content[{n}].text"), &block["text"])?)
            }
            // Thinking is signed for its own provider and useless to another.
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()},
            })),
            _ => {
                let why = "only texts and calls of tools are supported there";
                return Err(Untranslatable::new(format!("{at}.content[{n}].type"), why));
            }
        }
    }
    let mut message = json!({"role": "assistant", "content": said});
    if !calls.is_empty() {
        if said.is_empty() {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}
