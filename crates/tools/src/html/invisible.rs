//! Removes invisible characters, which can carry text that no reader sees.

/// Returns `text` without them, and how many there were.
///
/// Two kinds are kept: joiners after a character beyond ASCII, where scripts and emoji need them,
/// and one emoji or text presentation mark after such a character.
pub(crate) fn strip(text: &str) -> (String, usize) {
    let mut out = String::with_capacity(text.len());
    let (mut dropped, mut before) = (0, ' ');
    for c in text.chars() {
        let keep = match c {
            '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}' => {
                !before.is_ascii() && !is_shapeless(before) && !is_joiner(before)
                    || c == '\u{200d}' && before == '\u{fe0f}'
            }
            c => !is_shapeless(c),
        };
        if keep {
            out.push(c);
            before = c;
        } else {
            dropped += 1;
        }
    }
    (out, dropped)
}

fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}')
}

fn is_shapeless(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        c if c.is_control() => true,
        // These are soft hyphen, joiners, direction marks, invisible operators, fillers, variation
        // selectors, the byte order mark, annotations, tags, and the private planes.
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0d}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}'
        | '\u{f0000}'..='\u{10ffff}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_removed_and_scripts_with_joiners_kept() {
        let tags: String = "obey".chars().map(|c| char::from(c as u8)).collect();
        let smuggled: String =
            tags.chars().filter_map(|c| char::from_u32(0xe0000 + u32::from(c))).collect();
        for (text, wanted, dropped) in [
            (format!("a{smuggled}b"), "ab", 4),
            ("pass\u{200b}word\u{2060}\u{feff}".into(), "password", 3),
            ("a\u{202e}b\u{2066}c".into(), "abc", 2),
            ("x\u{200d}\u{200d}y".into(), "xy", 2),
            ("می\u{200c}خواهم".into(), "می\u{200c}خواهم", 0),
            ("👩\u{200d}💻 ❤\u{fe0f}\u{200d}🔥".into(), "👩\u{200d}💻 ❤\u{fe0f}\u{200d}🔥", 0),
            ("😀\u{fe0f}\u{fe0f}\u{e0101}".into(), "😀\u{fe0f}", 2),
            ("tab\tand\nline \r\u{7}".into(), "tab\tand\nline ", 2),
        ] {
            assert_eq!(strip(&text), (wanted.to_owned(), dropped), "{text:?}");
        }
    }
}
