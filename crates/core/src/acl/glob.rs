//! Patterns for names with segments: `*` stays within one segment, `**` does not.
//!
//! All other characters match only themselves, including their case. A match takes at most as many
//! steps as the product of both lengths, for any pattern.

/// Longest pattern and longest text, in bytes.
pub const MAX_PATTERN: usize = 512;

/// The separators of a kind of name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Separator `/`: keys, models, services, names.
    Slash,
    /// Separators `.` and `/`: topics.
    DotOrSlash,
}

impl Segments {
    pub const fn ends_at(self, c: char) -> bool {
        match self {
            Self::Slash => c == '/',
            Self::DotOrSlash => c == '/' || c == '.',
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    /// The wildcard `*`.
    Within,
    /// The wildcard `**`.
    Across,
}

fn parts(pattern: &str) -> Vec<Part> {
    let mut parts = Vec::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        parts.push(match c {
            '*' if chars.next_if_eq(&'*').is_some() => Part::Across,
            '*' => Part::Within,
            c => Part::Char(c),
        });
    }
    parts
}

/// The prefixes of a pattern that match the text so far.
struct States<'p> {
    parts: &'p [Part],
    now: Vec<bool>,
}

impl<'p> States<'p> {
    fn new(parts: &'p [Part]) -> Self {
        let mut now = vec![false; parts.len() + 1];
        now[0] = true;
        let mut states = Self { parts, now };
        states.skip();
        states
    }

    /// Adds the states in which a wildcard matches nothing.
    fn skip(&mut self) {
        for (at, part) in self.parts.iter().enumerate() {
            if self.now[at] && matches!(part, Part::Within | Part::Across) {
                self.now[at + 1] = true;
            }
        }
    }

    fn read(&mut self, read: Part, segments: Segments) {
        let mut next = vec![false; self.now.len()];
        for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| self.now[*at]) {
            match (part, read) {
                (Part::Char(wanted), Part::Char(c)) => next[at + 1] |= *wanted == c,
                (Part::Within, Part::Char(c)) => next[at] |= !segments.ends_at(c),
                (Part::Within, Part::Within) | (Part::Across, _) => next[at] = true,
                (Part::Within, Part::Across) | (Part::Char(_), Part::Within | Part::Across) => {}
            }
        }
        self.now = next;
        self.skip();
    }

    fn is_through(&self) -> bool {
        self.now.last().copied().unwrap_or(false)
    }

    fn is_alive(&self) -> bool {
        self.now.iter().any(|state| *state)
    }
}

/// Returns whether `text` matches `pattern`.
pub fn matches(pattern: &str, text: &str, segments: Segments) -> bool {
    if pattern == "**" {
        return true;
    }
    if !pattern.contains('*') {
        return pattern == text;
    }
    let parts = parts(pattern);
    let mut states = States::new(&parts);
    for c in text.chars() {
        states.read(Part::Char(c), segments);
        if !states.is_alive() {
            return false;
        }
    }
    states.is_through()
}

/// Returns whether any text that begins with `prefix` matches `pattern`.
pub fn reaches(pattern: &str, prefix: &str, segments: Segments) -> bool {
    let parts = parts(pattern);
    let mut states = States::new(&parts);
    for c in prefix.chars() {
        states.read(Part::Char(c), segments);
    }
    states.is_alive()
}

/// Returns whether everything that matches `inner` also matches `outer`. It is never wrongly true.
/// It may be false for two equivalent patterns with unusual spellings.
pub fn covers(outer: &str, inner: &str, segments: Segments) -> bool {
    let outer = parts(outer);
    let mut states = States::new(&outer);
    for part in parts(inner) {
        states.read(part, segments);
    }
    states.is_through()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slash(pattern: &str, text: &str) -> bool {
        matches(pattern, text, Segments::Slash)
    }

    /// Matches by trying every split: a simple implementation for comparison.
    fn obvious(pattern: &[char], text: &[char], segments: Segments) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', '*', rest @ ..] => (0..=text.len()).any(|n| obvious(rest, &text[n..], segments)),
            ['*', rest @ ..] => (0..=text.len())
                .take_while(|n| text[..*n].iter().all(|c| !segments.ends_at(*c)))
                .any(|n| obvious(rest, &text[n..], segments)),
            [c, rest @ ..] => text.first() == Some(c) && obvious(rest, &text[1..], segments),
        }
    }

    #[test]
    fn one_star_stops_at_the_separator_and_two_do_not() {
        assert!(slash("context/*", "context/a"));
        assert!(!slash("context/*", "context/a/b"));
        assert!(slash("context/**", "context/a/b"));
        assert!(!slash("context/*", "contextual"));
        assert!(!slash("Context/*", "context/a"));
        assert!(slash("a_%", "a_%") && !slash("a_%", "aXb"));
        assert!(slash("*", "anyone") && !slash("*", "a/b") && slash("**", "a/b"));
        let topic = |pattern, text| matches(pattern, text, Segments::DotOrSlash);
        assert!(topic("news.*", "news.eu") && !topic("news.*", "news.eu.de"));
        assert!(topic("news.**", "news.eu/de") && !topic("news.*", "news.eu/de"));
    }

    #[test]
    fn a_prefix_is_reachable_if_something_below_it_could_match() {
        let reaches = |pattern, prefix| reaches(pattern, prefix, Segments::Slash);
        assert!(reaches("context/*", "con") && reaches("context/*", "context/x"));
        assert!(!reaches("context/*", "context/x/") && !reaches("context/*", "tasks"));
        assert!(reaches("**", "anything") && reaches("*/done", ""));
    }

    proptest! {
        #[test]
        fn glob_matching_agrees_with_a_simple_model(
            pattern in "[ab./*]{0,9}", text in "[ab./]{0,9}", dots in any::<bool>(),
        ) {
            let segments = if dots { Segments::DotOrSlash } else { Segments::Slash };
            let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(matches(&pattern, &text, segments), obvious(&p, &t, segments));
        }

        #[test]
        fn texts_of_a_covered_pattern_match_the_wider_pattern(
            outer in "[ab/*]{0,7}", inner in "[ab/*]{0,7}", text in "[ab/]{0,7}",
        ) {
            let fits = |pattern| matches(pattern, &text, Segments::Slash);
            if covers(&outer, &inner, Segments::Slash) && fits(&inner) {
                prop_assert!(fits(&outer));
            }
            prop_assert!(covers(&outer, &outer, Segments::Slash));
        }

        #[test]
        fn a_matching_text_is_reachable_from_each_of_its_prefixes(
            pattern in "[ab/*]{0,7}", text in "[ab/]{0,7}", at in 0_usize..8,
        ) {
            if matches(&pattern, &text, Segments::Slash) {
                prop_assert!(reaches(&pattern, &text[..at.min(text.len())], Segments::Slash));
            }
        }
    }
}
