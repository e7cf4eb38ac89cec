//! Artifacts: named files that a run saves for people and for other agents.
//!
//! The store keeps their bytes, outside of the run's workspace. This module is pure: names, limits,
//! and the row of each artifact. An entry of the shared state announces an artifact to other
//! agents, see [`shared_key`].

use std::fmt;

use crate::Fut;
use crate::ids::{ColonyId, EffectId, SessionId};
use crate::mesh::{Key, NameError, check_chars, check_segments};
use crate::store::StoreError;
use crate::time::Timestamp;

/// Longest name, in bytes.
pub const MAX_NAME: usize = 255;
/// Largest content, in bytes: 16 MiB.
pub const MAX_BYTES: usize = 16 << 20;
/// Maximum number of artifacts of one run.
pub const MAX_COUNT: u32 = 1_000;
/// Maximum number of bytes of all artifacts of one run: 256 MiB.
pub const MAX_TOTAL: u64 = 256 << 20;
/// Longest media type, in bytes.
pub const MAX_MEDIA_TYPE: usize = 127;
/// The prefix of keys in the shared state that announce artifacts.
pub const SHARED: &str = "artifacts/";

/// The name of an artifact: a relative path of 1 to [`MAX_NAME`] bytes and at most 16 segments,
/// without characters that are special in a terminal, a path or a pattern. Names are compared byte
/// by byte, but two names of a run must not differ only in case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactName(String);

impl ArtifactName {
    /// # Errors
    ///
    /// Returns the mistake, as words that follow the name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_chars(text, MAX_NAME, "an artifact's name")?;
        if let Some(c) = text.chars().find(|c| is_unseen(*c)) {
            let c = c.escape_unicode();
            return Err(NameError::new(format!("has the character {c}, which cannot be seen")));
        }
        check_segments(text.split('/'))?;
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last segment, the file name.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns a form that is equal for names that differ only in case.
    pub fn folded(&self) -> String {
        // By way of upper case: some letters have two small forms and one capital.
        self.0.to_uppercase().to_lowercase()
    }
}

/// Returns whether a character is invisible or changes how others are shown:
/// `invoice\u{202E}fdp.exe`.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}'
        | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}'
        | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}')
}

impl fmt::Display for ArtifactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ArtifactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Returns the key of the shared state that announces an agent's artifact; `None` if a key cannot
/// contain both names.
pub fn shared_key(agent: &str, name: &ArtifactName) -> Option<Key> {
    // An agent's name is one segment: otherwise it could be read as another's and the beginning of
    // a name.
    if agent.contains('/') {
        return None;
    }
    Key::parse(&format!("{SHARED}{agent}/{name}")).ok()
}

/// Checks a media type: `type/subtype`, optionally with parameters, in visible ASCII.
///
/// # Errors
///
/// Returns the mistake.
pub fn check_media_type(text: &str) -> Result<(), String> {
    let token = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    let sound = text.len() <= MAX_MEDIA_TYPE
        && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        && essence.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    if sound {
        return Ok(());
    }
    Err(format!(
        "media_type must be like `text/plain` or `text/csv; charset=utf-8`, at most \
         {MAX_MEDIA_TYPE} bytes of ASCII"
    ))
}

/// Returns the default media type of a content, by the ending of its name and by whether it is
/// text.
pub fn media_type_of(name: &ArtifactName, is_text: bool) -> &'static str {
    let end = name.file_name().rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match end.as_deref().unwrap_or_default() {
        "json" if is_text => "application/json",
        "md" if is_text => "text/markdown; charset=utf-8",
        "csv" if is_text => "text/csv; charset=utf-8",
        "html" | "htm" if is_text => "text/html; charset=utf-8",
        "svg" if is_text => "image/svg+xml",
        "xml" if is_text => "application/xml",
        "patch" | "diff" if is_text => "text/x-diff; charset=utf-8",
        "pdf" => "application/pdf",
        "png" if !is_text => "image/png",
        "jpg" | "jpeg" if !is_text => "image/jpeg",
        "gif" if !is_text => "image/gif",
        "webp" if !is_text => "image/webp",
        "zip" if !is_text => "application/zip",
        "gz" | "tgz" if !is_text => "application/gzip",
        "zst" if !is_text => "application/zstd",
        "tar" if !is_text => "application/x-tar",
        _ if is_text => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// The row of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub colony: ColonyId,
    pub session: SessionId,
    pub name: ArtifactName,
    /// Starts at 1 and increases by one with each new content. A deleted name starts at 1 again.
    pub version: u64,
    /// The id of the call that saved it, or another id. The file with its bytes has this name, so a
    /// repeated call finds the same file.
    pub file: EffectId,
    /// Size of the content, in bytes.
    pub bytes: u64,
    pub media_type: String,
    /// BLAKE3 of the stored content.
    pub hash: [u8; 32],
    /// Whether the content is UTF-8.
    pub is_text: bool,
    /// Whether a secret in the content was masked before it was stored.
    pub is_masked: bool,
    /// The author: an agent's name, `admin`, or the name of an API key.
    pub author: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Global number of the commit that saved it, which is its position in lists. Set by the store.
    pub place: u64,
}

impl Artifact {
    /// Returns the hash in hexadecimal.
    pub fn blake3(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }
}

/// The total of the artifacts that one run has saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArtifactSums {
    pub count: u32,
    pub bytes: u64,
}

/// Returns why one more artifact is not allowed; `None` if it is. `before` is the size of the
/// version that it replaces.
pub fn over_bounds(sums: ArtifactSums, before: Option<u64>, bytes: u64) -> Option<String> {
    if before.is_none() && sums.count >= MAX_COUNT {
        return Some(format!(
            "this run has {} artifacts, and {MAX_COUNT} is the most: save under a name that is \
             there, or have one deleted",
            sums.count
        ));
    }
    let total = sums.bytes.saturating_sub(before.unwrap_or(0)).saturating_add(bytes);
    (total > MAX_TOTAL).then(|| {
        format!(
            "the artifacts of this run would have {total} bytes, and {MAX_TOTAL} is the most: have \
             some deleted"
        )
    })
}

/// The bytes of one version. They stay readable after the name is changed or deleted.
pub trait ArtifactContent: Send + Sync + fmt::Debug {
    /// Returns the size in bytes.
    fn bytes(&self) -> u64;

    /// Reads at most `most` bytes from `offset`. Returns fewer, or none, only at the end.
    fn read(&self, offset: u64, most: usize) -> Fut<'_, Result<Vec<u8>, StoreError>>;
}

/// Protects written bytes until it is dropped. After that, they stay only if a row names them. Hold
/// it over the commit.
pub struct ArtifactHold(Option<Box<dyn FnOnce() + Send>>);

impl ArtifactHold {
    /// Creates a hold. `release` is called once, when this is dropped.
    pub fn new(release: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(release)))
    }
}

impl Drop for ArtifactHold {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

impl fmt::Debug for ArtifactHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactHold").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn artifact_names_cannot_leave_their_directory() {
        for good in ["a", "report.md", "out/plots/1 b.png", "München.txt", "-x", ".env", "a..b"] {
            assert_eq!(ArtifactName::parse(good).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "has 0 bytes; an artifact's name has 1 to 255"),
            ("/etc/passwd", "has an empty segment: two separators in a row, or one at an end"),
            ("a/", "has an empty segment: two separators in a row, or one at an end"),
            ("../a", "has a segment `.` or `..`"),
            ("a/./b", "has a segment `.` or `..`"),
            ("a\\..\\b", "has the character '\\\\', which an artifact's name may not have"),
            ("a\0b", "has the character '\\0', which an artifact's name may not have"),
            ("a\nb", "has the character '\\n', which an artifact's name may not have"),
            ("a/ ..", "has a segment that begins or ends with a space"),
            (
                "cod\u{202E}txt.exe",
                "must not have the character U+202E at position 4, which cannot be seen: leave it out",
            ),
            (
                "a\u{200B}b",
                "must not have the character U+200B at position 2, which cannot be seen: leave it out",
            ),
        ] {
            assert_eq!(ArtifactName::parse(bad).unwrap_err().to_string(), why, "{bad:?}");
        }
        assert!(ArtifactName::parse(&"x".repeat(255)).is_ok());
        assert!(ArtifactName::parse(&"x".repeat(256)).is_err());
        assert!(ArtifactName::parse(&vec!["a"; 17].join("/")).is_err());
    }

    #[test]
    fn names_that_differ_in_case_fold_to_one() {
        let folded = |name: &str| ArtifactName::parse(name).unwrap().folded();
        assert_eq!(folded("Report.MD"), folded("report.md"));
        assert_eq!(folded("ΣΑΣ"), folded("σας"));
        assert_eq!(folded("Straße"), folded("STRASSE"));
        assert_ne!(folded("a"), folded("b"));
    }

    #[test]
    fn a_key_is_parsed_into_agent_and_name_or_refused() {
        let name = ArtifactName::parse("out/a.txt").unwrap();
        assert_eq!(shared_key("writer", &name).unwrap().as_str(), "artifacts/writer/out/a.txt");
        assert_eq!(shared_key("a/b", &name), None, "two agents would share a key");
        assert_eq!(shared_key("a*", &name), None);
        assert_eq!(shared_key("..", &name), None);
        let deep = ArtifactName::parse(&vec!["a"; 15].join("/")).unwrap();
        assert_eq!(shared_key("writer", &deep), None);
    }

    #[test]
    fn media_types_are_checked_and_guessed() {
        for good in ["text/plain", "image/svg+xml", "text/csv; charset=utf-8", "a/b;c=\"d\""] {
            check_media_type(good).unwrap();
        }
        for bad in ["", "text", "text/", "/x", "a/b\r\nX: y", "a/b c", "ä/b", &"a/".repeat(99)] {
            assert!(check_media_type(bad).is_err(), "{bad:?}");
        }
        let guess = |name: &str, text| media_type_of(&ArtifactName::parse(name).unwrap(), text);
        assert_eq!(guess("a.JSON", true), "application/json");
        assert_eq!(guess("a.json", false), "application/octet-stream");
        assert_eq!(guess("out.d/README", true), "text/plain; charset=utf-8");
        assert_eq!(guess("p.png", false), "image/png");
    }

    #[test]
    fn limits_are_named_and_a_new_version_replaces_the_size_of_the_old() {
        let sums = |count, bytes| ArtifactSums { count, bytes };
        assert_eq!(over_bounds(sums(999, 0), None, 1), None);
        let why = over_bounds(sums(1_000, 0), None, 1).unwrap();
        assert!(why.contains("1000 is the most"), "{why}");
        assert_eq!(over_bounds(sums(1_000, 5), Some(5), 1), None);
        assert_eq!(over_bounds(sums(1, MAX_TOTAL), Some(10), 10), None);
        let why = over_bounds(sums(1, MAX_TOTAL), Some(10), 11).unwrap();
        assert!(why.contains("268435457 bytes, and 268435456 is the most"), "{why}");
        for sums in [sums(0, MAX_TOTAL), sums(0, u64::MAX)] {
            assert!(over_bounds(sums, None, 1).is_some());
        }
    }

    proptest! {
        /// Checks that every accepted name stays below the directory to which it is joined.
        #[test]
        fn a_name_never_leaves_its_directory(
            text in prop_oneof![".{0,40}", "[./\\\\a-c ]{1,20}", "(\\.\\.?/){0,4}[a-z/]{0,6}"],
        ) {
            if let Ok(name) = ArtifactName::parse(&text) {
                let path = Path::new(name.as_str());
                prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
                let parts: Vec<_> =
                    path.components().map(|part| part.as_os_str().to_str().unwrap()).collect();
                prop_assert_eq!(parts.join("/"), name.as_str());
                prop_assert!(!name.as_str().chars().any(char::is_control));
                prop_assert!(name.as_str().len() <= MAX_NAME);
            }
        }

        #[test]
        fn a_shared_key_belongs_to_one_agent_only(
            (a, b) in ("[a-c/*.]{1,4}", "[a-c/*.]{1,4}"), (x, y) in ("[a-c/]{1,5}", "[a-c/]{1,5}"),
        ) {
            if let (Ok(x), Ok(y)) = (ArtifactName::parse(&x), ArtifactName::parse(&y))
                && let (Some(one), Some(other)) = (shared_key(&a, &x), shared_key(&b, &y))
            {
                prop_assert_eq!(one == other, a == b && x == y);
            }
        }
    }
}
