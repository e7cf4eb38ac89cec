//! Runs all loops; each has its own task.
//!
//! A pass begins when the loop's schedule or its wake-up triggers it, or on request. The names of
//! paused loops are one setting, which is written before a loop is paused.

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::loops::{LoopStatus, Reconcile};
use overmind_core::nearest::nearest;
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, NewEvent, Store, StoreError, StreamId};
use overmind_core::time::Clock;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::tasks::{Drained, Tasks};

/// The setting with the names of paused loops. A name is kept if its loop does not exist, because
/// it may exist again after the next start.
const PAUSED: &str = "loops/paused";
/// Maximum number of requests to run one loop that wait at once.
const WAITING: usize = 64;

/// All loops of an engine.
pub(crate) struct Loops {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// The tasks of loops that do not need a working engine when they end.
    tasks: Tasks,
    known: Mutex<BTreeMap<&'static str, Known>>,
    /// Locked while a loop is paused or resumed.
    paused: tokio::sync::Mutex<BTreeSet<String>>,
}

#[derive(Clone)]
struct Known {
    status: Arc<Mutex<LoopStatus>>,
    orders: mpsc::Sender<Order>,
}

enum Order {
    /// Run a pass now, and return the resulting status.
    Run(oneshot::Sender<LoopStatus>),
    /// The status has changed: wait again.
    Look,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Loops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loops").field("known", &lock(&self.known).keys()).finish_non_exhaustive()
    }
}

impl Loops {
    pub(crate) async fn load(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let kept = store.setting_fetch(PAUSED.to_owned()).await?;
        let paused = match kept {
            None => BTreeSet::new(),
            Some(kept) => serde_json::from_value(kept).map_err(|err| StoreError::Other {
                attempt: "reading which loops are paused".to_owned(),
                detail: err.to_string(),
            })?,
        };
        let (tasks, known) = (Tasks::default(), Mutex::default());
        Ok(Self { store, clock, tasks, known, paused: tokio::sync::Mutex::new(paused) })
    }

    /// Starts a loop among `tasks`, paused if it was. If the name is taken, an error is logged and
    /// the first loop continues.
    pub(crate) async fn add(&self, tasks: &Tasks, what: Box<dyn Reconcile>) {
        let paused = self.paused.lock().await;
        let (name, now) = (what.name(), self.clock.now());
        let status = LoopStatus::new(name, what.pace(), paused.contains(name), now);
        let status = Arc::new(Mutex::new(status));
        let (orders, waiting) = mpsc::channel(WAITING);
        let known = Known { status: Arc::clone(&status), orders };
        if let std::collections::btree_map::Entry::Vacant(place) = lock(&self.known).entry(name) {
            place.insert(known);
        } else {
            tracing::error!(name, "there are two loops of this name; the second does not run");
            return;
        }
        let clock = Arc::clone(&self.clock);
        tasks.spawn(move |stop| run::turn(what, status, waiting, clock, stop));
    }

    fn get(&self, name: &str) -> Result<Known, EngineError> {
        let known = lock(&self.known);
        known.get(name).cloned().ok_or_else(|| {
            let near = nearest(name, known.keys().copied());
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`overmind loop list` shows them".to_owned(),
            };
            EngineError::NotFound { message: format!("there is no loop `{name}`; {hint}") }
        })
    }

    async fn switch(
        &self,
        by: &Caller,
        name: &str,
        pause: bool,
    ) -> Result<LoopStatus, EngineError> {
        let known = self.get(name)?;
        let mut paused = self.paused.lock().await;
        if paused.contains(name) != pause {
            let mut wanted = paused.clone();
            match pause {
                true => drop(wanted.insert(name.to_owned())),
                false => drop(wanted.remove(name)),
            }
            let ts = self.clock.now();
            let kind = if pause { "loop.paused" } else { "loop.resumed" };
            let payload = json!({"loop": name, "by": by.name});
            let event = NewEvent { stream: StreamId::System, kind, ts, payload };
            let change =
                Change::SettingPut { key: PAUSED.to_owned(), value: json!(wanted), at: ts };
            let commit = Commit { guards: vec![], events: vec![event], changes: vec![change] };
            self.store.commit(commit).await?;
            *paused = wanted;
        }
        {
            let mut status = lock(&known.status);
            match pause {
                true => status.paused(),
                false => status.resumed(self.clock.now()),
            }
        }
        // At the server's stop nobody receives it.
        drop(known.orders.send(Order::Look).await);
        Ok(lock(&known.status).clone())
    }
}

impl Engine {
    /// Starts a loop, paused if it was paused before a restart. It stops at
    /// [`Engine::loops_drain`], and at [`Engine::drain`] at the latest.
    pub async fn loop_add(&self, what: impl Reconcile + 'static) {
        self.loops.add(&self.loops.tasks, Box::new(what)).await;
    }

    /// Ends the loops of [`Engine::loop_add`]: running passes have `grace` to end.
    pub async fn loops_drain(&self, grace: Duration) -> Drained {
        self.loops.tasks.drain(grace).await
    }

    /// All loops, by name.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn loop_list(&self, by: &Caller) -> Result<Vec<LoopStatus>, EngineError> {
        by.require(Role::Viewer)?;
        let known = lock(&self.loops.known);
        Ok(known.values().map(|known| lock(&known.status).clone()).collect())
    }

    /// Pauses a loop: only [`Engine::loop_run`] starts a pass from now on, also after a restart. A
    /// running pass continues.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such loop.
    pub async fn loop_pause(&self, by: &Caller, name: &str) -> Result<LoopStatus, EngineError> {
        by.require(Role::Admin)?;
        self.loops.switch(by, name, true).await
    }

    /// Ends a pause; a pass begins at once.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::loop_pause`].
    pub async fn loop_resume(&self, by: &Caller, name: &str) -> Result<LoopStatus, EngineError> {
        by.require(Role::Admin)?;
        self.loops.switch(by, name, false).await
    }

    /// Runs one pass, paused or not and whatever the backoff is, and returns when it has ended.
    /// During a running pass, the caller gets the next one.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Busy`] if too many callers wait for this loop;
    /// [`EngineError::Unavailable`] while the server stops.
    pub async fn loop_run(&self, by: &Caller, name: &str) -> Result<LoopStatus, EngineError> {
        by.require(Role::Admin)?;
        let known = self.loops.get(name)?;
        let (reply, done) = oneshot::channel();
        known.orders.try_send(Order::Run(reply)).map_err(|err| match err {
            mpsc::error::TrySendError::Full(_) => {
                EngineError::Busy { message: format!("too many callers wait for `{name}`") }
            }
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })?;
        done.await.map_err(|_| stopping())
    }
}

fn stopping() -> EngineError {
    EngineError::Unavailable { message: "the server is stopping".to_owned() }
}
