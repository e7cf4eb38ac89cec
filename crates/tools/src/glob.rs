//! Globs over paths, for `list_files` and the file labels.

/// Whether `text` matches `glob`: `?` matches one character, `*` any except a slash, `**` any at
/// all (and `**/` also nothing). The number of steps is at most the product of the two lengths.
pub(crate) fn matches(glob: &str, text: &str) -> bool {
    enum Part {
        Char(char),
        One,
        Many,
        Deep,
        /// `**/`: matches nothing, or anything that ends in a slash.
        Dirs,
    }
    let mut parts = Vec::new();
    let mut rest = glob.strip_prefix("./").unwrap_or(glob);
    while let Some(c) = rest.chars().next() {
        let (part, used) = match c {
            '*' if rest.starts_with("**/") => (Part::Dirs, 3),
            '*' if rest.starts_with("**") => (Part::Deep, 2),
            '*' => (Part::Many, 1),
            '?' => (Part::One, 1),
            c => (Part::Char(c), c.len_utf8()),
        };
        parts.push(part);
        rest = &rest[used..];
    }
    // For each prefix of `parts`, whether it matches the text so far.
    let mut now = vec![false; parts.len() + 1];
    now[0] = true;
    skip_after(&parts, &mut now, true);
    for c in text.chars() {
        let mut next = vec![false; parts.len() + 1];
        for (i, part) in parts.iter().enumerate() {
            if !now[i] {
                continue;
            }
            match part {
                Part::Char(wanted) => next[i + 1] |= *wanted == c,
                Part::One => next[i + 1] |= c != '/',
                Part::Many => next[i] |= c != '/',
                Part::Deep | Part::Dirs => next[i] = true,
            }
        }
        skip_after(&parts, &mut next, c == '/');
        now = next;
    }
    return now[parts.len()];

    fn skip_after(parts: &[Part], states: &mut [bool], slash: bool) {
        for (i, part) in parts.iter().enumerate() {
            let over = match part {
                Part::Many | Part::Deep => true,
                Part::Dirs => slash,
                Part::Char(_) | Part::One => false,
            };
            if over && states[i] {
                states[i + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_like_a_shell_with_globstar() {
        for (glob, text, wanted) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "main.rss", false),
            ("*", "", true),
            ("?", "é", true),
            ("?", "/", false),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**/*.rs", "src/a/b.rs", true),
            ("src/**/*.rs", "src/b.rs", true),
            ("src/**/*.rs", "srcx/b.rs", false),
            ("**/b.rs", "b.rs", true),
            ("**/b.rs", "ab.rs", false),
            ("**/b.rs", "x/ab.rs", false),
            ("src/**", "src/a/b", true),
            ("./src/*", "src/a", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(matches(glob, text), wanted, "{glob} on {text}");
        }
    }

    #[test]
    fn matching_a_hostile_glob_terminates() {
        assert!(!matches(&"*a".repeat(500), &"a".repeat(400)));
    }
}
