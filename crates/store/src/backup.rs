//! Copies of a store, out and back.
//!
//! A backup is the database file, consistent as of one moment, and beside it the bytes of the
//! artifacts that it names, in `<backup>.artifacts`, if there are any. It does not contain the
//! key that signs checkpoints: on another machine the audit reports the old checkpoints as
//! signed by an unknown key, unless the key file is brought along or its public half is named in
//! [`crate::Options::trusted_keys`].

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

/// Pages copied between two looks at whether the store is being closed: 4 MB.
const PAGES_PER_STEP: i32 = 1_024;

/// Writes a consistent copy of `from` to `to`, which must not exist, and answers its bytes.
///
/// The copy appears under its name only when it is whole and on disk.
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
    // First: a backup that has its name is whole.
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

/// A file beside its later place, removed unless it is published.
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

    /// Gives the file its name; fails when something has that name.
    fn publish_new(mut self, to: &Path) -> io::Result<()> {
        self.sync()?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let here = rustix::fs::CWD;
        match rustix::fs::renameat_with(here, &self.path, here, to, flags) {
            Ok(()) => {}
            // Some file systems have no such rename; a link also refuses to replace.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::hard_link(&self.path, to)?;
                fs::remove_file(&self.path)?;
            }
            Err(err) => return Err(err.into()),
        }
        self.published = true;
        sync_dir(parent(to))
    }

    /// Gives the file its name, whatever has it now.
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

/// A directory beside its later place, removed unless it is published.
#[derive(Debug)]
struct PartDir(PathBuf);

impl PartDir {
    fn new(to: &Path) -> Self {
        let path = beside(to, &format!(".artifacts-part-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Gives it its name, if anything was put into it.
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

/// Copies page by page, and lets `more` read what else belongs to the same moment. The read transaction stays open all the while: without it, every
/// commit that comes between two steps would make SQLite begin again.
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
        // The copy counts only when it is whole, and then it is synced once.
        target.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
        let backup = Backup::new(&source, &mut target)?;
        loop {
            if stop() {
                return Err(Fault::Refused(closed()));
            }
            match backup.step(PAGES_PER_STEP)? {
                StepResult::Done => return more(&source),
                StepResult::More => {}
                // Nobody else has these files open; wait for the next time slice.
                _ => std::thread::yield_now(),
            }
        }
    };
    run().map_err(|fault| fault.explain(to, "writing the copy"))
}

/// Whether [`restore`] may replace a store that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Refuse when there is one.
    Never,
    /// Keep the old one aside and answer where.
    KeepAside,
}

/// Makes the backup `from` the store at `to`, and answers where the old store was put.
///
/// The backup is checked first: its schema, its pages and its indexes. The old files stay
/// beside the new ones, as `<name>.old-<n>`. A store that a process has open is never replaced,
/// whatever `replace` says: that process would go on writing into the file put aside.
///
/// # Errors
///
/// [`StoreError::Locked`] when a process has `to` open, [`StoreError::Conflict`] when a store
/// is there and may not be replaced, [`StoreError::TooNew`] and [`StoreError::Corrupt`] about
/// the backup. Nothing has changed then.
pub fn restore(from: &Path, to: &Path, replace: Replace) -> Result<Option<PathBuf>, StoreError> {
    if from.symlink_metadata().is_err() {
        return Err(StoreError::NotFound { what: format!("the backup {}", from.display()) });
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
    // Also where the database alone is gone: a log of another one must not be taken for this one's.
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

/// The ends of their names. The log first: a database without its log would be a different state.
/// Last what says that there was one: a restore that is cut off before its end is noticed.
const FILES: [&str; 5] = ["-wal", "-shm", ".artifacts", "", ".witness"];

/// Renames what is there of a store: the database and the files beside it, which belong to it by
/// their names.
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
