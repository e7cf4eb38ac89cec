//! The files of a store: their owner, the lock, and checks before SQLite opens them.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use overmind_core::store::StoreError;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::error::explain_io;
use crate::options::{beside, parent};

/// Makes the directory of `path` (0700) if only its last part is missing.
///
/// # Errors
///
/// Fails also if more than the last part is missing, so that a mistyped path creates no tree.
pub(crate) fn prepare_dir(path: &Path) -> Result<(), StoreError> {
    let dir = parent(path);
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {
            sync_dir(parent(dir)).map_err(|err| explain_io(&err, dir, "making the directory"))
        }
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            if dir.is_dir() {
                Ok(())
            } else {
                Err(StoreError::Other {
                    attempt: format!("opening the store {}", path.display()),
                    detail: format!("{} is not a directory", dir.display()),
                })
            }
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Err(StoreError::NotFound {
            what: format!(
                "the directory {} that should hold {}",
                parent(dir).display(),
                dir.display()
            ),
        }),
        Err(err) => Err(explain_io(&err, dir, "making the directory")),
    }
}

/// Checks that an existing database file belongs to the user of this process: otherwise the files
/// that SQLite makes beside it would lock its owner out.
pub(crate) fn check_owner(path: &Path) -> Result<(), StoreError> {
    let owner = match path.metadata() {
        Ok(found) => found.uid(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(explain_io(&err, path, "looking at the store")),
    };
    let us = rustix::process::geteuid().as_raw();
    if owner == us {
        return Ok(());
    }
    Err(StoreError::ReadOnly {
        path: path.to_owned(),
        detail: format!("it belongs to user {owner}, and this process runs as user {us}"),
    })
}

/// Creates an empty database file with mode 0600, which SQLite then applies to the files beside it.
/// Does nothing if there is one.
pub(crate) fn ensure_file(path: &Path) -> Result<(), StoreError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        // Its name is durable with the first commit: SQLite syncs the directory for the log.
        Ok(_) => Ok(()),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(err) => Err(explain_io(&err, path, "creating the store")),
    }
}

/// The result of reading the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// There is no file or an empty one, so a store may be made here.
    Fresh,
    Sqlite,
}

/// Reads the header without SQLite, which would report an error only at the first query.
pub(crate) fn read_header(path: &Path) -> Result<Header, StoreError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Header::Fresh),
        Err(err) => return Err(explain_io(&err, path, "reading the store")),
    };
    let mut head = Vec::new();
    Read::by_ref(&mut file)
        .take(100)
        .read_to_end(&mut head)
        .map_err(|err| explain_io(&err, path, "reading the store"))?;
    if head.is_empty() {
        return Ok(Header::Fresh);
    }
    if head.len() == 100 && head.starts_with(b"SQLite format 3\0") {
        return Ok(Header::Sqlite);
    }
    Err(StoreError::Corrupt {
        path: path.to_owned(),
        detail: "it does not begin like a SQLite database".into(),
    })
}

/// How long to wait for a lock whose holder is dead.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// The lock that a process holds while it owns a store. The kernel releases it however the process
/// ends. The file is never removed, because that would race with the next owner.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

impl Lock {
    /// # Errors
    ///
    /// [`StoreError::Locked`] names the process that holds the store.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        let lock = beside(path, ".lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .map_err(|err| explain_io(&err, &lock, "taking the lock"))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let holder = noted(&mut file);
                    // A killed process may have been starting a child. The child holds a copy of
                    // the lock until it executes its own program.
                    if !holder.is_some_and(is_alive) && began.elapsed() < LAST_BREATH {
                        std::thread::sleep(Duration::from_millis(2));
                        continue;
                    }
                    let holder = match holder {
                        Some(pid) => format!("process {} holds it", pid.as_raw_nonzero()),
                        None => "another process holds it".into(),
                    };
                    return Err(StoreError::Locked {
                        path: path.to_owned(),
                        detail: format!("{holder} (lock {})", lock.display()),
                    });
                }
                Err(TryLockError::Error(err)) => {
                    return Err(explain_io(&err, &lock, "taking the lock"));
                }
            }
        }
        let mut note = || -> io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "{}", std::process::id())
        };
        // The lock works without the note; only another process's error message would say less.
        if let Err(err) = note() {
            tracing::debug!(error = %err, "the lock file does not name this process");
        }
        Ok(Self(file))
    }
}

/// The process that the lock file names; its content may be garbage.
fn noted(file: &mut File) -> Option<Pid> {
    let mut holder = String::new();
    file.rewind().ok()?;
    Read::by_ref(file).take(32).read_to_string(&mut holder).ok()?;
    Pid::from_raw(holder.trim().parse().ok()?)
}

fn is_alive(pid: Pid) -> bool {
    // "Refused" means that the process belongs to another user and is alive.
    test_kill_process(pid) != Err(Errno::SRCH)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Identifies the file that is at a path now.
pub(crate) fn id_of(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// The free space below which the disk counts as full: about what the next commits need.
const LITTLE: u64 = 4 << 20;

/// Describes a problem with the files of an open store: the write-ahead log, which was `log` at the
/// start, was replaced or removed, or the disk is full.
pub(crate) fn trouble(path: &Path, log: Option<(u64, u64)>) -> Option<String> {
    let place = beside(path, "-wal");
    if id_of(&place) != log {
        return Some(format!(
            "{} was removed or replaced while the server runs: `overmind down` still brings everything \
             into the database, a kill would lose the newest events",
            place.display()
        ));
    }
    no_room(path)
}

/// Describes a problem with the disk of `path`.
fn no_room(path: &Path) -> Option<String> {
    let found = rustix::fs::statvfs(parent(path)).ok()?;
    // Root may use the reserved space.
    let root = rustix::process::geteuid().is_root();
    let blocks = if root { found.f_bfree } else { found.f_bavail };
    let free = blocks.saturating_mul(found.f_frsize);
    (free < LITTLE).then(|| {
        format!(
            "the disk of {} is full ({} KiB are left): free space there",
            parent(path).display(),
            free >> 10
        )
    })
}

/// Bytes of the database and the files that SQLite keeps beside it.
pub(crate) fn bytes_on_disk(path: &Path) -> u64 {
    ["", "-wal", "-shm"]
        .iter()
        .filter_map(|suffix| beside(path, suffix).metadata().ok())
        .map(|found| found.len())
        .sum()
}
