//! Writes JSON values as YAML 1.2 in block style.
//!
//! This short module replaces a library: it writes only JSON values, and quotes every text that a
//! YAML reader could read as something else. The quotes are those of JSON, which are valid YAML.

use std::fmt::Write as _;

use serde_json::Value;

use crate::clean;

/// Returns the value as YAML, with a line break at the end.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => mapping(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0),
        other => {
            scalar(&mut out, other);
            out.push('\n');
        }
    }
    out
}

fn mapping(out: &mut String, map: &serde_json::Map<String, Value>, depth: usize) {
    for (n, (key, value)) in map.iter().enumerate() {
        // The first key of a mapping in a list follows its dash.
        if n > 0 || !out.ends_with("- ") {
            indent(out, depth);
        }
        text(out, key);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(out, inner, depth + 1);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                sequence(out, items, depth + 1);
            }
            other => {
                out.push(' ');
                scalar(out, other);
                out.push('\n');
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], depth: usize) {
    for (n, item) in items.iter().enumerate() {
        if n > 0 || !out.ends_with("- ") {
            indent(out, depth);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => mapping(out, map, depth + 1),
            Value::Array(inner) if !inner.is_empty() => sequence(out, inner, depth + 1),
            other => {
                scalar(out, other);
                out.push('\n');
            }
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(string) => text(out, string),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            // The rest is written as JSON: `[]` and `{}` are the only collections here.
            let _ = write!(out, "{value}");
        }
    }
}

fn text(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else {
        // JSON leaves a few characters bare that YAML readers break lines at or refuse, and some that
        // steer a terminal.
        out.push_str(&clean::json(&Value::from(text).to_string()).replace('\u{feff}', "\\ufeff"));
    }
}

/// Returns whether YAML 1.1 and 1.2 readers read a text correctly without quotes. Such a text
/// begins with a letter, `/` or `_`, contains only harmless characters, and is no reserved word.
/// Numbers and times begin with digits.
fn is_plain(text: &str) -> bool {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || "_-./@+ ,()".contains(c))
        && !text.ends_with(' ')
        && !words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_values_keep_their_shape() {
        let value = json!({
            "id": "ses_01", "n": 3, "none": null, "empty": [], "blank": "", "ok": true,
            "steps": [{"idx": 0, "in": {"a": [1, 2]}}, {"idx": 1}],
            "grid": [[1, 2], [3]], "tags": ["a", "b c"],
        });
        let wanted = "\
id: ses_01
n: 3
none: null
empty: []
blank: \"\"
ok: true
steps:
  - idx: 0
    in:
      a:
        - 1
        - 2
  - idx: 1
grid:
  - - 1
    - 2
  - - 3
tags:
  - a
  - b c
";
        // `n` is a word with a meaning in YAML 1.1, so that key is quoted.
        assert_eq!(to_string(&value), wanted.replace("\nn: 3", "\n\"n\": 3"));
    }

    #[test]
    fn texts_that_could_be_misread_are_quoted() {
        for text in [
            "",
            "yes",
            "NO",
            "null",
            "~",
            "1",
            "1e3",
            "0x1f",
            "2026-11-21",
            "12:30",
            "- a",
            "a: b",
            "a #b",
            " a",
            "a ",
            "a\nb",
            "*x",
            "&x",
            "!x",
            "{a}",
            "[a]",
            "\"q\"",
            "'q'",
            "%a",
            "@a",
            "`a",
            "tab\there",
            "\u{85}",
            "\u{2028}x",
            "-",
            "?",
            ".5",
            ".inf",
            "<<",
            "=",
            "a:",
        ] {
            let yaml = to_string(&json!(text));
            assert!(yaml.starts_with('"') && yaml.ends_with("\"\n"), "{text:?} became {yaml:?}");
            let back: String = serde_json::from_str(yaml.trim_end()).unwrap();
            assert_eq!(back, text);
            assert!(!yaml.trim_end().contains(['\u{85}', '\u{2028}', '\n', '\t']));
        }
        for text in ["plain", "two words", "/a/path.txt", "run_shell", "ünï"] {
            let quoted = to_string(&json!(text)).starts_with('"');
            assert_eq!(quoted, text == "ünï", "{text}");
        }
    }

    #[test]
    fn scalars_and_empty_collections_are_printed_inline() {
        for (value, yaml) in [
            (json!(1.5), "1.5\n"),
            (json!({}), "{}\n"),
            (json!([]), "[]\n"),
            (json!(null), "null\n"),
        ] {
            assert_eq!(to_string(&value), yaml);
        }
    }
}
