//! Pictures, sound and blobs of a result, as files in the session's workspace.
//!
//! What lies in the workspace is the agent's: a link may stand where a directory is expected. So
//! every step is opened beneath the one before it and without following links, and a file is
//! new or it is not written.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use overmind_core::ids::{EffectId, SessionId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Most bytes of one file, and of all files of one result.
pub(crate) const MAX_FILE_BYTES: usize = 6 << 20;
pub(crate) const MAX_FILES: usize = 16;

/// Where the files of a server lie, relative to the workspace.
pub(crate) fn place(session: SessionId, server: &str) -> PathBuf {
    [".overmind_runs", &session.to_string(), "artifacts", "mcp", server].iter().collect()
}

/// Makes the directory, with all above it.
///
/// # Errors
///
/// When the workspace is not there, or something that is no directory stands in the way.
pub(crate) fn make(workspace: &Path, place: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(CWD, workspace, flags, Mode::empty())?;
    for part in place {
        match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        at = rustix::fs::openat2(&at, part, flags, Mode::empty(), how)?;
    }
    Ok(at)
}

/// Writes one file; answers its path relative to the workspace.
///
/// # Errors
///
/// What the file system says; no part of the file is left under its name then, unless it says so
/// while writing.
pub(crate) fn write(
    workspace: &Path,
    session: SessionId,
    server: &str,
    effect: EffectId,
    number: usize,
    extension: &str,
    bytes: &[u8],
) -> io::Result<String> {
    let place = place(session, server);
    let directory = make(workspace, &place)?;
    // An effect that is done again after a crash has the same id: it gets another name.
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

/// A file name's end for a media type; what is not known is `bin`.
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
    use super::*;

    const SESSION: SessionId = SessionId::from_u128(5);
    const EFFECT: EffectId = EffectId::from_u128(14);

    #[test]
    fn files_lie_in_the_sessions_own_directory_and_never_replace_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let write = |bytes: &[u8]| write(dir.path(), SESSION, "s", EFFECT, 0, "png", bytes);
        let (first, second) = (write(b"1").unwrap(), write(b"2").unwrap());
        assert!(first.starts_with(&format!(".overmind_runs/{SESSION}/artifacts/mcp/s/")));
        assert_ne!(first, second);
        assert_eq!(std::fs::read(dir.path().join(first)).unwrap(), b"1");
    }

    #[test]
    fn a_link_in_the_way_leads_nowhere() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), dir.path().join(".overmind_runs")).unwrap();
        assert!(write(dir.path(), SESSION, "s", EFFECT, 0, "png", b"x").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
