//! Options for the creation of a tree. All of them are data, as in `.overmind.yml`.

use std::path::PathBuf;

use overmind_core::room::RoomReach;
use serde::{Deserialize, Serialize};

/// A tree to be made.
#[derive(Clone, Debug)]
pub struct Request {
    /// Any directory of the project. The session begins at the same place within its tree.
    pub project: PathBuf,
    /// The session's name, any text: its branch and its directory are called after it.
    pub name: String,
    pub options: Options,
    /// Which repositories the project may lead to.
    pub reach: RoomReach,
}

impl Request {
    /// A tree of the default kind, which may use any repository.
    pub fn new(project: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self {
            project: project.into(),
            name: name.into(),
            options: Options::default(),
            reach: RoomReach::Any,
        }
    }
}

/// How a tree is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Where the session's branch begins: a branch, a tag, a commit. Without it: what is checked out.
    pub base: Option<String>,
    /// The prefix of the branch's name.
    pub branch_prefix: String,
    /// Takes uncommitted changes and untracked files of the primary along. They are copied.
    pub carry_changes: bool,
    /// Counts the files that are not copied from the primary; takes as long as `git status` there,
    /// in parallel with the other steps. Without it, nothing is copied either: no include list, no
    /// carried changes.
    pub look_at_primary: bool,
    /// Ignored files that are copied from the primary, in the syntax of `.gitignore`. The project's own
    /// `.worktreeinclude` comes after these.
    pub include: Vec<String>,
    /// Bytes of all included files together.
    pub include_bytes: u64,
    /// How many files are included at most.
    pub include_files: u64,
    /// The treatment of large ignored directories.
    pub big: Vec<BigDirectory>,
    /// Bytes of all cloned directories together.
    pub clone_bytes: u64,
    /// A file of patterns that this user ignores everywhere (`core.excludesFile`).
    pub excludes_file: Option<PathBuf>,
    /// Name and address for the session's commits, where the repository sets none.
    pub identity: Option<(String, String)>,
    /// Outside a repository: bytes of a directory that is copied at most.
    pub copy_bytes: u64,
    /// Outside a repository: files that are copied at most.
    pub copy_files: u64,
    /// Outside a repository: bytes up to which the copy's first state is recorded, so that it can be
    /// compared with later.
    pub record_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        let include = [".env", ".env.*", ".envrc", ".mcp.json", ".claude/settings.local.json"];
        Self {
            base: None,
            branch_prefix: "overmind/".to_owned(),
            carry_changes: false,
            look_at_primary: true,
            include: include.map(str::to_owned).to_vec(),
            include_bytes: 16 << 20,
            include_files: 1000,
            big: Vec::new(),
            clone_bytes: 8 << 30,
            excludes_file: None,
            identity: None,
            copy_bytes: 4 << 30,
            copy_files: 500_000,
            record_bytes: 256 << 20,
        }
    }
}

/// A large directory that the repository ignores, and what becomes of it in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BigDirectory {
    /// A path from the top of the repository, or one name, which then means every ignored directory
    /// of this name.
    pub path: String,
    pub strategy: Strategy,
}

/// The treatment of a large directory. There is no strategy of hard links: a write in place through one
/// changes the primary's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// A link to the primary's directory. The sandbox decides whether it can be written to through it;
    /// without one, it can.
    Share,
    /// A copy, which shares blocks where the file system can.
    Clone,
    /// Nothing.
    Skip,
}
