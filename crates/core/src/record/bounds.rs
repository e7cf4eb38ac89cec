//! Limits and syntax of the parts of a record. All mistakes are reported at once, each with its
//! path.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::label::{check_key, check_value};
use super::{MAX_NAME, SyntaxError, Terms};

/// Maximum number of bytes of a spec, and of a status, as JSON.
pub const MAX_BODY: usize = 256 << 10;
/// Deepest nesting of a spec or status.
pub const MAX_DEPTH: usize = 64;
pub const MAX_LABELS: usize = 64;
pub const MAX_ANNOTATIONS: usize = 64;
/// Maximum number of bytes of all annotations together, keys and values.
pub const MAX_ANNOTATION_BYTES: usize = 32 << 10;
pub const MAX_FINALIZERS: usize = 16;
pub const MAX_TERMS: usize = 8;
/// Maximum number of bytes of a term's value.
pub const MAX_TERM: usize = 253;

/// A mistake in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path: `spec.schedule`, `metadata.labels.tier`, `spec.steps[2].name`.
    pub path: String,
    /// The mistake, as words that follow the path: `must have 1 to 63 characters`.
    pub problem: String,
    /// A hint for the user: `did you mean concurrency?`.
    pub hint: Option<String>,
}

impl FieldError {
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), hint: None }
    }

    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.problem)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Checks labels of small letters, digits and hyphens, separated by dots.
pub(super) fn check_subdomain(text: &str) -> Result<(), SyntaxError> {
    let no = |why: String| Err(SyntaxError(why));
    if text.is_empty() || text.len() > MAX_NAME {
        return no(format!("must have 1 to {MAX_NAME} characters"));
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if let Some((at, c)) = text.chars().enumerate().find(|(_, c)| !plain(*c)) {
        let shown = crate::name::shown(at, c);
        return no(format!("may have small letters, digits, hyphens and dots, not {shown}"));
    }
    let ends = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    match text.split('.').all(ends) {
        true => Ok(()),
        false => no("must begin and end with a letter or digit, also around each dot".into()),
    }
}

/// Returns the mistakes in the labels of a record.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    if labels.len() > MAX_LABELS {
        let problem = format!("has {} labels; {MAX_LABELS} is the most", labels.len());
        wrong.push(FieldError::new("metadata.labels", problem));
    }
    for (key, value) in labels {
        let path = || format!("metadata.labels.{}", short(key));
        if let Err(err) = check_key(key) {
            wrong.push(FieldError::new(path(), format!("is not a label key: it {err}")));
        }
        if let Err(err) = check_value(value) {
            let hint = "longer texts belong in an annotation";
            wrong.push(FieldError::new(path(), err.0).hint(hint));
        }
    }
    wrong
}

/// Returns the mistakes in the annotations of a record.
pub fn check_annotations(annotations: &BTreeMap<String, String>) -> Vec<FieldError> {
    let at = "metadata.annotations";
    let mut wrong = Vec::new();
    if annotations.len() > MAX_ANNOTATIONS {
        let problem =
            format!("has {} annotations; {MAX_ANNOTATIONS} is the most", annotations.len());
        wrong.push(FieldError::new(at, problem));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        let problem = format!("has {bytes} bytes; {MAX_ANNOTATION_BYTES} is the most");
        wrong.push(FieldError::new(at, problem));
    }
    for key in annotations.keys() {
        if let Err(err) = check_key(key) {
            let path = format!("{at}.{}", short(key));
            wrong.push(FieldError::new(path, format!("is not an annotation key: it {err}")));
        }
    }
    wrong
}

/// Returns the mistakes in the finalizers of a record. Each has the syntax of a label key.
pub fn check_finalizers(finalizers: &[String]) -> Vec<FieldError> {
    let at = "metadata.finalizers";
    let mut wrong = Vec::new();
    if finalizers.len() > MAX_FINALIZERS {
        let problem = format!("has {} finalizers; {MAX_FINALIZERS} is the most", finalizers.len());
        wrong.push(FieldError::new(at, problem));
    }
    for (n, finalizer) in finalizers.iter().enumerate() {
        let path = format!("{at}[{n}]");
        if let Err(err) = check_key(finalizer) {
            wrong.push(FieldError::new(path, err.0));
        } else if finalizers.iter().take(n).any(|other| other == finalizer) {
            wrong.push(FieldError::new(path, format!("names `{finalizer}` a second time")));
        }
    }
    wrong
}

/// Returns the mistakes in a spec or a status that no kind may have. `path` is `spec` or `status`.
pub fn check_body(path: &str, body: &Value) -> Vec<FieldError> {
    if !body.is_object() {
        return vec![FieldError::new(path, "must be an object")];
    }
    if !is_shallow(body, MAX_DEPTH) {
        return vec![FieldError::new(path, format!("is nested deeper than {MAX_DEPTH} levels"))];
    }
    let bytes = serde_json::to_string(body).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_BODY {
        let problem = format!("has {bytes} bytes of JSON; {MAX_BODY} is the most");
        let hint = "keep large data in an artifact or the shared state and name it here";
        return vec![FieldError::new(path, problem).hint(hint)];
    }
    Vec::new()
}

/// Returns the mistakes in the index terms that a kind computed.
pub fn check_terms(terms: &Terms) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    if terms.len() > MAX_TERMS {
        let problem = format!("come to {} index terms; {MAX_TERMS} is the most", terms.len());
        wrong.push(FieldError::new("spec and status", problem));
    }
    for term in terms {
        if term.name.contains('/') || check_key(&term.name).is_err() {
            let problem = format!("give an index term the name `{}`", short(&term.name));
            wrong.push(FieldError::new("spec and status", problem));
        }
        if term.value.len() > MAX_TERM {
            let problem = format!(
                "give the index term `{}` {} bytes; {MAX_TERM} is the most",
                short(&term.name),
                term.value.len()
            );
            wrong.push(FieldError::new("spec and status", problem));
        }
    }
    wrong
}

fn is_shallow(value: &Value, left: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        Value::Array(items) => left > 0 && items.iter().all(|item| is_shallow(item, left - 1)),
        Value::Object(fields) => {
            left > 0 && fields.values().all(|field| is_shallow(field, left - 1))
        }
    }
}

/// Returns the beginning of a text from outside, for a message.
fn short(text: &str) -> String {
    text.chars().take(80).filter(|c| !c.is_control()).collect()
}
