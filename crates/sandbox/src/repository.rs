//! What of a person's own repository a command may not change, though it works in its checkout.
//!
//! Whoever changes `.git/config`, a hook or `HEAD` decides what the person's next git runs, outside of
//! every sandbox. So these lie read-only over themselves, in the repository and in those of its submodules
//! and worktrees. What git must find in its place lies over itself as well, writable: a mount point can be
//! neither moved nor removed, and a `.git` without `HEAD`, `refs` or `objects` is none to git, which then
//! looks for a repository in the checkout itself. A directory above a mount point can be moved, so those on
//! the way are mount points too. A tree of a session's own is not meant: its repository is the session's.
//!
//! File tools (`overmind-tools`) need no such list: they write nothing at all of a repository's.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use overmind_core::sandbox::SandboxError;
use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::hidden::Hidden;
use crate::init::spec::Kind;
use crate::request::bad_config;

/// What decides about what git runs and where it looks, in a git directory, and what is put there
/// where it is missing: a command would make it otherwise.
const DECIDES: &[(&str, Missing)] = &[
    ("config", Missing::Stays),
    // Read only where the configuration says so.
    ("config.worktree", Missing::EmptyIfRead),
    ("HEAD", Missing::Stays),
    // Leads git to another configuration. A dot is the git directory itself.
    ("commondir", Missing::File(".\n")),
    ("gitdir", Missing::Stays),
    ("info", Missing::Directory),
    ("hooks", Missing::Directory),
    // Repositories that a later `git submodule update` would take.
    ("modules", Missing::Directory),
    ("worktrees", Missing::Stays),
    ("objects/info", Missing::Parent),
    ("objects/info/alternates", Missing::File("")),
];
/// What git must find where it is, and a command writes into.
const STAYS: &[&str] = &["objects", "refs"];
/// More git directories than this in one, submodules and worktrees, are not looked for.
const MOST: usize = 200;
/// So deep may the name of a submodule be.
const DEEPEST: usize = 8;
/// The longest `.git` file or configuration that is looked into.
const LONGEST: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Stays,
    Directory,
    File(&'static str),
    EmptyIfRead,
    /// Made like a directory, and writable: what is in it may be fixed.
    Parent,
}

/// What lies over itself, relative to the root inside, those above before those beneath.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fixed {
    /// Stays where it is; what is in it may be changed.
    pub(crate) pinned: Vec<PathBuf>,
    /// Stays as it is.
    pub(crate) read_only: Vec<PathBuf>,
}

impl Fixed {
    /// Each path, and whether it is read-only.
    pub(crate) fn all(&self) -> Vec<(&Path, bool)> {
        let pinned = self.pinned.iter().map(|path| (path.as_path(), false));
        let read_only = self.read_only.iter().map(|path| (path.as_path(), true));
        let mut all: Vec<_> = pinned.chain(read_only).collect();
        // Read-only last of the same path.
        all.sort();
        all
    }
}

/// What is fixed of a workspace for a command of this kind; nothing where it `writes` nothing.
///
/// # Errors
///
/// When it cannot be: one of those is a link, or there are too many submodules.
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

/// What is fixed of a workspace, relative to it.
///
/// # Errors
///
/// As [`fixed`].
pub(crate) fn of(hidden: Hidden<'_>, workspace: &Path) -> Result<Fixed, SandboxError> {
    let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let is_own = |rooms: &PathBuf| {
        rooms.canonicalize().is_ok_and(|rooms| real != rooms && real.starts_with(rooms))
    };
    if hidden.rooms.iter().any(is_own) {
        return Ok(Fixed::default());
    }
    let mut found = Finding { top: &real, fixed: Fixed::default(), dirs: 0 };
    if is_git_dir(&real) {
        // A bare repository.
        found.git_dir(&real, there(&real)?.as_ref())?;
    }
    let at = real.join(".git");
    match there(&at)? {
        None => {}
        Some(meta) if meta.is_dir() => {
            found.pin(&at);
            found.git_dir(&at, Some(&meta))?;
        }
        // It says where the repository is.
        Some(_) => found.dot_git_file(&at)?,
    }
    let Fixed { mut pinned, mut read_only } = found.fixed;
    for paths in [&mut pinned, &mut read_only] {
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
}

impl Finding<'_> {
    /// Fixes where something is, and all that it lies in.
    fn pin(&mut self, path: &Path) {
        let way = path.ancestors().take_while(|above| *above != self.top);
        self.fixed.pinned.extend(way.map(Path::to_owned));
    }

    fn git_dir(&mut self, dir: &Path, owner: Option<&Metadata>) -> Result<(), SandboxError> {
        for name in STAYS {
            let path = dir.join(name);
            if there(&path)?.is_some() {
                self.fixed.pinned.push(path);
            }
        }
        // Those of linked worktrees have most in their repository.
        let is_repository = dir.join("objects").is_dir();
        for (name, missing) in DECIDES {
            let path = dir.join(name);
            if there(&path)?.is_none() {
                if !is_repository && *missing != Missing::EmptyIfRead {
                    continue;
                }
                let made = Self::missing(dir, name, *missing, owner);
                if !made.map_err(|err| {
                    bad_config(format!("{} cannot be made: {err}", path.display()))
                })? {
                    continue;
                }
            }
            match missing {
                Missing::Parent => self.fixed.pinned.push(path),
                _ => self.fixed.read_only.push(path),
            }
        }
        let (modules, worktrees) = (dir.join("modules"), dir.join("worktrees"));
        self.below(&modules, 0, owner)?;
        self.below(&worktrees, 0, owner)
    }

    /// Whether it is there now.
    fn missing(
        dir: &Path,
        name: &str,
        missing: Missing,
        owner: Option<&Metadata>,
    ) -> Result<bool, Errno> {
        let text = match missing {
            Missing::Stays => return Ok(false),
            Missing::EmptyIfRead if !reads_config_of_worktree(dir) => return Ok(false),
            Missing::EmptyIfRead => Some(""),
            Missing::File(text) => Some(text),
            Missing::Directory | Missing::Parent => None,
        };
        make(dir, Path::new(name), text, owner).map(|()| true)
    }

    /// Git directories below one: what has a `HEAD`.
    fn below(
        &mut self,
        dir: &Path,
        depth: usize,
        owner: Option<&Metadata>,
    ) -> Result<(), SandboxError> {
        if depth > DEEPEST || !there(dir)?.is_some_and(|meta| meta.is_dir()) {
            return Ok(());
        }
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && path.join("HEAD").symlink_metadata().is_ok() {
                self.dirs += 1;
                if self.dirs > MOST {
                    return Err(bad_config(format!(
                        "{} holds more than {MOST} repositories of submodules and worktrees: give \
                         the agent a worktree of its own",
                        dir.display()
                    )));
                }
                self.fixed.pinned.push(path.clone());
                self.git_dir(&path, owner)?;
                self.checkout_of(&path)?;
            } else if is_dir {
                self.below(&path, depth + 1, owner)?;
            }
        }
        Ok(())
    }

    /// The `.git` file of a submodule's checkout, which git reads whenever it looks at the whole.
    fn checkout_of(&mut self, git_dir: &Path) -> Result<(), SandboxError> {
        let Some(config) = small(&git_dir.join("config")) else { return Ok(()) };
        let line = config.lines().find_map(|line| {
            let (key, value) = line.trim().split_once('=')?;
            key.trim().eq_ignore_ascii_case("worktree").then(|| value.trim().trim_matches('"'))
        });
        let checkout = line.map(|line| plainly(&git_dir.join(line)));
        let Some(checkout) = checkout.filter(|path| path.starts_with(self.top)) else {
            return Ok(());
        };
        // A link on the way would lead the mount elsewhere: the init refuses it.
        let file = checkout.join(".git");
        if there(&file)?.is_some_and(|found| found.is_file()) {
            self.pin(&checkout);
            self.fixed.read_only.push(file);
        }
        Ok(())
    }

    /// A checkout whose repository lies elsewhere: that too, where it lies in the workspace.
    fn dot_git_file(&mut self, file: &Path) -> Result<(), SandboxError> {
        self.fixed.read_only.push(file.to_owned());
        let text = small(file).unwrap_or_default();
        let Some(said) = text.trim_end().strip_prefix("gitdir:") else { return Ok(()) };
        let dir = plainly(&self.top.join(said.trim()));
        if dir != self.top && dir.starts_with(self.top) {
            let meta = there(&dir)?;
            if meta.is_some() {
                self.pin(&dir);
                self.git_dir(&dir, meta.as_ref())?;
            }
        }
        Ok(())
    }
}

fn is_git_dir(dir: &Path) -> bool {
    ["objects", "refs"].iter().all(|name| dir.join(name).is_dir())
        && dir.join("HEAD").symlink_metadata().is_ok()
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
        Err(err)
            if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(err) => Err(bad_config(format!("{} cannot be looked at: {err}", path.display()))),
    }
}

/// The path without `..` and `.`, by its text.
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

/// The text of a small regular file.
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

/// Whether git reads `config.worktree` there: the configuration says so, or may.
fn reads_config_of_worktree(dir: &Path) -> bool {
    let common = match small(&dir.join("commondir")) {
        Some(said) => plainly(&dir.join(said.trim())),
        None => dir.to_owned(),
    };
    let config = small(&common.join("config")).unwrap_or_default().to_ascii_lowercase();
    config.contains("worktreeconfig") || config.contains("[include")
}

/// Makes a directory that git would make, or a file with this text, as its owner's.
fn make(
    dir: &Path,
    name: &Path,
    text: Option<&str>,
    owner: Option<&Metadata>,
) -> Result<(), Errno> {
    let look = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let how = ResolveFlags::NO_MAGICLINKS;
    let at = rustix::fs::openat2(CWD, dir, look, Mode::empty(), how)?;
    let at = match name.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => rustix::fs::openat2(&at, above, look, Mode::empty(), within)?,
        None => at,
    };
    let name = name.file_name().ok_or(Errno::INVAL)?;
    let made = match text {
        None => {
            match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(err) => return Err(err),
            }
            rustix::fs::openat2(&at, name, look, Mode::empty(), within)?
        }
        Some(text) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o644);
            let made = match rustix::fs::openat2(&at, name, flags, mode, within) {
                // Another start made it.
                Err(Errno::EXIST) => return Ok(()),
                made => made?,
            };
            rustix::io::write(&made, text.as_bytes())?;
            made
        }
    };
    if let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) {
        let (user, group) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
        rustix::fs::fchown(&made, Some(user), Some(group))?;
    }
    Ok(())
}
