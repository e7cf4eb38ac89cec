//! `-o jsonpath=…`: templates of kubectl. Text is outside of braces; within them are a query, a
//! text in quotes, `range QUERY` or `end`.
//!
//! Queries are those of RFC 9535. As in kubectl, `$` may be left out and `\.` is a dot of a name.

use std::fmt::Write as _;

use serde_json::Value;
use serde_json_path::JsonPath;

/// A template that was read.
#[derive(Clone, Debug)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Query(Box<JsonPath>),
    /// Its parts once for each value that the query finds.
    Range(Box<JsonPath>, Vec<Part>),
}

impl Template {
    /// Reads `{.metadata.name}`; without any brace the whole text is one query.
    ///
    /// # Errors
    ///
    /// The problem, and at which character from 1.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.contains('{') {
            return Ok(Self(vec![Part::Query(query(text, 1)?)]));
        }
        // The last is where parts go; those before it are of ranges that are open.
        let mut open: Vec<(Box<JsonPath>, usize, Vec<Part>)> = Vec::new();
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let at = place(text, after);
            let close = closing(after)
                .ok_or_else(|| format!("character {}: `{{` has no `}}`", at.saturating_sub(1)))?;
            let (within, behind) = after.split_at_checked(close).unwrap_or((after, ""));
            rest = behind.strip_prefix('}').unwrap_or(behind);
            let word = within.trim();
            let at = at + within.chars().take_while(|c| c.is_whitespace()).count();
            if word == "end" {
                let Some((over, _, outer)) = open.pop() else {
                    return Err(format!("character {at}: `end` without `range`"));
                };
                let inner = std::mem::replace(&mut parts, outer);
                parts.push(Part::Range(over, inner));
            } else if let Some(over) = word.strip_prefix("range ") {
                open.push((query(over, at + 6)?, at, std::mem::take(&mut parts)));
            } else if word.starts_with(['"', '\'']) {
                parts.push(Part::Text(quoted(word, at)?));
            } else {
                parts.push(Part::Query(query(word, at)?));
            }
        }
        if let Some((_, at, _)) = open.pop() {
            return Err(format!("character {at}: `range` without `{{end}}`"));
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The text for a value. Several values of one query are separated by spaces; what is not there
    /// is nothing.
    pub fn render(&self, value: &Value) -> String {
        let mut out = String::new();
        render(&self.0, value, &mut out);
        out
    }
}

fn render(parts: &[Part], value: &Value, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Range(over, inner) => {
                for one in over.query(value).iter() {
                    render(inner, one, out);
                }
            }
            Part::Query(query) => {
                for (n, one) in query.query(value).iter().enumerate() {
                    if n > 0 {
                        out.push(' ');
                    }
                    // Writing to a `String` does not fail.
                    let _ = match one {
                        Value::String(text) => write!(out, "{text}"),
                        other => write!(out, "{other}"),
                    };
                }
            }
        }
    }
}

/// The position in `whole` at which its end `rest` begins, from 1.
fn place(whole: &str, rest: &str) -> usize {
    let before = whole.get(..whole.len().saturating_sub(rest.len())).unwrap_or_default();
    before.chars().count() + 1
}

/// The position of the closing brace, outside of quotes.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '}') => return Some(at),
            _ => {}
        }
    }
    None
}

/// A text in quotes, with `\n`, `\t` and the like.
fn quoted(word: &str, at: usize) -> Result<String, String> {
    let wrong = || format!("character {at}: {word} is not one text in quotes");
    let mut chars = word.chars();
    let quote = chars.next().ok_or_else(wrong)?;
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(match chars.next().ok_or_else(wrong)? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            }),
            c if c == quote => {
                return if chars.next().is_none() { Ok(text) } else { Err(wrong()) };
            }
            c => text.push(c),
        }
    }
    Err(wrong())
}

fn query(text: &str, at: usize) -> Result<Box<JsonPath>, String> {
    let text = text.trim();
    let plain = text.strip_prefix(['$', '@']).unwrap_or(text);
    let (root, added) = match plain.strip_prefix(['.', '[']) {
        _ if plain == "." => ("$".to_owned(), 0),
        Some(_) => (format!("${}", dotted(plain)), 1 - (text.len() - plain.len())),
        None if plain.is_empty() => ("$".to_owned(), 0),
        None => (format!("$.{}", dotted(plain)), 2),
    };
    JsonPath::parse(&root).map(Box::new).map_err(|err| {
        let place = at + err.position().saturating_sub(added);
        format!("character {place}: `{text}` is not a path: {}", err.message())
    })
}

/// Names with `\.` in them, as RFC 9535 says it: `['app.kubernetes.io/name']`.
fn dotted(path: &str) -> String {
    if !path.contains("\\.") {
        return path.to_owned();
    }
    let kept = path.replace("\\.", "\0");
    let mut out = String::new();
    for (n, name) in kept.split('.').enumerate() {
        match name.contains('\0') {
            true => {
                let (name, index) =
                    name.split_once('[').map_or((name, None), |(a, b)| (a, Some(b)));
                let name = name.replace('\0', ".");
                let _ = write!(out, "['{name}']");
                if let Some(index) = index {
                    let _ = write!(out, "[{index}");
                }
            }
            false if n > 0 => {
                let _ = write!(out, ".{name}");
            }
            false => out.push_str(name),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(template: &str) -> String {
        let value = json!({"items": [
            {"metadata": {"name": "a", "labels": {"app.io/name": "web"}}, "n": 1},
            {"metadata": {"name": "b"}, "n": 2, "list": [true, null]},
        ]});
        Template::parse(template).unwrap().render(&value)
    }

    #[test]
    fn jsonpath_templates_work_as_in_kubectl() {
        assert_eq!(shown("{.items[*].metadata.name}"), "a b");
        assert_eq!(shown("{$.items[0].metadata.name}"), "a");
        assert_eq!(shown(".items[1].n"), "2");
        assert_eq!(shown("name={.items[0].metadata.name}!"), "name=a!");
        let lines = "{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}";
        assert_eq!(shown(lines), "a\t1\nb\t2\n");
        assert_eq!(shown("{.items[0].metadata.labels.app\\.io/name}"), "web");
        assert_eq!(shown("{.items[?(@.n > 1)].metadata.name}"), "b");
        assert_eq!(shown("{.items[1].list}"), "[true,null]");
        assert_eq!(shown("{.nothing}"), "");
        assert_eq!(shown("{range .items[*]}{range .list[*]}{@}{\",\"}{end}{end}"), "true,null,");
        assert_eq!(shown("{.items[?(@.metadata.name == '}')].n}"), "");
    }

    #[test]
    fn a_mistake_is_reported_with_its_position() {
        let wrong = |template: &str| Template::parse(template).unwrap_err();
        assert_eq!(wrong("{.a"), "character 1: `{` has no `}`");
        assert_eq!(wrong("ä {end}"), "character 4: `end` without `range`");
        assert_eq!(wrong("{range .a}{.b}"), "character 2: `range` without `{end}`");
        assert_eq!(wrong("{\"a}\" x}"), "character 2: \"a}\" x is not one text in quotes");
        assert!(
            wrong("{.a[}").starts_with("character 4: `.a[` is not a path"),
            "{}",
            wrong("{.a[}")
        );
        assert!(wrong("x{.a b}").starts_with("character 5"), "{}", wrong("x{.a b}"));
    }
}
