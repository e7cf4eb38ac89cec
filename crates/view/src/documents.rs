//! Parses documents of resources in YAML and JSON, with the position of each field.
//!
//! Values follow YAML 1.2: `no` and `0x10` are texts, and `1` is a number. Merge keys are
//! supported.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Largest weight of all documents together, with repeated aliases counted: the bytes of texts, and
/// `NODE` for each value.
pub const MAX_WEIGHT: usize = 64 << 20;
const NODE: usize = 32;
const MAX_DEPTH: usize = 96;

/// A position in a file: line and column, both from 1.
pub type At = (usize, usize);

/// One document.
#[derive(Clone, Debug)]
pub struct Document {
    pub file: String,
    pub value: Value,
    at: At,
    places: HashMap<String, At>,
}

/// A mistake with its position: `a.yaml:3:5: spec.valeus is not a field`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    pub file: String,
    pub at: At,
    pub text: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.at.0, self.at.1, self.text)
    }
}

impl Document {
    /// Creates the mistake at a path of this document. If the path itself is not in the text, the
    /// position is that of its parent.
    pub fn mistake(&self, path: &str, text: String) -> Mistake {
        let mut known = path;
        let at = loop {
            if let Some(at) = self.places.get(known) {
                break *at;
            }
            match known.rfind(['.', '[']) {
                Some(end) => known = known.get(..end).unwrap_or_default(),
                None => break self.at,
            }
        };
        Mistake { file: self.file.clone(), at, text }
    }
}
enum Open {
    List {
        path: String,
        anchor: usize,
        items: Vec<Value>,
    },
    Map {
        path: String,
        anchor: usize,
        fields: Map<String, Value>,
        key: Option<(String, At)>,
        merged: Vec<Value>,
    },
}

/// Parses the documents of a text. Parsing ends at the first text that is not valid, with a
/// mistake.
pub fn parse(file: &str, text: &str, weight: &mut usize) -> (Vec<Document>, Vec<Mistake>) {
    let mut reader = Reader {
        file,
        weight,
        stack: Vec::new(),
        anchors: HashMap::new(),
        places: HashMap::new(),
        at: None,
        root: None,
        documents: Vec::new(),
        mistakes: Vec::new(),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for event in Parser::new_from_str(text) {
        let going = match event {
            Ok((event, span)) => reader.take(event, (span.start.line(), span.start.col() + 1)),
            Err(err) => Err(((err.marker().line(), err.marker().col() + 1), err.info())),
        };
        if let Err((at, text)) = going {
            reader.mistakes.push(Mistake { file: file.to_owned(), at, text });
            break;
        }
    }
    (reader.documents, reader.mistakes)
}

struct Reader<'a> {
    file: &'a str,
    weight: &'a mut usize,
    stack: Vec<Open>,
    /// Anchors by number: the value and its weight.
    anchors: HashMap<usize, (Value, usize)>,
    places: HashMap<String, At>,
    at: Option<At>,
    root: Option<Value>,
    documents: Vec<Document>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn take(&mut self, event: Event<'_>, at: At) -> Result<(), (At, String)> {
        let refuse = |text: &str| Err((at, text.to_owned()));
        let (value, anchor) = match event {
            Event::DocumentStart(..) => {
                (self.at, self.root) = (None, None);
                self.anchors.clear();
                self.places.clear();
                return Ok(());
            }
            Event::DocumentEnd => {
                self.ended(at);
                return Ok(());
            }
            Event::Scalar(text, style, anchor, tag) => {
                // A mapping's key is a text, whatever it looks like.
                if let Some(Open::Map { path, fields, key: key @ None, .. }) = self.stack.last_mut()
                {
                    let name = text.into_owned();
                    if fields.contains_key(&name) {
                        let text = format!("`{}` is there a second time", joined(path, &name));
                        self.mistakes.push(Mistake { file: self.file.to_owned(), at, text });
                    }
                    self.places.entry(joined(path, &name)).or_insert(at);
                    *key = Some((name, at));
                    return Ok(());
                }
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let value = if plain { meant(&text) } else { Value::String(text.into_owned()) };
                (value, anchor)
            }
            Event::Alias(number) => {
                let Some((value, weight)) = self.anchors.get(&number) else {
                    return refuse("this alias names a value that contains it, or none");
                };
                if *weight > *self.weight {
                    return refuse("aliases repeat more than 64 MiB");
                }
                (value.clone(), 0)
            }
            Event::SequenceStart(_, anchor, _) => {
                let path = self.path(at);
                self.stack.push(Open::List { path, anchor, items: Vec::new() });
                return self.deep(at);
            }
            Event::MappingStart(_, anchor, _) => {
                if let Some(Open::Map { key: None, .. }) = self.stack.last() {
                    return refuse("a key must be a text");
                }
                let path = self.path(at);
                let (fields, merged) = (Map::new(), Vec::new());
                self.stack.push(Open::Map { path, anchor, fields, key: None, merged });
                return self.deep(at);
            }
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(Open::List { anchor, items, .. }) => (Value::Array(items), anchor),
                Some(Open::Map { anchor, mut fields, merged, .. }) => {
                    for (name, value) in merged.into_iter().flat_map(entries) {
                        fields.entry(name).or_insert(value);
                    }
                    (Value::Object(fields), anchor)
                }
                None => return refuse("an end without a beginning"),
            },
            // Another crate's enum, which grows: the rest are marks without a value.
            _ => return Ok(()),
        };
        let ended = value.is_array() || value.is_object();
        let weighs = if anchor != 0 || !ended { weight(&value) } else { 0 };
        if !ended {
            self.path(at);
        }
        *self.weight = match self.weight.checked_sub(weighs) {
            Some(left) => left,
            None => return refuse("the documents have more than 64 MiB of values"),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (value.clone(), weighs));
        }
        match self.stack.last_mut() {
            None => self.root = Some(value),
            Some(Open::List { items, .. }) => items.push(value),
            Some(Open::Map { fields, key, merged, .. }) => match key.take() {
                Some((name, _)) if name == "<<" => match value {
                    Value::Array(all) => merged.extend(all),
                    one => merged.push(one),
                },
                Some((name, _)) => drop(fields.insert(name, value)),
                None => return refuse("a key must be a text"),
            },
        }
        Ok(())
    }

    /// Returns the path of the value that begins here.
    fn path(&mut self, at: At) -> String {
        self.at.get_or_insert(at);
        match self.stack.last() {
            None => String::new(),
            Some(Open::List { path, items, .. }) => {
                let path = format!("{path}[{}]", items.len());
                self.places.entry(path.clone()).or_insert(at);
                path
            }
            Some(Open::Map { path, key, .. }) => {
                key.as_ref().map_or_else(String::new, |(name, _)| joined(path, name))
            }
        }
    }

    fn deep(&self, at: At) -> Result<(), (At, String)> {
        match self.stack.len() > MAX_DEPTH {
            true => Err((at, format!("is nested deeper than {MAX_DEPTH} levels"))),
            false => Ok(()),
        }
    }

    /// Handles the end of a document. An empty document is ignored; the items of a List become
    /// documents.
    fn ended(&mut self, end: At) {
        let places = std::mem::take(&mut self.places);
        let (Some(value), at) = (self.root.take(), self.at.unwrap_or(end)) else { return };
        if value.is_null() {
            return;
        }
        let file = self.file.to_owned();
        let list = value.get("kind").and_then(Value::as_str) == Some("List");
        let Some(items) = value.get("items").and_then(Value::as_array).filter(|_| list) else {
            return self.documents.push(Document { file, value, at, places });
        };
        for (n, item) in items.iter().enumerate() {
            let prefix = format!("items[{n}]");
            let of_item = places.iter().filter_map(|(path, at)| {
                let rest = path.strip_prefix(&prefix)?;
                Some((rest.strip_prefix('.').unwrap_or(rest).to_owned(), *at))
            });
            let places: HashMap<String, At> = of_item.collect();
            let at = places.get("").copied().unwrap_or(at);
            self.documents.push(Document { file: file.clone(), value: item.clone(), at, places });
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn entries(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn weight(value: &Value) -> usize {
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + weight(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Returns the value of an unquoted scalar.
fn meant(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::String(text.to_owned());
    }
    let plain = text.strip_prefix('+').unwrap_or(text);
    let number = if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        plain
            .parse::<i64>()
            .map(Number::from)
            .or_else(|_| plain.parse::<u64>().map(Number::from))
            .ok()
    } else {
        let exact = digits
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+'));
        plain.parse::<f64>().ok().filter(|_| exact).and_then(Number::from_f64)
    };
    number.map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> (Vec<Document>, Vec<String>) {
        let (documents, mistakes) = parse("f.yaml", text, &mut MAX_WEIGHT.clone());
        (documents, mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn documents_of_a_file_keep_their_values_and_positions() {
        let text =
            "\u{feff}# a\r\na: 1\r\nb: [x, {c: no}]\r\n---\r\n---\r\n{\"d\": {\"e.f\": \"1\"}}\r\n";
        let (documents, mistakes) = read(text);
        assert_eq!(mistakes, [""; 0]);
        let values: Vec<_> = documents.iter().map(|one| &one.value).collect();
        assert_eq!(
            values,
            [&json!({"a": 1, "b": ["x", {"c": "no"}]}), &json!({"d": {"e.f": "1"}})]
        );
        let place = |n: usize, path: &str| documents[n].mistake(path, String::new()).at;
        assert_eq!(place(0, "b[1].c"), (3, 9));
        assert_eq!(place(0, "b[1].missing"), (3, 8), "what is around it");
        assert_eq!(place(1, "d.e.f"), (6, 8));
    }

    #[test]
    fn scalars_are_parsed_as_in_yaml_1_2() {
        let (documents, _) =
            read("[no, 0x10, 1_0, 1.5, -3, .5, 1e3, 18446744073709551615, null, '1', 1.2.3, +1]");
        let want = json!([
            "no",
            "0x10",
            "1_0",
            1.5,
            -3,
            0.5,
            1000.0,
            18_446_744_073_709_551_615_u64,
            null,
            "1",
            "1.2.3",
            1
        ]);
        assert_eq!(documents[0].value, want);
    }

    #[test]
    fn list_documents_are_expanded_and_merge_keys_read() {
        let (documents, _) = read("kind: List\nitems:\n- {a: 1}\n- &x {b: 2}\n");
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[1].mistake("b", String::new()).at, (4, 7));
        let (documents, _) = read("x: &x {a: 1, b: 1}\ny: {<<: *x, b: 2}\n");
        assert_eq!(documents[0].value["y"], json!({"a": 1, "b": 2}));
    }

    #[test]
    fn invalid_documents_are_reported_with_their_position() {
        for (text, want) in [
            ("a: 1\na: 2\n", "f.yaml:2:1: `a` is there a second time"),
            ("a: *b\n", "f.yaml:1:4: "),
            ("[a]: 1\n", "f.yaml:1:"),
            ("a: {\n", "f.yaml:"),
        ] {
            let (_, mistakes) = read(text);
            assert!(
                mistakes.first().is_some_and(|one| one.starts_with(want)),
                "{text}: {mistakes:?}"
            );
        }
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(read(&deep).1[0].contains("nested"));
        let mut bomb = String::from("a0: &a0 [x]\n");
        for n in 1..30 {
            let before = format!("*a{}", n - 1);
            bomb.push_str(&format!("a{n}: &a{n} [{}]\n", [before.as_str(); 10].join(", ")));
        }
        let (_, mistakes) = read(&bomb);
        assert!(mistakes[0].contains("64 MiB"), "{mistakes:?}");
        for empty in ["", "---\n", "# nothing\n", "\u{feff}"] {
            let (documents, mistakes) = read(empty);
            assert!(documents.is_empty() && mistakes.is_empty(), "{empty:?}: {mistakes:?}");
        }
    }
}
