use overmind_testkit::soak;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sse::{Event, parse_all};

fn put(from: Endpoint, to: Endpoint, body: &Value) -> Result<Value, Untranslatable> {
    let (bytes, _) = request(from, to, body.to_string().as_bytes(), "m")?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

#[track_caller]
fn refused(from: Endpoint, to: Endpoint, body: &Value, field: &str) {
    let err = put(from, to, body).unwrap_err();
    assert_eq!(err.field, field, "{err}");
}

#[test]
fn a_full_chat_request_becomes_messages() {
    let chat = json!({
        "model": "x", "max_tokens": 50, "temperature": 0.5, "stop": "END", "user": "u",
        "parallel_tool_calls": false, "tool_choice": "required", "n": 1, "seed": null,
        "reasoning_effort": "high",
        "tools": [{"type": "function", "function": {
            "name": "get", "description": "d", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://h/i.png"}}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"a\":1}"}},
                {"id": "c2", "type": "function", "function": {"name": "get", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "user", "content": "go on"},
        ],
    });
    let want = json!({
        "model": "m", "max_tokens": 50, "temperature": 0.5, "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "high"},
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "tools": [{"name": "get", "description": "d", "input_schema": {"type": "object"}}],
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "get", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "get", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
                {"type": "text", "text": "go on"}]},
        ],
    });
    assert_eq!(put(Endpoint::Chat, Endpoint::Messages, &chat).unwrap(), want);
}

#[test]
fn a_full_messages_request_becomes_a_chat() {
    let messages = json!({
        "model": "x", "max_tokens": 50, "stream": true, "stop_sequences": ["END"],
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1000}, "metadata": {"user_id": "u"},
        "tool_choice": {"type": "tool", "name": "get", "disable_parallel_tool_use": true},
        "tools": [{"name": "get", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "well"},
                {"type": "tool_use", "id": "c1", "name": "get", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "c1", "is_error": true, "content": [
                    {"type": "text", "text": "broken"},
                    {"type": "image", "source": {"type": "url", "url": "https://h/i"}}]}]},
        ],
    });
    let want = json!({
        "model": "m", "max_tokens": 50, "stream": true, "stream_options": {"include_usage": true},
        "stop": ["END"], "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "function": {"name": "get"}},
        "tools": [{"type": "function", "function": {
            "name": "get", "description": "d", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            {"role": "assistant", "content": "well", "tool_calls": [
                {"id": "c1", "type": "function",
                 "function": {"name": "get", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "Error: broken"},
            {"role": "user", "content": [
                {"type": "text", "text": "go on"},
                {"type": "image_url", "image_url": {"url": "https://h/i"}}]},
        ],
    });
    assert_eq!(put(Endpoint::Messages, Endpoint::Chat, &messages).unwrap(), want);
}

#[test]
fn ids_and_blank_texts_are_adapted_to_the_other_provider() {
    let long = "x".repeat(60);
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let chat = json!({"model": "x", "messages": [
        {"role": "system", "content": " "},
        {"role": "user", "content": [{"type": "text", "text": "\n"}]},
        {"role": "assistant", "content": " ", "tool_calls": [call("call:1"), call("call_1"), call("call.1")]},
        {"role": "tool", "tool_call_id": "call:1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": ""}]},
        {"role": "tool", "tool_call_id": "call.1", "content": "three"},
    ]});
    let made = put(Endpoint::Chat, Endpoint::Messages, &chat).unwrap();
    assert_eq!(made.get("system"), None);
    assert_eq!(made["messages"][0]["content"], json!([{"type": "text", "text": "(empty)"}]));
    let ids = |message: &Value, key: &str| -> Vec<Value> {
        message["content"].as_array().unwrap().iter().map(|block| block[key].clone()).collect()
    };
    let want = ["call_1_2", "call_1", "call_1_3"];
    assert_eq!(ids(&made["messages"][1], "id"), want);
    assert_eq!(ids(&made["messages"][2], "tool_use_id"), want);
    // OpenAI takes 40 characters; two that begin alike stay two.
    let (one, other) = (format!("{long}1"), format!("{long}2"));
    let block = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "r"});
    let messages = json!({"model": "x", "max_tokens": 5, "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [block(&one), block(&other)]},
        {"role": "user", "content": [result(&other), result(&one)]},
    ]});
    let made = put(Endpoint::Messages, Endpoint::Chat, &messages).unwrap();
    let calls = &made["messages"][1]["tool_calls"];
    let (first, second) = (calls[0]["id"].as_str().unwrap(), calls[1]["id"].as_str().unwrap());
    assert!(first.len() <= 40 && second.len() <= 40 && first != second, "{calls}");
    assert_eq!(made["messages"][2]["tool_call_id"], second);
    assert_eq!(made["messages"][3]["tool_call_id"], first);
    let items = json!({"model": "x", "input": [
        {"type": "function_call", "call_id": "c|fc_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c|fc_1", "output": "r"},
    ]});
    let made = put(Endpoint::Responses, Endpoint::Messages, &items).unwrap();
    assert_eq!(made["messages"][0]["content"][0]["id"], "c_fc_1");
    assert_eq!(made["messages"][1]["content"][0]["tool_use_id"], "c_fc_1");
}

#[test]
fn responses_become_a_chat_and_messages() {
    let responses = json!({
        "model": "x", "instructions": "be brief", "stream": false, "store": false,
        "max_output_tokens": 9, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"},
        "tools": [{"type": "function", "name": "sh", "parameters": {"type": "object"}, "strict": false}],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "encrypted_content": "x", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
            {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
        ],
    });
    let chat = put(Endpoint::Responses, Endpoint::Chat, &responses).unwrap();
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "be brief\n\nrules"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ok", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ])
    );
    assert_eq!(chat["tools"][0]["function"]["name"], "sh");
    assert_eq!(
        (&chat["max_completion_tokens"], &chat["reasoning_effort"]),
        (&json!(9), &json!("low"))
    );
    let messages = put(Endpoint::Responses, Endpoint::Messages, &responses).unwrap();
    assert_eq!(messages["messages"].as_array().unwrap().len(), 3);
    assert_eq!(messages["max_tokens"], 9);
}

#[test]
fn untranslatable_fields_are_refused_by_name() {
    use Endpoint::{Chat, Messages, Responses};
    let chat = |key: &str, value: Value| {
        let mut body = json!({"model": "x", "messages": [{"role": "user", "content": "a"}]});
        body[key] = value;
        body
    };
    for (key, value) in [
        ("n", json!(2)),
        ("seed", json!(7)),
        ("logit_bias", json!({"1": 2})),
        ("presence_penalty", json!(0.5)),
        ("temperature", json!(1.5)),
        ("functions", json!([{"name": "f"}])),
        ("never_heard_of", json!("x")),
    ] {
        refused(Chat, Messages, &chat(key, value), key);
    }
    let audio = json!([{"role": "user", "content": [{"type": "input_audio"}]}]);
    refused(Chat, Messages, &chat("messages", audio), "messages[0].content[0].type");
    refused(
        Chat,
        Messages,
        &chat("response_format", json!({"type": "json_object"})),
        "response_format.type",
    );
    let nothing = [("n", json!(1)), ("logprobs", json!(false)), ("functions", json!([]))];
    for (key, value) in nothing {
        put(Chat, Messages, &chat(key, value)).unwrap();
    }
    refused(Messages, Chat, &chat("top_k", json!(5)), "top_k");
    refused(
        Messages,
        Chat,
        &chat("tools", json!([{"type": "web_search_20250305"}])),
        "tools[0].type",
    );
    refused(Messages, Chat, &chat("mcp_servers", json!([{"url": "x"}])), "mcp_servers");
    let input = |key: &str, value: Value| {
        let mut body = json!({"model": "x", "input": "a"});
        body[key] = value;
        body
    };
    refused(Responses, Chat, &input("previous_response_id", json!("r")), "previous_response_id");
    refused(Responses, Chat, &input("background", json!(true)), "background");
    refused(Responses, Chat, &input("tools", json!([{"type": "local_shell"}])), "tools[0].type");
    refused(Responses, Chat, &input("tool_choice", json!({"type": "web_search"})), "tool_choice");
    refused(Responses, Chat, &input("input", json!([{"type": "item_reference"}])), "input[0].type");
}

#[test]
fn answers_are_translated_with_calls_reasons_and_usage() {
    let messages = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "c",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "t1", "name": "get", "input": {"a": 1}}],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0,
                  "output_tokens": 7},
    });
    let of = |asked, answered, body: &Value| -> Value {
        serde_json::from_slice(&reply(asked, answered, body, &Back::default()).unwrap()).unwrap()
    };
    let chat = of(Endpoint::Chat, Endpoint::Messages, &messages);
    assert_eq!(chat["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(chat["choices"][0]["message"]["content"], "hi");
    assert_eq!(chat["usage"]["prompt_tokens"], 8);
    assert_eq!(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
    let back = of(Endpoint::Messages, Endpoint::Chat, &chat);
    assert_eq!(
        back["content"].as_array().unwrap()[..],
        messages["content"].as_array().unwrap()[1..]
    );
    assert_eq!(
        (&back["usage"], &back["stop_reason"]),
        (&messages["usage"], &messages["stop_reason"])
    );
    let response = of(Endpoint::Responses, Endpoint::Messages, &messages);
    assert_eq!(response["output"][0]["content"][0]["text"], "hi");
    assert_eq!(response["output"][1]["call_id"], "t1");
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 5);
    assert!(reply(Endpoint::Chat, Endpoint::Messages, &json!({}), &Back::default()).is_err());
}

#[test]
fn errors_keep_their_text_and_change_their_format() {
    let body = br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let openai: Value = serde_json::from_slice(&error(Dialect::OpenAi, 529, body)).unwrap();
    assert_eq!(openai["error"]["message"], "Overloaded");
    let body = br#"{"error":{"message":"no such model","type":"invalid_request_error"}}"#;
    let anthropic: Value = serde_json::from_slice(&error(Dialect::Anthropic, 404, body)).unwrap();
    assert_eq!(
        anthropic,
        json!({"type": "error", "error": {"type": "not_found_error", "message": "no such model"}})
    );
    let html: Value = serde_json::from_slice(&error(Dialect::Anthropic, 502, b"<html>")).unwrap();
    assert_eq!(html["error"]["message"], "<html>");
}

/// A stream of `answered` events, in the order of `asked`.
fn stream(asked: Endpoint, answered: Endpoint, events: &[Value]) -> Vec<Event> {
    stream_back(asked, answered, events, Back::default())
}

fn stream_back(asked: Endpoint, answered: Endpoint, events: &[Value], back: Back) -> Vec<Event> {
    let mut stream = Stream::new(asked, answered, "m", true, back);
    let mut out = Vec::new();
    for event in events {
        let data = if event == "[DONE]" { "[DONE]".to_owned() } else { event.to_string() };
        stream.event(&Event { name: String::new(), data }, &mut out).unwrap();
    }
    assert!(stream.end(&mut out), "{}", String::from_utf8_lossy(&out));
    parse_all(&out, usize::MAX).unwrap()
}

fn values(events: &[Event]) -> Vec<Value> {
    events.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect()
}

fn of_messages() -> Vec<Value> {
    vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "model": "c", "usage": {"input_tokens": 3, "cache_read_input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hel"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t1", "name": "get", "input": {}}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"a\":"}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}}),
        json!({"type": "message_stop"}),
    ]
}

#[test]
fn a_messages_stream_becomes_a_chat_stream_and_back() {
    let chat = stream(Endpoint::Chat, Endpoint::Messages, &of_messages());
    assert_eq!(chat.last().unwrap().data, "[DONE]");
    let chunks = values(&chat);
    let said: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "hello");
    let last = chunks.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["prompt_tokens"]), (&json!([]), &json!(8)));
    let finish = &chunks[chunks.len() - 2]["choices"][0]["finish_reason"];
    assert_eq!(finish, "tool_calls");
    let mut chunks = chunks;
    chunks.push("[DONE]".into());
    let back = values(&stream(Endpoint::Messages, Endpoint::Chat, &chunks));
    let kinds: Vec<&str> = back.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(back[5]["content_block"]["name"], "get");
    assert_eq!(back[9]["delta"]["stop_reason"], "tool_use");
    assert_eq!(back[9]["usage"]["cache_read_input_tokens"], 5);
    assert_eq!(back[9]["usage"]["output_tokens"], 7);
}

#[test]
fn a_stream_becomes_a_responses_stream_whose_last_event_is_complete() {
    for (answered, events) in [(Endpoint::Messages, of_messages())] {
        let events = stream(Endpoint::Responses, answered, &events);
        let all = values(&events);
        for (n, (event, value)) in events.iter().zip(&all).enumerate() {
            assert_eq!(event.name, value["type"].as_str().unwrap());
            assert_eq!(value["sequence_number"], n);
        }
        let whole = &all.last().unwrap()["response"];
        assert_eq!(all.last().unwrap()["type"], "response.completed");
        assert_eq!(whole["output"][0]["content"][0]["text"], "hello");
        assert_eq!(whole["output"][1]["arguments"], "{\"a\":1}");
        assert_eq!(whole["usage"]["input_tokens"], 8);
    }
}

#[test]
fn a_stream_without_its_last_event_is_incomplete() {
    let mut cut = of_messages();
    cut.truncate(5);
    let mut stream = Stream::new(Endpoint::Chat, Endpoint::Messages, "m", false, Back::default());
    let mut out = Vec::new();
    for event in cut {
        stream.event(&Event { name: String::new(), data: event.to_string() }, &mut out).unwrap();
    }
    assert!(!stream.end(&mut out));
    let mut stream = Stream::new(Endpoint::Messages, Endpoint::Chat, "m", false, Back::default());
    let data = "{\"choices\":[{\"delta\":{\"content\":\"x\"}".to_owned();
    assert!(stream.event(&Event { name: String::new(), data }, &mut Vec::new()).is_err());
}

#[test]
fn errors_in_a_stream_are_translated() {
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}});
    for asked in [Endpoint::Chat, Endpoint::Responses] {
        let events = stream(asked, Endpoint::Messages, &[of_messages()[0].clone(), error.clone()]);
        assert!(events.last().unwrap().data.contains("busy"));
    }
    let error = json!({"error": {"type": "server_error", "message": "busy"}});
    let events = values(&stream(Endpoint::Messages, Endpoint::Chat, &[error]));
    assert_eq!(events[0]["type"], "error");
    assert_eq!(events[0]["error"]["message"], "busy");
}

/// A request of Codex: tools of a namespace, one that takes a text, and hosted ones.
fn of_codex() -> Value {
    json!({
        "model": "x", "tool_choice": "auto", "parallel_tool_calls": true,
        "tools": [
            {"type": "function", "name": "sh", "parameters": {"type": "object"}, "strict": false},
            {"type": "namespace", "name": "agents", "description": "d", "tools": [
                {"type": "function", "name": "close", "description": "c", "defer_loading": true,
                 "parameters": {"type": "object"}}]},
            {"type": "custom", "name": "patch", "description": "Edits.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
            {"type": "web_search", "external_web_access": false},
            {"type": "mcp", "server_label": "s"},
        ],
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", "namespace": "agents", "name": "close",
             "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "a \"b\""},
            {"type": "web_search_call", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "closed"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "patched"},
        ],
    })
}

#[test]
fn namespace_and_text_tools_become_functions_and_hosted_tools_are_dropped() {
    let body = of_codex().to_string();
    for to in [Endpoint::Chat, Endpoint::Messages] {
        let (bytes, back) = request(Endpoint::Responses, to, body.as_bytes(), "m").unwrap();
        let made: Value = serde_json::from_slice(&bytes).unwrap();
        let name = |n: usize| match to {
            Endpoint::Chat => made["tools"][n]["function"]["name"].clone(),
            _ => made["tools"][n]["name"].clone(),
        };
        assert_eq!([name(0), name(1), name(2)], ["sh", "agents__close", "patch"], "{made}");
        assert_eq!(made["tools"].as_array().unwrap().len(), 3);
        assert_eq!(back.names.left_out(), ["web_search", "mcp"]);
    }
    let chat = put(Endpoint::Responses, Endpoint::Chat, &of_codex()).unwrap();
    let function = &chat["tools"][2]["function"];
    assert!(function["description"].as_str().unwrap().contains("start: X"), "{function}");
    assert_eq!(function["parameters"]["required"], json!(["input"]));
    assert_eq!(chat["tools"][1]["function"].get("defer_loading"), None);
    let calls = &chat["messages"][1]["tool_calls"];
    assert_eq!(calls[0]["function"]["name"], "agents__close");
    assert_eq!(calls[1]["function"]["arguments"], r#"{"input":"a \"b\""}"#);
    assert_eq!(chat["messages"][3]["content"], "patched");
    // If no tool is left, no tool choice is sent.
    let mut hosted = of_codex();
    hosted["tools"] = json!([{"type": "web_search"}]);
    let chat = put(Endpoint::Responses, Endpoint::Chat, &hosted).unwrap();
    assert_eq!((chat.get("tools"), chat.get("tool_choice")), (None, None));
    let mut chosen = of_codex();
    chosen["tool_choice"] = json!({"type": "function", "namespace": "agents", "name": "close"});
    let chat = put(Endpoint::Responses, Endpoint::Chat, &chosen).unwrap();
    assert_eq!(chat["tool_choice"]["function"]["name"], "agents__close");
}

#[test]
fn tool_calls_have_the_callers_names() {
    let body = of_codex().to_string();
    let back = || {
        let made = request(Endpoint::Responses, Endpoint::Chat, body.as_bytes(), "m").unwrap();
        Back { created: 1_700_000_000, ..made.1 }
    };
    let call = |id: &str, name: &str, args: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": args}});
    let calls = [
        call("c1", "agents__close", "{}"),
        call("c2", "patch", "{\"input\":\"x\\ny\"}"),
        call("c3", "sh", "{}"),
    ];
    let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
    let chat = json!({"id": "i", "model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}]});
    let whole = reply(Endpoint::Responses, Endpoint::Chat, &chat, &back()).unwrap();
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole["created_at"], 1_700_000_000);
    let mut chunks: Vec<Value> = (0..).zip(&calls).map(|(n, call)| {
        let mut call = call.clone();
        call["index"] = json!(n);
        json!({"id": "i", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}]})
    }).collect();
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
    chunks.push("[DONE]".into());
    let events = values(&stream_back(Endpoint::Responses, Endpoint::Chat, &chunks, back()));
    let streamed = &events.last().unwrap()["response"];
    assert_eq!(
        (&streamed["output"], &streamed["created_at"]),
        (&whole["output"], &whole["created_at"])
    );
    let output = whole["output"].as_array().unwrap();
    assert_eq!((&output[0]["name"], &output[0]["namespace"]), (&json!("close"), &json!("agents")));
    assert_eq!(output[1]["type"], "custom_tool_call");
    assert_eq!((&output[1]["name"], &output[1]["input"]), (&json!("patch"), &json!("x\ny")));
    assert_eq!((&output[2]["name"], output[2].get("namespace")), (&json!("sh"), None));
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!(of("response.custom_tool_call_input.done"), 1);
    assert_eq!(of("response.function_call_arguments.done"), 2);
}

/// A stream of chat that brings these pieces of calls and then this reason to stop.
fn of_calls(pieces: &[Value], finish: &str) -> Vec<Value> {
    let chunk = |delta: Value, finish: Value| json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let mut all: Vec<Value> =
        pieces.iter().map(|piece| chunk(json!({"tool_calls": [piece]}), Value::Null)).collect();
    all.extend([chunk(json!({}), finish.into()), json!("[DONE]")]);
    all
}

#[test]
fn translated_calls_are_read_like_direct_calls_in_any_dialect() {
    let call = |id: &str, args: Value| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": args}});
    let at_0 = |mut call: Value| {
        call["index"] = 0.into();
        call
    };
    let (one, two) = (call("a", json!("{\"x\":1}")), call("b", json!("{\"x\":2}")));
    for (pieces, finish, want) in [
        (vec![one.clone(), two.clone()], "tool_calls", vec![("a", 1), ("b", 2)]),
        (vec![at_0(one.clone()), at_0(two)], "tool_calls", vec![("a", 1), ("b", 2)]),
        (vec![at_0(call("a", json!({"x": 1})))], "tool_calls", vec![("a", 1)]),
        (vec![at_0(one)], "stop", vec![("a", 1)]),
    ] {
        let chunks = of_calls(&pieces, finish);
        let events = values(&stream(Endpoint::Messages, Endpoint::Chat, &chunks));
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in &events {
            let (block, delta) = (&event["content_block"], &event["delta"]);
            if block["type"] == "tool_use" {
                calls.push((block["id"].as_str().unwrap().to_owned(), String::new()));
            }
            if let Some(more) = delta["partial_json"].as_str() {
                calls.last_mut().unwrap().1.push_str(more);
            }
        }
        let want: Vec<(String, String)> =
            want.into_iter().map(|(id, x)| (id.to_owned(), json!({"x": x}).to_string())).collect();
        assert_eq!(calls, want, "{pieces:?}");
        assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
        // The same answer in one piece, and for a caller of Responses.
        let message = json!({"role": "assistant", "content": null, "tool_calls": pieces});
        let chat = json!({"id": "i", "choices": [{"message": message, "finish_reason": finish}]});
        let whole = reply(Endpoint::Messages, Endpoint::Chat, &chat, &Back::default()).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        let inputs = whole["content"].as_array().unwrap();
        let inputs = inputs.iter().map(|block| block["input"].to_string());
        assert!(inputs.eq(want.iter().map(|(_, args)| args.clone())), "{whole}");
        assert_eq!(whole["stop_reason"], "tool_use");
        let events = values(&stream(Endpoint::Responses, Endpoint::Chat, &chunks));
        let output = events.last().unwrap()["response"]["output"].as_array().unwrap().clone();
        let args = output.iter().map(|item| item["arguments"].as_str().unwrap().to_owned());
        assert!(args.eq(want.iter().map(|(_, args)| args.clone())), "{output:?}");
    }
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    let mut events = of_messages();
    events.retain(|event| event["delta"].get("partial_json").is_none());
    let chat = values(&stream(Endpoint::Chat, Endpoint::Messages, &events));
    let function = |chunk: &Value| {
        chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].clone()
    };
    let args: String =
        chat.iter().filter_map(|chunk| function(chunk).as_str().map(str::to_owned)).collect();
    assert_eq!(args, "{}");
    let all = values(&stream(Endpoint::Responses, Endpoint::Messages, &events));
    let of = |kind: &str, key: &str| {
        all.iter().filter(|event| event["type"] == kind).map(|event| event[key].clone()).collect()
    };
    let done: Vec<Value> = of("response.function_call_arguments.done", "arguments");
    let deltas: Vec<Value> = of("response.function_call_arguments.delta", "delta");
    assert_eq!((done, deltas), (vec![json!("{}")], vec![json!("{}")]));
    assert_eq!(all.last().unwrap()["response"]["output"][1]["arguments"], "{}");
    // Chat servers write none at all.
    let call = json!({"id": "a", "function": {"name": "f", "arguments": ""}});
    let events = values(&stream(
        Endpoint::Responses,
        Endpoint::Chat,
        &of_calls(std::slice::from_ref(&call), "stop"),
    ));
    assert_eq!(events.last().unwrap()["response"]["output"][0]["arguments"], "{}");
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let whole = json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]});
    let whole = reply(Endpoint::Responses, Endpoint::Chat, &whole, &Back::default()).unwrap();
    assert!(String::from_utf8(whole).unwrap().contains(r#""arguments":"{}""#));
}

#[test]
fn input_at_the_start_of_a_call_is_forwarded() {
    let mut events = of_messages();
    events.retain(|event| event["delta"].get("partial_json").is_none());
    events[6]["content_block"]["input"] = json!({"a": 1});
    let all = values(&stream(Endpoint::Responses, Endpoint::Messages, &events));
    assert_eq!(all.last().unwrap()["response"]["output"][1]["arguments"], r#"{"a":1}"#);
}

#[test]
fn missing_and_partial_answers_are_errors() {
    let role = r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
    for (events, why) in [
        (&["[DONE]"][..], "no answer"),
        (&[role, "[DONE]"], "too early"),
        (&[role, "{\"choices\":["], "not JSON"),
        (&[role], "too early"),
    ] {
        for asked in [Endpoint::Messages, Endpoint::Responses] {
            let mut stream = Stream::new(asked, Endpoint::Chat, "m", true, Back::default());
            let mut out = Vec::new();
            for data in events {
                let _ =
                    stream.event(&Event { name: String::new(), data: (*data).into() }, &mut out);
            }
            assert!(!stream.end(&mut out));
            assert!(stream.broken().unwrap().contains(why), "{:?}", stream.broken());
            let last = parse_all(&out, usize::MAX).unwrap().pop().unwrap();
            let kind = if asked == Endpoint::Messages { "error" } else { "response.failed" };
            assert_eq!(last.name, kind, "{last:?}");
        }
    }
    for chat in [json!({"choices": []}), json!({"error": {"message": "busy"}}), json!({})] {
        assert!(reply(Endpoint::Messages, Endpoint::Chat, &chat, &Back::default()).is_err());
    }
}

#[test]
fn an_endless_stream_is_bounded() {
    let text = "x".repeat(1 << 20);
    let data =
        json!({"choices": [{"delta": {"content": text}, "finish_reason": null}]}).to_string();
    let mut stream = Stream::new(Endpoint::Messages, Endpoint::Chat, "m", true, Back::default());
    let event = Event { name: String::new(), data };
    let taken = (0..100).take_while(|_| stream.event(&event, &mut Vec::new()).is_ok()).count();
    assert!((60..=64).contains(&taken), "{taken} MiB");
    assert!(!stream.end(&mut Vec::new()));
}

#[test]
fn a_split_character_is_joined_in_translation() {
    let chunk = |text: &str| {
        format!(
            r#"{{"id":"c","choices":[{{"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
        )
    };
    let stop = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned();
    let datas = [chunk(r"face \ud83d"), chunk(r"\ude00 end"), stop, "[DONE]".to_owned()];
    let mut stream = Stream::new(Endpoint::Messages, Endpoint::Chat, "m", true, Back::default());
    let mut out = Vec::new();
    for data in datas {
        stream.event(&Event { name: String::new(), data }, &mut out).unwrap();
    }
    assert!(stream.end(&mut out));
    let events = values(&parse_all(&out, usize::MAX).unwrap());
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "face 😀 end");
    assert_eq!(events[0]["message"]["id"], "c", "it does not begin before anything is known");
}

#[test]
fn reported_stop_sequences_are_forwarded() {
    let body = json!({"model": "x", "max_tokens": 5, "stop_sequences": ["END"],
        "messages": [{"role": "user", "content": "hi"}]});
    let (_, back) =
        request(Endpoint::Messages, Endpoint::Chat, body.to_string().as_bytes(), "m").unwrap();
    for (said, reason, sequence) in [
        (json!("END"), "stop_sequence", json!("END")),
        (json!("other"), "end_turn", Value::Null),
        (json!(null), "end_turn", Value::Null),
    ] {
        let choice = |key: &str| {
            json!({"index": 0, key: {"role": "assistant", "content": "a"}, "finish_reason": "stop",
                   "stop_reason": said})
        };
        let chat = json!({"id": "i", "model": "m", "choices": [choice("message")]});
        let whole = reply(Endpoint::Messages, Endpoint::Chat, &chat, &back).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &sequence));
        let chunks = [json!({"id": "i", "choices": [choice("delta")]}), json!("[DONE]")];
        let events =
            values(&stream_back(Endpoint::Messages, Endpoint::Chat, &chunks, back.clone()));
        let delta = &events[events.len() - 2]["delta"];
        assert_eq!((&delta["stop_reason"], &delta["stop_sequence"]), (&json!(reason), &sequence));
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    const WORDS: &str = "(model|messages|role|user|assistant|tool|system|content|type|text|image|source|url|\
        tool_use|tool_result|tool_calls|function|arguments|input|choices|delta|usage|index|message|\
        content_block|content_block_start|content_block_delta|message_start|message_delta|error|finish_reason|[a-z]{0,3})";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        WORDS.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((WORDS, inner), 0..6)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: soak::count(100, 2500), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_json_panics(value in json_value(), more in json_value()) {
        for from in Endpoint::ALL {
            for to in Endpoint::ALL {
                let _ = request(from, to, value.to_string().as_bytes(), "m");
                let _ = reply(from, to, &value, &Back::default());
                let mut stream = Stream::new(from, to, "m", true, Back::default());
                let mut out = Vec::new();
                for value in [&value, &more, &value] {
                    let event = Event { name: String::new(), data: value.to_string() };
                    let _ = stream.event(&event, &mut out);
                }
                stream.end(&mut out);
            }
        }
        let _ = error(Dialect::OpenAi, 500, value.to_string().as_bytes());
        let _ = error(Dialect::Anthropic, 500, value.to_string().as_bytes());
    }

    #[test]
    fn texts_are_unchanged_after_a_round_trip(system in ".{1,20}", asks in "\\PC{1,30}", says in "\\PC{1,30}") {
        // Blank texts have no counterpart.
        prop_assume!([&system, &asks, &says].iter().all(|text| !text.trim().is_empty()));
        let chat = json!({
            "model": "m", "max_tokens": 5,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": asks},
                {"role": "assistant", "content": says},
                {"role": "user", "content": asks},
            ],
        });
        let there = put(Endpoint::Chat, Endpoint::Messages, &chat).unwrap();
        prop_assert_eq!(put(Endpoint::Messages, Endpoint::Chat, &there).unwrap(), chat);
        let answer = json!({
            "id": "i", "model": "m", "usage": {},
            "choices": [{"index": 0, "message": {"role": "assistant", "content": says}, "finish_reason": "stop"}],
        });
        let there: Value = serde_json::from_slice(&reply(Endpoint::Messages, Endpoint::Chat, &answer, &Back::default()).unwrap()).unwrap();
        let back: Value = serde_json::from_slice(&reply(Endpoint::Chat, Endpoint::Messages, &there, &Back::default()).unwrap()).unwrap();
        prop_assert_eq!(&back["choices"][0]["message"]["content"], &answer["choices"][0]["message"]["content"]);
    }
}
