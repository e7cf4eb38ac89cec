//! Canaries: secrets that open nothing, planted where nobody should look.
//!
//! A canary is planted in a file or a variable beside the real secrets. An honest session never
//! touches it, so its sight in a result says that a session reads what it should not, and its
//! sight in the arguments of a call says that it is about to carry it somewhere.
//!
//! This module makes canaries and finds them again, also in hexadecimal, percent-encoding and
//! Base64. It is pure; planting and raising the alarm are for its callers. It must be asked
//! before secrets are masked, for a mask hides a canary, too.

use serde_json::Value;

use crate::encoded;

/// What every canary begins with.
pub const PREFIX: &str = "ovm-canary-";

/// One planted value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Where it was planted, for the alarm: `file .env`, `env AWS_SECRET_ACCESS_KEY`.
    pub place: String,
    pub value: String,
}

/// Where and how a canary was seen. Does not hold its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// [`Canary::place`].
    pub place: String,
    /// JSON pointer to the text it stood in; that of an object's key ends in the key's parent.
    pub at: String,
    /// It did not stand there as it is, but encoded.
    pub encoded: bool,
}

/// All canaries of one session, or of one hive.
#[derive(Clone, Debug, Default)]
pub struct Canaries {
    planted: Vec<(Canary, Vec<String>)>,
    /// The prefix in every form: what no text without a canary holds.
    traces: Vec<String>,
}

/// Makes the canary of one place. The same key and place give the same canary, so that a restart
/// finds what was planted before; without the key nobody can make or tell one.
pub fn mint(key: &[u8; 32], place: &str) -> Canary {
    let hash = blake3::keyed_hash(key, place.as_bytes()).to_hex();
    Canary { place: place.to_owned(), value: format!("{PREFIX}{}", &hash[..32]) }
}

impl Canaries {
    pub fn new(planted: Vec<Canary>) -> Self {
        let mut traces = vec![PREFIX.to_owned()];
        traces.extend(encoded::forms(PREFIX));
        let planted = planted
            .into_iter()
            .map(|canary| {
                let forms = encoded::forms(&canary.value);
                (canary, forms)
            })
            .collect();
        Self { planted, traces }
    }

    /// Every canary that stands in `value`, in its texts and in the keys of its objects.
    ///
    /// A value without one costs one search per form of the prefix.
    pub fn seen_in(&self, value: &Value) -> Vec<Sighting> {
        let mut seen = Vec::new();
        if !self.planted.is_empty() {
            self.value(value, &mut String::new(), &mut seen);
        }
        seen
    }

    fn value(&self, value: &Value, at: &mut String, seen: &mut Vec<Sighting>) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.text(text, at, seen),
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.below(&n.to_string(), item, at, seen);
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    self.text(key, at, seen);
                    self.below(&key.replace('~', "~0").replace('/', "~1"), field, at, seen);
                }
            }
        }
    }

    fn below(&self, step: &str, value: &Value, at: &mut String, seen: &mut Vec<Sighting>) {
        let length = at.len();
        at.push('/');
        at.push_str(step);
        self.value(value, at, seen);
        at.truncate(length);
    }

    fn text(&self, text: &str, at: &str, seen: &mut Vec<Sighting>) {
        if !self.traces.iter().any(|trace| text.contains(trace.as_str())) {
            return;
        }
        for (canary, forms) in &self.planted {
            let plain = text.contains(&canary.value);
            if plain || forms.iter().any(|form| text.contains(form.as_str())) {
                let (place, at) = (canary.place.clone(), at.to_owned());
                seen.push(Sighting { place, at, encoded: !plain });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    #[test]
    fn a_canary_is_the_same_for_the_same_place_and_for_no_other() {
        assert_eq!(mint(&KEY, "file .env"), mint(&KEY, "file .env"));
        assert_ne!(mint(&KEY, "file .env").value, mint(&KEY, "file b").value);
        assert_ne!(mint(&KEY, "file .env").value, mint(&[8; 32], "file .env").value);
    }

    #[test]
    fn a_canary_is_seen_wherever_it_stands_and_however_it_is_encoded() {
        let canary = mint(&KEY, "file .env");
        let canaries = Canaries::new(vec![canary.clone(), mint(&KEY, "other")]);
        let seen = |value: Value| canaries.seen_in(&value);
        let at = |at: &str, encoded| {
            vec![Sighting { place: "file .env".into(), at: at.into(), encoded }]
        };
        let v = &canary.value;
        assert_eq!(seen(json!({"a": ["x", format!("KEY={v}\n")]})), at("/a/1", false));
        assert_eq!(seen(json!({"headers": {v: "x"}})), at("/headers", false));
        for form in encoded::forms(v) {
            assert_eq!(seen(json!({"url": format!("https://e.test/?q={form}")})), at("/url", true));
        }
        for before in ["", "x", "xy"] {
            // The whole around it is encoded, as a tool that packs a file would.
            let whole = format!("{before}{v} and more");
            let forms = encoded::forms(&whole);
            assert!(forms.iter().filter(|form| !seen(json!(form)).is_empty()).count() >= 5);
        }
    }

    #[test]
    fn what_only_looks_like_a_canary_is_none() {
        let canaries = Canaries::new(vec![mint(&KEY, "p")]);
        for text in ["ovm-canary-", "ovm-canary-00000000000000000000000000000000", "canary", ""] {
            assert_eq!(canaries.seen_in(&json!(text)), Vec::new(), "{text}");
        }
        let other = mint(&[9; 32], "p").value;
        assert_eq!(canaries.seen_in(&json!(other)), Vec::new());
        assert_eq!(Canaries::default().seen_in(&json!(mint(&KEY, "p").value)), Vec::new());
    }
}
