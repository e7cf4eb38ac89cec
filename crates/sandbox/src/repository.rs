//! What of a person's own repository a command may not change, though it works in its checkout.
//!
//! Whoever changes `.git/config`, a hook or `HEAD` decides what the person's next git runs, outside of
//! every sandbox. So these lie read-only over themselves, in the repository and in those of its submodules
//! and worktrees. The `.git` itself lies over itself as well: it could be moved away otherwise, and another
//! one be made. A tree of a session's own is not meant: its repository is the session's.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use overmind_core::sandbox::SandboxError;
use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::hidden::Hidden;
use crate::init::spec::Kind;
use crate::request::bad_config;

/// What decides about what git runs and where it looks, in a git directory.
const DECIDES: &[&str] = &[
    "config",
    "config.worktree",
    "HEAD",
    "commondir",
    "gitdir",
    "info",
    "hooks",
    "objects/info/alternates",
];
/// Directories of these that are made where they are missing, or the command would make them.
const MADE: &[&str] = &["info", "hooks"];
/// More git directories than this in one, submodules and worktrees, are not looked for.
const MOST: usize = 200;
/// So deep may the name of a submodule be.
const DEEPEST: usize = 8;

/// What lies over itself, relative to the root inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fixed {
    /// Stays where it is; what is in it may be changed.
    pub(crate) pinned: Vec<PathBuf>,
    /// Stays as it is.
    pub(crate) read_only: Vec<PathBuf>,
}

/// What is fixed of a workspace.
///
/// # Errors
///
/// When it cannot be: one of those is a link, or there are too many submodules.
pub(crate) fn fixed(
    hidden: Hidden<'_>,
    kind: &Kind,
    workspace: &Path,
) -> Result<Fixed, SandboxError> {
    let Kind::Namespace { living, .. } = kind else { return Ok(Fixed::default()) };
    let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let is_own = |rooms: &PathBuf| {
        rooms.canonicalize().is_ok_and(|rooms| real != rooms && real.starts_with(rooms))
    };
    let at = real.join(".git");
    let Some(meta) = there(&at)?.filter(|_| !hidden.rooms.iter().any(is_own)) else {
        return Ok(Fixed::default());
    };
    let mut fixed = Fixed::default();
    if meta.is_dir() {
        fixed.pinned.push(at.clone());
        of_git_dir(&at, &meta, true, &mut fixed.read_only)?;
        let mut dirs = Vec::new();
        below(&at.join("modules"), 0, &mut dirs)?;
        below(&at.join("worktrees"), 0, &mut dirs)?;
        for dir in dirs {
            of_git_dir(&dir, &meta, false, &mut fixed.read_only)?;
        }
    } else {
        // It says where the repository is.
        fixed.read_only.push(at);
    }
    let inside = match living {
        None => Path::new("workspace"),
        Some(_) => workspace.strip_prefix("/").unwrap_or(workspace),
    };
    for path in fixed.pinned.iter_mut().chain(&mut fixed.read_only) {
        if let Ok(beneath) = path.strip_prefix(&real) {
            *path = inside.join(beneath);
        }
    }
    Ok(fixed)
}

/// What is at a path, which may be no link.
fn there(path: &Path) -> Result<Option<Metadata>, SandboxError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Err(bad_config(format!(
            "{} is a link, which a command that works in this checkout could replace: put what it leads \
             to in its place, or give the agent a worktree of its own",
            path.display()
        ))),
        Ok(found) => Ok(Some(found)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(bad_config(format!("{} cannot be looked at: {err}", path.display()))),
    }
}

fn of_git_dir(
    dir: &Path,
    owner: &Metadata,
    is_repository: bool,
    read_only: &mut Vec<PathBuf>,
) -> Result<(), SandboxError> {
    for name in DECIDES {
        let path = dir.join(name);
        if there(&path)?.is_some() {
            read_only.push(path);
        } else if is_repository && MADE.contains(name) {
            make(dir, name, owner)
                .map_err(|err| bad_config(format!("{} cannot be made: {err}", path.display())))?;
            read_only.push(path);
        }
    }
    Ok(())
}

/// Makes a directory that git would make, as its owner's.
fn make(dir: &Path, name: &str, owner: &Metadata) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::NO_MAGICLINKS;
    let at = rustix::fs::openat2(CWD, dir, flags | OFlags::RDONLY, Mode::empty(), how)?;
    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(err) => return Err(err),
    }
    let made = rustix::fs::openat2(
        &at,
        name,
        flags | OFlags::RDONLY,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )?;
    let (user, group) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&made, Some(user), Some(group))?;
    }
    Ok(())
}

/// Git directories below one: what has a `HEAD`.
fn below(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), SandboxError> {
    if depth > DEEPEST || !there(dir)?.is_some_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir && path.join("HEAD").symlink_metadata().is_ok() {
            if found.len() >= MOST {
                return Err(bad_config(format!(
                    "{} holds more than {MOST} repositories of submodules and worktrees: give the agent \
                     a worktree of its own",
                    dir.display()
                )));
            }
            found.push(path.clone());
            below(&path.join("modules"), depth + 1, found)?;
        } else if is_dir {
            below(&path, depth + 1, found)?;
        }
    }
    Ok(())
}
