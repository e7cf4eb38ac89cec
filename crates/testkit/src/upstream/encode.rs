//! Replies in the three wire formats, streamed and whole, field by field as the providers send
//! them.

use overmind_core::model::StopReason;
use serde_json::{Value, json};

use super::{Say, Wire};

const CREATED: u64 = 1_790_000_000;
const MODEL: &str = "upstream-1";

/// The events of a stream, each as the text that goes over the wire.
pub fn stream_of(wire: Wire, say: &Say, pings: bool) -> Vec<String> {
    let mut events = match wire {
        Wire::Chat => chat(say),
        Wire::Responses => responses(say),
        Wire::Messages => messages(say),
    };
    if pings {
        let ping = match wire {
            Wire::Chat => ": OPENROUTER PROCESSING\n\n".to_owned(),
            Wire::Responses => ":\n\n".to_owned(),
            Wire::Messages => named("ping", &json!({ "type": "ping" })),
        };
        events = events.into_iter().flat_map(|event| [ping.clone(), event]).collect();
    }
    events
}

/// The reply as one document.
pub fn whole_of(wire: Wire, say: &Say) -> Value {
    match wire {
        Wire::Chat => {
            let calls: Vec<Value> = say
                .calls
                .iter()
                .map(|(id, name, args)| {
                    json!({
                        "id": id, "type": "function",
                        "function": { "name": name, "arguments": args },
                    })
                })
                .collect();
            let mut message = json!({
                "role": "assistant",
                "content": if say.text.is_empty() { Value::Null } else { say.text.clone().into() },
            });
            if !say.reasoning.is_empty() {
                message["reasoning_content"] = say.reasoning.clone().into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            json!({
                "id": "chatcmpl-1", "object": "chat.completion", "created": CREATED, "model": MODEL,
                "choices": [{ "index": 0, "message": message, "finish_reason": chat_stop(say) }],
                "usage": chat_usage(say),
            })
        }
        Wire::Responses => response(say, "completed"),
        Wire::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
            "content": blocks(say), "stop_reason": messages_stop(say), "stop_sequence": null,
            "usage": messages_usage(say, say.usage.output_tokens),
        }),
    }
}

/// The body of an error.
pub(super) fn error(wire: Wire, kind: &str, message: &str) -> Value {
    match wire {
        Wire::Chat | Wire::Responses => {
            json!({ "error": { "message": message, "type": kind, "param": null, "code": kind } })
        }
        Wire::Messages => {
            json!({
                "type": "error", "error": { "type": kind, "message": message },
                "request_id": "req_1",
            })
        }
    }
}

/// An error in the middle of a stream.
pub(super) fn error_event(wire: Wire, kind: &str, message: &str) -> String {
    match wire {
        Wire::Chat => data(&error(wire, kind, message)),
        Wire::Responses => named(
            "error",
            &json!({
                "type": "error", "code": kind, "message": message, "param": null,
                "sequence_number": 9,
            }),
        ),
        Wire::Messages => named("error", &error(wire, kind, message)),
    }
}

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn named(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// Pieces of a few characters, as tokens are.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(4).map(|chunk| chunk.iter().collect()).collect()
}

fn chat_stop(say: &Say) -> &'static str {
    match say.stop_reason() {
        StopReason::End => "stop",
        StopReason::ToolCalls => "tool_calls",
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
    }
}

fn chat_usage(say: &Say) -> Value {
    let usage = &say.usage;
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_input_tokens, "cache_write_tokens": usage.cache_write_tokens, "audio_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0 },
    })
}

fn chat(say: &Say) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        data(&json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": MODEL,
            "system_fingerprint": "fp_1",
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
            "usage": null,
        }))
    };
    let go_on = |delta| chunk(delta, Value::Null);
    let mut events = vec![go_on(json!({ "role": "assistant", "content": "", "refusal": null }))];
    for piece in tokens(&say.reasoning) {
        events.push(go_on(json!({ "reasoning_content": piece })));
    }
    for piece in tokens(&say.text) {
        events.push(go_on(json!({ "content": piece })));
    }
    for (index, (id, name, _)) in say.calls.iter().enumerate() {
        events.push(go_on(json!({ "tool_calls": [{
            "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" },
        }] })));
    }
    // Parallel calls arrive interleaved, which is allowed.
    let args: Vec<Vec<String>> = say.calls.iter().map(|(_, _, args)| tokens(args)).collect();
    for step in 0..args.iter().map(Vec::len).max().unwrap_or(0) {
        for (index, pieces) in args.iter().enumerate() {
            if let Some(piece) = pieces.get(step) {
                events.push(go_on(json!({
                    "tool_calls": [{ "index": index, "function": { "arguments": piece } }],
                })));
            }
        }
    }
    events.push(chunk(json!({}), chat_stop(say).into()));
    events.push(data(&json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED, "model": MODEL,
        "choices": [], "usage": chat_usage(say),
    })));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn reasoning_item(say: &Say) -> Value {
    json!({
        "id": "rs_1", "type": "reasoning", "status": "completed", "encrypted_content": say.seal,
        "summary": [{ "type": "summary_text", "text": say.reasoning }],
    })
}

fn message_item(say: &Say) -> Value {
    let part = if say.stop == Some(StopReason::Refusal) {
        json!({ "type": "refusal", "refusal": say.text })
    } else {
        json!({ "type": "output_text", "text": say.text, "annotations": [], "logprobs": [] })
    };
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    })
}

fn call_item(n: usize, (id, name, args): &(String, String, String)) -> Value {
    json!({
        "id": format!("fc_{n}"), "type": "function_call", "status": "completed", "call_id": id,
        "name": name, "arguments": args,
    })
}

fn response(say: &Say, status: &str) -> Value {
    let mut output = Vec::new();
    if !say.reasoning.is_empty() {
        output.push(reasoning_item(say));
    }
    if !say.text.is_empty() {
        output.push(message_item(say));
    }
    output.extend(say.calls.iter().enumerate().map(|(n, call)| call_item(n, call)));
    let usage = &say.usage;
    let details = match say.stop {
        Some(StopReason::MaxTokens) => json!({ "reason": "max_output_tokens" }),
        Some(StopReason::End | StopReason::ToolCalls | StopReason::Refusal) | None => Value::Null,
    };
    json!({
        "id": "resp_1", "object": "response", "created_at": CREATED, "model": MODEL,
        "status": if details.is_null() { status } else { "incomplete" },
        "incomplete_details": details, "error": null, "store": false, "output": output,
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": { "cached_tokens": usage.cached_input_tokens, "cache_write_tokens": usage.cache_write_tokens },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    })
}

fn responses(say: &Say) -> Vec<String> {
    let mut events = Vec::new();
    let mut n = 0;
    let mut send = |mut value: Value| {
        value["sequence_number"] = n.into();
        n += 1;
        let name = value["type"].as_str().expect("each event is given a type").to_owned();
        events.push(named(&name, &value));
    };
    let begun = json!({
        "id": "resp_1", "object": "response", "created_at": CREATED, "status": "in_progress",
        "model": MODEL, "output": [], "usage": null, "error": null, "store": false,
    });
    send(json!({ "type": "response.created", "response": begun }));
    send(json!({ "type": "response.in_progress", "response": begun }));
    let mut at = 0;
    if !say.reasoning.is_empty() {
        send(json!({
            "type": "response.output_item.added", "output_index": at,
            "item": { "id": "rs_1", "type": "reasoning", "summary": [] },
        }));
        send(json!({
            "type": "response.reasoning_summary_part.added", "item_id": "rs_1",
            "output_index": at, "summary_index": 0,
            "part": { "type": "summary_text", "text": "" },
        }));
        for piece in tokens(&say.reasoning) {
            send(json!({
                "type": "response.reasoning_summary_text.delta", "item_id": "rs_1",
                "output_index": at, "summary_index": 0, "delta": piece,
            }));
        }
        send(json!({
            "type": "response.reasoning_summary_text.done", "item_id": "rs_1",
            "output_index": at, "summary_index": 0, "text": say.reasoning,
        }));
        send(json!({
            "type": "response.output_item.done", "output_index": at,
            "item": reasoning_item(say),
        }));
        at += 1;
    }
    if !say.text.is_empty() {
        let kind = if say.stop == Some(StopReason::Refusal) { "refusal" } else { "output_text" };
        send(json!({
            "type": "response.output_item.added", "output_index": at,
            "item": { "id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": [] },
        }));
        for piece in tokens(&say.text) {
            send(json!({
                "type": format!("response.{kind}.delta"), "item_id": "msg_1",
                "output_index": at, "content_index": 0, "delta": piece,
            }));
        }
        send(json!({
            "type": format!("response.{kind}.done"), "item_id": "msg_1", "output_index": at,
            "content_index": 0, "text": say.text,
        }));
        send(json!({
            "type": "response.output_item.done", "output_index": at,
            "item": message_item(say),
        }));
        at += 1;
    }
    for (n, call) in say.calls.iter().enumerate() {
        let item = format!("fc_{n}");
        send(json!({
            "type": "response.output_item.added", "output_index": at,
            "item": { "id": item, "type": "function_call", "status": "in_progress", "call_id": call.0, "name": call.1, "arguments": "" },
        }));
        for piece in tokens(&call.2) {
            send(json!({
                "type": "response.function_call_arguments.delta", "item_id": item,
                "output_index": at, "delta": piece,
            }));
        }
        send(json!({
            "type": "response.function_call_arguments.done", "item_id": item,
            "output_index": at, "arguments": call.2,
        }));
        send(json!({
            "type": "response.output_item.done", "output_index": at,
            "item": call_item(n, call),
        }));
        at += 1;
    }
    let response = response(say, "completed");
    let kind = response["status"].as_str().expect("a response has a status");
    send(json!({ "type": format!("response.{kind}"), "response": response }));
    events
}

fn messages_stop(say: &Say) -> &'static str {
    match say.stop_reason() {
        StopReason::End => "end_turn",
        StopReason::ToolCalls => "tool_use",
        StopReason::MaxTokens => "max_tokens",
        StopReason::Refusal => "refusal",
    }
}

fn messages_usage(say: &Say, output: u64) -> Value {
    let usage = &say.usage;
    json!({
        "input_tokens": usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": output,
        "output_tokens_details": { "thinking_tokens": usage.reasoning_tokens },
        "service_tier": "standard",
    })
}

fn input_of(args: &str) -> Value {
    serde_json::from_str(args).unwrap_or_else(|_| json!({}))
}

fn blocks(say: &Say) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !say.reasoning.is_empty() {
        blocks
            .push(json!({ "type": "thinking", "thinking": say.reasoning, "signature": say.seal }));
    }
    if !say.text.is_empty() {
        blocks.push(json!({ "type": "text", "text": say.text }));
    }
    blocks.extend(say.calls.iter().map(|(id, name, args)| {
        json!({ "type": "tool_use", "id": id, "name": name, "input": input_of(args) })
    }));
    blocks
}

fn messages(say: &Say) -> Vec<String> {
    let mut events = Vec::new();
    let mut send = |value: Value| {
        let name = value["type"].as_str().expect("each event is given a type").to_owned();
        events.push(named(&name, &value));
    };
    send(json!({ "type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": messages_usage(say, 1),
    } }));
    let mut at = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        send(json!({ "type": "content_block_start", "index": at, "content_block": start }));
        for delta in deltas {
            send(json!({ "type": "content_block_delta", "index": at, "delta": delta }));
        }
        send(json!({ "type": "content_block_stop", "index": at }));
        at += 1;
    };
    if !say.reasoning.is_empty() {
        let mut deltas: Vec<Value> = tokens(&say.reasoning)
            .into_iter()
            .map(|piece| json!({ "type": "thinking_delta", "thinking": piece }))
            .collect();
        deltas.push(json!({ "type": "signature_delta", "signature": say.seal }));
        block(json!({ "type": "thinking", "thinking": "", "signature": "" }), deltas);
    }
    if !say.text.is_empty() {
        let deltas = tokens(&say.text)
            .into_iter()
            .map(|piece| json!({ "type": "text_delta", "text": piece }));
        block(json!({ "type": "text", "text": "" }), deltas.collect());
    }
    for (id, name, args) in &say.calls {
        let first = [json!({ "type": "input_json_delta", "partial_json": "" })];
        let deltas = tokens(args)
            .into_iter()
            .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        block(
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
            first.into_iter().chain(deltas).collect(),
        );
    }
    send(json!({
        "type": "message_delta",
        "delta": { "stop_reason": messages_stop(say), "stop_sequence": null },
        "usage": messages_usage(say, say.usage.output_tokens),
    }));
    send(json!({ "type": "message_stop" }));
    events
}
