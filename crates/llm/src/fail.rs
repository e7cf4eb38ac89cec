//! Turns errors of providers and sockets into a [`ModelFailure`], and decides whether to retry.

use std::error::Error;
use std::time::Duration;

use overmind_core::model::ModelFailure;
use serde_json::Value;

use crate::config::Secret;

/// Maximum number of bytes of a provider's error body that are kept.
const MAX_BODY: usize = 4096;
/// Maximum number of characters of the provider's message that are quoted in ours.
const MAX_QUOTE: usize = 300;

pub(crate) const UNCONFIGURED: &str = "model_unconfigured";
pub(crate) const UNKNOWN: &str = "model_unknown";
pub(crate) const AUTH: &str = "auth";
pub(crate) const RATE_LIMITED: &str = "rate_limited";
pub(crate) const OVERLOADED: &str = "overloaded";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const NETWORK: &str = "network_error";
pub(crate) const LOST: &str = "connection_lost";
pub(crate) const BAD_REQUEST: &str = "bad_request";
pub(crate) const BAD_RESPONSE: &str = "bad_response";
pub(crate) const CONTEXT_LENGTH: &str = "context_length";
pub(crate) const CASSETTE: &str = "cassette";

pub(crate) fn failure(code: &str, transient: bool, message: String) -> ModelFailure {
    ModelFailure { code: code.to_owned(), message, status: None, body: None, transient }
}

/// The subject of a failure; every message begins with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) provider: &'a str,
    /// Host and port. The whole URL is never shown.
    pub(crate) host: &'a str,
    pub(crate) model: &'a str,
    /// How to fix a refused key.
    pub(crate) key_hint: &'a str,
}

/// One failed attempt.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) failure: ModelFailure,
    /// Whether the same request may be sent again, at once or later.
    pub(crate) retry: bool,
    /// The wait that the provider asked for.
    pub(crate) wait: Option<Duration>,
}

/// The provider's message in the body of an error, or in an error event of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) message: String,
    /// `type` and `code` of the error, in lower case, joined by a space.
    pub(crate) kind: String,
    /// The request parameter that OpenAI blames.
    pub(crate) param: Option<String>,
}

impl Said {
    /// Parses the error shapes of all formats; otherwise takes the text itself.
    pub(crate) fn of(body: &str) -> Self {
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            return Self { message: body.trim().to_owned(), ..Self::default() };
        };
        Self::of_value(&value)
    }

    pub(crate) fn of_value(value: &Value) -> Self {
        let error = match value.get("error") {
            Some(error @ Value::Object(_)) => error,
            Some(Value::String(text)) => {
                return Self { message: text.clone(), ..Self::default() };
            }
            Some(_) | None => value,
        };
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let code = match error.get("code") {
            Some(Value::Number(code)) => code.to_string(),
            _ => text("code").to_owned(),
        };
        let message =
            ["message", "detail", "msg"].iter().map(|key| text(key)).find(|t| !t.is_empty());
        Self {
            message: message.map_or_else(|| value.to_string(), str::to_owned),
            kind: format!("{} {code}", text("type")).to_lowercase(),
            param: error.get("param").and_then(Value::as_str).map(str::to_owned),
        }
    }

    fn is_about_context(&self) -> bool {
        let message = self.message.to_lowercase();
        ["context_length", "exceed_context_size", "request_too_large"]
            .iter()
            .any(|kind| self.kind.contains(kind))
            || [
                "maximum context length",
                "context window",
                "context size",
                "context length",
                "prompt is too long",
                "input is too long",
                "too many tokens",
            ]
            .iter()
            .any(|words| message.contains(words))
    }

    fn is_about_the_model(&self) -> bool {
        let message = self.message.to_lowercase();
        self.kind.contains("model_not_found")
            || (message.contains("model")
                && ["not exist", "not found", "unknown model", "invalid model"]
                    .iter()
                    .any(|words| message.contains(words)))
    }
}

/// The failure for a reply with an error status. `body` is unchanged from the provider.
pub(crate) fn of_status(
    about: About<'_>,
    status: u16,
    body: &str,
    wait: Option<Duration>,
) -> Fault {
    let said = Said::of(body);
    let quota = said.kind.contains("insufficient_quota") || said.kind.contains("billing");
    let (code, transient, hint) = match status {
        300..=399 => (
            BAD_RESPONSE,
            false,
            "redirects are not followed, so that the key is not sent elsewhere; configure the right base URL",
        ),
        401 | 403 => (AUTH, false, about.key_hint),
        402 => (AUTH, false, "the account behind the key has no credit left"),
        404 => (UNKNOWN, false, "check the model's name and the base URL"),
        408 => (TIMEOUT, true, "try again"),
        400 | 413 | 422 if said.is_about_context() => (
            CONTEXT_LENGTH,
            false,
            "shorten the conversation or take a model with a larger context",
        ),
        413 => (CONTEXT_LENGTH, false, "shorten the conversation"),
        400 | 422 if said.is_about_the_model() => (UNKNOWN, false, "check the model's name"),
        429 if quota => (RATE_LIMITED, false, "the quota of the account is used up"),
        429 => (RATE_LIMITED, true, "try again later or raise the account's limits"),
        409 | 425 | 500.. => (OVERLOADED, true, "try again later"),
        _ => (BAD_REQUEST, false, "the provider does not accept this request"),
    };
    let verb = if status < 400 { "redirected" } else { "answered" };
    Fault {
        failure: ModelFailure {
            code: code.to_owned(),
            message: message(about, &format!("{verb} with status {status}"), &said.message, hint),
            status: Some(status),
            body: Some(body.to_owned()).filter(|body| !body.is_empty()),
            transient,
        },
        retry: transient,
        wait,
    }
}

/// The failure for an error that came as an event in a stream.
pub(crate) fn of_event(about: About<'_>, said: &Said, raw: String) -> Fault {
    let kind = said.kind.as_str();
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    let (code, transient, hint) = if said.is_about_context() {
        (CONTEXT_LENGTH, false, "shorten the conversation or take a model with a larger context")
    } else if has(&["insufficient_quota", "billing"]) {
        (RATE_LIMITED, false, "the quota of the account is used up")
    } else if has(&["rate_limit", "429"]) {
        (RATE_LIMITED, true, "try again later or raise the account's limits")
    } else if has(&["authentication", "permission", "invalid_api_key", "401", "403"]) {
        (AUTH, false, about.key_hint)
    } else if has(&["not_found"]) {
        (UNKNOWN, false, "check the model's name")
    } else if has(&["invalid_request", "invalid_prompt", "bad_request"]) {
        (BAD_REQUEST, false, "the provider does not accept this request")
    } else {
        // This covers `overloaded_error`, `api_error`, `server_error`, `timeout_error` and unknown
        // kinds. The request was accepted, so the fault is the provider's.
        (OVERLOADED, true, "try again later")
    };
    Fault {
        failure: ModelFailure {
            code: code.to_owned(),
            message: message(about, "broke off the reply with an error", &said.message, hint),
            status: None,
            body: Some(raw),
            transient,
        },
        retry: transient,
        wait: None,
    }
}

/// The failure for a connection that could not be made or was lost.
pub(crate) fn of_network(about: About<'_>, doing: &str, why: &str) -> Fault {
    let hint = "check the network and the base URL";
    Fault {
        failure: failure(NETWORK, true, message(about, doing, why, hint)),
        retry: true,
        wait: None,
    }
}

/// The failure for a connection that broke after the request was sent. The provider may have done
/// the work and may bill it.
pub(crate) fn of_loss(about: About<'_>, doing: &str, why: &str) -> Fault {
    let mut fault = of_network(about, doing, why);
    LOST.clone_into(&mut fault.failure.code);
    fault
}

/// The failure for a provider whose configuration contains something that cannot be sent.
pub(crate) fn of_config(about: About<'_>, why: &str) -> Fault {
    let text = message(about, "cannot be asked", why, about.key_hint);
    Fault { failure: failure(UNCONFIGURED, false, text), retry: false, wait: None }
}

/// The failure for a provider that sent nothing for `idle`.
pub(crate) fn of_silence(about: About<'_>, idle: Duration) -> Fault {
    let what = format!("sent nothing for {} s", idle.as_secs_f64());
    let hint = "the provider is slow or gone: raise the idle timeout or try again";
    Fault {
        failure: failure(TIMEOUT, true, message(about, &what, "", hint)),
        retry: true,
        wait: None,
    }
}

/// The failure for a reply that is not in the expected format.
pub(crate) fn of_nonsense(about: About<'_>, why: &str, body: Option<String>) -> Fault {
    let hint = "check that the base URL belongs to an API of this format";
    let mut failure = failure(
        BAD_RESPONSE,
        false,
        message(about, "sent a reply that is not understood", why, hint),
    );
    failure.body = body;
    Fault { failure, retry: false, wait: None }
}

fn message(about: About<'_>, what: &str, why: &str, hint: &str) -> String {
    let About { provider, host, model, .. } = about;
    let mut text = format!("asking {provider} ({host}) for model `{model}`: it {what}");
    if !why.is_empty() {
        text.push_str(": ");
        text.extend(why.trim().chars().take(MAX_QUOTE));
    }
    if !hint.is_empty() {
        text.push_str("; ");
        text.push_str(hint);
    }
    text
}

/// Joins an error and all its causes on one line, each once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Explains for people why no connection was made, without the prefixes that libraries add.
pub(crate) fn unconnected(error: &dyn Error) -> String {
    let mut text = chain(error);
    for layer in ["error sending request: ", "client error (Connect): ", "tcp connect error: "] {
        text = text.replace(layer, "");
    }
    if let Some((words, code)) = text.rsplit_once(" (os error ")
        && code.strip_suffix(')').is_some_and(|code| code.bytes().all(|b| b.is_ascii_digit()))
    {
        text.truncate(words.len());
    }
    // System errors begin with a capital, which is lowered; names such as TLS keep theirs.
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(std::iter::once(second)).chain(letters).collect()
        }
        (Some(_) | None, _) => text,
    }
}

/// Removes every key from a failure's texts, then cuts the body to 4 KiB.
pub(crate) fn redact(mut failure: ModelFailure, secrets: &[Secret]) -> ModelFailure {
    failure.message = redacted(&failure.message, secrets);
    failure.body = failure.body.map(|body| cut(redacted(&body, secrets)));
    failure
}

fn redacted(text: &str, secrets: &[Secret]) -> String {
    let mut text = text.to_owned();
    for secret in secrets {
        // A secret of a few characters is no real key (local servers accept anything), and
        // replacing it would garble the text.
        if secret.expose().len() >= 6 && text.contains(secret.expose()) {
            text = text.replace(secret.expose(), "[redacted]");
        }
    }
    text
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_BODY {
        let mut end = MAX_BODY;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'_> = About {
        provider: "openai",
        host: "api.openai.com",
        model: "gpt-5",
        key_hint: "set OPENAI_API_KEY",
    };

    #[track_caller]
    fn check(status: u16, body: &str, code: &str, transient: bool) {
        let fault = of_status(ABOUT, status, body, None);
        assert_eq!(fault.failure.code, code, "{status} {body}");
        assert_eq!(fault.failure.transient, transient, "{status} {body}");
        assert_eq!(fault.retry, transient, "{status} {body}");
        assert_eq!(fault.failure.status, Some(status));
        assert!(
            fault.failure.message.contains("openai (api.openai.com)"),
            "{}",
            fault.failure.message
        );
    }

    #[test]
    fn each_status_has_its_code() {
        check(401, "", AUTH, false);
        check(403, r#"{"error":{"message":"no"}}"#, AUTH, false);
        check(402, r#"{"error":{"message":"Insufficient Balance"}}"#, AUTH, false);
        check(404, r#"{"error":{"code":"model_not_found"}}"#, UNKNOWN, false);
        check(400, r#"{"error":{"message":"Model Not Exist"}}"#, UNKNOWN, false);
        check(400, r#"{"error":{"message":"temperature must be a number"}}"#, BAD_REQUEST, false);
        check(418, "", BAD_REQUEST, false);
        check(429, "", RATE_LIMITED, true);
        check(429, r#"{"error":{"code":"insufficient_quota"}}"#, RATE_LIMITED, false);
        check(408, "", TIMEOUT, true);
        check(500, "<html>", OVERLOADED, true);
        check(503, "", OVERLOADED, true);
        check(529, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, OVERLOADED, true);
        check(307, "", BAD_RESPONSE, false);
    }

    #[test]
    fn too_long_conversations_have_their_own_error() {
        check(
            400,
            r#"{"error":{"code":"context_length_exceeded","message":"x"}}"#,
            CONTEXT_LENGTH,
            false,
        );
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            CONTEXT_LENGTH,
            false,
        );
        check(
            400,
            r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"request (9031 tokens) exceeds the available context size (4096 tokens)"}}"#,
            CONTEXT_LENGTH,
            false,
        );
        check(413, r#"{"error":{"type":"request_too_large"}}"#, CONTEXT_LENGTH, false);
    }

    #[test]
    fn the_message_names_provider_failure_cause_and_remedy() {
        let fault =
            of_status(ABOUT, 401, r#"{"error":{"message":"Incorrect API key provided"}}"#, None);
        assert_eq!(
            fault.failure.message,
            "asking openai (api.openai.com) for model `gpt-5`: it answered with status 401: \
             Incorrect API key provided; set OPENAI_API_KEY"
        );
    }

    #[test]
    fn error_events_are_classified_by_kind() {
        let event = |json: &str| of_event(ABOUT, &Said::of(json), json.to_owned()).failure;
        let overloaded =
            event(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
        assert_eq!((overloaded.code.as_str(), overloaded.transient), (OVERLOADED, true));
        let bad = event(r#"{"error":{"type":"invalid_request_error","message":"no"}}"#);
        assert_eq!((bad.code.as_str(), bad.transient), (BAD_REQUEST, false));
        let rate = event(r#"{"type":"error","code":"rate_limit_exceeded","message":"slow down"}"#);
        assert_eq!((rate.code.as_str(), rate.transient), (RATE_LIMITED, true));
        let numeric = event(r#"{"error":{"code":429,"message":"slow down"}}"#);
        assert_eq!(numeric.code, RATE_LIMITED);
        let context = event(r#"{"error":{"code":"context_length_exceeded","message":"m"}}"#);
        assert_eq!((context.code.as_str(), context.transient), (CONTEXT_LENGTH, false));
    }

    #[test]
    fn connection_errors_name_no_libraries() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] std::io::Error);
        for (code, said) in [(111, "connection refused"), (113, "no route to host")] {
            let refused = Layer("client error (Connect)", std::io::Error::from_raw_os_error(code));
            assert_eq!(unconnected(&refused), said);
        }
        let dns = Layer("dns error", std::io::Error::other("no such host"));
        assert_eq!(unconnected(&dns), "dns error: no such host");
        let tls = Layer("TLS", std::io::Error::other("invalid peer certificate: UnknownIssuer"));
        assert_eq!(unconnected(&tls), "TLS: invalid peer certificate: UnknownIssuer");
    }

    #[test]
    fn a_key_is_masked_before_the_body_is_truncated() {
        let key = Secret::new("sk-0123456789").unwrap();
        // The key crosses the 4 KiB limit: if the text were cut first, half of the key would stay.
        let body = format!("{}sk-0123456789 {}", "x".repeat(MAX_BODY - 5), "ü".repeat(4000));
        let mut shown = failure(AUTH, false, "bad key sk-0123456789".to_owned());
        shown.body = Some(body);
        let shown = redact(shown, &[key]);
        assert_eq!(shown.message, "bad key [redacted]");
        let body = shown.body.unwrap();
        assert!(!body.contains("sk-01"), "{}", &body[body.len() - 40..]);
        assert!(body.len() <= MAX_BODY);
    }

    #[test]
    fn short_keys_are_not_masked_within_words() {
        let shown = failure(AUTH, false, "the key x is wrong".to_owned());
        assert_eq!(redact(shown.clone(), &[Secret::new("x").unwrap()]), shown);
    }
}
