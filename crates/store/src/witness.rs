//! The witness: a record, outside of the database, of what was acknowledged. Each group of commits
//! writes the heads of its changed streams to a small file before any caller is answered.
//!
//! SQLite takes the start of damage in a write-ahead log, or a removed log, for the log's end:
//! later commits are lost, and a consistent older state is left. The hash chains cannot show that,
//! because they end where the log ends. The witness can: [`missing`] compares it with the database
//! at the start, and the audit at any time.
//!
//! The file is a ring of [`SLOTS`] slots of 128 bytes. Each slot is one promise, authenticated with
//! a key that is derived from the one that signs checkpoints. One system call writes it after each
//! group's fsync, without waiting for the disk. A killed process loses nothing of it; if the
//! machine itself fails, it is up to [`SYNC_EVERY`] behind. A promise is written only after its
//! data is on disk, so it is never ahead of the database.
//!
//! The witness does not show three things: the loss of data after its last sync, together with a
//! part of the log that a power cut destroyed; changes without an event of their own, if they are
//! the last ones; and a user who may write all files of the directory and restores all of them
//! together. If the file is missing or has another key, no loss is detected, and it starts again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use overmind_core::store::{StoreError, StreamId};
use overmind_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use crate::error::Outcome;
use crate::files::{Header, read_header};
use crate::options::beside;
use crate::read::rows;
use crate::schema::open_reader;
use crate::writer::log::{Head, name_of, stream_of};

/// Promises that are kept: at least those of the newest 16 MB of the write-ahead log.
const SLOTS: u64 = 4_096;
const SLOT: usize = 128;
/// How long a promise may wait for the disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of streams whose heads are compared at the start; the audit compares all.
const LOOKED_AT: usize = 64;
/// Maximum number of streams that a message names.
const NAMED: usize = 5;

const MAC: usize = 32;
const NAME: usize = 96;

/// One stream's head, acknowledged when the log ended at `global`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// The number of the promise, which determines its slot in the ring.
    serial: u64,
    pub(crate) global: u64,
    ts: Timestamp,
    pub(crate) stream: StreamId,
    pub(crate) seq: u64,
    pub(crate) hash: [u8; 32],
}

impl Promise {
    fn write(&self, key: &[u8; 32], slot: &mut [u8]) {
        let (mac, said) = slot.split_at_mut(MAC);
        said.fill(0);
        said[..8].copy_from_slice(&self.serial.to_be_bytes());
        said[8..16].copy_from_slice(&self.global.to_be_bytes());
        said[16..24].copy_from_slice(&self.ts.as_micros().to_be_bytes());
        said[24..32].copy_from_slice(&self.seq.to_be_bytes());
        said[32..64].copy_from_slice(&self.hash);
        let name = name_of(self.stream);
        let name = name.as_slice();
        said[64] = u8::try_from(name.len()).expect("a name has 16 bytes at most");
        said[65..65 + name.len()].copy_from_slice(name);
        mac.copy_from_slice(blake3::keyed_hash(key, said).as_bytes());
    }

    /// `None` for a slot that is empty, incomplete, damaged, of another key or in the wrong place.
    fn read(key: &[u8; 32], at: u64, slot: &[u8]) -> Option<Self> {
        let (mac, said) = slot.split_at(MAC);
        // Most slots of a new file are empty and need no hash.
        if mac.iter().all(|byte| *byte == 0) {
            return None;
        }
        let number = |at: usize| said[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        let mac: [u8; MAC] = mac.try_into().ok()?;
        // The type compares in constant time.
        if blake3::keyed_hash(key, said) != mac || number(0)? % SLOTS != at {
            return None;
        }
        let name = said[65..NAME].get(..usize::from(said[64]))?;
        Some(Self {
            serial: number(0)?,
            global: number(8)?,
            ts: Timestamp::from_micros(number(16)?.cast_signed()),
            seq: number(24)?,
            hash: said[32..64].try_into().ok()?,
            stream: stream_of(name).ok()?,
        })
    }
}

/// The path of the witness of the database at `path`.
pub(crate) fn file_of(path: &Path) -> PathBuf {
    beside(path, ".witness")
}

/// The promises in the witness of the database at `path`, in the order in which they were made.
pub(crate) fn read(path: &Path, key: &[u8; 32]) -> io::Result<Vec<Promise>> {
    let mut bytes = Vec::new();
    match File::open(file_of(path)) {
        Ok(file) => file.take(SLOTS * SLOT as u64).read_to_end(&mut bytes)?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let slots = (0..).zip(bytes.chunks_exact(SLOT));
    let mut promises: Vec<_> =
        slots.filter_map(|(at, slot)| Promise::read(key, at, slot)).collect();
    promises.sort_unstable_by_key(|promise| promise.serial);
    Ok(promises)
}

/// The newest promise of each stream, the newest first.
pub(crate) fn newest(promises: &[Promise]) -> Vec<Promise> {
    let mut seen = std::collections::HashSet::new();
    promises.iter().rev().filter(|promise| seen.insert(promise.stream)).copied().collect()
}

/// Acknowledged data that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The number of missing events in all streams.
    pub(crate) events: u64,
    /// The global number at which the log ends.
    found: u64,
    /// When the first of them was acknowledged, as far back as the witness goes.
    pub(crate) since: Timestamp,
    /// Each stream with the event at which it ended, and the one at which it ends now.
    pub(crate) streams: Vec<(StreamId, u64, u64)>,
}

impl Loss {
    /// Whether the whole log is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.found == 0
    }

    /// A message that tells how much is missing, since when, and of which streams.
    pub(crate) fn detail(&self) -> String {
        let mut text = format!(
            "{} acknowledged event{} since {} {} gone",
            self.events,
            if self.events == 1 { "" } else { "s" },
            self.since,
            if self.events == 1 { "is" } else { "are" },
        );
        for (at, (stream, promised, found)) in self.streams.iter().take(NAMED).enumerate() {
            let begin = if at == 0 { ": " } else { ", " };
            text += &format!("{begin}{stream} ends at {found} instead of {promised}");
        }
        if self.streams.len() > NAMED {
            text += &format!(", and {} more streams", self.streams.len() - NAMED);
        }
        text
    }
}

/// Compares the promises with the end of the log of the database at `path`. Writes nothing.
pub(crate) fn missing(path: &Path, promises: &[Promise]) -> Result<Option<Loss>, StoreError> {
    let (Some(first), Some(last)) = (promises.first(), promises.last()) else { return Ok(None) };
    let compare = || -> Outcome<Option<Loss>> {
        let conn = open_reader(path)?;
        let schema = "SELECT count(*) FROM sqlite_schema WHERE name IN ('events', 'streams')";
        let tables: u32 = conn.query_row(schema, [], |row| row.get(0))?;
        if tables == 2 {
            behind(&conn, promises, *last)
        } else {
            Ok(Some(all(promises, first, last)))
        }
    };
    match read_header(path)? {
        Header::Fresh => Ok(Some(all(promises, first, last))),
        Header::Sqlite => {
            compare().map_err(|fault| fault.explain(path, "looking for what was acknowledged"))
        }
    }
}

/// The loss if the whole log is missing.
fn all(promises: &[Promise], first: &Promise, last: &Promise) -> Loss {
    let streams = newest(promises).iter().map(|promise| (promise.stream, promise.seq, 0)).collect();
    Loss { events: last.global, found: 0, since: first.ts, streams }
}

fn behind(conn: &Connection, promises: &[Promise], last: Promise) -> Outcome<Option<Loss>> {
    let found: i64 =
        conn.query_row("SELECT coalesce(max(global), 0) FROM events", [], |row| row.get(0))?;
    let found = rows::unsigned(found, "events.global")?;
    let events = last.global.saturating_sub(found);
    let mut head = conn.prepare("SELECT head_seq FROM streams WHERE name = ?1")?;
    let mut streams = Vec::new();
    let newest = newest(promises);
    let look_at = if events > 0 { newest.len() } else { LOOKED_AT };
    for promise in newest.iter().take(look_at) {
        let at: Option<i64> =
            head.query_row([name_of(promise.stream).as_slice()], |row| row.get(0)).optional()?;
        let at = match at {
            Some(at) => rows::unsigned(at, "streams.head_seq")?,
            // Retention removes streams and records that in a log that is complete.
            None if events == 0 => continue,
            None => 0,
        };
        if at < promise.seq {
            streams.push((promise.stream, promise.seq, at));
        }
    }
    if events == 0 && streams.is_empty() {
        return Ok(None);
    }
    let since = promises.iter().find(|promise| promise.global > found).unwrap_or(&last).ts;
    let events = events.max(streams.iter().map(|(_, promised, found)| promised - found).sum());
    Ok(Some(Loss { events, found, since, streams }))
}

/// The part that the writer holds.
#[derive(Debug)]
pub(crate) struct Witness {
    path: PathBuf,
    file: Arc<File>,
    key: [u8; 32],
    /// The number of the next promise.
    next: u64,
    buffer: Vec<u8>,
    /// Whether a promise was written that may not be on disk yet.
    unsynced: Arc<AtomicBool>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Whether a failure to write it was already reported.
    failing: bool,
}

impl Witness {
    /// Continues after `promises`, which were read from the file; makes the file if there is none.
    pub(crate) fn open(path: &Path, key: [u8; 32], promises: &[Promise]) -> io::Result<Self> {
        let path = file_of(path);
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = Arc::new(how.open(&path)?);
        let bytes = SLOTS * SLOT as u64;
        // Allocates the whole file at once: a full disk must not prevent promises.
        let whole = rustix::fs::FallocateFlags::empty();
        if rustix::fs::fallocate(&file, whole, 0, bytes).is_err() {
            file.set_len(bytes)?;
        }
        let unsynced = Arc::new(AtomicBool::new(false));
        let (wake, woken) = channel();
        let thread = std::thread::Builder::new().name("store-witness".into()).spawn({
            let (file, unsynced) = (Arc::clone(&file), Arc::clone(&unsynced));
            move || sync_when_woken(&file, &woken, &unsynced)
        })?;
        Ok(Self {
            path,
            file,
            key,
            next: promises.last().map_or(0, |last| last.serial + 1),
            buffer: Vec::new(),
            unsynced,
            wake: Some(wake),
            thread: Some(thread),
            failing: false,
        })
    }

    /// Forgets all promises, durably.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        self.file.write_all_at(&vec![0; SLOT * usize::try_from(SLOTS).unwrap_or(0)], 0)?;
        self.file.sync_data()
    }

    /// Writes promises for heads that are on disk. The log ends at `global`; `ts` is the time of
    /// its last event.
    pub(crate) fn promise<'h>(
        &mut self,
        heads: impl Iterator<Item = (&'h StreamId, &'h Head)>,
        global: u64,
        ts: Timestamp,
    ) {
        let first = self.next;
        self.buffer.clear();
        for (stream, head) in heads {
            let (serial, seq, hash) = (self.next, head.seq, head.hash);
            let promise = Promise { serial, global, ts, stream: *stream, seq, hash };
            let at = self.buffer.len();
            self.buffer.resize(at + SLOT, 0);
            promise.write(&self.key, &mut self.buffer[at..]);
            self.next += 1;
        }
        if self.buffer.is_empty() {
            return;
        }
        if let Err(err) = self.write(first) {
            // The commit is done; the older promise in the file is still true.
            if !std::mem::replace(&mut self.failing, true) {
                tracing::warn!(error = %err, path = %self.path.display(), "the witness of what was acknowledged cannot be written");
            }
            return;
        }
        self.failing = false;
        if !self.unsynced.swap(true, Ordering::AcqRel)
            && let Some(wake) = &self.wake
        {
            let _ = wake.send(());
        }
    }

    fn write(&self, first: u64) -> io::Result<()> {
        let mut at = first;
        let mut left = self.buffer.as_slice();
        while !left.is_empty() {
            let slot = at % SLOTS;
            let fits = usize::try_from(SLOTS - slot).unwrap_or(usize::MAX).saturating_mul(SLOT);
            let (now, later) = left.split_at(left.len().min(fits));
            self.file.write_all_at(now, slot * SLOT as u64)?;
            at += (now.len() / SLOT) as u64;
            left = later;
        }
        Ok(())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that syncs the witness panicked");
        }
    }
}

/// Syncs the file some time after a promise was written, once for all promises of that time.
fn sync_when_woken(file: &File, woken: &Receiver<()>, unsynced: &AtomicBool) {
    while woken.recv().is_ok() {
        // No wake-up comes before the sync: this only waits, or ends early with the store.
        let closing = woken.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Disconnected);
        unsynced.store(false, Ordering::Release);
        if let Err(err) = file.sync_data() {
            tracing::warn!(error = %err, "the witness of what was acknowledged cannot be synced");
        }
        if closing {
            return;
        }
    }
}
