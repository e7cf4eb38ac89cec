//! Random changes to bytes: small, repeatable from a seed, and without coverage.

use crate::Target;

/// SplitMix64: four lines, good enough to pick bytes, the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        let n = n.max(1) as u64;
        usize::try_from(self.next() % n).expect("below a usize")
    }
}

/// Longest input made. Limits of the parsers themselves have tests of their own.
const MAX_BYTES: usize = 4096;

/// Bytes that parsers stumble over.
const SHARP: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\r",
    b"\"",
    b"\\",
    b"'",
    b":",
    b"../",
    b"/",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xf0\x9f\x8c\x8d",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"null",
    b"%00",
    b"\\u0000",
    b"\\ud800",
];

/// An endless supply of inputs for one target.
#[derive(Debug)]
pub struct Mutator {
    rng: Rng,
    words: &'static [&'static str],
    pool: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(target: &Target, seed: u64) -> Self {
        let mut pool: Vec<Vec<u8>> =
            target.seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
        pool.push(Vec::new());
        Self { rng: Rng::new(seed), words: target.words, pool }
    }

    /// The next input: a seed, or an earlier input, changed in one to eight places.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pick().clone();
        for _ in 0..=self.rng.below(8) {
            self.change(&mut input);
        }
        input.truncate(MAX_BYTES);
        // A small, changing pool lets changes build on each other.
        if self.rng.below(16) == 0 {
            if self.pool.len() < 256 {
                self.pool.push(input.clone());
            } else {
                let at = self.rng.below(self.pool.len());
                self.pool[at].clone_from(&input);
            }
        }
        input
    }

    fn pick(&mut self) -> &Vec<u8> {
        let at = self.rng.below(self.pool.len());
        &self.pool[at]
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.rng.below(input.len() + 1);
        let end = (at + 1 + self.rng.below(16)).min(input.len());
        let byte = self.rng.next().to_le_bytes()[0];
        match self.rng.below(8) {
            0 => {
                if let Some(place) = input.get_mut(at) {
                    *place ^= 1 << (byte % 8);
                }
            }
            1 => input.insert(at, byte),
            2 if at < end => drop(input.drain(at..end)),
            3 if at < end => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            4 | 5 if !self.words.is_empty() => {
                let word = self.words[self.rng.below(self.words.len())];
                input.splice(at..at, word.bytes());
            }
            6 => {
                let other = self.pick().clone();
                let from = self.rng.below(other.len() + 1);
                input.splice(at..at, other[from..].iter().copied());
            }
            _ => {
                let sharp = SHARP[self.rng.below(SHARP.len())];
                input.splice(at..at, sharp.iter().copied());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_inputs() {
        let target = &crate::TARGETS[0];
        let first = |seed| {
            let mut mutator = Mutator::new(target, seed);
            (0..200).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert!(first(1).iter().all(|input| input.len() <= MAX_BYTES));
    }
}
