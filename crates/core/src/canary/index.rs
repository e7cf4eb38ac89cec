//! Finds canaries in a text, in any supported encoding.
//!
//! All forms of all canaries are stored in one sequence of letters. A table contains each
//! [`STRIDE`]th window of [`WINDOW`] letters, so any part that is long enough contains an indexed
//! window. From there the two texts are compared in both directions.

use std::ops::Range;

use super::planter::PREFIX;
use super::{Canary, LEAST, Sighting, merged};
use crate::encoded::digits_within;

pub(super) const BASE64: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
pub(super) const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Characters that are looked up, and the distance of those that are kept: every part of
/// `WINDOW + STRIDE - 1` characters holds one of them. That is [`LEAST`].
const WINDOW: usize = 8;
const STRIDE: usize = 5;

/// The index of all values to find.
#[derive(Debug)]
pub(super) struct Index {
    planted: Vec<Canary>,
    forms: Vec<Form>,
    /// The letters of all forms, one after the other.
    letters: Vec<u8>,
    /// The position of a window in `letters`, plus one; 0 is free. At its hash, or behind it.
    slots: Vec<u32>,
    /// One bit for each window, by its hash: most texts never get further.
    filter: Vec<u64>,
}

/// One form in which a canary may be written, letters and digits only.
#[derive(Debug)]
struct Form {
    canary: usize,
    /// The position at which its letters begin.
    start: usize,
    end: usize,
    /// Fewest characters of it that count as a sighting.
    least: usize,
    plain: bool,
}

/// A text without other characters than letters and digits, with their original positions.
struct Squeezed {
    letters: Vec<u8>,
    at: Vec<usize>,
}

/// A part of a text that is a canary.
struct Run {
    range: Range<usize>,
    form: usize,
}

impl Index {
    pub(super) fn new(planted: Vec<Canary>) -> Self {
        let mut this = Self {
            forms: Vec::with_capacity(planted.len() * 48),
            letters: Vec::with_capacity(planted.len() * 3072),
            slots: Vec::new(),
            filter: Vec::new(),
            planted,
        };
        for canary in 0..this.planted.len() {
            let value = &this.planted[canary].value;
            let body = value.strip_prefix(PREFIX).unwrap_or(value).as_bytes().to_vec();
            forms(&body, |form, least, plain| {
                let start = this.letters.len();
                this.letters.extend(form.iter().filter(|byte| byte.is_ascii_alphanumeric()));
                this.forms.push(Form { canary, start, end: this.letters.len(), least, plain });
            });
        }
        let windows = this.letters.len() / STRIDE;
        this.slots = vec![0; (2 * windows).next_power_of_two().max(4)];
        this.filter = vec![0; this.slots.len() / 4];
        for Form { start, end, .. } in &this.forms {
            for at in (*start..(end + 1).saturating_sub(WINDOW)).step_by(STRIDE) {
                let hash = mixed(window(&this.letters[at..at + WINDOW]));
                let bit = bit(hash, this.filter.len());
                this.filter[bit / 64] |= 1 << (bit % 64);
                let mut slot = slot(hash, this.slots.len());
                while this.slots[slot] != 0 {
                    slot = (slot + 1) % this.slots.len();
                }
                // A few thousand letters for each value.
                this.slots[slot] = u32::try_from(at + 1).unwrap_or(0);
            }
        }
        this
    }

    /// Returns the positions of canaries in `text`.
    pub(super) fn ranges(&self, text: &str) -> Vec<Range<usize>> {
        merged(self.runs(text).into_iter().map(|run| run.range).collect())
    }

    /// Returns the canaries in `text`, each once. `at` is the location in each sighting.
    pub(super) fn sightings(&self, text: &str, at: &str) -> Vec<Sighting> {
        let mut runs = self.runs(text);
        // The value itself before what is only alike.
        runs.sort_by_key(|run| (self.forms[run.form].canary, !self.forms[run.form].plain));
        runs.dedup_by_key(|run| self.forms[run.form].canary);
        let seen = runs.into_iter().map(|Run { range, form }| {
            let Form { canary, plain, .. } = &self.forms[form];
            let Canary { place, value } = &self.planted[*canary];
            let whole = *plain && range.len() + PREFIX.len() >= value.len();
            Sighting { place: place.clone(), at: at.to_owned(), encoded: !whole }
        });
        seen.collect()
    }

    fn runs(&self, text: &str) -> Vec<Run> {
        if self.forms.is_empty() || !self.may_hold(text) {
            return Vec::new();
        }
        let squeezed = Squeezed::of(text);
        let mut runs = Vec::new();
        let (mut window, mut done) = (0, 0);
        for (n, byte) in squeezed.letters.iter().enumerate() {
            window = push(window, *byte);
            if n + 1 < WINDOW || n < done {
                continue;
            }
            let at = n + 1 - WINDOW;
            let longest = self
                .places(window)
                .filter_map(|place| {
                    let form = self.forms.partition_point(|form| form.start <= place) - 1;
                    let Form { start, end, least, .. } = self.forms[form];
                    let letters = &self.letters[start..end];
                    let run = common(&squeezed.letters, at, letters, place - start);
                    (run.len() >= least).then_some((run, form))
                })
                .max_by_key(|(run, _)| run.len());
            if let Some((run, form)) = longest {
                done = run.end;
                let range = squeezed.at[run.start]..squeezed.at[run.end - 1] + 1;
                runs.push(Run { range, form });
            }
        }
        runs
    }

    /// The position of `wanted` in the letters, among the stored windows.
    fn places(&self, wanted: u64) -> impl Iterator<Item = usize> {
        let first = slot(mixed(wanted), self.slots.len());
        let all = (0..self.slots.len()).map(move |n| self.slots[(first + n) % self.slots.len()]);
        all.take_while(|slot| *slot != 0)
            .map(|slot| slot as usize - 1)
            .filter(move |at| window(&self.letters[*at..at + WINDOW]) == wanted)
    }

    /// Returns false for almost every text without a canary.
    fn may_hold(&self, text: &str) -> bool {
        let (mut window, mut length) = (0, 0_usize);
        text.bytes().filter(u8::is_ascii_alphanumeric).any(|byte| {
            window = push(window, byte);
            length += 1;
            let bit = bit(mixed(window), self.filter.len());
            length >= WINDOW
                && self.filter[bit / 64] >> (bit % 64) & 1 == 1
                && self.places(window).next().is_some()
        })
    }
}

fn mixed(window: u64) -> u64 {
    window.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The position of a window in a filter of so many words, a power of two.
fn bit(mixed: u64, words: usize) -> usize {
    (mixed >> 40) as usize & (words * 64 - 1)
}

/// The position at which the search for a window begins among so many slots, a power of two.
fn slot(mixed: u64, slots: usize) -> usize {
    (mixed >> 40) as usize & (slots - 1)
}

/// The last [`WINDOW`] letters, with one more.
fn push(window: u64, byte: u8) -> u64 {
    window << 8 | u64::from(byte)
}

fn window(letters: &[u8]) -> u64 {
    letters.iter().fold(0, |sum, byte| push(sum, *byte))
}

/// How far two texts are alike around two places where they are.
fn common(text: &[u8], at: usize, form: &[u8], place: usize) -> Range<usize> {
    let before = text[..at].iter().rev().zip(form[..place].iter().rev());
    let before = before.take_while(|(a, b)| a == b).count();
    let after = text[at..].iter().zip(&form[place..]).take_while(|(a, b)| a == b).count();
    at - before..at + after
}

impl Squeezed {
    fn of(text: &str) -> Self {
        let kept = text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_alphanumeric());
        let (at, letters) = kept.unzip();
        Self { letters, at }
    }
}

/// Every form of `body` that is looked for, with the fewest letters and digits of it that count
/// (what [`LEAST`] characters of the value become), and whether it is the value itself.
fn forms(body: &[u8], mut found: impl FnMut(&[u8], usize, bool)) {
    let base64 = |bytes: &[u8]| [0, 1, 2].map(|before| digits_within(bytes, before, 6, BASE64));
    let backwards = reversed(body);
    let hexed = hex(body);
    found(body, LEAST, true);
    found(&backwards, LEAST, false);
    found(&body.iter().map(|byte| rot13(*byte)).collect::<Vec<_>>(), LEAST, false);
    found(&body.to_ascii_lowercase(), LEAST, false);
    found(&body.to_ascii_uppercase(), LEAST, false);
    found(&hexed, 2 * LEAST, false);
    found(&hexed.to_ascii_uppercase(), 2 * LEAST, false);
    found(&reversed(&hexed), 2 * LEAST, false);
    // `103, 104, …`
    found(&decimal(body), 5 * LEAST / 2, false);
    for inner in base64(body) {
        found(&reversed(&inner), 4 * LEAST / 3, false);
        found(&hex(&inner), 8 * LEAST / 3, false);
        base64(&inner).iter().for_each(|outer| found(outer, 16 * LEAST / 9, false));
        found(&inner, 4 * LEAST / 3, false);
    }
    base64(&backwards).iter().for_each(|form| found(form, 4 * LEAST / 3, false));
    base64(&hexed).iter().for_each(|form| found(form, 8 * LEAST / 3, false));
    for before in 0..5 {
        let form = digits_within(body, before, 5, BASE32);
        found(&form.to_ascii_lowercase(), 8 * LEAST / 5, false);
        found(&form, 8 * LEAST / 5, false);
    }
}

fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn decimal(bytes: &[u8]) -> Vec<u8> {
    let digits = |byte: &u8| [byte / 100, byte / 10 % 10, byte % 10];
    let written = |byte: &u8| {
        let leading = usize::from(*byte < 100) + usize::from(*byte < 10);
        digits(byte).into_iter().skip(leading).map(|digit| b'0' + digit)
    };
    bytes.iter().flat_map(written).collect()
}

pub(super) fn rot13(byte: u8) -> u8 {
    match byte {
        b'a'..=b'm' | b'A'..=b'M' => byte + 13,
        b'n'..=b'z' | b'N'..=b'Z' => byte - 13,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_their_usual_formats() {
        assert_eq!(decimal(&[0, 9, 10, 99, 100, 255]), b"091099100255");
        assert_eq!(hex(&[0, 0x9f, 0xff]), b"009fff");
        assert_eq!(rot13(b'n'), b'a');
    }

    #[test]
    fn without_values_nothing_is_found() {
        assert!(Index::new(Vec::new()).ranges("anything at all, however long it is").is_empty());
    }
}
