//! A separate tree for each session, created from the repository that contains its project.
//!
//! Start with [`Trees`]. [`Trees::plan`] decides everything and changes nothing; its [`TreeIntent`] is
//! what a lease journal writes down before [`Trees::make`]. From the intent alone every later step
//! works: [`Trees::status`], [`Trees::diff`], [`Trees::park`], [`Trees::merge`], [`Trees::remove`], …,
//! and [`Trees::undo`] after a crash, in whatever state things are.
//!
//! A session's tree is not a worktree of the primary repository in git's sense: it has a repository of
//! its own that borrows the primary's objects (docs/decisions, "A repository for each session"). So
//! nothing that a session does with git reaches the primary's references, configuration, hooks, index or
//! files. Its work comes back when we fetch it: as data, checked, and never by running git under a
//! configuration that the session could write.
//!
//! Trees refuse to remove work that is saved nowhere; to write into the primary's tree except in
//! [`Trees::merge`]; to run hooks, filters or helpers of a repository; to use the network.
//!
//! Every function blocks and runs to its end: call them where blocking is allowed.

mod adopt;
mod build;
mod carry;
mod error;
mod filters;
mod finish;
pub(crate) mod gitdir;
mod history;
mod identity;
mod left;
mod merge;
mod names;
mod notes;
mod options;
mod pack;
mod prepare;
mod primary;
mod snapshot;
mod source;
mod submodule;
mod upkeep;

pub use self::adopt::Operation;
pub use self::error::TreeError;
pub use self::finish::{Discarded, Parked, Published, Removed};
pub use self::history::{FilesAt, Restored, SavedFiles};
pub use self::left::Left;
pub use self::merge::{MergeInto, Merged};
pub use self::notes::{Ending, HostPath, Listed, Origin, TreeIntent};
pub use self::options::{BigDirectory, Options, Request, Strategy};
pub(crate) use self::prepare::session_env;
pub use self::prepare::{LeftBehind, Plan, Prepared, Taken, Warning};
pub use self::snapshot::{Change, ChangeKind, Diff, FileStat, Status};
pub use self::upkeep::Swept;

pub(crate) use self::build::{Ground, Template, Warmth, ignored_everywhere};
pub(crate) use self::error::At;
pub(crate) use self::source::{References, Source, find, find_within, unlinked};
pub(crate) use self::upkeep::note_project_of;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use overmind_core::off_limits::OffLimits;
use rustix::fs::{FlockOperation, flock};

use self::source::{Settings, SettingsCache};
use crate::copy;
use crate::git::Git;
use crate::opener::Own;

/// How long a lock of a daemon that was killed is waited for: its children hold it until they have become
/// other programs.
const OPENING: Duration = Duration::from_secs(5);
/// How deep locks are looked for in a git directory: those of branches, and of submodules.
const LOCK_DEPTH: u32 = 8;
/// The directory of half-created and removed objects: never a session's name.
const HALF_MADE: &str = ".making-";
const TRASH: &str = ".trash";

/// All trees of one data directory.
///
/// ```text
/// <root>/<hash>-<project>/<session>/tree     the session's working tree; `.git` in it is its own
///                                  /ours     our git directory: no session can write there
///                                  /notes    what is known of it
///                        /ready/…            trees that wait for a session
/// ```
#[derive(Debug)]
pub struct Trees {
    root: PathBuf,
    /// Tells our references in a primary from those of other daemons.
    id: String,
    git: Git,
    settings: SettingsCache,
    /// Bases of trees that are being made: no note names them yet.
    wanted: Mutex<Vec<String>>,
    /// Directories of projects in which trees are being made: they look empty.
    making: Mutex<Vec<PathBuf>>,
    /// One turn for each primary that was merged into, by its common git directory.
    merges: Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>,
    /// The environment of the user whose commits these are; without one they are Overmind's.
    user: BTreeMap<String, String>,
    off_limits: OffLimits,
    /// Held as long as this lives: two daemons would remove each other's half-made trees.
    _lock: Lock,
}

impl Trees {
    /// Opens the directory, makes it where it is missing, ends what a killed daemon left at work there,
    /// and then removes what it left half made.
    ///
    /// # Errors
    ///
    /// [`TreeError::InUse`] when another program has it open, or does not end; I/O errors.
    pub fn open(root: &Path, git: Git) -> Result<Self, TreeError> {
        std::fs::create_dir_all(root).at("making", root)?;
        let root = std::fs::canonicalize(root).at("finding", root)?;
        let path = root.join(".lock");
        let until = Instant::now() + OPENING;
        let lock = loop {
            match Lock::take(&path).at("opening", &path)? {
                Some(lock) => break lock,
                None if Instant::now() >= until => return Err(TreeError::InUse { root }),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let id_path = root.join(".id");
        let id = crate::lease::home_id(&id_path).at("reading", &id_path)?;
        // Not the id, which sessions see: none shall pass for a git of ours.
        let mark_path = root.join(".mark");
        let mark = crate::lease::home_id(&mark_path).at("reading", &mark_path)?;
        let git = git.marked(&mark);
        if !git.end_left() {
            return Err(TreeError::InUse { root });
        }
        let trees = Self {
            root,
            id,
            git,
            settings: SettingsCache::default(),
            wanted: Mutex::default(),
            making: Mutex::default(),
            merges: Mutex::default(),
            user: BTreeMap::new(),
            off_limits: OffLimits::default(),
            _lock: lock,
        };
        trees.clear_half_made()?;
        trees.clear_locks()?;
        Ok(trees)
    }

    /// Commits of work have the identity of the user's git, which has this environment.
    #[must_use]
    pub fn of_user(self, environment: BTreeMap<String, String>) -> Self {
        Self { user: environment, ..self }
    }

    /// Files of the server are not copied into a tree.
    #[must_use]
    pub fn keeping_out(self, off_limits: OffLimits) -> Self {
        Self { off_limits, ..self }
    }

    /// Files of the server, now.
    pub(crate) fn own(&self) -> Own {
        Own::of(&self.off_limits)
    }

    /// Whether a project may be given to a session: its whole repository.
    pub(crate) fn may_be_given(&self, project: &Path, source: &Source) -> Result<(), TreeError> {
        if source.common.starts_with(&self.root) {
            let why = "is in the tree of a session".to_owned();
            return Err(TreeError::Unsound { path: source.common.clone(), why });
        }
        source.check(&self.own())?;
        let top = source.top.as_ref().unwrap_or(&source.common);
        match self.off_limits.refusal(top) {
            None => Ok(()),
            Some(why) => {
                let (project, top) = (project.to_owned(), top.clone());
                Err(TreeError::OffLimits { project, top, why })
            }
        }
    }

    /// These directories of a repository's objects, and those that they borrow and its caller may use:
    /// all that commands are shown of them.
    pub(crate) fn shown(&self, source: &Source, objects: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut all = gitdir::with_alternates(objects, &self.root, &self.off_limits);
        if source.within.is_some() {
            let is_plain = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == *path);
            all.retain(|path| source.reaches(path) && is_plain(path));
        }
        all
    }

    /// The directories of objects outside of a repository that its commands are shown.
    pub(crate) fn lenders(&self, source: &Source) -> Vec<PathBuf> {
        let mut all = self.shown(source, vec![source.common.join("objects")]);
        all.retain(|path| !path.starts_with(&source.common));
        all
    }

    /// Variables that make a commit the user's, in one of their projects; none without an identity.
    pub(crate) fn by(&self, source: Option<&Source>) -> Vec<(&'static str, String)> {
        match self.user.is_empty() {
            true => Vec::new(),
            false => {
                let git_dir = source.map(|source| source.git_dir.as_path());
                identity::variables(&self.git, git_dir, &self.user)
            }
        }
    }

    /// The directory that holds all trees.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn git(&self) -> &Git {
        &self.git
    }

    pub(crate) fn cache(&self) -> &SettingsCache {
        &self.settings
    }

    pub(crate) fn settings(&self, source: &Source) -> Result<Arc<Settings>, TreeError> {
        self.settings.get(&self.git, source)
    }

    /// Has the primary keep a base as long as the guard lives, at least.
    pub(crate) fn want_base(&self, source: &Source, base: &str) -> Result<Wanted<'_>, TreeError> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).push(base.to_owned());
        let wanted = Wanted { trees: self, base: base.to_owned() };
        // Now, and not when it was planned: another session's end may have released it since.
        if !source.common.join(self.base_reference(base)).is_file() {
            self.keep_base(source, base)?;
        }
        Ok(wanted)
    }

    /// The turn of merges into a primary: held from reading a branch to moving it, so that the next one
    /// begins with what this one has made.
    pub(crate) fn turn(&self, source: &Source) -> Arc<Mutex<()>> {
        let mut merges = self.merges.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(merges.entry(source.common.clone()).or_default())
    }

    /// Keeps a project's directory from being taken for empty as long as the guard lives.
    pub(crate) fn making_in(&self, home: &Path) -> Making<'_> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner).push(home.to_owned());
        Making { trees: self, home: home.to_owned() }
    }

    /// Removes a project's directory if it is empty and no tree is being created in it.
    pub(crate) fn remove_empty_home(&self, home: &Path) -> Result<bool, TreeError> {
        // Held until it is removed: a concurrent creation starts again.
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = !making.iter().any(|busy| busy == home)
            && directories(home)?.is_empty()
            && directories(&home.join(crate::pool::READY))?.is_empty();
        if empty {
            self.throw_away(home)?;
        }
        drop(making);
        Ok(empty)
    }

    /// The directories of projects.
    pub(crate) fn homes(&self) -> Result<Vec<PathBuf>, TreeError> {
        directories(&self.root)
    }

    fn clear_half_made(&self) -> Result<(), TreeError> {
        let trash = self.root.join(TRASH);
        copy::remove_all(&trash).at("removing", &trash)?;
        for home in self.homes()? {
            for within in [home.clone(), home.join(crate::pool::READY)] {
                let Ok(entries) = std::fs::read_dir(&within) else { continue };
                for entry in entries {
                    let entry = entry.at("listing", &within)?;
                    if entry.file_name().as_encoded_bytes().starts_with(HALF_MADE.as_bytes()) {
                        copy::remove_all(&entry.path()).at("removing", entry.path())?;
                        overmind_core::failpoint::point("tree.cleared");
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes locks of killed git processes in our git directories: no git works there now.
    fn clear_locks(&self) -> Result<(), TreeError> {
        for home in self.homes()? {
            let places = directories(&home)?.into_iter();
            for place in places.chain(directories(&home.join(crate::pool::READY))?) {
                remove_locks(&place.join("ours"), LOCK_DEPTH)?;
            }
        }
        Ok(())
    }

    /// Moves a directory out of sight in one step and then removes it: a crash in between leaves it in
    /// the trash, which the next start empties.
    pub(crate) fn throw_away(&self, path: &Path) -> Result<(), TreeError> {
        let trash = self.root.join(TRASH);
        std::fs::create_dir_all(&trash).at("making", &trash)?;
        for number in 0_u32.. {
            let target = trash.join(number.to_string());
            match rustix::fs::renameat_with(
                rustix::fs::CWD,
                path,
                rustix::fs::CWD,
                &target,
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {
                    overmind_core::failpoint::point("tree.in-the-trash");
                    return copy::remove_all(&target).at("removing", &target);
                }
                Err(rustix::io::Errno::EXIST) => {}
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(errno.into()).at("moving to the trash", path),
            }
        }
        Ok(())
    }
}

/// A lock on a file, released when it is dropped. It is released explicitly, because a process that
/// another thread is about to start holds copies of our descriptors for a moment, and the lock with
/// them.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock; `None` when it is held.
    pub(crate) fn take(path: &Path) -> std::io::Result<Option<Self>> {
        let file = File::options().create(true).append(true).open(path)?;
        let taken = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        Ok(taken.then_some(Self(file)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A failure here is harmless: the kernel releases it with the last copy.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A base that a tree is being made from.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    trees: &'a Trees,
    base: String,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.trees.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = wanted.iter().position(|base| *base == self.base) {
            wanted.swap_remove(at);
        }
    }
}

/// A project's directory in which something is being made.
#[derive(Debug)]
pub(crate) struct Making<'a> {
    trees: &'a Trees,
    home: PathBuf,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut making = self.trees.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = making.iter().position(|home| *home == self.home) {
            making.swap_remove(at);
        }
    }
}

/// Removes what git calls `….lock` in a git directory that no session can write.
fn remove_locks(dir: &Path, depth: u32) -> Result<(), TreeError> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry.at("listing", dir)?;
        let (name, path) = (entry.file_name(), entry.path());
        let kind = entry.file_type().at("looking at", &path)?;
        if kind.is_dir() && depth > 0 && name != "objects" {
            remove_locks(&path, depth - 1)?;
        } else if kind.is_file() && name.as_encoded_bytes().ends_with(b".lock") {
            std::fs::remove_file(&path).at("removing", &path)?;
        }
    }
    Ok(())
}

/// The directories within a directory whose names do not begin with a dot.
pub(crate) fn directories(dir: &Path) -> Result<Vec<PathBuf>, TreeError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err).at("listing", dir),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.at("listing", dir)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.file_type().at("listing", entry.path())?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
