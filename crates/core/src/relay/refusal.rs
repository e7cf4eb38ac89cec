//! This server's own refusals, in the form that the caller's program understands.

use std::time::Duration;

use serde_json::json;

use super::{Dialect, Endpoint};

/// The kind of refusal, which determines status and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// 400: the request itself is wrong.
    BadRequest,
    /// 401: the token is missing, invalid or revoked.
    Unauthenticated,
    /// 403: the caller is known and may not do this.
    Forbidden,
    /// 404: the model does not exist, or no provider serves it.
    NotFound,
    /// 404: the gateway has no such path.
    NoRoute,
    /// 413: the body is too large.
    TooLarge,
    /// 429: a rate limit of this server.
    RateLimited,
    /// 429: a budget is exhausted.
    OverBudget,
    /// 503, and 529 in Anthropic's dialect: too many calls at once.
    Overloaded,
    /// 502: the provider cannot be reached, or its answer cannot be parsed.
    Unreachable,
    /// 504: the provider sent nothing for too long.
    Silent,
    /// 500: a fault of this server.
    Internal,
}

impl RefusalKind {
    /// Returns the name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::NoRoute => "no_route",
            Self::TooLarge => "too_large",
            Self::RateLimited => "rate_limited",
            Self::OverBudget => "over_budget",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Internal => "internal",
        }
    }
}

/// Returns whether a status means that a provider does not answer calls now, so that similar calls
/// would fail too.
pub const fn is_trouble(status: u16) -> bool {
    matches!(status, 401..=403 | 408 | 429 | 500..)
}

impl RefusalKind {
    /// Returns whether a provider does not answer calls now: see [`is_trouble`].
    pub const fn is_trouble(self) -> bool {
        match self {
            Self::Unreachable | Self::Silent | Self::Overloaded | Self::RateLimited => true,
            Self::BadRequest
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotFound
            | Self::NoRoute
            | Self::TooLarge
            | Self::OverBudget
            | Self::Internal => false,
        }
    }
}

/// Why a call was not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// A text that says what failed, where, and what to do. It contains no key.
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(RefusalKind::BadRequest, message)
    }

    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub fn status(&self, dialect: Dialect) -> u16 {
        match (self.kind, dialect) {
            (RefusalKind::BadRequest, _) => 400,
            (RefusalKind::Unauthenticated, _) => 401,
            (RefusalKind::Forbidden, _) => 403,
            (RefusalKind::NotFound | RefusalKind::NoRoute, _) => 404,
            (RefusalKind::TooLarge, _) => 413,
            (RefusalKind::RateLimited | RefusalKind::OverBudget, _) => 429,
            (RefusalKind::Overloaded, Dialect::OpenAi) => 503,
            (RefusalKind::Overloaded, Dialect::Anthropic) => 529,
            (RefusalKind::Unreachable, _) => 502,
            (RefusalKind::Silent, _) => 504,
            (RefusalKind::Internal, _) => 500,
        }
    }

    /// Returns the body in the form of the dialect's provider.
    pub fn body(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::OpenAi => {
                let (kind, code) = openai(self.kind);
                json!({"error": {
                    "message": self.message, "type": kind, "param": null, "code": code,
                }})
            }
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {"type": anthropic(self.kind), "message": self.message},
            }),
        }
        .to_string()
    }

    /// Returns an event that ends a started stream, in the form of the endpoint's provider.
    pub fn event(&self, endpoint: Endpoint) -> String {
        match endpoint {
            Endpoint::Chat | Endpoint::Embeddings => {
                format!("data: {}\n\n", self.body(Dialect::OpenAi))
            }
            Endpoint::Responses => {
                let (kind, code) = openai(self.kind);
                let error = json!({
                    "type": "error", "code": code.unwrap_or(kind), "message": self.message,
                    "param": null,
                });
                format!("event: error\ndata: {error}\n\n")
            }
            Endpoint::Messages | Endpoint::CountTokens => {
                format!("event: error\ndata: {}\n\n", self.body(Dialect::Anthropic))
            }
        }
    }
}

/// Returns `type` and `code`.
fn openai(kind: RefusalKind) -> (&'static str, Option<&'static str>) {
    match kind {
        RefusalKind::BadRequest | RefusalKind::TooLarge | RefusalKind::NoRoute => {
            ("invalid_request_error", None)
        }
        RefusalKind::Unauthenticated => ("invalid_request_error", Some("invalid_api_key")),
        RefusalKind::Forbidden => ("invalid_request_error", Some("permission_denied")),
        RefusalKind::NotFound => ("invalid_request_error", Some("model_not_found")),
        RefusalKind::RateLimited => ("requests", Some("rate_limit_exceeded")),
        RefusalKind::OverBudget => ("insufficient_quota", Some("insufficient_quota")),
        RefusalKind::Overloaded => ("server_error", Some("overloaded")),
        RefusalKind::Unreachable | RefusalKind::Silent | RefusalKind::Internal => {
            ("server_error", None)
        }
    }
}

fn anthropic(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::BadRequest => "invalid_request_error",
        RefusalKind::Unauthenticated => "authentication_error",
        RefusalKind::Forbidden => "permission_error",
        RefusalKind::NotFound | RefusalKind::NoRoute => "not_found_error",
        RefusalKind::TooLarge => "request_too_large",
        RefusalKind::RateLimited | RefusalKind::OverBudget => "rate_limit_error",
        RefusalKind::Overloaded => "overloaded_error",
        RefusalKind::Silent => "timeout_error",
        RefusalKind::Unreachable | RefusalKind::Internal => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_refusal_has_the_format_of_the_callers_provider() {
        let refusal = Refusal::new(RefusalKind::Unauthenticated, "the token is not valid");
        let openai: Value = serde_json::from_str(&refusal.body(Dialect::OpenAi)).unwrap();
        assert_eq!(openai["error"]["code"], "invalid_api_key");
        assert_eq!(openai["error"]["message"], "the token is not valid");
        let anthropic: Value = serde_json::from_str(&refusal.body(Dialect::Anthropic)).unwrap();
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "authentication_error");
        let full = Refusal::new(RefusalKind::Overloaded, "full");
        assert_eq!((full.status(Dialect::OpenAi), full.status(Dialect::Anthropic)), (503, 529));
    }

    #[test]
    fn an_unknown_path_and_an_unknown_model_have_different_errors() {
        let code = |kind| {
            let body = Refusal::new(kind, "no").body(Dialect::OpenAi);
            serde_json::from_str::<Value>(&body).unwrap()["error"]["code"].clone()
        };
        assert_eq!(code(RefusalKind::NotFound), "model_not_found");
        assert_eq!(code(RefusalKind::NoRoute), Value::Null);
        assert_eq!(Refusal::new(RefusalKind::NoRoute, "no").status(Dialect::Anthropic), 404);
    }

    #[test]
    fn a_refusal_within_a_stream_is_an_event_of_that_stream() {
        let refusal = Refusal::new(RefusalKind::Unauthenticated, "two\nlines");
        for (endpoint, event, code) in [
            (Endpoint::Chat, None, "/error/code"),
            (Endpoint::Responses, Some("error"), "/code"),
            (Endpoint::Messages, Some("error"), "/error/type"),
        ] {
            let text = refusal.event(endpoint);
            let lines: Vec<&str> = text.lines().collect();
            let (named, data) = match lines.as_slice() {
                [data, ""] => (None, data),
                [named, data, ""] => (named.strip_prefix("event: "), data),
                other => panic!("{endpoint:?}: {other:?}"),
            };
            assert!(named == event && text.ends_with("\n\n"), "{endpoint:?}: {text}");
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            let code = data.pointer(code).and_then(Value::as_str);
            assert!(
                matches!(code, Some("invalid_api_key" | "authentication_error")),
                "{endpoint:?}: {text}"
            );
        }
    }
}
