//! The only access to files in a workspace or a repository.
//!
//! The server runs as the host's user, but sessions and repositories choose the paths that it
//! reads. So their paths are opened here and nowhere else (`cargo xtask check` looks for others):
//! below an open directory, without following links, without waiting; only regular files up to the
//! reader's limit and directories; and none of the server's own files, by device and inode. A
//! component that became a link meanwhile is an error and never an escape.
//!
//! If links are permitted, they must stay within the directory ([`Dir::real`]): the kernel resolves
//! them once, and the target is opened like any other path.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use overmind_core::objects::{Is, belongs};
use overmind_core::off_limits::{FileId, OffLimits};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Dir as Listing, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat,
    openat, openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

const LOOK: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// It is non-blocking, because the entry may be a pipe without a writer.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The server's own files at the time of this call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own(Arc<HashSet<FileId>>);

impl Own {
    pub(crate) fn of(off_limits: &OffLimits) -> Self {
        Self(Arc::new(off_limits.all()))
    }

    fn check(&self, found: &Stat) -> io::Result<()> {
        let id = FileId { device: found.st_dev, inode: found.st_ino };
        if self.0.contains(&id) { Err(refused(Refused::Own)) } else { Ok(()) }
    }
}

/// Why an existing path is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is one of the server's own files.
    Own,
    /// It is neither a regular file nor a directory, or not the expected one of these.
    Kind(&'static str),
    LeadsOut,
    Larger(u64),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("is the server's own, and no session's"),
            Self::Kind(kind) => write!(f, "is {kind}, and no regular file"),
            Self::LeadsOut => f.write_str("leads out of its directory"),
            Self::Larger(limit) => write!(f, "is longer than {limit} bytes"),
        }
    }
}

impl std::error::Error for Refused {}

fn refused(why: Refused) -> io::Error {
    let kind = match why {
        Refused::Own => io::ErrorKind::PermissionDenied,
        Refused::Kind(_) | Refused::LeadsOut => io::ErrorKind::InvalidInput,
        Refused::Larger(_) => io::ErrorKind::FileTooLarge,
    };
    io::Error::new(kind, why)
}

/// Whether that is the cause of an error.
pub(crate) fn is_own(err: &io::Error) -> bool {
    err.get_ref().and_then(|inner| inner.downcast_ref()) == Some(&Refused::Own)
}

/// Why a path was not opened; the text follows its name.
pub(crate) fn why(err: &io::Error) -> String {
    if let Some(refused) = err.get_ref().and_then(|inner| inner.downcast_ref::<Refused>()) {
        return refused.to_string();
    }
    match Errno::from_io_error(err) {
        Some(Errno::LOOP | Errno::NOTDIR) => {
            "is a link, or is below one, and links are not followed: replace the link with the file itself"
                .to_owned()
        }
        Some(Errno::XDEV) => Refused::LeadsOut.to_string(),
        Some(Errno::NXIO) => Refused::Kind("a socket, or a device").to_string(),
        _ => format!("cannot be read: {err}"),
    }
}

fn kind_of(found: &Stat) -> &'static str {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Symlink => "a link",
        _ => "a device",
    }
}

/// An open directory. Paths below it are opened without following symbolic links and, after
/// [`Dir::without`], never lead to the server's own files.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) fd: OwnedFd,
    own: Own,
}

/// One entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) kind: FileType,
}

impl Dir {
    /// Opens a directory by a path of our own; its last component must not be a link.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: rustix::fs::open(path, LOOK, Mode::empty())?, own: Own::default() })
    }

    /// Opens a directory by a path without any links.
    pub(crate) fn open_plain(path: &Path) -> io::Result<Self> {
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Self { fd: openat2(CWD, path, LOOK, Mode::empty(), how)?, own: Own::default() })
    }

    /// The same directory, without the server's own files in it.
    #[must_use]
    pub(crate) fn without(self, own: &Own) -> Self {
        Self { own: own.clone(), ..self }
    }

    /// The directory below this one.
    pub(crate) fn sub(&self, relative: &Path) -> io::Result<Self> {
        self.walk(relative, false)
    }

    /// The directory below this one, made if it is missing.
    pub(crate) fn sub_made(&self, relative: &Path) -> io::Result<Self> {
        self.walk(relative, true)
    }

    fn walk(&self, relative: &Path, make: bool) -> io::Result<Self> {
        let mut at =
            Self { fd: rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?, own: self.own.clone() };
        for component in relative.components() {
            let name = match component {
                Component::Normal(name) => name,
                Component::CurDir => continue,
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(refused(Refused::LeadsOut));
                }
            };
            if make {
                match mkdirat(&at.fd, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            at.fd = openat(&at.fd, name, LOOK, Mode::empty())?;
            if !at.own.0.is_empty() {
                at.own.check(&fstat(&at.fd)?)?;
            }
        }
        Ok(at)
    }

    /// The parent directory of a path, opened, and the path's last component.
    pub(crate) fn parent<'a>(
        &self,
        relative: &'a Path,
        make: bool,
    ) -> io::Result<(Self, &'a OsStr)> {
        let name = relative
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a path without a name"))?;
        Ok((self.walk(relative.parent().unwrap_or(Path::new("")), make)?, name))
    }

    /// The metadata of the path; `None` if it does not exist, or a parent is no directory.
    pub(crate) fn stat(&self, relative: &Path) -> io::Result<Option<Stat>> {
        let at = self
            .parent(relative, false)
            .and_then(|(dir, name)| Ok(statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW)?));
        absent(at)
    }

    /// Whether the path is a directory, and not a link to one.
    pub(crate) fn has_dir(&self, relative: &Path) -> bool {
        let stat = self.stat(relative).ok().flatten();
        stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Opens a regular file for reading.
    pub(crate) fn file(&self, relative: &Path) -> io::Result<File> {
        let (dir, name) = self.parent(relative, false)?;
        let file = File::from(openat(&dir.fd, name, READ, Mode::empty())?);
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refused(Refused::Kind(kind_of(&found))));
        }
        self.own.check(&found)?;
        Ok(file)
    }

    /// The target of a path, through links that stay below this directory.
    pub(crate) fn real(&self, relative: &Path) -> io::Result<PathBuf> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let there = openat2(&self.fd, relative, flags, Mode::empty(), how)?;
        let (top, there) = (path_of(&self.fd)?, path_of(&there)?);
        let within = there.strip_prefix(top).map_err(|_| refused(Refused::LeadsOut))?;
        Ok(within.to_owned())
    }

    /// Checks that a path is a directory or does not exist.
    pub(crate) fn directory(&self, relative: &Path) -> io::Result<()> {
        match self.stat(relative)? {
            Some(_) => self.sub(relative).map(drop),
            None => Ok(()),
        }
    }

    /// Checks that a path is a regular file within the size limit or does not exist; links to it
    /// must stay within the directory.
    pub(crate) fn regular(&self, relative: &Path, limit: u64) -> io::Result<()> {
        let found = match absent(self.real(relative))? {
            Some(real) => self.stat(&real)?,
            None => None,
        };
        if found.is_some_and(|found| u64::try_from(found.st_size).is_ok_and(|size| size > limit)) {
            return Err(refused(Refused::Larger(limit)));
        }
        match found {
            Some(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
                Err(refused(Refused::Kind(kind_of(&found))))
            }
            Some(found) => self.own.check(&found),
            None => Ok(()),
        }
    }

    /// The contents of a small file; `None` if it does not exist.
    pub(crate) fn read(&self, relative: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = absent(self.file(relative))? else { return Ok(None) };
        if file.metadata()?.len() > limit {
            return Err(refused(Refused::Larger(limit)));
        }
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(refused(Refused::Larger(limit)));
        }
        Ok(Some(bytes))
    }

    /// The same, through links that stay within the directory.
    pub(crate) fn read_within(&self, relative: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(real) = absent(self.real(relative))? else { return Ok(None) };
        self.read(&real, limit)
    }

    /// Writes a new file in place of an existing one, never through it.
    pub(crate) fn write(&self, relative: &Path, bytes: &[u8]) -> io::Result<()> {
        let (dir, name) = self.parent(relative, true)?;
        dir.unlink(name)?;
        dir.create(name, 0o644)?.write_all(bytes)
    }

    /// Writes a file completely or not at all, in place of an existing one, never through a link.
    pub(crate) fn replace(&self, relative: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(relative, true)?;
        let partial = format!(".overmind-{}", std::process::id());
        let partial = OsStr::new(&partial);
        dir.unlink(partial)?;
        dir.create(partial, mode)?.write_all(bytes)?;
        Ok(renameat(&dir.fd, partial, &dir.fd, name)?)
    }

    pub(crate) fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a file or link, if there is one.
    pub(crate) fn remove(&self, relative: &Path) -> io::Result<()> {
        match absent(self.parent(relative, false))? {
            Some((dir, name)) => dir.unlink(name),
            None => Ok(()),
        }
    }

    /// Removes the empty directories above a path, the deepest first.
    pub(crate) fn remove_empty_above(&self, relative: &Path) {
        for dir in relative.ancestors().skip(1).filter(|dir| dir.file_name().is_some()) {
            let removed = self
                .parent(dir, false)
                .and_then(|(above, name)| Ok(unlinkat(&above.fd, name, AtFlags::REMOVEDIR)?));
            if removed.is_err() {
                return;
            }
        }
    }

    /// Makes a symbolic link.
    pub(crate) fn link(&self, target: &Path, relative: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(relative, true)?;
        Ok(symlinkat(target, &dir.fd, name)?)
    }

    /// The text of a link.
    pub(crate) fn target(&self, relative: &Path) -> io::Result<PathBuf> {
        let (dir, name) = self.parent(relative, false)?;
        let target = readlinkat(&dir.fd, name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Every entry except `.` and `..`.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Listing::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = OsString::from_vec(name.to_vec());
            let kind = match entry.file_type() {
                FileType::Unknown => FileType::from_raw_mode(
                    statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode,
                ),
                known => known,
            };
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }
}

/// The kernel's path of an open file.
fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = readlinkat(CWD, name, Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
}

/// The contents of a project's file that a person has written, which may be a link to another file
/// of the project. `None` if it does not exist.
pub(crate) fn text(
    project: &Path,
    relative: &Path,
    limit: u64,
    own: &Own,
) -> io::Result<Option<Vec<u8>>> {
    let project = Dir::open_plain(project)?.without(own);
    let Some(real) = absent(project.real(relative))? else { return Ok(None) };
    // Git's own files must not be shown to anybody.
    if real.components().any(|part| part.as_os_str() == ".git") {
        return Err(refused(Refused::LeadsOut));
    }
    project.read(&real, limit)
}

/// The real path of a project's file, for code that opens it by path without following links. It is
/// a regular file, and not the server's own. `None` if it does not exist.
pub(crate) fn place(project: &Path, relative: &Path, own: &Own) -> io::Result<Option<PathBuf>> {
    let top = Dir::open_plain(project)?.without(own);
    let Some(real) = absent(top.real(relative))? else { return Ok(None) };
    Ok(absent(top.file(&real))?.map(|_| project.join(real)))
}

/// The same for a file or directory that another program shows.
pub(crate) fn shown(project: &Path, relative: &Path, own: &Own) -> io::Result<PathBuf> {
    let top = Dir::open_plain(project)?.without(own);
    let real = top.real(relative)?;
    let opened = match real.as_os_str().is_empty() || top.has_dir(&real) {
        true => top.sub(&real).map(drop),
        false => top.file(&real).map(drop),
    };
    opened.map(|()| project.join(real))
}

/// Checks that a file or directory exists, is reached without links, and does not belong to git.
pub(crate) fn plain(top: &Path, relative: &Path, own: &Own) -> io::Result<()> {
    let top = Dir::open_plain(top)?.without(own);
    if relative.components().any(|part| part.as_os_str() == ".git") {
        return Err(refused(Refused::LeadsOut));
    }
    match relative.as_os_str().is_empty() || top.has_dir(relative) {
        true => top.sub(relative).map(drop),
        false => top.file(relative).map(drop),
    }
}

/// Checks that a repository's objects are inside of it, and are objects: sandboxes show them, and
/// git writes there. `common` is the real path of its git directory.
pub(crate) fn check_objects(common: &Dir) -> io::Result<()> {
    let objects = common.sub(Path::new("objects"))?;
    if fstat(&objects.fd)?.st_uid != fstat(&common.fd)?.st_uid {
        return Err(io::Error::other("belongs to another user than the repository"));
    }
    for Entry { name, kind } in objects.entries()? {
        let is = match kind {
            FileType::Directory => Is::Directory,
            FileType::RegularFile => Is::File,
            _ => Is::Else,
        };
        if !belongs(name.as_bytes(), is) {
            let what = if is == Is::Else { "no file" } else { "nothing that git keeps there" };
            return Err(io::Error::other(format!("holds {}, which is {what}", name.display())));
        }
    }
    for dir in ["pack", "info"] {
        let Some(dir) = absent(objects.sub(Path::new(dir)))? else { continue };
        let plain = |kind| matches!(kind, FileType::RegularFile | FileType::Directory);
        if let Some(entry) = dir.entries()?.into_iter().find(|entry| !plain(entry.kind)) {
            let name = entry.name.display();
            return Err(io::Error::other(format!("holds {name}, which is not a file")));
        }
    }
    Ok(())
}

/// Treats "no such file" and "not a directory" as a missing file.
pub(crate) fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(err) => match Errno::from_io_error(&err) {
            Some(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            _ => Err(err),
        },
    }
}
