//! The file of variables in a session's worktree.
//!
//! Written whole or not at all, never over a tracked file or over one that is not ours, and kept
//! out of `git status` by a line of the repository's own `info/exclude`, which no commit carries.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::dotenv;
use crate::owner;

/// The first words of every file of ours.
const HEADING: &str = "Written by Overmind for the session";

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error("{} is a tracked file of the repository: name another `env_file`", path.display())]
    Tracked { path: PathBuf },
    #[error(
        "{} is there and was not written by Overmind: name another `env_file`, or leave it out of \
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
    let parent = path.parent().unwrap_or(worktree);
    std::fs::create_dir_all(parent).map_err(file("making", parent))?;
    let real = parent.canonicalize().map_err(file("finding", parent))?;
    let root = worktree.canonicalize().map_err(file("finding", worktree))?;
    if !real.starts_with(&root) {
        return Err(EnvFileError::Outside { path });
    }
    if is_tracked(worktree, relative) {
        return Err(EnvFileError::Tracked { path });
    }
    match std::fs::symlink_metadata(&path) {
        Ok(found) if !found.is_file() || !is_ours(&path) => {
            return Err(EnvFileError::NotOurs { path });
        }
        Ok(_) | Err(_) => {}
    }
    let heading = format!(
        "{HEADING} {session}.\nChanges are lost when it is written again; it is not for commits."
    );
    let pairs = variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let text = dotenv::written(&heading, pairs);
    let partial = real.join(format!(".overmind-env-{}", std::process::id()));
    let write = || -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        // Passwords stand in it.
        let mut to =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        to.write_all(text.as_bytes())?;
        std::fs::rename(&partial, &path)?;
        owner::give(worktree, &path)
    };
    let _ = std::fs::remove_file(&partial);
    write().map_err(file("writing", &path))
}

/// Removes the file if it is ours; what is gone already is no error.
pub(crate) fn remove(worktree: &Path, relative: &Path) -> Result<(), EnvFileError> {
    let path = worktree.join(relative);
    if !is_ours(&path) {
        return Ok(());
    }
    match std::fs::remove_file(&path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(file("removing", &path)(err)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_ours(path: &Path) -> bool {
    std::fs::read_to_string(path)
        .is_ok_and(|text| text.strip_prefix("# ").is_some_and(|text| text.starts_with(HEADING)))
}

fn git(worktree: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(worktree).stdin(Stdio::null()).stderr(Stdio::null());
    // Variables of whoever started the daemon may point at another repository.
    for name in
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_CEILING_DIRECTORIES"]
    {
        command.env_remove(name);
    }
    if let Some(user) = owner::of(worktree) {
        // Git refuses a repository of somebody else's; and what its configuration names runs as they do.
        command
            .uid(user.uid)
            .gid(user.gid)
            .env("HOME", "/nonexistent")
            .env_remove("XDG_CONFIG_HOME");
    }
    command
}

/// Whether the repository of `worktree` tracks the file; `false` outside of any.
pub(crate) fn is_tracked(worktree: &Path, relative: &Path) -> bool {
    let mut command = git(worktree);
    command.args(["ls-files", "--error-unmatch", "--"]).arg(relative).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The repository's own list of what to ignore, which all its worktrees share.
pub(crate) fn exclude_file(worktree: &Path) -> Option<PathBuf> {
    let output = git(worktree)
        .args(["rev-parse", "--path-format=absolute", "--git-path", "info/exclude"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| PathBuf::from(text.trim_end()))
}

/// Whether git ignores the file already, by whatever rule.
fn is_ignored(worktree: &Path, relative: &Path) -> bool {
    let mut command = git(worktree);
    command.args(["check-ignore", "--quiet", "--"]).arg(relative).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Keeps the file out of `git status`; says where it wrote a line, if it did.
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

/// Takes the line away again.
pub(crate) fn include(list: &Path, relative: &Path) -> Result<(), EnvFileError> {
    if !list.exists() {
        return Ok(());
    }
    edit(list, |lines| lines.retain(|line| *line != line_for(relative)))
}

/// The file and no other of that name, with our mark.
fn line_for(relative: &Path) -> String {
    let mut escaped = String::new();
    for c in relative.to_string_lossy().chars() {
        if "*?[]\\!# ".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    format!("/{escaped}")
}

/// Changes the lines of a shared file under a lock, whole or not at all.
fn edit(list: &Path, change: impl FnOnce(&mut Vec<String>)) -> Result<(), EnvFileError> {
    let parent = list.parent().unwrap_or(list);
    std::fs::create_dir_all(parent).map_err(file("making", parent))?;
    let lock = std::fs::File::open(parent).map_err(file("opening", parent))?;
    lock.lock().map_err(file("locking", parent))?;
    let text = match std::fs::read_to_string(list) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => String::new(),
        Err(err) => return Err(file("reading", list)(err)),
    };
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let before = lines.clone();
    change(&mut lines);
    if lines != before {
        let mut text = lines.join("\n");
        text.push('\n');
        let partial = parent.join("exclude.overmind");
        std::fs::write(&partial, text).map_err(file("writing", &partial))?;
        std::fs::rename(&partial, list).map_err(file("writing", list))?;
    }
    Ok(())
}
