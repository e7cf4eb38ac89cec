//! The port that decides which files of the host belong to the server and must never be given to a
//! session: its data directory with the admin token, the vault's key and the policy, its
//! configuration files, and its user's home. It also finds the secrets in a session's own directory
//! that the session must not see.
//!
//! Paths are compared by device and inode, because links, bind mounts and relative paths can lead
//! to the same file. [`OffLimits::refusal`] is called for every directory that a session is to be
//! given, [`OffLimits::is_own`] for every file that a tool has opened, and [`OffLimits::all`]
//! before the server itself reads files from a workspace.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The identity of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// The implementation of these checks.
pub trait Own: Send + Sync + fmt::Debug {
    /// Returns why a session may not be given this directory or file of the host, and what to do
    /// instead; `None` if it may. Reads the file system, for some microseconds.
    fn refusal(&self, path: &Path) -> Option<String>;

    /// Returns the server's own files and directories that exist now.
    fn all(&self) -> HashSet<FileId>;

    /// Returns whether a file or directory belongs to the server.
    fn is_own(&self, file: FileId) -> bool {
        self.all().contains(&file)
    }

    /// Returns files and directories of a workspace, relative to it, that contain secrets without a
    /// grant. Sandboxes and file tools hide them. May read the whole workspace.
    ///
    /// # Errors
    ///
    /// Returns why the check is not possible; then nothing of the workspace may be shown.
    fn withheld(&self, workspace: &Path) -> Result<Vec<PathBuf>, String>;

    /// Returns whether a file of a workspace with a single name, at this path in it without links,
    /// is one of [`Own::withheld`]. Reads no other file.
    ///
    /// # Errors
    ///
    /// The same as there.
    fn withholds(&self, workspace: &Path, path: &Path) -> Result<bool, String> {
        Ok(self.withheld(workspace)?.iter().any(|secret| path.starts_with(secret)))
    }
}

/// The files that no session may be given. The default is empty, for tests and for measurements.
#[derive(Clone, Debug, Default)]
pub struct OffLimits(Option<Arc<dyn Own>>);

impl OffLimits {
    pub fn new(own: Arc<dyn Own>) -> Self {
        Self(Some(own))
    }

    /// Calls [`Own::refusal`].
    pub fn refusal(&self, path: &Path) -> Option<String> {
        self.0.as_ref()?.refusal(path)
    }

    /// Calls [`Own::all`]. Use it to check many files at once.
    pub fn all(&self) -> HashSet<FileId> {
        self.0.as_ref().map(|own| own.all()).unwrap_or_default()
    }

    /// Calls [`Own::is_own`].
    pub fn is_own(&self, file: FileId) -> bool {
        self.0.as_ref().is_some_and(|own| own.is_own(file))
    }

    /// Calls [`Own::withheld`].
    ///
    /// # Errors
    ///
    /// The same as there.
    pub fn withheld(&self, workspace: &Path) -> Result<Vec<PathBuf>, String> {
        self.0.as_ref().map_or_else(|| Ok(Vec::new()), |own| own.withheld(workspace))
    }

    /// Calls [`Own::withholds`].
    ///
    /// # Errors
    ///
    /// The same as there.
    pub fn withholds(&self, workspace: &Path, path: &Path) -> Result<bool, String> {
        self.0.as_ref().map_or(Ok(false), |own| own.withholds(workspace, path))
    }
}
