//! Cassettes for relayed calls: plays `scripted:NAME` in the format of the caller.
//!
//! The turn is chosen as for our own sessions, by the number of assistant messages. So a program
//! that continues one conversation runs offline and free of charge, and gets the same answers each
//! time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use overmind_core::model::{Message, ModelReply, ModelRequest, StopReason, ToolChoice};
use overmind_core::relay::{Answer, Call, Endpoint, Hop, Refusal, RefusalKind};
use serde_json::{Value, json};

use super::body::{Body, Shape};
use super::scan::Meter;
use crate::cassette;
use crate::gateway::Gateway;
use crate::sse::Event;
use crate::translate::{self, Back, Stream};

pub(super) async fn answer(
    gateway: &Gateway,
    call: &Call,
    at: usize,
    hop: &Hop,
) -> Result<Answer, Refusal> {
    let name = hop.model.strip_prefix("scripted:").unwrap_or(&hop.model);
    if matches!(call.endpoint, Endpoint::Embeddings | Endpoint::CountTokens) {
        let text = format!("cassette `{name}` has no {}", call.endpoint.path());
        return Err(Refusal::new(RefusalKind::NotFound, text));
    }
    let (chat, mut back) =
        translate::request(call.endpoint, Endpoint::Chat, &call.body, &hop.model)
            .map_err(|why| Refusal::bad_request(why.to_string()))?;
    let chat: Value = serde_json::from_slice(&chat)
        .map_err(|err| Refusal::bad_request(format!("the body is not JSON: {err}")))?;
    back.created = call.at.as_micros() / 1_000_000;
    let limits = gateway.config.relay;
    let request = ModelRequest {
        model: hop.model.clone(),
        system: String::new(),
        messages: Arc::new(messages(&chat)),
        tools: Arc::default(),
        tool_choice: ToolChoice::Auto,
        max_output_tokens: None,
        temperature: None,
        reasoning_effort: None,
        idle_timeout: limits.idle,
        total_timeout: limits.total,
        traceparent: None,
    };
    let reply = cassette::play(&gateway.config, &gateway.tapes, name, &request, &|_| {}).await;
    let reply = reply.map_err(|failure| {
        let kind = match failure.status {
            Some(429) => RefusalKind::RateLimited,
            Some(400) => RefusalKind::BadRequest,
            Some(_) => RefusalKind::Overloaded,
            None => RefusalKind::NotFound,
        };
        Refusal::new(kind, failure.message)
    })?;
    let mut meter = Meter::new(call.endpoint, call.peek.stream);
    let (kind, text) = match call.peek.stream {
        true => ("text/event-stream; charset=utf-8", streamed(call, &reply, back)?),
        false => ("application/json", whole(call, &reply, &back)?),
    };
    meter.feed(&text);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let body = Body {
        response: None,
        ready: VecDeque::from([text.into()]),
        shape: Shape::AsItIs,
        meter,
        idle: Duration::from_secs(1),
        until: Instant::now(),
        provider: hop.provider.clone(),
        _place: None,
    };
    Ok(Answer { hop: at, status: 200, headers, body: Box::new(body) })
}

/// The part of a conversation that a cassette uses.
fn messages(chat: &Value) -> Vec<Message> {
    let text = |content: &Value| match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    };
    let all = chat["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let known = all.iter().filter_map(|message| {
        let content = text(&message["content"]);
        Some(match message["role"].as_str()? {
            "user" => Message::User { text: content },
            "assistant" => {
                Message::Assistant { text: content, calls: Vec::new(), provider_state: None }
            }
            "tool" => Message::Tool {
                call_id: message["tool_call_id"].as_str().unwrap_or_default().to_owned(),
                name: String::new(),
                content,
                is_error: false,
            },
            _ => return None,
        })
    });
    known.collect()
}

fn calls(reply: &ModelReply) -> Vec<Value> {
    let calls = reply.calls.iter().map(|call| {
        let args = match &call.args {
            Value::String(raw) => raw.clone(),
            args => args.to_string(),
        };
        json!({"id": call.id, "type": "function",
               "function": {"name": call.name, "arguments": args}})
    });
    calls.collect()
}

fn finish(reply: &ModelReply) -> &'static str {
    match reply.stop {
        StopReason::End => "stop",
        StopReason::ToolCalls => "tool_calls",
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
    }
}

fn usage(reply: &ModelReply) -> Value {
    let usage = reply.usage;
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}

fn whole(call: &Call, reply: &ModelReply, back: &Back) -> Result<Vec<u8>, Refusal> {
    let mut message = json!({"role": "assistant", "content": reply.text});
    if !reply.calls.is_empty() {
        message["tool_calls"] = calls(reply).into();
    }
    let chat = json!({
        "id": "chatcmpl-scripted", "object": "chat.completion", "created": back.created,
        "model": call.peek.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish(reply)}],
        "usage": usage(reply),
    });
    if call.endpoint == Endpoint::Chat {
        return Ok(chat.to_string().into_bytes());
    }
    translate::reply(call.endpoint, Endpoint::Chat, &chat, back).map_err(internal)
}

fn streamed(call: &Call, reply: &ModelReply, back: Back) -> Result<Vec<u8>, Refusal> {
    let chunk = |choices: Value, usage: Value| {
        json!({
            "id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": back.created,
            "model": call.peek.model, "choices": choices, "usage": usage,
        })
        .to_string()
    };
    let delta = |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    let mut chunks =
        vec![chunk(delta(json!({"role": "assistant", "content": ""}), Value::Null), Value::Null)];
    // The arguments come in several pieces, as those of real providers do.
    let letters: Vec<char> = reply.text.chars().collect();
    for piece in letters.chunks(24) {
        let piece: String = piece.iter().collect();
        chunks.push(chunk(delta(json!({"content": piece}), Value::Null), Value::Null));
    }
    for (index, call) in calls(reply).into_iter().enumerate() {
        let mut call = call;
        call["index"] = index.into();
        chunks.push(chunk(delta(json!({"tool_calls": [call]}), Value::Null), Value::Null));
    }
    chunks.push(chunk(delta(json!({}), finish(reply).into()), Value::Null));
    let asked = call.endpoint != Endpoint::Chat || call.peek.include_usage;
    if asked {
        chunks.push(chunk(json!([]), usage(reply)));
    }
    chunks.push("[DONE]".to_owned());
    let mut out = Vec::new();
    if call.endpoint == Endpoint::Chat {
        for data in chunks {
            out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
        }
        return Ok(out);
    }
    let mut stream = Stream::new(call.endpoint, Endpoint::Chat, &call.peek.model, true, back);
    for data in chunks {
        stream.event(&Event { name: String::new(), data }, &mut out).map_err(internal)?;
    }
    stream.end(&mut out);
    Ok(out)
}

fn internal(why: String) -> Refusal {
    Refusal::new(RefusalKind::Internal, why)
}
