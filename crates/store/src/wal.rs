//! Copies the write-ahead log back into the database without delaying commits.
//!
//! SQLite would do this inside of a commit, which then takes as long as writing and syncing
//! thousands of pages. Here a separate thread copies what it can while commits continue. When only
//! a small rest is left, the writer copies that between two groups and resets the log. The reset
//! takes two or three fsyncs, so while many commits wait it is delayed until the log has
//! [`FORCED_FRAMES`]. If the log grows beyond [`HARD_FRAMES`], the writer waits for the copying.
//!
//! A reader with a long transaction (a backup, an audit) keeps the log from being reset, so the log
//! grows meanwhile; nothing else waits for the reader.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use overmind_core::failpoint;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::error::{Fault, Outcome, Reach};
use crate::schema::open_writer;

/// The log's size in pages at which it is copied back if there is little load: 16 MB.
const SOFT_FRAMES: i64 = 4_096;
/// The size at which it is copied back under load: 32 MB. Busy pages are then copied once instead
/// of many times; a larger size would block the disk for longer when the copy is synced.
const BUSY_FRAMES: i64 = 8_192;
/// The log's size in pages at which it is reset even under load: 128 MB.
const FORCED_FRAMES: i64 = 32_768;
/// The log's size in pages at which commits wait for the copying: 256 MB.
const HARD_FRAMES: i64 = 65_536;
/// The thread stops when so few pages are left: the writer copies them in a few milliseconds.
const REST_FRAMES: i64 = 256;
/// Maximum number of rounds of copying: each is shorter than the one before, unless the disk cannot
/// keep up.
const MAX_ROUNDS: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is nothing to do.
    Idle,
    /// The thread is copying.
    Copying,
    /// The thread is done, and the writer must finish.
    Copied,
}

/// How many commits are waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Light,
    Heavy,
}

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// The error of a failed sync: the database file may lack pages that were written.
    broken: OnceLock<String>,
}

impl Shared {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.phase() = phase;
        self.changed.notify_all();
    }

    /// Runs one of SQLite's checkpoints. Returns the pages in the log, how many of them are copied,
    /// and whether something kept it from finishing. Most failures are harmless: the log stays and
    /// is copied later.
    fn checkpoint(&self, conn: &Connection, mode: Mode) -> Option<(i64, i64, Busy)> {
        match checkpoint(conn, mode) {
            Ok(done) => Some(done),
            Err(fault) => {
                tracing::warn!(?mode, error = ?fault, "copying the write-ahead log failed");
                self.note(&fault);
                None
            }
        }
    }

    /// Records a failed sync of the database, after which the log must stay: see [`Reach::Store`].
    fn note(&self, fault: &Fault) {
        if fault.reach() == Reach::Store {
            let _ = self.broken.set(format!("{fault:?}"));
        }
    }
}

/// The part that the writer holds.
#[derive(Debug)]
pub(crate) struct Wal {
    shared: Arc<Shared>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The log's size in pages at which the next round begins; larger after a round that a reader
    /// blocked.
    next_at: i64,
}

impl Wal {
    pub(crate) fn start(path: &Path) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase::Idle),
            changed: Condvar::new(),
            broken: OnceLock::new(),
        });
        let (wake, woken) = channel();
        let path = path.to_owned();
        let thread = std::thread::Builder::new().name("store-wal".into()).spawn({
            let shared = Arc::clone(&shared);
            move || copy_when_woken(&path, &woken, &shared)
        })?;
        Ok(Self { shared, wake: Some(wake), thread: Some(thread), next_at: 0 })
    }

    /// Called by the writer between two groups.
    pub(crate) fn between_groups(&mut self, conn: &Connection, load: Load) {
        let phase = *self.shared.phase();
        match phase {
            Phase::Idle => {
                let Some((frames, ..)) = self.shared.checkpoint(conn, Mode::Noop) else { return };
                let enough = match load {
                    Load::Light => SOFT_FRAMES,
                    Load::Heavy => BUSY_FRAMES,
                };
                if frames >= enough.max(self.next_at)
                    && let Some(wake) = &self.wake
                {
                    self.shared.set(Phase::Copying);
                    if wake.send(()).is_err() {
                        // The thread has ended, so the writer copies everything.
                        self.shared.set(Phase::Copied);
                    }
                }
            }
            Phase::Copying => {
                let Some((frames, ..)) = self.shared.checkpoint(conn, Mode::Noop) else { return };
                if frames >= HARD_FRAMES {
                    let guard = self.shared.phase();
                    let waited = self.shared.changed.wait_timeout_while(
                        guard,
                        Duration::from_secs(1),
                        |phase| *phase == Phase::Copying,
                    );
                    drop(waited);
                }
            }
            Phase::Copied => {
                let Some((frames, ..)) = self.shared.checkpoint(conn, Mode::Noop) else { return };
                if load == Load::Light || frames >= FORCED_FRAMES {
                    self.finish(conn);
                } else {
                    self.next_at = frames + BUSY_FRAMES;
                }
                self.shared.set(Phase::Idle);
            }
        }
    }

    /// Copies the rest and resets the log, if no reader needs it.
    fn finish(&mut self, conn: &Connection) {
        failpoint::point("store.wal_restart");
        // Readers end within microseconds, or run for long: waiting longer does not help.
        let _ = conn.busy_timeout(Duration::from_millis(5));
        let done = self.shared.checkpoint(conn, Mode::Restart);
        let _ = conn.busy_timeout(Duration::from_secs(1));
        self.next_at = match done {
            Some((_, _, Busy::No)) => 0,
            Some((frames, _, Busy::Yes)) => {
                if frames >= HARD_FRAMES {
                    tracing::warn!(
                        frames,
                        "the write-ahead log cannot start over while a reader needs it"
                    );
                }
                frames + SOFT_FRAMES
            }
            None => self.next_at + SOFT_FRAMES,
        };
    }

    /// The error of a failed sync. No commit may follow: the log still has what the database may
    /// have lost, and must not be reset.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.shared.broken.get().map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn note(&self, fault: &Fault) {
        self.shared.note(fault);
    }

    /// Ends the thread, then copies the log into the database and empties it, unless `broken`.
    pub(crate) fn stop(&mut self, conn: &Connection, broken: bool) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that copies the write-ahead log panicked");
        }
        if !broken && self.broken().is_none() {
            self.shared.checkpoint(conn, Mode::Truncate);
        } else {
            keep(conn);
        }
    }
}

/// Lets `conn` close without copying the log back, which stays as it is.
pub(crate) fn keep(conn: &Connection) {
    if let Err(err) = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
        tracing::warn!(error = %err, "the log may be copied back at closing");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Yes,
    No,
}

/// SQLite's modes of copying the log back.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Counts only.
    Noop,
    /// Copies pages that no reader needs, without waiting.
    Passive,
    /// Copies everything and lets the next commit write the log from its start.
    Restart,
    /// Copies everything and empties the file.
    Truncate,
}

fn checkpoint(conn: &Connection, mode: Mode) -> Outcome<(i64, i64, Busy)> {
    let sql = match mode {
        Mode::Noop => "PRAGMA wal_checkpoint(noop)",
        Mode::Passive => "PRAGMA wal_checkpoint(passive)",
        Mode::Restart => "PRAGMA wal_checkpoint(restart)",
        Mode::Truncate => "PRAGMA wal_checkpoint(truncate)",
    };
    let (busy, frames, copied): (i64, i64, i64) = conn
        .prepare_cached(sql)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok((frames, copied, if busy == 0 { Busy::No } else { Busy::Yes }))
}

fn copy_when_woken(path: &Path, woken: &Receiver<()>, shared: &Shared) {
    let mut conn = None;
    while woken.recv().is_ok() {
        if conn.is_none() {
            match open_writer(path, None) {
                Ok(new) => conn = Some(new),
                Err(fault) => {
                    tracing::warn!(error = ?fault, "cannot open the store to copy its log");
                }
            }
        }
        if let Some(conn) = &conn {
            for _ in 0..MAX_ROUNDS {
                failpoint::point("store.wal_copy");
                match shared.checkpoint(conn, Mode::Passive) {
                    Some((frames, copied, _)) if frames - copied > REST_FRAMES => {}
                    Some(_) | None => break,
                }
            }
        }
        shared.set(Phase::Copied);
    }
}
