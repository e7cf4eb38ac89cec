//! The kind `Context`: values, files and a part of a prompt that agents share by name. Sessions
//! that name a context get its contents ([`crate::session::given`]).

use serde_json::{Map, Value, json};

use super::{not_a, unknown_fields};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record};
use crate::row::Role;
use crate::session::given::{MAX_PATH, path_mistake};

/// Longest key of `values`, in bytes.
const MAX_KEY: usize = 253;

pub const CONTEXT: KindInfo = KindInfo {
    name: "context",
    plural: "contexts",
    aliases: &["ctx", "configmap", "configmaps", "cm"],
    check,
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Operator,
    },
    columns: &[
        Column { name: "VALUES", is_wide: false, cell: |record, _| count(record, "values") },
        Column { name: "FILES", is_wide: false, cell: |record, _| count(record, "files") },
        Column { name: "PROMPT", is_wide: true, cell: |record, _| beginning(record) },
    ],
    schema,
    changed_by: None,
};

fn schema() -> Value {
    json!({
        "description": "A named set of variables, files and prompt text. A run that names the \
            Context gets the values as variables of its commands, the files to read, and the \
            prompt for its model.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "values": {
                "description": "Variables: names and texts. Not for secrets: keep those in the \
                    vault.",
                "type": "object",
                "maxProperties": 1024,
                "propertyNames": { "pattern": "^[A-Za-z0-9._-]{1,253}$" },
                "additionalProperties": { "type": "string" },
            },
            "files": {
                "description": "Files: paths and contents. A path is relative, without `..` and \
                    without empty parts.",
                "type": "object",
                "maxProperties": 1024,
                "propertyNames": { "maxLength": MAX_PATH, "minLength": 1 },
                "additionalProperties": { "type": "string" },
            },
            "prompt": {
                "description": "A text for the model of runs that name this context.",
                "type": "string",
            },
        },
    })
}

fn check(spec: &Value) -> Vec<FieldError> {
    let Some(spec) = spec.as_object() else { return vec![not_a("spec", "a mapping", spec)] };
    let mut wrong = unknown_fields("spec", spec, &["files", "prompt", "values"]);
    texts(&mut wrong, spec, "values", key_mistake);
    texts(&mut wrong, spec, "files", path_mistake);
    if let Some(prompt) = spec.get("prompt").filter(|prompt| !prompt.is_string()) {
        wrong.push(not_a("spec.prompt", "a text", prompt));
    }
    wrong
}

/// Checks a mapping of texts. `mistake` checks each key.
fn texts(
    wrong: &mut Vec<FieldError>,
    spec: &Map<String, Value>,
    field: &str,
    mistake: fn(&str) -> Option<&'static str>,
) {
    let at = format!("spec.{field}");
    let Some(found) = spec.get(field) else { return };
    let Some(entries) = found.as_object() else {
        return wrong.push(not_a(&at, "a mapping of texts", found));
    };
    if entries.len() > 1024 {
        wrong
            .push(FieldError::new(&at, format!("has {} entries; 1024 is the most", entries.len())));
    }
    for (key, value) in entries {
        let path = format!("{at}.{key}");
        if let Some(problem) = mistake(key) {
            wrong.push(FieldError::new(&path, problem));
        }
        if !value.is_string() {
            wrong.push(not_a(&path, "a text", value));
        }
    }
}

fn key_mistake(key: &str) -> Option<&'static str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let sound = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(plain);
    (!sound).then_some("must have a key of 1 to 253 letters, digits, `.`, `_` and `-`")
}

fn count(record: &Record, field: &str) -> String {
    record.spec.get(field).and_then(Value::as_object).map_or(0, Map::len).to_string()
}

fn beginning(record: &Record) -> String {
    let prompt = record.spec.get("prompt").and_then(Value::as_str).unwrap_or_default();
    prompt.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_context_is_reported_with_its_path() {
        let good = json!({"values": {"PORT": "80"}, "files": {"a/b.md": "x"}, "prompt": "p"});
        assert_eq!(check(&good), []);
        assert_eq!(check(&json!({})), []);
        let bad = json!({"valeus": {}, "values": {"a b": "x", "PORT": 80}, "files": {"../x": ""}});
        let all: Vec<String> = check(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(all.len(), 4, "{all:?}");
        for want in [
            "spec.valeus is not a field; did you mean `values`?",
            "spec.values.a b must",
            "spec.values.PORT must be a text, not a number; put it in quotes",
            "spec.files.../x must",
        ] {
            assert!(all.iter().any(|one| one.starts_with(want)), "{want}: {all:?}");
        }
    }
}
