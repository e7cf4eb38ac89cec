//! Text from outside, made safe for a terminal.
//!
//! What models, commands and tools wrote may hold escape sequences that move the cursor, set
//! the title or hide text. People see them as visible marks; `-o json` has its own escapes.

use std::borrow::Cow;
use std::fmt::Write as _;

/// One line: control characters become visible, line breaks become `⏎`.
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '\n' => Some("⏎"),
        '\r' => Some(""),
        '\t' => Some(" "),
        _ => None,
    })
}

/// Several lines: the same, but line breaks and tabs stay.
pub fn block(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '\n' => Some("\n"),
        '\r' => Some(""),
        '\t' => Some("\t"),
        _ => None,
    })
}

fn replace(text: &str, known: impl Fn(char) -> Option<&'static str>) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match known(c) {
            Some(instead) => clean.push_str(instead),
            None if is_unsafe(c) => {
                let _ = write!(clean, "\\u{{{:x}}}", u32::from(c));
            }
            None => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// Control characters, and those that turn the direction of the text round.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

/// At most `chars` characters, the last of them `…` when something was cut.
pub fn cut(text: &str, chars: usize) -> Cow<'_, str> {
    if text.chars().nth(chars).is_none() {
        return Cow::Borrowed(text);
    }
    let kept: String = text.chars().take(chars.saturating_sub(1)).collect();
    Cow::Owned(kept.trim_end().to_owned() + "…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_become_visible_and_harmless() {
        assert_eq!(line("a\x1b]0;title\x07b\nc"), "a\\u{1b}]0;title\\u{7}b⏎c");
        assert_eq!(block("a\tb\r\nc\x1b[2J"), "a\tb\nc\\u{1b}[2J");
        assert_eq!(line("left\u{202e}right"), "left\\u{202e}right");
        assert!(matches!(line("plain — ünï"), Cow::Borrowed(_)));
    }

    #[test]
    fn cutting_counts_characters_and_says_so() {
        assert_eq!(cut("ünï", 3), "ünï");
        assert_eq!(cut("ünïc", 3), "ün…");
        assert_eq!(cut("ab cd", 4), "ab…");
        assert_eq!(cut("", 0), "");
    }
}
