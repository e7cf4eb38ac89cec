//! The number of input tokens of a `messages` call, as its provider counts them: the request for
//! the count, its answer, and the resulting upper bound.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::brought::Brought;

/// The fields that the count endpoint accepts. It refuses a body with any other field.
const TAKEN: [&str; 8] = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "mcp_servers",
    "context_management",
];
/// Tokens by which the real input may exceed the count, in addition to a tenth of it. The provider
/// calls its count an estimate.
const MARGIN: u64 = 500;
/// Longest answer that is read, in bytes.
pub const MAX_ANSWER: usize = 64 << 10;

/// The request for a count, made before a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The fields of the call that the count endpoint accepts, unchanged.
    pub body: Bytes,
    /// Maximum number of tokens that the omitted fields can add.
    left_out: u64,
}

impl Question {
    /// Creates the request from the body of a call. `None` if a counted field occurs twice, so that
    /// two readers might count different prompts.
    pub fn of(body: &[u8]) -> Option<Self> {
        let Fields(fields) = serde_json::from_slice(body).ok()?;
        let mut taken = [None; TAKEN.len()];
        let mut left_out: u64 = 0;
        for (name, value) in fields {
            match TAKEN.iter().position(|taken| *taken == name) {
                Some(at) if taken[at].is_some() => return None,
                Some(at) => taken[at] = Some(value.get()),
                None => left_out = left_out.saturating_add(most(&name, value.get())?),
            }
        }
        let mut text = String::with_capacity(body.len());
        for (name, value) in TAKEN.iter().zip(taken) {
            let Some(value) = value else { continue };
            text.push(if text.is_empty() { '{' } else { ',' });
            text.extend(["\"", name, "\":", value]);
        }
        text.push('}');
        // Without a model nobody is asked, so there is at least one field.
        taken[0].map(|_| Self { body: text.into(), left_out })
    }

    /// Returns the upper bound of the input tokens if the provider counts `counted`. Never more
    /// than `bytes`, which is an upper bound without any count.
    pub fn bound(&self, counted: u64, bytes: u64) -> u64 {
        let estimate = counted.saturating_add(counted.div_ceil(10)).saturating_add(MARGIN);
        estimate.saturating_add(self.left_out).min(bytes)
    }
}

/// Returns the most tokens that a field can add: one for each of its bytes, and those of its
/// references.
fn most(name: &str, value: &str) -> Option<u64> {
    let len = u64::try_from(name.len() + value.len()).ok()?;
    let brought = Brought::of(value).ok()?;
    // Its quotes, colon and comma.
    Some(len.saturating_add(4).saturating_add(brought.most()))
}

/// Returns the number in an answer. Zero is not accepted, because every call has input.
pub fn counted(answer: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Counted {
        input_tokens: u64,
    }
    let Counted { input_tokens } = serde_json::from_slice(answer).ok()?;
    (input_tokens > 0).then_some(input_tokens)
}

/// All fields of an object, in their order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn asked(body: &str) -> Option<String> {
        let question = Question::of(body.as_bytes())?;
        Some(String::from_utf8(question.body.to_vec()).unwrap())
    }

    #[test]
    fn a_count_request_has_the_fields_of_the_call_unchanged() {
        let body = r#"{ "max_tokens": 64, "stream":true, "messages" : [ {"role":"user", "x":1.0e0} ],
            "mod\u0065l":"fa\u0073t", "metadata":{"user_id":"u"}, "temperature":1, "system": "be  brief" }"#;
        let wanted = r#"{"model":"fa\u0073t","messages":[ {"role":"user", "x":1.0e0} ],"system":"be  brief"}"#;
        assert_eq!(asked(body).unwrap(), wanted);
        let whole: Vec<String> =
            TAKEN.iter().map(|name| format!("\"{name}\":[\"{name}\"]")).collect();
        let whole = format!("{{{}}}", whole.join(","));
        assert_eq!(asked(&whole).unwrap(), whole);
        for body in [
            r#"{"model":"m","messages":[],"messages":[1]}"#,
            r#"{"model":"m","system":"","syst\u0065m":"x"}"#,
            r#"{"messages":[]}"#,
            "[]",
            "",
        ] {
            assert_eq!(asked(body), None, "{body}");
        }
    }

    #[test]
    fn a_token_count_is_parsed_and_anything_else_is_refused() {
        assert_eq!(counted(br#"{"input_tokens":14,"context_management":{"x":1}}"#), Some(14));
        for answer in [
            r#"{"input_tokens":0}"#,
            r#"{"input_tokens":-1}"#,
            r#"{"input_tokens":"14"}"#,
            r#"{"input_tokens":1.5}"#,
            r#"{"input_tokens":1,"input_tokens":2}"#,
            r#"{"type":"error"}"#,
            "<html>",
            "",
        ] {
            assert_eq!(counted(answer.as_bytes()), None, "{answer}");
        }
    }

    #[test]
    fn an_uncounted_call_is_bounded_by_its_bytes_and_references() {
        let bound = |body: &Value| {
            let body = body.to_string();
            Question::of(body.as_bytes()).unwrap().bound(1_000, u64::MAX)
        };
        let plain = bound(&json!({"model": "m", "messages": []}));
        assert_eq!(plain, 1_000 + 100 + MARGIN);
        let schema = json!({"model": "m", "messages": [], "output_format": "x".repeat(4_000)});
        assert!(bound(&schema) > plain + 4_000);
        // Some servers take it for `messages`.
        let odd = json!({"model": "m", "messages": [], "Messages": "x".repeat(4_000)});
        assert!(bound(&odd) > plain + 4_000);
        let file = json!({"model": "m", "messages": [], "container": {"file_id": "f"}});
        assert!(bound(&file) > plain + 900_000);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[ -~é]{0,40}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_byte_of_a_call_is_within_the_bound(
            fields in prop::collection::btree_map(
                prop_oneof![prop::sample::select(TAKEN.to_vec()).prop_map(str::to_owned), "[a-z_]{1,12}"],
                value(),
                0..12,
            ),
        ) {
            let mut fields = fields;
            fields.insert("model".to_owned(), "m".into());
            let body = serde_json::to_string(&fields).unwrap();
            let question = Question::of(body.as_bytes()).unwrap();
            let sent: Value = serde_json::from_slice(&question.body).unwrap();
            for (name, value) in sent.as_object().unwrap() {
                prop_assert!(TAKEN.contains(&name.as_str()));
                prop_assert_eq!(value, &fields[name]);
            }
            let taken = fields.keys().filter(|name| TAKEN.contains(&name.as_str())).count();
            prop_assert_eq!(sent.as_object().unwrap().len(), taken);
            prop_assert!(question.body.len() as u64 + question.left_out >= body.len() as u64);
        }

        #[test]
        fn a_bound_is_between_the_count_and_the_bytes(
            counted in any::<u64>(), more in 0..1_000_u64, left_out in any::<u64>(), bytes in any::<u64>(),
        ) {
            let question = Question { body: Bytes::new(), left_out };
            let bound = question.bound(counted, bytes);
            prop_assert!(bound <= bytes);
            prop_assert!(bound == bytes || u128::from(bound) >= u128::from(counted) + u128::from(left_out));
            prop_assert!(bound == bytes || u128::from(bound) * 10 >= u128::from(counted) * 11);
            prop_assert!(question.bound(counted.saturating_add(more), bytes) >= bound);
        }
    }
}
