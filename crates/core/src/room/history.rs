//! The files of a room as they were before each step: saved, and brought back.

use serde::{Deserialize, Serialize};

/// Paths that are named of one snapshot or one undo at most; the rest is counted.
pub const MAX_NAMED: usize = 1000;

/// Which state of the files is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomMark {
    /// That before the step with this number, from 0.
    Before(u32),
    /// That after a turn of a command: its turns count as steps.
    Turn,
    /// That of a command within a turn, or before its first.
    Again,
}

/// How much of its project a session has changed, beside the commit that it began at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomChanges {
    /// Files that differ: added, changed or deleted.
    pub files: u32,
    /// Lines that were added; binary files have none.
    pub added: u64,
    pub removed: u64,
}

/// A saved state of the files of a room: a commit that is on no branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSnapshot {
    /// What it is called: the step before which the files were so, `3`, and a number behind it where
    /// there is more than one: `3.1`.
    pub label: String,
    pub commit: String,
    /// Files that are too large to be saved, the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Beside the base; `None` when it could not be counted, or not in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// It was not there, and is now.
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

/// A file, from the top of its worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomFile {
    pub path: String,
    pub change: FileChange,
}

/// What bringing the files of a room back did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomUndone {
    /// The snapshot that the files are in now.
    pub to: String,
    /// The snapshot of what they were: going to it undoes the undo.
    pub saved: String,
    /// The files that were brought back, the first [`MAX_NAMED`].
    pub files: Vec<RoomFile>,
    /// How many more there are.
    #[serde(default)]
    pub more: u32,
    /// Files that could not be brought back, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Files that are too large to be saved: they stayed as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// As of [`RoomSnapshot::changes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
}
