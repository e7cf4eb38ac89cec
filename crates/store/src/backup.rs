//! Backs up and restores a store.
//!
//! A backup is the database file, consistent as of one moment. If that names artifacts, their bytes
//! are beside it in `<backup>.artifacts`. A backup does not contain the key that signs checkpoints:
//! on another machine the audit reports the old checkpoints as signed by an unknown key, unless the
//! key file is copied too or its public half is named in [`crate::Options::trusted_keys`].

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use overmind_core::conflict::{Conflict, ConflictKind};
use overmind_core::store::{StoreError, backup_target};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use crate::artifacts::{self, Files, root_of};
use crate::error::{Fault, Outcome, closed, explain_io};
use crate::files::{Header, Lock, check_owner, prepare_dir, read_header, sync_dir};
use crate::options::{beside, parent};
use crate::schema::{inspect, open_reader};

/// Pages copied between two checks whether the store is being closed: 4 MB.
const PAGES_PER_STEP: i32 = 1_024;

/// Writes a consistent copy of `from` to `to`, which must not exist, and returns its size in bytes.
///
/// The copy gets its name only when it is complete and on disk.
pub(crate) fn backup(
    from: &Path,
    to: &Path,
    files: &Files,
    stop: &dyn Fn() -> bool,
) -> Result<u64, StoreError> {
    backup_target(to)
        .map_err(|detail| StoreError::Other { attempt: "backing up".into(), detail })?;
    let taken = || StoreError::Conflict {
        what: Conflict::taken(ConflictKind::Backup, to.display()),
        guard: None,
    };
    let artifacts = root_of(to);
    if to.symlink_metadata().is_ok() || artifacts.symlink_metadata().is_ok() {
        return Err(taken());
    }
    let part = PartFile::create(to)?;
    let beside_it = PartDir::new(to);
    let copied = files.while_copying(from, || {
        copy(from, &part.path, stop, &|conn| files.copy_named(conn, &beside_it.0, stop))
    })?;
    let bytes = copied
        + part
            .path
            .metadata()
            .map_err(|err| explain_io(&err, &part.path, "measuring the backup"))?
            .len();
    // The artifacts come first: a backup that has its name is complete.
    beside_it
        .publish(&artifacts)
        .map_err(|err| explain_io(&err, &artifacts, "naming the backup"))?;
    let done = part.publish_new(to);
    if done.is_err() {
        let _ = fs::remove_dir_all(&artifacts);
    }
    match done {
        Ok(()) => Ok(bytes),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Err(taken()),
        Err(err) => Err(explain_io(&err, to, "naming the backup")),
    }
}

/// A temporary file beside its final place, removed unless it is published.
#[derive(Debug)]
struct PartFile {
    path: PathBuf,
    published: bool,
}

impl PartFile {
    fn create(to: &Path) -> Result<Self, StoreError> {
        let path = beside(to, &format!(".part-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|err| explain_io(&err, &path, "creating the copy"))?;
        Ok(Self { path, published: false })
    }

    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }

    /// Gives the file its final name; fails if that name exists.
    fn publish_new(mut self, to: &Path) -> io::Result<()> {
        self.sync()?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let here = rustix::fs::CWD;
        match rustix::fs::renameat_with(here, &self.path, here, to, flags) {
            Ok(()) => {}
            // Some file systems lack this rename; a hard link also refuses to replace a file.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::hard_link(&self.path, to)?;
                fs::remove_file(&self.path)?;
            }
            Err(err) => return Err(err.into()),
        }
        self.published = true;
        sync_dir(parent(to))
    }

    /// Gives the file its final name and replaces an existing file.
    fn publish_over(mut self, to: &Path) -> io::Result<()> {
        self.sync()?;
        fs::rename(&self.path, to)?;
        self.published = true;
        sync_dir(parent(to))
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_file(beside(&self.path, "-journal"));
        }
    }
}

/// A temporary directory beside its final place, removed unless it is published.
#[derive(Debug)]
struct PartDir(PathBuf);

impl PartDir {
    fn new(to: &Path) -> Self {
        let path = beside(to, &format!(".artifacts-part-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Gives the directory its final name, if it contains anything.
    fn publish(self, to: &Path) -> io::Result<()> {
        match fs::rename(&self.0, to) {
            Ok(()) => sync_dir(parent(to)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) => Err(err),
        }
    }
}

impl Drop for PartDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies page by page, and lets `more` read other data of the same moment. The read transaction
/// stays open meanwhile: without it, every commit between two steps would make SQLite start again.
fn copy<T>(
    from: &Path,
    to: &Path,
    stop: &dyn Fn() -> bool,
    more: &dyn Fn(&Connection) -> Outcome<T>,
) -> Result<T, StoreError> {
    let run = || -> Outcome<T> {
        let source = open_reader(from)?;
        source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;")?;
        let mut target = Connection::open_with_flags(
            to,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        // Only the complete copy counts, so it is synced once at the end.
        target.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
        let backup = Backup::new(&source, &mut target)?;
        loop {
            if stop() {
                return Err(Fault::Refused(closed()));
            }
            match backup.step(PAGES_PER_STEP)? {
                StepResult::Done => return more(&source),
                StepResult::More => {}
                // No other process has these files open, so waiting for the next time slice is
                // enough.
                _ => std::thread::yield_now(),
            }
        }
    };
    run().map_err(|fault| fault.explain(to, "writing the copy"))
}

/// Whether [`restore`] may replace an existing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Refuse if there is one.
    Never,
    /// Rename the old one and return its new path.
    KeepAside,
}

/// Makes the backup `from` the store at `to`, and returns the new path of the old store.
///
/// The backup's schema, pages and indexes are checked first. The old files stay beside the new
/// ones, as `<name>.old-<n>`. A store that a process has open is never replaced, whatever `replace`
/// is: that process would continue to write into the renamed file.
///
/// # Errors
///
/// [`StoreError::Locked`] if a process has `to` open, [`StoreError::Conflict`] if a store exists
/// and may not be replaced, [`StoreError::TooNew`] and [`StoreError::Corrupt`] if the backup is
/// unusable. Nothing has changed then.
pub fn restore(from: &Path, to: &Path, replace: Replace) -> Result<Option<PathBuf>, StoreError> {
    match from.metadata() {
        Err(_) => {
            return Err(StoreError::NotFound { what: format!("the backup {}", from.display()) });
        }
        // To open a pipe would wait for its writer for ever.
        Ok(found) if !found.is_file() => {
            let detail = "it is not a regular file".to_owned();
            return Err(StoreError::Corrupt { path: from.to_owned(), detail });
        }
        Ok(_) => {}
    }
    if read_header(from)? == Header::Fresh {
        return Err(StoreError::Corrupt {
            path: from.to_owned(),
            detail: "the backup is an empty file".into(),
        });
    }
    inspect(from)?;
    check_pages(from)?;
    prepare_dir(to)?;
    check_owner(to)?;
    let _lock = Lock::take(to)?;
    if to.metadata().is_ok_and(|found| found.len() > 0) && replace == Replace::Never {
        return Err(StoreError::Conflict {
            what: Conflict::taken(ConflictKind::Store, to.display()),
            guard: None,
        });
    }
    let part = PartFile::create(to)?;
    copy(from, &part.path, &|| false, &|_| Ok(()))?;
    let (kept, artifacts) = (root_of(from), root_of(to));
    let beside_it = PartDir::new(to);
    artifacts::copy_all(&kept, &beside_it.0)
        .map_err(|err| explain_io(&err, &kept, "copying the backup's artifacts"))?;
    // Done even if only the database is missing: the new store must not use another store's log.
    let aside = put_aside(to).map_err(|err| explain_io(&err, to, "putting the old store aside"))?;
    beside_it
        .publish(&artifacts)
        .map_err(|err| explain_io(&err, &artifacts, "naming the restored artifacts"))?;
    part.publish_over(to).map_err(|err| explain_io(&err, to, "naming the restored store"))?;
    Ok(aside)
}

/// Reads every page and compares every index with its table.
fn check_pages(path: &Path) -> Result<(), StoreError> {
    let check = || -> Outcome<String> {
        let conn = open_reader(path)?;
        Ok(conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?)
    };
    let found = check().map_err(|fault| fault.explain(path, "checking the backup"))?;
    if found == "ok" {
        return Ok(());
    }
    Err(StoreError::Corrupt { path: path.to_owned(), detail: found })
}

/// The suffixes of a store's files. The log is first, because a database without its log has
/// another state. The witness is last, because it reveals an unfinished restore.
const FILES: [&str; 5] = ["-wal", "-shm", ".artifacts", "", ".witness"];

/// Renames the existing files of a store: the database and the files that are named after it.
fn put_aside(path: &Path) -> io::Result<Option<PathBuf>> {
    let aside = (1_u32..)
        .map(|n| beside(path, &format!(".old-{n}")))
        .find(|aside| FILES.iter().all(|file| beside(aside, file).symlink_metadata().is_err()))
        .expect("fewer old stores than numbers");
    let mut moved = false;
    for suffix in FILES {
        match fs::rename(beside(path, suffix), beside(&aside, suffix)) {
            Ok(()) => moved = true,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    Ok(moved.then_some(aside))
}
