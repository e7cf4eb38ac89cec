//! Copies files and directories without following a link, and removes the rest of a session.
//!
//! Sessions write in their worktrees, and a file there may be a link to anywhere. So everything
//! below a directory is accessed through the [`opener`](crate::opener), which also skips the
//! server's own files.
//!
//! Contents are shared by the file system if it supports that (`FICLONE`: btrfs, XFS, bcachefs) and
//! otherwise copied by the kernel. Hard links are not used: an in-place write through one of them,
//! by the same user, changes the other, so a session could write into the primary checkout.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens,
    ioctl_ficlone, readlinkat, statat, symlinkat,
};

use crate::opener::{self, Dir, Entry};

/// The deepest nesting that a copy follows.
const DEEPEST: usize = 200;

/// The rest of a copy's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Budget {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let too_much = || io::Error::new(io::ErrorKind::QuotaExceeded, "more than may be copied");
        self.files = self.files.checked_sub(1).ok_or_else(too_much)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(too_much)?;
        Ok(())
    }
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
    /// Files that share their blocks with the original, so that they take no space yet.
    pub shared: u64,
    /// Sockets, pipes, devices and the server's own files, which are not copied.
    pub skipped: u64,
}

impl Copied {
    pub(crate) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.shared += other.shared;
        self.skipped += other.skipped;
    }
}

/// Copies one file or link, and replaces the target.
pub(crate) fn copy_one(
    from: &Dir,
    at: &Path,
    to: &Dir,
    target: &Path,
    budget: &mut Budget,
) -> io::Result<Copied> {
    let (from, name) = from.parent(at, false)?;
    let kind = FileType::from_raw_mode(statat(&from.fd, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    let (to, target) = to.parent(target, true)?;
    to.unlink(target)?;
    entry(&from, name, kind, &to, target, budget)
}

/// Copies the contents of a directory into another one; existing files there stay. `leave` selects
/// relative paths that are not copied, by their type.
pub(crate) fn copy_dir(
    from: &Dir,
    to: &Dir,
    budget: &mut Budget,
    leave: &dyn Fn(&Path, FileType) -> bool,
) -> io::Result<Copied> {
    down(from, to, Path::new(""), budget, leave, 0)
}

fn down(
    from: &Dir,
    to: &Dir,
    at: &Path,
    budget: &mut Budget,
    leave: &dyn Fn(&Path, FileType) -> bool,
    depth: usize,
) -> io::Result<Copied> {
    if depth > DEEPEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "directories nest too deeply"));
    }
    let mut copied = Copied::default();
    for Entry { name, kind } in from.entries()? {
        let path = at.join(&name);
        if leave(&path, kind) {
            continue;
        }
        if kind != FileType::Directory {
            match entry(from, &name, kind, to, &name, budget) {
                Err(err) if opener::is_own(&err) => copied.skipped += 1,
                done => copied.add(done?),
            }
            continue;
        }
        budget.take(0)?;
        let source = match from.sub(Path::new(&name)) {
            Err(err) if opener::is_own(&err) => {
                copied.skipped += 1;
                continue;
            }
            opened => opened?,
        };
        let target = to.sub_made(Path::new(&name))?;
        copied.add(down(&source, &target, &path, budget, leave, depth + 1)?);
        let stat = fstat(&source.fd)?;
        // This is last, so that a directory without write permission can be filled first.
        fchmod(&target.fd, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        futimens(&target.fd, &modified(&stat))?;
    }
    Ok(copied)
}

fn entry(
    from: &Dir,
    name: &OsStr,
    kind: FileType,
    to: &Dir,
    target: &OsStr,
    budget: &mut Budget,
) -> io::Result<Copied> {
    match kind {
        FileType::RegularFile => {
            let source = from.file(Path::new(name))?;
            let stat = fstat(&source)?;
            let bytes = u64::try_from(stat.st_size).map_err(io::Error::other)?;
            budget.take(bytes)?;
            let file = to.create(target, 0o600)?;
            let shared = contents(&source, bytes, &file)?;
            // The set-user-id and set-group-id bits are dropped, because a copy has another owner.
            file.set_permissions(std::fs::Permissions::from_mode(stat.st_mode & 0o777))?;
            futimens(&file, &modified(&stat))?;
            Ok(Copied { files: 1, bytes, shared: u64::from(shared), skipped: 0 })
        }
        FileType::Symlink => {
            budget.take(0)?;
            let points = readlinkat(&from.fd, name, Vec::new())?;
            symlinkat(points.as_c_str(), &to.fd, target)?;
            Ok(Copied { files: 1, ..Copied::default() })
        }
        _ => Ok(Copied { skipped: 1, ..Copied::default() }),
    }
}

/// Copies a file's contents, up to the given length; returns `true` if the file system shares them.
pub(crate) fn contents(from: &File, bytes: u64, mut to: &File) -> io::Result<bool> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(true);
    }
    // The kernel copies between the two files; no data passes through this process.
    io::copy(&mut from.take(bytes), &mut to)?;
    Ok(false)
}

fn modified(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: stat.st_mtime_nsec.cast_signed(),
        },
    }
}

/// Removes a file, or a directory with its contents, whatever their permissions are, without
/// following links. A missing path is no error.
pub(crate) fn remove_all(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => return Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotADirectory => {
            return std::fs::remove_file(path);
        }
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {}
        Err(err) => return Err(err),
    }
    permit(path, 0)?;
    std::fs::remove_dir_all(path)
}

/// Maximum number of entries that are counted.
const COUNTED: u32 = 1_000_000;

/// The bytes that a directory takes on disk with its contents, without following links; shared
/// blocks count each time. `None` if there are too many entries, or some cannot be read.
pub(crate) fn used(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let (mut bytes, mut entries, mut next) = (0_u64, 0_u32, vec![path.to_owned()]);
    while let Some(dir) = next.pop() {
        for entry in std::fs::read_dir(dir).ok()? {
            let entry = entry.ok()?;
            entries += 1;
            let meta = entry.metadata().ok().filter(|_| entries <= COUNTED)?;
            bytes += meta.blocks() * 512;
            if meta.is_dir() {
                next.push(entry.path());
            }
        }
    }
    Some(bytes)
}

/// Gives a directory with its contents to a user, without following links.
pub(crate) fn give_to(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
    let dir = Dir::open(path)?;
    rustix::fs::fchown(&dir.fd, Some(user), Some(group))?;
    for Entry { name, kind } in dir.entries()? {
        if kind == FileType::Directory {
            give_to(&path.join(name), user.as_raw(), group.as_raw())?;
        } else {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&dir.fd, &name, Some(user), Some(group), flags)?;
        }
    }
    Ok(())
}

/// Gives the owner all permissions on each directory, so that its contents can be removed.
fn permit(path: &Path, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    let dir = match Dir::open(path) {
        Ok(dir) => dir,
        Err(_) => {
            // It cannot be opened without read permission, so the mode is set by its path. The path
            // is ours except for the session's entries, and it is checked here to be a directory
            // and no link.
            if !std::fs::symlink_metadata(path)?.is_dir() {
                return Ok(());
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
            Dir::open(path)?
        }
    };
    fchmod(&dir.fd, Mode::from_raw_mode(0o700))?;
    for Entry { name, kind } in dir.entries()? {
        if kind == FileType::Directory {
            permit(&path.join(name), depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MUCH: Budget = Budget { bytes: 1 << 20, files: 1000 };

    #[test]
    fn a_link_in_a_path_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("leaf")).unwrap();
        let dir = Dir::open(root.path()).unwrap();
        assert!(dir.file(Path::new("out/secret")).is_err());
        assert!(dir.file(Path::new("leaf")).is_err());
        assert!(dir.write(Path::new("out/made"), b"x").is_err());
        assert!(dir.sub(Path::new("../x")).is_err());
        dir.write(Path::new("leaf"), b"mine").unwrap();
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"s");
        assert!(!outside.path().join("made").exists());
    }

    #[test]
    fn removal_deletes_links_and_not_their_targets() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::fs::create_dir_all(at("dir/sub")).unwrap();
        symlink(outside.path(), at("link")).unwrap();
        symlink(outside.path(), at("dir/sub/link")).unwrap();
        for name in ["file", "dir", "link", "missing"] {
            remove_all(&at(name)).unwrap();
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(outside.path().is_dir());
    }

    #[test]
    fn a_copy_keeps_modes_times_and_links_and_skips_special_files() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (root.path().join("a"), root.path().join("b"));
        std::fs::create_dir_all(a.join("sub")).unwrap();
        std::fs::create_dir(&b).unwrap();
        std::fs::write(a.join("sub/run"), "#!").unwrap();
        std::fs::set_permissions(a.join("sub/run"), PermissionsExt::from_mode(0o4750)).unwrap();
        std::fs::set_permissions(a.join("sub"), PermissionsExt::from_mode(0o555)).unwrap();
        symlink("/etc/passwd", a.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, a.join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let mut budget = MUCH;
        let copied =
            copy_dir(&Dir::open(&a).unwrap(), &Dir::open(&b).unwrap(), &mut budget, &|path, _| {
                path == Path::new("nothing")
            })
            .unwrap();
        assert_eq!((copied.files, copied.skipped, copied.bytes), (2, 1, 2));
        let meta = std::fs::metadata(b.join("sub/run")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o750);
        assert_eq!(
            meta.modified().unwrap(),
            std::fs::metadata(a.join("sub/run")).unwrap().modified().unwrap()
        );
        assert_eq!(std::fs::read_link(b.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(std::fs::metadata(b.join("sub")).unwrap().permissions().mode() & 0o777, 0o555);
        remove_all(&b).unwrap();
        assert!(!b.exists());
    }

    #[test]
    fn a_copy_stops_at_its_limit() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (root.path().join("a"), root.path().join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        std::fs::write(a.join("big"), vec![0; 100]).unwrap();
        let mut budget = Budget { bytes: 99, files: 10 };
        let dirs = (Dir::open(&a).unwrap(), Dir::open(&b).unwrap());
        let err = copy_dir(&dirs.0, &dirs.1, &mut budget, &|_, _| false).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::QuotaExceeded);
    }
}
