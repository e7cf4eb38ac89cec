//! The small files beside a process's log: what it is, and how it ended.
//!
//! `keeper-N.sock` is the socket of its supervisor process. `life-N` is written before the command
//! is started and describes it, for the clean-up after a killed supervisor process: without it, no
//! command was started. `exit-N` contains the true exit. All three are removed when the exit was
//! acknowledged. N is the epoch.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use overmind_core::process::{MARK, ProcessKey};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::wire::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Socket,
    Life,
    Exit,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Socket, Self::Life, Self::Exit];

    pub(crate) fn name(self, epoch: u32) -> String {
        match self {
            Self::Socket => format!("keeper-{epoch}.sock"),
            Self::Life => format!("life-{epoch}"),
            Self::Exit => format!("exit-{epoch}"),
        }
    }

    /// The kind of a file in a session's directory, and its epoch.
    pub(crate) fn parse(name: &str) -> Option<(Self, u32)> {
        let (kind, epoch) = name.split_once('-')?;
        match kind {
            "keeper" => Some((Self::Socket, epoch.strip_suffix(".sock")?.parse().ok()?)),
            "life" => Some((Self::Life, epoch.parse().ok()?)),
            "exit" => Some((Self::Exit, epoch.parse().ok()?)),
            _ => None,
        }
    }
}

/// The description of a started process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) key: Key,
    /// The main process; 0 if it is about to be started.
    pub(crate) pid: i32,
    /// The main process's start time from the kernel; together with the number it identifies the
    /// process.
    pub(crate) started_ticks: u64,
    pub(crate) groups: Vec<PathBuf>,
}

impl Life {
    /// The description of a process that starts next.
    pub(crate) fn about_to_start(key: Key, groups: Vec<PathBuf>) -> Self {
        Self { key, pid: 0, started_ticks: 0, groups }
    }
}

/// `NAME=value` of the variable that marks the processes of an epoch.
pub(crate) fn mark(key: ProcessKey) -> String {
    format!("{MARK}={key}")
}

/// Writes a record completely or not at all. It is only on disk after [`sync`].
pub(crate) fn write(
    dir: &OwnedFd,
    kind: Kind,
    epoch: u32,
    content: &impl Serialize,
) -> io::Result<()> {
    let (name, draft) = (kind.name(epoch), draft(kind, epoch));
    let written = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(dir, &draft, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&serde_json::to_vec(content)?)?;
        Ok(rustix::fs::renameat(dir, &draft, dir, &name)?)
    };
    written().inspect_err(|_| {
        // The disk is usually full. The first error is the relevant one.
        let _ = rustix::fs::unlinkat(dir, &draft, AtFlags::empty());
    })
}

/// The name of a record until it is complete.
fn draft(kind: Kind, epoch: u32) -> String {
    format!("{}.new", kind.name(epoch))
}

/// Syncs a record and its directory entry to the disk.
pub(crate) fn sync(dir: &OwnedFd, kind: Kind, epoch: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::fsync(rustix::fs::openat(dir, kind.name(epoch), flags, Mode::empty())?)?;
    Ok(rustix::fs::fsync(rustix::fs::openat(dir, ".", flags | OFlags::DIRECTORY, Mode::empty())?)?)
}

/// `None` if there is no such record, or it cannot be read.
pub(crate) fn read<T: DeserializeOwned>(dir: impl AsFd, kind: Kind, epoch: u32) -> Option<T> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, kind.name(epoch), flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).take(1 << 20).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether there is such a record, whether or not it can be read.
pub(crate) fn exists(dir: impl AsFd, kind: Kind, epoch: u32) -> io::Result<bool> {
    match rustix::fs::statat(dir, kind.name(epoch), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

/// Removes a record, and the draft that a killed supervisor process may have left.
pub(crate) fn remove(dir: impl AsFd, kind: Kind, epoch: u32) -> io::Result<()> {
    remove_whole(&dir, kind, epoch)?;
    unlink(&dir, &draft(kind, epoch))
}

/// Removes a record that has no draft, because its writer is still running.
pub(crate) fn remove_whole(dir: impl AsFd, kind: Kind, epoch: u32) -> io::Result<()> {
    unlink(dir, &kind.name(epoch))
}

fn unlink(dir: impl AsFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Opens a directory.
pub(crate) fn open_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_encode_their_kind() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(&kind.name(7)), Some((kind, 7)));
        }
        for other in
            ["0000000000000000.log", "exit-", "exit-7.new", "keeper-7", "life-x", "lost+found"]
        {
            assert_eq!(Kind::parse(other), None, "{other}");
        }
    }

    #[test]
    fn torn_records_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_dir(dir.path()).unwrap();
        write(&fd, Kind::Exit, 3, &vec![1, 2]).unwrap();
        sync(&fd, Kind::Exit, 3).unwrap();
        assert_eq!(read::<Vec<u8>>(&fd, Kind::Exit, 3), Some(vec![1, 2]));
        std::fs::write(dir.path().join("exit-3"), "[1,").unwrap();
        assert_eq!(read::<Vec<u8>>(&fd, Kind::Exit, 3), None);
        remove(&fd, Kind::Exit, 3).unwrap();
        remove(&fd, Kind::Exit, 3).unwrap();
        assert_eq!(read::<Vec<u8>>(&fd, Kind::Exit, 3), None);
    }

    #[test]
    fn incomplete_records_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open_dir(dir.path()).unwrap();
        let left = || std::fs::read_dir(dir.path()).unwrap().count();
        std::fs::write(dir.path().join("life-3.new"), "{").unwrap();
        remove(&fd, Kind::Life, 3).unwrap();
        assert_eq!(left(), 0);
        // A file cannot be renamed to the path of a directory.
        std::fs::create_dir(dir.path().join("exit-3")).unwrap();
        write(&fd, Kind::Exit, 3, &1).unwrap_err();
        assert_eq!(left(), 1);
    }
}
