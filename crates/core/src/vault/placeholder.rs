//! Placeholders: tokens that a command gets in place of a key.
//!
//! A placeholder looks like a key, so programs that check a key's prefix accept it. It gives access
//! to one service, for one start of one session, and only through this server. It contains no
//! secret: it has an authentication code over its fields, made with a key of this server, so
//! checking it needs no table. The caller must check that the session still runs.

use crate::ids::SessionId;
use crate::vault::service::LlmFormat;

/// Hexadecimal digits of the authentication code: 128 bits.
const CODE: usize = 32;
/// Longest placeholder, in bytes.
pub const MAX_LEN: usize = 12 + 32 + 1 + 10 + 1 + super::MAX_NAME + 1 + CODE;

/// The prefix of a credential name that requests a placeholder for a service.
pub const SERVICE: &str = "service:";

/// Prefixes of placeholders: Anthropic's programs expect `sk-ant-`, most others `sk-`.
const ANTHROPIC: &str = "sk-ant-ovm-";
const OTHERS: &str = "sk-ovm-";

/// The fields of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placeholder {
    pub session: SessionId,
    /// The start for which it was made: the attempt of a command, or the epoch of a session.
    pub start: u32,
    /// Name of the service.
    pub service: String,
}

/// Returns whether a text has the form of a placeholder, valid or not.
pub fn looks_like_one(text: &str) -> bool {
    text.starts_with(OTHERS) || text.starts_with(ANTHROPIC)
}

impl Placeholder {
    /// Returns the token, with a code made with this key. `anthropic`: with the prefix of Anthropic's keys.
    pub fn token(&self, key: &[u8; 32], anthropic: bool) -> String {
        let prefix = if anthropic { ANTHROPIC } else { OTHERS };
        let session = format!("{:032x}", self.session.as_u128());
        format!("{prefix}{session}-{}-{}-{}", self.start, self.service, self.code(key, prefix))
    }

    /// Returns the fields of `token`, if this server made it.
    pub fn of_token(token: &str, key: &[u8; 32]) -> Option<Self> {
        if token.len() > MAX_LEN || !token.is_ascii() {
            return None;
        }
        let prefix = [ANTHROPIC, OTHERS].into_iter().find(|prefix| token.starts_with(prefix))?;
        let rest = &token[prefix.len()..];
        let (rest, code) = rest.split_at_checked(rest.len().checked_sub(CODE)?)?;
        let (session, rest) = rest.strip_suffix('-')?.split_at_checked(32)?;
        let (start, service) = rest.strip_prefix('-')?.split_once('-')?;
        let digits =
            |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !digits(session) || start.is_empty() || !start.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let this = Self {
            session: SessionId::from_u128(u128::from_str_radix(session, 16).ok()?),
            start: start.parse().ok()?,
            service: service.to_owned(),
        };
        // Hashes of both are compared, so the duration reveals nothing about the code.
        let wanted = this.code(key, prefix);
        let hash = |text: &str| blake3::keyed_hash(key, text.as_bytes());
        (hash(&wanted) == hash(code) && this.token(key, prefix == ANTHROPIC) == token)
            .then_some(this)
    }

    fn code(&self, key: &[u8; 32], prefix: &str) -> String {
        let mut mac = blake3::Hasher::new_keyed(key);
        mac.update(b"placeholder-1").update(&self.session.as_u128().to_be_bytes());
        mac.update(&self.start.to_be_bytes());
        mac.update(&(prefix.len() as u64).to_be_bytes()).update(prefix.as_bytes());
        mac.update(self.service.as_bytes());
        mac.finalize().to_hex()[..CODE].to_owned()
    }
}

/// Returns the variable with a service's base URL: `OPENAI_BASE_URL` for `OPENAI_API_KEY`, and for
/// Gemini's format the one that Google's clients read. `None` if the key's variable has no usual
/// ending.
pub fn base_url_variable(key: &str, kind: Option<LlmFormat>) -> Option<String> {
    if kind == Some(LlmFormat::Gemini) {
        return Some("GOOGLE_GEMINI_BASE_URL".to_owned());
    }
    ["_API_KEY", "_AUTH_TOKEN", "_TOKEN", "_KEY"]
        .into_iter()
        .find_map(|ending| key.strip_suffix(ending))
        .filter(|stem| !stem.is_empty())
        .map(|stem| format!("{stem}_BASE_URL"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn one() -> Placeholder {
        Placeholder {
            session: SessionId::from_u128(0x0190_1234_5678_9abc_def0_1234_5678_9abc),
            start: 3,
            service: "brave_search".into(),
        }
    }

    #[test]
    fn a_placeholder_looks_like_a_key_and_names_its_service() {
        for (anthropic, begins) in [(true, "sk-ant-ovm-"), (false, "sk-ovm-")] {
            let token = one().token(&KEY, anthropic);
            assert!(token.starts_with(begins) && token.len() <= MAX_LEN, "{token}");
            assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
            assert_eq!(Placeholder::of_token(&token, &KEY), Some(one()));
            assert_eq!(Placeholder::of_token(&token, &[8; 32]), None, "another server's");
        }
    }

    #[test]
    fn a_changed_placeholder_is_refused() {
        let token = one().token(&KEY, false);
        for at in 0..token.len() {
            for other in ['0', '1', 'a', '-', '_', 'Z'] {
                let mut changed: Vec<char> = token.chars().collect();
                if changed[at] == other {
                    continue;
                }
                changed[at] = other;
                let changed: String = changed.into_iter().collect();
                assert_eq!(Placeholder::of_token(&changed, &KEY), None, "{changed}");
            }
            assert_eq!(Placeholder::of_token(&token[..at], &KEY), None);
        }
        assert_eq!(Placeholder::of_token(&format!("{token}0"), &KEY), None);
        // The same number, written in another way.
        let other = token.replacen("-3-", "-03-", 1);
        assert_eq!(Placeholder::of_token(&other, &KEY), None);
    }

    #[test]
    fn a_key_variable_has_a_variable_for_its_base_url() {
        for (key, place) in [
            ("OPENAI_API_KEY", Some("OPENAI_BASE_URL")),
            ("ANTHROPIC_AUTH_TOKEN", Some("ANTHROPIC_BASE_URL")),
            ("HUNTER_KEY", Some("HUNTER_BASE_URL")),
            ("SECRET", None),
            ("_KEY", None),
        ] {
            assert_eq!(base_url_variable(key, None).as_deref(), place, "{key}");
        }
        let of_google = base_url_variable("GEMINI_API_KEY", Some(LlmFormat::Gemini));
        assert_eq!(of_google.as_deref(), Some("GOOGLE_GEMINI_BASE_URL"));
    }

    proptest! {
        #[test]
        fn foreign_texts_are_never_placeholders(text in "(sk-ant-ovm-|sk-ovm-)?[a-z0-9_-]{0,160}") {
            prop_assert_eq!(Placeholder::of_token(&text, &KEY), None);
        }

        #[test]
        fn every_placeholder_is_parsed_back(
            session: u128, start: u32, service in "[a-z0-9][a-z0-9_-]{0,63}", anthropic: bool,
        ) {
            let one = Placeholder { session: SessionId::from_u128(session), start, service };
            let token = one.token(&KEY, anthropic);
            prop_assert_eq!(Placeholder::of_token(&token, &KEY), Some(one));
        }
    }
}
