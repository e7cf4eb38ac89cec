//! Masks secrets in everything that is about to be written.
//!
//! Two kinds of things are masked: secrets that the store was told about, wherever they stand,
//! and texts that have the shape of a well-known credential. Each becomes `[redacted:KIND]`.
//! Keys of objects are kept, numbers are not texts, and a mask is never looked into again.
//!
//! What it cannot see: a secret without a known shape that nobody told it about, and a secret
//! that was encoded (base64, hex), split over two strings, or written as the key of an object.
//!
//! Masking runs until it finds nothing more, so a second run changes nothing. It ends because
//! every round shortens the text outside masks. The usual text costs one search by a compiled
//! automaton and no allocation.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use regex::Regex;
use serde_json::Value;

/// Known secrets shorter than this many bytes are not masked: they would hide ordinary words.
pub const MIN_SECRET_BYTES: usize = 8;

/// What each branch of [`PATTERN`] begins with, and the kind of secret that it finds.
const KINDS: [(&str, &str); 21] = [
    ("sk-ant-", "anthropic-key"),
    ("sk-", "openai-key"),
    ("gh", "github-token"),
    ("github_pat_", "github-token"),
    ("AKIA", "aws-key-id"),
    ("ASIA", "aws-key-id"),
    ("xox", "slack-token"),
    ("xapp-", "slack-token"),
    ("AIza", "google-key"),
    ("glpat-", "gitlab-token"),
    ("hf_", "huggingface-token"),
    ("sk_", "stripe-key"),
    ("rk_", "stripe-key"),
    ("eyJ", "jwt"),
    ("Bearer", BEARER),
    ("bearer", BEARER),
    ("BEARER", BEARER),
    ("-----BEGIN", "private-key"),
    ("ovk_", "api-key"),
    ("ova_", "admin-token"),
    ("ovs_", "session-token"),
];

const BEARER: &str = "bearer";

/// Every branch begins with a literal, which is what the automaton searches for; a branch that
/// began with a class would make every text slow. There are no groups: finding what a group
/// holds is many times slower than finding where the match ends, and the kind is known from how
/// the match begins.
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let pem_begin = "-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
    let pem_end = "-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
    // What stands inside a PEM block, real or written as a JSON string.
    let pem_body = r"[A-Za-z0-9+/=:,.\\\-\x20\t\r\n]";
    let words = [
        "sk-ant-[A-Za-z0-9_-]{16,}",
        "sk-[A-Za-z0-9_-]{20,}",
        "gh[pousr]_[A-Za-z0-9]{20,}",
        "github_pat_[A-Za-z0-9_]{20,}",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}(?-u:\b)",
        "xox[abeoprs]-[A-Za-z0-9-]{10,}",
        "xapp-[A-Za-z0-9-]{10,}",
        "AIza[A-Za-z0-9_-]{35}",
        "glpat-[A-Za-z0-9_-]{20,}",
        "hf_[A-Za-z0-9]{30,}",
        "[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",
        r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
        r"(?:Bearer|bearer|BEARER)[\x20\t]+[A-Za-z0-9._~+/=-]{16,}",
        "ov[kas]_[A-Za-z0-9_-]{16,}",
    ];
    let mut branches: Vec<String> =
        words.into_iter().map(|word| format!(r"(?-u:\b){word}")).collect();
    branches.push(format!("{pem_begin}{pem_body}*?{pem_end}"));
    // Cut off before its end: what looks like a body goes with it.
    branches.push(format!("{pem_begin}{pem_body}*"));
    Regex::new(&branches.join("|")).expect("the pattern is a constant")
});

/// The masks that we write, and no other text in brackets: a secret may look like one.
static MASK: LazyLock<Regex> = LazyLock::new(|| {
    let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).chain([KNOWN]).collect();
    Regex::new(&format!(r"\[redacted:(?:{})\]", kinds.join("|")))
        .expect("the pattern is a constant")
});

/// The kind of a secret that the store was told about.
const KNOWN: &str = "secret";

/// Masks secrets. Cheap to share, and it learns while others use it.
#[derive(Debug, Default)]
pub struct Redactor {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    secrets: BTreeSet<String>,
    pattern: Option<Arc<Regex>>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Their number only.
        f.debug_struct("Known").field("secrets", &self.secrets.len()).finish()
    }
}

impl Redactor {
    /// Knows `secrets` from the start.
    pub fn new(secrets: &[String]) -> Self {
        let this = Self::default();
        for secret in secrets {
            this.learn(secret);
        }
        this
    }

    /// Masks `secret` from now on. `false` when it cannot be: it is shorter than
    /// [`MIN_SECRET_BYTES`], or part of a mask itself.
    pub fn learn(&self, secret: &str) -> bool {
        let secret = secret.trim();
        let in_a_mask = KINDS
            .iter()
            .map(|(_, kind)| kind)
            .chain([&KNOWN])
            .any(|kind| mask(kind).contains(secret));
        if secret.len() < MIN_SECRET_BYTES || in_a_mask {
            return false;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = known.secrets.insert(secret.to_owned());
        // As it stands inside a JSON text that is itself a string.
        let quoted = Value::from(secret).to_string();
        new |= known.secrets.insert(quoted[1..quoted.len() - 1].to_owned());
        if new {
            // The longest first, so that one that contains another hides it whole.
            let mut longest: Vec<&String> = known.secrets.iter().collect();
            longest.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
            let texts: Vec<String> = longest.into_iter().map(|text| regex::escape(text)).collect();
            match regex::RegexBuilder::new(&texts.join("|")).size_limit(64 << 20).build() {
                Ok(pattern) => known.pattern = Some(Arc::new(pattern)),
                Err(err) => {
                    known.secrets.remove(secret);
                    tracing::error!(error = %err, "a secret cannot be masked: too large");
                    return false;
                }
            }
        }
        true
    }

    /// Masks in every string inside `value`; keys of objects are kept.
    pub fn value(&self, value: &mut Value) {
        let known = self.pattern();
        redact_value(known.as_deref(), value);
    }

    /// Masks in `text`; answers whether anything was masked.
    pub fn text(&self, text: &mut String) -> bool {
        redact_text(self.pattern().as_deref(), text)
    }

    /// Masks in the text, if there is one.
    pub(crate) fn option(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            self.text(text);
        }
    }

    fn pattern(&self) -> Option<Arc<Regex>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).pattern.clone()
    }
}

fn mask(kind: &str) -> String {
    format!("[redacted:{kind}]")
}

fn redact_value(known: Option<&Regex>, value: &mut Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            redact_text(known, text);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_value(known, item)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| redact_value(known, field));
        }
    }
}

fn redact_text(known: Option<&Regex>, text: &mut String) -> bool {
    let mut changed = false;
    // Each round masks at least one byte of what is outside masks, so this ends.
    while let Some(masked) = round(known, text) {
        *text = masked;
        changed = true;
    }
    changed
}

/// One pass over the parts between masks; `None` when there is nothing to mask.
fn round(known: Option<&Regex>, text: &str) -> Option<String> {
    if !PATTERN.is_match(text) && !known.is_some_and(|known| known.is_match(text)) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut changed = false;
    let mut from = 0;
    for found in MASK.find_iter(text) {
        changed |= part(known, &text[from..found.start()], &mut out);
        out.push_str(found.as_str());
        from = found.end();
    }
    changed |= part(known, &text[from..], &mut out);
    changed.then_some(out)
}

/// Appends one part without masks to `out`, masked by the known secrets, or else by shape.
fn part(known: Option<&Regex>, text: &str, out: &mut String) -> bool {
    if let Some(known) = known
        && known.is_match(text)
    {
        // The shapes are looked for in the next round, around the masks that this one makes.
        out.push_str(&known.replace_all(text, mask(KNOWN)));
        return true;
    }
    let mut from = 0;
    let before = out.len();
    for found in PATTERN.find_iter(text) {
        let (kind, secret) = secret_of(found.as_str());
        if plausible(kind, secret) {
            out.push_str(&text[from..found.end() - secret.len()]);
            out.push_str(&mask(kind));
            from = found.end();
        }
    }
    out.push_str(&text[from..]);
    out[before..] != *text
}

/// The kind of a match, and the part of it to mask, which is its end.
fn secret_of(found: &str) -> (&'static str, &str) {
    let kind = KINDS
        .iter()
        .find_map(|(prefix, kind)| found.starts_with(prefix).then_some(*kind))
        .expect("every branch of the pattern begins with one of these");
    let secret = match kind {
        BEARER => found[BEARER.len()..].trim_start_matches([' ', '\t']),
        _ => found,
    };
    (kind, secret)
}

/// Tells keys from words: `sk-folding-cube-container` and `Bearer responsibilities` are words.
fn plausible(kind: &str, secret: &str) -> bool {
    match kind {
        "openai-key" | BEARER | "api-key" | "admin-token" | "session-token" => {
            let longest = secret.split(['-', '_', '.', '/']).map(str::len).max().unwrap_or(0);
            longest >= 24 || secret.bytes().any(|byte| byte.is_ascii_digit())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A key-like tail, put together here so that no scanner takes this file for a leak.
    const TAIL: &str = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6";

    fn masked(text: &str) -> String {
        let mut text = text.to_owned();
        Redactor::default().text(&mut text);
        text
    }

    #[test]
    fn each_known_shape_is_masked_where_it_stands() {
        let upper = TAIL.to_uppercase();
        for (secret, kind) in [
            (format!("sk-{TAIL}"), "openai-key"),
            (format!("sk-proj-{TAIL}"), "openai-key"),
            (format!("sk-ant-api03-{TAIL}"), "anthropic-key"),
            (format!("ghp_{TAIL}"), "github-token"),
            (format!("github_pat_{TAIL}_{TAIL}"), "github-token"),
            (format!("AKIA{}", &upper[..16]), "aws-key-id"),
            (format!("xoxb-{TAIL}"), "slack-token"),
            (format!("AIza{TAIL}abc"), "google-key"),
            (format!("glpat-{TAIL}"), "gitlab-token"),
            (format!("hf_{TAIL}"), "huggingface-token"),
            (format!("sk_live_{TAIL}"), "stripe-key"),
            (format!("eyJ{TAIL}.eyJ{TAIL}.{TAIL}"), "jwt"),
            (format!("ovk_{TAIL}"), "api-key"),
            (format!("ova_{TAIL}"), "admin-token"),
            (format!("ovs_{TAIL}"), "session-token"),
        ] {
            assert_eq!(
                masked(&format!("export KEY='{secret}' # mine")),
                format!("export KEY='[redacted:{kind}]' # mine")
            );
            assert_eq!(masked(&secret), format!("[redacted:{kind}]"));
        }
    }

    #[test]
    fn the_token_after_bearer_is_masked_and_the_word_kept() {
        let header = format!("authorization: Bearer {TAIL}\r\naccept: */*");
        assert_eq!(masked(&header), "authorization: Bearer [redacted:bearer]\r\naccept: */*");
    }

    #[test]
    fn private_keys_are_masked_whole_even_when_cut_off() {
        let (begin, end) = ("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----");
        let block = format!("{begin}\nProc-Type: 4,ENCRYPTED\n\n{TAIL}\n{TAIL}==\n{end}");
        assert_eq!(
            masked(&format!("key: {block}\nthen ls")),
            "key: [redacted:private-key]\nthen ls"
        );
        assert_eq!(masked(&format!("{begin}\n{TAIL}\n{TAIL}")), "[redacted:private-key]");
        let escaped = block.replace('\n', "\\n");
        assert_eq!(masked(&format!("\"{escaped}\"")), "\"[redacted:private-key]\"");
        let public = block.replace("PRIVATE", "PUBLIC");
        assert_eq!(masked(&public), public);
    }

    #[test]
    fn ordinary_words_are_left_alone() {
        for text in [
            "risk-management-framework-2024-edition",
            "class='sk-folding-cube-container'",
            "the bearer responsibilities of a node",
            "ovs_vswitchd_interface_name",
            "ghp_short",
            "AKIA is a prefix",
            "task-0123456789012345678901234",
        ] {
            assert_eq!(masked(text), text);
        }
    }

    #[test]
    fn learned_secrets_are_masked_in_values_and_keys_of_objects_are_kept() {
        let redactor = Redactor::new(&["hunter2-hunter2".into()]);
        assert!(!redactor.learn("short"), "too short to mask");
        assert!(!redactor.learn("redacted:s"), "part of a mask");
        assert!(redactor.learn("two\nlines \"quoted\""));
        let mut value = json!({
            "hunter2-hunter2": ["a hunter2-hunter2 b", 7, null],
            "raw": "{\"x\":\"two\\nlines \\\"quoted\\\"\"}",
            "plain": "two\nlines \"quoted\"",
        });
        redactor.value(&mut value);
        assert_eq!(
            value,
            json!({
                "hunter2-hunter2": ["a [redacted:secret] b", 7, null],
                "raw": "{\"x\":\"[redacted:secret]\"}",
                "plain": "[redacted:secret]",
            })
        );
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }

    #[test]
    fn a_long_ordinary_text_is_searched_in_linear_time() {
        // A quadratic pattern would need hours for these.
        for unit in ["-----BEGIN PRIVATE KEY----- ", "sk-", "eyJaaaaaaaaaa.", "Bearer ", "ghp_a "] {
            let text = unit.repeat((1 << 17) / unit.len());
            let _ = masked(&text);
        }
    }

    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("sk-".to_owned()),
            Just("sk-ant-".to_owned()),
            Just("ghp_".to_owned()),
            Just("AKIA".to_owned()),
            Just("Bearer ".to_owned()),
            Just("eyJ".to_owned()),
            Just(".".to_owned()),
            Just("[redacted:".to_owned()),
            Just("]".to_owned()),
            Just("-----BEGIN PRIVATE KEY-----".to_owned()),
            Just("-----END PRIVATE KEY-----".to_owned()),
            Just("hunter2-hunter2".to_owned()),
            Just("] 12345678".to_owned()),
            "[A-Z0-9]{1,24}",
            "[a-z0-9]{1,24}",
            "\\PC{0,6}",
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn masking_twice_is_masking_once(text in pieces()) {
            let redactor = Redactor::new(&["hunter2-hunter2".into(), "] 12345678".into()]);
            let mut once = text.clone();
            redactor.text(&mut once);
            let mut twice = once.clone();
            prop_assert!(!redactor.text(&mut twice), "{text:?} gave {once:?}, then {twice:?}");
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn a_key_in_any_surroundings_is_gone(before in "\\PC{0,30}", after in "\\PC{0,30}") {
            let secret = format!("sk-ant-{TAIL}");
            let out = masked(&format!("{before} {secret} {after}"));
            prop_assert!(!out.contains(TAIL), "{out}");
        }
    }
}
