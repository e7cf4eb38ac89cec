//! Filters on metadata: a small grammar in JSON.
//!
//! ```json
//! {"lang": "rust", "year": {"gte": 2020, "lt": 2025}, "tag": {"in": ["a", "b"]},
//!  "note": {"exists": false}}
//! ```
//!
//! Every key is the name of one field of the metadata, taken literally, including dots, quotes and
//! SQL. All conditions must hold. A plain value means `eq`. Values are texts, numbers, booleans and
//! null. Numbers are compared by value (`1` equals `1.0`), and texts byte by byte; values of
//! different types are never equal, smaller or greater. If the field is a list, `eq` and `in` match
//! if any of its elements does. `exists` tests whether the field exists, even if it is null.
//!
//! Filters are evaluated only here, so that they mean the same with every store.

use std::cmp::Ordering;

use serde_json::{Map, Value};

/// Maximum number of fields that one filter may name.
pub const MAX_CONDITIONS: usize = 16;
/// Maximum number of values of one `in`.
pub const MAX_VALUES: usize = 64;
/// Maximum number of bytes in the name of a field.
pub const MAX_KEY_BYTES: usize = 200;
/// Maximum number of bytes in a text that is compared with.
pub const MAX_FILTER_VALUE_BYTES: usize = 1_000;

/// Conditions on an item's metadata. The default matches every item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFilter {
    conditions: Vec<Condition>,
}

/// The condition on one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub key: String,
    /// All of them must hold; never empty.
    pub tests: Vec<Test>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    Equals(Value),
    /// The field has any of these values.
    In(Vec<Value>),
    Exists(bool),
    Greater(Value),
    AtLeast(Value),
    Less(Value),
    AtMost(Value),
}

/// The error of an invalid filter: the wrong part, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter: {why}")]
pub struct FilterError {
    why: String,
}

fn wrong<T>(why: String) -> Result<T, FilterError> {
    Err(FilterError { why })
}

/// Returns the beginning of a foreign name, for a message.
fn brief(text: &str) -> String {
    text.chars().take(40).collect()
}

impl MemoryFilter {
    /// Parses a filter. `{}` and `null` match every item.
    ///
    /// # Errors
    ///
    /// [`FilterError`] with the limit or form that is violated.
    pub fn parse(value: &Value) -> Result<Self, FilterError> {
        let fields = match value {
            Value::Null => return Ok(Self::default()),
            Value::Object(fields) => fields,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return wrong("it must be an object of fields of the metadata".into());
            }
        };
        if fields.len() > MAX_CONDITIONS {
            return wrong(format!("it names {} fields, at most {MAX_CONDITIONS}", fields.len()));
        }
        let conditions = fields
            .iter()
            .map(|(key, value)| {
                if key.len() > MAX_KEY_BYTES {
                    let key = brief(key);
                    return wrong(format!("`{key}…` is longer than {MAX_KEY_BYTES} bytes"));
                }
                Ok(Condition { key: key.clone(), tests: tests(key, value)? })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { conditions })
    }

    /// Returns whether it matches every item.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Returns whether it matches an item with this metadata.
    pub fn holds(&self, metadata: &Value) -> bool {
        self.conditions.iter().all(|condition| {
            let field = metadata.get(&condition.key);
            condition.tests.iter().all(|test| test.holds(field))
        })
    }
}

fn tests(key: &str, value: &Value) -> Result<Vec<Test>, FilterError> {
    let Value::Object(operators) = value else {
        return Ok(vec![Test::Equals(scalar(key, value)?)]);
    };
    if operators.is_empty() {
        return wrong(format!("`{}` asks for nothing", brief(key)));
    }
    operators.iter().map(|(name, value)| test(key, name, value)).collect()
}

fn test(key: &str, name: &str, value: &Value) -> Result<Test, FilterError> {
    Ok(match name {
        "eq" => Test::Equals(scalar(key, value)?),
        "gt" => Test::Greater(ordered(key, value)?),
        "gte" => Test::AtLeast(ordered(key, value)?),
        "lt" => Test::Less(ordered(key, value)?),
        "lte" => Test::AtMost(ordered(key, value)?),
        "exists" => match value {
            Value::Bool(wanted) => Test::Exists(*wanted),
            Value::Null
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                return wrong(format!("`exists` of `{}` must be true or false", brief(key)));
            }
        },
        "in" => match value {
            Value::Array(values) if values.len() <= MAX_VALUES => {
                let values = values.iter().map(|value| scalar(key, value));
                Test::In(values.collect::<Result<_, _>>()?)
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                let key = brief(key);
                return wrong(format!("`in` of `{key}` must be a list of at most {MAX_VALUES}"));
            }
        },
        _ => {
            return wrong(format!(
                "`{}` of `{}` is not one of eq, in, gt, gte, lt, lte, exists",
                brief(name),
                brief(key)
            ));
        }
    })
}

fn scalar(key: &str, value: &Value) -> Result<Value, FilterError> {
    match value {
        Value::String(text) if text.len() > MAX_FILTER_VALUE_BYTES => {
            let key = brief(key);
            wrong(format!("the text for `{key}` is longer than {MAX_FILTER_VALUE_BYTES} bytes"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(value.clone()),
        Value::Array(_) | Value::Object(_) => wrong(format!(
            "`{}` is compared with a text, a number, true, false or null",
            brief(key)
        )),
    }
}

fn ordered(key: &str, value: &Value) -> Result<Value, FilterError> {
    match value {
        Value::String(_) | Value::Number(_) => scalar(key, value),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            wrong(format!("a range of `{}` is of texts or numbers", brief(key)))
        }
    }
}

impl Test {
    fn holds(&self, field: Option<&Value>) -> bool {
        let order = |other: &Value| field.and_then(|field| compare(field, other));
        match self {
            Self::Equals(value) => any(field, value),
            Self::In(values) => values.iter().any(|value| any(field, value)),
            Self::Exists(wanted) => field.is_some() == *wanted,
            Self::Greater(value) => order(value) == Some(Ordering::Greater),
            Self::AtLeast(value) => {
                matches!(order(value), Some(Ordering::Greater | Ordering::Equal))
            }
            Self::Less(value) => order(value) == Some(Ordering::Less),
            Self::AtMost(value) => matches!(order(value), Some(Ordering::Less | Ordering::Equal)),
        }
    }
}

/// Returns whether the field, or an element of it, is `value`.
fn any(field: Option<&Value>, value: &Value) -> bool {
    let is = |found: &Value| compare(found, value) == Some(Ordering::Equal);
    match field {
        Some(Value::Array(elements)) => elements.iter().any(is),
        Some(found) => is(found),
        None => false,
    }
}

/// Compares two scalars of the same type; `None` if they cannot be compared.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Null, Value::Null) => Some(Ordering::Equal),
        (Value::Bool(a), Value::Bool(b)) => (a == b).then_some(Ordering::Equal),
        (Value::String(a), Value::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Number(a), Value::Number(b)) => {
            // Whole numbers beyond 2^53 are compared as such.
            let whole = |n: &serde_json::Number| {
                n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from))
            };
            match (whole(a), whole(b)) {
                (Some(a), Some(b)) => Some(a.cmp(&b)),
                (None, _) | (_, None) => a.as_f64()?.partial_cmp(&b.as_f64()?),
            }
        }
        (
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_),
            _,
        ) => None,
    }
}

/// Parses the form for a command line: JSON, or `field=value` pairs joined by commas. Values that
/// look like numbers or booleans are such.
impl std::str::FromStr for MemoryFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Self::parse(&Self::value_of(text)?)
    }
}

impl MemoryFilter {
    /// Returns the JSON of a filter on a command line.
    ///
    /// # Errors
    ///
    /// [`FilterError`] if it is neither JSON nor pairs. Whether the JSON is a valid filter is not
    /// checked.
    pub fn value_of(text: &str) -> Result<Value, FilterError> {
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text)
                .or_else(|err| wrong(format!("it is not JSON: {err}")));
        }
        let mut fields = Map::new();
        for pair in text.split(',') {
            let Some((key, value)) = pair.split_once('=') else {
                return wrong(format!("`{}` is neither JSON nor field=value", brief(pair)));
            };
            let value = match serde_json::from_str(value) {
                Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
                Ok(_) | Err(_) => Value::String(value.to_owned()),
            };
            fields.insert(key.trim().to_owned(), value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn holds(filter: Value, metadata: Value) -> bool {
        MemoryFilter::parse(&filter).unwrap().holds(&metadata)
    }

    #[test]
    fn filter_conditions_match_as_documented() {
        for (filter, metadata, wanted) in [
            (json!({}), json!({"a": 1}), true),
            (json!(null), json!({}), true),
            (json!({"a": 1}), json!({"a": 1.0}), true),
            (json!({"a": 1}), json!({"a": "1"}), false),
            (json!({"a": null}), json!({"a": null}), true),
            (json!({"a": null}), json!({}), false),
            (json!({"a": "x"}), json!({"a": ["y", "x"]}), true),
            (json!({"a": {"in": ["x", 2]}}), json!({"a": 2}), true),
            (json!({"a": {"in": []}}), json!({"a": 2}), false),
            (json!({"a": {"exists": true}}), json!({"a": null}), true),
            (json!({"a": {"exists": false}}), json!({"a": null}), false),
            (json!({"a": {"gte": 2, "lt": 5}}), json!({"a": 2}), true),
            (json!({"a": {"gte": 2, "lt": 5}}), json!({"a": 5}), false),
            (json!({"a": {"gt": "b"}}), json!({"a": "c"}), true),
            (json!({"a": {"lte": 3}}), json!({"a": "2"}), false),
            (json!({"a": {"lte": 3}}), json!({"a": [1]}), false),
            (json!({"a": 1, "b": true}), json!({"a": 1, "b": false}), false),
            (json!({"a.b": 1}), json!({"a": {"b": 1}}), false),
            (json!({"a.b": 1}), json!({"a.b": 1}), true),
            (
                json!({"n": 9_007_199_254_740_993_u64}),
                json!({"n": 9_007_199_254_740_992_u64}),
                false,
            ),
        ] {
            assert_eq!(holds(filter.clone(), metadata.clone()), wanted, "{filter} of {metadata}");
        }
    }

    #[test]
    fn invalid_filters_are_refused_with_the_field() {
        let many: Map<String, Value> = (0..17).map(|n| (n.to_string(), json!(1))).collect();
        for (filter, wanted) in [
            (json!([]), "must be an object"),
            (json!({"a": {}}), "`a` asks for nothing"),
            (json!({"a": {"$ne": 1}}), "`$ne` of `a` is not one of eq, in"),
            (json!({"a": [1]}), "is compared with"),
            (json!({"a": {"gt": null}}), "of texts or numbers"),
            (json!({"a": {"in": [[1]]}}), "is compared with"),
            (json!({"a": {"in": vec![1; 65]}}), "at most 64"),
            (json!({"a": {"exists": "yes"}}), "true or false"),
            (json!({"a": "x".repeat(1001)}), "longer than 1000 bytes"),
            (json!({"k".repeat(201): 1}), "longer than 200 bytes"),
            (Value::Object(many), "17 fields, at most 16"),
        ] {
            let text = MemoryFilter::parse(&filter).unwrap_err().to_string();
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn a_command_line_filter_is_pairs_or_json() {
        let read = |text: &str| MemoryFilter::value_of(text).map_err(|err| err.to_string());
        assert_eq!(read("lang=rust,year=2024,ok=true"), {
            Ok(json!({"lang": "rust", "year": 2024, "ok": true}))
        });
        assert_eq!(read("q=a=b"), Ok(json!({"q": "a=b"})));
        assert_eq!(read(" {\"a\": {\"lt\": 3}}"), Ok(json!({"a": {"lt": 3}})));
        assert!(read("nonsense").unwrap_err().contains("neither JSON nor field=value"));
        assert!(read("{").unwrap_err().contains("not JSON"));
        assert!("a=1".parse::<MemoryFilter>().unwrap().holds(&json!({"a": 1})));
    }

    proptest! {
        #[test]
        fn any_text_can_be_a_field_name_or_a_value(key in ".{0,60}", value in ".{0,60}") {
            let filter = MemoryFilter::parse(&json!({key.clone(): value.clone()})).unwrap();
            let (same, other) = (json!({key.clone(): value.clone()}), json!({key: value + "!"}));
            prop_assert!(filter.holds(&same));
            prop_assert!(!filter.holds(&other));
            let none = json!({});
            prop_assert!(!filter.holds(&none));
        }
    }
}
