//! The kind `MemoryClaim`: a directory and a memory collection that outlive the runs that use them.
//! Sessions that name a claim get both ([`crate::session::claims`]).

use serde_json::{Value, json};

use super::{not_a, unknown_fields};
use crate::record::kind::{Column, KindInfo, RecordVerb};
use crate::record::{FieldError, Record};
use crate::row::Role;

/// Maximum number of characters in the name of a collection.
const MAX_COLLECTION: usize = 64;

pub const MEMORY_CLAIM: KindInfo = KindInfo {
    name: "memory-claim",
    plural: "memory-claims",
    aliases: &[
        "memoryclaim",
        "memoryclaims",
        "claim",
        "claims",
        "mc",
        "pvc",
        "persistentvolumeclaim",
        "persistentvolumeclaims",
    ],
    check,
    terms: |_| Vec::new(),
    due: |_, _| None,
    role: |verb| match verb {
        RecordVerb::Read => Role::Viewer,
        RecordVerb::Put | RecordVerb::Status | RecordVerb::Delete => Role::Operator,
    },
    columns: &[
        Column { name: "ACCESS", is_wide: false, cell: |record, _| access(record).to_owned() },
        Column { name: "DIRECTORY", is_wide: false, cell: |record, _| has_directory(record) },
        Column { name: "COLLECTION", is_wide: false, cell: |record, _| collection(record) },
    ],
    schema,
    changed_by: None,
};

fn schema() -> Value {
    json!({
        "description": "A directory and a memory collection that stay when the runs that use them \
            end. A run that names the claim gets the directory's path as a variable.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "directory": {
                "description": "Whether the claim has a directory. The server makes it when a run \
                    first needs it, and keeps it when the claim is deleted.",
                "type": "boolean", "default": true,
            },
            "collection": {
                "description": "The memory collection of runs with this claim. Their memory tools \
                    use it, and no collection that no claim of the run names.",
                "type": "string", "minLength": 1, "maxLength": MAX_COLLECTION,
            },
            "readOnly": {
                "description": "Whether all runs may only read. Without it, a run that names the \
                    claim as `NAME:ro` may only read.",
                "type": "boolean", "default": false,
            },
        },
    })
}

/// The content of a claim's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSpec {
    pub directory: bool,
    pub collection: Option<String>,
    pub read_only: bool,
}

impl ClaimSpec {
    /// Reads a spec without mistakes.
    pub fn of(spec: &Value) -> Self {
        let is = |field: &str, usual| spec.get(field).and_then(Value::as_bool).unwrap_or(usual);
        let collection = spec.get("collection").and_then(Value::as_str);
        Self {
            directory: is("directory", true),
            collection: collection.map(str::to_owned),
            read_only: is("readOnly", false),
        }
    }
}

fn check(spec: &Value) -> Vec<FieldError> {
    let Some(fields) = spec.as_object() else { return vec![not_a("spec", "a mapping", spec)] };
    let mut wrong = unknown_fields("spec", fields, &["collection", "directory", "readOnly"]);
    for field in ["directory", "readOnly"] {
        if let Some(found) = fields.get(field).filter(|found| !found.is_boolean()) {
            wrong.push(not_a(&format!("spec.{field}"), "true or false", found));
        }
    }
    match fields.get("collection") {
        None => {}
        Some(Value::String(name)) => {
            let sound = !name.is_empty()
                && name.chars().nth(MAX_COLLECTION).is_none()
                && !name.contains(char::is_control);
            if !sound {
                let text = format!("must be a text of 1 to {MAX_COLLECTION} characters");
                wrong.push(FieldError::new("spec.collection", text));
            }
        }
        Some(found) => wrong.push(not_a("spec.collection", "a text", found)),
    }
    let none = fields.get("directory") == Some(&Value::Bool(false));
    if wrong.is_empty() && none && !fields.contains_key("collection") {
        let error = FieldError::new("spec", "claims nothing");
        wrong.push(error.hint("leave out `directory: false`, or name a `collection`"));
    }
    wrong
}

fn access(record: &Record) -> &'static str {
    if ClaimSpec::of(&record.spec).read_only { "read-only" } else { "read-write" }
}

fn has_directory(record: &Record) -> String {
    if ClaimSpec::of(&record.spec).directory { "yes" } else { "no" }.to_owned()
}

fn collection(record: &Record) -> String {
    ClaimSpec::of(&record.spec).collection.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_memory_claim_is_reported_with_its_path() {
        assert_eq!(check(&json!({})), []);
        assert_eq!(check(&json!({"directory": false, "collection": "lessons"})), []);
        let bad = json!({"directory": "yes", "colection": "x", "readOnly": 1, "collection": ""});
        let all: Vec<String> = check(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(all.len(), 4, "{all:?}");
        for want in [
            "spec.colection is not a field; did you mean `collection`?",
            "spec.directory must be true or false, not a text",
            "spec.readOnly must be true or false, not a number",
            "spec.collection ",
        ] {
            assert!(all.iter().any(|one| one.starts_with(want)), "{want}: {all:?}");
        }
        let nothing = check(&json!({"directory": false}));
        assert!(nothing[0].to_string().starts_with("spec claims nothing"), "{nothing:?}");
    }
}
