//! Translates answers that did not stream; streams share some of the functions.

use overmind_core::json as outside;
use overmind_core::model::StopReason;
use serde_json::{Value, json};

use super::Back;
use crate::wire::usage::Told;
use crate::wire::{Draft, WireCall};

/// The stop reason of Anthropic, and the caller's stop text that was reached.
pub(super) fn stop_of<'a>(draft: &Draft, back: &'a Back) -> (&'static str, Option<&'a str>) {
    let said = draft.stopped.as_deref();
    let stopped = back.stops.iter().map(String::as_str).find(|stop| Some(*stop) == said);
    match draft.stop {
        StopReason::End if stopped.is_some() => ("stop_sequence", stopped),
        StopReason::End => ("end_turn", None),
        StopReason::ToolCalls => ("tool_use", None),
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::Refusal => ("refusal", None),
    }
}

/// The finish reason of chat.
pub(super) fn finish_of(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End => "stop",
        StopReason::ToolCalls => "tool_calls",
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
    }
}

pub(super) fn usage_to_messages(told: Told) -> Value {
    let usage = told.usage.unwrap_or_default();
    let cached = usage.cached_input_tokens.saturating_add(usage.cache_write_tokens);
    json!({
        "input_tokens": usage.input_tokens.saturating_sub(cached),
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    })
}

pub(super) fn usage_to_chat(told: Told) -> Value {
    let usage = told.usage.unwrap_or_default();
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}

pub(super) fn usage_to_responses(told: Told) -> Value {
    let usage = told.usage.unwrap_or_default();
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}

/// The id, or null if the provider gave none.
pub(super) fn id_of(id: &str) -> Value {
    if id.is_empty() { Value::Null } else { id.into() }
}

/// The id of a call; it is made from `n` if the server gave none.
pub(super) fn call_id(n: usize, id: &str) -> String {
    if id.is_empty() { format!("call_{n}") } else { id.to_owned() }
}

/// Arguments in the form of OpenAI's APIs: a call without arguments has an empty object.
pub(super) fn args_of(args: &str) -> &str {
    if args.trim().is_empty() { "{}" } else { args }
}

pub(super) fn chat(draft: &Draft, back: &Back) -> Value {
    let mut message = json!({"role": "assistant", "content": draft.text, "refusal": null});
    if !draft.calls.is_empty() {
        if draft.text.is_empty() {
            message["content"] = Value::Null;
        }
        let calls = draft.calls.iter().enumerate().map(|(n, call)| {
            json!({
                "id": call_id(n, &call.id), "type": "function",
                "function": {"name": call.name, "arguments": args_of(&call.args)},
            })
        });
        message["tool_calls"] = calls.collect();
    }
    json!({
        "id": id_of(&draft.id), "object": "chat.completion", "created": back.created,
        "model": draft.model,
        "choices": [{
            "index": 0, "message": message, "logprobs": null,
            "finish_reason": finish_of(draft.stop),
        }],
        "usage": usage_to_chat(draft.usage),
    })
}

/// The input of a call in Anthropic's format. If the model wrote something else than an object, the
/// text is wrapped in one, and the tool reports the error.
fn input_of(call: &WireCall) -> Value {
    match outside::read(args_of(&call.args).as_bytes()) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => json!({"arguments": call.args}),
    }
}

pub(super) fn messages(draft: &Draft, back: &Back) -> Value {
    let mut content = Vec::new();
    if !draft.text.is_empty() {
        content.push(json!({"type": "text", "text": draft.text}));
    }
    content.extend(draft.calls.iter().enumerate().map(|(n, call)| {
        json!({
            "type": "tool_use", "id": call_id(n, &call.id), "name": call.name,
            "input": input_of(call),
        })
    }));
    let (reason, stopped) = stop_of(draft, back);
    json!({
        "id": id_of(&draft.id), "type": "message", "role": "assistant", "model": draft.model,
        "content": content, "stop_reason": reason, "stop_sequence": stopped,
        "usage": usage_to_messages(draft.usage),
    })
}

pub(super) fn responses(draft: &Draft, back: &Back) -> Value {
    let mut output = Vec::new();
    if !draft.text.is_empty() {
        output.push(message_item("msg_0", &draft.text));
    }
    output.extend(draft.calls.iter().enumerate().map(|(n, call)| {
        let (id, args) = (call_id(n, &call.id), args_of(&call.args));
        back.names.item(n, &id, &call.name, args, "completed")
    }));
    let mut response = response(&draft.id, &draft.model, Some(draft.stop), back);
    response["output"] = output.into();
    response["usage"] = usage_to_responses(draft.usage);
    response
}

pub(super) fn message_item(id: &str, said: &str) -> Value {
    json!({
        "type": "message", "id": id, "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": said, "annotations": []}],
    })
}

/// A Responses object without its output. `stop` is `None` while the response is in progress.
pub(super) fn response(id: &str, model: &str, stop: Option<StopReason>, back: &Back) -> Value {
    let (status, why) = match stop {
        None => ("in_progress", Value::Null),
        Some(StopReason::MaxTokens) => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(StopReason::Refusal) => ("incomplete", json!({"reason": "content_filter"})),
        Some(StopReason::End | StopReason::ToolCalls) => ("completed", Value::Null),
    };
    let id = if id.is_empty() { "0" } else { id };
    json!({
        "id": format!("resp_{id}"), "object": "response",
        "created_at": back.created, "status": status, "incomplete_details": why, "error": null,
        "model": model, "output": [], "parallel_tool_calls": true, "tool_choice": "auto",
        "tools": [], "usage": null,
    })
}
