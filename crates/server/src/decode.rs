//! Strict JSON bodies with errors that name the field.
//!
//! serde says what is wrong but not where; the wrapper here remembers the key that was being
//! read. It also refuses what serde's derive would let pass: an array in the place of an object
//! ([`objects`]).

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use overmind_api::ProblemKind;
use serde::de::value::CowStrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::fault::Fault;

use self::objects::Objects;

mod objects;

/// Longest message about one field, in characters: serde repeats what it was given.
const MAX_MESSAGE: usize = 300;

/// Reads a body as one JSON object.
///
/// # Errors
///
/// A 422 problem that names the line and column of a syntax error, or the field that is missing,
/// unknown, given twice, or of another type.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Fault::new(ProblemKind::Invalid, "the body is empty; send a JSON object"));
    }
    let key = RefCell::new(None);
    read(body, &key).or_else(|err| {
        // `28.0` is a whole number in JSON Schema, and what some clients write for one.
        let whole = err.to_string().starts_with("invalid type: floating point");
        let again = whole.then(|| read(&without_zeros(body), &RefCell::new(None)));
        again.and_then(Result::ok).ok_or_else(|| explain(&err, key.take()))
    })
}

fn read<T: DeserializeOwned>(body: &[u8], key: &Key) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = T::deserialize(Tracked { inner: Objects(&mut json), key })?;
    json.end().map(|()| value)
}

/// The body with its numbers that end in `.0` written without that.
fn without_zeros(body: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut quoted) = (Vec::with_capacity(body.len()), body, false);
    while let [first, tail @ ..] = rest {
        let zeros = tail.iter().take_while(|byte| **byte == b'0').count();
        let ends = tail.get(zeros).is_none_or(|b| !matches!(b, b'0'..=b'9' | b'e' | b'E'));
        if !quoted && *first == b'.' && zeros > 0 && ends {
            rest = &tail[zeros..];
            continue;
        }
        out.push(*first);
        rest = tail;
        match (first, tail) {
            (b'"', _) => quoted = !quoted,
            (b'\\', [escaped, after @ ..]) if quoted => {
                out.push(*escaped);
                rest = after;
            }
            _ => {}
        }
    }
    out
}

fn explain(err: &serde_json::Error, key: Option<String>) -> Fault {
    use serde_json::error::Category;

    let place = format!(" at line {} column {}", err.line(), err.column());
    let text = err.to_string();
    let what = text.strip_suffix(&place).unwrap_or(&text);
    match err.classify() {
        Category::Syntax | Category::Eof | Category::Io => {
            Fault::new(ProblemKind::Invalid, format!("the body is not JSON: {what}{place}"))
        }
        Category::Data => match field_of(what, key) {
            Some(field) => Fault::invalid(&field, in_plain_words(what)),
            None => Fault::new(ProblemKind::Invalid, format!("the body {}", in_plain_words(what))),
        },
    }
}

fn field_of(what: &str, key: Option<String>) -> Option<String> {
    let quoted = |prefix| what.strip_prefix(prefix)?.split('`').next().map(str::to_owned);
    // A missing field is missed at the end, when no key is being read. Inside an object in the
    // object the key is still known: `limits` misses `x`, as it were.
    match key {
        Some(key) => Some(cut(&key, 100)),
        None => quoted("missing field `"),
    }
}

/// serde's words for developers in words for users.
fn in_plain_words(what: &str) -> String {
    let what = cut(what, MAX_MESSAGE);
    if what.starts_with("missing field") {
        return "is required".to_owned();
    }
    if what.starts_with("duplicate field") {
        return "is given twice".to_owned();
    }
    if let Some((_, known)) = what.split_once("`, expected ")
        && what.starts_with("unknown field")
    {
        return format!("is not known here; known is {}", known.replace('`', ""));
    }
    for (start, end) in
        [("unknown variant ", ", "), ("invalid type: ", ", "), ("invalid value: ", ", ")]
    {
        if let Some(rest) = what.strip_prefix(start)
            && let Some((found, wanted)) = rest.split_once(&format!("{end}expected "))
        {
            return format!("must be {}, not {found}", type_words(wanted));
        }
    }
    what
}

fn type_words(wanted: &str) -> Cow<'_, str> {
    match wanted {
        "u32" => "a whole number from 0 to 4294967295".into(),
        "u64" | "usize" => "a whole number, 0 or more".into(),
        "i64" => "a whole number".into(),
        "a sequence" => "a list".into(),
        "struct" => "an object".into(),
        other if other.starts_with("struct ") => "an object".into(),
        other if other.starts_with("enum ") => "one of the documented words".into(),
        other => other.into(),
    }
}

fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The key that is being read.
type Key = RefCell<Option<String>>;

struct Tracked<'k, D> {
    inner: D,
    key: &'k Key,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tracked<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(ObjectOnly { inner: visitor, key: self.key })
    }

    // Bodies are structs at the top, so every way in reads an object.
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

struct ObjectOnly<'k, V> {
    inner: V,
    key: &'k Key,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectOnly<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Keys { inner: map, key: self.key })
    }
}

struct Keys<'k, A> {
    inner: A,
    key: &'k Key,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Keys<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.inner.next_key::<Cow<'de, str>>()? else {
            return Ok(None);
        };
        self.key.replace(Some(name.to_string()));
        let read = CowStrDeserializer::<A::Error>::new(name);
        seed.deserialize(read).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let value = self.inner.next_value_seed(seed)?;
        self.key.replace(None);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use overmind_api::{AgentCreate, RunCreate};
    use proptest::prelude::*;

    use super::*;

    fn fault<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> overmind_api::Problem {
        decode::<T>(body.as_bytes()).unwrap_err().problem().clone()
    }

    #[track_caller]
    fn refused(body: &str, error: &str) {
        let problem = fault::<RunCreate>(body);
        assert_eq!((problem.status, problem.error.as_str()), (422, error));
    }

    #[test]
    fn an_invalid_field_is_named_in_plain_words() {
        refused(r#"{"task":"x"}"#, "agent_id: is required");
        refused(r#"{"agent_id":7,"task":"x"}"#, "agent_id: must be a string, not integer `7`");
        refused(
            r#"{"agent_id":"a","task":"x","step_limit":"7"}"#,
            "step_limit: must be a whole number from 0 to 4294967295, not string \"7\"",
        );
        refused(
            r#"{"agent_id":"a","task":"x","step_limit":-1}"#,
            "step_limit: must be a whole number from 0 to 4294967295, not integer `-1`",
        );
        refused(
            r#"{"agent_id":"a","task":"x","step_limit":true}"#,
            "step_limit: must be a whole number from 0 to 4294967295, not boolean `true`",
        );
        refused(
            r#"{"agent_id":"a","taks":"x"}"#,
            "taks: is not known here; known is one of agent_id, task, step_limit, workspace, name, \
             parent, command, sandbox, room, conversation, labels, contexts, memory_claims, \
             budget",
        );
        refused(r#"{"agent_id":"a","agent_id":"b"}"#, "agent_id: is given twice");
    }

    #[test]
    fn a_whole_number_may_have_a_zero_fraction() {
        let read = |body: &str| decode::<RunCreate>(body.as_bytes());
        let run = read(r#"{"agent_id":"a\"7.0","task":"x 1.0","step_limit":28.00}"#).unwrap();
        assert_eq!((run.agent_id.as_str(), run.task.as_str()), ("a\"7.0", "x 1.0"));
        assert_eq!(run.step_limit, Some(28));
        refused(
            r#"{"agent_id":"a","task":"x","step_limit":28.5}"#,
            "step_limit: must be a whole number from 0 to 4294967295, not floating point `28.5`",
        );
    }

    #[test]
    fn an_invalid_inner_field_is_reported_with_its_path() {
        let body = r#"{"name":"a","role":"r","model":"m","limits":{"max_stepz":1}}"#;
        let problem = fault::<AgentCreate>(body);
        assert_eq!(problem.errors[0].field, "limits");
        assert!(problem.error.contains("max_steps"), "{}", problem.error);
        let body = r#"{"name":"a","role":"r","model":"m","policy":"free"}"#;
        let problem = fault::<AgentCreate>(body);
        assert_eq!(
            problem.error,
            "policy: must be one of `auto`, `deterministic`, `model`, not `free`"
        );
    }

    #[test]
    fn an_invalid_json_body_is_reported_with_its_position() {
        refused(" \n", "the body is empty; send a JSON object");
        refused(r#"["a","b"]"#, "the body must be a JSON object, not sequence");
        refused("null", "the body must be a JSON object, not null");
        refused(
            "{\"agent_id\": \"a\",\n \"task\" \"x\"}",
            "the body is not JSON: expected `:` at line 2 column 9",
        );
        refused(
            r#"{"agent_id":"a","task":"x"} {}"#,
            "the body is not JSON: trailing characters at line 1 column 29",
        );
        let deep = format!("{{\"agent_id\":\"a\",\"task\":{}", "[".repeat(100_000));
        assert_eq!(fault::<RunCreate>(&deep).status, 422);
    }

    #[test]
    fn a_list_in_place_of_an_object_is_refused_at_any_depth() {
        let lists = [
            (r#""limits":[7,8,9,10,1]"#, "limits"),
            (r#""limits":[]"#, "limits"),
            (r#""command":["make"]"#, "command"),
            (r#""command":{"argv":["make"],"limits":[64]}"#, "command"),
        ];
        for (list, field) in lists {
            let body = format!(r#"{{"name":"a","role":"r","model":"m",{list}}}"#);
            let problem = fault::<AgentCreate>(&body);
            assert_eq!(
                problem.error,
                format!("{field}: must be an object, not sequence"),
                "{list}"
            );
        }
        let body = r#"{"ids":[],"decision":"approve","raise":[null,null]}"#;
        let problem = fault::<overmind_api::InboxBatch>(body);
        assert_eq!(problem.error, "raise: must be an object, not sequence");
        let body = r#"{"ids":[],"decision":"approve","raise":{"usd":1.0}}"#;
        assert_eq!(
            decode::<overmind_api::InboxBatch>(body.as_bytes()).unwrap().raise.unwrap().usd,
            Some(1.0)
        );
    }

    #[test]
    fn long_invalid_values_are_truncated_in_errors() {
        let body = format!(r#"{{"agent_id":"a","task":"x","step_limit":"{}"}}"#, "7".repeat(9999));
        let problem = fault::<RunCreate>(&body);
        assert!(problem.error.len() < 400, "{}", problem.error.len());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<RunCreate>(&body);
        }

        #[test]
        fn serialised_values_are_parsed_back(agent_id in ".{0,20}", task in ".{0,60}", step_limit: Option<u32>) {
            let run = RunCreate { agent_id, task, step_limit, ..RunCreate::default() };
            let body = serde_json::to_vec(&run).unwrap();
            prop_assert_eq!(decode::<RunCreate>(&body).unwrap(), run);
        }
    }
}
