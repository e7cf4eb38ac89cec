//! Names in the mesh: keys of the shared state, and topics.

use std::fmt;

use crate::acl::{Segments, matches};

/// Longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// Longest topic or pattern of topics, in bytes.
pub const MAX_TOPIC: usize = 256;
/// Maximum number of segments of a key or a topic.
pub const MAX_SEGMENTS: usize = 16;
/// The prefix of keys that are written only once.
pub const HISTORY: &str = "history/";

/// A mistake in a name, as words that follow it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(String);

impl NameError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

fn no(why: impl Into<String>) -> NameError {
    NameError(why.into())
}

/// Returns whether a character has no special meaning in patterns, lines and terminals. The last
/// code point of Unicode is not allowed, because it marks the end of a range of keys.
fn is_plain(c: char) -> bool {
    !c.is_control() && (!c.is_whitespace() || c == ' ') && !matches!(c, '*' | '\\' | '\u{10FFFF}')
}

pub(crate) fn check_segments<'a>(segments: impl Iterator<Item = &'a str>) -> Result<(), NameError> {
    let mut count = 0;
    for segment in segments {
        count += 1;
        if segment.is_empty() {
            return Err(no("has an empty segment: two separators in a row, or one at an end"));
        }
        if segment == "." || segment == ".." {
            return Err(no("has a segment `.` or `..`"));
        }
        if segment != segment.trim() {
            return Err(no("has a segment that begins or ends with a space"));
        }
    }
    if count > MAX_SEGMENTS {
        return Err(no(format!("has {count} segments; {MAX_SEGMENTS} is the most")));
    }
    Ok(())
}

/// A key of the shared state: segments separated by `/`, 1 to [`MAX_KEY`] bytes. Keys are compared
/// byte by byte and are case-sensitive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// # Errors
    ///
    /// Returns the mistake.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_chars(text, MAX_KEY, "a key")?;
        check_segments(text.split('/'))?;
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key's bucket, one of 65,536. It never changes, because stores keep data by it
    /// that outlives a key.
    pub fn bucket(&self) -> u16 {
        let hash = blake3::hash(self.0.as_bytes());
        u16::from_be_bytes([hash.as_bytes()[0], hash.as_bytes()[1]])
    }

    /// Returns whether it can be written only once.
    pub fn is_history(&self) -> bool {
        self.0.starts_with(HISTORY)
    }
}

pub(crate) fn check_chars(text: &str, most: usize, what: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > most {
        return Err(no(format!("has {} bytes; {what} has 1 to {most}", text.len())));
    }
    match text.chars().find(|c| !is_plain(*c)) {
        Some(c) => Err(no(format!("has the character {c:?}, which {what} may not have"))),
        None => crate::name::check_visible(text).map_err(no),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Checks a prefix of keys: any text with which a key can begin, including the empty text. It has
/// no wildcards.
///
/// # Errors
///
/// Returns the mistake.
pub fn check_prefix(text: &str) -> Result<(), NameError> {
    if text.is_empty() { Ok(()) } else { check_chars(text, MAX_KEY, "a prefix") }
}

/// Checks a topic: segments separated by `.` or `/`, 1 to [`MAX_TOPIC`] bytes.
///
/// # Errors
///
/// Returns the mistake.
pub fn check_topic(text: &str) -> Result<(), NameError> {
    check_chars(text, MAX_TOPIC, "a topic")?;
    if text.contains(' ') {
        return Err(no("has a space, which a topic may not have"));
    }
    let mut segments = text.split(['.', '/']);
    let count = segments.clone().count();
    if segments.any(str::is_empty) {
        return Err(no("has an empty segment: two separators in a row, or one at an end"));
    }
    if count > MAX_SEGMENTS {
        return Err(no(format!("has {count} segments; {MAX_SEGMENTS} is the most")));
    }
    Ok(())
}

/// A pattern for topics: `*` is exactly one segment, and `**` at the end is one or more. Separators
/// must match.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPattern(String);

impl TopicPattern {
    /// # Errors
    ///
    /// Returns the mistake.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        // Where a star stands, a name could.
        check_topic(&text.replace('*', "x"))?;
        let mut segments = text.split(['.', '/']).peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            match segment {
                "*" => {}
                "**" if last => {}
                "**" => return Err(no("has `**` before its end, where it may not stand")),
                other if other.contains('*') => {
                    return Err(no(format!(
                        "has `{other}`: a star stands for a whole segment, or two for the rest"
                    )));
                }
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it matches only one topic.
    pub fn is_topic(&self) -> bool {
        !self.0.contains('*')
    }

    pub fn matches(&self, topic: &str) -> bool {
        matches(&self.0, topic, Segments::DotOrSlash)
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mesh_keys_are_validated_segment_by_segment() {
        for good in ["a", "tasks/1", "context/München/a b", "a_%/x", "a.b", "history/1"] {
            assert_eq!(Key::parse(good).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "has 0 bytes; a key has 1 to 512"),
            ("/a", "has an empty segment: two separators in a row, or one at an end"),
            ("a/", "has an empty segment: two separators in a row, or one at an end"),
            ("a/../b", "has a segment `.` or `..`"),
            ("a/*", "has the character '*', which a key may not have"),
            ("a\nb", "has the character '\\n', which a key may not have"),
            ("a/ b", "has a segment that begins or ends with a space"),
        ] {
            assert_eq!(Key::parse(bad).unwrap_err().to_string(), why, "{bad}");
        }
        assert!(Key::parse(&"a/".repeat(16)).is_err() && Key::parse(&"x".repeat(513)).is_err());
        assert!(Key::parse(&vec!["a"; 17].join("/")).is_err());
        assert!(Key::parse("history/a").unwrap().is_history());
        assert!(!Key::parse("history").unwrap().is_history());
        assert!(check_prefix("").is_ok() && check_prefix("a/").is_ok());
        assert!(check_prefix("a*").is_err());
    }

    #[test]
    fn one_star_matches_a_segment_and_two_match_the_rest() {
        let matches = |pattern: &str, topic| TopicPattern::parse(pattern).unwrap().matches(topic);
        assert!(matches("news.*", "news.eu") && !matches("news.*", "news"));
        assert!(!matches("news.*", "news.eu.de") && matches("news.**", "news.eu.de"));
        assert!(matches("*.done", "build.done") && !matches("*.done", "a.b.done"));
        assert!(matches("**", "a/b.c") && matches("a/b", "a/b") && !matches("a/b", "a.b"));
        for (bad, why) in [
            ("a**", "has `a**`: a star stands for a whole segment, or two for the rest"),
            ("**.a", "has `**` before its end, where it may not stand"),
            ("a..b", "has an empty segment: two separators in a row, or one at an end"),
            ("a b", "has a space, which a topic may not have"),
        ] {
            assert_eq!(TopicPattern::parse(bad).unwrap_err().to_string(), why, "{bad}");
        }
    }

    /// Matches segment by segment, with equal separators: a simple implementation for comparison.
    fn obvious(pattern: &str, topic: &str) -> bool {
        let cut = |text: &str| text.find(['.', '/']);
        match (cut(pattern), cut(topic)) {
            _ if pattern == "**" => true,
            (None, None) => pattern == "*" || pattern == topic,
            (Some(p), Some(t)) => {
                let (head, of) = (&pattern[..p], &topic[..t]);
                (head == "*" || head == of)
                    && pattern[p..].chars().next() == topic[t..].chars().next()
                    && obvious(&pattern[p + 1..], &topic[t + 1..])
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_agree_with_a_simple_model(
            pattern in "(a|b|\\*)([./](a|b|\\*)){0,3}([./]\\*\\*)?", topic in "[ab]([./][ab]){0,4}",
        ) {
            let parsed = TopicPattern::parse(&pattern).unwrap();
            prop_assert_eq!(parsed.matches(&topic), obvious(&pattern, &topic));
        }

        #[test]
        fn no_text_panics_the_name_parser(text in "\\PC{0,40}") {
            let _ = (Key::parse(&text), TopicPattern::parse(&text), check_prefix(&text));
        }
    }
}
