//! Protects the parts of a user's own repository that a command may not change while it works in
//! its checkout.
//!
//! A process that changes files in `.git` controls what the user's next git command runs and where
//! it writes, outside of every sandbox: by the configuration, a hook or `HEAD`; or by a link in
//! place of `logs/HEAD`, `COMMIT_EDITMSG` or a reference, through which git writes to any file. So
//! a git directory is mounted read-only over itself, with those of its submodules and worktrees,
//! and so are the `.git` files of their checkouts. A submodule's directory that is no checkout yet
//! is read-only as a whole, because git would take a repository in it for the submodule. If it is
//! missing, it is created empty, as git does. Reading commands work (`status`, `log`, `diff`); a
//! commit fails with the error that the file system is read-only. A mount point can be neither
//! moved nor removed, but a directory above it could be moved, so the directories above are mount
//! points too. A session's own worktree is not affected, because its repository belongs to the
//! session.
//!
//! File tools (`overmind-tools`) need no such list: they never write to a repository's git
//! directory.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::path::{Component, Path, PathBuf};

use overmind_core::sandbox::SandboxError;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::hidden::Hidden;
use crate::init::spec::Kind;
use crate::request::bad_config;

mod index;

/// Entries of a git directory that must not be links, because a link would lead git to a writable
/// file.
const LEADING: &[&str] = &[
    "HEAD",
    "commondir",
    "config",
    "config.worktree",
    "hooks",
    "info",
    "logs",
    "modules",
    "objects",
    "refs",
    "worktrees",
];
/// Maximum number of git directories of submodules and worktrees within one that are searched.
const MOST: usize = 200;
/// The deepest name of a submodule.
const DEEPEST: usize = 8;
/// The longest `.git` file or configuration that is read.
const LONGEST: u64 = 1 << 20;

/// The paths that are mounted over themselves, relative to the root inside, parents before
/// children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fixed {
    /// Paths that cannot be moved; their contents may change.
    pub(crate) pinned: Vec<PathBuf>,
    /// Paths that cannot be changed.
    pub(crate) read_only: Vec<PathBuf>,
}

impl Fixed {
    /// Each path, and whether it is read-only.
    pub(crate) fn all(&self) -> Vec<(&Path, bool)> {
        let pinned = self.pinned.iter().map(|path| (path.as_path(), false));
        let read_only = self.read_only.iter().map(|path| (path.as_path(), true));
        let mut all: Vec<_> = pinned.chain(read_only).collect();
        // For equal paths, read-only ones come last.
        all.sort();
        all
    }
}

/// The protected paths of a workspace for a command of this kind; none if it `writes` nothing.
///
/// # Errors
///
/// Fails if a path cannot be protected: it is a link, or there are too many submodules.
pub(crate) fn fixed(
    hidden: Hidden<'_>,
    kind: &Kind,
    workspace: &Path,
    writes: bool,
) -> Result<Fixed, SandboxError> {
    let Kind::Namespace { living, .. } = kind else { return Ok(Fixed::default()) };
    if !writes {
        return Ok(Fixed::default());
    }
    let inside = match living {
        None => Path::new("workspace"),
        Some(_) => workspace.strip_prefix("/").unwrap_or(workspace),
    };
    let mut fixed = of(hidden, workspace)?;
    for path in fixed.pinned.iter_mut().chain(&mut fixed.read_only) {
        *path = inside.join(&*path);
    }
    Ok(fixed)
}

/// The protected paths of a workspace, relative to it.
///
/// # Errors
///
/// Fails as [`fixed`] does.
pub(crate) fn of(hidden: Hidden<'_>, workspace: &Path) -> Result<Fixed, SandboxError> {
    let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let is_own = |rooms: &PathBuf| {
        rooms.canonicalize().is_ok_and(|rooms| real != rooms && real.starts_with(rooms))
    };
    if hidden.rooms.iter().any(is_own) {
        return Ok(Fixed::default());
    }
    let mut found =
        Finding { top: &real, fixed: Fixed::default(), dirs: 0, submodule_dirs: BTreeSet::new() };
    if is_git_dir(&real) {
        return Err(bad_config(format!(
            "{} is a bare repository, in which a command would decide what git runs: give the agent a \
             worktree of its own, or a checkout",
            real.display()
        )));
    }
    let at = real.join(".git");
    match there(&at)? {
        None => {}
        Some(meta) => found.repository(&at, meta.is_dir(), &real)?,
    }
    let Fixed { mut pinned, mut read_only } = found.fixed;
    let whole: BTreeSet<PathBuf> = read_only.iter().cloned().collect();
    for paths in [&mut pinned, &mut read_only] {
        // A path inside of a read-only one is already read-only; mounted over itself it would not
        // be.
        paths.retain(|path| !path.ancestors().skip(1).any(|above| whole.contains(above)));
        paths.retain_mut(|path| match path.strip_prefix(&real) {
            Ok(beneath) if !beneath.as_os_str().is_empty() => {
                *path = beneath.to_owned();
                true
            }
            Ok(_) | Err(_) => false,
        });
        paths.sort();
        paths.dedup();
    }
    Ok(Fixed { pinned, read_only })
}

struct Finding<'a> {
    top: &'a Path,
    fixed: Fixed,
    dirs: usize,
    /// The submodule directories that were already searched.
    submodule_dirs: BTreeSet<PathBuf>,
}

impl Finding<'_> {
    /// Protects a path, and all directories above it, from being moved.
    fn pin(&mut self, path: &Path) {
        let way = path.ancestors().take_while(|above| *above != self.top);
        self.fixed.pinned.extend(way.map(Path::to_owned));
    }

    /// Handles a checkout's `.git`: a directory, or a file that names the directory.
    fn repository(
        &mut self,
        dot_git: &Path,
        is_dir: bool,
        checkout: &Path,
    ) -> Result<(), SandboxError> {
        if is_dir {
            self.git_dir(dot_git)?;
            return self.submodules(dot_git, checkout);
        }
        self.fixed.read_only.push(dot_git.to_owned());
        let text = small(dot_git).unwrap_or_default();
        let Some(said) = text.trim_end().strip_prefix("gitdir:") else { return Ok(()) };
        let dir = plainly(&checkout.join(said.trim()));
        if dir != self.top && dir.starts_with(self.top) && there(&dir)?.is_some() {
            self.git_dir(&dir)?;
        }
        self.submodules(&dir, checkout)
    }

    /// The submodule directories of a checkout, from the index of its repository.
    fn submodules(&mut self, git_dir: &Path, checkout: &Path) -> Result<(), SandboxError> {
        let all = index::submodules(git_dir).map_err(|why| {
            bad_config(format!(
                "which directories of {} are submodules cannot be told: {} {why}",
                checkout.display(),
                git_dir.join(index::NAME).display()
            ))
        })?;
        for path in all {
            let dir = checkout.join(path);
            if self.submodule_dirs.insert(dir.clone()) {
                self.count(checkout)?;
                self.submodule(&dir)?;
            }
        }
        Ok(())
    }

    fn submodule(&mut self, dir: &Path) -> Result<(), SandboxError> {
        let mut way: Vec<&Path> = dir.ancestors().take_while(|above| *above != self.top).collect();
        way.reverse();
        for above in way {
            there(above)?;
        }
        if there(dir)?.is_none() {
            self.make(dir).map_err(|err| {
                bad_config(format!(
                    "the directory {} of a submodule is missing, and cannot be made: {err}: make it, \
                     or give the agent a worktree of its own",
                    dir.display()
                ))
            })?;
        }
        self.pin(dir);
        let dot_git = dir.join(".git");
        match there(&dot_git)? {
            Some(meta) => self.repository(&dot_git, meta.is_dir(), dir),
            None => {
                self.fixed.read_only.push(dir.to_owned());
                Ok(())
            }
        }
    }

    /// Makes a directory below the top, without following links, with its parent's owner.
    fn make(&self, dir: &Path) -> io::Result<()> {
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::openat2(CWD, self.top, flags, Mode::empty(), how)?;
        for name in dir.strip_prefix(self.top).unwrap_or(dir) {
            let made = match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(err) => return Err(err.into()),
            };
            let above = rustix::fs::fstat(&at)?;
            at = rustix::fs::openat2(&at, name, flags, Mode::empty(), how)?;
            let own = rustix::fs::fstat(&at)?;
            if made && (own.st_uid, own.st_gid) != (above.st_uid, above.st_gid) {
                let (uid, gid) = (Uid::from_raw(above.st_uid), Gid::from_raw(above.st_gid));
                // A process that cannot change the owner is the owner itself.
                let _ = rustix::fs::chownat(&at, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
            }
        }
        Ok(())
    }

    fn count(&mut self, dir: &Path) -> Result<(), SandboxError> {
        self.dirs += 1;
        if self.dirs <= MOST {
            return Ok(());
        }
        Err(bad_config(format!(
            "{} holds more than {MOST} repositories of submodules and worktrees: give the agent a \
             worktree of its own",
            dir.display()
        )))
    }

    /// Protects a git directory as a whole, and the checkouts of the git directories in it.
    fn git_dir(&mut self, dir: &Path) -> Result<(), SandboxError> {
        for name in LEADING {
            there(&dir.join(name))?;
        }
        self.pin(dir);
        self.fixed.read_only.push(dir.to_owned());
        self.below(&dir.join("modules"), 0)?;
        self.below(&dir.join("worktrees"), 0)
    }

    /// Finds git directories below one: those with a `HEAD`.
    fn below(&mut self, dir: &Path, depth: usize) -> Result<(), SandboxError> {
        if depth > DEEPEST || !there(dir)?.is_some_and(|meta| meta.is_dir()) {
            return Ok(());
        }
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && path.join("HEAD").symlink_metadata().is_ok() {
                self.count(dir)?;
                self.checkout_of(&path)?;
                self.below(&path.join("modules"), depth + 1)?;
            } else if is_dir {
                self.below(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Protects the `.git` file of a submodule's or worktree's checkout, which git reads whenever
    /// it processes the whole repository.
    fn checkout_of(&mut self, git_dir: &Path) -> Result<(), SandboxError> {
        let config = small(&git_dir.join("config")).unwrap_or_default();
        let line = config.lines().find_map(|line| {
            let (key, value) = line.trim().split_once('=')?;
            key.trim().eq_ignore_ascii_case("worktree").then(|| value.trim().trim_matches('"'))
        });
        let checkout = match (line, small(&git_dir.join("gitdir"))) {
            (Some(line), _) => Some(plainly(&git_dir.join(line))),
            (None, Some(file)) => plainly(&git_dir.join(file.trim())).parent().map(Path::to_owned),
            (None, None) => None,
        };
        let Some(checkout) = checkout.filter(|path| path.starts_with(self.top)) else {
            return Ok(());
        };
        // A link in the path would lead the mount elsewhere; the init refuses it.
        let file = checkout.join(".git");
        if there(&file)?.is_some_and(|found| found.is_file()) {
            self.pin(&checkout);
            self.fixed.read_only.push(file);
            self.submodules(git_dir, &checkout)?;
        }
        Ok(())
    }
}

fn is_git_dir(dir: &Path) -> bool {
    ["objects", "refs"].iter().all(|name| dir.join(name).is_dir())
        && dir.join("HEAD").symlink_metadata().is_ok()
}

/// The metadata of a path, which must not be a link.
fn there(path: &Path) -> Result<Option<Metadata>, SandboxError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Err(bad_config(format!(
            "{} is a link, which a command that works in this checkout could replace: put what it leads \
             to in its place, or give the agent a worktree of its own",
            path.display()
        ))),
        Ok(found) => Ok(Some(found)),
        Err(err)
            if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(err) => Err(bad_config(format!("{} cannot be looked at: {err}", path.display()))),
    }
}

/// Removes `..` and `.` from a path, without looking at the file system.
fn plainly(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => plain.push(part),
        }
    }
    plain
}

/// Reads a small regular file.
fn small(path: &Path) -> Option<String> {
    let found = path.symlink_metadata().ok()?;
    if !found.is_file() || found.len() > LONGEST {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LONGEST), &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
