//! How a text looks after the usual encodings: for finding a secret that somebody encoded.

/// Forms shorter than this many bytes would be found in ordinary text.
const MIN_FORM_BYTES: usize = 8;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// `text` in hexadecimal, in percent-encoding and in Base64, without those that are `text` itself
/// or too short to tell anything.
///
/// Three forms of Base64, one for each position of `text` in a group of three bytes of a longer
/// text, without the characters at the ends that depend on the neighbours; in both alphabets. Not
/// covered: encodings of encodings, and Base64 or hexadecimal with line ends or other marks in it.
pub fn forms(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut all = vec![hex(bytes, b"0123456789abcdef"), hex(bytes, b"0123456789ABCDEF")];
    for digits in [b"0123456789ABCDEF", b"0123456789abcdef"] {
        all.push(percent(bytes, digits));
    }
    for alphabet in [STANDARD, URL_SAFE] {
        all.extend((0..3).map(|before| base64_within(bytes, before, alphabet)));
    }
    all.retain(|form| form != text && form.len() >= MIN_FORM_BYTES);
    all.sort();
    all.dedup();
    all
}

fn hex(bytes: &[u8], digits: &[u8; 16]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}

fn percent(bytes: &[u8], digits: &[u8; 16]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[*byte], digits));
        }
    }
    out
}

/// The certain characters of the Base64 of a text with `bytes` after `before` bytes (modulo 3).
fn base64_within(bytes: &[u8], before: usize, alphabet: &[u8; 64]) -> String {
    let mut padded = vec![0; before];
    padded.extend_from_slice(bytes);
    let mut out = String::new();
    for group in padded.chunks(3) {
        let at = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for shift in [18, 12, 6, 0].into_iter().take(group.len() + 1) {
            out.push(char::from(alphabet[(bits >> shift & 63) as usize]));
        }
    }
    if !padded.len().is_multiple_of(3) {
        out.pop();
    }
    let shared = match before {
        0 => 0,
        1 => 2,
        _ => 3,
    };
    out.split_off(shared.min(out.len()))
}

/// The certain characters of `bytes` in digits of `bits` bits each (6 is Base64, 5 is Base32) after
/// `before` other bytes: the digits that do not depend on neighbours.
pub(crate) fn digits_within(bytes: &[u8], before: usize, bits: usize, alphabet: &[u8]) -> Vec<u8> {
    let first = (before * 8).div_ceil(bits);
    let shared = first * bits - before * 8;
    let mut out = Vec::with_capacity(bytes.len() * 8 / bits + 1);
    let (mut sum, mut have) = (0_usize, 0);
    for (n, byte) in bytes.iter().enumerate() {
        sum = sum << 8 | usize::from(*byte);
        // Fewer than a digit's bits, so all of them in the first byte.
        have += if n == 0 { 8 - shared } else { 8 };
        while have >= bits {
            have -= bits;
            out.push(alphabet[sum >> have & ((1 << bits) - 1)]);
        }
        sum &= (1 << have) - 1;
    }
    out
}

/// Reads Base64 in the standard alphabet, padded or not; `None` for any other text.
pub fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut have) = (0_u32, 0);
    for byte in text.bytes() {
        let digit = STANDARD.iter().position(|have| *have == byte)?;
        bits = bits << 6 | u32::try_from(digit).ok()?;
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push(u8::try_from(bits >> have & 0xff).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_match_those_of_other_programs() {
        // From coreutils: `printf 'xhunter2!pw' | base64` and so on.
        let all = forms("hunter2!pw");
        for wanted in [
            "68756e746572322170 77".replace(' ', ""),
            "68756E7465723221".to_owned() + "7077",
            "hunter2%21pw".into(),
            "aHVudGVyMiFwd".into(),
            "h1bnRlcjIhcH".into(),
            "odW50ZXIyIXB3".into(),
        ] {
            assert!(all.contains(&wanted), "{wanted} in {all:?}");
        }
    }

    #[test]
    fn a_text_is_found_in_every_encoding_of_a_text_that_contains_it() {
        let secret = "s3cr3t-v4lue?";
        let forms = forms(secret);
        for before in 0..6 {
            for after in 0..4 {
                let whole = format!("{}{secret}{}", "x".repeat(before), "~".repeat(after));
                let encoded = base64_within(whole.as_bytes(), 0, STANDARD);
                assert!(forms.iter().any(|form| encoded.contains(form)), "{encoded}");
            }
        }
        assert!(!forms.iter().any(|form| form == secret));
    }

    #[test]
    fn base64_is_read_back() {
        assert_eq!(base64_decode("dXNlcjpwYXNz").as_deref(), Some(&b"user:pass"[..]));
        assert_eq!(base64_decode("dXNlcjpwYXNzdw==").as_deref(), Some(&b"user:passw"[..]));
        assert_eq!(base64_decode("no base64"), None);
    }
}
