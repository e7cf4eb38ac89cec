//! The one writer: a thread that turns a queue of commits into few transactions.
//!
//! All commits that are queued when a transaction begins join it, and so do commits that arrive
//! while it is being filled, up to [`GROUP_COMMITS`] and [`GROUP_BYTES`]. Each commit has its own
//! savepoint, so a refused one does not affect the others. Then follow one `COMMIT` with one fsync
//! and the answers to all callers. Refused commits are answered then, too, because the cause may be
//! another commit of the same group. If the `COMMIT` fails, all of them fail.
//!
//! There is no added delay: a single commit waits for one fsync, and while the disk is busy with
//! one group, the next group forms by itself.

pub(crate) mod apply;
pub(crate) mod checkpoint;
mod colonies;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod mesh;
pub(crate) mod prune;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use overmind_core::failpoint;
use overmind_core::ids::SessionId;
use overmind_core::store::{Committed, Pruned, StoreError, StreamId};
use overmind_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use self::log::Log;
use crate::error::{Fault, Outcome, Reach, closed};
use crate::key::SigningKey;
use crate::prepare::{Event, Prepared};
use crate::sqlite::Shared;
use crate::wal::{Load, Wal};
use crate::witness::{Loss, Witness};

/// Maximum number of commits in one transaction.
const GROUP_COMMITS: usize = 512;
/// A transaction accepts no further commit once it has this many bytes.
const GROUP_BYTES: usize = 8 << 20;

/// The event that records the loss of acknowledged events.
const LOST: &str = "store.loss_accepted";
/// Maximum number of streams that the event names.
const MAX_LOST_STREAMS: usize = 1_000;

/// If one transaction has this many commits, many callers are waiting.
const HEAVY: usize = 8;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
pub(crate) enum Job {
    Commit(CommitJob),
    Checkpoint {
        now: Timestamp,
        reply: Reply<Option<u64>>,
    },
    /// Runs one batch of retention; the answer tells whether there may be more, and which sessions
    /// were removed.
    Prune {
        before: Timestamp,
        now: Timestamp,
        reply: Reply<(Pruned, bool, Vec<SessionId>)>,
    },
    /// Removes one session, if it has ended.
    Remove {
        session: SessionId,
        now: Timestamp,
        reply: Reply<Option<Pruned>>,
    },
    Close {
        reply: Reply<()>,
    },
}

#[derive(Debug)]
pub(crate) struct CommitJob {
    pub(crate) commit: Prepared,
    pub(crate) reply: Reply<Committed>,
    /// Its share of the memory that queued commits may hold.
    pub(crate) room: OwnedSemaphorePermit,
}

pub(crate) struct Writer {
    pub(crate) conn: Connection,
    pub(crate) log: Log,
    pub(crate) key: Arc<SigningKey>,
    pub(crate) wal: Wal,
    /// `None` in a store that is only read.
    pub(crate) witness: Option<Witness>,
    pub(crate) checkpoint_every: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: mpsc::Receiver<Job>,
    /// Why nothing can be written any more.
    pub(crate) broken: Option<StoreError>,
}

/// An answer that is sent after the transaction's end.
type Answer = (Reply<Committed>, Result<Committed, StoreError>);

impl Writer {
    /// Runs until the store is closed or dropped.
    pub(crate) fn run(mut self) {
        let mut next = None;
        let mut closing = None;
        while let Some(job) = next.take().or_else(|| self.queue.blocking_recv()) {
            match job {
                Job::Commit(first) => {
                    let (other, load) = self.group(first);
                    next = other;
                    self.wal.between_groups(&self.conn, load);
                }
                Job::Checkpoint { now, reply } => {
                    let done = self.checkpoint(now);
                    let _ = reply.send(done);
                }
                Job::Prune { before, now, reply } => {
                    let done = self.prune(before, now);
                    let _ = reply.send(done);
                    self.wal.between_groups(&self.conn, Load::Light);
                }
                Job::Remove { session, now, reply } => {
                    let done = self.remove(session, now);
                    let _ = reply.send(done);
                    self.wal.between_groups(&self.conn, Load::Light);
                }
                Job::Close { reply } => {
                    // Queued jobs are finished; later ones are refused.
                    self.queue.close();
                    match closing {
                        None => closing = Some(reply),
                        Some(_) => drop(reply.send(Err(closed()))),
                    }
                }
            }
        }
        let last = self.log.last_ts();
        let signed = self.checkpoint(last).map(|_| ());
        if let Err(err) = &signed {
            tracing::warn!(error = %err, "closing without a last checkpoint");
        }
        self.wal.stop(&self.conn, self.broken.is_some());
        // This comes before the lock is released, because the next owner opens the witness itself.
        self.witness = None;
        let Self { conn, shared, .. } = self;
        if let Err((_, err)) = conn.close() {
            tracing::warn!(error = %err, "closing the database");
        }
        shared.release();
        if let Some(reply) = closing {
            let _ = reply.send(signed);
        }
    }

    /// Runs one transaction: `first` and the commits that join it. Returns the job that ended it,
    /// if one did, and how many waited.
    fn group(&mut self, first: CommitJob) -> (Option<Job>, Load) {
        let mut answers: Vec<Answer> = Vec::new();
        let mut rooms: Vec<OwnedSemaphorePermit> = Vec::new();
        let mut bytes = 0;
        let mut other = None;
        let mut next = Some(first);
        if let Err(err) = self.begin() {
            if let Some(job) = next {
                let _ = job.reply.send(Err(err));
            }
            return (None, Load::Light);
        }
        while let Some(CommitJob { commit, reply, room }) = next.take() {
            bytes += commit.bytes;
            rooms.push(room);
            match apply::apply(&self.conn, &mut self.log, &commit) {
                Ok(committed) => answers.push((reply, Ok(committed))),
                Err(fault) if fault.reach() == Reach::Commit => {
                    answers.push((reply, Err(self.explain(fault, "writing a commit"))));
                }
                Err(fault) => {
                    let err = self.fail(fault, "writing a commit");
                    answers.push((reply, Err(err.clone())));
                    answer_all(answers, Some(&err));
                    return (None, Load::Light);
                }
            }
            if answers.len() == 1 {
                failpoint::point("store.in_group");
            }
            if answers.len() < GROUP_COMMITS && bytes < GROUP_BYTES {
                match self.queue.try_recv() {
                    Ok(Job::Commit(job)) => next = Some(job),
                    Ok(job) => other = Some(job),
                    Err(_) => {}
                }
            }
        }
        let load = if answers.len() < HEAVY { Load::Light } else { Load::Heavy };
        match self.end() {
            Ok(()) => {
                failpoint::point("store.after_commit_before_ack");
                for (_, result) in &answers {
                    if let Ok(committed) = result {
                        self.tell(&committed.places);
                    }
                }
                answer_all(answers, None);
            }
            Err(err) => answer_all(answers, Some(&err)),
        }
        (other, load)
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        if self.broken.is_none()
            && let Some(why) = self.wal.broken()
        {
            let why = why.to_owned();
            self.end_for_good(&why);
        }
        if let Some(err) = &self.broken {
            return Err(err.clone());
        }
        let begun = || -> Outcome<()> {
            self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            Ok(())
        };
        match begun() {
            Ok(()) => {
                self.log.begin_group();
                Ok(())
            }
            Err(fault) => Err(self.explain(fault, "beginning a transaction")),
        }
    }

    /// Makes the transaction durable, or undoes it completely.
    fn end(&mut self) -> Result<(), StoreError> {
        match self.seal() {
            Ok(()) => {
                failpoint::point("store.after_commit_before_promise");
                if let Some(witness) = &mut self.witness {
                    witness.promise(self.log.moved(), self.log.global(), self.log.last_ts());
                }
                self.log.keep_group();
                Ok(())
            }
            Err(fault) => Err(self.fail(fault, "committing")),
        }
    }

    fn seal(&mut self) -> Outcome<()> {
        self.log.write_heads(&self.conn)?;
        if self.log.is_due(self.checkpoint_every) {
            // The checkpoint is in the same transaction and needs no fsync of its own.
            let ts = self.log.last_ts();
            checkpoint::sign(&self.conn, &mut self.log, &self.key, ts)?;
        }
        failpoint::point("store.before_commit");
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Records in the log that the loss was accepted.
    pub(crate) fn accept(&mut self, loss: &Loss, now: Timestamp) -> Result<(), StoreError> {
        let streams: Vec<_> = loss.streams.iter().take(MAX_LOST_STREAMS).collect();
        let payload = serde_json::json!({
            "events": loss.events,
            "since": loss.since,
            "streams": streams.iter().map(|(stream, promised, found)| serde_json::json!({
                "stream": stream.to_string(), "acknowledged": promised, "found": found,
            })).collect::<Vec<_>>(),
            "more_streams": loss.streams.len() - streams.len(),
        });
        let event =
            Event { stream: StreamId::System, kind: LOST, ts: now, payload: payload.to_string() };
        self.alone("accepting a loss", |conn, log, _| {
            log.begin_commit();
            log.append(conn, &event)
        })?;
        Ok(())
    }

    /// Undoes the transaction after `fault`, in the file and in memory.
    fn fail(&mut self, fault: Fault, attempt: &str) -> StoreError {
        self.log.drop_group();
        let reach = fault.reach();
        let err = self.explain(fault, attempt);
        // After some errors SQLite has already rolled back.
        let undone = self.conn.is_autocommit() || self.conn.execute_batch("ROLLBACK").is_ok();
        if reach == Reach::Store || !undone {
            self.end_for_good(&err.to_string());
        } else {
            tracing::warn!(error = %err, "a transaction failed and was undone");
        }
        err
    }

    /// Refuses everything from now on. Acknowledged commits are in the write-ahead log, which is
    /// kept for the next start.
    fn end_for_good(&mut self, why: &str) {
        tracing::error!(error = why, "the store accepts no more commits");
        let detail = format!(
            "its writer ended because what the disk holds is unknown ({why}); check the disk and \
             start again"
        );
        self.broken = Some(StoreError::Closed { detail });
    }

    /// Runs `work` in its own transaction.
    fn alone<T>(
        &mut self,
        attempt: &str,
        work: impl FnOnce(&Connection, &mut Log, &SigningKey) -> Outcome<T>,
    ) -> Result<T, StoreError> {
        self.begin()?;
        match work(&self.conn, &mut self.log, &self.key) {
            Ok(done) => {
                self.log.keep_commit();
                self.end()?;
                Ok(done)
            }
            Err(fault) => Err(self.fail(fault, attempt)),
        }
    }

    fn checkpoint(&mut self, now: Timestamp) -> Result<Option<u64>, StoreError> {
        let signed = self.alone("signing a checkpoint", |conn, log, key| {
            checkpoint::sign(conn, log, key, now)
        })?;
        Ok(signed.map(|signed| signed.number))
    }

    fn prune(
        &mut self,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<(Pruned, bool, Vec<SessionId>), StoreError> {
        let batch = self.alone("removing what retention says", |conn, log, _| {
            prune::batch(conn, log, before, now)
        })?;
        self.log.forget(&batch.streams);
        self.tell(&batch.places);
        Ok((batch.pruned, batch.more, batch.sessions))
    }

    fn remove(&mut self, session: SessionId, now: Timestamp) -> Result<Option<Pruned>, StoreError> {
        let batch =
            self.alone("removing a session", |conn, log, _| prune::one(conn, log, session, now))?;
        self.log.forget(&batch.streams);
        self.tell(&batch.places);
        Ok((batch.pruned.sessions > 0).then_some(batch.pruned))
    }

    /// Notifies the listener of a durable commit.
    fn tell(&self, places: &[(StreamId, u64)]) {
        if places.is_empty() {
            return;
        }
        let Some(listener) = self.shared.listener() else { return };
        // The only writer must survive a panic of a listener.
        if catch_unwind(AssertUnwindSafe(|| listener(places))).is_err() {
            tracing::error!("the listener for commits panicked");
        }
    }

    fn explain(&self, fault: Fault, attempt: &str) -> StoreError {
        fault.explain(self.shared.path(), attempt)
    }
}

/// Answers every caller: with its own result or, if there is one, with `failure`.
fn answer_all(answers: Vec<Answer>, failure: Option<&StoreError>) {
    for (reply, result) in answers {
        // The caller may no longer wait.
        let _ = reply.send(match failure {
            Some(err) => Err(err.clone()),
            None => result,
        });
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::store::{Commit, NewEvent};
    use rusqlite::ffi;

    use super::*;
    use crate::options::Options;
    use crate::sqlite::Sqlite;
    use overmind_core::store::Store;

    fn one_event() -> Commit {
        let event = NewEvent {
            stream: StreamId::System,
            kind: "test.done",
            ts: Timestamp::from_micros(1),
            payload: serde_json::json!({}),
        };
        Commit { events: vec![event], ..Commit::default() }
    }

    #[tokio::test]
    async fn after_a_failed_sync_nothing_is_committed_and_the_log_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        {
            let store = Sqlite::open(Options::new(&path)).unwrap();
            store.commit(one_event()).await.unwrap();
        }
        let (queue, jobs) = mpsc::channel(8);
        let conn = crate::schema::open_writer(&path, None).unwrap();
        let mut writer = Writer {
            log: Log::load(&conn).unwrap(),
            conn,
            key: Arc::new(SigningKey::open(&dir.path().join("checkpoint.key")).unwrap()),
            wal: Wal::start(&path).unwrap(),
            witness: None,
            checkpoint_every: 100,
            shared: Arc::default(),
            queue: jobs,
            broken: None,
        };
        let room = Arc::new(tokio::sync::Semaphore::new(8));
        let commit = async |writer: &mut Writer| {
            let (reply, answer) = oneshot::channel();
            let commit =
                crate::prepare::prepare(one_event(), &crate::redact::Redactor::default()).unwrap();
            let room = Arc::clone(&room).acquire_owned().await.unwrap();
            writer.group(CommitJob { commit, reply, room });
            answer.await.unwrap()
        };
        assert_eq!(commit(&mut writer).await.unwrap().global, 2);
        let failed = rusqlite::Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_IOERR_FSYNC),
            Some("disk I/O error".into()),
        );
        writer.wal.note(&Fault::Sql(failed));
        for _ in 0..2 {
            let err = commit(&mut writer).await.unwrap_err();
            assert!(matches!(err, StoreError::Closed { .. }), "{err:?}");
        }
        drop(queue);
        std::thread::spawn(move || writer.run()).join().unwrap();
        let log = crate::options::beside(&path, "-wal").metadata().unwrap().len();
        assert!(log > 0, "the log was copied back and emptied");
        let store = Sqlite::open(Options::new(&path)).unwrap();
        assert_eq!(store.stats().await.unwrap().events, 2);
        assert_eq!(store.audit().await.unwrap().findings, []);
    }
}
