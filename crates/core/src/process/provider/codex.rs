//! The protocol of Codex: `codex exec --json`.

use serde_json::{Map, Value, json};

use super::{Fact, MAX_TEXT, Scope, Spent, bounded, cut, id, number, object, text};
use crate::model::Usage;

pub(super) fn facts(event: &Map<String, Value>, facts: &mut Vec<Fact>) {
    match event.get("type").and_then(Value::as_str) {
        Some("thread.started") => {
            if let Some(id) = id(event, "thread_id") {
                facts.push(Fact::Conversation { id, model: None });
            }
        }
        Some("item.started") => {
            if let Some(item) = object(event, "item")
                && let Some((name, args)) = tool(item)
            {
                let id = id(item, "id").unwrap_or_default();
                facts.push(Fact::ToolUse { id, name, args: bounded(&args) });
            }
        }
        Some("item.completed") => {
            if let Some(item) = object(event, "item") {
                completed(item, facts);
            }
        }
        Some("turn.completed") => {
            if let Some(usage) = object(event, "usage") {
                let usage = Usage {
                    input_tokens: number(usage, "input_tokens"),
                    output_tokens: number(usage, "output_tokens"),
                    cached_input_tokens: number(usage, "cached_input_tokens"),
                    cache_write_tokens: number(usage, "cache_write_input_tokens"),
                    reasoning_tokens: number(usage, "reasoning_output_tokens"),
                };
                let (scope, cost_microusd) = (Scope::Conversation, None);
                facts.push(Fact::Spent(Spent {
                    scope,
                    usage: Some(usage),
                    cost_microusd,
                    calls: 1,
                }));
            }
        }
        Some("turn.failed") => {
            let message = object(event, "error").and_then(|error| text(error, "message"));
            let text = message.unwrap_or_else(|| "the turn failed".to_owned());
            facts.push(Fact::Result { text, is_error: true });
        }
        Some("error") => {
            facts.extend(text(event, "message").map(|message| Fact::Trouble { message }));
        }
        Some(_) | None => {}
    }
}

fn completed(item: &Map<String, Value>, facts: &mut Vec<Fact>) {
    match item.get("type").and_then(Value::as_str) {
        Some("agent_message") => {
            let Some(said) = item.get("text").and_then(Value::as_str) else { return };
            facts.push(Fact::Said { text: cut(said, MAX_TEXT), within: None });
            // The last message of a turn is its result; which one that is shows later.
            facts.push(Fact::Answer { text: cut(said, 4 * MAX_TEXT) });
        }
        Some("error") => {
            facts.extend(text(item, "message").map(|message| Fact::Trouble { message }));
        }
        Some(_) | None => {
            let Some((name, _)) = tool(item) else { return };
            let status = item.get("status").and_then(Value::as_str);
            let ok = !matches!(status, Some("failed" | "declined"))
                && item.get("exit_code").and_then(Value::as_i64).unwrap_or(0) == 0;
            let output = text(item, "aggregated_output")
                .or_else(|| item.get("result").map(|result| cut(&result.to_string(), MAX_TEXT)))
                .unwrap_or_default();
            let id = id(item, "id").unwrap_or_default();
            facts.push(Fact::ToolResult { id, name: Some(name), ok, output });
        }
    }
}

/// Returns the tool and arguments of an item.
fn tool(item: &Map<String, Value>) -> Option<(String, Value)> {
    let field = |name: &str| item.get(name).cloned().unwrap_or(Value::Null);
    match item.get("type").and_then(Value::as_str)? {
        "command_execution" => Some(("shell".to_owned(), json!({"command": field("command")}))),
        "file_change" => Some(("file_change".to_owned(), json!({"changes": field("changes")}))),
        "web_search" => Some(("web_search".to_owned(), json!({"query": field("query")}))),
        "mcp_tool_call" => {
            let (server, tool) = (id(item, "server")?, id(item, "tool")?);
            Some((format!("{server}.{tool}"), field("arguments")))
        }
        _ => None,
    }
}
