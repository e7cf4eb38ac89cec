//! The end of an answer: why it stopped, and its error.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest code word of a provider that is stored, in bytes.
const MAX_WORD: usize = 64;
/// Longest error message that is stored, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Maximum number of choices of an answer whose ends are stored.
pub const MAX_CHOICES: usize = 16;

/// How an answer ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The provider's id of the answer.
    pub id: Option<String>,
    /// Why each choice ended, as returned by [`finish`].
    pub finish: Vec<Cow<'static, str>>,
    pub error: Option<CallError>,
}

/// The error, from the provider or from this server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// The code: `rate_limit_error`, `context_length_exceeded`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// At most 1,024 bytes. A provider may quote parts of the request in it.
    pub message: String,
}

/// Returns an id or name if it is short and printable; `None` otherwise.
pub fn word(text: &str) -> Option<&str> {
    let text = text.trim();
    let sound = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    (sound && text.len() <= MAX_WORD).then_some(text)
}

/// Returns why an answer stopped, as OpenTelemetry's conventions name it: `stop`, `length`,
/// `tool_call`, `content_filter`, `error`. Other reasons keep the provider's own name.
pub fn finish(theirs: &str) -> Option<Cow<'static, str>> {
    Some(match theirs {
        "stop" | "end_turn" | "stop_sequence" | "completed" => Cow::Borrowed("stop"),
        "length" | "max_tokens" | "max_output_tokens" | "model_context_window_exceeded" => {
            Cow::Borrowed("length")
        }
        "tool_call" | "tool_calls" | "tool_use" | "function_call" => Cow::Borrowed("tool_call"),
        "content_filter" | "refusal" => Cow::Borrowed("content_filter"),
        "error" | "failed" => Cow::Borrowed("error"),
        theirs => Cow::Owned(word(theirs)?.to_owned()),
    })
}

impl CallError {
    pub fn new(kind: &str, message: &str) -> Self {
        Self {
            kind: word(kind).unwrap_or("error").to_owned(),
            message: message[..message.floor_char_boundary(MAX_MESSAGE)].to_owned(),
        }
    }

    /// Reads the error from a body or an event of a provider, in any of the usual forms: `{"error":
    /// {"type", "code", "message"}}`, `{"error": "text"}`, or its fields alone.
    pub fn read(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        match body.get("error").filter(|error| !error.is_null()) {
            Some(error) => Self::of(error),
            None => Self::of(&body),
        }
    }

    /// Reads the error from the value of `error` itself.
    pub fn of(error: &Value) -> Option<Self> {
        if let Some(message) = error.as_str() {
            return Some(Self::new("error", message));
        }
        let text = |name: &str| error.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        // A code says more than the kind of errors that it is one of.
        let kind = text("code").or_else(|| text("type").filter(|kind| *kind != "error"));
        let message = text("message").or_else(|| text("detail"));
        match (kind, message) {
            (None, None) => None,
            (kind, message) => Some(Self::new(kind.unwrap_or("error"), message.unwrap_or(""))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_finish_reasons_of_all_providers_are_mapped() {
        for (theirs, ours) in [
            ("stop", "stop"),
            ("end_turn", "stop"),
            ("completed", "stop"),
            ("length", "length"),
            ("max_tokens", "length"),
            ("max_output_tokens", "length"),
            ("tool_calls", "tool_call"),
            ("tool_use", "tool_call"),
            ("refusal", "content_filter"),
            ("pause_turn", "pause_turn"),
        ] {
            assert_eq!(finish(theirs).as_deref(), Some(ours), "{theirs}");
        }
        for bad in ["", "two words", "l\u{f6}sung", &"x".repeat(65)] {
            assert_eq!(finish(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_error_is_parsed_in_the_shapes_of_all_providers() {
        for (body, kind, message) in [
            (
                r#"{"error":{"message":"slow","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
                "rate_limit_exceeded",
                "slow",
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#,
                "overloaded_error",
                "busy",
            ),
            (r#"{"error":{"message":"no","type":"t","code":null}}"#, "t", "no"),
            (r#"{"error":"plain"}"#, "error", "plain"),
            (
                r#"{"type":"error","code":"server_error","message":"x","sequence_number":3}"#,
                "server_error",
                "x",
            ),
            (r#"{"detail":"Not Found"}"#, "error", "Not Found"),
            (r#"{"error":{"code":400,"message":"no word"}}"#, "error", "no word"),
        ] {
            let read = CallError::read(body.as_bytes()).unwrap();
            assert_eq!((read.kind.as_str(), read.message.as_str()), (kind, message), "{body}");
        }
        for none in ["", "{}", "[]", "<html>", r#"{"error":null}"#, r#"{"error":{}}"#] {
            assert_eq!(CallError::read(none.as_bytes()), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn error_texts_of_providers_are_truncated(
            kind in "\\PC{0,9}", message in "\\PC{0,9}", times in 0_usize..150,
        ) {
            let (kind, message) = (kind.repeat(times % 11), message.repeat(times));
            let body = serde_json::json!({"error": {"type": kind, "message": message}});
            if let Some(read) = CallError::read(body.to_string().as_bytes()) {
                prop_assert!(read.kind.len() <= MAX_WORD && !read.kind.is_empty());
                prop_assert!(read.kind.bytes().all(|b| b.is_ascii_graphic()));
                prop_assert!(read.message.len() <= MAX_MESSAGE && message.starts_with(&read.message));
            }
        }
    }
}
