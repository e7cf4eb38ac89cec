//! A fake of the port of processes: nothing runs, and a test says when a life ends. It survives
//! the engine that uses it, as keepers do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::process::prompt::Screen;
use overmind_core::process::{
    Activity, Adopted, AttachOptions, Attachment, End, Ended, EndedBy, ExitStatus, LogQuery,
    LogReader, NoteKind, PieceReader, ProcessError, ProcessExit, ProcessKey, ProcessSpec,
    Processes, Started, TerminalSize, Usage,
};
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use crate::rooms::Journal;

/// Lives by their key; a life that has ended says how.
#[derive(Debug, Default)]
pub struct FakeProcesses {
    pub journal: Journal,
    lives: Mutex<HashMap<ProcessKey, watch::Sender<Option<Ended>>>>,
    /// Every life that was ever started.
    pub started: Mutex<Vec<ProcessSpec>>,
    /// While it is set nothing can be ended.
    pub deaf: AtomicBool,
    /// Lines that are not output.
    pub notes: Mutex<Vec<String>>,
    /// Every process ends successfully as soon as it starts.
    brief: bool,
}

fn now() -> Timestamp {
    Timestamp::from_micros(1)
}

fn exit(status: ExitStatus, by: EndedBy) -> Ended {
    Ended::Exited(ProcessExit {
        status,
        by,
        started_at: now(),
        ended_at: now(),
        user: Duration::ZERO,
        system: Duration::ZERO,
        max_resident_bytes: 0,
        leftovers: 0,
        survivors: 0,
        offset: 0,
        log_removed: false,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeProcesses {
    pub fn new(journal: Journal) -> Arc<Self> {
        Arc::new(Self { journal, ..Self::default() })
    }

    /// Attempts that end successfully as soon as they begin.
    pub fn brief() -> Arc<Self> {
        Arc::new(Self { brief: true, ..Self::default() })
    }

    /// The one running attempt exits with `code`. False if there is none.
    pub fn exits(&self, code: i32) -> bool {
        lock(&self.lives).values().any(|life| {
            life.send_if_modified(|ended| {
                let first = ended.is_none();
                ended.get_or_insert_with(|| exit(ExitStatus::Code(code), EndedBy::Itself));
                first
            })
        })
    }

    /// The number of running attempts.
    pub fn alive(&self) -> usize {
        lock(&self.lives).values().filter(|life| life.borrow().is_none()).count()
    }

    fn ends(&self, key: ProcessKey, how: &End) -> Result<(), ProcessError> {
        let lives = lock(&self.lives);
        let life = lives.get(&key).filter(|life| life.borrow().is_none());
        let life = life.ok_or(ProcessError::NotAlive(key))?;
        if self.deaf.load(Ordering::SeqCst) {
            self.journal.write("deaf");
            return Ok(());
        }
        let (signal, by) = match how {
            End::Stop { .. } => (15, EndedBy::Stop),
            End::Kill => (9, EndedBy::Kill),
        };
        self.journal.write("killed");
        life.send_replace(Some(exit(ExitStatus::Signal(signal), by)));
        Ok(())
    }
}

fn done<'a, T: Send + 'a>(value: T) -> Fut<'a, T> {
    Box::pin(std::future::ready(value))
}

fn refused<'a, T: Send + 'a>(key: ProcessKey) -> Fut<'a, Result<T, ProcessError>> {
    done(Err(ProcessError::NotAlive(key)))
}

fn no_log<'a, T: Send + 'a>(session: SessionId) -> Fut<'a, Result<T, ProcessError>> {
    done(Err(ProcessError::Log { session, reason: "a fake keeps none".into() }))
}

impl Processes for FakeProcesses {
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<Started, ProcessError>> {
        let key = spec.key;
        self.journal.write(format!("start {}", key.epoch));
        lock(&self.started).push(spec);
        let ended = self.brief.then(|| exit(ExitStatus::Code(0), EndedBy::Itself));
        lock(&self.lives).insert(key, watch::Sender::new(ended));
        done(Ok(Started { key, pid: 100, at: now(), offset: 0 }))
    }

    fn adopt_all(&self) -> Fut<'_, Result<Vec<Adopted>, ProcessError>> {
        let lives = lock(&self.lives);
        let found = lives.iter().map(|(key, life)| match &*life.borrow() {
            Some(ended) => Adopted::Ended(*key, ended.clone()),
            None => Adopted::Live(Started { key: *key, pid: 100, at: now(), offset: 0 }),
        });
        done(Ok(found.collect()))
    }

    fn end(
        &self,
        key: ProcessKey,
        how: End,
        _reason: Option<String>,
    ) -> Fut<'_, Result<(), ProcessError>> {
        done(self.ends(key, &how))
    }

    fn signal(&self, key: ProcessKey, _signal: i32) -> Fut<'_, Result<(), ProcessError>> {
        refused(key)
    }

    fn write(
        &self,
        key: ProcessKey,
        _bytes: Vec<u8>,
        _limit: Duration,
    ) -> Fut<'_, Result<(), ProcessError>> {
        refused(key)
    }

    fn close_input(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>> {
        refused(key)
    }

    fn resize(&self, key: ProcessKey, _size: TerminalSize) -> Fut<'_, Result<(), ProcessError>> {
        refused(key)
    }

    fn note(
        &self,
        _session: SessionId,
        _kind: NoteKind,
        text: String,
    ) -> Fut<'_, Result<(), ProcessError>> {
        lock(&self.notes).push(text);
        done(Ok(()))
    }

    fn usage(&self, key: ProcessKey) -> Fut<'_, Result<Usage, ProcessError>> {
        refused(key)
    }

    fn usages(
        &self,
        _keys: Vec<ProcessKey>,
    ) -> Fut<'_, Result<Vec<(ProcessKey, Usage)>, ProcessError>> {
        done(Ok(Vec::new()))
    }

    fn activity(&self, key: ProcessKey) -> Option<Activity> {
        let known = lock(&self.lives).contains_key(&key);
        known.then(|| Activity { offset: 0, last_output_at: now() })
    }

    fn ended(&self, key: ProcessKey) -> Fut<'_, Result<Ended, ProcessError>> {
        Box::pin(async move {
            let life = lock(&self.lives).get(&key).map(watch::Sender::subscribe);
            let mut life = life.ok_or(ProcessError::NotAlive(key))?;
            let ended = life.wait_for(Option::is_some).await;
            let ended = ended.map_err(|_| ProcessError::NotAlive(key))?;
            (*ended).clone().ok_or(ProcessError::NotAlive(key))
        })
    }

    fn acknowledge(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>> {
        let mut lives = lock(&self.lives);
        if lives.get(&key).is_some_and(|life| life.borrow().is_some()) {
            lives.remove(&key);
        }
        done(Ok(()))
    }

    fn log(
        &self,
        session: SessionId,
        _query: LogQuery,
    ) -> Fut<'_, Result<Box<dyn LogReader>, ProcessError>> {
        no_log(session)
    }

    fn pieces(
        &self,
        session: SessionId,
        _from: u64,
        _follow: bool,
    ) -> Fut<'_, Result<Box<dyn PieceReader>, ProcessError>> {
        no_log(session)
    }

    fn screen(&self, session: SessionId, _rows: u16) -> Fut<'_, Result<Screen, ProcessError>> {
        no_log(session)
    }

    fn attach(
        &self,
        key: ProcessKey,
        _options: AttachOptions,
    ) -> Fut<'_, Result<Box<dyn Attachment>, ProcessError>> {
        refused(key)
    }

    fn forget(&self, session: SessionId) -> Fut<'_, Result<(), ProcessError>> {
        lock(&self.lives).retain(|key, _| key.session != session);
        done(Ok(()))
    }
}
