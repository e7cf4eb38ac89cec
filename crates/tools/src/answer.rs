//! The result of a handler, and its envelope.

use overmind_core::tool::Labels;
use serde_json::{Map, Value, json};

/// The fields of a success. `ok: true` is added in front unless the handler set `ok` itself (a
/// command that exited non-zero is a result, not a failure).
pub type Answer = Result<Map<String, Value>, Failure>;

/// A failure: `{"ok":false,"error":{"code","message","details"?}}` plus fields of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure(Box<Inner>);

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    code: String,
    message: String,
    details: Option<Value>,
    /// Fields next to `error`, for example `command`.
    beside: Map<String, Value>,
}

impl Failure {
    /// Makes a failure. `code` is for programs (`bad_args`, `not_found`, `size_limit`,
    /// `tool_error`, …); `message` is for the agent: what was attempted, why it failed, what to do.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        let (code, message) = (code.to_owned(), message.into());
        Self(Box::new(Inner { code, message, details: None, beside: Map::new() }))
    }

    pub(crate) fn bad_args(message: impl Into<String>) -> Self {
        Self::new("bad_args", message)
    }

    pub(crate) fn tool_error(message: impl Into<String>) -> Self {
        Self::new("tool_error", message)
    }

    pub(crate) fn code(&self) -> &str {
        &self.0.code
    }

    /// The message, followed by the other errors if there are several.
    pub(crate) fn in_words(&self) -> String {
        let details = self.0.details.as_ref().and_then(|details| details.get("errors"));
        let all = details.and_then(Value::as_array).into_iter().flatten();
        let all: Vec<&str> = all.filter_map(Value::as_str).collect();
        if all.is_empty() { self.0.message.clone() } else { all.join("; ") }
    }

    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.0.details = Some(details);
        self
    }

    /// Adds a field next to `error`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.beside.insert(key.into(), value.into());
        self
    }

    /// Marks the failure as one about another party, which may have chosen its text.
    #[must_use]
    pub(crate) fn outside(self, url: &reqwest::Url) -> Self {
        self.with(Labels::UNTRUSTED, true).with(Labels::SOURCE, source_of(url))
    }

    /// Adds fields next to `error`.
    #[must_use]
    pub fn with_all(mut self, fields: Map<String, Value>) -> Self {
        self.0.beside.extend(fields);
        self
    }
}

/// Labels fields that contain text from `source`, which is untrusted; see [`Labels`].
pub fn untrusted(mut fields: Map<String, Value>, source: &str) -> Map<String, Value> {
    fields.insert(Labels::UNTRUSTED.into(), true.into());
    fields.insert(Labels::SOURCE.into(), cut(source, 200).into());
    fields
}

/// The source of a page as it is shown: without the query, which may contain anything.
pub(crate) fn source_of(url: &reqwest::Url) -> String {
    brief(&format!("{}{}", url.origin().ascii_serialization(), url.path()))
}

/// The envelope of an answer.
pub(crate) fn envelope(answer: Answer) -> Value {
    match answer {
        Ok(fields) if fields.contains_key("ok") => Value::Object(fields),
        Ok(fields) => {
            let mut all = Map::new();
            all.insert("ok".into(), Value::Bool(true));
            all.extend(fields);
            Value::Object(all)
        }
        Err(Failure(failure)) => {
            let Inner { code, message, details, beside } = *failure;
            let mut error = json!({"code": code, "message": message});
            if let (Some(details), Some(error)) = (details, error.as_object_mut()) {
                error.insert("details".into(), details);
            }
            let mut all = Map::new();
            all.insert("ok".into(), Value::Bool(false));
            all.insert("error".into(), error);
            all.extend(beside);
            Value::Object(all)
        }
    }
}

/// The fields of an object literal.
pub(crate) fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// The longest prefix of `text` that has at most `max_bytes` bytes.
pub(crate) fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Shortens `text` with an ellipsis if it is long: for names and paths that a model chose.
pub(crate) fn brief(text: &str) -> String {
    let kept = cut(text, 200);
    if kept.len() == text.len() { text.into() } else { format!("{kept}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_never_splits_a_character() {
        assert_eq!(cut("aéb", 2), "a");
        assert_eq!(cut("aéb", 3), "aé");
        assert_eq!(cut("aéb", 300), "aéb");
        assert_eq!(brief(&"x".repeat(201)), format!("{}…", "x".repeat(200)));
    }

    #[test]
    fn the_envelope_starts_with_ok_and_keeps_the_handlers_fields() {
        let good = envelope(Ok(fields(json!({"path": "a"}))));
        assert_eq!(good.to_string(), r#"{"ok":true,"path":"a"}"#);
        let exited = envelope(Ok(fields(json!({"ok": false, "exit_code": 3}))));
        assert_eq!(exited.to_string(), r#"{"ok":false,"exit_code":3}"#);
        let failed = envelope(Err(Failure::new("timeout", "too slow")
            .with_details(json!({"timeout_s": 1}))
            .with("command", "sleep 9")));
        assert_eq!(
            failed.to_string(),
            r#"{"ok":false,"error":{"code":"timeout","message":"too slow","details":{"timeout_s":1}},"command":"sleep 9"}"#
        );
    }
}
