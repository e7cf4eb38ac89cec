//! Errors of the API: RFC 9457 problems that older clients can read too.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The error of a request.
///
/// `ok` is always false and `error` is a text, as in earlier control planes. The other fields
/// follow RFC 9457. The content type is `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `urn:overmind:problem:` followed by a word of [`ProblemKind`].
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "urn:overmind:problem:not_found"))]
    pub kind: String,
    /// A title, the same for all problems of a kind.
    pub title: String,
    pub status: u16,
    /// What was attempted, on which object, and why it failed. The same text as `error`.
    pub detail: String,
    #[cfg_attr(feature = "openapi", schema(default = false))]
    pub ok: bool,
    #[cfg_attr(feature = "openapi", schema(example = "Run not found"))]
    pub error: String,
    /// What the reader can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The wrong fields of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The id of the request, for finding it in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// The path of the field: `name`, `limits.max_steps`, `tools_allowed[2]`.
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:literal $word:literal $title:literal,)+) => {
        /// The closed set of problem types, each with its HTTP status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ProblemKind { $($(#[$doc])* $kind,)+ }

        impl ProblemKind {
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            pub const fn status(self) -> u16 {
                match self { $(Self::$kind => $status),+ }
            }

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $word),+ }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title),+ }
            }
        }
    };
}

kinds! {
    /// The request is not valid HTTP, for example because it has no Host header or two.
    BadRequest = 400 "bad_request" "The request is malformed",
    Unauthenticated = 401 "unauthenticated" "A valid token is needed",
    /// The caller may not do this, or the request comes from a foreign origin.
    Forbidden = 403 "forbidden" "The caller may not do this",
    /// The project's file orders commands or rights that no admin has confirmed.
    Untrusted = 403 "untrusted" "An admin has not confirmed what the project orders",
    NotFound = 404 "not_found" "There is no such thing",
    MethodNotAllowed = 405 "method_not_allowed" "The path does not take this method",
    /// The body did not arrive in time.
    Timeout = 408 "timeout" "The request took too long to arrive",
    Conflict = 409 "conflict" "The thing's state does not allow this",
    /// The position from which to continue is no longer kept.
    Gone = 410 "gone" "That is no longer kept",
    /// `If-Match` names another version.
    Stale = 412 "stale" "The thing has changed since it was read",
    TooLarge = 413 "too_large" "The body is too large",
    /// The route does not accept the body's content type.
    MediaType = 415 "unsupported_media_type" "The body has the wrong type",
    /// The Host header contains no name of this server.
    Misdirected = 421 "misdirected" "This server does not answer for that host",
    Invalid = 422 "invalid" "The request's content is wrong",
    RateLimited = 429 "rate_limited" "Too many requests",
    /// The server has a bug or damaged state. Its log contains the details.
    Internal = 500 "internal" "The server failed",
    /// The server drains, is full, or cannot write to its store now.
    Unavailable = 503 "unavailable" "The server cannot do this now",
    /// The work continues; its result can be read later.
    Slow = 504 "slow" "The work takes longer than the server waits",
}

impl ProblemKind {
    /// The prefix of `Problem::kind`.
    pub const URN: &'static str = "urn:overmind:problem:";

    /// Returns the kind of a problem's `type`.
    pub fn parse(urn: &str) -> Option<Self> {
        let word = urn.strip_prefix(Self::URN)?;
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

impl Problem {
    pub fn new(kind: ProblemKind, error: impl Into<String>) -> Self {
        let error = error.into();
        Self {
            kind: format!("{}{}", ProblemKind::URN, kind.as_str()),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: error.clone(),
            ok: false,
            error,
            hint: None,
            errors: Vec::new(),
            request_id: None,
        }
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Creates the problem of a request with wrong fields. Its text names all of them.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Self { errors, ..Self::new(ProblemKind::Invalid, text) }
    }

    /// Returns the problem's kind, if this program knows it.
    pub fn known_kind(&self) -> Option<ProblemKind> {
        ProblemKind::parse(&self.kind)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl std::error::Error for Problem {}

pub(crate) fn refuse_blank(errors: &mut Vec<FieldError>, field: &str, text: &str) {
    if text.trim().is_empty() {
        errors.push(FieldError::new(field, "must not be blank"));
    }
}

pub(crate) fn refuse_long(errors: &mut Vec<FieldError>, field: &str, text: &str, max: usize) {
    let chars = text.chars().count();
    if chars > max {
        let message = format!("must have at most {max} characters, not {chars}");
        errors.push(FieldError::new(field, message));
    }
}

pub(crate) fn refuse_non_object(errors: &mut Vec<FieldError>, field: &str, value: &Value) {
    let found = match value {
        Value::Object(_) => return,
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    errors.push(FieldError::new(field, format!("must be an object, not {found}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_follows_rfc_9457_and_keeps_the_fields_for_old_clients() {
        let problem = Problem::new(ProblemKind::NotFound, "Run not found");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "urn:overmind:problem:not_found",
                "title": "There is no such thing",
                "status": 404,
                "detail": "Run not found",
                "ok": false,
                "error": "Run not found",
            })
        );
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }

    #[test]
    fn every_kind_is_found_by_its_urn() {
        for &kind in ProblemKind::ALL {
            assert_eq!(Problem::new(kind, "x").known_kind(), Some(kind));
        }
        assert_eq!(ProblemKind::parse("about:blank"), None);
    }

    #[test]
    fn the_text_of_an_invalid_request_names_every_field() {
        let problem = Problem::invalid(vec![
            FieldError::new("name", "must not be blank"),
            FieldError::new("model", "missing"),
        ]);
        assert_eq!(problem.error, "name: must not be blank; model: missing");
    }
}
