//! The port to what of the host is the server's own, and so never a session's: its data directory
//! with the admin token, the vault's key and the policy in it, the files of its configuration, the
//! home of its user. And to what of a session's own directory is withheld from it: secrets.
//!
//! Judged is what a path leads to, by device and inode, and not how it is written: links, bind
//! mounts and relative paths lead to the same file. [`OffLimits::refusal`] is asked of every directory
//! that a session is to be given; [`OffLimits::is_own`] of every file that a tool has opened, and
//! [`OffLimits::all`] by whatever the server itself takes from a workspace.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file or directory by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// Who knows what is the server's own.
pub trait Own: Send + Sync + fmt::Debug {
    /// Why a session may not be given this directory or file of the host, and what to do instead;
    /// `None`: it may. Looks at the file system, for some microseconds.
    fn refusal(&self, path: &Path) -> Option<String>;

    /// The files and directories that are the server's own, as they are there now.
    fn all(&self) -> HashSet<FileId>;

    /// Whether a file or directory is the server's own.
    fn is_own(&self, file: FileId) -> bool {
        self.all().contains(&file)
    }

    /// Files and directories of a workspace that its sandboxes and file tools withhold, because they
    /// hold secrets that nobody granted; relative to it. Looks at the file system, at all of the
    /// workspace if need be.
    ///
    /// # Errors
    ///
    /// Why it cannot be told; then nothing of the workspace may be shown.
    fn withheld(&self, workspace: &Path) -> Result<Vec<PathBuf>, String>;
}

/// What no session is given. The default is nothing at all: for tests, and for measurements.
#[derive(Clone, Debug, Default)]
pub struct OffLimits(Option<Arc<dyn Own>>);

impl OffLimits {
    pub fn new(own: Arc<dyn Own>) -> Self {
        Self(Some(own))
    }

    /// See [`Own::refusal`].
    pub fn refusal(&self, path: &Path) -> Option<String> {
        self.0.as_ref()?.refusal(path)
    }

    /// See [`Own::all`]: for who opens many files in a row.
    pub fn all(&self) -> HashSet<FileId> {
        self.0.as_ref().map(|own| own.all()).unwrap_or_default()
    }

    /// See [`Own::is_own`].
    pub fn is_own(&self, file: FileId) -> bool {
        self.0.as_ref().is_some_and(|own| own.is_own(file))
    }

    /// See [`Own::withheld`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn withheld(&self, workspace: &Path) -> Result<Vec<PathBuf>, String> {
        self.0.as_ref().map_or_else(|| Ok(Vec::new()), |own| own.withheld(workspace))
    }
}
