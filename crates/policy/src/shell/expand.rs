//! Expands words to arguments, as far as they are known before the command runs.
//!
//! An argument is a `String` in which a few private characters represent unknown parts. They cannot
//! come from the text, because the parser refuses them.

use std::collections::HashMap;

use super::ast::{Piece, Word};

/// Any text, within one argument.
pub(crate) const HOLE: char = '\u{e000}';
/// Any text, which may also be several arguments or none.
pub(crate) const SPLIT: char = '\u{e001}';
/// The shell's `*`: any characters except a slash, and no dot at the beginning of a name.
pub(crate) const STAR: char = '\u{e002}';
/// The shell's `?`, or one character of a set.
pub(crate) const ONE: char = '\u{e003}';
/// The home directory, whichever that is.
pub(crate) const HOME: char = '\u{e004}';
/// Used alone: names that a listing of the workspace printed.
pub(crate) const FOUND: char = '\u{e005}';
/// The directory of the command, whose name is not known.
pub(crate) const HERE: char = '\u{e006}';
const BREAK: char = '\u{e007}';

/// Maximum number of arguments that braces may make from one word.
const MAX_BRACES: usize = 64;

pub(crate) fn is_private(c: char) -> bool {
    ('\u{e000}'..='\u{e00f}').contains(&c)
}

/// Whether the running command may put any text in its place.
pub(crate) fn is_open(text: &str) -> bool {
    text.contains([HOLE, SPLIT])
}

/// Whether every character is known.
pub(crate) fn is_static(text: &str) -> bool {
    !text.chars().any(is_private)
}

/// The text in the form that people read.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            HOLE | SPLIT => out.push('…'),
            STAR => out.push('*'),
            ONE => out.push('?'),
            HOME => out.push('~'),
            HERE => out.push('.'),
            FOUND => out.push_str("<listed>"),
            c => out.push(c),
        }
    }
    out
}

type Marked = (char, bool);

/// The arguments that a word becomes.
pub(crate) fn expand(word: &Word, variables: &HashMap<String, String>) -> Vec<String> {
    if let Some(text) = word.bare()
        && !text.contains(['*', '?', '[', '{', '~'])
    {
        return vec![text.to_owned()];
    }
    let mut marked: Vec<Marked> = Vec::new();
    let mut exists = false;
    for piece in &word.pieces {
        match piece {
            Piece::Text { text, quoted } => {
                exists = true;
                marked.extend(text.chars().map(|c| (c, *quoted)));
            }
            Piece::Variable { name, quoted } => {
                exists |= quoted;
                match (name.as_str(), variables.get(name)) {
                    (_, Some(value)) if *quoted => marked.extend(value.chars().map(|c| (c, true))),
                    (_, Some(value)) => {
                        let blank = |c: char| c == ' ' || c == '\t' || c == '\n';
                        marked.extend(
                            value
                                .chars()
                                .map(|c| if blank(c) { (BREAK, true) } else { (glob(c), true) }),
                        );
                    }
                    ("HOME", None) => marked.push((HOME, true)),
                    ("PWD", None) => marked.push((HERE, true)),
                    (
                        "RANDOM" | "SECONDS" | "LINENO" | "PPID" | "UID" | "EUID" | "BASHPID",
                        None,
                    ) => {
                        marked.push(('0', true));
                    }
                    (_, None) => marked.push((if *quoted { HOLE } else { SPLIT }, true)),
                }
            }
            Piece::Opaque { quoted } => marked.push((if *quoted { HOLE } else { SPLIT }, true)),
            Piece::Output { script, quoted } => match one_word_output(script) {
                Some(c) => marked.push((c, true)),
                None => marked.push((if *quoted { HOLE } else { SPLIT }, true)),
            },
            Piece::Process { .. } => marked.extend("/dev/fd/63".chars().map(|c| (c, true))),
        }
    }
    let Some(words) = braces(&marked) else { return vec![SPLIT.to_string()] };
    let mut all = Vec::new();
    for word in words {
        let text = finish(&word);
        if text.is_empty() && !exists {
            continue;
        }
        all.extend(text.split(BREAK).filter(|part| exists || !part.is_empty()).map(str::to_owned));
    }
    all
}

/// Recognizes commands that print exactly one harmless word.
fn one_word_output(script: &super::ast::Script) -> Option<char> {
    let [chain] = script.chains.as_slice() else { return None };
    let [(_, pipeline)] = chain.pipelines.as_slice() else { return None };
    let [super::ast::Command::Simple(simple)] = pipeline.as_slice() else { return None };
    let [word] = simple.words.as_slice() else { return None };
    if !simple.assigns.is_empty() || !simple.redirects.is_empty() {
        return None;
    }
    match word.bare() {
        Some("nproc") => Some('0'),
        Some("pwd") => Some(HERE),
        Some(_) | None => None,
    }
}

/// The private character for a character of a pattern.
pub(super) fn glob(c: char) -> char {
    match c {
        '*' => STAR,
        '?' | '[' => ONE,
        c => c,
    }
}

/// Handles tilde and patterns of one word after braces.
fn finish(word: &[Marked]) -> String {
    // The end of each set is searched, which would take quadratic time for many sets.
    if word.iter().filter(|&&c| c == ('[', false)).count() > MAX_BRACES {
        return SPLIT.to_string();
    }
    let mut out = String::with_capacity(word.len());
    let mut n = 0;
    if let [('~', false), rest @ ..] = word {
        match rest.first() {
            None | Some(('/', _)) => {
                out.push(HOME);
                n = 1;
            }
            // `~user` or `~+` is another directory.
            Some(_) => {
                out.push(HOLE);
                while n < word.len() && word[n].0 != '/' {
                    n += 1;
                }
            }
        }
    }
    while n < word.len() {
        match word[n] {
            ('*', false) => out.push(STAR),
            ('?', false) => out.push(ONE),
            ('[', false) => {
                // A set matches one character, if it is closed within the name.
                let close = word[n + 1..].iter().skip(1).position(|&(c, _)| c == ']');
                let slash = word[n + 1..].iter().position(|&(c, _)| c == '/');
                match (close, slash) {
                    (Some(close), slash) if slash.is_none_or(|slash| slash > close + 1) => {
                        out.push(ONE);
                        n += close + 2;
                    }
                    _ => out.push('['),
                }
            }
            (c, _) => out.push(c),
        }
        n += 1;
    }
    out
}

/// Expands braces; `None` if that makes too many words.
fn braces(word: &[Marked]) -> Option<Vec<Vec<Marked>>> {
    if !word.contains(&('{', false)) {
        return Some(vec![word.to_vec()]);
    }
    if word.iter().filter(|&&c| c == ('{', false)).count() > MAX_BRACES {
        return None;
    }
    let mut done = Vec::new();
    let mut open = vec![word.to_vec()];
    // Each round expands the first pair of one word.
    let mut rounds = 0;
    while let Some(word) = open.pop() {
        rounds += 1;
        if rounds > 4 * MAX_BRACES || open.len() + done.len() > MAX_BRACES {
            return None;
        }
        match first_braces(&word) {
            None => done.push(word),
            Some((from, to, parts)) => {
                for part in parts?.into_iter().rev() {
                    let mut next = word[..from].to_vec();
                    next.extend(part);
                    next.extend_from_slice(&word[to + 1..]);
                    open.push(next);
                }
            }
        }
    }
    Some(done)
}

type Parts = Option<Vec<Vec<Marked>>>;

/// The first pair of braces with an effect: from, to, and its parts (`None`: too many).
fn first_braces(word: &[Marked]) -> Option<(usize, usize, Parts)> {
    let mut from = 0;
    while let Some(ahead) = word[from..].iter().position(|&c| c == ('{', false)) {
        let start = from + ahead;
        from = start + 1;
        let mut depth = 0_u32;
        let mut commas = Vec::new();
        for (n, &c) in word.iter().enumerate().skip(start) {
            match c {
                ('{', false) => depth += 1,
                ('}', false) => {
                    depth -= 1;
                    if depth == 0 {
                        let inner = &word[start + 1..n];
                        if commas.is_empty() {
                            match range(inner) {
                                Some(parts) => return Some((start, n, parts)),
                                None => break,
                            }
                        }
                        let mut parts = Vec::new();
                        let mut last = start + 1;
                        for comma in commas.into_iter().chain([n]) {
                            parts.push(word[last..comma].to_vec());
                            last = comma + 1;
                        }
                        return Some((start, n, Some(parts)));
                    }
                }
                (',', false) if depth == 1 => commas.push(n),
                _ => {}
            }
        }
    }
    None
}

/// Expands `{1..9}` and `{a..f}`. The outer `None` means that it is no range.
fn range(inner: &[Marked]) -> Option<Parts> {
    let text: String = inner.iter().map(|&(c, _)| c).collect();
    let (from, to) = text.split_once("..")?;
    if let (Ok(from), Ok(to)) = (from.parse::<i64>(), to.parse::<i64>()) {
        let (low, high) = (from.min(to), from.max(to));
        if high.saturating_sub(low) >= i64::try_from(MAX_BRACES).unwrap_or(64) {
            return Some(None);
        }
        let part = |n: i64| n.to_string().chars().map(|c| (c, true)).collect();
        return Some(Some((low..=high).map(part).collect()));
    }
    let one = |text: &str| {
        let mut chars = text.chars();
        chars.next().filter(|c| c.is_ascii_alphabetic() && chars.next().is_none())
    };
    match (one(from), one(to)) {
        (Some(from), Some(to)) => {
            let (low, high) = (from.min(to), from.max(to));
            Some(Some((low..=high).map(|c| vec![(c, true)]).collect()))
        }
        // It has a step, or is something unusual.
        _ if from.parse::<i64>().is_ok() => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ast::Command;
    use super::*;

    fn args(text: &str) -> Vec<String> {
        let script = super::super::parse::parse(text, 0).unwrap();
        let [(_, pipeline)] = script.chains[0].pipelines.as_slice() else { panic!("{text}") };
        let Command::Simple(simple) = &pipeline[0] else { panic!("{text}") };
        let values = HashMap::from([("two".to_owned(), "a b".to_owned())]);
        simple.words.iter().flat_map(|word| expand(word, &values)).map(|arg| shown(&arg)).collect()
    }

    #[test]
    fn quotes_escapes_and_braces_are_expanded_as_in_the_shell() {
        assert_eq!(args(r#"a'b'"c"\d"#), ["abcd"]);
        assert_eq!(args("{a,b}{1..3}"), ["a1", "a2", "a3", "b1", "b2", "b3"]);
        assert_eq!(args("{rm,-rf,'x y'}"), ["rm", "-rf", "x y"]);
        assert_eq!(args(r"$'\x72\155'"), ["rm"]);
        assert_eq!(args("r\\\nm"), ["rm"]);
        assert_eq!(args("'' a"), ["", "a"]);
        assert_eq!(args("{} {a} {a,{b,c}}x"), ["{}", "{a}", "ax", "bx", "cx"]);
    }

    #[test]
    fn unknown_programs_are_marked() {
        assert_eq!(args("x \"$A\" $A a$(b)c `d`"), ["x", "…", "…", "a…c", "…"]);
        assert_eq!(
            args("x $two \"$two\" *.rs '*' [ab]c ~/x \"~/x\""),
            ["x", "a", "b", "a b", "*.rs", "*", "?c", "~/x", "~/x"]
        );
        assert_eq!(args("{1..1000}"), ["…"]);
        assert_eq!(args("j$(nproc) $?"), ["j0", "0"]);
    }
}
