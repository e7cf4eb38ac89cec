//! Patterns of the policy language, matched against texts that may contain unknown parts.
//!
//! `*` matches any characters except a slash, `**` any characters, and `?` one character except a
//! slash. `**/` may match nothing, and `x/**` also matches `x`.

use crate::shell::expand::{FOUND, HERE, HOLE, HOME, ONE, SPLIT, STAR, is_static};

/// How certainly a pattern and a text match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    No,
    /// Some of the possible values of the text match.
    May,
    /// All possible values of the text match.
    Must,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Literal(char),
    /// `?`
    One,
    /// `*`
    Name,
    /// `**`
    Any,
}

#[derive(Clone, Debug)]
pub(crate) struct Glob {
    /// One variant, or more if `**/` or `/**` may match nothing.
    variants: Vec<Variant>,
}

#[derive(Clone, Debug)]
struct Variant {
    tokens: Vec<Token>,
    /// The text before the first wildcard and after the last one: nearly every text fails here.
    head: String,
    tail: String,
}

impl Glob {
    /// # Errors
    ///
    /// Describes the error in the pattern.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        if pattern.is_empty() || pattern.len() > 300 || pattern.matches("**").count() > 4 {
            return Err("a pattern has 1 to 300 bytes and at most four `**`".to_owned());
        }
        if !pattern.chars().all(|c| !c.is_control()) || !is_static(pattern) {
            return Err("a pattern has no control or private characters".to_owned());
        }
        let mut texts = vec![pattern.to_owned()];
        if let Some(base) = pattern.strip_suffix("/**") {
            texts.push(base.to_owned());
        }
        for n in 0..texts.len() {
            let mut from = 0;
            while let Some(at) = texts[n][from..].find("**/").map(|at| at + from) {
                let shorter = format!("{}{}", &texts[n][..at], &texts[n][at + 3..]);
                if (at == 0 || texts[n].as_bytes()[at - 1] == b'/')
                    && !shorter.is_empty()
                    && !texts.contains(&shorter)
                {
                    texts.push(shorter);
                }
                from = at + 3;
            }
        }
        Ok(Self { variants: texts.iter().map(|text| Variant::new(text)).collect() })
    }

    pub(crate) fn fits(&self, text: &str) -> Fit {
        if is_static(text) {
            let fits = self.variants.iter().any(|variant| variant.covers(text));
            return if fits { Fit::Must } else { Fit::No };
        }
        if self.variants.iter().any(|variant| variant.covers(text)) {
            Fit::Must
        } else if self.variants.iter().any(|variant| variant.overlaps(text)) {
            Fit::May
        } else {
            Fit::No
        }
    }
}

impl Variant {
    fn new(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' if chars.next_if_eq(&'*').is_some() => Token::Any,
                '*' => Token::Name,
                '?' => Token::One,
                c => Token::Literal(c),
            });
        }
        let literal = |token: &Token| match token {
            Token::Literal(c) => Some(*c),
            Token::One | Token::Name | Token::Any => None,
        };
        let head: String = tokens.iter().map_while(literal).collect();
        let mut tail: Vec<char> = tokens.iter().rev().map_while(literal).collect();
        tail.reverse();
        Self { tokens, head, tail: tail.into_iter().collect() }
    }

    /// Whether every possible value of the text matches.
    fn covers(&self, text: &str) -> bool {
        if !text.starts_with(self.head.as_str()) || !text.ends_with(self.tail.as_str()) {
            return false;
        }
        self.reaches(text, |token, c| match (token, c) {
            (Token::Any, _) => true,
            (Token::Name, HOLE | SPLIT | FOUND | HOME | HERE) => false,
            (Token::Name, c) => c != '/',
            (Token::One, HOLE | SPLIT | FOUND | HOME | HERE | STAR) => false,
            (Token::One, c) => c != '/',
            (Token::Literal(a), b) => a == b,
        })
    }

    /// Whether the last state is reached after the last character. `step` tells whether a token
    /// accepts a character; starred tokens keep their state.
    fn reaches(&self, text: &str, step: impl Fn(Token, char) -> bool) -> bool {
        let count = self.tokens.len();
        let mut states = vec![false; count + 1];
        states[0] = true;
        self.skip_stars(&mut states);
        for c in text.chars() {
            let mut next = vec![false; count + 1];
            for (n, token) in self.tokens.iter().enumerate() {
                if states[n] && step(*token, c) {
                    let stays = matches!(token, Token::Any | Token::Name);
                    next[if stays { n } else { n + 1 }] = true;
                }
            }
            self.skip_stars(&mut next);
            states = next;
        }
        states[count]
    }

    fn skip_stars(&self, states: &mut [bool]) {
        for (n, token) in self.tokens.iter().enumerate() {
            if states[n] && matches!(token, Token::Any | Token::Name) {
                states[n + 1] = true;
            }
        }
    }

    /// Whether some possible value of the text matches.
    fn overlaps(&self, text: &str) -> bool {
        let count = self.tokens.len();
        let mut states = vec![false; count + 1];
        states[0] = true;
        self.skip_stars(&mut states);
        let mut name_begins = true;
        for c in text.chars() {
            let mut next = vec![false; count + 1];
            match c {
                HOLE | SPLIT | FOUND | HOME | HERE => {
                    // An unknown text can reach all states from here on.
                    if let Some(first) = states.iter().position(|&reached| reached) {
                        next[first..].fill(true);
                    }
                }
                STAR => {
                    // It matches nothing, or any tokens without a slash and without a leading dot.
                    next.copy_from_slice(&states);
                    let mut first = name_begins;
                    for n in 0..count {
                        let takes = match self.tokens[n] {
                            Token::Literal('/') => false,
                            Token::Literal('.') => !(first && states[n]),
                            Token::Literal(_) | Token::One | Token::Name | Token::Any => true,
                        };
                        if next[n] && takes {
                            next[n + 1] = true;
                        }
                        first = first && next[n];
                    }
                }
                ONE => {
                    for (n, token) in self.tokens.iter().enumerate() {
                        if states[n]
                            && *token != Token::Literal('/')
                            && !(name_begins && *token == Token::Literal('.'))
                        {
                            let stays = matches!(token, Token::Any | Token::Name);
                            next[if stays { n } else { n + 1 }] = true;
                        }
                    }
                }
                c => {
                    for (n, token) in self.tokens.iter().enumerate() {
                        let takes = match token {
                            Token::Any => true,
                            Token::Name | Token::One => c != '/',
                            Token::Literal(a) => *a == c,
                        };
                        if states[n] && takes {
                            let stays = matches!(token, Token::Any | Token::Name);
                            next[if stays { n } else { n + 1 }] = true;
                        }
                    }
                }
            }
            self.skip_stars(&mut next);
            states = next;
            name_begins = c == '/';
        }
        states[count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(pattern: &str, text: &str) -> Fit {
        let text: String = text
            .chars()
            .map(|c| match c {
                '…' => HOLE,
                '⋆' => STAR,
                '¿' => ONE,
                c => c,
            })
            .collect();
        Glob::new(pattern).unwrap().fits(&text)
    }

    #[test]
    fn patterns_match_known_texts_exactly() {
        for (pattern, text) in [
            ("**", "a/b"),
            ("**", "."),
            ("src/**", "src"),
            ("src/**", "src/a/b"),
            ("**/.env", ".env"),
            ("**/.env", "a/b/.env"),
            ("*.rs", "a.rs"),
            ("a/**/z", "a/z"),
            ("a/**/z", "a/b/c/z"),
            ("/etc/ssl/**", "/etc/ssl/x"),
            ("mcp.*.read", "mcp.files.read"),
            ("?.c", "a.c"),
        ] {
            assert_eq!(fit(pattern, text), Fit::Must, "{pattern} {text}");
        }
        for (pattern, text) in [
            ("*.rs", "a/b.rs"),
            ("src/**", "srcs"),
            ("src/*", "src/a/b"),
            ("**/.env", "x.env"),
            ("?.c", "ab.c"),
            ("/etc/**", "etc/x"),
        ] {
            assert_eq!(fit(pattern, text), Fit::No, "{pattern} {text}");
        }
    }

    #[test]
    fn an_unknown_part_may_match_and_is_covered_only_by_a_full_wildcard() {
        assert_eq!(fit("**", "…"), Fit::Must);
        assert_eq!(fit("src/**", "src/⋆.rs"), Fit::Must);
        assert_eq!(fit("src/*", "src/⋆"), Fit::Must);
        assert_eq!(fit("src/a.rs", "src/⋆.rs"), Fit::May);
        assert_eq!(fit("src/?.rs", "src/⋆.rs"), Fit::May);
        assert_eq!(fit("src/?.rs", "src/¿.rs"), Fit::Must);
        assert_eq!(fit("/etc/shadow", "/etc/sh¿dow"), Fit::May);
        assert_eq!(fit("/etc/shadow", "/etc/⋆"), Fit::May);
        assert_eq!(fit("/etc/shadow", "/e⋆/⋆"), Fit::May);
        assert_eq!(fit("/etc/shadow", "…"), Fit::May);
        assert_eq!(fit("**/.env", ".⋆"), Fit::May);
        assert_eq!(fit("**/.env", "⋆"), Fit::No, "a star takes no first dot");
        assert_eq!(fit("**/.env", "a/.¿nv"), Fit::May);
        assert_eq!(fit("src/**", "…"), Fit::May);
        assert_eq!(fit("*.pem", "⋆.rs"), Fit::No);
    }
}
