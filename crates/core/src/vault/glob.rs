//! Patterns for names and paths.

/// Whether `pattern` matches all of `text`: `*` stands for any characters, also none. Time is at
/// most the product of the two lengths.
pub fn name(pattern: &str, text: &str) -> bool {
    run(pattern.as_bytes(), text.as_bytes(), |_| true)
}

/// Whether `pattern` matches a path, by its parts between slashes: `*` within a part stands for any
/// characters of it, and a part `**` for any number of parts, at least one.
pub fn path(pattern: &str, parts: &[String]) -> bool {
    let wanted: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    // `reach[n]`: the patterns so far may match the first `n` parts.
    let mut reach = vec![false; parts.len() + 1];
    reach[0] = true;
    for want in wanted {
        let mut next = vec![false; parts.len() + 1];
        for (at, part) in parts.iter().enumerate() {
            let from = match want {
                "**" => reach[at] || next[at],
                want => reach[at] && run(want.as_bytes(), part.as_bytes(), |_| true),
            };
            next[at + 1] = from;
        }
        reach = next;
    }
    reach[parts.len()]
}

fn run(pattern: &[u8], text: &[u8], may: impl Fn(u8) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star, and how much of the text it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            Some(_) | None => match star {
                Some((at, from)) if may(text[from]) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                Some(_) | None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Vec<String> {
        path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn a_star_matches_any_part_of_a_name() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("*", "any", true),
            ("build-*", "build-1", true),
            ("build-*", "rebuild-1", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("", "", true),
            ("", "a", false),
            ("a**c", "abc", true),
        ] {
            assert_eq!(name(pattern, text), fits, "{pattern} {text}");
        }
        // Nested stars do not make it slow.
        assert!(!name(&"a*".repeat(60), &"a".repeat(20_000).replace("aaaa", "aaab")[..59]));
    }

    #[test]
    fn in_a_path_one_star_stops_at_a_slash_and_two_do_not() {
        for (pattern, text, fits) in [
            ("/models/*", "/models/a", true),
            ("/models/*", "/models", false),
            ("/models/*", "/models/a/b", false),
            ("/models/**", "/models/a/b", true),
            ("/models/**", "/models", false),
            ("/**", "/a/b/c", true),
            ("/**/c", "/a/b/c", true),
            ("/**/c", "/c", false),
            ("/models/*:generate*", "/models/g:generateContent", true),
            ("/a", "/A", false),
        ] {
            assert_eq!(path(pattern, &parts(text)), fits, "{pattern} {text}");
        }
    }
}
