//! Masks secrets in everything that is about to be written.
//!
//! Two kinds of texts are masked: secrets that the store knows, wherever they appear, and texts
//! that have the form of a well-known credential. Each becomes `[redacted:KIND]`. Keys of objects
//! and numbers are kept, and a mask is never searched again. In our own records, fields with a
//! fixed meaning keep it: see `redact/record.rs`.
//!
//! A known secret is also masked in hexadecimal, percent-encoding and Base64
//! ([`overmind_core::encoded`]). It is also masked where a text was cut in the middle of it, if at
//! least half of it is at an end of the text.
//!
//! The redactor cannot detect a secret of unknown form that it was not given. It also misses a
//! secret that was encoded twice, encoded with line ends in it, split over two strings elsewhere
//! than in its middle, or written as the key of an object.
//!
//! Masking repeats until it finds nothing more, so a second run changes nothing. It ends because
//! every round shortens the text outside of masks. A text without secrets costs one search by a
//! compiled automaton and no allocation.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use memchr::memmem;
use overmind_core::masking::{self, LEAST_TAIL, MINTED, Minted};
use regex::Regex;
use serde_json::Value;

mod record;

/// Known secrets of fewer bytes are not masked, because that would hide ordinary words.
pub const MIN_SECRET_BYTES: usize = 8;

/// No pattern and no secret is shorter: `://:x@`.
const SHORTEST: usize = 6;

/// The beginning of each branch of [`PATTERN`], and the kind of secret that it finds.
const KINDS: [(&str, &str); 42] = [
    ("sk-ant-ovm-", "placeholder"),
    ("sk-ovm-", "placeholder"),
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
    ("npm_", "npm-token"),
    ("pypi-", "pypi-token"),
    ("SG.", "sendgrid-key"),
    ("ya29.", "google-token"),
    ("GOCSPX-", "google-secret"),
    ("dop_v1_", "digitalocean-token"),
    ("glsa_", "grafana-token"),
    ("shpat_", "shopify-token"),
    ("AGE-SECRET-KEY-1", "age-key"),
    ("hooks.slack.com", "slack-webhook"),
    ("aws_secret_access_key", AWS_SECRET),
    ("AWS_SECRET_ACCESS_KEY", AWS_SECRET),
    ("SecretAccessKey", AWS_SECRET),
    ("AccountKey=", AZURE),
    ("://", URL_PASSWORD),
    ("Basic", BASIC),
    ("basic", BASIC),
    (":AA", TELEGRAM),
    ("ovm-canary-", "canary"),
];

const BEARER: &str = "bearer";
const BASIC: &str = "basic-auth";
const AWS_SECRET: &str = "aws-secret-key";
const AZURE: &str = "azure-key";
const URL_PASSWORD: &str = "url-password";
const TELEGRAM: &str = "telegram-token";
/// The number of characters of an AWS secret key.
const AWS_SECRET_CHARS: usize = 40;

/// Every branch begins with a literal, for which the automaton searches; a branch that began with a
/// class would make every text slow. There are no groups: finding a group is many times slower than
/// finding the end of a match, and the beginning of the match determines the kind.
static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let (pem_begin, pem_end) = (PEM_BEGIN_SHAPE, PEM_END_SHAPE);
    // The content of a PEM block, raw or written as a JSON string.
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
        "npm_[A-Za-z0-9]{36}",
        "pypi-[A-Za-z0-9_-]{50,}",
        r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",
        r"ya29\.[A-Za-z0-9_-]{20,}",
        "GOCSPX-[A-Za-z0-9_-]{20,}",
        "dop_v1_[a-f0-9]{40,}",
        "glsa_[A-Za-z0-9_]{30,}",
        "shpat_[A-Fa-f0-9]{30,}",
        "AGE-SECRET-KEY-1[A-Z0-9]{50,}",
        r"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,}",
        r#"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY|SecretAccessKey)[\\"'\x20\t:=]{1,8}[A-Za-z0-9/+]{40}"#,
        "AccountKey=[A-Za-z0-9+/]{60,}={0,2}",
        r"(?:Basic|basic)[\x20\t]+[A-Za-z0-9+/]{8,}={0,2}",
    ];
    // Our prefixes come before others that begin alike. A run's token has parts separated by dots.
    let minted = MINTED.iter().map(|Minted { prefix, .. }| {
        format!(r"{prefix}[A-Za-z0-9_-]{{{LEAST_TAIL},}}(?:\.[A-Za-z0-9_-]+)*")
    });
    let mut branches: Vec<String> = minted
        .chain(words.into_iter().map(str::to_owned))
        .map(|word| format!(r"(?-u:\b){word}"))
        .collect();
    // No word may precede these two: user and password before a host, and a bot's number and key.
    // There are no counts: each count of these classes costs the automaton thousands of states.
    branches.push(r#"://[^\s/?#@:"'<>\\]*:[^\s/?#@"'<>\\]+@"#.to_owned());
    branches.push(r":AA[A-Za-z0-9_-]{33}(?-u:\b)".to_owned());
    branches.push(format!("{pem_begin}{pem_body}*?{pem_end}"));
    // For a block that was cut before its end, the text that looks like its body is included.
    branches.push(format!("{pem_begin}{pem_body}*"));
    Regex::new(&branches.join("|")).expect("the pattern is a constant")
});

const PEM_BEGIN_SHAPE: &str = "-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
const PEM_END_SHAPE: &str = "-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----";
static PEM_BEGIN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(PEM_BEGIN_SHAPE).expect("the pattern is a constant"));
static PEM_END: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(PEM_END_SHAPE).expect("the pattern is a constant"));

/// Matches the masks that we write and no other text in brackets, because a secret may look like
/// one.
static MASK: LazyLock<Regex> = LazyLock::new(|| {
    let kinds: Vec<&str> = KINDS.iter().map(|(_, kind)| *kind).chain([KNOWN]).collect();
    Regex::new(&format!(r"\[redacted:(?:{})\]", kinds.join("|")))
        .expect("the pattern is a constant")
});

/// The kind of a secret that the store was given.
const KNOWN: &str = "secret";

/// Masks secrets. It is cheap to share, and learns secrets while others use it.
#[derive(Debug, Default)]
pub struct Redactor {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// The secrets in plain and in every encoded form.
    secrets: BTreeSet<String>,
    pattern: Option<Arc<Search>>,
}

/// The search for the known secrets.
struct Search {
    whole: Regex,
    /// The plain secrets, for texts that were cut inside of one.
    plain: Vec<String>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Shows only their number.
        f.debug_struct("Known").field("secrets", &self.secrets.len()).finish()
    }
}

impl Redactor {
    /// Makes a redactor that knows `secrets` from the start.
    pub fn new(secrets: &[String]) -> Self {
        let this = Self::default();
        this.learn_all(&secrets.iter().map(String::as_str).collect::<Vec<_>>());
        this
    }

    /// Masks `secret` from now on. Returns `false` if it cannot be masked: it is shorter than
    /// [`MIN_SECRET_BYTES`], or part of a mask itself.
    pub fn learn(&self, secret: &str) -> bool {
        self.learn_all(&[secret])
    }

    /// Learns several secrets but builds the pattern once. Returns `false` if one of them cannot be
    /// masked; the others are.
    pub fn learn_all(&self, secrets: &[&str]) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let (mut all, mut plain, mut new) = (true, Vec::new(), Vec::new());
        for secret in secrets.iter().map(|secret| secret.trim()) {
            let mut kinds = KINDS.iter().map(|(_, kind)| kind).chain([&KNOWN]);
            if secret.len() < MIN_SECRET_BYTES || kinds.any(|kind| mask(kind).contains(secret)) {
                all = false;
                continue;
            }
            let forms = masking::needles(secret);
            let before = new.len();
            new.extend(forms.into_iter().filter(|form| known.secrets.insert(form.clone())));
            if new.len() > before {
                plain.push(secret.to_owned());
            }
        }
        if new.is_empty() {
            return all;
        }
        // The longest come first, so that a secret that contains another is masked completely.
        let mut longest: Vec<&String> = known.secrets.iter().collect();
        longest.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let texts: Vec<String> = longest.into_iter().map(|text| regex::escape(text)).collect();
        match regex::RegexBuilder::new(&texts.join("|")).size_limit(64 << 20).build() {
            Ok(whole) => {
                let before = known.pattern.as_ref().map(|old| old.plain.clone());
                let plain = [before.unwrap_or_default(), plain].concat();
                known.pattern = Some(Arc::new(Search { whole, plain }));
                all
            }
            Err(err) => {
                for form in &new {
                    known.secrets.remove(form);
                }
                tracing::error!(error = %err, "a secret cannot be masked: too large");
                false
            }
        }
    }

    /// Masks secrets in every string inside of `value`; keys of objects are kept.
    pub fn value(&self, value: &mut Value) {
        let known = self.pattern();
        redact_value(known.as_deref(), value);
    }

    /// Masks secrets in one of our records, except in its fields of a fixed meaning.
    pub fn record(&self, value: &mut Value) {
        record::redact_record(self.pattern().as_deref(), value);
    }

    /// Masks secrets in `text` and returns whether anything was masked.
    pub fn text(&self, text: &mut String) -> bool {
        redact_text(self.pattern().as_deref(), text)
    }

    /// See [`Store::settled`](overmind_core::store::Store::settled).
    ///
    /// It matters for secrets with line ends: private keys, which are held back from their first
    /// line until the last has come, and known secrets.
    pub fn settled(&self, text: &str) -> usize {
        let text = &text[..text.rfind(['\n', '\r']).map_or(0, |at| at + 1)];
        let mut end = text.len();
        let mut at = 0;
        while let Some(begin) = PEM_BEGIN.find_at(text, at) {
            match PEM_END.find_at(text, begin.end()) {
                Some(ended) => at = ended.end(),
                None => {
                    end = begin.start();
                    break;
                }
            }
        }
        for secret in self.pattern().iter().flat_map(|known| &known.plain) {
            if !secret.contains(['\n', '\r']) {
                continue;
            }
            // The longest beginning of the secret with which the text ends.
            let begun = (1..secret.len())
                .rev()
                .find(|n| secret.get(..*n).is_some_and(|begun| text.ends_with(begun)));
            end = end.min(text.len() - begun.unwrap_or(0));
        }
        text[..end].rfind(['\n', '\r']).map_or(0, |at| at + 1)
    }

    /// Masks secrets in the text, if there is one.
    pub(crate) fn option(&self, text: &mut Option<String>) {
        if let Some(text) = text {
            self.text(text);
        }
    }

    fn pattern(&self) -> Option<Arc<Search>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).pattern.clone()
    }
}

fn mask(kind: &str) -> String {
    format!("[redacted:{kind}]")
}

fn redact_value(known: Option<&Search>, value: &mut Value) {
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

fn redact_text(known: Option<&Search>, text: &mut String) -> bool {
    let mut changed = false;
    // Each round masks at least one byte outside of masks, so this ends.
    loop {
        while let Some(masked) = round(known, text) {
            *text = masked;
            changed = true;
        }
        // This comes after whole secrets, because the rest of one could take a part of another.
        if !known.is_some_and(|known| ends(known, text)) {
            return changed;
        }
        changed = true;
    }
}

/// Masks the rest of a known secret at either end of a cut text, if it is at least half of the
/// secret. Less could be an ordinary word.
fn ends(known: &Search, text: &mut String) -> bool {
    let mut changed = false;
    for secret in &known.plain {
        let least = secret.len().div_ceil(2).max(MIN_SECRET_BYTES);
        if !may_be_cut(secret.as_bytes(), text.as_bytes(), least) {
            continue;
        }
        // A whole secret is found by the normal search.
        let parts = || (least..secret.len()).rev();
        let head = parts()
            .find(|n| secret.get(..*n).is_some_and(|head| text.ends_with(head)))
            .filter(|n| MASK.find_iter(text).all(|mask| mask.end() + n <= text.len()));
        if let Some(n) = head {
            text.truncate(text.len() - n);
            text.push_str(&mask(KNOWN));
            changed = true;
        }
        let tail = parts()
            .find(|n| secret.get(secret.len() - n..).is_some_and(|tail| text.starts_with(tail)))
            .filter(|n| MASK.find_iter(text).all(|mask| mask.start() >= *n));
        if let Some(n) = tail {
            text.replace_range(..n, &mask(KNOWN));
            changed = true;
        }
    }
    changed
}

/// A quick check whether a text may begin or end with `least` bytes or more of a secret, but not
/// all of it: whether the bytes that such a part always has are near that end. Most texts are short
/// and fail this check.
fn may_be_cut(secret: &[u8], text: &[u8], least: usize) -> bool {
    if text.len() < least || secret.len() <= least {
        return false;
    }
    let most = text.len().min(secret.len() - 1);
    memmem::find(&text[text.len() - most..], &secret[..least]).is_some()
        || memmem::find(&text[..most], &secret[secret.len() - least..]).is_some()
}

/// Makes one pass over the parts between masks; `None` if there is nothing to mask.
fn round(known: Option<&Search>, text: &str) -> Option<String> {
    if text.len() < SHORTEST {
        return None;
    }
    if !PATTERN.is_match(text) && !known.is_some_and(|known| known.whole.is_match(text)) {
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

/// Appends one part without masks to `out`, with known secrets masked or, if it has none, patterns.
fn part(known: Option<&Search>, text: &str, out: &mut String) -> bool {
    if let Some(known) = known
        && known.whole.is_match(text)
    {
        // The next round searches for patterns around the masks made here.
        out.push_str(&known.whole.replace_all(text, mask(KNOWN)));
        return true;
    }
    let mut from = 0;
    let before = out.len();
    let mut at = 0;
    while let Some(found) = PATTERN.find_at(text, at) {
        let (kind, within) = secret_of(found.as_str());
        let (start, end) = (found.start() + within.start, found.start() + within.end);
        at = if plausible(kind, &text[start..end], &text[..start], &text[end..]) {
            out.push_str(&text[from..start]);
            out.push_str(&mask(kind));
            from = end;
            end
        } else {
            // A match that only looked like one kind may contain another.
            match kind {
                BASIC | BEARER | AWS_SECRET | TELEGRAM => start,
                URL_PASSWORD => found.start() + "://".len(),
                _ => found.end(),
            }
        };
    }
    out.push_str(&text[from..]);
    out[before..] != *text
}

/// The kind of a match, and the range of it to mask.
fn secret_of(found: &str) -> (&'static str, Range<usize>) {
    let kind = KINDS
        .iter()
        .find_map(|(prefix, kind)| found.starts_with(prefix).then_some(*kind))
        .expect("every branch of the pattern begins with one of these");
    let end = found.len();
    let after_space = || found.rfind([' ', '\t']).map_or(0, |at| at + 1);
    match kind {
        BEARER | BASIC => (kind, after_space()..end),
        AWS_SECRET => (kind, end - AWS_SECRET_CHARS..end),
        AZURE => (kind, "AccountKey=".len()..end),
        TELEGRAM => (kind, 1..end),
        // The range from the colon after the user to the `@`.
        URL_PASSWORD => {
            let user = "://".len();
            let colon = found[user..].find(':').map_or(user, |at| user + at + 1);
            (kind, colon..end - 1)
        }
        _ => (kind, 0..end),
    }
}

/// Distinguishes keys from words: `sk-folding-cube-container` and `Bearer responsibilities` are
/// words.
fn plausible(kind: &str, secret: &str, before: &str, after: &str) -> bool {
    match kind {
        "openai-key" | BEARER | "api-key" | "admin-token" | "session-token" => {
            let longest = secret.split(['-', '_', '.', '/']).map(str::len).max().unwrap_or(0);
            longest >= 24 || secret.bytes().any(|byte| byte.is_ascii_digit())
        }
        // It is `user:password` in Base64, and not the beginning of a sentence.
        BASIC => overmind_core::encoded::base64_decode(secret).is_some_and(|plain| {
            plain.contains(&b':') && plain.iter().all(|b| (32..127).contains(b))
        }),
        // `docker://name:tag@sha256:…` is an image, and characters such as `$` begin a placeholder.
        URL_PASSWORD => {
            !after.starts_with("@sha256:") && !secret.starts_with(['$', '<', '{', '%', '*'])
        }
        TELEGRAM => {
            let digits = before.bytes().rev().skip(1).take_while(u8::is_ascii_digit).count();
            (8..=12).contains(&digits)
        }
        AWS_SECRET => secret.bytes().any(|byte| byte.is_ascii_digit()),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
