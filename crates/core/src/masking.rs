//! Masks secrets in a stream of bytes, and defines the form of this server's own tokens.
//!
//! A secret may arrive in pieces: a command writes half of it, and the other half a moment later.
//! [`StreamMask`] holds back the end of its input only while it may be the beginning of a secret.
//! If the stream pauses there, [`StreamMask::pause`] shows the held bytes. If the rest of the
//! secret arrives later, that rest is masked.
//!
//! It masks the given values, unchanged and in the forms of [`needles`], and tokens with a prefix
//! in [`MINTED`]. It does not find a value that is interrupted, for example by control sequences of
//! a terminal that moves its cursor within the value.

use std::sync::Arc;

use crate::encoded;

/// A kind of token that this server creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minted {
    pub prefix: &'static str,
    /// The kind in its replacement, `[redacted:KIND]`.
    pub kind: &'static str,
}

/// All kinds of tokens of this server. Every function that masks or recognises them uses this
/// table.
pub const MINTED: [Minted; 6] = [
    Minted { prefix: "ova_", kind: "admin-token" },
    Minted { prefix: "ovk_", kind: "api-key" },
    Minted { prefix: "ovs_", kind: "session-token" },
    Minted { prefix: "sk-ovm-", kind: "placeholder" },
    Minted { prefix: "sk-ant-ovm-", kind: "placeholder" },
    Minted { prefix: "ovm-canary-", kind: "canary" },
];

/// Fewest characters after the prefix of a token, without dots. The server's tokens have 32 or
/// more.
pub const LEAST_TAIL: usize = 16;
/// Characters after a prefix that are held back before the token counts as complete. No token of
/// this server is that long.
const MOST_TAIL: usize = 512;
/// Shortest value that is masked, in bytes.
const SHORTEST: usize = 8;
/// The kind of a value that the caller passed, as opposed to a token of [`MINTED`].
const KNOWN: &str = "secret";

/// Returns every form of a secret that is masked: unchanged, escaped as in a JSON string, with the
/// line ends of a terminal (`\r\n`), and in the usual encodings ([`encoded::forms`]).
pub fn needles(secret: &str) -> Vec<String> {
    let mut all = encoded::forms(secret);
    let quoted = serde_json::Value::from(secret).to_string();
    all.push(quoted[1..quoted.len() - 1].to_owned());
    if secret.contains('\n') {
        all.push(secret.replace('\n', "\r\n"));
    }
    all.push(secret.to_owned());
    all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    all.dedup();
    all
}

/// Returns the masks in a text: the position and the kind of each.
pub fn masks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    const BEGIN: &str = "[redacted:";
    text.match_indices(BEGIN).filter_map(|(at, _)| {
        let (kind, _) = text[at + BEGIN.len()..].split_once(']')?;
        let is_kind = (1..=40).contains(&kind.len())
            && kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        is_kind.then_some((at, kind))
    })
}

/// Returns the kind of the first mask in the texts and field names of a JSON value, except for
/// canaries, which have their own alarm.
pub fn masked_kind(value: &serde_json::Value) -> Option<&str> {
    use serde_json::Value;
    let first = |text| masks(text).map(|(_, kind)| kind).find(|kind| *kind != "canary");
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
        Value::String(text) => first(text),
        Value::Array(items) => items.iter().find_map(masked_kind),
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| first(name).or_else(|| masked_kind(value)))
        }
    }
}

/// The values to find, shared by the streams of one command.
#[derive(Debug)]
struct Wanted {
    /// The longest first.
    needles: Vec<Vec<u8>>,
    /// One bit per pair of bytes: whether a value or a token can begin with this pair.
    pairs: Box<[u64; 1024]>,
    /// The same for the first byte alone.
    firsts: [bool; 256],
}

impl Wanted {
    fn new(secrets: &[String]) -> Self {
        let secrets = secrets.iter().map(|secret| secret.trim());
        let long = secrets.filter(|secret| secret.len() >= SHORTEST);
        let mut needles: Vec<Vec<u8>> = long.flat_map(needles).map(String::into_bytes).collect();
        needles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        needles.dedup();
        let mut this = Self { needles, pairs: Box::new([0; 1024]), firsts: [false; 256] };
        let prefixes = MINTED.iter().map(|minted| minted.prefix.as_bytes());
        for begins in this.needles.iter().map(Vec::as_slice).chain(prefixes) {
            let pair = pair(begins[0], begins[1]);
            this.pairs[pair / 64] |= 1 << (pair % 64);
            this.firsts[usize::from(begins[0])] = true;
        }
        this
    }

    /// Returns the first position from `at` at which a value may begin.
    fn candidate(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = bytes.get(at..)?;
        let found = rest.windows(2).position(|two| {
            let pair = pair(two[0], two[1]);
            self.pairs[pair / 64] & 1 << (pair % 64) != 0
        });
        let last = || rest.last().filter(|last| self.firsts[usize::from(**last)]);
        found.or_else(|| last().map(|_| rest.len() - 1)).map(|found| at + found)
    }

    /// Returns the value that begins at `at`. With `paused`, it does not wait for more bytes.
    fn at(&self, bytes: &[u8], at: usize, before: Option<u8>, paused: bool) -> Found {
        let rest = &bytes[at..];
        let mut whole = None;
        for needle in &self.needles {
            if rest.starts_with(needle) {
                whole = Some(Found::Whole { len: needle.len(), kind: KNOWN, open: false });
                break;
            }
            // A longer value may still become complete; the complete ones are shorter.
            if !paused && needle.starts_with(rest) {
                return Found::Begun;
            }
        }
        if let Some(whole) = whole {
            return whole;
        }
        if before.is_some_and(is_word) {
            return Found::Nothing;
        }
        for Minted { prefix, kind } in MINTED {
            let prefix = prefix.as_bytes();
            if !paused && rest.len() < prefix.len() && prefix.starts_with(rest) {
                return Found::Begun;
            }
            let Some(tail) = rest.strip_prefix(prefix) else { continue };
            let Tail { len, ended } = tail_of(tail);
            let goes_on = !ended && len < MOST_TAIL;
            if goes_on && !paused {
                return Found::Begun;
            }
            if tail.iter().take_while(|byte| is_tail(**byte)).count() >= LEAST_TAIL {
                return Found::Whole { len: prefix.len() + len, kind, open: !ended };
            }
        }
        Found::Nothing
    }

    /// Returns whether a value begins with all of these bytes, which were already shown.
    fn may_go_on(&self, bytes: &[u8]) -> bool {
        let token = |Minted { prefix, .. }: &Minted| {
            let tail = bytes.strip_prefix(prefix.as_bytes());
            prefix.as_bytes().starts_with(bytes) || tail.is_some_and(|tail| !tail_of(tail).ended)
        };
        self.needles.iter().any(|needle| needle.starts_with(bytes)) || MINTED.iter().any(token)
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

fn is_tail(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

struct Tail {
    len: usize,
    /// Whether a byte follows that does not belong to the token.
    ended: bool,
}

/// Returns how many of these bytes belong to a token. A dot belongs to it if it is between two
/// other bytes of the token.
fn tail_of(bytes: &[u8]) -> Tail {
    let mut len = 0;
    loop {
        match (bytes.get(len), bytes.get(len + 1)) {
            (Some(byte), _) if is_tail(*byte) => len += 1,
            (Some(b'.'), Some(next)) if len > 0 && is_tail(*next) => len += 2,
            (None, _) | (Some(b'.'), None) => return Tail { len, ended: false },
            (Some(_), _) => return Tail { len, ended: true },
        }
    }
}

enum Found {
    Nothing,
    /// The last bytes that have arrived may be the beginning of a value or a token.
    Begun,
    Whole {
        len: usize,
        kind: &'static str,
        /// Whether it may continue in the next bytes.
        open: bool,
    },
}

/// Masks secrets in one stream.
#[derive(Clone, Debug)]
pub struct StreamMask {
    wanted: Arc<Wanted>,
    /// The held end of the input, which may be the beginning of a secret.
    held: Vec<u8>,
    /// Number of held bytes that were shown in a pause.
    shown: usize,
    /// The last byte before the held bytes.
    before: Option<u8>,
    /// Whether a token was masked whose end has not arrived yet.
    in_token: bool,
}

impl StreamMask {
    /// Creates a mask for these values, each of eight bytes or more, and for the tokens of
    /// [`MINTED`].
    pub fn new(secrets: &[String]) -> Self {
        let wanted = Arc::new(Wanted::new(secrets));
        Self { wanted, held: Vec::new(), shown: 0, before: None, in_token: false }
    }

    /// Returns whether bytes are held back. If so, call [`Self::pause`] after a moment without
    /// input.
    pub fn holds(&self) -> bool {
        self.held.len() > self.shown
    }

    /// Returns the most bytes that are ever held back.
    pub fn most_held(&self) -> usize {
        let longest = self.wanted.needles.first().map_or(0, Vec::len);
        longest.max(MOST_TAIL + "sk-ant-ovm-".len() + 1)
    }

    /// Handles the next bytes, and returns the bytes to show. They are assembled in `room` if they
    /// are not simply `bytes`.
    pub fn feed<'a>(&mut self, bytes: &'a [u8], room: &'a mut Vec<u8>) -> &'a [u8] {
        let untouched =
            self.held.is_empty() && !self.in_token && self.wanted.candidate(bytes, 0).is_none();
        if untouched {
            self.before = bytes.last().copied().or(self.before);
            return bytes;
        }
        room.clear();
        self.held.extend_from_slice(bytes);
        self.work(room, false);
        room
    }

    /// Adds the held bytes to `out`, after a moment without input or at the end.
    pub fn pause(&mut self, out: &mut Vec<u8>) {
        self.work(out, true);
    }

    fn work(&mut self, out: &mut Vec<u8>, paused: bool) {
        let held = std::mem::take(&mut self.held);
        let shown = std::mem::take(&mut self.shown);
        let mut at = 0;
        if self.in_token {
            at = held.iter().take_while(|byte| is_tail(**byte) || **byte == b'.').count();
            self.in_token = at == held.len();
        }
        let mut copied = at.max(shown);
        // The end of the last masked value.
        let mut masked = at;
        // The position at which the bytes begin that stay held.
        let mut keep = held.len();
        while let Some(place) = self.wanted.candidate(&held, at) {
            let before = place.checked_sub(1).map_or(self.before, |n| Some(held[n]));
            match self.wanted.at(&held, place, before, paused) {
                Found::Nothing => at = place + 1,
                Found::Begun => {
                    keep = place;
                    break;
                }
                Found::Whole { len, kind, open } => {
                    let end = place + len;
                    if end > copied {
                        out.extend_from_slice(&held[copied..place.max(copied)]);
                        out.extend_from_slice(format!("[redacted:{kind}]").as_bytes());
                        copied = end;
                    }
                    (at, masked) = (end, end);
                    self.in_token = open && end == held.len();
                }
            }
        }
        let end = keep.max(copied);
        out.extend_from_slice(&held[copied..end]);
        if paused {
            // The shown part of a value is remembered, so that the rest of it is masked.
            let begun = (masked..held.len()).find(|from| self.wanted.may_go_on(&held[*from..]));
            keep = begun.unwrap_or(held.len());
        }
        if keep > 0 {
            self.before = Some(held[keep - 1]);
        }
        self.shown = end.saturating_sub(keep);
        self.held = held[keep..].to_vec();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "s3cret-value-of-it";

    /// The text shown for these pieces; a piece with `true` is followed by a pause.
    fn shown(pieces: &[(&[u8], bool)]) -> String {
        let mut mask = StreamMask::new(&[SECRET.to_owned()]);
        let (mut out, mut room) = (Vec::new(), Vec::new());
        for (piece, pause) in pieces {
            out.extend_from_slice(mask.feed(piece, &mut room));
            assert!(mask.held.len() <= mask.most_held(), "{}", mask.held.len());
            if *pause {
                mask.pause(&mut out);
                assert!(!mask.holds());
            }
        }
        mask.pause(&mut out);
        String::from_utf8(out).expect("what was given is text")
    }

    fn at_once(text: &str) -> String {
        shown(&[(text.as_bytes(), false)])
    }

    #[test]
    fn masks_are_found_in_texts_and_field_names() {
        let args = serde_json::json!({"a": ["x", {"n": 1, "b": "T=[redacted:api-key]."}]});
        assert_eq!(masked_kind(&args), Some("api-key"));
        assert_eq!(masked_kind(&serde_json::json!({"[redacted:secret]": 1})), Some("secret"));
        for none in ["", "[redacted:]", "[redacted:A b]", "[redacted:x", "[redacted:canary]"] {
            assert_eq!(masked_kind(&serde_json::json!([none])), None, "{none}");
        }
        let found: Vec<_> = masks("a[redacted:x]b[redacted:[redacted:y-1]").collect();
        assert_eq!(found, [(1, "x"), (24, "y-1")]);
    }

    #[test]
    fn values_and_tokens_are_masked_and_other_text_is_unchanged() {
        let token = format!("ovs_{}.1.{}", "0a".repeat(16), "1b".repeat(32));
        let placeholder = format!("sk-ant-ovm-{}-1-x-{}", "0a".repeat(16), "1b".repeat(16));
        for (text, wanted) in [
            (format!("a {SECRET} b"), "a [redacted:secret] b".to_owned()),
            (format!("{SECRET}{SECRET}"), "[redacted:secret]".repeat(2)),
            (
                "s3cret-value-of-its3cret-value-of-i".into(),
                "[redacted:secret]s3cret-value-of-i".into(),
            ),
            ("czNjcmV0LXZhbHVlLW9mLWl0".into(), "[redacted:secret]".into()),
            (format!("T={token}\nx"), "T=[redacted:session-token]\nx".into()),
            (format!("{token}."), "[redacted:session-token].".into()),
            (format!("K={placeholder}"), "K=[redacted:placeholder]".into()),
            (format!("ovk_{}", "9f".repeat(32)), "[redacted:api-key]".into()),
            (format!("ovm-canary-{}", "9f".repeat(16)), "[redacted:canary]".into()),
            ("prov_identity_is_no_token_at_all".into(), "prov_identity_is_no_token_at_all".into()),
            ("ovs_short.1 s3cret".into(), "ovs_short.1 s3cret".into()),
        ] {
            assert_eq!(at_once(&text), wanted, "{text}");
        }
    }

    #[test]
    fn a_line_end_in_a_secret_is_found_as_a_terminal_prints_it() {
        let mut mask = StreamMask::new(&["first line\nsecond line".to_owned()]);
        let mut room = Vec::new();
        assert_eq!(
            mask.feed(b"first line\r\nsecond line\r\n", &mut room),
            b"[redacted:secret]\r\n"
        );
    }

    #[test]
    fn only_a_possible_start_of_a_secret_is_withheld_until_a_pause() {
        let mut mask = StreamMask::new(&[SECRET.to_owned()]);
        let mut room = Vec::new();
        assert_eq!(mask.feed(b"Name: ", &mut room), b"Name: ");
        assert!(!mask.holds());
        assert_eq!(mask.feed(b"x s3cret", &mut room), b"x ");
        assert!(mask.holds());
        let mut out = Vec::new();
        mask.pause(&mut out);
        assert_eq!((out.as_slice(), mask.holds()), (&b"s3cret"[..], false));
        assert_eq!(mask.feed(b"-value-of-it!", &mut room), b"[redacted:secret]!");
        // No result.
        assert_eq!(mask.feed(b"s3cre", &mut room), b"");
        let mut out = Vec::new();
        mask.pause(&mut out);
        assert_eq!(mask.feed(b"pe!", &mut room), b"pe!");
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just(SECRET.to_owned()),
            Just("s3cret-v".to_owned()),
            Just("s3cret-value-of-i".to_owned()),
            Just(format!("ovs_{}.12.{}", "0a".repeat(16), "1b".repeat(32))),
            Just("ov".to_owned()),
            Just("sk-ovm-0123456789abcdef0123".to_owned()),
            "[a-zA-Z0-9 ._\n-]{1,12}",
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_chunks_of_a_stream_do_not_change_the_masked_text(
            text in text(), cuts in proptest::collection::vec(1_usize..30, 1..20),
        ) {
            let mut rest = text.as_bytes();
            let mut pieces = Vec::new();
            for cut in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                pieces.push((piece, false));
                rest = more;
            }
            pieces.push((rest, false));
            prop_assert_eq!(shown(&pieces), at_once(&text));
        }

        #[test]
        fn no_secret_is_shown_whole_even_with_pauses(
            before in "[a-z ]{0,6}", after in "[a-z ]{0,6}",
            cuts in proptest::collection::vec((1_usize..9, any::<bool>()), 1..20),
        ) {
            let text = format!("{before}{SECRET}{after}");
            let mut rest = text.as_bytes();
            let mut pieces = Vec::new();
            for (cut, pause) in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                pieces.push((piece, pause));
                rest = more;
            }
            pieces.push((rest, false));
            let out = shown(&pieces);
            prop_assert!(!out.contains(SECRET), "{out}");
            prop_assert!(out.contains("[redacted:secret]"), "{out}");
            prop_assert!(out.starts_with(&before) && out.ends_with(&after), "{out}");
        }

        #[test]
        fn text_without_a_secret_is_unchanged(
            text in "[s3cret-valuof ov_k.]{0,60}",
            cuts in proptest::collection::vec((1_usize..9, any::<bool>()), 1..20),
        ) {
            prop_assume!(at_once(&text) == text);
            let mut rest = text.as_bytes();
            let mut pieces = Vec::new();
            for (cut, pause) in cuts {
                let (piece, more) = rest.split_at(cut.min(rest.len()));
                pieces.push((piece, pause));
                rest = more;
            }
            pieces.push((rest, false));
            prop_assert_eq!(shown(&pieces), text);
        }
    }
}
