//! The texts of a call that was passed on, in the form of the conventions.
//!
//! They are parsed from the stored parts of request and answer, in the API of the caller: chat,
//! Responses or Messages, whole or as a stream. A stored part may be cut anywhere; everything that
//! can be parsed is exported. This happens only if content is enabled, and never while a call is
//! passed on.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Attrs, MAX_TEXT};
use crate::budget::CallRecord;

/// Longest single text, in bytes; longer ones are cut.
const MAX_PART: usize = MAX_TEXT / 4;

/// Adds the messages of the request and the answer.
pub(super) fn of_call(call: &CallRecord, finish: &[String], attrs: &mut Attrs) {
    if let Some(request) = &call.request
        && let Some(body) = mended(&request.text)
    {
        let (system, input) = asked(&body);
        if !system.is_empty() {
            attrs.push(("gen_ai.system_instructions", bounded(system).into()));
        }
        if !input.is_empty() {
            attrs.push(("gen_ai.input.messages", bounded(input).into()));
        }
    }
    // An error is no text of the model.
    if call.status < 400
        && let Some(response) = &call.response
    {
        let output = answered(&response.text, finish);
        if !output.is_empty() {
            attrs.push(("gen_ai.output.messages", bounded(output).into()));
        }
    }
}

/// JSON of the last ones that fit, each whole.
fn bounded(all: Vec<Value>) -> String {
    let mut kept = Vec::new();
    let mut room = MAX_TEXT - 2;
    for mut one in all.into_iter().rev() {
        let mut text = one.to_string();
        while text.len() + 1 > room && kept.is_empty() {
            // Of the last message, at least the first parts are exported.
            match one.get_mut("parts").and_then(Value::as_array_mut) {
                Some(parts) if parts.len() > 1 => drop(parts.pop()),
                Some(_) | None => break,
            }
            text = one.to_string();
        }
        if text.len() + 1 > room {
            break;
        }
        room -= text.len() + 1;
        kept.push(text);
    }
    kept.reverse();
    format!("[{}]", kept.join(","))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_PART)]
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "content": cut(text)})
}

fn call_part(id: &Value, name: &Value, arguments: &Value) -> Value {
    let arguments = match arguments {
        Value::String(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(cut(text)))
        }
        other => other.clone(),
    };
    let arguments = match arguments.to_string() {
        long if long.len() > MAX_PART => Value::from(cut(&long)),
        _ => arguments,
    };
    json!({"type": "tool_call", "id": id, "name": name, "arguments": arguments})
}

fn result_part(id: &Value, result: &Value) -> Value {
    let text = match result {
        Value::String(text) => text.clone(),
        Value::Array(_) => flat(result),
        other => other.to_string(),
    };
    json!({"type": "tool_call_response", "id": id, "response": cut(&text)})
}

/// The texts of a list of parts.
fn flat(content: &Value) -> String {
    let parts = content.as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// The parts of a message's content, in any of the three APIs.
fn parts(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::String(text) => vec![text_part(text)],
        Value::Array(all) => all.iter().map(part).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn part(part: &Value) -> Value {
    match part["type"].as_str().unwrap_or("text") {
        "text" | "input_text" | "output_text" => text_part(part["text"].as_str().unwrap_or("")),
        "refusal" => text_part(part["refusal"].as_str().unwrap_or("")),
        "thinking" => {
            json!({"type": "reasoning", "content": cut(part["thinking"].as_str().unwrap_or(""))})
        }
        "tool_use" => call_part(&part["id"], &part["name"], &part["input"]),
        "tool_result" => result_part(&part["tool_use_id"], &part["content"]),
        // Images and files are named and not exported.
        other => json!({"type": cut(other)}),
    }
}

/// A message of a request, or an item of Responses.
fn message(one: &Value) -> Option<Value> {
    let (role, parts) = match one["type"].as_str() {
        Some("function_call") => {
            ("assistant", vec![call_part(&one["call_id"], &one["name"], &one["arguments"])])
        }
        Some("function_call_output") => {
            ("tool", vec![result_part(&one["call_id"], &one["output"])])
        }
        Some("reasoning") => {
            let text = flat(&one["summary"]);
            if text.is_empty() {
                return None;
            }
            ("assistant", vec![json!({"type": "reasoning", "content": cut(&text)})])
        }
        _ => match one["role"].as_str()? {
            "tool" => ("tool", vec![result_part(&one["tool_call_id"], &one["content"])]),
            role => {
                let calls = one["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
                let calls = calls.iter().map(|call| {
                    let function = &call["function"];
                    call_part(&call["id"], &function["name"], &function["arguments"])
                });
                (role, parts(&one["content"]).into_iter().chain(calls).collect())
            }
        },
    };
    (!parts.is_empty()).then(|| json!({"role": cut(role), "parts": parts}))
}

/// The instructions, and the messages.
fn asked(body: &Value) -> (Vec<Value>, Vec<Value>) {
    let system = ["system", "instructions"].iter().flat_map(|name| parts(&body[*name])).collect();
    let input = match (&body["messages"], &body["input"]) {
        (Value::Array(all), _) | (_, Value::Array(all)) => all.iter().filter_map(message).collect(),
        (_, Value::String(text)) => vec![json!({"role": "user", "parts": [text_part(text)]})],
        _ => Vec::new(),
    };
    (system, input)
}

fn spoken(parts: Vec<Value>, finish: Option<&String>) -> Option<Value> {
    let mut message = json!({"role": "assistant", "parts": parts});
    if let Some(finish) = finish.filter(|finish| !finish.is_empty()) {
        message["finish_reason"] = finish.as_str().into();
    }
    (!parts_of(&message).is_empty()).then_some(message)
}

fn parts_of(message: &Value) -> &[Value] {
    message["parts"].as_array().map_or(&[], Vec::as_slice)
}

/// The messages of an answer.
fn answered(text: &str, finish: &[String]) -> Vec<Value> {
    let start = text.trim_start();
    if ["data:", "event:", ":"].iter().any(|begin| start.starts_with(begin)) {
        return streamed(text, finish);
    }
    let Some(body) = mended(text) else { return Vec::new() };
    match (&body["choices"], &body["content"], &body["output"]) {
        (Value::Array(choices), _, _) => {
            let all = choices.iter().enumerate().filter_map(|(at, choice)| {
                let mut told = message(&with_role(&choice["message"]))?;
                spoken(told["parts"].as_array_mut().map(std::mem::take)?, finish.get(at))
            });
            all.collect()
        }
        (_, content @ Value::Array(_), _) => {
            spoken(parts(content), finish.first()).into_iter().collect()
        }
        (_, _, Value::Array(items)) => {
            let all = items.iter().filter_map(message);
            let parts = all.flat_map(|one| parts_of(&one).to_vec()).collect();
            spoken(parts, finish.first()).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// An assistant's message, whatever it says of that.
fn with_role(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(fields) = message.as_object_mut() {
        fields.insert("role".to_owned(), "assistant".into());
    }
    message
}

/// One part of a streamed answer, as it grows.
#[derive(Default)]
struct Grown {
    kind: String,
    text: String,
    id: Value,
    name: Value,
}

impl Grown {
    fn part(self) -> Option<Value> {
        match self.kind.as_str() {
            "call" => Some(call_part(&self.id, &self.name, &Value::String(self.text))),
            _ if self.text.is_empty() => None,
            "reasoning" => Some(json!({"type": "reasoning", "content": cut(&self.text)})),
            _ => Some(text_part(&self.text)),
        }
    }
}

/// Parts by choice and by their place in it. A place has the kind of part before its number, for
/// chat numbers its calls alone.
type Parts = BTreeMap<(u64, u8, u64), Grown>;

fn grow(parts: &mut Parts, at: (u64, u8, u64), kind: &str, text: &Value) {
    let part = parts.entry(at).or_default();
    if part.kind.is_empty() {
        kind.clone_into(&mut part.kind);
    }
    part.text.push_str(text.as_str().unwrap_or(""));
}

fn streamed(text: &str, finish: &[String]) -> Vec<Value> {
    let mut parts = Parts::new();
    for line in text.lines() {
        let Some(data) = line.strip_prefix("data:") else { continue };
        if let Ok(event) = serde_json::from_str::<Value>(data) {
            heard(&mut parts, &event);
        }
    }
    let mut choices: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for ((choice, ..), part) in parts {
        choices.entry(choice).or_default().extend(part.part());
    }
    let told = choices.into_iter().filter_map(|(at, parts)| {
        spoken(parts, usize::try_from(at).ok().and_then(|at| finish.get(at)))
    });
    told.collect()
}

fn heard(parts: &mut Parts, event: &Value) {
    let n = |value: &Value| value.as_u64().unwrap_or(0);
    for choice in event["choices"].as_array().map_or(&[][..], Vec::as_slice) {
        let (at, delta) = (n(&choice["index"]), &choice["delta"]);
        for name in ["reasoning_content", "reasoning"] {
            grow(parts, (at, 0, 0), "reasoning", &delta[name]);
        }
        grow(parts, (at, 1, 0), "text", &delta["content"]);
        for call in delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice) {
            let place = (at, 2, n(&call["index"]));
            grow(parts, place, "call", &call["function"]["arguments"]);
            name(parts, place, &call["id"], &call["function"]["name"]);
        }
    }
    // Blocks of Messages stand in their order, and so do items of Responses.
    let place = (0, 0, n(&event["index"]));
    let item = (0, 0, n(&event["output_index"]));
    match event["type"].as_str().unwrap_or("") {
        "content_block_start" => {
            let block = &event["content_block"];
            match block["type"].as_str().unwrap_or("") {
                "tool_use" => {
                    grow(parts, place, "call", &Value::Null);
                    name(parts, place, &block["id"], &block["name"]);
                }
                "thinking" => grow(parts, place, "reasoning", &block["thinking"]),
                _ => grow(parts, place, "text", &block["text"]),
            }
        }
        "content_block_delta" => {
            let delta = &event["delta"];
            for name in ["text", "partial_json", "thinking"] {
                grow(parts, place, "text", &delta[name]);
            }
        }
        "response.output_text.delta" | "response.refusal.delta" => {
            grow(parts, item, "text", &event["delta"]);
        }
        "response.reasoning_summary_text.delta" => grow(parts, item, "reasoning", &event["delta"]),
        "response.function_call_arguments.delta" => grow(parts, item, "call", &event["delta"]),
        "response.output_item.added" if event["item"]["type"] == "function_call" => {
            grow(parts, item, "call", &Value::Null);
            name(parts, item, &event["item"]["call_id"], &event["item"]["name"]);
        }
        _ => {}
    }
}

fn name(parts: &mut Parts, at: (u64, u8, u64), id: &Value, name: &Value) {
    if let Some(part) = parts.get_mut(&at) {
        for (ours, theirs) in [(&mut part.id, id), (&mut part.name, name)] {
            if theirs.is_string() {
                *ours = theirs.clone();
            }
        }
    }
}

/// Completes a document whose end may be missing: open parts are closed, and an incomplete last
/// part is removed.
fn mended(text: &str) -> Option<Value> {
    if let Ok(whole) = serde_json::from_str::<Value>(text) {
        return Some(whole);
    }
    // The closing characters of each open container.
    let mut open: Vec<char> = Vec::new();
    // Up to here it can be closed, with so many containers open.
    let mut safe: Option<(usize, usize)> = None;
    let (mut in_string, mut escaped, mut is_key, mut key_next) = (false, false, false, false);
    for (at, c) in text.char_indices() {
        if in_string {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match c {
            '"' => (in_string, is_key) = (true, key_next),
            '{' | '[' => {
                open.push(if c == '{' { '}' } else { ']' });
                key_next = c == '{';
                safe = Some((at + 1, open.len()));
            }
            '}' | ']' => {
                open.pop();
                key_next = false;
                safe = Some((at + 1, open.len()));
            }
            ',' => {
                safe = Some((at, open.len()));
                key_next = open.last() == Some(&'}');
            }
            ':' => key_next = false,
            _ => {}
        }
    }
    let closed = |mut text: String, depth: usize| -> Option<Value> {
        text.extend(open.get(..depth)?.iter().rev());
        serde_json::from_str(&text).ok()
    };
    if in_string && !is_key {
        // The available text, without an incomplete escape.
        let tail = text.floor_char_boundary(text.len().saturating_sub(12));
        let escapes = text[tail..].rmatch_indices('\\').map(|(at, _)| tail + at);
        for end in std::iter::once(text.len()).chain(escapes) {
            if let Some(value) = closed(format!("{}\"", &text[..end]), open.len()) {
                return Some(value);
            }
        }
    }
    let (end, depth) = safe?;
    closed(text[..end].to_owned(), depth)
        .filter(|value| value.as_object().is_none_or(|fields: &Map<_, _>| !fields.is_empty()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::{Ask, Content, Ended, Spend};
    use crate::ids::{CallId, ColonyId};
    use crate::telemetry::Attr;
    use crate::time::Timestamp;

    fn told(request: &str, response: &str, finish: &[&str]) -> BTreeMap<&'static str, Value> {
        let ask = Ask {
            call: CallId::from_u128(1),
            session: None,
            agent: None,
            colony: ColonyId::DEFAULT,
            caller: "admin".into(),
            provider: "p".into(),
            model: "m".into(),
            worst: Spend::NONE,
            at: Timestamp::from_micros(0),
        };
        let content = |text: &str| Some(Content { digest: String::new(), text: text.to_owned() });
        let mut record = CallRecord::of(&ask, Ended::Completed);
        (record.request, record.response) = (content(request), content(response));
        let finish: Vec<String> = finish.iter().map(|word| (*word).to_owned()).collect();
        let mut attrs = Attrs::new();
        of_call(&record, &finish, &mut attrs);
        let json = |attr: &Attr| match attr {
            Attr::Text(text) => {
                assert!(text.len() <= MAX_TEXT);
                serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
            }
            other => panic!("{other:?}"),
        };
        attrs.iter().map(|(name, attr)| (*name, json(attr))).collect()
    }

    const INPUT: &str = "gen_ai.input.messages";
    const OUTPUT: &str = "gen_ai.output.messages";

    #[test]
    fn a_chat_is_recorded_whole_and_streamed() {
        let request = r#"{"model":"m","messages":[
            {"role":"system","content":"be brief"},
            {"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:secret"}}]},
            {"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"get","arguments":"{\"a\":1}"}}]},
            {"role":"tool","tool_call_id":"c1","content":"42"}]}"#;
        let whole = r#"{"choices":[{"message":{"role":"assistant","content":"hello"}},{"message":{"content":"ho"}}]}"#;
        let all = told(request, whole, &["stop", "length"]);
        let input = json!([
            {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
            {"role": "user", "parts": [{"type": "text", "content": "hi"}, {"type": "image_url"}]},
            {"role": "assistant", "parts": [
                {"type": "tool_call", "id": "c1", "name": "get", "arguments": {"a": 1}}]},
            {"role": "tool", "parts": [
                {"type": "tool_call_response", "id": "c1", "response": "42"}]},
        ]);
        assert_eq!(all[INPUT], input);
        let output = json!([
            {"role": "assistant", "parts": [{"type": "text", "content": "hello"}],
             "finish_reason": "stop"},
            {"role": "assistant", "parts": [{"type": "text", "content": "ho"}],
             "finish_reason": "length"},
        ]);
        assert_eq!(all[OUTPUT], output);
        let stream = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hel"}}]}

: ping

data: {"choices":[{"index":0,"delta":{"content":"lo","tool_calls":[{"index":0,"id":"c1","function":{"name":"get","arguments":"{\"a\""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}

data: {"choices":[{"index":0,"delta":{"cont"#;
        let all = told("{", stream, &[]);
        let output = json!([{"role": "assistant", "parts": [
            {"type": "text", "content": "hello"},
            {"type": "tool_call", "id": "c1", "name": "get", "arguments": {"a": 1}}]}]);
        assert_eq!(all[OUTPUT], output);
        assert!(!all.contains_key(INPUT));
    }

    #[test]
    fn messages_are_recorded_whole_and_streamed() {
        let request = r#"{"system":[{"type":"text","text":"be brief"}],"messages":[
            {"role":"user","content":"hi"},
            {"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"t","name":"get","input":{"a":1}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"42"}]}]}]}"#;
        let whole = r#"{"content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn"}"#;
        let all = told(request, whole, &["stop"]);
        assert_eq!(
            all["gen_ai.system_instructions"],
            json!([{"type": "text", "content": "be brief"}])
        );
        assert_eq!(all[INPUT][1]["parts"][0], json!({"type": "reasoning", "content": "hm"}));
        assert_eq!(all[INPUT][2]["parts"][0]["response"], "42");
        assert_eq!(all[OUTPUT][0]["parts"][0]["content"], "hello");
        let stream = r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}

data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"get","input":{}}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}
"#;
        let all = told("", stream, &["tool_call"]);
        let output = json!([{"role": "assistant", "finish_reason": "tool_call", "parts": [
            {"type": "text", "content": "hello"},
            {"type": "tool_call", "id": "t", "name": "get", "arguments": {"a": 1}}]}]);
        assert_eq!(all[OUTPUT], output);
    }

    #[test]
    fn responses_are_recorded_whole_and_streamed() {
        let request = r#"{"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
            {"type":"function_call","call_id":"c","name":"get","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"42"}]}"#;
        let whole = r#"{"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hello"}]},{"type":"function_call","call_id":"c","name":"get","arguments":"{}"}]}"#;
        let all = told(request, whole, &["tool_call"]);
        assert_eq!(all[INPUT].as_array().unwrap().len(), 3);
        let output = json!([{"role": "assistant", "finish_reason": "tool_call", "parts": [
            {"type": "text", "content": "hello"},
            {"type": "tool_call", "id": "c", "name": "get", "arguments": {}}]}]);
        assert_eq!(all[OUTPUT], output);
        let stream = r#"data: {"type":"response.output_text.delta","output_index":0,"delta":"hel"}

data: {"type":"response.output_text.delta","output_index":0,"delta":"lo"}

data: {"type":"response.output_item.added","output_index":1,"item":{"type":"function_call","call_id":"c","name":"get"}}

data: {"type":"response.function_call_arguments.delta","output_index":1,"delta":"{}"}
"#;
        assert_eq!(told(r#"{"input":"hi"}"#, stream, &["tool_call"])[OUTPUT], output);
    }

    #[test]
    fn long_conversations_keep_the_tail_and_long_texts_the_head() {
        let long = "x".repeat(100_000);
        let messages: Vec<Value> =
            (0..100).map(|n| json!({"role": "user", "content": format!("{n} {long}")})).collect();
        let all = told(&json!({"messages": messages}).to_string(), "", &[]);
        let told = all[INPUT].as_array().unwrap();
        assert!(!told.is_empty() && told.len() < 5);
        let last = told.last().unwrap()["parts"][0]["content"].as_str().unwrap();
        assert!(last.starts_with("99 x"), "{last}");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map(".{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_truncated_document_is_read_up_to_the_cut(inner in value(), at in 0.0..1.0_f64) {
            let whole = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "more": inner});
            let text = whole.to_string();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short text")]
            let end = text.floor_char_boundary((text.len() as f64 * at) as usize);
            let read = mended(&text[..end]);
            // The part before the cut exists.
            let begin = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]"#;
            prop_assert!(text.starts_with(begin));
            if end > begin.len() {
                let read = read.clone().expect("its beginning is whole");
                prop_assert_eq!(&read["model"], "m");
                prop_assert_eq!(&read["messages"], &whole["messages"]);
            }
            if end >= 2 && read.is_some() {
                prop_assert!(read.expect("it is there").is_object());
            }
        }

        #[test]
        fn recorded_content_is_bounded(
            one in value(), two in value(), request in ".{0,80}", response in "(data: )?.{0,80}",
        ) {
            told(&request, &response, &[]);
            let request = json!({"messages": [one, {"role": "user", "content": two}], "input": one, "system": two});
            let response = json!({"choices": [{"message": one}, two], "content": one, "output": two});
            told(&request.to_string(), &response.to_string(), &["stop"]);
            let event = json!({"type": "content_block_delta", "choices": [{"delta": one}], "delta": two});
            told("{}", &format!("data: {event}\n"), &["stop"]);
        }
    }
}
