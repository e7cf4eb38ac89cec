//! Values that cannot be secrets, because masking them would hide something else.
//!
//! Written text is masked wherever it contains a secret's value. A value that is also a word of the
//! server's records, or a part of ids, hashes or times, would mask parts of them, too.

/// Words of our own records that have eight characters or more: kinds of events, states, fields.
const WORDS: &str = include_str!("words.txt");

/// Fewest characters of a value that has only digits, or only hexadecimal digits: a shorter one is
/// met in ids and hashes by chance.
pub const MIN_DIGITS: usize = 16;
/// Fewest different characters of a value.
pub const MIN_DIFFERENT: usize = 4;

/// Why a value cannot be a secret; `None` when it can be.
pub fn refused(value: &str) -> Option<&'static str> {
    let value = value.trim();
    let mut different: Vec<char> = value.chars().collect();
    different.sort_unstable();
    different.dedup();
    if different.len() < MIN_DIFFERENT {
        return Some("has fewer than four different characters");
    }
    // The number of equal characters that many ids, hashes or times may share.
    let digits = |byte: u8| byte.is_ascii_hexdigit() || b"-_:.+ TZ".contains(&byte);
    if value.len() < MIN_DIGITS && value.bytes().all(digits) {
        return Some("is short and has only digits, which ids, hashes and times are made of");
    }
    if is_time(value) {
        return Some("is a time");
    }
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let id = value.split_once('_').is_some_and(|(kind, rest)| {
        (2..=5).contains(&kind.len())
            && kind.bytes().all(|byte| byte.is_ascii_lowercase())
            && (rest.is_empty() || hex(rest))
    });
    if id {
        return Some("looks like an id of this server");
    }
    // Also where it is a part of one.
    let own = WORDS.lines().any(|word| word.contains(value));
    own.then_some("is a word that this server's own records are written in")
}

/// `2026-11-25T20:05:40`, or more or less of it.
fn is_time(value: &str) -> bool {
    let shape = b"0000-00-00T00:00:00";
    value.len() >= MIN_DIGITS
        && value.bytes().zip(shape).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b' '),
            other => byte == *other,
        })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn secret_values_that_occur_in_records_are_refused() {
        for value in [
            "namespace",
            "postgres",
            "approval.requested",
            "awaiting_input",
            "00000000",
            "0000000000000000000000000000000000000000",
            "abababababababab",
            "deadbeef",
            "20261125",
            "2026-11-25",
            "2026-11-25T20:05:40",
            "0199c0de-7c1b",
            "ses_0199c0de7c1b7d3e",
        ] {
            assert!(refused(value).is_some(), "{value}");
        }
        for value in [
            "supersecretvalue123",
            "vault-value-one-4711-abcdefgh",
            "hunter2-hunter2",
            "correct horse battery staple",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "sk-ant-api03-abcdefgh",
            "ghp_0123456789abcdefghij",
            "opensesame",
            "4111-1111-1111-1234",
        ] {
            assert_eq!(refused(value), None, "{value}");
        }
    }

    /// The description of the API has all states and fields: a new one must be in the list.
    #[test]
    fn every_word_of_the_api_is_in_the_word_list() {
        let text = include_str!("../../../../docs/openapi.json");
        let mut words = Vec::new();
        collect(&serde_json::from_str(text).expect("it is JSON"), &mut words);
        assert!(words.len() > 100, "{}", words.len());
        for word in words.iter().filter(|word| word.len() >= super::super::MIN_SECRET) {
            assert!(refused(word).is_some(), "`{word}` is missing in words.txt");
        }
    }

    fn collect(value: &Value, words: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        ("enum", Value::Array(all)) => {
                            words.extend(all.iter().filter_map(Value::as_str).map(str::to_owned));
                        }
                        ("const", Value::String(one)) => words.push(one.clone()),
                        ("properties", Value::Object(all)) => words.extend(all.keys().cloned()),
                        _ => {}
                    }
                    collect(field, words);
                }
            }
            Value::Array(all) => all.iter().for_each(|one| collect(one, words)),
            _ => {}
        }
    }
}
