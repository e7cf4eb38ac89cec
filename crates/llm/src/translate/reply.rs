//! Answers that did not stream, and what streams share with them.

use serde_json::{Value, json};

use super::{Back, number};

/// Anthropic's reason for chat's.
pub(super) fn stop_of_finish(finish: &str) -> &'static str {
    match finish {
        "length" => "max_tokens",
        "tool_calls" | "function_call" => "tool_use",
        "content_filter" => "refusal",
        _ => "end_turn",
    }
}

/// The text of the caller's that an answer ended at. OpenAI's API does not tell it; servers of open
/// models (vLLM, SGLang) do.
pub(super) fn stopped_by<'a>(choice: &Value, back: &'a Back) -> Option<&'a str> {
    if choice["finish_reason"] != "stop" {
        return None;
    }
    let said =
        ["stop_reason", "matched_stop"].into_iter().find_map(|name| choice[name].as_str())?;
    back.stops.iter().map(String::as_str).find(|stop| *stop == said)
}

/// Chat's reason for Anthropic's.
pub(super) fn finish_of_stop(stop: &str) -> &'static str {
    match stop {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Anthropic's figures for chat's.
pub(super) fn usage_to_messages(usage: &Value) -> Value {
    let cached = number(usage, &["prompt_tokens_details", "cached_tokens"]);
    let all = number(usage, &["prompt_tokens"]);
    json!({
        "input_tokens": all.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": number(usage, &["completion_tokens"]),
    })
}

/// Chat's figures for Anthropic's.
pub(super) fn usage_to_chat(usage: &Value) -> Value {
    let read = number(usage, &["cache_read_input_tokens"]);
    let written = number(usage, &["cache_creation_input_tokens"]);
    let input = number(usage, &["input_tokens"]).saturating_add(read).saturating_add(written);
    let output = number(usage, &["output_tokens"]);
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input.saturating_add(output),
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    })
}

/// The figures of Responses for chat's.
pub(super) fn usage_to_responses(usage: &Value) -> Value {
    let input = number(usage, &["prompt_tokens"]);
    let output = number(usage, &["completion_tokens"]);
    let cached = number(usage, &["prompt_tokens_details", "cached_tokens"]);
    let thought = number(usage, &["completion_tokens_details", "reasoning_tokens"]);
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": input.saturating_add(output),
    })
}

pub(super) fn chat_of_messages(body: &Value, back: &Back) -> Result<Value, String> {
    let Some(blocks) = body["content"].as_array() else {
        return Err("its answer has no `content`".to_owned());
    };
    let (mut said, mut calls) = (String::new(), Vec::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => said.push_str(block["text"].as_str().unwrap_or_default()),
            Some("tool_use") => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()},
            })),
            // Thoughts; what else there may be is not asked for by what we translate.
            _ => {}
        }
    }
    let mut message = json!({"role": "assistant", "content": said, "refusal": null});
    if !calls.is_empty() {
        if said.is_empty() {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = calls.into();
    }
    let finish = finish_of_stop(body["stop_reason"].as_str().unwrap_or_default());
    Ok(json!({
        "id": body["id"], "object": "chat.completion", "created": back.created,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "logprobs": null, "finish_reason": finish}
        ],
        "usage": usage_to_chat(&body["usage"]),
    }))
}

fn first(chat: &Value) -> Result<&Value, String> {
    let message = &chat["choices"][0]["message"];
    if message.is_object() { Ok(message) } else { Err("its answer has no message".to_owned()) }
}

pub(super) fn messages_of_chat(chat: &Value, back: &Back) -> Result<Value, String> {
    let message = first(chat)?;
    let mut content = Vec::new();
    for key in ["content", "refusal"] {
        if let Some(said) = message[key].as_str().filter(|said| !said.is_empty()) {
            content.push(json!({"type": "text", "text": said}));
        }
    }
    for (n, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let function = &call["function"];
        let args = function["arguments"].as_str().unwrap_or_default();
        let input: Value = serde_json::from_str(args).unwrap_or(Value::Null);
        // What the model wrote that is no object is handed on in one: the tool will say so.
        let input = match input {
            Value::Object(_) => input,
            _ if args.trim().is_empty() => json!({}),
            _ => json!({"arguments": args}),
        };
        let id = call["id"].as_str().filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("call_{n}"), str::to_owned);
        content.push(json!({
            "type": "tool_use", "id": id, "name": function["name"], "input": input,
        }));
    }
    let finish = chat["choices"][0]["finish_reason"].as_str().unwrap_or_default();
    let stopped = stopped_by(&chat["choices"][0], back);
    let reason = if stopped.is_some() { "stop_sequence" } else { stop_of_finish(finish) };
    Ok(json!({
        "id": chat["id"], "type": "message", "role": "assistant", "model": chat["model"],
        "content": content, "stop_reason": reason, "stop_sequence": stopped,
        "usage": usage_to_messages(&chat["usage"]),
    }))
}

pub(super) fn responses_of_chat(chat: &Value, back: &Back) -> Result<Value, String> {
    let message = first(chat)?;
    let mut output = Vec::new();
    if let Some(said) = message["content"].as_str().filter(|said| !said.is_empty()) {
        output.push(message_item("msg_0", said));
    }
    for (n, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let function = &call["function"];
        let args = function["arguments"].as_str().unwrap_or_default();
        let name = function["name"].as_str().unwrap_or_default();
        let id = call["id"].as_str().unwrap_or_default();
        output.push(back.names.item(n, id, name, args, "completed"));
    }
    let finish = chat["choices"][0]["finish_reason"].as_str().unwrap_or_default();
    let mut response = response(&chat["id"], &chat["model"], finish, back);
    response["output"] = output.into();
    response["usage"] = usage_to_responses(&chat["usage"]);
    Ok(response)
}

pub(super) fn message_item(id: &str, said: &str) -> Value {
    json!({
        "type": "message", "id": id, "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": said, "annotations": []}],
    })
}

/// A response without its output. `finish`: `""` while it is under way.
pub(super) fn response(id: &Value, model: &Value, finish: &str, back: &Back) -> Value {
    let (status, why) = match finish {
        "" => ("in_progress", Value::Null),
        "length" => ("incomplete", json!({"reason": "max_output_tokens"})),
        "content_filter" => ("incomplete", json!({"reason": "content_filter"})),
        _ => ("completed", Value::Null),
    };
    json!({
        "id": format!("resp_{}", id.as_str().unwrap_or("0")), "object": "response",
        "created_at": back.created, "status": status, "incomplete_details": why, "error": null,
        "model": model, "output": [], "parallel_tool_calls": true, "tool_choice": "auto",
        "tools": [], "usage": null,
    })
}
