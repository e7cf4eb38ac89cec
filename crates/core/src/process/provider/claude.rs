//! The protocol of Claude Code: `--output-format stream-json --verbose`.

use serde_json::{Map, Value, json};

use super::{
    Ask, Asked, Fact, MAX_ID, MAX_TEXT, Question, Scope, Spent, bounded, cut, id, microusd, number,
    object, text,
};
use crate::model::Usage;

mod questions;

/// Longest one-line description of a tool use, in characters.
const MAX_WANTED: usize = 300;
/// Most denied tool uses that are reported.
const MOST_DENIED: usize = 5;

/// Appends the facts of an event. `asked` holds the tool calls for which a person was asked.
pub(super) fn facts(event: &Map<String, Value>, at: u64, asked: &mut Asked, facts: &mut Vec<Fact>) {
    match event.get("type").and_then(Value::as_str) {
        Some("system") => {
            if event.get("subtype").and_then(Value::as_str) == Some("init")
                && let Some(conversation) = id(event, "session_id")
            {
                let model = id(event, "model");
                facts.push(Fact::Conversation { id: conversation, model });
            } else if event.get("subtype").and_then(Value::as_str) == Some("api_retry") {
                facts.push(Fact::Trouble { message: retry(event) });
            }
        }
        Some("assistant") => {
            let within = id(event, "parent_tool_use_id");
            for block in blocks(event) {
                match block.get("type").and_then(Value::as_str) {
                    Some("text") => {
                        if let Some(text) = text(block, "text").filter(|text| !text.is_empty()) {
                            facts.push(Fact::Said { text, within: within.clone() });
                        }
                    }
                    Some("tool_use") => {
                        let Some(name) = id(block, "name") else { continue };
                        let args = bounded(block.get("input").unwrap_or(&Value::Null));
                        let id = id(block, "id").unwrap_or_default();
                        facts.push(Fact::ToolUse { id, name, args });
                    }
                    Some(_) | None => {}
                }
            }
        }
        Some("user") => {
            for block in blocks(event) {
                if block.get("type").and_then(Value::as_str) != Some("tool_result") {
                    continue;
                }
                let Some(id) = id(block, "tool_use_id") else { continue };
                let ok = block.get("is_error").and_then(Value::as_bool) != Some(true);
                facts.push(Fact::ToolResult { id, name: None, ok, output: content(block) });
            }
        }
        Some("result") => result(event, asked, facts),
        Some("control_request") => {
            if let Some(ask) = requested(event, at) {
                asked.extend(ask.tool_use.clone());
                facts.push(Fact::Asks(ask));
            }
        }
        Some("control_cancel_request") => {
            facts.extend(id(event, "request_id").map(|id| Fact::AskGone { id }));
        }
        Some(_) | None => {}
    }
}

/// Returns a description of a failed model call that the program retries.
fn retry(event: &Map<String, Value>) -> String {
    let answers = match number(event, "error_status") {
        0 => "does not answer".to_owned(),
        status => format!("answers {status}"),
    };
    let why = id(event, "error").map(|why| format!(" ({why})")).unwrap_or_default();
    let (attempt, most) = (number(event, "attempt"), number(event, "max_retries"));
    format!("the model's API {answers}{why}; Claude Code tries again, {attempt} of {most}")
}

fn blocks(event: &Map<String, Value>) -> impl Iterator<Item = &Map<String, Value>> {
    let content = object(event, "message").and_then(|message| message.get("content"));
    let blocks = content.and_then(Value::as_array).map(Vec::as_slice);
    blocks.unwrap_or_default().iter().filter_map(Value::as_object)
}

/// Returns a tool's output: a text, or the texts of a list of blocks.
fn content(block: &Map<String, Value>) -> String {
    match block.get("content") {
        Some(Value::String(text)) => cut(text, MAX_TEXT),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> =
                parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            cut(&texts.join("\n"), MAX_TEXT)
        }
        Some(_) | None => String::new(),
    }
}

fn result(event: &Map<String, Value>, asked: &Asked, facts: &mut Vec<Fact>) {
    if let Some(usage) = object(event, "usage") {
        // The provider counts what it read from a cache, or wrote to one, beside the rest.
        let cached_input_tokens = number(usage, "cache_read_input_tokens");
        let cache_write_tokens = number(usage, "cache_creation_input_tokens");
        let input_tokens = number(usage, "input_tokens")
            .saturating_add(cached_input_tokens)
            .saturating_add(cache_write_tokens);
        let output_tokens = number(usage, "output_tokens");
        let usage = Usage {
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            ..Usage::default()
        };
        let calls = u32::try_from(number(event, "num_turns")).unwrap_or(u32::MAX);
        facts.push(Fact::Spent(Spent { usage: Some(usage), calls, ..Spent::default() }));
    }
    if let Some(cost) = microusd(event.get("total_cost_usd")) {
        // The time is that of the program since its start; the tokens are of the turn.
        let cost_microusd = Some(cost);
        facts.push(Fact::Spent(Spent { scope: Scope::Life, cost_microusd, ..Spent::default() }));
    }
    let is_error = event.get("is_error").and_then(Value::as_bool) == Some(true);
    let said = event.get("result").and_then(Value::as_str).map(str::to_owned);
    let errors = || {
        let errors = event.get("errors")?.as_array()?;
        let texts: Vec<&str> = errors.iter().filter_map(Value::as_str).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    let said = said.filter(|text| !text.is_empty());
    let (text, is_error) = match (is_error, unfinished(event, asked)) {
        (true, why) => (said.or_else(errors).or(why), true),
        (false, None) => (said, false),
        (false, Some(why)) => {
            let text = match said.or_else(errors) {
                Some(said) => format!("{why}. Its last words: {said}"),
                None => why,
            };
            (Some(text), true)
        }
    };
    let text = cut(&text.unwrap_or_default(), 4 * MAX_TEXT);
    facts.push(Fact::Result { text, is_error });
}

/// Returns why an ended turn did not complete its task; `None` if it did. A tool call that a person
/// denied is no reason: the person decided, and the agent continued with that decision.
fn unfinished(event: &Map<String, Value>, asked: &Asked) -> Option<String> {
    let field = |name: &str| event.get(name).and_then(Value::as_str);
    match field("subtype") {
        Some("success") | None => {}
        Some("error_max_turns") => {
            return Some("it used all the turns that it may take".to_owned());
        }
        Some("error_max_budget_usd") => return Some("it used all that it may spend".to_owned()),
        Some(other) => return Some(format!("it ended with {}", cut(other, MAX_ID))),
    }
    match field("stop_reason") {
        Some("max_turns") => return Some("it used all the turns that it may take".to_owned()),
        Some("max_tokens" | "model_context_window_exceeded") => {
            return Some("the model's answer was cut off: it had no room for more".to_owned());
        }
        Some("refusal") => return Some("the model refused to answer".to_owned()),
        Some(_) | None => {}
    }
    let denied = event.get("permission_denials").and_then(Value::as_array)?;
    let denied: Vec<String> = denied
        .iter()
        .filter_map(Value::as_object)
        .filter(|one| id(one, "tool_use_id").is_none_or(|id| !asked.contains(&id)))
        .filter_map(|one| {
            let name = id(one, "tool_name")?;
            Some(wanted(&name, one.get("tool_input").unwrap_or(&Value::Null)))
        })
        .collect();
    let shown = denied.iter().take(MOST_DENIED).cloned().collect::<Vec<_>>().join("; ");
    match denied.len() {
        0 => None,
        few if few <= MOST_DENIED => Some(format!("it was not permitted: {shown}")),
        many => Some(format!("it was not permitted: {shown}; and {} more", many - MOST_DENIED)),
    }
}

/// Returns a tool use as one line: its name, and its most descriptive argument.
fn wanted(name: &str, args: &Value) -> String {
    let what = ["command", "file_path", "url", "path", "description"]
        .iter()
        .find_map(|field| args.get(field)?.as_str().map(str::to_owned))
        .unwrap_or_else(|| args.to_string());
    let line = what.lines().next().unwrap_or_default();
    format!("{name}: {line}").chars().take(MAX_WANTED).collect()
}

/// Returns the question of a line that asks a person: for permission, or for answers.
fn requested(event: &Map<String, Value>, at: u64) -> Option<Ask> {
    let request = object(event, "request")?;
    if request.get("subtype").and_then(Value::as_str) != Some("can_use_tool") {
        return None;
    }
    let name = id(request, "tool_name")?;
    let args = request.get("input").unwrap_or(&Value::Null);
    let question = questions::of(&name, args).unwrap_or_else(|| {
        let text = format!("Allow {}", wanted(&name, args));
        Question { text, options: ["yes", "no"].map(str::to_owned).into(), secret: false }
    });
    let tool_use = id(request, "tool_use_id");
    Some(Ask { id: id(event, "request_id")?, question, at, tool_use })
}

/// Returns the line that sends a person's message.
pub(super) fn input(text: &str) -> String {
    json!({"type": "user", "message": {"role": "user", "content": text}}).to_string()
}

/// Returns the line that answers the question in `asking`; `None` if that line contains no
/// question.
pub(super) fn answer(asking: &[u8], answer: &str) -> Option<String> {
    let event: Map<String, Value> = crate::json::read(asking.trim_ascii()).ok()?;
    let request = object(&event, "request")?;
    let id = id(&event, "request_id")?;
    let name = super::id(request, "tool_name").unwrap_or_default();
    let decided = questions::answered(&name, request.get("input")?, answer)
        .unwrap_or_else(|| permission(request, answer));
    let response = json!({"subtype": "success", "request_id": id, "response": decided});
    Some(json!({"type": "control_response", "response": response}).to_string())
}

/// Returns the decision about a tool call that a person's answer means.
fn permission(request: &Map<String, Value>, answer: &str) -> Value {
    let word = answer.trim().to_lowercase();
    match word.as_str() {
        "y" | "yes" | "allow" | "approve" | "ok" | "1" => {
            json!({"behavior": "allow", "updatedInput": request.get("input")})
        }
        "n" | "no" | "deny" | "2" | "" => {
            json!({"behavior": "deny", "message": "A person was asked, and said no."})
        }
        // Any other text is the reason of the refusal, and an instruction.
        _ => json!({"behavior": "deny", "message": answer}),
    }
}
