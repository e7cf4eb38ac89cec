//! Captures the output of a command with a limit: everything is read, only the first part is kept.

use overmind_core::sandbox::Captured;

/// Collects one stream. Its memory stays within the limit, whatever arrives.
#[derive(Debug)]
pub(crate) struct Capture {
    kept: Vec<u8>,
    limit: usize,
    total: u64,
}

impl Capture {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: Vec::new(), limit, total: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.limit - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The kept bytes as text. Invalid UTF-8 becomes U+FFFD, which takes three bytes, so less than
    /// the limit may be kept of binary output.
    pub(crate) fn finish(self) -> Captured {
        let dropped = self.total > self.kept.len() as u64;
        let mut kept = self.kept.as_slice();
        if dropped {
            kept = without_torn_character(kept);
        }
        let mut text = String::from_utf8_lossy(kept).into_owned();
        let fits = text.len() <= self.limit;
        text.truncate(text.floor_char_boundary(self.limit));
        Captured { text, total_bytes: self.total, truncated: dropped || !fits }
    }
}

/// Cuts off the first bytes of a character whose rest was dropped.
fn without_torn_character(bytes: &[u8]) -> &[u8] {
    match bytes.utf8_chunks().last() {
        Some(last) => {
            let torn = last.invalid();
            // `error_len` is `None` if the bytes are a valid beginning of a character.
            let begun = std::str::from_utf8(torn).is_err_and(|err| err.error_len().is_none());
            if begun { &bytes[..bytes.len() - torn.len()] } else { bytes }
        }
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&[u8]], limit: usize, text: &str, total: u64, truncated: bool) {
        let mut capture = Capture::new(limit);
        for piece in pieces {
            capture.push(piece);
        }
        let expected = Captured { text: text.to_owned(), total_bytes: total, truncated };
        assert_eq!(capture.finish(), expected);
    }

    #[test]
    fn output_up_to_the_limit_is_complete() {
        check(&[], 4, "", 0, false);
        check(&[b"ab", b"cd"], 4, "abcd", 4, false);
    }

    #[test]
    fn output_above_the_limit_is_counted_and_cut() {
        check(&[b"ab", b"cde", b"f"], 4, "abcd", 6, true);
        check(&[b"abc"], 0, "", 3, true);
    }

    #[test]
    fn a_character_is_never_cut_in_half() {
        check(&["aüb".as_bytes()], 2, "a", 4, true);
        check(&["a€".as_bytes(), b"x"], 3, "a", 5, true);
        check(&["a€".as_bytes(), b"x"], 4, "a€", 5, true);
    }

    #[test]
    fn a_partial_character_of_the_command_is_shown() {
        check(&[b"a\xe2\x82"], 10, "a\u{fffd}", 3, false);
    }

    #[test]
    fn binary_output_stays_within_the_limit_after_escaping() {
        check(&[b"\xff\xff\xff"], 9, "\u{fffd}\u{fffd}\u{fffd}", 3, false);
        check(&[b"\xff\xff\xff"], 7, "\u{fffd}\u{fffd}", 3, true);
        check(&[b"\xff\xff\xff\xff"], 3, "\u{fffd}", 4, true);
    }
}
