//! Removes from text what only a terminal understands.
//!
//! It works by hand on bytes, not with the parser that draws screens: that decodes characters and
//! would replace invalid UTF-8, and a filter for a whole log must neither change nor slow it.

/// Removes control sequences and control characters except tabs and line ends. A carriage return
/// within a line starts it again, as on a terminal, so a progress bar's last state remains.
pub(crate) fn strip(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    // The start of the current line in `out`.
    let mut begin = 0;
    let mut at = 0;
    while let Some(byte) = line.get(at).copied() {
        at += 1;
        match byte {
            0x1b => at = after_escape(line, at),
            b'\n' => {
                out.push(byte);
                begin = out.len();
            }
            b'\r' => {
                // A carriage return at the end of a line belongs to the line end.
                let rest = &line[at..];
                let ends = rest.iter().find(|byte| **byte != b'\r').is_none_or(|b| *b == b'\n');
                if !ends {
                    out.truncate(begin);
                }
            }
            0x08 => {
                if out.len() > begin {
                    out.pop();
                }
            }
            b'\t' | 0x20..=0x7e | 0x80.. => out.push(byte),
            0..=0x1f | 0x7f => {}
        }
    }
    out
}

/// The position after the sequence whose escape character is directly before `at`.
fn after_escape(line: &[u8], at: usize) -> usize {
    let Some(kind) = line.get(at) else { return at };
    match kind {
        // The sequence has parameters and intermediates, then one final byte.
        b'[' => {
            let body = &line[at + 1..];
            let end = body.iter().position(|byte| !(0x20..=0x3f).contains(byte));
            end.map_or(line.len(), |end| at + 1 + end + 1)
        }
        // These strings end at the bell or at ESC \. An unterminated one takes the rest of the
        // line.
        b']' | b'P' | b'X' | b'^' | b'_' => {
            let body = &line[at + 1..];
            let end = body.iter().position(|byte| matches!(byte, 0x07 | 0x1b | b'\n'));
            match end.map(|end| at + 1 + end) {
                None => line.len(),
                Some(end) if line[end] == b'\n' => end,
                Some(end) if line[end] == 0x07 => end + 1,
                Some(end) if line.get(end + 1) == Some(&b'\\') => end + 2,
                Some(end) => end,
            }
        }
        // Character sets have one intermediate and one final byte.
        0x20..=0x2f => (at + 2).min(line.len()),
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(String::from_utf8(strip(text.as_bytes())).unwrap(), expected);
    }

    #[test]
    fn colours_titles_and_cursor_moves_are_removed_and_text_is_kept() {
        check("\x1b[1;31merror\x1b[0m: über\ttab", "error: über\ttab");
        check("\x1b]0;title\x07after", "after");
        check("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link");
        check("\x1b(B\x1b7a\x1b8\x1b[?25l", "a");
        check("a\x1b", "a");
        check("a\x1b[3", "a");
        check("bell\x07", "bell");
    }

    #[test]
    fn a_carriage_return_restarts_the_line() {
        check("10%\r50%\r100%\r\nnext\r\n", "100%\nnext\n");
        check("abc\x08d", "abd");
    }

    #[test]
    fn invalid_utf8_is_unchanged() {
        assert_eq!(strip(b"\xff\xfe\x1b[m\x80"), b"\xff\xfe\x80");
    }
}
