//! Parses JSON from outside: from agents' programs, models and MCP servers.
//!
//! Programs that count UTF-16 units may cut a text between the two surrogates of a character
//! (`"face \ud83d"`). Strict parsers refuse the whole document for it, so an answer, a price or a
//! question would be lost. Here an unpaired surrogate becomes U+FFFD, and so does invalid UTF-8.
//! All other mistakes are errors. A strictly valid document is parsed only once.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bytes of an escape such as `\ud83d`.
pub const ESCAPE: usize = 6;

/// Parses a document.
///
/// # Errors
///
/// If it is not JSON, or is no valid `T`.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|err| match mended(text) {
        Cow::Borrowed(_) => Err(err),
        Cow::Owned(mended) => serde_json::from_slice(&mended),
    })
}

/// Returns the document with U+FFFD in place of unpaired surrogates and invalid UTF-8, or the
/// unchanged document.
pub fn mended(text: &[u8]) -> Cow<'_, [u8]> {
    let mut text = match String::from_utf8_lossy(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    for half in halves(&text) {
        text.to_mut()[half.at..half.at + ESCAPE].copy_from_slice(br"\ufffd");
    }
    text
}

/// The escape of an unpaired surrogate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Position of its backslash.
    pub at: usize,
    /// Whether it is the first of a pair.
    pub is_first: bool,
}

/// Returns all unpaired surrogates of a document.
pub fn halves(text: &[u8]) -> Vec<Half> {
    let unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..at + ESCAPE)?.strip_prefix(br"\u")?;
        // `from_str_radix` takes a sign.
        let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
        u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    };
    let is_second = |at| unit(at).is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
    let mut halves = Vec::new();
    let mut at = 0;
    while let Some(next) = text.get(at..).and_then(|rest| rest.iter().position(|b| *b == b'\\')) {
        at += next;
        match unit(at) {
            Some(0xd800..0xdc00) if is_second(at + ESCAPE) => at += 2 * ESCAPE,
            Some(unit @ 0xd800..0xe000) => {
                halves.push(Half { at, is_first: unit < 0xdc00 });
                at += ESCAPE;
            }
            // Also of an escaped backslash, which starts no escape.
            Some(_) | None => at += 2,
        }
    }
    halves
}

/// Returns a count, also in the form `1000.0`. `None` for other values: `-5`, `12.5`, `"many"`.
pub fn count(value: &Value) -> Option<u64> {
    let whole = |n: &f64| n.fract() == 0.0 && (0.0..9e15).contains(n);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and bounded by the line above"
    )]
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|n| n as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn half_a_character_becomes_the_replacement_character() {
        for (text, want) in [
            (r#""left \ud83d right""#, "left \u{fffd} right"),
            (r#""\ud83d\ude00""#, "\u{1f600}"),
            (r#""\ud83d\ud83d\ude00\ude00""#, "\u{fffd}\u{1f600}\u{fffd}"),
            (r#""\uD92C""#, "\u{fffd}"),
            (r#""\ud83d\n\ude00""#, "\u{fffd}\n\u{fffd}"),
            (r#""\\ud83d \\\ud83d""#, "\\ud83d \\\u{fffd}"),
        ] {
            assert_eq!(read::<String>(text.as_bytes()).unwrap(), want, "{text}");
        }
        let value: Value = read(br#"{"a\udc00":["x\ud83d","y"]}"#).unwrap();
        assert_eq!(value, json!({"a\u{fffd}": ["x\u{fffd}", "y"]}));
        assert_eq!(read::<String>(b"\"a\xffb\"").unwrap(), "a\u{fffd}b");
    }

    #[test]
    fn invalid_json_stays_an_error() {
        for text in [
            "",
            "{",
            r#"{"a":"\ud83d"#,
            r#""\ud8""#,
            r#""\ud83d" x"#,
            r#"\ud83d"#,
            "{\"a\":\u{fffd}}",
        ] {
            assert!(read::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_as_a_float() {
        for (value, want) in [
            (json!(7), Some(7)),
            (json!(1000.0), Some(1000)),
            (json!(1e9), Some(1_000_000_000)),
            (json!(u64::MAX), Some(u64::MAX)),
            (json!(0.0), Some(0)),
            (json!(-5), None),
            (json!(12.5), None),
            (json!(1e300), None),
            (json!("many"), None),
            (Value::Null, None),
        ] {
            assert_eq!(count(&value), want, "{value}");
        }
    }

    proptest! {
        #[test]
        fn lenient_parsing_never_panics_and_reads_valid_json_like_the_strict_parser(text in r#"(\\u[d][89cdCD]0[0-9]|\\u|\\|"|[a-z{}:]|ü){0,30}"#) {
            for document in [text.clone(), json!({"a": text}).to_string()] {
                let tolerant = read::<Value>(document.as_bytes());
                if let Ok(strict) = serde_json::from_str::<Value>(&document) {
                    prop_assert_eq!(tolerant.unwrap(), strict);
                }
            }
            let quoted = format!("\"{}\"", text.replace(['"', '\\'], ""));
            prop_assert!(read::<String>(quoted.as_bytes()).is_ok());
        }
    }
}
