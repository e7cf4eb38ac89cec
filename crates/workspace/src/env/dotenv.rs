//! Writes `.env` files in a format that shells and common libraries read equally.
//!
//! There is no standard, so only forms that every parser reads equally are written: a plain word
//! unchanged, and everything else in single quotes, where no character is special. A value with a
//! single quote or a line break is in double quotes, with `\`, `"`, `$`, and line breaks escaped.

use std::fmt::Write as _;

/// Whether `name` is a valid name of a shell variable.
pub(crate) fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `NAME=value` lines under a heading of comments.
pub(crate) fn written<'a>(
    heading: &str,
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut out = String::new();
    for line in heading.lines() {
        let _ = writeln!(out, "# {line}");
    }
    for (name, value) in variables {
        let _ = writeln!(out, "{name}={}", quoted(value));
    }
    out
}

fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=?&".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    if !value.contains(['\'', '\n', '\r']) {
        return format!("'{value}'");
    }
    let mut out = String::from('"');
    for c in value.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\\' | '"' | '$' | '`' => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_unquoted_and_others_quoted() {
        assert_eq!(
            quoted("postgres://u:p@127.0.0.1:20001/app?x=1&y=2"),
            "postgres://u:p@127.0.0.1:20001/app?x=1&y=2"
        );
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("a#b"), "'a#b'");
        assert_eq!(quoted("$HOME `x` \\ \""), "'$HOME `x` \\ \"'");
        assert_eq!(quoted("it's $5"), "\"it's \\$5\"");
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
    }

    #[test]
    fn a_shell_reads_the_written_values_back() {
        let values =
            ["", "x", "two words", "a#b", "$HOME", "`id`", "\\", "\"", "it's $5 \"`", "ü=1"];
        let names: Vec<String> = (0..values.len()).map(|n| format!("V{n}")).collect();
        let pairs = names.iter().map(String::as_str).zip(values);
        let mut script = written("a heading\nof two lines", pairs);
        for name in &names {
            let _ = writeln!(script, "printf '%s\\0' \"${name}\"");
        }
        let out = std::process::Command::new("/bin/sh").arg("-c").arg(&script).output().unwrap();
        let read: Vec<&[u8]> = out.stdout.split(|byte| *byte == 0).collect();
        for (n, value) in values.iter().enumerate() {
            assert_eq!(String::from_utf8_lossy(read[n]), *value);
        }
    }
}
