//! What of our own records is masked: what people and programs say, not what the records mean.
//!
//! Events and rows have fields of a fixed meaning: ids, kinds, states, hashes, directories. They are
//! read again, compared and signed; a mask in one would make it another. They are named here: of
//! secrets that the store was told about nothing is masked in them, only what has the shape of a
//! credential, which none of them has. Everything else is masked. Below a field that holds what somebody said ([`SAID`]) there are no
//! such fields: the arguments of a tool may be called `id`, and are masked.

use serde_json::Value;

use super::{Search, redact_text, redact_value};

/// Fields whose text means what it says.
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
/// Endings of such fields.
const FIXED_ENDS: [&str; 5] = ["_id", "_ids", "_at", "_hash", "_name"];
/// Fields that hold what somebody said, however deep.
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

/// Masks in a record of ours; see the module.
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

/// A text, or a list of texts.
fn is_plain(field: &Value) -> bool {
    match field {
        Value::String(_) => true,
        Value::Array(items) => items.iter().all(Value::is_string),
        _ => false,
    }
}
