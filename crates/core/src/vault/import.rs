//! Reading secrets from what people have: variables of an environment, and `.env` files.

use super::{NameError, Secret, SecretError, SecretName};

/// The prefixes of variables that contain secrets: ours, and those of an earlier system.
pub const PREFIXES: [&str; 2] = ["OVERMIND_CRED_", "OPENLEGION_CRED_"];
/// Maximum number of lines of a file.
pub const MAX_LINES: usize = 2000;

/// A line that is no assignment, or a value that can be no secret. The value is never quoted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("line {line} is not NAME=VALUE")]
    NotAPair { line: usize },
    #[error("line {line}: the quote is not closed")]
    Quote { line: usize },
    #[error("`{name}`: {source}")]
    Name { name: String, source: NameError },
    #[error("`{name}`: {source}")]
    Value { name: String, source: SecretError },
    #[error("`{name}` is defined twice, with different values")]
    Twice { name: String },
    #[error("there are more than {MAX_LINES} lines")]
    TooLong,
}

/// The name that a variable's secret gets: without the prefix of a credential, if it has one.
pub fn name_of(variable: &str) -> &str {
    PREFIXES
        .iter()
        .find_map(|prefix| variable.strip_prefix(prefix))
        .filter(|rest| !rest.is_empty())
        .unwrap_or(variable)
}

/// Secrets from pairs of variable and value. Empty values are left out: they mean "not set".
///
/// # Errors
///
/// The first pair that can be no secret; nothing is imported then.
pub fn from_pairs<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<(SecretName, Secret)>, ImportError> {
    let mut all: Vec<(SecretName, Secret)> = Vec::new();
    for (variable, value) in pairs {
        if value.trim().is_empty() {
            continue;
        }
        let name = name_of(variable);
        let parsed: SecretName =
            name.parse().map_err(|source| ImportError::Name { name: shown(name), source })?;
        let secret = Secret::new(value)
            .map_err(|source| ImportError::Value { name: shown(name), source })?;
        match all.iter().find(|(known, _)| *known == parsed) {
            Some((_, known)) if *known == secret => {}
            Some(_) => return Err(ImportError::Twice { name: shown(name) }),
            None => all.push((parsed, secret)),
        }
    }
    Ok(all)
}

/// Secrets from the text of a `.env` file: `NAME=VALUE` lines, `export` before them, comments from
/// `#` on (behind a space, or a quote), values in single quotes as they are and in double quotes
/// with `\n`, `\"`, `\\` and line breaks. Variables are not expanded: `$` is a `$`.
///
/// # Errors
///
/// See [`from_pairs`]; also reports a line that is no pair, by its number only.
pub fn from_env_file(text: &str) -> Result<Vec<(SecretName, Secret)>, ImportError> {
    if text.lines().count() > MAX_LINES {
        return Err(ImportError::TooLong);
    }
    let mut pairs: Vec<(String, zeroize::Zeroizing<String>)> = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((raw, line)) = lines.next() {
        let trimmed = raw.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let bare = trimmed.strip_prefix("export ").unwrap_or(trimmed);
        let (name, value) = bare.split_once('=').ok_or(ImportError::NotAPair { line })?;
        let (name, value) = (name.trim_end(), value.trim_start());
        let value = match value.chars().next() {
            Some('\'') => {
                let inside = &value[1..];
                let end = inside.find('\'').ok_or(ImportError::Quote { line })?;
                nothing_after(&inside[end + 1..], line)?;
                inside[..end].to_owned()
            }
            Some('"') => {
                let mut whole = value[1..].to_owned();
                loop {
                    if let Some((inside, after)) = double_quoted(&whole) {
                        nothing_after(after, line)?;
                        break inside;
                    }
                    let (more, _) = lines.next().ok_or(ImportError::Quote { line })?;
                    whole.push('\n');
                    whole.push_str(more);
                }
            }
            Some(_) | None => {
                let end = value.find(" #").unwrap_or(value.len());
                value[..end].trim_end().to_owned()
            }
        };
        pairs.push((name.to_owned(), value.into()));
    }
    from_pairs(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

fn nothing_after(rest: &str, line: usize) -> Result<(), ImportError> {
    let rest = rest.trim();
    match rest.is_empty() || rest.starts_with('#') {
        true => Ok(()),
        false => Err(ImportError::NotAPair { line }),
    }
}

/// The text before the closing quote, and the text after it; `None` if there is no closing quote yet.
fn double_quoted(text: &str) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((inside, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => inside.push('\n'),
                Some((_, 'r')) => inside.push('\r'),
                Some((_, 't')) => inside.push('\t'),
                Some((_, quoted @ ('"' | '\\' | '$' | '`'))) => inside.push(quoted),
                Some((_, other)) => inside.extend(['\\', other]),
                None => return None,
            },
            char => inside.push(char),
        }
    }
    None
}

/// A name for a message: a line that was pasted wrongly may hold a secret where a name should be.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(24).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String)>, ImportError> {
        let all = from_env_file(text)?;
        Ok(all.into_iter().map(|(n, s)| (n.to_string(), s.expose().to_owned())).collect())
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn env_files_are_read_in_their_usual_spellings() {
        let text = "# keys\n\nOPENAI_API_KEY=sk-plain-0001\nexport GROQ='gsk two # words'\n\
                    A.B = \"line one\\nline \\\"two\\\"\nline three\"  # a remark\n\
                    OPENLEGION_CRED_HUNTER=hunter-0001 # bare\nEMPTY=\nDOLLAR=$HOME-is-text\n";
        assert_eq!(
            read(text).unwrap(),
            [
                pair("openai_api_key", "sk-plain-0001"),
                pair("groq", "gsk two # words"),
                pair("a.b", "line one\nline \"two\"\nline three"),
                pair("hunter", "hunter-0001"),
                pair("dollar", "$HOME-is-text"),
            ]
        );
    }

    #[test]
    fn mistakes_are_reported_without_the_value() {
        for (text, says) in [
            ("no-pair-secret-text", "line 1 is not NAME=VALUE"),
            ("A='open-secret-text", "line 1: the quote is not closed"),
            ("\nA=\"open-secret-text\nmore", "line 2: the quote is not closed"),
            ("A='quoted-secret'text", "line 1 is not NAME=VALUE"),
            ("a b=secret-text", "`a b`: a name has 1 to"),
            ("A=short", "`A`: it has fewer than 8 characters"),
            ("A=secret-text-1\na=secret-text-2", "twice"),
        ] {
            let err = read(text).unwrap_err().to_string();
            assert!(err.contains(says), "{text}: {err}");
            assert!(!err.contains("secret"), "{err}");
        }
        assert_eq!(read("A=secret-text-1\na=secret-text-1").unwrap().len(), 1);
    }

    #[test]
    fn variables_of_both_systems_name_the_same_secret() {
        let pairs =
            [("OVERMIND_CRED_X_KEY", "value-0001"), ("OPENLEGION_CRED_X_KEY", "value-0001")];
        let all = from_pairs(pairs).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].0.as_str(), "x_key");
        assert_eq!(name_of("OVERMIND_CRED_"), "OVERMIND_CRED_");
    }
}
