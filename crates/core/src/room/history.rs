//! Snapshots of an environment's files before each step: how they are saved and restored.

use serde::{Deserialize, Serialize};

/// Maximum number of paths that one snapshot or undo names. Further paths are only counted.
pub const MAX_NAMED: usize = 1000;

/// The state of the files that is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomMark {
    /// The state before the step with this number, from 0.
    Before(u32),
    /// The state after a turn of a command, whose turns count as steps.
    Turn,
    /// The state of a command within a turn, or before its first.
    Again,
}

/// The size of a session's changes, compared with the commit at which it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomChanges {
    /// Number of files that were added, changed or deleted.
    pub files: u32,
    /// Number of lines added. Binary files have none.
    pub added: u64,
    pub removed: u64,
}

/// A saved state of an environment's files: a commit that is on no branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSnapshot {
    /// Its label: the step before which the files were in this state, `3`, with a second number if
    /// there is more than one: `3.1`.
    pub label: String,
    pub commit: String,
    /// Files that are too large for a snapshot; only the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The size of the changes compared with the base; `None` if they could not be counted in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
}

/// The change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// The file did not exist and was added.
    Added,
    Modified,
    Deleted,
}

impl FileChange {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
        }
    }
}

/// A file, relative to the top of its worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomFile {
    pub path: String,
    pub change: FileChange,
}

/// The result of restoring the files of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomUndone {
    /// The snapshot that the files now match.
    pub to: String,
    /// A snapshot of the files before this undo. Restoring it reverts this undo.
    pub saved: String,
    /// The restored files, the first [`MAX_NAMED`].
    pub files: Vec<RoomFile>,
    /// Number of further restored files.
    #[serde(default)]
    pub more: u32,
    /// Files that could not be restored, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Files that are too large for a snapshot and were not changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The same as [`RoomSnapshot::changes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
}
