//! Errors of the configuration and the data directory.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::layers::Source;

#[derive(Debug)]
pub enum ConfigError {
    Read {
        path: PathBuf,
        source: io::Error,
    },
    Syntax {
        path: PathBuf,
        line: usize,
        message: String,
    },
    UnknownKey {
        key: String,
        path: PathBuf,
        line: usize,
        suggestion: Option<String>,
    },
    BadValue {
        key: String,
        at: Source,
        given: String,
        wanted: String,
    },
    /// A secret is in a file that others can read.
    OpenSecret {
        key: String,
        path: PathBuf,
        mode: u32,
    },
    /// Two settings need each other, or exclude each other.
    Together {
        message: String,
        hint: String,
    },
    /// There is no place for the data directory.
    NoHome,
    Data {
        attempt: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Others can read a file that only its owner may read.
    OpenFile {
        path: PathBuf,
        mode: u32,
        wanted: u32,
    },
    /// The content of a token or key file is invalid.
    BadToken {
        path: PathBuf,
        why: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "reading {}: {source}", path.display()),
            Self::Syntax { path, line, message } => {
                write!(f, "{}:{line} is not TOML: {message}", path.display())
            }
            Self::UnknownKey { key, path, line, .. } => {
                write!(f, "{}:{line}: there is no setting `{key}`", path.display())
            }
            Self::BadValue { key, at, given, wanted } => {
                write!(f, "`{key}` from {at} is `{given}`; it must be {wanted}")
            }
            Self::OpenSecret { key, path, mode } => write!(
                f,
                "{} contains the secret `{key}` and its mode is {mode:04o}: others can read it",
                path.display()
            ),
            Self::Together { message, .. } => f.write_str(message),
            Self::NoHome => f.write_str("no data directory: HOME is not set; use --data DIR"),
            Self::Data { attempt, path, source } => {
                write!(f, "{attempt} {}: {source}", path.display())
            }
            Self::OpenFile { path, mode, .. } => {
                write!(f, "{} has mode {mode:04o}: others can read it", path.display())
            }
            Self::BadToken { path, why } => write!(f, "{} {why}", path.display()),
        }
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { suggestion: Some(near), .. } => {
                Some(format!("did you mean `{near}`?"))
            }
            Self::UnknownKey { suggestion: None, .. } => {
                Some("`overmind config show` lists all settings".into())
            }
            Self::OpenSecret { path, .. } => Some(format!("chmod 600 {}", path.display())),
            Self::OpenFile { path, wanted, .. } => {
                Some(format!("chmod {wanted:o} {}", path.display()))
            }
            Self::NoHome => Some("name a directory with --data or OVERMIND_DATA".into()),
            Self::Together { hint, .. } => Some(hint.clone()),
            Self::BadToken { path, .. } => Some(format!(
                "restore {} from a backup, or delete it: a new one is created, and signatures and \
                    tokens of the old one become invalid",
                path.display()
            )),
            Self::Data { .. } => Some("`overmind doctor` looks at the data directory".into()),
            Self::Read { .. } | Self::Syntax { .. } | Self::BadValue { .. } => None,
        }
    }
}
