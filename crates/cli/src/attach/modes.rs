//! Which of a terminal's modes a program has changed, so that they can be changed back.
//!
//! After detaching, the person's own terminal is restored: no alternate screen, no mouse reports,
//! no hidden cursor. Only changed modes are restored, because leaving an alternate screen that was
//! never entered moves the cursor.

use std::collections::BTreeSet;

/// On in every terminal, unless a program switches them off: wrapping, and the cursor.
const USUALLY_ON: [u16; 2] = [7, 25];
/// Modes that bring the former screen back, which comes last.
const ALTERNATE: [u16; 3] = [47, 1047, 1049];
/// Longer sequences are none that change modes.
const LONGEST: usize = 64;

#[derive(Debug, Default)]
pub struct Modes {
    /// Not as they are usually.
    changed: BTreeSet<u16>,
    keypad: bool,
    region: bool,
    cursor_shape: bool,
    /// Ways of reporting keys that were put upon one another.
    keyboards: usize,
    other_keys: bool,
    state: State,
    /// The bytes between `ESC [` and the final byte.
    sequence: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    Sequence,
}

impl Modes {
    /// Takes note of what is written to the terminal; sequences may be cut anywhere.
    pub fn written(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().copied() {
            self.state = match (self.state, byte) {
                (_, 0x1b) => State::Escape,
                (State::Text, _) => State::Text,
                (State::Escape, b'[') => {
                    self.sequence.clear();
                    State::Sequence
                }
                (State::Escape, other) => {
                    match other {
                        b'=' => self.keypad = true,
                        b'>' => self.keypad = false,
                        b'c' => *self = Self::default(),
                        _ => {}
                    }
                    State::Text
                }
                (State::Sequence, 0x40..=0x7e) => {
                    self.changes(byte);
                    State::Text
                }
                (State::Sequence, _) if self.sequence.len() < LONGEST => {
                    self.sequence.push(byte);
                    State::Sequence
                }
                (State::Sequence, _) => State::Text,
            };
        }
    }

    fn changes(&mut self, last: u8) {
        let sequence = String::from_utf8_lossy(&self.sequence).into_owned();
        match (last, sequence.strip_prefix('?'), sequence.strip_prefix('>')) {
            (b'h' | b'l', Some(modes), _) => {
                for mode in modes.split(';').filter_map(|mode| mode.parse().ok()) {
                    let usual = USUALLY_ON.contains(&mode) == (last == b'h');
                    if usual {
                        self.changed.remove(&mode)
                    } else {
                        self.changed.insert(mode)
                    };
                }
            }
            (b'r', None, None) => self.region = !sequence.is_empty(),
            (b'q', None, None) if sequence.ends_with(' ') => self.cursor_shape = true,
            (b'u', None, Some(_)) => self.keyboards = (self.keyboards + 1).min(LONGEST),
            (b'u', None, None) if sequence.starts_with('<') => {
                let count = sequence[1..].parse().unwrap_or(1);
                self.keyboards = self.keyboards.saturating_sub(count);
            }
            (b'm', None, Some(keys)) if keys.starts_with('4') => {
                self.other_keys = keys.contains(';')
            }
            _ => {}
        }
    }

    /// The sequence that restores all modes and makes the text plain. No mode is changed afterwards.
    pub fn undo(&mut self) -> Vec<u8> {
        use std::fmt::Write as _;

        let mut text = String::new();
        if self.region {
            text.push_str("\x1b7\x1b[r\x1b8");
        }
        if self.cursor_shape {
            text.push_str("\x1b[0 q");
        }
        if self.keyboards > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "\x1b[<{}u", self.keyboards);
        }
        if self.other_keys {
            text.push_str("\x1b[>4m");
        }
        if self.keypad {
            text.push_str("\x1b>");
        }
        let (last, first): (Vec<u16>, Vec<u16>) =
            self.changed.iter().copied().partition(|mode| ALTERNATE.contains(mode));
        for mode in first.into_iter().chain(last) {
            let back = if USUALLY_ON.contains(&mode) { 'h' } else { 'l' };
            let _ = write!(text, "\x1b[?{mode}{back}");
        }
        text.push_str("\x1b[m");
        *self = Self::default();
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undone(written: &str) -> String {
        let mut modes = Modes::default();
        modes.written(written.as_bytes());
        String::from_utf8(modes.undo()).unwrap()
    }

    #[test]
    fn changed_terminal_modes_are_restored() {
        assert_eq!(undone("plain \x1b[31mred"), "\x1b[m");
        assert_eq!(undone("\x1b[?1049h\x1b[?25l\x1b[?1000;1006h"), {
            "\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b[m"
        });
        assert_eq!(undone("\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l"), "\x1b[m");
        assert_eq!(undone("\x1b[?1h\x1b=\x1b[2;20r\x1b[5 q"), {
            "\x1b7\x1b[r\x1b8\x1b[0 q\x1b>\x1b[?1l\x1b[m"
        });
        assert_eq!(undone("\x1b[>1u\x1b[>1u\x1b[<u\x1b[>4;2m"), "\x1b[<1u\x1b[>4m\x1b[m");
        assert_eq!(undone("\x1b[?2004h\x1bc"), "\x1b[m", "a reset is one");
        assert_eq!(undone("\x1b[?7l"), "\x1b[?7h\x1b[m");
        // Other final bytes, and what is no mode at all.
        assert_eq!(undone("\x1b[?1h\x1b[?1l\x1b[2J\x1b[?6n\x1b[c"), "\x1b[m");
    }

    #[test]
    fn a_sequence_is_recognised_across_any_chunks() {
        let whole = "text\x1b[?2004h\x1b[?1049h\x1b=more";
        let mut modes = Modes::default();
        for byte in whole.bytes() {
            modes.written(&[byte]);
        }
        assert_eq!(modes.undo(), undone(whole).into_bytes());
        assert_eq!(modes.undo(), b"\x1b[m", "and only once");
    }
}
