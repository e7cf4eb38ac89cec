//! Labels and selectors of labels, with the syntax of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::SyntaxError;
use super::bounds::check_subdomain;

/// Longest label value, and longest name part of a key, in bytes.
pub const MAX_PART: usize = 63;
/// Longest selector, in bytes.
pub const MAX_SELECTOR: usize = 4096;
/// Maximum number of requirements of a selector.
pub const MAX_REQUIREMENTS: usize = 32;
/// Maximum number of values in one list of a selector.
pub const MAX_VALUES: usize = 64;

/// Checks that a text is a label key: `tier`, `example.com/tier`. The prefix is a DNS subdomain.
/// The name has 1 to 63 letters, digits, `-`, `_` and `.`, and begins and ends with a letter or
/// digit.
///
/// # Errors
///
/// Returns the rule that it breaks, and where.
pub fn check_key(key: &str) -> Result<(), SyntaxError> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            check_subdomain(prefix)
                .map_err(|err| SyntaxError(format!("has a prefix that {err}")))?;
            name
        }
    };
    if name.is_empty() {
        return Err(SyntaxError("must have a name of 1 to 63 characters".into()));
    }
    check_value(name)
}

/// Checks that a text is a label value: empty, or with the syntax of a key's name.
///
/// # Errors
///
/// Returns the rule that it breaks, and where.
pub fn check_value(value: &str) -> Result<(), SyntaxError> {
    if value.len() > MAX_PART {
        return Err(SyntaxError(format!("has {} bytes; {MAX_PART} is the most", value.len())));
    }
    if let Some((at, c)) = value.chars().enumerate().find(|(_, c)| !is_part(*c)) {
        let shown = crate::name::shown(at, c);
        let why = format!("may have letters, digits, `-`, `_` and `.`, not {shown}");
        return Err(SyntaxError(why));
    }
    let end = |c: char| c.is_ascii_alphanumeric();
    match value.is_empty() || (value.starts_with(end) && value.ends_with(end)) {
        true => Ok(()),
        false => Err(SyntaxError("must begin and end with a letter or digit".into())),
    }
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// The condition of a requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The label exists and has one of these values, of which there is at least one.
    In(BTreeSet<String>),
    /// The label has none of these values, or does not exist.
    NotIn(BTreeSet<String>),
    Exists,
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub test: Test,
}

impl Requirement {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        match &self.test {
            Test::In(values) => found.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => found.is_none_or(|value| !values.contains(value)),
            Test::Exists => found.is_some(),
            Test::Missing => found.is_none(),
        }
    }
}

/// Selects records by their labels: all requirements must hold. The empty selector matches
/// everything.
///
/// `app=web,tier!=db,env in (prod,test),zone notin (a),owner,!draft`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// The error for a text that is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the selector is wrong at position {position}: {problem}")]
pub struct SelectorError {
    /// Position of the mistake in characters, from 1; one past the end if something is missing.
    pub position: usize,
    pub problem: String,
}

impl Selector {
    /// # Errors
    ///
    /// [`SelectorError`] with the position of the first mistake.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { text, at: 0 };
        if text.len() > MAX_SELECTOR {
            return Err(parser.wrong(0, format!("it has more than {MAX_SELECTOR} bytes")));
        }
        let mut requirements = Vec::new();
        parser.skip_blanks();
        while !parser.rest().is_empty() {
            if requirements.len() == MAX_REQUIREMENTS {
                let problem = format!("it has more than {MAX_REQUIREMENTS} requirements");
                return Err(parser.wrong(parser.at, problem));
            }
            requirements.push(parser.requirement()?);
            parser.skip_blanks();
            if parser.rest().is_empty() {
                break;
            }
            parser.expect(',', "a comma or the end")?;
            parser.skip_blanks();
            if parser.rest().is_empty() {
                return Err(parser.wrong(parser.at, "a requirement must follow the comma".into()));
            }
        }
        Ok(Self { requirements })
    }

    /// Returns the selector of everything whose label `key` is `value`.
    ///
    /// # Errors
    ///
    /// Returns the mistake in the key or the value.
    pub fn equals(key: &str, value: &str) -> Result<Self, SyntaxError> {
        check_key(key)?;
        check_value(value)?;
        let test = Test::In(BTreeSet::from([value.to_owned()]));
        Ok(Self { requirements: vec![Requirement { key: key.to_owned(), test }] })
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Requirement { key, test }) in self.requirements.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            let one = |values: &BTreeSet<String>| match values.len() {
                1 => values.first().cloned(),
                _ => None,
            };
            let list = |values: &BTreeSet<String>| {
                values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
            };
            match test {
                Test::In(values) => match one(values) {
                    Some(value) => write!(f, "{key}={value}")?,
                    None => write!(f, "{key} in ({})", list(values))?,
                },
                Test::NotIn(values) => match one(values) {
                    Some(value) => write!(f, "{key}!={value}")?,
                    None => write!(f, "{key} notin ({})", list(values))?,
                },
                Test::Exists => f.write_str(key)?,
                Test::Missing => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Byte position, at the start of a character.
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn wrong(&self, at: usize, problem: String) -> SelectorError {
        let before = self.text.get(..at).unwrap_or(self.text);
        SelectorError { position: before.chars().count() + 1, problem }
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, c: char, wanted: &str) -> Result<(), SelectorError> {
        if self.takes(c.encode_utf8(&mut [0; 4])) {
            return Ok(());
        }
        Err(self.wrong(self.at, format!("expected {wanted}, {}", self.found())))
    }

    /// Returns the text at the present position, for a message.
    fn found(&self) -> String {
        match self.rest().chars().next() {
            None => "but the selector ends".into(),
            Some(c) if c.is_ascii_graphic() => format!("not `{c}`"),
            Some(c) => format!("not U+{:04X}", u32::from(c)),
        }
    }

    /// Reads the text up to the next separator.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let stop = |c: char| matches!(c, ' ' | '\t' | ',' | '=' | '!' | '(' | ')');
        let end = rest.find(stop).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        let at = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(self.wrong(at, format!("expected a label key, {}", self.found())));
        }
        check_key(word).map_err(|err| self.wrong(at, format!("the key {err}")))?;
        Ok(word.to_owned())
    }

    fn value(&mut self) -> Result<String, SelectorError> {
        self.skip_blanks();
        let at = self.at;
        let word = self.word();
        check_value(word).map_err(|err| self.wrong(at, format!("the value {err}")))?;
        Ok(word.to_owned())
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.skip_blanks();
        self.expect('(', "`(` and a list of values")?;
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            if values.len() > MAX_VALUES {
                let problem = format!("the list has more than {MAX_VALUES} values");
                return Err(self.wrong(self.at, problem));
            }
            self.skip_blanks();
            if self.takes(")") {
                return Ok(values);
            }
            self.expect(',', "a comma or `)`")?;
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if self.takes("!") {
            self.skip_blanks();
            return Ok(Requirement { key: self.key()?, test: Test::Missing });
        }
        let key = self.key()?;
        self.skip_blanks();
        let test = if self.takes("==") || self.takes("=") {
            Test::In(BTreeSet::from([self.value()?]))
        } else if self.takes("!=") {
            Test::NotIn(BTreeSet::from([self.value()?]))
        } else {
            let at = self.at;
            match self.word() {
                "in" => Test::In(self.values()?),
                "notin" => Test::NotIn(self.values()?),
                "" => Test::Exists,
                other => {
                    let other: String = other.chars().take(32).collect();
                    let problem =
                        format!("`=`, `!=`, `in` or `notin` must follow a key, not `{other}`");
                    return Err(self.wrong(at, problem));
                }
            }
        };
        Ok(Requirement { key, test })
    }
}
