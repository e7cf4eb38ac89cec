//! Every kind of resource: names, columns, roles and fields, from the registry of kinds.

use std::fmt::Write as _;

use overmind_core::record::{KINDS, KindInfo, RecordVerb};
use serde_json::Value;

use super::{cell, code, head};

/// `docs/reference/kinds.md`.
pub(super) fn page() -> String {
    let mut text = head(
        "Kinds",
        "Every resource has `apiVersion: overmind/v1`, `kind`, `metadata` (`name`, `labels`, `annotations`, \
         `finalizers`) and `spec`; the server adds `status`. [Resources](../resources.md) describes how they \
         are applied, listed and watched. `overmind explain KIND` prints the fields of a kind.",
    );
    text.push_str("\n| kind | plural | other names | written with |\n|---|---|---|---|\n");
    for kind in KINDS {
        let aliases: Vec<String> = kind.aliases.iter().map(|alias| code(alias)).collect();
        let _ = writeln!(
            text,
            "| [{0}](#{0}) | `{1}` | {2} | {3} |",
            kind.name,
            kind.plural,
            aliases.join(", "),
            match kind.changed_by {
                None => "`overmind apply`".to_owned(),
                Some(command) if command.starts_with("overmind ") => code(command),
                Some(words) => cell(words),
            },
        );
    }
    for kind in KINDS {
        one(&mut text, kind);
    }
    text
}

fn one(text: &mut String, kind: &KindInfo) {
    let schema = (kind.schema)();
    let about = schema["description"].as_str().unwrap_or_default();
    let _ = write!(text, "\n## {}\n\n{}\n\n", kind.name, cell(about).replace("\\|", "|"));
    let columns = |is_wide: bool| -> Vec<String> {
        kind.columns.iter().filter(|c| c.is_wide == is_wide).map(|c| code(c.name)).collect()
    };
    let all = ["`NAME`".to_owned()].into_iter().chain(columns(false)).chain(["`AGE`".to_owned()]);
    let _ = write!(text, "Columns: {}", all.collect::<Vec<_>>().join(", "));
    let wide = columns(true);
    if !wide.is_empty() {
        let _ = write!(text, "; with `-o wide` also {}", wide.join(", "));
    }
    let _ = write!(text, ".\nRole to read: `{}`", (kind.role)(RecordVerb::Read).as_str());
    if kind.changed_by.is_none() {
        let _ = write!(
            text,
            ", to write: `{}`, to delete: `{}`",
            (kind.role)(RecordVerb::Put).as_str(),
            (kind.role)(RecordVerb::Delete).as_str()
        );
    }
    text.push_str(".\n");
    let mut rows = String::new();
    fields(&mut rows, "spec", &schema);
    if !rows.is_empty() {
        text.push_str("\n| field | type | meaning |\n|---|---|---|\n");
        text.push_str(&rows);
    }
}

/// A row for each field below `schema`, by its path.
fn fields(rows: &mut String, at: &str, schema: &Value) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{name}");
        let mut meaning = cell(field["description"].as_str().unwrap_or_default());
        if let Some(words) = field["enum"].as_array() {
            let words: Vec<String> = words.iter().filter_map(Value::as_str).map(code).collect();
            let _ = write!(meaning, " One of {}.", words.join(", "));
        }
        if let Some(default) = field.get("default") {
            let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            let _ = write!(meaning, " Default: {}.", code(&default));
        }
        let must = if required.contains(&name.as_str()) { ", required" } else { "" };
        let _ =
            writeln!(rows, "| {} | {}{must} | {} |", code(&path), type_of(field), meaning.trim());
        fields(rows, &path, field);
        fields(rows, &format!("{path}[]"), &field["items"]);
        fields(rows, &format!("{path}.*"), &field["additionalProperties"]);
    }
}

/// The type of a field in words: `array of string`.
fn type_of(field: &Value) -> String {
    let bounds = match (field["minimum"].as_u64(), field["maximum"].as_u64()) {
        (Some(min), Some(max)) => format!(", {min} to {max}"),
        (Some(min), None) => format!(", from {min}"),
        (None, Some(max)) => format!(", up to {max}"),
        (None, None) => String::new(),
    };
    match &field["type"] {
        Value::String(name) if name == "array" => format!("array of {}", type_of(&field["items"])),
        Value::String(name) => format!("{name}{bounds}"),
        Value::Array(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            format!("{}{bounds}", names.join(" or "))
        }
        _ => "any".to_owned(),
    }
}
