//! A short description of a tool call: of built-in tools, and of those of Claude Code and Codex.

use overmind_view::main_argument;
use serde_json::Value;

use crate::output::{clean, when};

/// The main argument of a call, on one line.
pub fn action(tool: &str, args: &Value) -> String {
    action_from(tool, args, &[])
}

/// The same, with paths relative to the first of `roots` that contains them.
pub fn action_from(tool: &str, args: &Value, roots: &[String]) -> String {
    let within = |path: &str| {
        let inside = roots.iter().find_map(|root| {
            let rest = path.strip_prefix(root.as_str())?;
            match rest.strip_prefix('/') {
                Some(rest) => Some(rest.to_owned()),
                None => rest.is_empty().then(|| ".".to_owned()),
            }
        });
        inside.unwrap_or_else(|| path.to_owned())
    };
    let main = match tool {
        // Codex: `{"path": …, "kind": "update"}` of each file.
        "file_change" => {
            let changes = args.get("changes").and_then(Value::as_array);
            let paths = changes.into_iter().flatten().filter_map(|change| {
                let path = within(change.get("path")?.as_str()?);
                Some(match change.get("kind").and_then(Value::as_str) {
                    Some("update") | None => path,
                    Some(kind) => format!("{path} ({kind})"),
                })
            });
            let text = paths.collect::<Vec<_>>().join(", ");
            return clean::cut(&clean::line(&text), 120).into_owned();
        }
        "TodoWrite" => {
            let items = args.get("todos").and_then(Value::as_array).map_or(0, Vec::len);
            return when::counted(items as u64, "item");
        }
        "verify" => {
            let checks = args.get("checks").and_then(Value::as_array).cloned().unwrap_or_default();
            let checks = checks.iter().map(|check| {
                let part = |key| check.get(key).and_then(Value::as_str).unwrap_or("?");
                format!("{} {}", part("type"), part("path"))
            });
            let text = checks.collect::<Vec<_>>().join(", ");
            return clean::cut(&clean::line(&text), 120).into_owned();
        }
        _ => main_argument(tool),
    };
    let text = match args.get(main) {
        Some(Value::String(text)) if main == "path" || main.ends_with("_path") => within(text),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None if main.is_empty() => args.to_string(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let text = clean::line(&text).into_owned();
    clean::cut(&text, 120).into_owned()
}
