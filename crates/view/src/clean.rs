//! Makes text from outside safe for a terminal.
//!
//! Texts of models, commands and tools may contain escape sequences that move the cursor, set the
//! title, request a report from the terminal or hide text. [`line()`] and [`block()`] replace them
//! by visible marks. All output passes through [`passing`], and all JSON output through [`json`].
//! Only `attach` writes a program's bytes unchanged to a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns a single line: control characters become visible, and line breaks become `⏎`.
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '\n' => Some("⏎"),
        '\r' => Some(""),
        '\t' => Some(" "),
        _ => None,
    })
}

/// Returns several lines: as [`line()`], but line breaks and tabs stay.
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

/// Returns whether a character is a control character, changes the text direction or ends a line.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Returns text that is safe to write, whatever its source. Colours stay if they are wanted, and
/// other control sequences are removed. After a carriage return within a line, only the text behind
/// it is kept, so that the last state of a progress bar remains. Other control characters become
/// visible.
pub fn passing(text: &str, colour: bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_unsafe(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    // The start of the current line in `clean`, and of the text that a backspace may remove.
    let (mut begin, mut floor) = (0, 0);
    let mut painted = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\u{1b}' => {
                let (sequence, after) = rest.split_at(sequence(rest));
                rest = after;
                if let Some(on) = colours(sequence).filter(|_| colour) {
                    painted = on;
                    clean.push('\u{1b}');
                    clean.push_str(sequence);
                }
                floor = clean.len();
            }
            '\n' => {
                clean.push('\n');
                (begin, floor) = (clean.len(), clean.len());
            }
            '\r' => {
                let ends = rest.trim_start_matches('\r');
                if !(ends.is_empty() || ends.starts_with('\n')) {
                    painted |= clean[begin..].contains('\u{1b}');
                    clean.truncate(begin);
                    floor = begin;
                }
            }
            '\u{8}' => {
                if clean.len() > floor {
                    clean.pop();
                }
            }
            '\t' => clean.push('\t'),
            c if is_unsafe(c) => {
                let _ = write!(clean, "\\u{{{:x}}}", u32::from(c));
            }
            c => clean.push(c),
        }
    }
    if painted {
        clean.push_str("\u{1b}[0m");
    }
    Cow::Owned(clean)
}

/// Returns how many bytes of `text` belong to the sequence whose escape character precedes it.
fn sequence(text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes.first() {
        // Parameters and intermediates, then one final byte.
        Some(b'[') => {
            let end = bytes[1..].iter().position(|byte| !(0x20..=0x3f).contains(byte));
            match end.map(|end| end + 1) {
                Some(end) if (0x40..=0x7e).contains(&bytes[end]) => end + 1,
                Some(end) => end,
                None => bytes.len(),
            }
        }
        // Strings: to the bell or the terminator. One that is not ended takes the rest of the line.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            match text.find(['\u{7}', '\u{1b}', '\u{9c}', '\n']) {
                None => text.len(),
                Some(end) => match &text[end..] {
                    rest if rest.starts_with('\n') => end,
                    rest if rest.starts_with('\u{7}') => end + 1,
                    rest if rest.starts_with("\u{1b}\\") || rest.starts_with('\u{9c}') => end + 2,
                    _ => end,
                },
            }
        }
        // Character sets: one intermediate, one final.
        Some(0x20..=0x2f) if bytes.get(1).is_some_and(u8::is_ascii_graphic) => 2,
        Some(0x20..=0x7e) => 1,
        Some(_) | None => 0,
    }
}

/// Returns, for a sequence that only sets colours and weights, whether a setting remains active.
/// `None` for other sequences, and for one that hides text.
fn colours(sequence: &str) -> Option<bool> {
    let set = sequence.strip_prefix('[')?.strip_suffix('m')?;
    if !set.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b';' | b':')) {
        return None;
    }
    let mut parts = set.split(';');
    let mut on = false;
    while let Some(part) = parts.next() {
        match part {
            "" | "0" | "00" => on = false,
            part if part.trim_start_matches('0') == "8" => return None,
            "38" | "48" | "58" => {
                on = true;
                match parts.next()? {
                    "5" => drop(parts.next()?),
                    "2" => drop(parts.nth(2)?),
                    _ => return None,
                }
            }
            _ => on = true,
        }
    }
    Some(on)
}

/// Returns JSON text in which control characters are written as escapes.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| !c.is_ascii_control() && is_unsafe(c)) && !text.contains('\u{7f}') {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // JSON itself has none below, but for line ends between values.
        if is_unsafe(c) && c >= '\u{7f}' {
            let _ = write!(clean, "\\u{:04x}", u32::from(c));
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// Joins bytes that arrive in arbitrary pieces to whole lines of text, up to a length limit.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

/// Longest line that is waited for, in bytes.
const LONGEST: usize = 256 << 10;

impl Lines {
    /// Adds bytes, and returns the lines that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let end = match self.0.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.0.len() > LONGEST => self.0.len(),
            None => return String::new(),
        };
        let rest = self.0.split_off(end);
        let lines = std::mem::replace(&mut self.0, rest);
        String::from_utf8_lossy(&lines).into_owned()
    }

    /// Returns the text after the last line end.
    pub fn rest(self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// Returns at most `chars` characters. If the text was cut, the last one is `…`.
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
    fn colours_are_kept_and_other_control_sequences_removed() {
        for (text, coloured) in [
            ("\x1b[1;31mred\x1b[0m: ü\tx\n", "\x1b[1;31mred\x1b[0m: ü\tx\n"),
            ("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey\x1b[0m"),
            ("\x1b[8mhidden", "hidden"),
            ("\x1b[1;08mhidden", "hidden"),
            ("\x1b[?25l\x1b[6n\x1b[2Ja", "a"),
            ("\x1b]52;c;aGk=\x07a", "a"),
            ("\x1b]0;title\x1b\\a\x1b]0;unended\nb", "a\nb"),
            ("\x1bPq#0\x1b\\a\x1b(Bb\x1bcd", "abd"),
            ("\u{9b}6na\u{9d}0;t\u{9c}", "\\u{9b}6na\\u{9d}0;t\\u{9c}"),
            ("left\u{202e}right\u{2066}", "left\\u{202e}right\\u{2066}"),
            ("10%\r50%\r100%\r\nnext\r\n", "100%\nnext\n"),
            ("bell\x07 abc\x08d", "bell\\u{7} abd"),
            ("am\x08\x08b \x1b[1;31m\x08c", "b \x1b[1;31mc\x1b[0m"),
            ("a\x1b", "a"),
            ("a\x1b[3", "a"),
            ("a\x1b[3\nb", "a\nb"),
            ("a\x1bü", "aü"),
        ] {
            assert_eq!(passing(text, true), coloured, "{text:?}");
            let plain = coloured.replace("\x1b[1;31m", "").replace("\x1b[38;5;8m", "");
            assert_eq!(passing(text, false), plain.replace("\x1b[0m", ""), "{text:?}");
        }
        assert!(matches!(passing("plain — ünï\n\t", true), Cow::Borrowed(_)));
    }

    #[test]
    fn json_output_has_equal_content_and_no_control_characters() {
        let value = serde_json::json!({"a\u{7f}": "\u{9b}6n \u{202e} \u{2028} ü\u{1b}\n"});
        let text = json(&value.to_string()).into_owned();
        assert!(text.chars().all(|c| !is_unsafe(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn bytes_in_any_chunks_become_the_same_lines() {
        let text = "ünï \x1b]0;t\x07\nline\nrest";
        for at in 0..text.len() {
            let mut lines = Lines::default();
            let told = [lines.push(&text.as_bytes()[..at]), lines.push(&text.as_bytes()[at..])];
            assert_eq!(told.concat() + &lines.rest(), text, "{at}");
        }
    }

    #[test]
    fn truncation_counts_characters_and_is_marked() {
        assert_eq!(cut("ünï", 3), "ünï");
        assert_eq!(cut("ünïc", 3), "ün…");
        assert_eq!(cut("ab cd", 4), "ab…");
        assert_eq!(cut("", 0), "");
    }
}
