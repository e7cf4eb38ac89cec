//! The keys by which a person leaves a terminal that they are attached to.

/// Maximum number of keys in a row.
const MOST: usize = 8;

/// Keys in a row that are not typed but leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachKeys {
    keys: Vec<u8>,
    /// Typed bytes that may begin the detach keys: withheld until that is clear.
    held: Vec<u8>,
}

/// Reads `ctrl-p,ctrl-q`, `ctrl-]`, `~,.` or `none`.
///
/// # Errors
///
/// The problem, and what would be right.
pub fn parse(text: &str) -> Result<DetachKeys, String> {
    let wrong = |key: &str| {
        format!(
            "`{key}` is not a key: give single characters, or ctrl- and a character, \
            separated by commas"
        )
    };
    let mut keys = Vec::new();
    for key in text.split(',').filter(|_| text != "none") {
        let control = key.strip_prefix("ctrl-").or_else(|| key.strip_prefix('^'));
        let (name, control) =
            control.filter(|rest| !rest.is_empty()).map_or((key, false), |k| (k, true));
        let &[byte] = name.as_bytes() else { return Err(wrong(key)) };
        keys.push(match (control, byte.to_ascii_uppercase()) {
            (true, upper @ b'@'..=b'_') => upper & 0x1f,
            (false, _) if byte.is_ascii_graphic() => byte,
            (true | false, _) => return Err(wrong(key)),
        });
    }
    if keys.len() > MOST {
        return Err(format!("at most {MOST} keys in a row leave"));
    }
    Ok(DetachKeys { keys, held: Vec::new() })
}

impl DetachKeys {
    /// Writes the typed bytes that are meant for the program to `out`. True when the person detaches;
    /// what they typed after it is gone.
    pub fn typed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if self.keys.is_empty() {
            out.extend_from_slice(bytes);
            return false;
        }
        for byte in bytes {
            self.held.push(*byte);
            while !self.keys.starts_with(&self.held) {
                out.push(self.held.remove(0));
            }
            if self.held.len() == self.keys.len() {
                self.held.clear();
                return true;
            }
        }
        false
    }

    /// Whether something is kept back.
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the withheld bytes, which were meant for the program after all.
    pub fn release(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &str, pieces: &[&str]) -> (bool, String, String) {
        let mut keys = parse(keys).unwrap();
        let mut out = Vec::new();
        let left = pieces.iter().any(|piece| keys.typed(piece.as_bytes(), &mut out));
        (left, String::from_utf8(out).unwrap(), String::from_utf8(keys.release()).unwrap())
    }

    #[test]
    fn key_names_are_parsed_in_their_usual_spelling() {
        let keys = |text: &str| parse(text).map(|keys| keys.keys);
        assert_eq!(keys("ctrl-p,ctrl-q"), Ok(vec![0x10, 0x11]));
        assert_eq!(keys("ctrl-],^]"), Ok(vec![0x1d, 0x1d]));
        assert_eq!(keys("~,."), Ok(b"~.".to_vec()));
        assert_eq!(keys("ctrl-@"), Ok(vec![0]));
        assert_eq!(keys("none"), Ok(vec![]));
        assert_eq!(keys("^"), Ok(b"^".to_vec()));
        for wrong in ["", "ctrl-", "ctrl-1", "ctrl-pp", "a,,b", "ä", "a,b,c,d,e,f,g,h,i", "F1"] {
            assert!(keys(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_full_sequence_detaches_and_partial_sequences_are_sent() {
        let text = |text: &str| text.to_owned();
        assert_eq!(typed("ctrl-p,ctrl-q", &["ab\x10\x11c"]), (true, text("ab"), text("")));
        assert_eq!(typed("ctrl-p,ctrl-q", &["\x10", "\x11"]), (true, text(""), text("")));
        assert_eq!(typed("ctrl-p,ctrl-q", &["a\x10b"]), (false, text("a\x10b"), text("")));
        assert_eq!(typed("ctrl-p,ctrl-q", &["a\x10"]), (false, text("a"), text("\x10")));
        assert_eq!(typed("ctrl-p,ctrl-q", &["\x10\x10\x11"]), (true, text("\x10"), text("")));
        assert_eq!(typed("a,a,b", &["aaab"]), (true, text("a"), text("")));
        assert_eq!(typed("none", &["\x10\x11"]), (false, text("\x10\x11"), text("")));
    }
}
