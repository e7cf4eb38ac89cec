//! Writes pictures, sound and blobs of a result as files to the session's workspace.
//!
//! The agent controls the workspace: a link may be in place of a directory. So this is the only
//! code of the crate that opens a path there (`cargo xtask check` looks for others). It opens the
//! workspace by a path without links, every directory below the one before it, and none of the
//! server's own files, by device and inode. It never overwrites a file.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use overmind_core::ids::{EffectId, SessionId};
use overmind_core::off_limits::{FileId, OffLimits};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Maximum number of bytes of one file, and of all files of one result.
pub(crate) const MAX_FILE_BYTES: usize = 6 << 20;
pub(crate) const MAX_FILES: usize = 16;

/// The directory of a server's files, relative to the workspace.
pub(crate) fn place(session: SessionId, server: &str) -> PathBuf {
    [".overmind_runs", &session.to_string(), "artifacts", "mcp", server].iter().collect()
}

/// Creates the directory with its parents.
///
/// # Errors
///
/// Fails if the workspace is missing or is reached through a link, if a path component is no
/// directory, or if a directory in the path is the server's own.
pub(crate) fn make(workspace: &Path, off_limits: &OffLimits, place: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut at = rustix::fs::openat2(CWD, workspace, flags, Mode::empty(), plain)?;
    permit(&at, off_limits)?;
    for part in place {
        match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        at = rustix::fs::openat2(&at, part, flags, Mode::empty(), how)?;
        permit(&at, off_limits)?;
    }
    Ok(at)
}

fn permit(directory: &OwnedFd, off_limits: &OffLimits) -> io::Result<()> {
    let found = rustix::fs::fstat(directory)?;
    if off_limits.is_own(FileId { device: found.st_dev, inode: found.st_ino }) {
        let text = "a directory on the way is the server's own, and no session's";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Creates a private directory, in which a server without a session works.
///
/// # Errors
///
/// Returns the error of the file system.
pub(crate) fn make_own(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Writes one file; returns its path relative to the workspace.
///
/// # Errors
///
/// Returns the error of the file system. Then no part of the file has the final name, unless
/// writing failed.
#[expect(clippy::too_many_arguments, reason = "they are the parts of one name")]
pub(crate) fn write(
    workspace: &Path,
    off_limits: &OffLimits,
    session: SessionId,
    server: &str,
    effect: EffectId,
    number: usize,
    extension: &str,
    bytes: &[u8],
) -> io::Result<String> {
    let place = place(session, server);
    let directory = make(workspace, off_limits, &place)?;
    // An effect that is repeated after a crash has the same id, so its file gets another name.
    for again in 0..100 {
        let suffix = if again == 0 { String::new() } else { format!("-again{again}") };
        let name = format!("{effect}-{number}{suffix}.{extension}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&directory, &name, flags, Mode::from_raw_mode(0o644), how) {
            Ok(file) => {
                std::fs::File::from(file).write_all(bytes)?;
                return Ok(place.join(name).to_string_lossy().into_owned());
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The file name extension for a media type; `bin` for an unknown one.
pub(crate) fn extension(media_type: Option<&str>) -> &'static str {
    match media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim() {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "audio/wav" | "audio/x-wav" => "wav",
        "audio/mpeg" => "mp3",
        "application/pdf" => "pdf",
        "application/json" => "json",
        "application/gzip" => "gz",
        "application/zip" => "zip",
        "text/plain" => "txt",
        "text/csv" => "csv",
        "text/html" => "html",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use overmind_core::off_limits::Own;
    use rustix::fs::FileType;

    use super::*;

    const SESSION: SessionId = SessionId::from_u128(5);
    const EFFECT: EffectId = EffectId::from_u128(14);

    fn written(workspace: &Path, bytes: &[u8]) -> io::Result<String> {
        write(workspace, &OffLimits::default(), SESSION, "s", EFFECT, 0, "png", bytes)
    }

    #[test]
    fn artifact_files_are_in_the_sessions_directory_and_unique() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) =
            (written(dir.path(), b"1").unwrap(), written(dir.path(), b"2").unwrap());
        assert!(first.starts_with(&format!(".overmind_runs/{SESSION}/artifacts/mcp/s/")));
        assert_ne!(first, second);
        assert_eq!(std::fs::read(dir.path().join(first)).unwrap(), b"1");
    }

    /// Puts something at a path that is not what is expected there.
    type Shape = fn(&Path, &Path);

    const SHAPES: [(&str, Shape); 8] = [
        ("a link to a directory", |at, outside| symlink(outside, at).unwrap()),
        ("a relative link", |at, _| symlink("../outside", at).unwrap()),
        ("a link to a file", |at, outside| symlink(outside.join("kept"), at).unwrap()),
        ("a link to nothing", |at, outside| symlink(outside.join("new"), at).unwrap()),
        ("a link to a process's root", |at, _| symlink("/proc/self/root/tmp", at).unwrap()),
        ("a pipe", |at, _| {
            rustix::fs::mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }),
        ("a socket", |at, _| {
            rustix::fs::mknodat(CWD, at, FileType::Socket, Mode::from_raw_mode(0o600), 0).unwrap();
        }),
        ("a file that is another's", |at, outside| {
            std::fs::hard_link(outside.join("kept"), at).unwrap();
        }),
    ];

    /// Each directory on the way, and the workspace itself, in each shape: nothing is made or written
    /// outside, and nobody waits for a pipe.
    #[test]
    fn links_in_the_artifact_path_are_refused() {
        let place = place(SESSION, "s");
        let mut tried = 0;
        for (what, shape) in SHAPES {
            for depth in 0..=place.iter().count() {
                let top = tempfile::tempdir().unwrap();
                let (outside, workspace) = (top.path().join("outside"), top.path().join("ws"));
                std::fs::create_dir(&outside).unwrap();
                std::fs::write(outside.join("kept"), b"kept").unwrap();
                let at: PathBuf = std::iter::once(workspace.as_os_str())
                    .chain(place.iter().take(depth))
                    .collect();
                std::fs::create_dir_all(at.parent().unwrap()).unwrap();
                shape(&at, &outside);
                assert!(written(&workspace, b"x").is_err(), "{what} at {}", at.display());
                assert!(make(&workspace, &OffLimits::default(), &place).is_err(), "{what}");
                let left: Vec<_> = std::fs::read_dir(&outside).unwrap().collect();
                assert_eq!(left.len(), 1, "{what}: {left:?}");
                assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept", "{what}");
                tried += 1;
            }
        }
        assert_eq!(tried, 8 * 6);
    }

    /// The name of a file is taken already, by each shape: the file gets another.
    #[test]
    fn existing_entries_are_neither_followed_nor_overwritten() {
        for (what, shape) in SHAPES {
            let top = tempfile::tempdir().unwrap();
            let (outside, workspace) = (top.path().join("outside"), top.path().join("ws"));
            std::fs::create_dir(&outside).unwrap();
            std::fs::write(outside.join("kept"), b"kept").unwrap();
            let directory = workspace.join(place(SESSION, "s"));
            std::fs::create_dir_all(&directory).unwrap();
            shape(&directory.join(format!("{EFFECT}-0.png")), &outside);
            let path = written(&workspace, b"x").unwrap();
            assert!(path.ends_with("-0-again1.png"), "{what}: {path}");
            assert_eq!(std::fs::read(workspace.join(path)).unwrap(), b"x", "{what}");
            assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept", "{what}");
            assert!(!outside.join("new").exists(), "{what}");
        }
    }

    /// A directory becomes a link again and again while files are written.
    #[test]
    fn a_directory_that_is_swapped_for_a_link_never_leads_out() {
        let top = tempfile::tempdir().unwrap();
        let (outside, workspace) = (top.path().join("outside"), top.path().join("ws"));
        std::fs::create_dir(&outside).unwrap();
        let place = place(SESSION, "s");
        let real = workspace.join(&place);
        std::fs::create_dir_all(&real).unwrap();
        let link = workspace.join("link");
        symlink(&outside, &link).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(order) {
                    let swap = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &real, CWD, &link, swap).unwrap();
                }
            });
            let both = (0..2_000).map(|n| {
                let effect = EffectId::from_u128(n);
                let own = OffLimits::default();
                write(&workspace, &own, SESSION, "s", effect, 0, "png", b"x").is_ok()
            });
            let done: Vec<bool> = both.collect();
            stop.store(true, order);
            assert!(done.contains(&true), "some are written");
        });
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_the_server_are_refused_by_inode() {
        #[derive(Debug)]
        struct One(FileId);
        impl Own for One {
            fn refusal(&self, _: &Path) -> Option<String> {
                None
            }
            fn all(&self) -> std::collections::HashSet<FileId> {
                [self.0].into()
            }
            fn is_own(&self, file: FileId) -> bool {
                file == self.0
            }
            fn withheld(&self, _: &Path) -> Result<Vec<PathBuf>, String> {
                Ok(Vec::new())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let place = place(SESSION, "s");
        let data = dir.path().join(place.parent().unwrap());
        std::fs::create_dir_all(&data).unwrap();
        let found = rustix::fs::stat(&data).unwrap();
        let own = One(FileId { device: found.st_dev, inode: found.st_ino });
        let err = make(dir.path(), &OffLimits::new(std::sync::Arc::new(own)), &place).unwrap_err();
        assert!(err.to_string().contains("the server's own"), "{err}");
        assert_eq!(std::fs::read_dir(data).unwrap().count(), 0, "nothing was made in it");
    }
}
