//! The protocol for any program: lines of `{"overmind": {…}}`, as described in docs/providers.md.

use serde_json::{Map, Value};

use super::{
    Ask, Fact, MAX_TEXT, Question, Spent, bounded, cut, id, microusd, number, object, text,
};
use crate::model::Usage;

pub(super) fn facts(event: &Map<String, Value>, at: u64, facts: &mut Vec<Fact>) {
    let Some(said) = object(event, "overmind") else { return };
    if let Some(conversation) = id(said, "conversation") {
        facts.push(Fact::Conversation { id: conversation, model: id(said, "model") });
    }
    if let Some(text) = text(said, "said") {
        facts.push(Fact::Said { text, within: None });
    }
    if let Some(tool) = object(said, "tool")
        && let Some(name) = id(tool, "name")
    {
        let args = bounded(tool.get("args").unwrap_or(&Value::Null));
        facts.push(Fact::ToolUse { id: id(tool, "id").unwrap_or_default(), name, args });
    }
    if let Some(done) = object(said, "tool_result") {
        let ok = done.get("ok").and_then(Value::as_bool) != Some(false);
        let output = match done.get("output") {
            Some(Value::String(text)) => cut(text, MAX_TEXT),
            Some(other) => cut(&other.to_string(), MAX_TEXT),
            None => String::new(),
        };
        let (id, name) = (id(done, "id").unwrap_or_default(), id(done, "name"));
        facts.push(Fact::ToolResult { id, name, ok, output });
    }
    let cost_microusd = microusd(said.get("cost_usd"));
    let usage = object(said, "usage").map(|usage| Usage {
        input_tokens: number(usage, "input_tokens"),
        output_tokens: number(usage, "output_tokens"),
        cached_input_tokens: number(usage, "cached_input_tokens"),
        cache_write_tokens: number(usage, "cache_write_tokens"),
        reasoning_tokens: number(usage, "reasoning_tokens"),
    });
    if usage.is_some() || cost_microusd.is_some() {
        let calls = u32::from(usage.is_some());
        facts.push(Fact::Spent(Spent { usage, cost_microusd, calls, ..Spent::default() }));
    }
    if let Some(asks) = object(said, "asks")
        && let Some(asked) = text(asks, "text").filter(|text| !text.is_empty())
    {
        let options = asks.get("options").and_then(Value::as_array);
        let options = options.into_iter().flatten().filter_map(Value::as_str).take(20);
        let short = |text: &str| text.chars().take(300).collect::<String>();
        let question = Question {
            text: short(asked.lines().next().unwrap_or_default()),
            options: options.map(short).collect(),
            secret: asks.get("secret").and_then(Value::as_bool) == Some(true),
        };
        let id = id(asks, "id").unwrap_or_else(|| format!("at-{at}"));
        facts.push(Fact::Asks(Ask { id, question, at, tool_use: None }));
    }
    facts.extend(id(said, "answered").map(|id| Fact::AskGone { id }));
    facts.extend(text(said, "error").map(|message| Fact::Trouble { message }));
    if let Some(result) = said.get("result") {
        let text = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
        let is_error = said.get("is_error").and_then(Value::as_bool) == Some(true);
        facts.push(Fact::Result { text: cut(&text, 4 * MAX_TEXT), is_error });
    }
}
