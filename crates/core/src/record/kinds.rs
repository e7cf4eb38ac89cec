//! The kinds of the product, one file each. [`super::KINDS`] lists them.

use serde_json::{Map, Value};

use super::FieldError;
use crate::nearest::nearest;

pub mod colony;
pub mod context;
pub mod fleet;
pub mod memory_claim;
pub mod project;
pub mod quest;
pub mod ritual;
pub mod shown;

/// Returns a mistake for each field of `object` that is not in `known`, with the most similar known
/// field. `at` is the path of the object: `spec`.
pub fn unknown_fields(at: &str, object: &Map<String, Value>, known: &[&str]) -> Vec<FieldError> {
    let unknown = object.keys().filter(|name| !known.contains(&name.as_str()));
    let wrong = unknown.map(|name| {
        let error = FieldError::new(format!("{at}.{name}"), "is not a field");
        match nearest(name, known.iter().copied()) {
            Some(meant) => error.hint(format!("did you mean `{meant}`?")),
            None => error.hint(format!("the fields of {at} are {}", known.join(", "))),
        }
    });
    wrong.collect()
}

/// Returns a mistake that says what a value must be and what it is.
pub fn not_a(at: &str, wanted: &str, found: &Value) -> FieldError {
    let (found, hint) = match found {
        Value::Null => ("nothing", None),
        Value::Bool(_) => ("true or false", Some("put it in quotes")),
        Value::Number(_) => ("a number", Some("put it in quotes")),
        Value::String(_) => ("a text", None),
        Value::Array(_) => ("a list", None),
        Value::Object(_) => ("a mapping", None),
    };
    let error = FieldError::new(at, format!("must be {wanted}, not {found}"));
    match hint {
        Some(hint) if wanted == "a text" => error.hint(hint),
        Some(_) | None => error,
    }
}
