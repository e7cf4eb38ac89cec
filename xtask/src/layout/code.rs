//! Rust source with comments and literals blanked, so that a word search sees only code.

/// `source` with every comment, string and character literal replaced by spaces.
///
/// Line breaks stay where they are, so that line numbers keep their meaning. It is a scanner,
/// not a parser: it knows nested block comments, escapes and raw strings, and tells a lifetime
/// from a character.
pub fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < chars.len() {
        let end = literal_or_comment(&chars, i);
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

/// The index after the comment or literal that begins at `i`; `i` itself when none does.
fn literal_or_comment(chars: &[char], i: usize) -> usize {
    let at = |n: usize| chars.get(n).copied().unwrap_or('\0');
    match (at(i), at(i + 1)) {
        ('/', '/') => find(chars, i, |j| at(j) == '\n'),
        ('/', '*') => block_comment(chars, i),
        ('"', _) => string(chars, i + 1),
        ('r', '"' | '#') if i == 0 || !is_word(at(i - 1)) || at(i - 1) == 'b' => {
            raw_string(chars, i)
        }
        // 'x' and '\n' are characters, 'a alone is a lifetime.
        ('\'', '\\') => find(chars, i + 3, |j| at(j) == '\'') + 1,
        ('\'', _) if at(i + 2) == '\'' => i + 3,
        _ => i,
    }
    .min(chars.len())
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start, 0_usize);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

fn string(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn raw_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return start; // `r#type`, a raw identifier
    }
    let body = start + 2 + hashes;
    let ends = |j: usize| {
        chars[j] == '"' && chars[j + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    find(chars, body, ends) + 1 + hashes
}

fn find(chars: &[char], from: usize, wanted: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&j| wanted(j)).unwrap_or(chars.len())
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The lines, counted from 1, on which `word` stands as a whole word.
///
/// `word` may contain punctuation (`std::fs`); only its two ends are looked at.
pub(super) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let stands = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    code.lines().enumerate().filter(|(_, line)| stands(line)).map(|(n, _)| n + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blanked_and_code_is_kept() {
        for (source, left) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("un\"safe") + g"#, "f(          ) + g"),
            (r##"r#"a " b"# + c"##, "           + c"),
            ("r#type", "r#type"),
            ("br\"x\" y", "b     y"),
            ("'\\'' + '\"' + 'a' + &'a x", "     +     +     + &'a x"),
            ("for x in y { \"", "for x in y {  "),
        ] {
            assert_eq!(code_only(source).trim_end(), left.trim_end(), "{source}");
        }
    }

    #[test]
    fn a_scan_of_invalid_source_terminates() {
        for source in ["/* ", "\"\\", "r#\"", "'\\", "r", "'", "/*/"] {
            assert_eq!(code_only(source).chars().count(), source.chars().count(), "{source}");
        }
    }

    #[test]
    fn only_whole_words_are_found() {
        let code = "unsafe {}\nunsafe_code\nnot_unsafe\nx.unsafe;";
        assert_eq!(lines_with(code, "unsafe"), [1, 4]);
    }
}
