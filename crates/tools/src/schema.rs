//! Validates arguments: JSON Schema decides, and each error becomes one plain sentence.
//!
//! The order of the sentences is fixed: unknown names first, then the properties in the order of
//! the schema, and for each property missing, type, blank, limits, the rest. The first sentence is
//! the message; if there are more, `details.errors` lists them all.
//!
//! There are two rules beyond JSON Schema:
//! * a top-level string property with `minLength` of at least 1 also refuses text that is blank
//!   after trimming (`… must be a non-empty string`). The text itself is passed on untrimmed;
//! * size and depth of all arguments together are limited ([`bounded`]).
//!
//! Note that a number without a fraction is an integer in any notation, so `9.0` is accepted for
//! `integer` (handlers read integers with [`integer`]); a boolean never is, and text is never
//! converted.

use std::collections::HashSet;
use std::io;

use jsonschema::error::ValidationErrorKind as Kind;
use jsonschema::{ValidationError, Validator};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _};
use serde_json::{Map, Value, json};

use crate::answer::{Failure, brief, cut};
use crate::gateway::{MAX_ARGS_BYTES, MAX_ARGS_DEPTH};

/// Maximum number of errors that are collected in one call; one is enough to refuse it.
const MAX_ERRORS: usize = 256;
/// The number of last bytes that are shown of a cut text.
const LAST_WORDS: usize = 60;
/// Maximum number of sentences in one answer.
const MAX_SENTENCES: usize = 20;

/// One tool's schema, compiled.
#[derive(Debug)]
pub(crate) struct Checker {
    validator: Validator,
    schema: Value,
}

impl Checker {
    /// Compiles a schema. It is JSON Schema 2020-12, unless it names another draft in `$schema`.
    /// References to other documents are refused and never fetched.
    pub(crate) fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it is not an object".into());
        }
        let validator = jsonschema::options()
            .offline()
            .build(schema)
            .map_err(|err| cut(&err.to_string(), 500).to_owned())?;
        Ok(Self { validator, schema: schema.clone() })
    }

    /// Works as [`Checker::new`] for an untrusted schema: its patterns are matched in linear time,
    /// and patterns that need more (look-around, back references) are refused.
    pub(crate) fn untrusted(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it is not an object".into());
        }
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(schema)
            .map_err(|err| cut(&err.to_string(), 500).to_owned())?;
        Ok(Self { validator, schema: schema.clone() })
    }

    pub(crate) fn check(&self, args: &Value) -> Result<(), Failure> {
        let Some(given) = args.as_object() else {
            return Err(Failure::bad_args(not_an_object(args)));
        };
        if self.validator.is_valid(args) && self.blanks(given).next().is_none() {
            return Ok(());
        }
        let mut found = Vec::new();
        let unknown = self.unknown(given);
        if !unknown.is_empty() {
            found.push((Rank::UNKNOWN, unknown_args(unknown)));
        }
        for error in self.validator.iter_errors(args).take(MAX_ERRORS) {
            found.extend(self.sentence(&error));
        }
        found.extend(self.blanks(given));
        // The sort is stable, so errors of equal rank keep the validator's order.
        found.sort_by_key(|(rank, _)| *rank);
        let mut seen = HashSet::new();
        let mut sentences: Vec<_> = found
            .into_iter()
            .map(|(_, text)| text)
            .filter(|text| seen.insert(text.clone()))
            .collect();
        sentences.truncate(MAX_SENTENCES);
        let Some(first) = sentences.first() else { return Ok(()) };
        let failure = Failure::bad_args(first.clone());
        Err(match sentences.len() {
            1 => failure,
            _ => failure.with_details(json!({ "errors": sentences })),
        })
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        self.schema.get("properties").and_then(Value::as_object)
    }

    /// The index of a top-level property in declared order; undeclared ones come last.
    fn place(&self, property: &str) -> usize {
        self.properties()
            .and_then(|all| all.keys().position(|name| name == property))
            .unwrap_or(usize::MAX)
    }

    fn unknown(&self, given: &Map<String, Value>) -> Vec<String> {
        if self.schema.get("additionalProperties") != Some(&Value::Bool(false)) {
            return Vec::new();
        }
        let declared = self.properties();
        given
            .keys()
            .filter(|name| !declared.is_some_and(|all| all.contains_key(*name)))
            .cloned()
            .collect()
    }

    fn blanks<'a>(&'a self, given: &'a Map<String, Value>) -> impl Iterator<Item = (Rank, String)> {
        self.properties().into_iter().flatten().enumerate().filter_map(|(place, (name, schema))| {
            let filled = schema.get("minLength").and_then(Value::as_u64).is_some_and(|n| n > 0);
            let blank =
                given.get(name).and_then(Value::as_str).is_some_and(|s| s.trim().is_empty());
            (filled && blank)
                .then(|| (Rank { place, kind: 2 }, format!("{name} must be a non-empty string")))
        })
    }

    /// The sentence for one error; `None` for errors that [`Checker::unknown`] already reports.
    fn sentence(&self, error: &ValidationError<'_>) -> Option<(Rank, String)> {
        let path = error.instance_path().as_str();
        let missing = match error.kind() {
            Kind::Required { property } => property.as_str(),
            _ => None,
        };
        let top = match (first_segment(path), missing) {
            (Some(segment), _) => segment,
            (None, Some(property)) => property.to_owned(),
            (None, None) => String::new(),
        };
        let nested = path.matches('/').count() + usize::from(missing.is_some()) > 1;
        let field = field_name(path, missing);
        let (kind, text) = match error.kind() {
            Kind::AdditionalProperties { unexpected } if path.is_empty() => {
                debug_assert!(!unexpected.is_empty(), "the keyword names what it refuses");
                return None;
            }
            Kind::AdditionalProperties { unexpected }
            | Kind::UnevaluatedProperties { unexpected } => {
                (5, unknown_args(unexpected.iter().map(|name| join(path, name)).collect()))
            }
            Kind::Required { .. } => (0, format!("{field} is required")),
            Kind::Type { .. } => (1, format!("{field} must be of type {}", self.types(error))),
            Kind::MinLength { limit: 1 } => (2, format!("{field} must be a non-empty string")),
            Kind::MinLength { limit } => {
                (3, format!("{field} must be at least {limit} characters long"))
            }
            Kind::MaxLength { limit } => {
                (3, format!("{field} must be at most {limit} characters long"))
            }
            Kind::Minimum { limit } => (3, format!("{field} must be >= {limit}")),
            Kind::Maximum { limit } => (3, format!("{field} must be <= {limit}")),
            Kind::ExclusiveMinimum { limit } => (3, format!("{field} must be > {limit}")),
            Kind::ExclusiveMaximum { limit } => (3, format!("{field} must be < {limit}")),
            Kind::Enum { options } => (3, format!("{field} must be one of {}", choices(options))),
            Kind::Constant { expected_value } => (3, format!("{field} must be {expected_value}")),
            Kind::Pattern { pattern } => (3, format!("{field} must match the pattern {pattern}")),
            Kind::MinItems { limit } => (3, format!("{field} must have at least {limit} item(s)")),
            Kind::MaxItems { limit } => (3, format!("{field} must have at most {limit} item(s)")),
            // The other errors are of rarely used keywords in another crate. Its own text is used,
            // without the value, which may be long.
            _ => (4, format!("{field}: {}", cut(&error.masked().to_string(), 500))),
        };
        let kind = if nested { 5 } else { kind };
        Some((Rank { place: self.place(&top), kind }, text))
    }

    /// The expected types by their short names, in the schema's order: `str, NoneType`.
    fn types(&self, error: &ValidationError<'_>) -> String {
        let names = match self.schema.pointer(error.schema_path().as_str()) {
            Some(Value::String(name)) => vec![name.as_str()],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        names.into_iter().map(short_type).collect::<Vec<_>>().join(", ")
    }
}

/// The sort key: unknown names, then properties in declared order, then the kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    place: usize,
    kind: u8,
}

impl Rank {
    const UNKNOWN: Self = Self { place: 0, kind: 0 };
}

fn short_type(json: &str) -> &str {
    match json {
        "string" => "str",
        "integer" => "int",
        "boolean" => "bool",
        "object" => "dict",
        "array" => "list",
        "number" => "int, float",
        "null" => "NoneType",
        other => other,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// The error for arguments that are no object. If a model wrote broken JSON, the arguments are its
/// raw text, and the error shows the position, or the last words of a cut text.
fn not_an_object(args: &Value) -> String {
    let got = type_of(args);
    let broken = args.as_str().and_then(|text| {
        let err = serde_json::from_str::<serde::de::IgnoredAny>(text).err()?;
        let from = text.floor_char_boundary(text.len().saturating_sub(LAST_WORDS));
        Some(if err.is_eof() && !text.trim().is_empty() {
            format!(
                " that was cut after `{}`: nothing was done. Send the whole call again; if the reply \
                 reached its token limit, make the call shorter or split it into several",
                &text[from..]
            )
        } else {
            format!(" that is not valid JSON: {err}")
        })
    });
    format!("arguments must be a JSON object, got {got}{}", broken.unwrap_or_default())
}

fn unknown_args(mut names: Vec<String>) -> String {
    names.sort();
    let more = names.len().saturating_sub(MAX_SENTENCES);
    names.truncate(MAX_SENTENCES);
    let shown = names.iter().map(|name| brief(name)).collect::<Vec<_>>().join(", ");
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("unknown arg(s): {shown}{rest}")
}

fn choices(options: &Value) -> String {
    let Some(options) = options.as_array() else { return options.to_string() };
    options.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

fn first_segment(path: &str) -> Option<String> {
    let segment = path.strip_prefix('/')?.split('/').next()?;
    Some(segment.replace("~1", "/").replace("~0", "~"))
}

fn join(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The name is `timeout_s` at the top level, and a JSON pointer (`/checks/0/path`) below it.
fn field_name(path: &str, missing: Option<&str>) -> String {
    let pointer = match missing {
        Some(name) => join(path, name),
        None => path.to_owned(),
    };
    match pointer.matches('/').count() {
        0 => "arguments".into(),
        1 => brief(&first_segment(&pointer).unwrap_or_default()),
        _ => brief(&pointer),
    }
}

/// Refuses arguments that are larger or deeper than any tool needs.
pub(crate) fn bounded(args: &Value) -> Result<(), Failure> {
    if deeper_than(args, MAX_ARGS_DEPTH) {
        return Err(Failure::bad_args(format!(
            "arguments must not be nested deeper than {MAX_ARGS_DEPTH} levels"
        )));
    }
    if serde_json::to_writer(Counter(MAX_ARGS_BYTES), args).is_err() {
        return Err(Failure::bad_args(format!(
            "arguments must not exceed {MAX_ARGS_BYTES} bytes of JSON"
        )));
    }
    Ok(())
}

fn deeper_than(value: &Value, levels: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => {
            levels == 0 || items.iter().any(|item| deeper_than(item, levels - 1))
        }
        Value::Object(items) => {
            levels == 0 || items.values().any(|item| deeper_than(item, levels - 1))
        }
    }
}

/// Counts written bytes and fails if there are more than the rest.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Deserializes validated arguments to a handler's type.
pub(crate) fn parse<T: DeserializeOwned>(args: &Value) -> Result<T, Failure> {
    T::deserialize(args).map_err(|err| Failure::bad_args(cut(&err.to_string(), 500)))
}

/// `deserialize_with` for integers: accepts `9.0` as `9`, as JSON Schema does.
pub(crate) fn integer<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = serde_json::Number::deserialize(from)?;
    if let Some(n) = number.as_u64() {
        return Ok(n);
    }
    match number.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the guard leaves whole numbers that u64 and f64 both hold exactly"
        )]
        Some(n) if n.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&n) => Ok(n as u64),
        _ => Err(D::Error::custom(format!("{number} is not a whole number from 0 to 2^53"))),
    }
}

/// Works as [`integer`] for an optional property.
pub(crate) fn some_integer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    integer(from).map(Some)
}
