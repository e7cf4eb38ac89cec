//! The kind `Project`: a directory in which callers below admin may start runs.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use super::{not_a, unknown_fields};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record};
use crate::row::Role;

/// Maximum number of API keys that one project names.
const MAX_CALLERS: usize = 1_000;

pub const PROJECT: KindInfo = KindInfo {
    name: "project",
    plural: "projects",
    aliases: &["proj"],
    check,
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Admin,
    },
    columns: &[
        Column { name: "PATH", is_wide: false, cell: |record, _| path_text(record) },
        Column { name: "CALLERS", is_wide: false, cell: |record, _| callers_text(record) },
        Column { name: "TRUST", is_wide: false, cell: |record, _| trust_text(record) },
    ],
    schema,
    changed_by: None,
};

/// Returns the directory, and the keys that may use it. `None` allows all callers that may start
/// runs.
pub fn read(record: &Record) -> Option<(PathBuf, Option<Vec<&str>>)> {
    let path = record.spec.get("path").and_then(Value::as_str)?;
    let callers = record.spec.get("callers").and_then(Value::as_array);
    let callers = callers.map(|all| all.iter().filter_map(Value::as_str).collect());
    Some((PathBuf::from(path), callers))
}

/// Returns whether this project allows a caller to start runs at `place`, which must contain no
/// links. `None` if `place` is outside the project.
pub fn allows(record: &Record, caller: &str, place: &Path) -> Option<bool> {
    let (path, callers) = read(record)?;
    let allowed = || callers.is_none_or(|all| all.contains(&caller));
    place.starts_with(&path).then(allowed)
}

/// Returns the project's directory, if it allows a caller to start runs there.
pub fn path_for(record: &Record, caller: &str) -> Option<PathBuf> {
    let (path, callers) = read(record)?;
    callers.is_none_or(|all| all.contains(&caller)).then_some(path)
}

fn schema() -> Value {
    json!({
        "description": "A directory that callers below admin may have runs work in. What its \
            .overmind.yml orders runs only after `overmind trust`.",
        "type": "object",
        "required": ["path"],
        "additionalProperties": false,
        "properties": {
            "path": {
                "description": "Absolute path on the server's machine, without `..`. No part of it \
                    may be a symbolic link when it is used.",
                "type": "string", "pattern": "^/",
            },
            "callers": {
                "description": "Names of the keys that may use the project. Without it, all keys \
                    that may start runs.",
                "type": "array", "items": { "type": "string", "minLength": 1 },
                "maxItems": MAX_CALLERS,
            },
        },
    })
}

fn check(spec: &Value) -> Vec<FieldError> {
    let Some(fields) = spec.as_object() else { return vec![not_a("spec", "a mapping", spec)] };
    let mut wrong = unknown_fields("spec", fields, &["callers", "path"]);
    match fields.get("path") {
        None => wrong.push(FieldError::new("spec.path", "is required").hint("an absolute path")),
        Some(Value::String(text)) => {
            let path = Path::new(text);
            let mut parts = path.components();
            let plain = parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            if !path.is_absolute() || !plain || text.contains('\0') {
                let problem = "must be an absolute path without `..`";
                wrong.push(FieldError::new("spec.path", problem));
            } else if path.parent().is_none() {
                let problem = "must not be `/`: that would be every file that the server can read";
                wrong.push(FieldError::new("spec.path", problem));
            }
        }
        Some(other) => wrong.push(not_a("spec.path", "a text", other)),
    }
    match fields.get("callers") {
        None => {}
        Some(Value::Array(all)) if all.len() <= MAX_CALLERS => {
            for (at, one) in all.iter().enumerate() {
                if one.as_str().is_none_or(str::is_empty) {
                    wrong.push(not_a(&format!("spec.callers[{at}]"), "the name of a key", one));
                }
            }
        }
        Some(other) => wrong.push(not_a("spec.callers", "a list of names of keys", other)),
    }
    wrong
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(100).collect()
}

fn path_text(record: &Record) -> String {
    plain(record.spec.get("path").and_then(Value::as_str).unwrap_or_default())
}

fn callers_text(record: &Record) -> String {
    match read(record) {
        Some((_, Some(callers))) => plain(&callers.join(",")),
        Some((_, None)) | None => "all".to_owned(),
    }
}

fn trust_text(record: &Record) -> String {
    plain(record.status.get("trust").and_then(Value::as_str).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_an_absolute_path_other_than_the_root() {
        assert_eq!(check(&json!({"path": "/srv/web", "callers": ["ci"]})), []);
        for (bad, at) in [
            (json!({}), "spec.path"),
            (json!({"path": "web"}), "spec.path"),
            (json!({"path": "/srv/../etc"}), "spec.path"),
            (json!({"path": "/"}), "spec.path"),
            (json!({"path": 1}), "spec.path"),
            (json!({"path": "/a", "callers": "ci"}), "spec.callers"),
            (json!({"path": "/a", "callers": [""]}), "spec.callers[0]"),
            (json!({"path": "/a", "caller": []}), "spec.caller"),
        ] {
            let wrong = check(&bad);
            assert_eq!(wrong.first().map(|one| one.path.as_str()), Some(at), "{bad}");
        }
    }
}
