//! Decides which failures of a tool are retried, and when.

use std::time::Duration;

use serde_json::Value;

use crate::ids::EffectId;
use crate::tool::EffectClass;

/// The kind of failure in an error envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// The same call may succeed later.
    Transient,
    /// The same call would fail again.
    Permanent,
    /// The error does not tell. Treated as transient, because a retry costs little.
    Unknown,
}

impl Category {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
        }
    }
}

const TRANSIENT: &[&str] = &[
    "timeout",
    "temporarily_unavailable",
    "rate_limited",
    "network_error",
    "docker_unavailable",
    "sandbox_unavailable",
];
const PERMANENT: &[&str] = &[
    "validation_error",
    "tool_not_allowed",
    "tool_not_found",
    "file_not_found",
    "not_found",
    "permission_denied",
    "invalid_path",
    "invalid_arguments",
    // The message of `bad_args` is free text: the code alone decides, or an argument that is
    // called `timeout` would make a wrong call look transient.
    "bad_args",
    "bad_config",
    "size_limit",
    "image_not_pinned",
    "unsupported_backend",
    "verification_failed",
    "no_match",
    "not_unique",
    "unknown_outcome",
    "egress_denied",
    "canary_tripped",
    "too_many_redirects",
    "unsupported_content",
];

/// Classifies an error by its code, and by its message only if the code is not specific.
pub fn classify(error: &Value) -> Category {
    let text = |key| error.get(key).and_then(Value::as_str).unwrap_or("");
    let (code, message) = (text("code"), text("message").to_lowercase());
    if TRANSIENT.contains(&code) {
        return Category::Transient;
    }
    if PERMANENT.contains(&code) {
        return Category::Permanent;
    }
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&["timeout", "timed out", "temporar", "rate limit"]) {
        Category::Transient
    } else if says(&[
        "not allowed",
        "not found",
        "invalid",
        "permission",
        "schema",
        "argument",
        "escapes",
    ]) {
        Category::Permanent
    } else {
        Category::Unknown
    }
}

/// Error codes of tools that did not start, so that even a *once* effect may be retried.
const DID_NOT_BEGIN: &[&str] =
    &["temporarily_unavailable", "rate_limited", "docker_unavailable", "sandbox_unavailable"];

/// Returns whether a failed attempt may be retried.
pub fn may_retry(class: EffectClass, error: &Value, attempt: u32, max_attempts: u32) -> bool {
    if attempt >= max_attempts {
        return false;
    }
    let code = error.get("code").and_then(Value::as_str).unwrap_or("");
    match class {
        // A command that timed out has run: doing it again could do its work twice.
        EffectClass::Once => DID_NOT_BEGIN.contains(&code),
        EffectClass::Pure | EffectClass::Idempotent => match classify(error) {
            Category::Transient | Category::Unknown => true,
            Category::Permanent => false,
        },
    }
}

/// Returns the wait before attempt `attempt + 1`: 100 ms, doubled each time, at most 30 s, plus or
/// minus a fifth. The effect's id decides the variation, so that a replay waits equally long.
pub fn backoff(effect: EffectId, attempt: u32) -> Duration {
    let base = 100_u64.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(30_000);
    let spread = base * 2 / 5;
    let jitter = effect.as_u128() % u128::from(spread.max(1));
    Duration::from_millis(base - base / 5 + u64::try_from(jitter).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_codes_are_checked_before_error_texts() {
        let check = |code: &str, message: &str, want| {
            assert_eq!(
                classify(&json!({"code": code, "message": message})),
                want,
                "{code} {message}"
            );
        };
        check("timeout", "Command timed out after 3s", Category::Transient);
        check("bad_args", "timeout_s must be of type int", Category::Permanent);
        check("tool_error", "text must be a non-empty string", Category::Unknown);
        check("tool_error", "connection timed out", Category::Transient);
        check("tool_error", "Path escapes workspace", Category::Permanent);
        check("", "permission denied", Category::Permanent);
    }

    #[test]
    fn a_command_that_ran_is_never_retried_automatically() {
        let timeout = json!({"code": "timeout", "message": "Command timed out after 3s"});
        assert!(!may_retry(EffectClass::Once, &timeout, 1, 5));
        assert!(may_retry(EffectClass::Pure, &timeout, 1, 5));
        assert!(!may_retry(EffectClass::Pure, &timeout, 5, 5));
        let down = json!({"code": "docker_unavailable", "message": "…"});
        assert!(may_retry(EffectClass::Once, &down, 1, 2));
    }

    #[test]
    fn backoff_grows_up_to_a_limit_and_is_deterministic() {
        let effect = EffectId::from_u128(12345);
        assert_eq!(backoff(effect, 3), backoff(effect, 3));
        for attempt in 1..40 {
            let wait = backoff(effect, attempt);
            assert!(wait >= Duration::from_millis(80) && wait <= Duration::from_millis(36_000));
        }
        assert!(backoff(effect, 5) > backoff(effect, 1));
    }
}
