//! Parses YAML to a tree that keeps the position of each value.
//!
//! Scalars keep their text: `1.10` stays `1.10` and `no` stays `no`, because the key decides what a
//! value means. JSON is accepted, because it is YAML. Documents with more than [`MAX_NODES`] values
//! are refused; aliases count as the values that they repeat.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle};

/// Maximum number of values of a document, with aliases expanded.
const MAX_NODES: usize = 20_000;
/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A position in a file, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: At,
    pub(crate) value: Value,
    /// The number of values in it, including itself.
    size: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar {
        text: String,
        /// Whether it was written without quotes, and so may mean more than its text.
        plain: bool,
    },
    List(Arc<Vec<Node>>),
    Map(Arc<Vec<(Node, Node)>>),
}

/// Why a text is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) at: At,
    pub(crate) why: String,
}

impl Node {
    fn new(at: At, value: Value) -> Self {
        let size = match &value {
            Value::Scalar { .. } => 1,
            Value::List(items) => 1 + items.iter().map(|item| item.size).sum::<usize>(),
            Value::Map(entries) => 1 + entries.iter().map(|(k, v)| k.size + v.size).sum::<usize>(),
        };
        Self { at, value, size }
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Whether it is empty or `null`.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain } => {
                *plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Value::List(_) | Value::Map(_) => false,
        }
    }

    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            Value::Scalar { .. } | Value::Map(_) => &[],
        }
    }

    /// Key and value of each entry whose key is a scalar, with merge keys (`<<`) resolved: entries
    /// of the map itself take precedence.
    pub(crate) fn entries(&self) -> Vec<(&str, &Self, &Self)> {
        let Value::Map(entries) = &self.value else { return Vec::new() };
        let mut found: Vec<(&str, &Self, &Self)> = Vec::new();
        for (key, value) in entries.iter() {
            match key.text() {
                Some("<<") => {}
                Some(text) => found.push((text, key, value)),
                None => {}
            }
        }
        for (key, value) in entries.iter() {
            if key.text() != Some("<<") {
                continue;
            }
            let merged: Vec<&Self> = match &value.value {
                Value::List(items) => items.iter().collect(),
                Value::Scalar { .. } | Value::Map(_) => vec![value],
            };
            for (text, key, value) in merged.into_iter().flat_map(Self::entries) {
                if !found.iter().any(|(known, _, _)| *known == text) {
                    found.push((text, key, value));
                }
            }
        }
        found
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entries().into_iter().find(|(name, _, _)| *name == key).map(|(_, _, value)| value)
    }

    /// The name of its type in messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

enum Open {
    List(At, usize, Vec<Node>),
    Map(At, usize, Vec<(Node, Node)>, Option<Node>),
}

/// Parses the one document of `text`; an empty text is a null.
pub(crate) fn parse(text: &str) -> Result<Node, Malformed> {
    let mut stack: Vec<Open> = Vec::new();
    let mut root: Option<Node> = None;
    let mut anchors: HashMap<usize, Node> = HashMap::new();
    let mut total = 0_usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|err| Malformed {
            at: At { line: err.marker().line(), column: err.marker().col() + 1 },
            why: err.info(),
        })?;
        let at = At { line: span.start.line(), column: span.start.col() + 1 };
        let refuse = |why: &str| Malformed { at, why: why.to_owned() };
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                (Node::new(at, Value::Scalar { text: text.into_owned(), plain }), anchor)
            }
            Event::Alias(anchor) => {
                let node = anchors.get(&anchor).cloned();
                (node.ok_or_else(|| refuse("this alias refers to a value that contains it"))?, 0)
            }
            Event::SequenceStart(_, anchor, _) => {
                stack.push(Open::List(at, anchor, Vec::new()));
                if stack.len() > MAX_DEPTH {
                    return Err(refuse("nested too deeply"));
                }
                continue;
            }
            Event::MappingStart(_, anchor, _) => {
                stack.push(Open::Map(at, anchor, Vec::new(), None));
                if stack.len() > MAX_DEPTH {
                    return Err(refuse("nested too deeply"));
                }
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match stack.pop() {
                Some(Open::List(at, anchor, items)) => {
                    (Node::new(at, Value::List(Arc::new(items))), anchor)
                }
                Some(Open::Map(at, anchor, entries, _)) => {
                    (Node::new(at, Value::Map(Arc::new(entries))), anchor)
                }
                None => return Err(refuse("an end without a beginning")),
            },
            Event::DocumentStart(..) if root.is_some() => {
                return Err(refuse("a second document: only one is read"));
            }
            // The enum belongs to another crate and may grow: all others are marks without a value.
            _ => continue,
        };
        total += if matches!(node.value, Value::Scalar { .. }) { 1 } else { 0 };
        if total > MAX_NODES || node.size > MAX_NODES {
            return Err(refuse("more values than a file of this kind can need"));
        }
        if anchor != 0 {
            anchors.insert(anchor, node.clone());
        }
        match stack.last_mut() {
            None => root = Some(node),
            Some(Open::List(_, _, items)) => items.push(node),
            Some(Open::Map(_, _, entries, key)) => match key.take() {
                None => *key = Some(node),
                Some(key) => entries.push((key, node)),
            },
        }
    }
    let empty =
        || Node::new(At { line: 1, column: 1 }, Value::Scalar { text: String::new(), plain: true });
    Ok(root.unwrap_or_else(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_keep_their_text_and_position() {
        let node = parse("a: 1.10\nb: no\nc:\n  - 012\n").unwrap();
        assert_eq!(node.get("a").unwrap().text(), Some("1.10"));
        assert_eq!(node.get("b").unwrap().text(), Some("no"));
        let item = &node.get("c").unwrap().items()[0];
        assert_eq!((item.text(), item.at), (Some("012"), At { line: 4, column: 5 }));
    }

    #[test]
    fn aliases_and_merge_keys_are_read() {
        let node = parse("x: &base {image: a, user: b}\ny:\n  <<: *base\n  user: c\n").unwrap();
        let y = node.get("y").unwrap();
        assert_eq!(y.get("image").unwrap().text(), Some("a"));
        assert_eq!(y.get("user").unwrap().text(), Some("c"));
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            let prior = vec![format!("*a{}", n - 1); 10].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{prior}]\n"));
        }
        assert!(parse(&text).unwrap_err().why.contains("more values"));
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_position() {
        let err = parse("a: b\n  c: d\n").unwrap_err();
        assert_eq!(err.at.line, 2);
        assert!(parse("a: 1\n---\nb: 2\n").unwrap_err().why.contains("second document"));
        assert!(parse(&"[".repeat(500)).is_err());
    }

    #[test]
    fn an_empty_document_is_null() {
        assert!(parse("").unwrap().is_null());
        assert!(parse("# only a comment\n").unwrap().is_null());
    }
}
