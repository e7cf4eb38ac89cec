//! The options for opening a store.

use std::fmt;
use std::path::{Path, PathBuf};

use overmind_core::time::Timestamp;

/// What happens if a store has less data than was acknowledged, because its write-ahead log was
/// damaged or removed, or an older file replaced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The store is not opened or changed: [`overmind_core::store::StoreError::Lost`].
    Refuse,
    /// The store is opened for reading and auditing; all commits are refused.
    ReadOnly,
    /// The store continues with the data it has, after an event of kind `store.loss_accepted` that
    /// describes the loss.
    Accept { now: Timestamp },
}

/// How [`crate::Sqlite::open`] opens a store. [`Options::new`] gives the usual values.
#[derive(Clone)]
pub struct Options {
    /// The database file. Its directory is made (0700) if only that last part is missing.
    pub path: PathBuf,
    /// Secrets to mask in everything that is written; see [`crate::redact`].
    pub secrets: Vec<String>,
    /// The private key that signs checkpoints, made (0600) at the first open. `None` means
    /// `checkpoint.key` beside the database.
    pub key_path: Option<PathBuf>,
    /// Further public keys whose checkpoints `audit` accepts: those of machines from which this
    /// store was restored.
    pub trusted_keys: Vec<[u8; 32]>,
    /// The number of reading connections, each with its own thread: 1 to 64.
    pub readers: usize,
    /// A checkpoint is signed once this many events follow the last one; at least 1.
    pub checkpoint_every: u64,
    /// Largest size of the database file in bytes; beyond it commits fail as if the disk were full.
    /// The write-ahead log is not counted.
    pub max_bytes: Option<u64>,
    pub on_loss: OnLoss,
}

impl Options {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            secrets: Vec::new(),
            key_path: None,
            trusted_keys: Vec::new(),
            readers: 4,
            checkpoint_every: 10_000,
            max_bytes: None,
            on_loss: OnLoss::Refuse,
        }
    }

    /// Adds a secret to mask. [`crate::Sqlite::learn_secret`] adds further ones later.
    pub fn add_secret(&mut self, secret: impl Into<String>) {
        self.secrets.push(secret.into());
    }

    /// The path of the signing key.
    pub fn key_file(&self) -> PathBuf {
        match &self.key_path {
            Some(path) => path.clone(),
            None => parent(&self.path).join("checkpoint.key"),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("path", &self.path)
            .field("secrets", &self.secrets.len())
            .field("key_path", &self.key_path)
            .field("trusted_keys", &self.trusted_keys.len())
            .field("readers", &self.readers)
            .field("checkpoint_every", &self.checkpoint_every)
            .field("max_bytes", &self.max_bytes)
            .field("on_loss", &self.on_loss)
            .finish()
    }
}

/// The directory of `path`; `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// `path` with `suffix` after its name: SQLite's way of naming files beside the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
