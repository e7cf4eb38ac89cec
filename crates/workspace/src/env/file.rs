//! Writes the file of variables in a session's worktree.
//!
//! It is written completely or not at all, never over a tracked file or a file of others, and is
//! hidden from `git status` by a line in the repository's own `info/exclude`, which no commit
//! contains.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::dotenv;
use crate::opener::Dir;
use crate::owner;
use crate::tree::gitdir::pattern;

/// The first words of every file that Overmind writes.
const HEADING: &str = "Written by Overmind for the session";

/// The largest file that Overmind writes.
const MAX_BYTES: u64 = 16 << 20;

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error("{} is a tracked file of the repository: name another `env_file`", path.display())]
    Tracked { path: PathBuf },
    #[error(
        "{} exists and was not written by Overmind: name another `env_file`, or leave it out of \
         `worktree.include`", path.display()
    )]
    NotOurs { path: PathBuf },
    #[error("{} leads out of the worktree", path.display())]
    Outside { path: PathBuf },
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EnvFileError {
    let path = path.to_owned();
    move |source| EnvFileError::File { what, path, source }
}

/// Writes the variables to `relative` in `worktree`.
pub(crate) fn write(
    worktree: &Path,
    relative: &Path,
    session: &str,
    variables: &[(String, String)],
) -> Result<(), EnvFileError> {
    let path = worktree.join(relative);
    let failed = |what, source: io::Error| match Errno::from_io_error(&source) {
        // Programs of the session may write there by now. No link is followed.
        Some(Errno::LOOP | Errno::NOTDIR) => EnvFileError::Outside { path: path.clone() },
        _ => file(what, &path)(source),
    };
    let tree = Dir::open(worktree).map_err(file("opening", worktree))?;
    let there = tree.stat(relative).map_err(|err| failed("finding", err))?;
    if there.is_some() && !is_ours(&tree, relative) {
        return Err(EnvFileError::NotOurs { path });
    }
    let heading = format!(
        "{HEADING} {session}.\nChanges are lost when it is written again; it is not for commits."
    );
    let pairs = variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let text = dotenv::written(&heading, pairs);
    // It contains passwords.
    let written = tree.replace(relative, text.as_bytes(), 0o600);
    written.and_then(|()| owner::give(worktree, &path)).map_err(|err| failed("writing", err))
}

/// Removes the file if Overmind wrote it; a missing file is no error.
pub(crate) fn remove(worktree: &Path, relative: &Path) -> Result<(), EnvFileError> {
    let path = worktree.join(relative);
    let tree = match Dir::open(worktree) {
        Ok(tree) => tree,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(file("opening", worktree)(err)),
    };
    if !is_ours(&tree, relative) {
        return Ok(());
    }
    tree.remove(relative).map_err(file("removing", &path))
}

fn is_ours(tree: &Dir, relative: &Path) -> bool {
    let ours = format!("# {HEADING}");
    let text = tree.read(relative, MAX_BYTES).ok().flatten();
    text.is_some_and(|text| text.starts_with(ours.as_bytes()))
}

fn git(worktree: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(worktree).stdin(Stdio::null()).stderr(Stdio::null());
    // Variables of the daemon's caller may refer to another repository.
    for name in
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_CEILING_DIRECTORIES"]
    {
        command.env_remove(name);
    }
    if let Some(user) = owner::of(worktree) {
        // Git refuses another user's repository, and programs in its configuration run as its user.
        command
            .uid(user.uid)
            .gid(user.gid)
            .env("HOME", "/nonexistent")
            .env_remove("XDG_CONFIG_HOME");
    }
    command
}

/// Whether the repository of `worktree` tracks the file; `false` without a repository.
pub(crate) fn is_tracked(worktree: &Path, relative: &Path) -> bool {
    let mut command = git(worktree);
    command.args(["ls-files", "--error-unmatch", "--"]).arg(relative).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The repository's own list of ignored files, which all its worktrees share.
pub(crate) fn exclude_file(worktree: &Path) -> Option<PathBuf> {
    let output = git(worktree)
        .args(["rev-parse", "--path-format=absolute", "--git-path", "info/exclude"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| PathBuf::from(text.trim_end()))
}

/// Whether git already ignores the file, by any rule.
fn is_ignored(worktree: &Path, relative: &Path) -> bool {
    let mut command = git(worktree);
    command.args(["check-ignore", "--quiet", "--"]).arg(relative).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Hides the file from `git status`; returns where it wrote a line, if it did.
pub(crate) fn exclude(worktree: &Path, relative: &Path) -> Result<Option<PathBuf>, EnvFileError> {
    let Some(list) = exclude_file(worktree) else { return Ok(None) };
    if is_ignored(worktree, relative) {
        return Ok(None);
    }
    edit(&list, |lines| {
        let line = line_for(relative);
        if !lines.contains(&line) {
            lines.push(line);
        }
    })?;
    owner::give(worktree, &list).map_err(file("giving away", &list))?;
    Ok(Some(list))
}

/// Removes that line.
pub(crate) fn include(list: &Path, relative: &Path) -> Result<(), EnvFileError> {
    if !list.exists() {
        return Ok(());
    }
    edit(list, |lines| lines.retain(|line| *line != line_for(relative)))
}

/// A pattern for exactly this file.
fn line_for(relative: &Path) -> String {
    // A path in the project's file is a text of one line.
    let line = pattern(relative).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// Changes the lines of a shared file under a lock, completely or not at all. The session may write
/// there, so no link is followed.
fn edit(list: &Path, change: impl FnOnce(&mut Vec<String>)) -> Result<(), EnvFileError> {
    let (Some(parent), Some(name)) = (list.parent(), list.file_name()) else { return Ok(()) };
    let above = parent.parent().unwrap_or(parent);
    let dir = Dir::open_plain(above)
        .and_then(|dir| dir.sub_made(Path::new(parent.file_name().unwrap_or_default())))
        .map_err(file("opening", parent))?;
    flock(&dir.fd, FlockOperation::LockExclusive)
        .map_err(|err| file("locking", parent)(err.into()))?;
    let text = dir.read(Path::new(name), MAX_BYTES).map_err(file("reading", list))?;
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let before = lines.clone();
    change(&mut lines);
    if lines != before {
        let mut text = lines.join("\n");
        text.push('\n');
        dir.replace(Path::new(name), text.as_bytes(), 0o644).map_err(file("writing", list))?;
    }
    Ok(())
}
