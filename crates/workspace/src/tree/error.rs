//! Errors of trees, with the remedy for the reader.

use std::io;
use std::path::{Path, PathBuf};

use overmind_core::shell_word::shell_word;

use crate::git::GitError;

/// The command by which a repository names a working tree.
fn naming(dir: &Path, is_linked: bool) -> String {
    let dir = shell_word(&dir.to_string_lossy());
    match is_linked {
        true => format!("git -C {dir} worktree repair"),
        false => format!("git -C {dir} config core.worktree {dir}"),
    }
}

/// Why a tree could not be created, read, saved or removed. No step is left partly done: a failed
/// step is undone, or the next call completes it.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{attempt} {}", path.display())]
    File {
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(
        "{} points to a repository that does not exist: fix it, or remove it to use the directory without git",
        file.display()
    )]
    BrokenRedirect { file: PathBuf },
    #[error(
        "{} {why}: only files inside the repository itself are opened; \
         move it into the repository, or clone the repository again", path.display()
    )]
    Unsound { path: PathBuf, why: String },
    #[error(
        "{} is a symbolic link now, or is below one, and was a directory when the run was created: start a \
         run in the directory itself", path.display()
    )]
    Led { path: PathBuf },
    #[error(
        "the repository of {} uses {}, which is outside the directories that this run may use: an admin can \
         declare it for others, as a Project with the path {}",
        project.display(), path.display(), path.display()
    )]
    Beyond { project: PathBuf, path: PathBuf },
    #[error(
        "{} leads to the repository {}, which does not name it as a working tree. If it is one: `{}`",
        dir.display(), repository.display(), naming(dir, *is_linked)
    )]
    NotOurs { dir: PathBuf, repository: PathBuf, is_linked: bool },
    #[error("the repository of {} begins at {}: {why}", project.display(), top.display())]
    OffLimits { project: PathBuf, top: PathBuf, why: String },
    #[error("{base:?} names no commit in {}", repo.display())]
    NoSuchBase { base: String, repo: PathBuf },
    #[error("a session named {session} was created in the meantime: try again")]
    NameTaken { session: String },
    #[error("there is no tree at {}: it was removed, or never finished", place.display())]
    Gone { place: PathBuf },
    #[error(
        "the repository {} no longer exists: if it was moved, say where to (`relink`); the files of \
         the session are still in {}",
        repo.display(), tree.display()
    )]
    RepositoryGone { repo: PathBuf, tree: PathBuf },
    #[error("{} holds another program's lock: another Overmind works in this directory", root.display())]
    InUse { root: PathBuf },
    #[error("another step works on the tree of {session}: wait for it")]
    Busy { session: String },
    #[error(
        "{} is inside {}: a copy would contain itself; use another data directory",
        root.display(), project.display()
    )]
    ContainsUs { project: PathBuf, root: PathBuf },
    #[error(
        "saving would take {bytes} bytes of {files} files that are new or changed, and {limit} are allowed; \
         ignore the large ones, for example {}",
        largest.display()
    )]
    TooLarge { bytes: u64, files: usize, limit: u64, largest: PathBuf },
    #[error("nothing of {session} was removed: {}", unsaved.join("; "))]
    Unsaved { session: String, unsaved: Vec<String> },
    #[error("{session} is kept on request: release it first")]
    Kept { session: String },
    #[error("merging needs a repository, and {session} works on a copy of a directory")]
    NoRepository { session: String },
    #[error("{branch} does not exist in {}, so nothing can be merged into it", repo.display())]
    NoSuchBranch { branch: String, repo: PathBuf },
    #[error(
        "{} has no branch checked out, so name the one to merge into: `--merge --into BRANCH`",
        repo.display()
    )]
    NoBranch { repo: PathBuf },
    #[error(
        "{branch} is checked out in a working tree that {} does not name: decide from within that working \
         tree's own runs, or merge into another branch",
        git_dir.display()
    )]
    CheckoutUnknown { branch: String, git_dir: PathBuf },
    #[error("{name:?} is not a valid name of a git branch")]
    BadBranch { name: String },
    #[error(
        "there is a branch {branch} in {} already, and it has other commits: name another one, or merge into it \
         with `--merge --into {branch}`",
        repo.display()
    )]
    BranchTaken { branch: String, repo: PathBuf },
    #[error("{session} has uncommitted changes: commit or save them before merging")]
    Uncommitted { session: String },
    #[error("{branch} is checked out in {}: check out another branch there first", top.display())]
    CheckedOut { branch: String, top: PathBuf },
    #[error("the commit {commit} is not in {} any more", repo.display())]
    WorkGone { commit: String, repo: PathBuf },
    #[error("a {what} is in progress in {}: finish it first", top.display())]
    PrimaryBusy { what: &'static str, top: PathBuf },
    #[error(
        "merging into {branch} would overwrite uncommitted work in {}: {}. Commit it there, or put it \
         aside (`git stash -u`), and merge again; or merge into another branch: `--merge --into BRANCH`",
        top.display(), in_the_way(files, said)
    )]
    PrimaryInTheWay { branch: String, top: PathBuf, files: Vec<PathBuf>, said: String },
    #[error(
        "{}", match label {
            None => format!("nothing of {session} was changed that could be undone"),
            Some(label) => format!(
                "there is no snapshot {label} of {session}; there are {}", known.join(", ")
            ),
        }
    )]
    NoFilesAt { session: String, label: Option<String>, known: Vec<String> },
    #[error("the notes of the tree at {} cannot be read", place.display())]
    Notes {
        place: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Adds the operation and the object to an I/O error.
pub(crate) trait At<T> {
    fn at(self, attempt: &'static str, path: impl AsRef<Path>) -> Result<T, TreeError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, attempt: &'static str, path: impl AsRef<Path>) -> Result<T, TreeError> {
        self.map_err(|source| TreeError::File { attempt, path: path.as_ref().to_owned(), source })
    }
}

/// The files that keep a merge out, as many as a person reads; git's own words where they are not known.
fn in_the_way(files: &[PathBuf], said: &str) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<String> =
        files.iter().take(SHOWN).map(|file| file.display().to_string()).collect();
    match files.len() {
        0 => said.to_owned(),
        few if few <= SHOWN => shown.join(", "),
        many => format!("{} and {} more", shown.join(", "), many - SHOWN),
    }
}
