//! Checks that schemas are limited, self-contained, and not larger when expanded than they look.

use std::collections::HashMap;

use serde_json::Value;

use super::hidden::hidden_in;

const MAX_BYTES: usize = 64 << 10;
const MAX_DEPTH: usize = 24;
/// Maximum number of sub-schemas and values after every `$ref` is expanded.
const MAX_NODES: usize = 20_000;
/// Longest pattern in bytes: long ones are slow to compile, whatever they match.
const MAX_PATTERN_BYTES: usize = 1024;

/// Describes the error; the text completes the sentence `its schema …`.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let Some(top) = schema.as_object() else {
        return Err("is not an object".into());
    };
    // Depth is checked first, in a loop, because the following checks are recursive.
    depth(schema)?;
    let bytes = schema.to_string().len();
    if bytes > MAX_BYTES {
        return Err(format!("has {bytes} bytes, more than {MAX_BYTES}"));
    }
    if top.get("type").is_some_and(|kind| kind != "object") {
        return Err("is not one of an object: arguments have names".into());
    }
    words(schema)?;
    Sizes { root: schema, known: HashMap::new(), open: Vec::new() }.size(schema)?;
    jsonschema::options()
        .offline()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|err| {
            let text: String = err.to_string().chars().take(300).collect();
            format!("cannot be used: {}", text.escape_debug())
        })?;
    Ok(())
}

fn depth(schema: &Value) -> Result<(), String> {
    let mut waiting = vec![(schema, 0)];
    while let Some((value, level)) = waiting.pop() {
        if level > MAX_DEPTH {
            return Err(format!("is nested deeper than {MAX_DEPTH} levels"));
        }
        match value {
            Value::Array(items) => waiting.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(items) => waiting.extend(items.values().map(|item| (item, level + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// Checks every text and every keyword in the value.
fn words(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => text_is_plain(text),
        Value::Array(items) => items.iter().try_for_each(words),
        Value::Object(fields) => fields.iter().try_for_each(|(key, inner)| {
            text_is_plain(key)?;
            match (key.as_str(), inner) {
                ("$ref", Value::String(to)) if to != "#" && !to.starts_with("#/") => {
                    Err(format!("refers to `{}`, outside of itself", short(to)))
                }
                (
                    "$dynamicRef" | "$recursiveRef" | "$dynamicAnchor" | "$recursiveAnchor"
                    | "$anchor" | "$id",
                    Value::String(_),
                ) => Err(format!("uses {key}, which nobody could check")),
                ("$schema", Value::String(draft)) if !known_draft(draft) => {
                    Err(format!("names the draft `{}`, which is not known", short(draft)))
                }
                ("pattern", Value::String(pattern)) if pattern.len() > MAX_PATTERN_BYTES => {
                    Err(format!("has a pattern of more than {MAX_PATTERN_BYTES} bytes"))
                }
                _ => words(inner),
            }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn text_is_plain(text: &str) -> Result<(), String> {
    match hidden_in(text) {
        Some(c) => Err(format!("hides a character (U+{:04X})", u32::from(c))),
        None => Ok(()),
    }
}

fn known_draft(draft: &str) -> bool {
    let bare = draft.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('#').trim_end_matches('/');
    ["draft-04", "draft-06", "draft-07"]
        .iter()
        .any(|name| bare == format!("json-schema.org/{name}/schema"))
        || ["2019-09", "2020-12"]
            .iter()
            .any(|name| bare == format!("json-schema.org/draft/{name}/schema"))
}

fn short(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_debug().to_string()
}

/// Counts the nodes after expanding every reference, without expanding it.
struct Sizes<'a> {
    root: &'a Value,
    known: HashMap<&'a str, usize>,
    /// The references that are being followed: a repeated one is a cycle.
    open: Vec<&'a str>,
}

impl<'a> Sizes<'a> {
    fn size(&mut self, value: &'a Value) -> Result<usize, String> {
        let mut total = 1_usize;
        match value {
            Value::Array(items) => {
                for item in items {
                    total = total.saturating_add(self.size(item)?);
                }
            }
            Value::Object(fields) => {
                for (key, inner) in fields {
                    let more = match (key.as_str(), inner) {
                        ("$ref", Value::String(to)) => self.follow(to)?,
                        _ => self.size(inner)?,
                    };
                    total = total.saturating_add(more);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        if total > MAX_NODES {
            return Err(format!(
                "is larger than {MAX_NODES} parts when its references are followed"
            ));
        }
        Ok(total)
    }

    fn follow(&mut self, to: &'a str) -> Result<usize, String> {
        if let Some(size) = self.known.get(to) {
            return Ok(*size);
        }
        if self.open.contains(&to) {
            return Err(format!("refers to itself in a circle, at `{}`", short(to)));
        }
        let pointer = to.trim_start_matches('#');
        let Some(target) = self.root.pointer(pointer) else {
            return Err(format!("refers to `{}`, which is not there", short(to)));
        };
        self.open.push(to);
        if self.open.len() > MAX_DEPTH {
            return Err("has a chain of too many references".into());
        }
        let size = self.size(target)?;
        self.open.pop();
        self.known.insert(to, size);
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn why(schema: Value) -> String {
        check(&schema).unwrap_err()
    }

    #[test]
    fn ordinary_schemas_are_accepted() {
        assert_eq!(check(&json!({"type": "object"})), Ok(()));
        let usual = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"a": {"$ref": "#/$defs/point"}, "b": {"type": "string", "pattern": "^[a-z]+$"}},
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
            "required": ["a"], "additionalProperties": false
        });
        assert_eq!(check(&usual), Ok(()));
    }

    #[test]
    fn a_recursive_reference_bomb_is_refused_without_expanding_it() {
        // Ten levels of ten references each: ten thousand million parts from two kilobytes.
        let mut defs = serde_json::Map::new();
        for level in 0..10 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            defs.insert(format!("l{level}"), json!({"anyOf": vec![next; 10]}));
        }
        defs.insert("l10".into(), json!({"type": "string"}));
        let bomb =
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/l0"}}, "$defs": defs});
        assert!(why(bomb).contains("larger than"), "refused");
        let circle = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
        assert!(why(circle).contains("circle"));
    }

    #[test]
    fn external_and_hidden_references_are_refused() {
        let to = |to: &str| json!({"type": "object", "properties": {"a": {"$ref": to}}});
        assert!(why(to("http://169.254.169.254/x")).contains("outside of itself"));
        assert!(why(to("file:///etc/passwd")).contains("outside of itself"));
        assert!(why(to("#/nowhere")).contains("not there"));
        assert!(why(json!({"type": "object", "$id": "x"})).contains("$id"));
        assert!(why(json!({"type": "object", "title": "a\u{200b}"})).contains("U+200B"));
        assert!(why(json!({"type": "object", "properties": {"a\u{202e}": {}}})).contains("U+202E"));
        assert!(why(json!({"type": "string"})).contains("not one of an object"));
        assert!(why(json!([])).contains("not an object"));
    }

    #[test]
    fn size_depth_and_patterns_are_bounded() {
        let mut deep = json!({"type": "string"});
        // The reader of messages itself stops at 128 levels.
        for _ in 0..100 {
            deep = json!({ "items": deep });
        }
        assert!(why(json!({"type": "object", "properties": {"a": deep}})).contains("deeper"));
        assert!(why(json!({"type": "object", "title": "x".repeat(70_000)})).contains("bytes"));
        let pattern = |p: &str| json!({"type": "object", "properties": {"a": {"type": "string", "pattern": p}}});
        assert!(why(pattern(&"a".repeat(2000))).contains("pattern"));
        assert!(why(pattern(r"(a)\1")).contains("cannot be used"), "no back references");
        assert_eq!(check(&pattern("^(a+)+$")), Ok(()), "linear, however it looks");
    }
}
