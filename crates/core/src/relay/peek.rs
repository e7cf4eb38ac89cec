//! Reads the few fields of a body that decide where a call goes and what it can cost at most.
//!
//! The body is read once and not kept. Only two places of it are ever changed: the model's name if
//! it is an alias, and `stream_options` if the server needs the usage and the caller did not
//! request it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Endpoint;
use super::brought::{Brought, KEPT_TOKENS};
use crate::model::Usage;

/// Tokens that providers add to each prompt: instructions for tools, and marks between messages.
const ADDED_TOKENS: u64 = 2048;

/// The error of a body that cannot be passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadBody(pub String);

/// The fields that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    pub model: String,
    /// Position of the model's name, including its quotes.
    model_at: Range<usize>,
    pub stream: bool,
    /// Maximum number of output tokens of all choices together, if the caller sets a limit.
    pub max_output: Option<u64>,
    /// Number of choices requested (OpenAI).
    pub choices: u64,
    /// Position of `stream_options`, if present (OpenAI chat).
    stream_options: Option<Range<usize>>,
    pub include_usage: bool,
    /// Whether the answer is created in the background and fetched later (OpenAI Responses).
    pub background: bool,
    /// The option of the call that may raise its price, with its value: `service_tier: "priority"`.
    /// The price table has one price per model, so it is not known how much the call costs.
    pub surcharge: Option<String>,
    /// Upper bound of the input tokens.
    pub prompt_bound: u64,
}

impl Peek {
    /// Reads the fields of a body. Limits count only by the names that this endpoint has: a provider
    /// ignores the others.
    ///
    /// # Errors
    ///
    /// [`BadBody`] if it is not a JSON object, has no model, or has a field twice or in another
    /// case, so that two readers might see different requests.
    pub fn of(endpoint: Endpoint, body: &[u8]) -> Result<Self, BadBody> {
        let text = std::str::from_utf8(body)
            .map_err(|err| BadBody(format!("the body is not UTF-8: {err}")))?;
        let seen: Seen<'_> = serde_json::from_str(text)
            .map_err(|err| BadBody(format!("the body is not what it should be: {err}")))?;
        let at = |raw: &RawValue| {
            let start = raw.get().as_ptr().addr() - text.as_ptr().addr();
            start..start + raw.get().len()
        };
        let Some(raw) = seen.model else {
            return Err(BadBody("the body names no `model`".to_owned()));
        };
        let model: Cow<'_, str> = serde_json::from_str(raw.get())
            .map_err(|_| BadBody("`model` must be a text".to_owned()))?;
        if model.trim().is_empty() || model.len() > 256 {
            return Err(BadBody("`model` must have 1 to 256 bytes".to_owned()));
        }
        let mut most: Option<u64> = None;
        let is_chat = endpoint == Endpoint::Chat;
        let is_messages = matches!(endpoint, Endpoint::Messages | Endpoint::CountTokens);
        for (name, raw, counts) in [
            ("max_tokens", seen.max_tokens, is_chat || is_messages),
            ("max_completion_tokens", seen.max_completion_tokens, is_chat),
            ("max_output_tokens", seen.max_output_tokens, endpoint == Endpoint::Responses),
        ] {
            if let Some(n) = number(name, raw)?.filter(|_| counts) {
                most = Some(most.map_or(n, |most| most.max(n)));
            }
        }
        let choices = number("n", seen.n)?.unwrap_or(1).max(1);
        let include_usage = match seen.stream_options {
            None => false,
            Some(raw) => {
                let options: Option<StreamOptions> = serde_json::from_str(raw.get())
                    .map_err(|_| BadBody("`stream_options` must be an object".to_owned()))?;
                options.is_some_and(|options| options.include_usage.unwrap_or_default())
            }
        };
        let brought = Brought::of(text)
            .map_err(|err| BadBody(format!("the body is not what it should be: {err}")))?;
        let kept = u64::from(is_there(seen.previous_response_id))
            + u64::from(is_there(seen.conversation))
            + u64::from(is_there(seen.prompt));
        let len = u64::try_from(body.len()).unwrap_or(u64::MAX);
        Ok(Self {
            model_at: at(raw),
            model: model.into_owned(),
            stream: flag("stream", seen.stream)?,
            max_output: most.map(|most| most.saturating_mul(choices)),
            choices,
            stream_options: seen.stream_options.map(at),
            include_usage,
            background: flag("background", seen.background)?,
            surcharge: surcharge(&seen),
            prompt_bound: len
                .saturating_add(ADDED_TOKENS)
                .saturating_add(kept.saturating_mul(KEPT_TOKENS))
                .saturating_add(brought.most()),
        })
    }

    /// Returns the most that can be billed. `most` is the output of a call without its own limit.
    pub fn worst(&self, most: u64) -> Usage {
        let output = self.max_output.unwrap_or_else(|| most.saturating_mul(self.choices));
        Usage { input_tokens: self.prompt_bound, output_tokens: output, ..Usage::default() }
    }

    /// Returns the body with another model's name, or `body` itself if the name is the same.
    pub fn with_model(&self, body: &Bytes, model: &str) -> Bytes {
        if model == self.model {
            return body.clone();
        }
        let name = serde_json::Value::from(model).to_string();
        splice(body, &self.model_at, &name)
    }

    /// Returns the body with `include_usage` set. Call it before [`with_model`](Self::with_model).
    pub fn with_usage(&self, body: &Bytes, model: &str) -> Bytes {
        const WANTED: &str = "{\"include_usage\":true}";
        let name = serde_json::Value::from(model).to_string();
        // From the back, so that what was found stays where it was.
        let (model_at, options) = (&self.model_at, self.stream_options.as_ref());
        match options {
            Some(at) if at.start > model_at.start => {
                splice(&splice(body, at, WANTED), model_at, &name)
            }
            Some(at) => splice(&splice(body, model_at, &name), at, WANTED),
            None => {
                let field = format!("{name},\"stream_options\":{WANTED}");
                splice(body, model_at, &field)
            }
        }
    }
}

fn splice(body: &[u8], at: &Range<usize>, with: &str) -> Bytes {
    let mut out = Vec::with_capacity(body.len() + with.len());
    out.extend_from_slice(&body[..at.start]);
    out.extend_from_slice(with.as_bytes());
    out.extend_from_slice(&body[at.end..]);
    out.into()
}

/// Options that change the price, with the values that cost no more than a call without the option.
const PRICED: &[(&str, &[&str])] = &[
    ("service_tier", &["auto", "batch", "default", "flex", "scale", "standard", "standard_only"]),
    ("speed", &["standard"]),
    ("inference_geo", &["global"]),
];
/// Longest value that an error quotes, in bytes.
const MOST_QUOTED: usize = 64;

fn surcharge(seen: &Seen<'_>) -> Option<String> {
    let given = [seen.service_tier, seen.speed, seen.inference_geo];
    PRICED.iter().zip(given).find_map(|((name, plain), raw)| {
        let text = raw?.get();
        let is_plain = text == "null"
            || serde_json::from_str::<Cow<'_, str>>(text).is_ok_and(|text| plain.contains(&&*text));
        let short = text.len() <= MOST_QUOTED;
        (!is_plain).then(|| format!("{name}: {}", if short { text } else { "…" }))
    })
}

fn is_there(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() != "null")
}

fn flag(name: &str, raw: Option<&RawValue>) -> Result<bool, BadBody> {
    match raw.map(RawValue::get) {
        None | Some("null" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(BadBody(format!("`{name}` must be true or false"))),
    }
}

fn number(name: &str, raw: Option<&RawValue>) -> Result<Option<u64>, BadBody> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(BadBody(format!("`{name}` must be a whole number, 0 or more"))),
        },
    }
}

#[derive(serde::Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

macro_rules! seen {
    ($($field:ident)*) => {
        /// The fields that are read, each in its original text.
        #[derive(Default)]
        struct Seen<'a> {
            $($field: Option<&'a RawValue>,)*
        }

        enum Key {
            $(#[expect(non_camel_case_types, reason = "named like the field")] $field,)*
            Other,
            /// A field that is read, in another case. Some servers treat it as the same field.
            Odd(String),
        }

        const NAMES: &[&str] = &[$(stringify!($field),)*];

        impl Key {
            fn of(text: &str) -> Self {
                match text {
                    $(stringify!($field) => Self::$field,)*
                    _ if NAMES.iter().any(|name| name.eq_ignore_ascii_case(text)) => {
                        Self::Odd(text.to_owned())
                    }
                    _ => Self::Other,
                }
            }
        }

        impl<'de> Visitor<'de> for Fields {
            type Value = Seen<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Seen<'de>, A::Error> {
                use serde::de::Error;
                let mut seen = Seen::default();
                while let Some(key) = map.next_key()? {
                    match key {
                        $(Key::$field => {
                            if seen.$field.is_some() {
                                return Err(A::Error::duplicate_field(stringify!($field)));
                            }
                            seen.$field = Some(map.next_value()?);
                        })*
                        Key::Odd(name) => {
                            let text = format!("`{name}` is written in another case");
                            return Err(A::Error::custom(text));
                        }
                        Key::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(seen)
            }
        }
    };
}

seen! {
    model stream max_tokens max_completion_tokens max_output_tokens n stream_options background
    previous_response_id conversation prompt service_tier speed inference_geo
}

struct Fields;

impl<'de> Deserialize<'de> for Seen<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key::of(text))
            }
        }
        deserializer.deserialize_identifier(Name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn peek(body: &str) -> Result<Peek, String> {
        Peek::of(Endpoint::Chat, body.as_bytes()).map_err(|err| err.0)
    }

    /// A provider ignores a field of another API, so it bounds nothing.
    #[test]
    fn a_limit_counts_only_under_the_field_names_of_its_endpoint() {
        let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
        for (endpoint, counts) in [
            (Endpoint::Chat, [true, true, false]),
            (Endpoint::Responses, [false, false, true]),
            (Endpoint::Messages, [true, false, false]),
            (Endpoint::Embeddings, [false, false, false]),
        ] {
            for (name, counts) in names.into_iter().zip(counts) {
                let body = json!({"model": "m", name: 1}).to_string();
                let worst = Peek::of(endpoint, body.as_bytes()).unwrap().worst(7);
                assert_eq!(worst.output_tokens, if counts { 1 } else { 7 }, "{endpoint:?} {name}");
            }
        }
    }

    #[test]
    fn a_request_body_is_scanned_once_and_changed_in_one_place() {
        let text = "{ \"messages\" : [ {\"model\":\"inner\"} ],\n \"model\" : \"fa\\u0073t\" , \"x\":1.0e0 }";
        let seen = peek(text).unwrap();
        assert_eq!(seen.model, "fast");
        let body = Bytes::from(text.to_owned());
        assert_eq!(seen.with_model(&body, "fast"), body, "the same name changes nothing");
        let changed = seen.with_model(&body, "a \"b\"");
        assert_eq!(changed, text.replace("\"fa\\u0073t\"", "\"a \\\"b\\\"\""));
    }

    #[test]
    fn limits_add_up_to_the_maximum() {
        let seen = peek(r#"{"model":"m","n":3,"max_tokens":10,"max_completion_tokens":20}"#);
        let worst = seen.unwrap().worst(7);
        assert_eq!(worst.output_tokens, 60);
        assert_eq!(peek(r#"{"model":"m","n":3}"#).unwrap().worst(7).output_tokens, 21);
        let plain = peek(r#"{"model":"m"}"#).unwrap().prompt_bound;
        assert!(plain >= 13);
        let kept = peek(r#"{"model":"m","previous_response_id":"r"}"#).unwrap().prompt_bound;
        assert!(kept > plain + 900_000);
        let image = peek(r#"{"model":"m","x":[{"url":"https://a/b"}]}"#).unwrap().prompt_bound;
        assert!(image > plain + 40_000);
    }

    #[test]
    fn options_that_may_raise_the_price_are_found_and_others_are_not() {
        let dear = |field: &str| peek(&format!(r#"{{"model":"m",{field}}}"#)).unwrap().surcharge;
        for field in [
            r#""service_tier":"priority""#,
            r#""service_tier":"pr\u0069ority""#,
            r#""service_tier":"Flex""#,
            r#""service_tier":7"#,
            r#""speed":"fast""#,
            r#""inference_geo":"us""#,
            r#""speed":"standard","inference_geo":["us"]"#,
        ] {
            assert!(dear(field).is_some(), "{field}");
        }
        for field in [
            r#""service_tier":null"#,
            r#""service_tier":"fl\u0065x""#,
            r#""service_tier":"standard_only","speed":"standard","inference_geo":"global""#,
            r#""messages":[{"service_tier":"priority"}]"#,
        ] {
            assert_eq!(dear(field), None, "{field}");
        }
        assert_eq!(dear(r#""speed":"fast""#).unwrap(), r#"speed: "fast""#);
        for twice in [
            r#"{"model":"m","service_tier":"flex","service_tier":"priority"}"#,
            r#"{"model":"m","Service_Tier":"priority"}"#,
        ] {
            assert!(peek(twice).is_err(), "{twice}");
        }
    }

    #[test]
    fn a_short_message_with_many_tools_reserves_little() {
        // As Claude Code says hello: a long system prompt, and tools whose schemas name their dialect
        // and have parameters that are called like references.
        let tool = |n: usize| {
            json!({
                "name": format!("tool_{n}"), "description": "what it does ".repeat(150),
                "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                    "properties": {"file_id": {"type": "string"}, "url": {"type": "string", "format": "uri"}},
                    "required": ["file_id"], "additionalProperties": false,
                },
            })
        };
        let body = json!({
            "model": "claude-sonnet-5-5", "max_tokens": 32_000, "stream": true,
            "system": [{"type": "text", "text": "You are a tool for programmers. ".repeat(600)}],
            "tools": (0..22).map(tool).collect::<Vec<_>>(),
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        });
        let body = body.to_string();
        let worst = peek(&body).unwrap().worst(128_000);
        assert!(body.len() > 60_000, "{}", body.len());
        assert_eq!(worst.input_tokens, body.len() as u64 + ADDED_TOKENS);
        // Dollars for a million tokens of input, written to the cache, and of output.
        #[expect(clippy::cast_precision_loss, reason = "both are far below 2^52")]
        let dollars = (worst.input_tokens as f64 * 2.5 + worst.output_tokens as f64 * 10.0) / 1e6;
        assert!(dollars <= 0.60, "{dollars}");
    }

    #[test]
    fn an_ambiguous_body_is_refused() {
        for (body, says) in [
            (r#"{"model":"a","model":"b"}"#, "duplicate field `model`"),
            (r#"{"model":"a","mod\u0065l":"b"}"#, "duplicate field `model`"),
            (r#"{"model":"a","Model":"b"}"#, "another case"),
            (r#"{"model":"a","max_tokens":1,"MAX_TOKENS":9}"#, "another case"),
            (r#"{"model":"a"} {"model":"b"}"#, "trailing"),
            (r#"{"messages":[]}"#, "no `model`"),
            (r#"{"model":7}"#, "must be a text"),
            (r#"{"model":" "}"#, "1 to 256"),
            (r#"{"model":"a","stream":"yes"}"#, "`stream`"),
            (r#"{"model":"a","max_tokens":-1}"#, "`max_tokens`"),
            (r#"{"model":"a","n":"2"}"#, "`n`"),
            (r#"["model"]"#, "a JSON object"),
            ("", "EOF"),
        ] {
            let err = peek(body).unwrap_err();
            assert!(err.contains(says), "{body}: {err}");
        }
        assert!(Peek::of(Endpoint::Chat, b"{\"model\":\"\xff\"}").unwrap_err().0.contains("UTF-8"));
    }

    #[test]
    fn usage_is_requested_at_any_position_of_the_stream_options() {
        for text in [
            r#"{"model":"m","stream":true}"#,
            r#"{"stream_options":{"include_usage":false},"model":"m"}"#,
            r#"{"model":"m","stream_options":null,"z":[]}"#,
        ] {
            let seen = peek(text).unwrap();
            assert!(!seen.include_usage);
            let body = seen.with_usage(&Bytes::from(text.to_owned()), "other");
            let value: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(value["model"], "other", "{text}");
            assert_eq!(value["stream_options"], json!({"include_usage": true}), "{text}");
            assert!(Peek::of(Endpoint::Chat, &body).unwrap().include_usage);
        }
        let asked = r#"{"model":"m","stream_options":{"include_usage":true}}"#;
        assert!(peek(asked).unwrap().include_usage);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("(model|stream|n|x|.{0,5})", inner), 0..5)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_body_panics_and_only_the_model_name_is_replaced(mut value in json(), name in ".{1,9}", new in ".{0,20}") {
            let _ = Peek::of(Endpoint::Chat, value.to_string().as_bytes());
            if let Some(map) = value.as_object_mut() {
                map.insert("model".to_owned(), name.into());
                let body = Bytes::from(value.to_string());
                if let Ok(seen) = Peek::of(Endpoint::Chat, &body) {
                    let changed: Value = serde_json::from_slice(&seen.with_model(&body, &new)).unwrap();
                    value["model"] = new.into();
                    prop_assert_eq!(changed, value);
                }
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Peek::of(Endpoint::Chat, &bytes);
        }
    }
}
