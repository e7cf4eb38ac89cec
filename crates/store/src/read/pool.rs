//! A pool of a few reading threads, each with its own connection.
//!
//! These are separate threads instead of the runtime's blocking pool: their number limits the
//! memory and file handles of reads, and a slow query cannot take threads from other work. A
//! connection is opened at its first use, so that starting does not wait for it.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::store::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Outcome, closed};
use crate::schema::open_reader;
use crate::sys;

type Job = Box<dyn FnOnce(Result<&mut Connection, StoreError>) + Send>;

/// Maximum number of reads that wait for a thread; further callers wait until one of these begins.
const QUEUE: usize = 256;

#[derive(Debug)]
pub(crate) struct Pool {
    path: PathBuf,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// Never yields a value; it ends when the last thread has ended.
    ended: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
}

impl Pool {
    pub(crate) fn start(path: &Path, readers: usize) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let (alive, ended) = mpsc::channel(1);
        for n in 0..readers.clamp(1, 64) {
            let (path, queue, alive) = (path.to_owned(), Arc::clone(&queue), alive.clone());
            std::thread::Builder::new().name(format!("store-read-{n}")).spawn(move || {
                serve(&path, &queue);
                drop(alive);
            })?;
        }
        let ended = tokio::sync::Mutex::new(ended);
        Ok(Self { path: path.to_owned(), jobs: Mutex::new(Some(jobs)), ended })
    }

    /// Runs `read` on a connection in a transaction, so that it sees one state of the file.
    ///
    /// # Cancel safety
    ///
    /// Safe: if the caller is dropped, a queued read is skipped and a running one's result is
    /// dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        attempt: &'static str,
        read: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let path = self.path.clone();
        let job: Job = Box::new(move |conn| {
            if reply.is_closed() {
                return;
            }
            let done = conn.and_then(|conn| {
                in_transaction(conn, read).map_err(|fault| fault.explain(&path, attempt))
            });
            let _ = reply.send(done);
        });
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let jobs = jobs.ok_or_else(closed)?;
        jobs.send(job).await.map_err(|_| closed())?;
        drop(jobs);
        answer.await.map_err(|_| StoreError::Other {
            attempt: attempt.into(),
            detail: "the read ended without an answer".into(),
        })?
    }

    /// Lets accepted reads finish, then ends the threads.
    pub(crate) async fn close(&self) {
        self.shut();
        let mut ended = self.ended.lock().await;
        while ended.recv().await.is_some() {}
    }

    /// Accepts no more reads; the threads end when the accepted ones are done.
    pub(crate) fn shut(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn in_transaction<T>(
    conn: &mut Connection,
    read: impl FnOnce(&Connection) -> Outcome<T>,
) -> Outcome<T> {
    let snapshot = conn.transaction()?;
    let done = read(&snapshot)?;
    snapshot.commit()?;
    Ok(done)
}

fn open(path: &Path) -> Outcome<Connection> {
    let conn = open_reader(path)?;
    sys::register(&conn)?;
    Ok(conn)
}

fn serve(path: &Path, queue: &Mutex<mpsc::Receiver<Job>>) {
    let mut conn: Option<Connection> = None;
    loop {
        // One thread waits for a job and the others wait for the lock. The thread that gets a job
        // releases the lock before it works.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(job) = job else { return };
        let opened = match &mut conn {
            Some(conn) => Ok(conn),
            None => match open(path) {
                Ok(new) => Ok(conn.insert(new)),
                Err(fault) => Err(fault.explain(path, "opening the store for reading")),
            },
        };
        if catch_unwind(AssertUnwindSafe(|| job(opened))).is_err() {
            tracing::error!("a read panicked");
            conn = None;
        }
    }
}
