//! Reads a tree of values into types, and reports all errors at once.
//!
//! Each function returns what it could read and records errors: a person who fixes one wrong line
//! of three sees the other two in the same run.

use std::fmt;
use std::time::Duration;

use overmind_core::nearest::nearest;

use super::yaml::{At, Node, Value};

/// One error: its position, key, description, and correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub at: At,
    /// Keys from the top, joined by dots; list items by number.
    pub path: String,
    pub what: String,
    /// A hint for the user.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.at.line, self.at.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
}

/// The entries of a mapping with checked keys.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    pub(crate) path: String,
    pub(crate) at: At,
    entries: Vec<(&'a str, &'a Node, &'a Node)>,
}

impl<'a> Fields<'a> {
    /// The value under `key`, unless it is absent or null, and its path.
    pub(crate) fn get(&self, key: &str) -> Option<(&'a Node, String)> {
        let (_, _, value) = self.entries.iter().find(|(name, _, _)| *name == key)?;
        (!value.is_null()).then(|| (*value, join(&self.path, key)))
    }

    /// The position of the key itself, also if its value is null.
    pub(crate) fn key_at(&self, key: &str) -> Option<At> {
        self.entries.iter().find(|(name, _, _)| *name == key).map(|(_, key, _)| key.at)
    }
}

pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl Reader {
    pub(crate) fn problem(&mut self, at: At, path: &str, what: impl Into<String>) {
        self.problems.push(Problem { at, path: path.to_owned(), what: what.into(), hint: None });
    }

    pub(crate) fn hinted(
        &mut self,
        at: At,
        path: &str,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let (what, hint) = (what.into(), Some(hint.into()));
        self.problems.push(Problem { at, path: path.to_owned(), what, hint });
    }

    /// Reads a mapping. Keys that are not in `allowed`, and duplicate keys, are errors.
    pub(crate) fn fields<'a>(
        &mut self,
        node: &'a Node,
        path: &str,
        allowed: &[&str],
    ) -> Option<Fields<'a>> {
        let fields = self.map(node, path)?;
        for (key, at, _) in &fields.entries {
            if allowed.contains(key) {
                continue;
            }
            let hint = match nearest(key, allowed.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", allowed.join(", ")),
            };
            self.hinted(at.at, &join(path, key), "unknown key", hint);
        }
        Some(fields)
    }

    /// Reads a mapping with arbitrary keys. Duplicate keys are errors.
    pub(crate) fn map<'a>(&mut self, node: &'a Node, path: &str) -> Option<Fields<'a>> {
        if !matches!(node.value, Value::Map(_)) {
            self.problem(node.at, path, format!("must be a mapping of keys, not {}", node.kind()));
            return None;
        }
        if let Value::Map(raw) = &node.value {
            let mut seen: Vec<&str> = Vec::new();
            for (key, _) in raw.iter() {
                match key.text() {
                    Some(text) if seen.contains(&text) => {
                        self.problem(key.at, &join(path, text), "is defined twice");
                    }
                    Some(text) => seen.push(text),
                    None => self.problem(key.at, path, "a key must be a single word"),
                }
            }
        }
        Some(Fields { path: path.to_owned(), at: node.at, entries: node.entries() })
    }

    /// Reads a mapping as [`Self::map`] does, and returns its entries in the file's order.
    pub(crate) fn pairs<'a>(
        &mut self,
        node: &'a Node,
        path: &str,
    ) -> Vec<(&'a str, At, &'a Node, String)> {
        let Some(fields) = self.map(node, path) else { return Vec::new() };
        let entry = |(key, at, value): &(&'a str, &'a Node, &'a Node)| {
            (*key, at.at, *value, join(path, key))
        };
        fields.entries.iter().map(entry).collect()
    }

    pub(crate) fn text(&mut self, node: &Node, path: &str) -> Option<String> {
        match node.text() {
            Some(text) if text.contains('\0') => {
                self.problem(node.at, path, "holds a NUL character");
                None
            }
            Some(text) => Some(text.to_owned()),
            None => {
                self.problem(node.at, path, format!("must be a text, not {}", node.kind()));
                None
            }
        }
    }

    /// A non-empty text.
    pub(crate) fn word(&mut self, node: &Node, path: &str) -> Option<String> {
        let text = self.text(node, path)?;
        if text.trim().is_empty() {
            self.problem(node.at, path, "is empty");
            return None;
        }
        Some(text)
    }

    /// One text or a list of texts.
    pub(crate) fn words(&mut self, node: &Node, path: &str) -> Vec<String> {
        match &node.value {
            Value::Scalar { .. } => self.word(node, path).into_iter().collect(),
            Value::List(items) => {
                let numbered = items.iter().enumerate();
                numbered.filter_map(|(n, item)| self.word(item, &format!("{path}[{n}]"))).collect()
            }
            Value::Map(_) => {
                self.problem(node.at, path, "must be a text or a list of texts, not a mapping");
                Vec::new()
            }
        }
    }

    pub(crate) fn number(&mut self, node: &Node, path: &str, least: u64, most: u64) -> Option<u64> {
        match node.text().and_then(|text| text.parse::<u64>().ok()) {
            Some(number) if (least..=most).contains(&number) => Some(number),
            Some(_) | None => {
                self.problem(
                    node.at,
                    path,
                    format!("must be a whole number from {least} to {most}, not {}", shown(node)),
                );
                None
            }
        }
    }

    pub(crate) fn truth(&mut self, node: &Node, path: &str) -> Option<bool> {
        match node.text() {
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) | None => {
                self.problem(
                    node.at,
                    path,
                    format!("wants `true` or `false`, not {}", shown(node)),
                );
                None
            }
        }
    }

    /// A duration: `90s`, `5m`, `1h`, `250ms`, or a plain number of seconds.
    pub(crate) fn duration(&mut self, node: &Node, path: &str) -> Option<Duration> {
        let parsed = node.text().and_then(parse_duration);
        if parsed.is_none() {
            let what = format!("must be a length of time, not {}", shown(node));
            self.hinted(node.at, path, what, "write `250ms`, `90s`, `5m` or `1h`");
        }
        parsed
    }

    /// One of several words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        node: &Node,
        path: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let text = node.text().unwrap_or_default();
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let hint = match nearest(text, words.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", words.join(", ")),
        };
        self.hinted(node.at, path, format!("does not know {}", shown(node)), hint);
        None
    }
}

fn shown(node: &Node) -> String {
    match node.text() {
        Some(_) if node.is_null() => "nothing".to_owned(),
        Some(text) => format!("`{}`", text.chars().take(60).collect::<String>()),
        None => node.kind().to_owned(),
    }
}

pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: u64 = digits.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    // The limit of a week is longer than anything here may take, and avoids overflow.
    let all = number.checked_mul(millis).filter(|ms| *ms <= 7 * 24 * 3_600_000)?;
    Some(Duration::from_millis(all))
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("5"), Some(Duration::from_secs(5)));
        assert_eq!(parse_duration("2h"), Some(Duration::from_secs(7200)));
        for wrong in ["", "s", "5 s", "-1s", "1.5s", "99999999999999999999s", "999h", "5d"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_line_path_and_suggestion() {
        let node = parse("port: 3\nnme: x\nport: 4\n").unwrap();
        let mut reader = Reader::default();
        reader.fields(&node, "a.b", &["port", "name"]);
        let told: Vec<String> = reader.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            ["3:1: a.b.port: is defined twice", "2:1: a.b.nme: unknown key; did you mean `name`?"]
        );
    }
}
