//! JSON that is passed on without being parsed.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON value, kept as the original text.
///
/// An event's payload is hashed as text. Parsing and writing it again would cost time, and could
/// change bytes that an auditor wants to hash.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Keeps `text` unchanged if it is JSON, and otherwise stores it as a JSON string. The log
    /// shows damaged payloads in that way.
    pub fn from_text(text: &str) -> Self {
        let raw = RawValue::from_string(text.to_owned()).unwrap_or_else(|_| {
            serde_json::value::to_raw_value(text).expect("a string is always JSON")
        });
        Self(raw)
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Parses the value.
    pub fn value(&self) -> Value {
        serde_json::from_str(self.0.get()).unwrap_or(Value::Null)
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for RawJson {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::schema!(Value).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for RawJson {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_json_text_is_unchanged_and_invalid_json_becomes_a_string() {
        let raw = RawJson::from_text(r#"{"b": 1.0,"a":[ ]}"#);
        assert_eq!(serde_json::to_string(&raw).unwrap(), r#"{"b": 1.0,"a":[ ]}"#);
        assert_eq!(raw.value()["b"], 1.0);
        let damaged = RawJson::from_text("{\"half");
        assert_eq!(damaged.value(), Value::String("{\"half".into()));
    }
}
