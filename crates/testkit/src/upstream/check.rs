//! Requests that the providers refuse, and requests that none of them should ever get.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Received, Wire};

/// Notes everything that is wrong with a request.
pub(super) fn check(received: &mut Received) {
    let mut wrong = Vec::new();
    let header = |name: &str| received.headers.get(name).map_or("", String::as_str);
    if !header("content-type").starts_with("application/json") {
        wrong.push(format!("content-type is `{}`", header("content-type")));
    }
    match received.wire {
        None => wrong.push(format!("no such endpoint: {}", received.path)),
        Some(Wire::Chat | Wire::Responses) => {
            if received.headers.contains_key("x-api-key") {
                wrong.push("x-api-key was sent to an OpenAI endpoint".to_owned());
            }
            let auth = header("authorization");
            if !auth.is_empty() && !auth.starts_with("Bearer ") {
                wrong.push("authorization is not a bearer token".to_owned());
            }
        }
        Some(Wire::Messages) => {
            if received.headers.contains_key("authorization") {
                wrong.push("authorization was sent to an Anthropic endpoint".to_owned());
            }
            if !matches!(header("anthropic-version"), "2023-06-01" | "2026-10-21") {
                wrong.push(format!("anthropic-version is `{}`", header("anthropic-version")));
            }
        }
    }
    let body = &received.body;
    if !body.is_object() {
        wrong.push("the body is not a JSON object".to_owned());
    } else {
        if text(body, "/model").is_empty() {
            wrong.push("`model` is missing".to_owned());
        }
        match received.wire {
            Some(Wire::Chat) => chat(body, &mut wrong),
            Some(Wire::Responses) => responses(body, &mut wrong),
            Some(Wire::Messages) => messages(body, &mut wrong),
            None => {}
        }
    }
    received.violations.append(&mut wrong);
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

fn only_keys(value: &Value, keys: &[&str], wrong: &mut Vec<String>) {
    for key in value.as_object().into_iter().flat_map(|fields| fields.keys()) {
        if !keys.contains(&key.as_str()) {
            wrong.push(format!("unknown parameter `{key}`"));
        }
    }
}

fn tools(names: Vec<&str>, schemas: Vec<Option<&Value>>, wrong: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !is_name(name) {
            wrong.push(format!("tool name `{name}` is not allowed"));
        }
        if !seen.insert(name) {
            wrong.push(format!("tool `{name}` is given twice"));
        }
    }
    if schemas.iter().any(|schema| schema.is_none_or(|schema| schema["type"] != "object")) {
        wrong.push("a tool's schema is not of type object".to_owned());
    }
}

fn chat(body: &Value, wrong: &mut Vec<String>) {
    const KEYS: [&str; 14] = [
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "reasoning_effort",
        "thinking",
        "top_p",
        "user",
        "seed",
    ];
    only_keys(body, &KEYS, wrong);
    if body.get("max_tokens").is_some() && body.get("max_completion_tokens").is_some() {
        wrong.push("both `max_tokens` and `max_completion_tokens`".to_owned());
    }
    let defs = list(body, "/tools");
    if defs.iter().any(|tool| tool["type"] != "function") {
        wrong.push("a tool is not of type function".to_owned());
    }
    tools(
        defs.iter().map(|tool| text(tool, "/function/name")).collect(),
        defs.iter().map(|tool| tool.pointer("/function/parameters")).collect(),
        wrong,
    );
    if body.get("tool_choice").is_some() && defs.is_empty() {
        wrong.push("`tool_choice` without `tools`".to_owned());
    }
    let messages = list(body, "/messages");
    if messages.is_empty() {
        wrong.push("`messages` is empty".to_owned());
    }
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut before = "";
    for (n, message) in messages.iter().enumerate() {
        let role = text(message, "/role");
        if role != "tool" && !open.is_empty() {
            wrong.push(format!("messages[{n}]: calls {open:?} have no results"));
            open.clear();
        }
        match role {
            "system" if n == 0 => {}
            "user" => {
                if !message["content"].is_string() {
                    wrong.push(format!("messages[{n}]: a user message without text"));
                }
            }
            "assistant" => {
                let calls = list(message, "/tool_calls");
                let content = &message["content"];
                if !(content.is_string() || content.is_null() && !calls.is_empty()) {
                    wrong.push(format!(
                        "messages[{n}]: an assistant message without text and calls"
                    ));
                }
                for call in calls {
                    let id = text(call, "/id");
                    if call["type"] != "function" || !call["function"]["arguments"].is_string() {
                        wrong.push(format!("messages[{n}]: a call is not a function call"));
                    }
                    if !is_name(text(call, "/function/name")) || !is_name(id) {
                        wrong.push(format!("messages[{n}]: a call's name or id is not allowed"));
                    }
                    if !ids.insert(id) {
                        wrong.push(format!("messages[{n}]: call id `{id}` was used before"));
                    }
                    open.insert(id);
                }
            }
            "tool" => {
                let id = text(message, "/tool_call_id");
                if !open.remove(id) {
                    wrong.push(format!("messages[{n}]: a result for `{id}`, which was not called"));
                }
                if !message["content"].is_string() {
                    wrong.push(format!("messages[{n}]: a result without text"));
                }
            }
            _ => wrong.push(format!("messages[{n}]: role `{role}` is not allowed here")),
        }
        if role == before && role != "tool" {
            wrong.push(format!("messages[{n}]: two {role} messages in a row"));
        }
        before = role;
    }
    if !open.is_empty() {
        wrong.push(format!("calls {open:?} have no results"));
    }
}

fn responses(body: &Value, wrong: &mut Vec<String>) {
    const KEYS: [&str; 11] = [
        "model",
        "instructions",
        "input",
        "stream",
        "store",
        "tools",
        "tool_choice",
        "max_output_tokens",
        "temperature",
        "reasoning",
        "include",
    ];
    only_keys(body, &KEYS, wrong);
    if body["store"] != false {
        wrong.push("`store` is not false: the conversation would stay at the provider".to_owned());
    }
    let defs = list(body, "/tools");
    if defs.iter().any(|tool| tool["type"] != "function" || !tool["strict"].is_boolean()) {
        wrong.push("a tool is not a function, or does not say whether it is strict".to_owned());
    }
    tools(
        defs.iter().map(|tool| text(tool, "/name")).collect(),
        defs.iter().map(|tool| tool.get("parameters")).collect(),
        wrong,
    );
    let input = list(body, "/input");
    if input.is_empty() {
        wrong.push("`input` is empty".to_owned());
    }
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (n, item) in input.iter().enumerate() {
        match text(item, "/type") {
            "message" => {
                let want = match text(item, "/role") {
                    "user" => "input_text",
                    "assistant" => "output_text",
                    role => {
                        wrong.push(format!("input[{n}]: role `{role}`"));
                        continue;
                    }
                };
                let content = list(item, "/content");
                if content.is_empty()
                    || content.iter().any(|part| part["type"] != want || !part["text"].is_string())
                {
                    wrong.push(format!("input[{n}]: content is not a list of {want}"));
                }
                if want == "input_text" && !open.is_empty() {
                    wrong.push(format!("input[{n}]: calls {open:?} have no output"));
                    open.clear();
                }
            }
            "function_call" => {
                let id = text(item, "/call_id");
                if !is_name(id) || !is_name(text(item, "/name")) || !item["arguments"].is_string() {
                    wrong.push(format!("input[{n}]: a function call is not one"));
                }
                if !ids.insert(id) {
                    wrong.push(format!("input[{n}]: call id `{id}` was used before"));
                }
                open.insert(id);
            }
            "function_call_output" => {
                let id = text(item, "/call_id");
                if !open.remove(id) || !item["output"].is_string() {
                    wrong.push(format!("input[{n}]: an output for `{id}`, which was not called"));
                }
            }
            "reasoning" => {
                if text(item, "/encrypted_content").is_empty() || !item["summary"].is_array() {
                    wrong
                        .push(format!("input[{n}]: reasoning that cannot be read without a store"));
                }
            }
            kind => wrong.push(format!("input[{n}]: type `{kind}`")),
        }
    }
    if !open.is_empty() {
        wrong.push(format!("calls {open:?} have no output"));
    }
}

fn messages(body: &Value, wrong: &mut Vec<String>) {
    const KEYS: [&str; 10] = [
        "model",
        "max_tokens",
        "messages",
        "stream",
        "system",
        "tools",
        "tool_choice",
        "temperature",
        "thinking",
        "output_config",
    ];
    only_keys(body, &KEYS, wrong);
    let max_tokens = body["max_tokens"].as_u64().unwrap_or(0);
    if max_tokens == 0 {
        wrong.push("max_tokens: field required".to_owned());
    }
    let defs = list(body, "/tools");
    tools(
        defs.iter().map(|tool| text(tool, "/name")).collect(),
        defs.iter().map(|tool| tool.get("input_schema")).collect(),
        wrong,
    );
    if body.get("tool_choice").is_some() && defs.is_empty() {
        wrong.push("`tool_choice` without `tools`".to_owned());
    }
    if body.get("thinking").is_some() {
        if text(body, "/tool_choice/type") == "any" {
            wrong.push("thinking may not be enabled when tool_choice forces tool use".to_owned());
        }
        if body.get("temperature").is_some() {
            wrong.push("temperature with thinking".to_owned());
        }
        if body
            .pointer("/thinking/budget_tokens")
            .and_then(Value::as_u64)
            .is_some_and(|b| b >= max_tokens)
        {
            wrong.push("max_tokens must be greater than thinking.budget_tokens".to_owned());
        }
    }
    if body.to_string().matches("\"cache_control\"").count() > 4 {
        wrong.push("more than 4 cache_control blocks".to_owned());
    }
    let messages = list(body, "/messages");
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (n, message) in messages.iter().enumerate() {
        let role = text(message, "/role");
        if role != if n % 2 == 0 { "user" } else { "assistant" } {
            wrong.push(format!("messages[{n}]: roles must alternate, beginning with the user"));
        }
        let blocks = list(message, "/content");
        if blocks.is_empty() {
            wrong.push(format!("messages[{n}]: content is empty"));
        }
        let mut past_results = false;
        for block in blocks {
            let kind = text(block, "/type");
            past_results |= kind != "tool_result";
            match (role, kind) {
                (_, "text") => {
                    if text(block, "/text").trim().is_empty() {
                        wrong.push(format!("messages[{n}]: text must contain non-whitespace text"));
                    }
                }
                ("user", "tool_result") => {
                    let id = text(block, "/tool_use_id");
                    if !open.remove(id) || past_results {
                        wrong.push(format!("messages[{n}]: tool_result `{id}` is out of place"));
                    }
                }
                ("assistant", "thinking") => {
                    if text(block, "/signature").is_empty() {
                        wrong.push(format!("messages[{n}]: thinking without signature"));
                    }
                }
                ("assistant", "redacted_thinking") => {}
                ("assistant", "tool_use") => {
                    let id = text(block, "/id");
                    if !is_name(id) || !is_name(text(block, "/name")) || !block["input"].is_object()
                    {
                        wrong.push(format!("messages[{n}]: a tool_use is not one"));
                    }
                    open.insert(id);
                }
                _ => wrong.push(format!("messages[{n}]: a `{kind}` block of the {role}")),
            }
        }
        if role == "user" && !open.is_empty() {
            wrong.push(format!("messages[{n}]: tool_use ids {open:?} without tool_result"));
            open.clear();
        }
    }
    if messages.last().is_none_or(|message| message["role"] != "user") {
        wrong.push("the conversation must end with a user message".to_owned());
    }
    let last = messages.iter().rev().find(|message| message["role"] == "assistant");
    if text(body, "/thinking/type") == "enabled"
        && let Some(blocks) = last.map(|message| list(message, "/content"))
        && blocks.iter().any(|block| block["type"] == "tool_use")
        && !text(&blocks[0], "/type").ends_with("thinking")
    {
        wrong.push(
            "expected thinking, but found tool_use at the beginning of the last assistant message"
                .to_owned(),
        );
    }
}
