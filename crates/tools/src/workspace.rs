//! Access to files below a session's workspace, and to no others.
//!
//! The kernel resolves every path, component by component, relative to an open descriptor of the
//! workspace (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`), and all work uses the
//! resulting descriptor. So no check can be bypassed by replacing a symlink, and no text prefix can
//! match a sibling directory.
//!
//! * A relative symlink that stays inside is followed; one that leads out is refused. Every
//!   absolute symlink is refused, even to a target inside, because the kernel cannot distinguish
//!   them.
//! * A path that goes above the workspace is refused even if it comes back.
//! * Commands see the workspace at `/workspace`, so agents use such paths: that prefix is removed,
//!   and so is the workspace's own absolute path. Any other absolute path is an escape.
//! * The server's own files ([`OffLimits`]) are refused by device and inode of the opened file, so
//!   that no hard link, bind mount or other spelling leads to them.
//! * A repository's own files (everything in `.git`, a bare repository) can be read but not
//!   written: a process that writes `.git/config` controls what the user's next git command runs.
//! * Only regular files are read and replaced. Their type is checked on an `O_PATH` descriptor,
//!   which does not open them: a FIFO cannot block, and a device notices nothing.
//!
//! Everything here blocks; [`blocking`] moves it off the async threads.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_core::failpoint;
use overmind_core::off_limits::{FileId, OffLimits};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::secret_file;
use overmind_core::tool::ToolContext;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde_json::json;

use crate::answer::{Failure, brief};

/// The path at which commands see the workspace.
const INSIDE: &str = "/workspace";
/// How long a path resolution is retried. The kernel gives up when anything on the machine is
/// renamed while it resolves a `..`.
const MAX_RACE: Duration = Duration::from_secs(2);
/// More parent directories than a path can name.
const MAX_DEPTH: usize = 4096;

/// Why a path yields no file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    #[error("Path escapes workspace")]
    Escapes,
    /// No session may use this workspace.
    #[error("{why}")]
    OffLimits { why: String },
    #[error("{path} is a file of the server, which no tool reads or writes")]
    Own { path: String },
    #[error("{path} belongs to a git repository, and file tools do not write it: use git")]
    Repository { path: String },
    #[error("{}", secret_file::withheld(path))]
    Withheld { path: String },
    #[error("the secrets of the workspace cannot be withheld: {why}")]
    NotWithheld { why: String },
    #[error("Path contains a NUL character")]
    Nul,
    /// Nothing is there, or a directory instead of a file.
    #[error("file not found")]
    NotFound { path: String, why: &'static str },
    #[error("{path} is not a directory")]
    NotDirectory { path: String },
    #[error("{path} is a directory")]
    IsDirectory { path: String },
    #[error("{path} is not a regular file")]
    NotRegular { path: String },
    #[error("{path} was changed by another process meanwhile; read it again and retry")]
    Changed { path: String },
    #[error("{path} could not be resolved, because files were renamed meanwhile; try again")]
    Busy { path: String },
    #[error("{attempt} {path}: {source}")]
    Io { attempt: &'static str, path: String, source: io::Error },
}

impl From<PathError> for Failure {
    fn from(err: PathError) -> Self {
        let message = err.to_string();
        match err {
            PathError::NotFound { path, why } => Failure::new("not_found", message)
                .with_details(json!({"path": path, "reason": why})),
            PathError::Busy { .. } => Failure::new("temporarily_unavailable", message),
            PathError::Nul
            | PathError::NotDirectory { .. }
            | PathError::IsDirectory { .. }
            | PathError::NotRegular { .. } => Failure::new("invalid_path", message),
            PathError::Own { .. } | PathError::Repository { .. } | PathError::Withheld { .. } => {
                Failure::new("forbidden", message)
            }
            PathError::OffLimits { .. } => Failure::new("bad_config", message),
            PathError::Escapes
            | PathError::NotWithheld { .. }
            | PathError::Changed { .. }
            | PathError::Io { .. } => Failure::tool_error(message),
        }
    }
}

/// Runs file work on the blocking pool.
///
/// # Cancel safety
///
/// Dropping the future does not stop work that has begun; it is limited and ends by itself.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(err) => match err.try_into_panic() {
            // The gateway turns it into an answer.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Failure::tool_error("the hive is shutting down; nothing was done")),
        },
    }
}

/// The directory of a session's files, and the files that it must not access.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    path: PathBuf,
    off_limits: OffLimits,
    /// Whether secrets are withheld; without a sandbox that is useless, because any command shows
    /// them.
    withholds: bool,
}

impl Root {
    pub(crate) fn of(context: &ToolContext) -> Self {
        Self {
            path: context.workspace.clone(),
            off_limits: context.off_limits.clone(),
            withholds: context.sandbox != SandboxLevel::None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in which everything is allowed.
    #[cfg(test)]
    pub(crate) fn plain(path: &Path) -> Self {
        Self { path: path.to_owned(), off_limits: OffLimits::default(), withholds: false }
    }
}

/// The directory in a workspace for files that tools of MCP servers make.
const ARTIFACTS: &str = ".overmind_runs";

/// The content of a file that a tool of an MCP server made; `None` if it is missing, is larger than
/// `max_bytes`, is reached through a link, or has a second hard link.
pub(crate) fn artifact(workspace: &Path, path: &str, max_bytes: usize) -> Option<Vec<u8>> {
    let root =
        Root { path: workspace.to_owned(), off_limits: OffLimits::default(), withholds: false };
    let workspace = Workspace::open(&root).ok()?;
    let path = workspace.relative(path).ok().filter(|path| path.starts_with(ARTIFACTS))?;
    let mut opened = workspace.open_file(&path).ok()?;
    // Neither a link nor a hard link can lead to another user's file.
    let single = rustix::fs::fstat(&opened.file).ok()?.st_nlink == 1;
    if !single || workspace.real(&opened.file)? != path {
        return None;
    }
    opened.read_all(max_bytes).ok()?
}

/// A workspace, opened.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: OwnedFd,
    path: PathBuf,
    off_limits: OffLimits,
    withholds: bool,
}

/// A file that is open for reading, with its state at that time.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) bytes: u64,
    /// The path relative to the workspace, with symlinks resolved.
    pub(crate) shown: String,
    seen: Seen,
}

/// Tells whether a file is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    dev: u64,
    ino: u64,
    size: i64,
    mtime: (i64, i64),
}

impl Seen {
    #[expect(clippy::useless_conversion, reason = "the fields' types differ between platforms")]
    #[expect(clippy::unnecessary_cast, reason = "the fields' types differ between platforms")]
    fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev.into(),
            ino: stat.st_ino.into(),
            size: stat.st_size,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
        }
    }
}

impl Opened {
    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    /// Reads the whole file; `None` if it has, or grows to, more than `max_bytes`.
    pub(crate) fn read_all(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, PathError> {
        let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
        if self.bytes > limit {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        (&self.file)
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| io_error("reading", &self.shown, source))?;
        Ok((bytes.len() <= max_bytes).then_some(bytes))
    }
}

impl Workspace {
    pub(crate) fn open(root: &Root) -> Result<Self, PathError> {
        let Root { path, off_limits, withholds } = root;
        if let Some(why) = off_limits.refusal(path) {
            return Err(PathError::OffLimits { why });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The target was checked; a link that was created since may lead elsewhere.
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = rustix::fs::openat2(CWD, path, flags, Mode::empty(), how).map_err(|err| {
            io_error("opening the workspace", &path.to_string_lossy(), err.into())
        })?;
        let (path, off_limits) = (path.clone(), off_limits.clone());
        Ok(Self { root, path, off_limits, withholds: *withholds })
    }

    /// The path of `given`, relative to the workspace; `.` is the workspace.
    pub(crate) fn relative(&self, given: &str) -> Result<PathBuf, PathError> {
        if given.contains('\0') {
            return Err(PathError::Nul);
        }
        let given = Path::new(given);
        let inside = if given.is_absolute() {
            // This compares components: `/workspace2` does not begin with `/workspace`.
            given
                .strip_prefix(&self.path)
                .or_else(|_| given.strip_prefix(INSIDE))
                .map_err(|_| PathError::Escapes)?
        } else {
            given
        };
        // This drops `.` and doubled slashes; the kernel handles `..`.
        let clean: PathBuf = inside.components().filter(|c| *c != Component::CurDir).collect();
        Ok(if clean.as_os_str().is_empty() { PathBuf::from(".") } else { clean })
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        let begun = Instant::now();
        loop {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if begun.elapsed() < MAX_RACE => std::thread::yield_now(),
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    /// Refuses the server's own files and directories, and everything in such a directory, by
    /// whatever path they were reached.
    fn permit(&self, found: &OwnedFd, path: &Path) -> Result<(), PathError> {
        let stat = stat(found, path)?;
        if self.off_limits.is_own(id(&stat)) {
            return Err(own(path));
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            self.permit_above(found, &stat, path)?;
        }
        Ok(())
    }

    /// Checks a directory and its parents, up to the workspace.
    fn permit_above(&self, dir: &OwnedFd, stat_of: &Stat, path: &Path) -> Result<(), PathError> {
        let root = id(&stat(&self.root, path)?);
        let up = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |err: Errno| io_error("looking above", &lossy(path), err.into());
        let (mut at, mut here) = (None::<OwnedFd>, id(stat_of));
        for _ in 0..MAX_DEPTH {
            if here == root {
                return Ok(());
            }
            if self.off_limits.is_own(here) {
                return Err(own(path));
            }
            let from = at.as_ref().unwrap_or(dir);
            let above = rustix::fs::openat(from, "..", up, Mode::empty()).map_err(failed)?;
            let there = id(&stat(&above, path)?);
            if there == here {
                break;
            }
            (at, here) = (Some(above), there);
        }
        // It was moved out meanwhile, or is deeper than any real directory.
        Err(PathError::Escapes)
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &Path) -> Result<Opened, PathError> {
        let found =
            self.resolve(path, OFlags::PATH).map_err(|err| refused("opening", path, err))?;
        let stat = stat(&found, path)?;
        if self.off_limits.is_own(id(&stat)) {
            return Err(own(path));
        }
        // This is the real path: the given one may have led through a link.
        let real = self.real(&found);
        let above = real.as_deref().unwrap_or(path).parent();
        if let Some(above) = above.filter(|above| !above.as_os_str().is_empty()) {
            self.open_dir(above)?;
        }
        let shown = self.shown(&found, path);
        self.refuse_secret(real.as_deref().unwrap_or(path), &stat)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => {
                return Err(PathError::NotFound { path: shown, why: "it is a directory" });
            }
            _ => return Err(PathError::NotRegular { path: shown }),
        }
        // Through /proc the same inode is opened again, now for reading, whatever the path refers
        // to by now.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(proc_path(&found), flags, Mode::empty())
            .map_err(|err| io_error("opening", &shown, err.into()))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Opened { file: file.into(), bytes, shown, seen: Seen::of(&stat) })
    }

    /// Refuses a secret of the repository that was not granted, by its path and by its identity.
    fn refuse_secret(&self, path: &Path, stat: &Stat) -> Result<(), PathError> {
        // A withheld file has such a name, or a hard link with such a name.
        if !self.withholds || !(secret_file::may_be(path) || stat.st_nlink > 1) {
            return Ok(());
        }
        let refused = || PathError::Withheld { path: lossy(path) };
        if stat.st_nlink <= 1 {
            let is_one = self.off_limits.withholds(&self.path, path);
            let is_one = is_one.map_err(|why| PathError::NotWithheld { why })?;
            return if is_one { Err(refused()) } else { Ok(()) };
        }
        let withheld = self.off_limits.withheld(&self.path);
        let withheld = withheld.map_err(|why| PathError::NotWithheld { why })?;
        let is_it = |secret: &PathBuf| {
            let same = || {
                let found = rustix::fs::statat(&self.root, secret, AtFlags::SYMLINK_NOFOLLOW);
                found.is_ok_and(|found| id(&found) == id(stat))
            };
            path.starts_with(secret) || same()
        };
        match withheld.iter().any(is_it) {
            true => Err(refused()),
            false => Ok(()),
        }
    }

    /// Opens a directory for reading.
    pub(crate) fn open_dir(&self, path: &Path) -> Result<OwnedFd, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let found = self.resolve(path, flags).map_err(|err| match err {
            Errno::NOTDIR => PathError::NotDirectory { path: lossy(path) },
            err => refused("opening", path, err),
        })?;
        self.permit(&found, path)?;
        Ok(found)
    }

    /// Opens a directory; creates it and its parents if they are missing.
    pub(crate) fn make_dir(&self, path: &Path) -> Result<OwnedFd, PathError> {
        match self.open_dir(path) {
            Err(PathError::NotFound { .. }) => {}
            done => return done,
        }
        if is_gits(path) {
            return Err(PathError::Repository { path: brief(&lossy(path)) });
        }
        // The kernel would refuse it, too, but only after some directories were created.
        if climbs_out(path) {
            return Err(PathError::Escapes);
        }
        let mut reached = self.no_repository(self.open_dir(Path::new("."))?, path)?;
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            reached = match (self.open_dir(&prefix), component) {
                (Err(PathError::NotFound { .. }), Component::Normal(name)) => {
                    match rustix::fs::mkdirat(&reached, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) => sync(&reached, &prefix)?,
                        // Another process created it; or it is a symlink to nowhere, which the next
                        // line reports.
                        Err(Errno::EXIST) => {}
                        Err(err) => return Err(refused("creating", &prefix, err)),
                    }
                    self.open_dir(&prefix)?
                }
                (opened, _) => self.no_repository(opened?, path)?,
            };
        }
        Ok(reached)
    }

    /// Refuses a directory that is, or is inside of, a repository's own directory: by its real
    /// path, and by its contents.
    fn no_repository(&self, dir: OwnedFd, path: &Path) -> Result<OwnedFd, PathError> {
        let refused = || PathError::Repository { path: brief(&lossy(path)) };
        let real = self.real(&dir).ok_or(PathError::Escapes)?;
        if is_gits(&real) {
            return Err(refused());
        }
        let has = |above: &Path, name: &str, wanted: &[FileType]| {
            let found = rustix::fs::statat(&self.root, above.join(name), AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| wanted.contains(&FileType::from_raw_mode(found.st_mode)))
        };
        let is_repository = |above: &Path| {
            let directory = [FileType::Directory, FileType::Symlink];
            has(above, "HEAD", &[FileType::RegularFile, FileType::Symlink])
                && has(above, "objects", &directory)
                && has(above, "refs", &directory)
        };
        match real.ancestors().any(is_repository) {
            true => Err(refused()),
            false => Ok(dir),
        }
    }

    /// The path of an open file, relative to the workspace; `given` if it cannot be determined.
    pub(crate) fn shown(&self, found: impl AsFd, given: &Path) -> String {
        lossy(self.real(found).as_deref().unwrap_or(given))
    }

    /// The current path of an open file, relative to the current path of the workspace.
    pub(crate) fn real(&self, found: impl AsFd) -> Option<PathBuf> {
        let root = std::fs::read_link(proc_path(&self.root)).ok()?;
        let path = std::fs::read_link(proc_path(found)).ok()?;
        let inside = path.strip_prefix(root).ok()?;
        Some(if inside.as_os_str().is_empty() { PathBuf::from(".") } else { inside.to_owned() })
    }

    /// Replaces a file, or creates a new one with its parent directories.
    ///
    /// Readers see either the old bytes or the new ones, also after a power cut: the bytes are
    /// written to `.overmind-tmp-<key>` beside the file, synced to disk, and then renamed. The mode
    /// is kept, and so is the owner if we may set it; hard links are not kept. A symlink is kept
    /// and its target is replaced. With `only`, the file must still be the one that was read.
    ///
    /// A crash can leave the temporary file; the next call with the same key removes it.
    pub(crate) fn replace(
        &self,
        path: &Path,
        bytes: &[u8],
        key: &str,
        only: Option<Seen>,
    ) -> Result<String, PathError> {
        let (dir, name, shown) = self.target(path)?;
        let old = match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(err) => return Err(refused("looking at", path, err)),
        };
        if let Some(old) = &old {
            if self.off_limits.is_own(id(old)) {
                return Err(own(path));
            }
            self.refuse_secret(Path::new(&shown), old)?;
            match FileType::from_raw_mode(old.st_mode) {
                FileType::RegularFile => {}
                FileType::Directory => return Err(PathError::IsDirectory { path: shown }),
                FileType::Symlink => return Err(PathError::Changed { path: shown }),
                _ => return Err(PathError::NotRegular { path: shown }),
            }
            // A rename would ignore the write protection of a file.
            rustix::fs::accessat(&dir, &name, rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)
                .map_err(|err| refused("writing", path, err))?;
        }
        let temp = Temp::create(&dir, format!(".overmind-tmp-{key}"))
            .map_err(|err| refused("creating a temporary file beside", path, err))?;
        let write = |mut file: &File| {
            file.write_all(bytes)?;
            if let Some(old) = &old {
                keep_owner_and_mode(file, old)?;
            }
            file.sync_all()
        };
        write(&temp.file).map_err(|source| io_error("writing", &shown, source))?;
        if let Some(only) = only {
            let now = rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            if !now.is_ok_and(|now| Seen::of(&now) == only) {
                return Err(PathError::Changed { path: shown });
            }
        }
        failpoint::point("tools.before_rename");
        temp.rename(&name).map_err(|err| refused("replacing", path, err))?;
        sync(&dir, path)?;
        Ok(shown)
    }

    /// The directory, the name in it, and the path to show of a file that will be replaced.
    fn target(&self, path: &Path) -> Result<(OwnedFd, OsString, String), PathError> {
        let (dir, name) = self.place(path)?;
        let stat = rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW);
        let link = stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink);
        let (dir, name) = if link {
            let end = self.resolve(path, OFlags::PATH).map_err(|err| match err {
                Errno::NOENT => io_error("following the symlink", &lossy(path), err.into()),
                err => refused("following the symlink", path, err),
            })?;
            let real = self.real(&end).ok_or(PathError::Escapes)?;
            self.place(&real)?
        } else {
            (dir, name)
        };
        let shown = match self.real(&dir) {
            Some(above) if above == Path::new(".") => lossy(Path::new(&name)),
            Some(above) => lossy(&above.join(&name)),
            None => lossy(path),
        };
        Ok((dir, name, shown))
    }

    fn place(&self, path: &Path) -> Result<(OwnedFd, OsString), PathError> {
        if is_gits(path) {
            return Err(PathError::Repository { path: brief(&lossy(path)) });
        }
        // `.`, `..` and `a/..` have no file name.
        let Some(name) = path.file_name().filter(|name| *name != OsStr::new(".")) else {
            self.open_dir(path)?;
            return Err(PathError::IsDirectory { path: lossy(path) });
        };
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            Some(_) | None => Path::new("."),
        };
        Ok((self.no_repository(self.make_dir(above)?, path)?, name.to_owned()))
    }
}

/// A new file that is removed unless it gets its final name.
struct Temp<'a> {
    dir: &'a OwnedFd,
    name: String,
    file: File,
    kept: bool,
}

impl<'a> Temp<'a> {
    fn create(dir: &'a OwnedFd, name: String) -> Result<Self, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // `name` has no slash and is not `..`, so it cannot lead out of `dir`.
        let open = || rustix::fs::openat(dir, &name, flags, Mode::from_raw_mode(0o666));
        let file = match open() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(dir, &name, AtFlags::empty())?;
                open()?
            }
            done => done?,
        };
        Ok(Self { dir, name, file: file.into(), kept: false })
    }

    fn rename(mut self, to: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat(self.dir, &self.name, self.dir, to)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // A failure is harmless: the next call with the same key tries again.
            let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

fn keep_owner_and_mode(file: &File, old: &Stat) -> io::Result<()> {
    let new = rustix::fs::fstat(file)?;
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
        // Only root may do this; for other users the file becomes their own, as with any editor
        // that saves by renaming.
        let (uid, gid) =
            (rustix::fs::Uid::from_raw(old.st_uid), rustix::fs::Gid::from_raw(old.st_gid));
        let _ = rustix::fs::fchown(file, Some(uid), Some(gid));
    }
    // The set-uid and set-gid bits are removed, as by a write.
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(old.st_mode & 0o777))?)
}

fn sync(dir: &OwnedFd, path: &Path) -> Result<(), PathError> {
    rustix::fs::fsync(dir)
        .map_err(|err| io_error("syncing the directory of", &lossy(path), err.into()))
}

/// Whether some prefix of `path`, as text, has more `..` than names.
fn climbs_out(path: &Path) -> bool {
    let mut depth = 0_usize;
    path.components().any(|component| match component {
        Component::Normal(_) => {
            depth += 1;
            false
        }
        Component::CurDir => false,
        Component::ParentDir => match depth.checked_sub(1) {
            Some(above) => {
                depth = above;
                false
            }
            None => true,
        },
        Component::RootDir | Component::Prefix(_) => true,
    })
}

/// Whether a path leads to or into a `.git`, in any letter case, because some file systems ignore
/// case.
fn is_gits(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().eq_ignore_ascii_case(".git"))
}

fn stat(found: &OwnedFd, path: &Path) -> Result<Stat, PathError> {
    rustix::fs::fstat(found).map_err(|err| io_error("looking at", &lossy(path), err.into()))
}

#[expect(clippy::useless_conversion, reason = "the fields' types differ between platforms")]
fn id(stat: &Stat) -> FileId {
    FileId { device: stat.st_dev.into(), inode: stat.st_ino.into() }
}

fn own(path: &Path) -> PathError {
    PathError::Own { path: brief(&lossy(path)) }
}

fn proc_path(found: impl AsFd) -> String {
    format!("/proc/self/fd/{}", found.as_fd().as_raw_fd())
}

fn io_error(attempt: &'static str, path: &str, source: io::Error) -> PathError {
    PathError::Io { attempt, path: brief(path), source }
}

fn refused(attempt: &'static str, path: &Path, err: Errno) -> PathError {
    match err {
        Errno::XDEV => PathError::Escapes,
        Errno::AGAIN => PathError::Busy { path: brief(&lossy(path)) },
        Errno::NOENT | Errno::NOTDIR => {
            PathError::NotFound { path: brief(&lossy(path)), why: "nothing is there" }
        }
        err => io_error(attempt, &lossy(path), err.into()),
    }
}

fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changed_since_it_was_read_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(&Root::plain(dir.path())).unwrap();
        let path = Path::new("f");
        std::fs::write(dir.path().join("f"), "one").unwrap();
        let seen = workspace.open_file(path).unwrap().seen();
        std::fs::write(dir.path().join("f"), "other").unwrap();
        let err = workspace.replace(path, b"mine", "k", Some(seen)).unwrap_err();
        assert!(matches!(err, PathError::Changed { .. }), "{err}");
        assert_eq!(std::fs::read_to_string(dir.path().join("f")).unwrap(), "other");
        std::fs::remove_file(dir.path().join("f")).unwrap();
        let err = workspace.replace(path, b"mine", "k", Some(seen)).unwrap_err();
        assert!(matches!(err, PathError::Changed { .. }), "{err}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn only_a_prefix_with_more_parents_than_names_leaves_the_workspace() {
        for (path, wanted) in [
            ("a/b", false),
            ("a/../b", false),
            ("..", true),
            ("a/../../b", true),
            ("a/../..", true),
            ("a/b/../../c", false),
            ("/a", true),
        ] {
            assert_eq!(climbs_out(Path::new(path)), wanted, "{path}");
        }
    }

    #[test]
    fn an_absolute_path_is_split_into_components() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(&Root::plain(dir.path())).unwrap();
        let own = dir.path().to_str().unwrap();
        for (given, wanted) in [
            ("/workspace", Some(".")),
            ("/workspace/", Some(".")),
            ("/workspace/a/./b", Some("a/b")),
            ("/workspace2/a", None),
            ("/", None),
            (&format!("{own}/a"), Some("a")),
            (&format!("{own}2/a"), None),
        ] {
            let got = workspace.relative(given).ok();
            assert_eq!(got.as_deref(), wanted.map(Path::new), "{given}");
        }
    }
}
