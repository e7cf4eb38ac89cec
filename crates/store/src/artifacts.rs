//! Artifacts: their rows are in the database, their bytes in files beside it.
//!
//! Files are at `<database>.artifacts/<session>/<file>`, with mode 0700 for directories and 0600
//! for files. A caller's name never becomes a path: both parts are ids. A file is written under a
//! temporary name, synced and renamed, and its directory is synced, before the commit that names
//! it. So no row lacks its bytes. A crash can leave bytes without a row: between write and commit,
//! or between a commit and the removal of the replaced file. These are removed after the next
//! start, except files that are reserved for a coming commit.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overmind_core::Fut;
use overmind_core::artifact::{
    Artifact, ArtifactContent, ArtifactHold, ArtifactName, ArtifactSums,
};
use overmind_core::conflict::ConflictKind;
use overmind_core::failpoint;
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::store::{Page, StoreError};
use rusqlite::{Connection, Row, params};

use crate::error::{Fault, Outcome, closed, explain_io};
use crate::files::sync_dir;
use crate::options::{beside, parent};
use crate::read::queries::{MAX_PAGE, bounded, many, one};
use crate::read::rows::{Cells, blob, int};
use crate::schema::open_reader;
use crate::sqlite::Shared;
use crate::writer::apply::taken;

/// The suffix of files that are not complete yet.
const PART: &str = ".part";
/// Maximum number of bytes of one read.
const MAX_READ: usize = 1 << 20;
/// How often making a directory is retried if a sweep has just removed it.
const TRIES: usize = 3;

type Place = (SessionId, EffectId);

/// Starts a thread that removes files that no row names. Nobody waits for it.
///
/// # Errors
///
/// Fails if no thread can be started.
pub(crate) fn sweep(artifacts: &Arc<Files>, shared: &Arc<Shared>) -> io::Result<()> {
    if !artifacts.are_there() {
        return Ok(());
    }
    let (files, shared) = (Arc::clone(artifacts), Arc::clone(shared));
    std::thread::Builder::new().name("store-sweep".into()).spawn(move || {
        match files.sweep(shared.path(), &|| shared.is_closed()) {
            Ok(0) => {}
            Ok(files) => tracing::info!(files, "removed bytes of artifacts that no row names"),
            Err(err) => tracing::warn!(error = %err, "artifacts could not be looked through"),
        }
    })?;
    Ok(())
}

/// The artifact files of one store.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// How many coming commits have reserved each place.
    places: HashMap<Place, usize>,
    /// The number of copies under way. Files that their rows name are not removed meanwhile.
    copies: usize,
    /// Whether a file was not removed because of a copy.
    left: bool,
}

impl Held {
    /// Whether a place must not be removed.
    fn keeps(&mut self, place: Place) -> bool {
        self.left |= self.copies > 0;
        self.copies > 0 || self.places.contains_key(&place)
    }
}

/// The directory of the artifacts of the database at `path`.
pub(crate) fn root_of(path: &Path) -> PathBuf {
    beside(path, ".artifacts")
}

/// Runs file work on a thread that may wait for a disk.
pub(crate) async fn blocking<T: Send + 'static>(
    attempt: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|err| {
        Err(StoreError::Other { attempt: attempt.to_owned(), detail: err.to_string() })
    })
}

impl Files {
    pub(crate) fn new(path: &Path) -> Self {
        Self { root: root_of(path), held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir(&self, session: SessionId) -> PathBuf {
        self.root.join(session.to_string())
    }

    fn path(&self, (session, file): Place) -> PathBuf {
        self.dir(session).join(file.to_string())
    }

    /// Reserves a place: it is not swept until the returned value is dropped.
    pub(crate) fn hold(self: &Arc<Self>, place: Place) -> ArtifactHold {
        *self.held().places.entry(place).or_default() += 1;
        let files = Arc::clone(self);
        ArtifactHold::new(move || {
            let mut held = files.held();
            if let Some(times) = held.places.get_mut(&place) {
                *times -= 1;
                if *times == 0 {
                    held.places.remove(&place);
                }
            }
        })
    }

    /// Writes one file durably and replaces the old one. Blocks.
    pub(crate) fn write(&self, place: Place, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path(place);
        let mut tried = 1;
        loop {
            match self.write_once(place, &path, content) {
                Ok(()) => return Ok(()),
                Err(err) if err.kind() == io::ErrorKind::NotFound && tried < TRIES => tried += 1,
                Err(err) => {
                    let _ = fs::remove_file(beside(&path, PART));
                    return Err(explain_io(&err, &path, "keeping an artifact"));
                }
            }
        }
    }

    fn write_once(&self, place: Place, path: &Path, content: &[u8]) -> io::Result<()> {
        let dir = self.dir(place.0);
        make_dir(&self.root)?;
        make_dir(&dir)?;
        let part = beside(path, PART);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        failpoint::point("artifact.written");
        fs::rename(&part, path)?;
        sync_dir(&dir)?;
        failpoint::point("artifact.kept");
        Ok(())
    }

    /// Opens one file for reading; `None` if it does not exist. Blocks.
    pub(crate) fn open(&self, place: Place) -> Result<Option<Arc<Content>>, StoreError> {
        let path = self.path(place);
        let explain = |err: io::Error| explain_io(&err, &path, "opening an artifact");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(explain(err)),
        };
        let bytes = file.metadata().map_err(explain)?.len();
        Ok(Some(Arc::new(Content { file: Arc::new(file), bytes, path })))
    }

    /// Removes a file unless it is reserved or, as `named` reports, a row names it. Blocks.
    pub(crate) fn drop_unless(
        &self,
        place: Place,
        named: impl FnOnce() -> Outcome<bool>,
    ) -> Outcome<()> {
        // The lock is kept during the check and the removal: a later reservation writes the file
        // again.
        let mut held = self.held();
        if held.keeps(place) || named()? {
            return Ok(());
        }
        for path in [beside(&self.path(place), PART), self.path(place)] {
            gone(fs::remove_file(&path))
                .map_err(|err| Fault::Refused(explain_io(&err, &path, "removing an artifact")))?;
        }
        Ok(())
    }

    /// Removes all files of a session that was deleted. Blocks.
    pub(crate) fn drop_all(&self, session: SessionId) {
        {
            let mut held = self.held();
            if held.copies > 0 {
                held.left = true;
                return;
            }
        }
        // A copy that begins now no longer names it.
        let dir = self.dir(session);
        if let Err(err) = gone(fs::remove_dir_all(&dir)) {
            tracing::warn!(path = %dir.display(), error = %err, "artifacts could not be removed");
        }
    }

    /// Whether there are any artifact files.
    pub(crate) fn are_there(&self) -> bool {
        self.root.is_dir()
    }

    /// Removes files that no row names, until `stop` returns true. Blocks.
    pub(crate) fn sweep(
        &self,
        database: &Path,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64, StoreError> {
        let explain = |fault: Fault| fault.explain(database, "looking at artifacts");
        let conn = open_reader(database).map_err(explain)?;
        let io = |err: io::Error| explain_io(&err, &self.root, "looking at artifacts");
        let mut swept = 0;
        for entry in fs::read_dir(&self.root).map_err(io)? {
            let entry = entry.map_err(io)?;
            // Other names are not ours.
            let session = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(session) = session else { continue };
            let files = match fs::read_dir(entry.path()) {
                Ok(files) => files,
                Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
                Err(err) => return Err(io(err)),
            };
            for file in files {
                if stop() {
                    return Ok(swept);
                }
                let file = file.map_err(io)?.file_name();
                let name = file.to_str().unwrap_or_default();
                let part = name.strip_suffix(PART);
                let Ok(id) = part.unwrap_or(name).parse::<EffectId>() else { continue };
                let is_named = || is_named(&conn, session, id).map_err(explain);
                if part.is_none() && is_named()? {
                    continue;
                }
                // If the complete file has its row, only the temporary part is swept.
                let mut held = self.held();
                if held.keeps((session, id)) || (part.is_none() && is_named()?) {
                    continue;
                }
                let path = self.dir(session).join(&file);
                match gone(fs::remove_file(&path)) {
                    Ok(()) => swept += 1,
                    Err(err) => {
                        tracing::warn!(path = %path.display(), error = %err, "sweeping artifacts");
                    }
                }
            }
            // This fails if files are left, as intended.
            let _ = fs::remove_dir(entry.path());
        }
        Ok(swept)
    }
}

/// Files are not removed while such a value exists.
struct Copying<'a>(&'a Files);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.held().copies -= 1;
    }
}

impl Files {
    /// Runs `work`, which copies the database. No file is removed until it is done; removals that
    /// were delayed follow then. Blocks.
    pub(crate) fn while_copying<T>(&self, database: &Path, work: impl FnOnce() -> T) -> T {
        self.held().copies += 1;
        let copying = Copying(self);
        let done = work();
        drop(copying);
        let left = {
            let mut held = self.held();
            held.copies == 0 && std::mem::take(&mut held.left)
        };
        if left && let Err(err) = self.sweep(database, &|| false) {
            tracing::warn!(error = %err, "artifacts could not be looked through");
        }
        done
    }

    /// Copies the files that rows of `conn` name to a new directory `to` and returns their bytes.
    /// Makes no directory if there are no rows.
    pub(crate) fn copy_named(
        &self,
        conn: &Connection,
        to: &Path,
        stop: &dyn Fn() -> bool,
    ) -> Outcome<u64> {
        let mut find = conn.prepare("SELECT session, file FROM artifacts ORDER BY session")?;
        let mut found = find.query([])?;
        let mut copy = Copy { to, bytes: 0, at: None };
        while let Some(row) = found.next()? {
            if stop() {
                return Err(Fault::Refused(closed()));
            }
            let cells = Cells::new(row, "artifacts");
            let session = SessionId::from_u128(cells.u128(0)?);
            let file = EffectId::from_u128(cells.u128(1)?);
            let from = self.path((session, file));
            copy.add(&from, &session.to_string(), &file.to_string())
                .map_err(|err| Fault::Refused(explain_io(&err, &from, "copying an artifact")))?;
        }
        copy.finish().map_err(|err| Fault::Refused(explain_io(&err, to, "copying artifacts")))
    }
}

/// Copies all files of the artifacts at `from` to a new directory `to`. Blocks.
pub(crate) fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = Copy { to, bytes: 0, at: None };
    // A backup has no links: one would lead to foreign files.
    match fs::symlink_metadata(from) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(io::Error::other("it is not a directory")),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err),
    }
    for session in fs::read_dir(from)? {
        let session = session?;
        let dir = session.file_name().to_string_lossy().into_owned();
        // Copies only what a backup contains.
        if dir.parse::<SessionId>().is_err() || !session.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(session.path())? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name.parse::<EffectId>().is_ok() && file.file_type()?.is_file() {
                copy.add(&file.path(), &dir, &name)?;
            }
        }
    }
    copy.finish().map(|_| ())
}

/// A copy of the artifacts directory that is being filled.
struct Copy<'a> {
    to: &'a Path,
    bytes: u64,
    /// The last directory in it that got a file.
    at: Option<PathBuf>,
}

impl Copy<'_> {
    fn add(&mut self, from: &Path, dir: &str, name: &str) -> io::Result<()> {
        let dir = self.to.join(dir);
        if self.at.as_ref() != Some(&dir) {
            self.settle()?;
            make_dir(self.to)?;
            make_dir(&dir)?;
        }
        let to = dir.join(name);
        self.at = Some(dir);
        // A file is never rewritten under its name, so a hard link is as good as a copy.
        match fs::hard_link(from, &to) {
            Ok(()) => {}
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(path = %from.display(), "the bytes of an artifact are not there");
                return Ok(());
            }
            Err(_) => {
                fs::copy(from, &to)?;
                File::open(&to)?.sync_all()?;
            }
        }
        self.bytes += to.metadata()?.len();
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.at.take().map_or(Ok(()), |dir| sync_dir(&dir))
    }

    fn finish(mut self) -> io::Result<u64> {
        self.settle()?;
        Ok(self.bytes)
    }
}

/// Accepts that a file to remove does not exist.
fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes a directory durably, unless it exists.
fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => sync_dir(parent(dir)),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(err) => Err(err),
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Content {
    file: Arc<File>,
    bytes: u64,
    path: PathBuf,
}

impl ArtifactContent for Content {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, most: usize) -> Fut<'_, Result<Vec<u8>, StoreError>> {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        Box::pin(blocking("reading an artifact", move || {
            let mut bytes = vec![0; most.min(MAX_READ)];
            let mut read = 0;
            while read < bytes.len() {
                match file.read_at(&mut bytes[read..], offset.saturating_add(read as u64)) {
                    Ok(0) => break,
                    Ok(more) => read += more,
                    Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                    Err(err) => return Err(explain_io(&err, &path, "reading an artifact")),
                }
            }
            bytes.truncate(read);
            Ok(bytes)
        }))
    }
}

// --- rows

const ARTIFACT: &str = "session, name, colony, version, file, bytes, media_type, hash, is_text, \
    is_masked, author, created_at, updated_at, place";

fn artifact(row: &Row<'_>) -> Outcome<Artifact> {
    let cells = Cells::new(row, "artifacts");
    Ok(Artifact {
        session: SessionId::from_u128(cells.u128(0)?),
        name: ArtifactName::parse(cells.str(1)?)
            .map_err(|_| cells.wrong(1, "an artifact's name"))?,
        colony: ColonyId::from_u128(cells.u128(2)?),
        version: cells.u64(3)?,
        file: EffectId::from_u128(cells.u128(4)?),
        bytes: cells.u64(5)?,
        media_type: cells.text(6)?,
        hash: cells.hash(7)?,
        is_text: cells.int(8)? != 0,
        is_masked: cells.int(9)? != 0,
        author: cells.text(10)?,
        created_at: cells.time(11)?,
        updated_at: cells.time(12)?,
        place: cells.u64(13)?,
    })
}

pub(crate) fn fetch(
    conn: &Connection,
    session: SessionId,
    name: &ArtifactName,
) -> Outcome<Option<Artifact>> {
    let sql = format!("SELECT {ARTIFACT} FROM artifacts WHERE session = ?1 AND name = ?2");
    one(conn, &sql, params![blob(session.as_u128()), name.as_str()], artifact)
}

pub(crate) fn list(
    conn: &Connection,
    session: SessionId,
    page: Page<u64>,
) -> Outcome<Vec<Artifact>> {
    let sql = format!(
        "SELECT {ARTIFACT} FROM artifacts WHERE session = ?1 AND place < ?2
         ORDER BY place DESC LIMIT ?3"
    );
    let before = page.after.map_or(i64::MAX, int);
    let with = params![blob(session.as_u128()), before, bounded(page.limit, MAX_PAGE)];
    many(conn, &sql, with, artifact)
}

pub(crate) fn sums(conn: &Connection, session: SessionId) -> Outcome<ArtifactSums> {
    let sql = "SELECT count(*), coalesce(sum(bytes), 0) FROM artifacts WHERE session = ?1";
    let found = one(conn, sql, [blob(session.as_u128())], |row| {
        let cells = Cells::new(row, "artifacts");
        Ok(ArtifactSums { count: cells.u32(0)?, bytes: cells.u64(1)? })
    })?;
    Ok(found.unwrap_or_default())
}

/// Whether a row names the file.
pub(crate) fn is_named(conn: &Connection, session: SessionId, file: EffectId) -> Outcome<bool> {
    let found = conn
        .prepare_cached("SELECT 1 FROM artifacts WHERE session = ?1 AND file = ?2")?
        .exists(params![blob(session.as_u128()), blob(file.as_u128())])?;
    Ok(found)
}

pub(crate) fn put(conn: &Connection, row: &Artifact, global: u64) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT INTO artifacts (session, name, folded, colony, version, file, bytes, media_type,
           hash, is_text, is_masked, author, created_at, updated_at, place)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT (session, name) DO UPDATE SET
           version = excluded.version, file = excluded.file, bytes = excluded.bytes,
           media_type = excluded.media_type, hash = excluded.hash, is_text = excluded.is_text,
           is_masked = excluded.is_masked, author = excluded.author,
           created_at = excluded.created_at, updated_at = excluded.updated_at,
           place = excluded.place",
    )?
    .execute(params![
        blob(row.session.as_u128()),
        row.name.as_str(),
        row.name.folded(),
        blob(row.colony.as_u128()),
        int(row.version),
        blob(row.file.as_u128()),
        int(row.bytes),
        row.media_type,
        row.hash,
        row.is_text,
        row.is_masked,
        row.author,
        row.created_at.as_micros(),
        row.updated_at.as_micros(),
        int(global),
    ])
    .map_err(|err| taken(err.into(), ConflictKind::Artifact, || row.name.to_string()))?;
    Ok(())
}

pub(crate) fn delete(conn: &Connection, session: SessionId, name: &ArtifactName) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM artifacts WHERE session = ?1 AND name = ?2")?
        .execute(params![blob(session.as_u128()), name.as_str()])?;
    Ok(())
}
