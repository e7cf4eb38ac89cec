//! The daemon's state about one session's processes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overmind_core::process::{Ended, ProcessError, ProcessKey, TerminalSize};
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use crate::supervisor::life::Life;
use crate::supervisor::pulse::{Pulse, State, Watchers, Watching};

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) dir: PathBuf,
    pub(crate) pulse: watch::Sender<Pulse>,
    pub(crate) watchers: Arc<Watchers>,
    inner: Mutex<Inner>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) life: Option<Arc<Life>>,
    /// The highest epoch that was ever started here.
    pub(crate) newest: u32,
    pub(crate) starting: bool,
    /// The terminal's current size, also after the process has ended.
    pub(crate) terminal: Option<TerminalSize>,
    /// The viewers that may type and gave their size; the last one was active last.
    pub(crate) viewers: Vec<(u64, TerminalSize)>,
}

impl Entry {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let idle =
            Pulse { epoch: 0, offset: 0, last_output: Timestamp::default(), state: State::Idle };
        Self {
            dir,
            pulse: watch::Sender::new(idle),
            watchers: Arc::default(),
            inner: Mutex::default(),
            next_id: AtomicU64::new(1),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn watch(&self) -> Watching {
        Watching::new(self.pulse.subscribe(), Arc::clone(&self.watchers))
    }

    pub(crate) fn begin(&self, life: Life) {
        let mut inner = self.lock();
        inner.newest = inner.newest.max(life.started.key.epoch);
        inner.terminal = life.terminal;
        inner.viewers.clear();
        inner.life = Some(Arc::new(life));
    }

    /// Records an exit, if it is that of the running process.
    pub(crate) fn end(&self, key: ProcessKey, ended: Ended) {
        self.pulse.send_if_modified(|pulse| {
            let mine = pulse.epoch == key.epoch && !matches!(pulse.state, State::Ended(_));
            if mine {
                match &ended {
                    Ended::Exited(exit) => pulse.offset = pulse.offset.max(exit.offset),
                    Ended::Lost { .. } => {}
                }
                pulse.state = State::Ended(ended);
            }
            mine
        });
    }

    /// Records an exit from before this daemon's start.
    pub(crate) fn begin_ended(&self, key: ProcessKey, ended: Ended) {
        let mut inner = self.lock();
        if key.epoch < inner.newest {
            return;
        }
        inner.newest = key.epoch;
        let (offset, last_output) = match &ended {
            Ended::Exited(exit) => (exit.offset, exit.ended_at),
            Ended::Lost { .. } => (0, Timestamp::default()),
        };
        let state = State::Ended(ended);
        self.pulse.send_replace(Pulse { epoch: key.epoch, offset, last_output, state });
    }

    /// The running process, if it has this key.
    pub(crate) fn life(&self, key: ProcessKey) -> Result<Arc<Life>, ProcessError> {
        let inner = self.lock();
        let live = matches!(self.pulse.borrow().state, State::Live);
        match &inner.life {
            Some(life) if life.started.key == key && live => Ok(Arc::clone(life)),
            Some(_) | None if key.epoch < inner.newest => {
                Err(ProcessError::Stale { asked: key, newest: inner.newest })
            }
            Some(_) | None => Err(ProcessError::NotAlive(key)),
        }
    }
}
