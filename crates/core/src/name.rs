//! Names of sessions, for use in commands, branches and host names.
//!
//! A name is a DNS label, so that it can be used in all of these. In a colony, sessions that have
//! not ended have different names. A name can be used again after its session has ended.

use crate::ids::SessionId;

/// Longest name, in bytes.
pub const MAX_NAME: usize = 63;

/// Returns a character that is invisible or changes the display order of others. Such characters
/// can make two names look alike. White space and control characters are checked elsewhere.
pub fn invisible(text: &str) -> Option<char> {
    text.chars().find(|c| {
        matches!(
            c,
            '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{FE00}'..='\u{FE0F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}' | '\u{FEFF}' | '\u{FFA0}'
            | '\u{FFF9}'..='\u{FFFB}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}'
        )
    })
}

/// Returns whether a character is white space that looks like a blank and is another character.
fn odd_space(c: char) -> bool {
    c.is_whitespace() && c != ' '
}

/// Checks that every character of a name is visible and shown in its place. For all names that
/// people choose and lists show.
///
/// # Errors
///
/// Returns the character with its position and code point, as words that follow the name.
pub fn check_visible(text: &str) -> Result<(), String> {
    let hidden =
        |c: char| c.is_control() || odd_space(c) || invisible(c.encode_utf8(&mut [0; 4])).is_some();
    match text.chars().enumerate().find(|(_, c)| hidden(*c)) {
        None => Ok(()),
        Some((at, c)) => Err(format!(
            "must not have the character {}, which {}: leave it out",
            placed(at, c),
            if odd_space(c) && !c.is_control() {
                "only looks like a blank"
            } else {
                "cannot be seen"
            }
        )),
    }
}

/// Checks that a name reads as what it is: [`check_visible`], and no word mixes in letters of
/// another script that look Latin.
///
/// # Errors
///
/// The same as [`check_visible`].
pub fn check_readable(text: &str) -> Result<(), String> {
    check_visible(text)?;
    let mut from = 0;
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let letters = || word.chars().filter(|c| c.is_alphabetic());
        // A word of Cyrillic or Greek is one as long as something tells it from a Latin one.
        let own = letters().any(|c| !looks_latin(c) && !c.is_ascii());
        let latin = letters().any(|c| c.is_ascii());
        for (at, c) in word.chars().enumerate() {
            if styled(c) || (looks_latin(c) && (latin || !own)) {
                return Err(format!(
                    "must not have the character {}, which looks like a Latin letter and is none: \
                     type that letter",
                    placed(from + at, c)
                ));
            }
        }
        from += word.chars().count() + 1;
    }
    Ok(())
}

/// Describes a character and its position, counted from 1.
fn placed(at: usize, c: char) -> String {
    format!("U+{:04X} at position {}", u32::from(c), at + 1)
}

/// Returns whether a character is a styled Latin letter or digit: full width, Roman numerals,
/// mathematical.
fn styled(c: char) -> bool {
    matches!(c, '\u{FF10}'..='\u{FF5A}' | '\u{2160}'..='\u{217F}' | '\u{1D400}'..='\u{1D7FF}'
        | '\u{2100}'..='\u{214F}' | '\u{24B6}'..='\u{24E9}')
}

/// Returns whether a Cyrillic, Greek or Armenian letter looks like a Latin one.
fn looks_latin(c: char) -> bool {
    "аеорсухіјѕһԁԛԝѵАВЕКМНОРСТУХІЈЅҺԌԚԜѴανορυικΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳոսօցհ".contains(c)
}

/// Checks a name that a user has chosen.
///
/// # Errors
///
/// Returns the rule that it breaks and where, as words that follow `name`.
pub fn check(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err("must have 1 to 63 characters".to_owned());
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if let Some((at, c)) = name.chars().enumerate().find(|(_, c)| !plain(*c)) {
        return Err(format!("may have small letters, digits and hyphens, not {}", shown(at, c)));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err("must begin and end with a letter or digit".to_owned());
    }
    Ok(())
}

/// Describes an invalid character: as itself if that is safe and clear, and otherwise by its code
/// point.
pub(crate) fn shown(at: usize, c: char) -> String {
    match c.is_ascii_graphic() {
        true => format!("`{c}` at position {}", at + 1),
        false => placed(at, c),
    }
}

/// Returns whether a text looks like a secret key and not like a name: a long sequence of letters
/// and digits without a word in it.
pub fn looks_like_a_key(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
        part.len() >= 20
            && part.bytes().any(|b| b.is_ascii_digit())
            && part.bytes().any(|b| b.is_ascii_alphabetic())
    })
}

/// Generates a name for a session without one. The same session and attempt always get the same
/// name.
///
/// There are some 90 million different names. If one is taken, the caller requests the next
/// attempt.
pub fn generate(session: SessionId, attempt: u32) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(b"name").update(&session.as_u128().to_be_bytes()).update(&attempt.to_be_bytes());
    let hash = hash.finalize();
    let byte = |at: usize| usize::from(hash.as_bytes()[at]);
    let (quality, animal) = (QUALITIES[byte(0) % 64], ANIMALS[byte(1) % 64]);
    let mut name = format!("{quality}-{animal}-");
    for at in 2..5 {
        name.push(char::from(ENDINGS[byte(at) % ENDINGS.len()]));
    }
    name
}

/// Returns the name of a session that was created before sessions had names.
pub fn of_old(session: SessionId) -> String {
    let id = session.to_string();
    format!("run-{}", &id[id.len() - 8..])
}

/// Characters without vowels, so that no words result, and without similar-looking characters.
const ENDINGS: &[u8] = b"23456789bcdfghjkmnpqrstvwxz";

const QUALITIES: [&str; 64] = [
    "able", "agile", "amber", "ample", "apt", "bold", "brave", "brief", "bright", "brisk", "calm",
    "clear", "clever", "cosy", "crisp", "deft", "eager", "early", "easy", "fair", "fine", "firm",
    "fleet", "fond", "frank", "fresh", "gentle", "glad", "grand", "happy", "hardy", "honest",
    "jolly", "keen", "kind", "lively", "loyal", "lucid", "merry", "mild", "neat", "nimble",
    "noble", "patient", "plain", "polite", "proud", "quick", "quiet", "rapid", "ready", "round",
    "sage", "sharp", "silver", "smart", "snug", "solid", "steady", "still", "sunny", "swift",
    "tidy", "warm",
];

const ANIMALS: [&str; 64] = [
    "ant", "badger", "bat", "bear", "beaver", "bee", "bison", "boar", "cat", "cicada", "cobra",
    "crab", "crane", "cricket", "crow", "deer", "dove", "duck", "eagle", "eel", "elk", "ermine",
    "falcon", "ferret", "finch", "fox", "frog", "gecko", "goat", "goose", "gull", "hare", "hawk",
    "heron", "hornet", "ibex", "jackdaw", "jay", "kite", "koala", "lark", "lemur", "lizard",
    "llama", "lynx", "marten", "mole", "moose", "moth", "mouse", "newt", "otter", "owl", "panda",
    "puffin", "raven", "robin", "seal", "shrew", "stork", "swan", "tern", "toad", "wren",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_invisible_character_is_named_by_its_code_point() {
        for (text, code) in [
            ("co\u{202E}redoc", "U+202E"),
            ("coder\u{200B}", "U+200B"),
            ("\u{2066}coder", "U+2066"),
            ("co\u{FEFF}der", "U+FEFF"),
            ("co\u{AD}der", "U+00AD"),
            ("coder\u{E0041}", "U+E0041"),
            ("co\u{7}der", "U+0007"),
        ] {
            let err = check_visible(text).unwrap_err();
            assert!(err.contains(code), "{err}");
        }
        for (text, wanted) in [
            ("done \u{2714}\u{FE0F}", "U+FE0F at position 7, which cannot be seen"),
            ("two\u{A0}words", "U+00A0 at position 4, which only looks like a blank"),
            ("two\u{3000}words", "U+3000 at position 4, which only looks like a blank"),
        ] {
            let err = check_visible(text).unwrap_err();
            assert!(err.contains(wanted), "{err}");
        }
        for text in ["coder", "Prüferin 2", "コーダー", "✔ done", "שלום"] {
            assert_eq!(check_readable(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn characters_that_look_like_latin_ones_are_reported_with_position_and_code_point() {
        for (text, wanted) in [
            ("c\u{43E}der", "U+043E at position 2"),
            ("the \u{441}oder", "U+0441 at position 5"),
            ("\u{440}\u{430}\u{443}", "U+0440 at position 1"),
            ("al\u{3BF}ha", "U+03BF at position 3"),
            ("\u{FF41}bc", "U+FF41 at position 1"),
            ("\u{1D41A}bc", "U+1D41A at position 1"),
        ] {
            let err = check_readable(text).unwrap_err();
            assert!(err.contains(wanted), "{err}");
        }
        for text in ["кодер 2", "тест coder", "αβγδ", "Ärger", "naïve"] {
            assert_eq!(check_readable(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn keys_and_display_names_are_distinguished() {
        for key in ["AKIAIOSFODNN7EXAMPLE", "sk-proj-4f9aXk2mQ8vLw3Zt7RbN1c", &"0a".repeat(16)] {
            assert!(looks_like_a_key(key), "{key}");
        }
        for name in ["openai_api_key", "github-token-2024", "db.production.eu-west-1", "key1"] {
            assert!(!looks_like_a_key(name), "{name}");
        }
    }

    #[test]
    fn a_forbidden_character_in_a_name_is_reported_with_its_position() {
        for (name, wanted) in [
            ("fix_login", "not `_` at position 4"),
            ("fix\u{FE0F}", "not U+FE0F at position 4"),
            ("\u{441}oder", "not U+0441 at position 1"),
        ] {
            let err = check(name).unwrap_err();
            assert!(err.contains(wanted), "{err}");
        }
    }

    #[test]
    fn a_name_is_a_dns_label_and_may_look_like_part_of_an_id() {
        for good in [
            "a",
            "build",
            "fix-42",
            "x9",
            "7zip",
            "cafe",
            "dead-beef",
            "2024",
            "bad2",
            "00ff",
            &"0".repeat(32),
            &"z".repeat(63),
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "A",
            "two words",
            "-a",
            "a-",
            "a_b",
            "ä",
            "a.b",
            "a/b",
            "..",
            "ses_0190b2c4d5e67000800000000000002a",
            &"z".repeat(64),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn generated_names_are_valid_deterministic_and_rarely_equal() {
        let session = SessionId::from_u128;
        assert_eq!(generate(session(7), 0), generate(session(7), 0));
        assert_ne!(generate(session(7), 0), generate(session(7), 1));
        let names: BTreeSet<String> = (0..10_000).map(|n| generate(session(n), 0)).collect();
        assert!(names.len() > 9_990, "{} of 10,000 differ", names.len());
        for name in &names {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let words: BTreeSet<&str> = QUALITIES.iter().chain(&ANIMALS).copied().collect();
        assert_eq!(words.len(), 128, "a word stands twice");
        let old = of_old(session(0xff));
        assert_eq!((old.as_str(), check(&old)), ("run-000000ff", Ok(())));
    }
}
