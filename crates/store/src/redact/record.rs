//! Selects the fields of our own records that are masked: texts of people and programs, but not
//! fields with a fixed meaning.
//!
//! Events and rows have fields with a fixed meaning: ids, kinds, states, hashes, directories. They
//! are read again, compared and signed, so a mask would change what they refer to. These fields are
//! listed here. Known secrets are not masked in them, only texts that have the form of a
//! credential, which none of them has. All other fields are masked. Below a field with a user's or
//! program's text ([`SAID`]) there are no fixed fields: an argument of a tool may be called `id`,
//! and is masked.

use serde_json::Value;

use super::{Search, redact_text, redact_value};

/// Fields whose text has a fixed meaning.
const FIXED: [&str; 69] = [
    "id",
    "ids",
    "agent",
    "alarm",
    "at",
    "author",
    "base",
    "branch",
    "by",
    "cause",
    "class",
    "code",
    "colony",
    "commit",
    "commits",
    "created_at",
    "created_by",
    "cwd",
    "decision",
    "digest",
    "directory",
    "driver",
    "effect",
    "ended_at",
    "for",
    "format",
    "from",
    "gated",
    "hash",
    "head",
    "hive",
    "kind",
    "lastTransition",
    "level",
    "life",
    "mode",
    "model",
    "name",
    "network",
    "of",
    "owner",
    "parent",
    "path",
    "paths",
    "phase",
    "place",
    "policy",
    "provider",
    "repository",
    "risk",
    "role_name",
    "root",
    "run",
    "sandbox",
    "schema",
    "session",
    "signature",
    "source",
    "started_at",
    "state",
    "status",
    "stream",
    "target",
    "tool",
    "toolset",
    "trace",
    "type",
    "workspace",
    "worktree",
];
/// Suffixes of such fields.
const FIXED_ENDS: [&str; 5] = ["_id", "_ids", "_at", "_hash", "_name"];
/// Fields that hold texts of users and programs, at any depth.
const SAID: [&str; 27] = [
    "annotations",
    "answer",
    "args",
    "args_json",
    "argv",
    "arguments",
    "body",
    "content",
    "data",
    "details",
    "env",
    "input",
    "lines",
    "message",
    "messages",
    "metadata",
    "output",
    "payload",
    "prompt",
    "provider_state",
    "question",
    "reasoning",
    "result",
    "tail",
    "task",
    "text",
    "value",
];

/// Masks secrets in one of our records; see the module.
pub(super) fn redact_record(known: Option<&Search>, value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            redact_text(known, text);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_record(known, item)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if SAID.contains(&name.as_str()) {
                    redact_value(known, field);
                } else if is_fixed(name) && is_plain(field) {
                    redact_value(None, field);
                } else {
                    redact_record(known, field);
                }
            }
        }
    }
}

fn is_fixed(name: &str) -> bool {
    FIXED.contains(&name) || FIXED_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a field is a text, or a list of texts.
fn is_plain(field: &Value) -> bool {
    match field {
        Value::String(_) => true,
        Value::Array(items) => items.iter().all(Value::is_string),
        _ => false,
    }
}
