//! Terminals that people watch, and the resource usage of all processes.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use overmind_core::ids::SessionId;
use overmind_core::process::{
    Activity, AttachOptions, Attachment, NoteKind, ProcessKey, TerminalSize, Usage,
};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{Commit, Guard, NewEvent, Page, SessionFilter, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// How old a cached measurement of all processes may be.
const FRESH: Duration = Duration::from_millis(500);
/// Maximum number of runs in a measurement of all.
const MOST: usize = 4000;

/// A terminal that a person watches.
#[derive(Debug)]
pub struct Attached {
    pub view: Box<dyn Attachment>,
    key: ProcessKey,
    by: String,
    read_only: bool,
    began: Instant,
}

impl Attached {
    /// The number of the process to which the terminal belongs.
    pub fn life(&self) -> u32 {
        self.key.epoch
    }

    fn payload(&self) -> Value {
        let mode = if self.read_only { "read" } else { "write" };
        json!({"run_id": self.key.session, "life": self.key.epoch, "by": self.by, "mode": mode})
    }
}

/// The resources that one run's processes use.
#[derive(Clone, Debug, PartialEq)]
pub struct LifeUsage {
    pub row: SessionRow,
    pub life: u32,
    pub pid: u32,
    pub usage: Usage,
    pub activity: Activity,
}

/// A measurement of all processes.
#[derive(Clone, Debug)]
pub struct Usages {
    pub at: Timestamp,
    pub lives: Vec<LifeUsage>,
    /// Whether some were left out because there are too many.
    pub more: bool,
}

/// The last measurement, shared by all callers within its time.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    last: std::sync::Mutex<Option<(Instant, Arc<Usages>)>>,
    /// Locked during a measurement: concurrent callers wait for it and share it.
    measuring: tokio::sync::Mutex<()>,
}

impl Measured {
    fn fresh(&self) -> Option<Arc<Usages>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, usages)| Arc::clone(usages))
    }
}

impl Engine {
    /// Attaches to the terminal of a run's command, and may type into it unless `read_only`. The
    /// run's events record who attached; if typing is allowed, its log does, too. Typed text is
    /// recorded in neither.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if the run has ended, has no process now, or no terminal.
    pub async fn session_attach(
        &self,
        by: &Caller,
        id: SessionId,
        read_only: bool,
        size: Option<TerminalSize>,
    ) -> Result<Attached, EngineError> {
        match read_only {
            true => self.reads(by, Role::Viewer, id).await?,
            false => {
                by.require(Role::Runs)?;
                self.require_host_of(by, id).await?;
            }
        }
        let (row, key) = match self.alive(id).await {
            Ok(alive) => alive,
            Err(err) => {
                let ended = self.find_session(id).await?.status.is_terminal();
                return Err(if ended { EngineError::conflict("Run has ended") } else { err });
            }
        };
        let processes = self.processes()?;
        let options = AttachOptions { read_only, size, paint: true, ..AttachOptions::default() };
        let view = processes.attach(key, options).await?;
        let (key, by) = (ProcessKey { session: row.id, ..key }, by.name.clone());
        let attached = Attached { view, key, by, read_only, began: Instant::now() };
        if !read_only {
            let text = format!("{} attached", attached.by);
            processes.note(id, NoteKind::Human, text).await?;
        }
        self.observe(id, "attach.began", attached.payload()).await?;
        Ok(attached)
    }

    /// Detaches from a terminal, and records that.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot record it.
    pub async fn session_detach(&self, attached: Attached) -> Result<(), EngineError> {
        let mut payload = attached.payload();
        payload["seconds"] = json!(attached.began.elapsed().as_secs());
        let session = attached.key.session;
        // A caller that waits for this sees the terminal without the viewer.
        drop(attached);
        self.observe(session, "attach.ended", payload).await
    }

    async fn observe(
        &self,
        session: SessionId,
        kind: &'static str,
        payload: Value,
    ) -> Result<(), EngineError> {
        let ts = self.cortex.clock.now();
        let event = NewEvent { stream: StreamId::Session(session), kind, ts, payload };
        let guards = vec![Guard::SessionExists { session }];
        self.cortex.store.commit(Commit { guards, events: vec![event], changes: vec![] }).await?;
        Ok(())
    }

    /// The resource usage of all runs' processes, newest run first: measured at most half a second
    /// ago, once for all callers.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]; [`EngineError::Unavailable`] if this server runs no commands.
    pub async fn usages(&self, by: &Caller) -> Result<Arc<Usages>, EngineError> {
        by.require(Role::Viewer)?;
        if let Some(fresh) = self.measured.fresh() {
            return Ok(fresh);
        }
        let _turn = self.measured.measuring.lock().await;
        if let Some(fresh) = self.measured.fresh() {
            return Ok(fresh);
        }
        let usages = Arc::new(self.measure().await?);
        let mut last = self.measured.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((Instant::now(), Arc::clone(&usages)));
        Ok(usages)
    }

    async fn measure(&self) -> Result<Usages, EngineError> {
        let processes = self.processes()?;
        let mut alive: Vec<(SessionRow, ProcessKey, u32)> = Vec::new();
        let (mut after, mut more) = (None, false);
        loop {
            let filter = SessionFilter {
                statuses: vec![
                    SessionStatus::Running,
                    SessionStatus::AwaitingInput,
                    SessionStatus::Idle,
                ],
                ..SessionFilter::default()
            };
            let page = Page { limit: 1000, after };
            let rows = self.cortex.store.session_list(filter, page).await?;
            let Some(last) = rows.last() else { break };
            after = Some(last.id);
            let whole = rows.len() == 1000;
            for row in rows {
                let Some(command) = &row.command else { continue };
                let Some(pid) = command.pid else { continue };
                let key = ProcessKey { session: row.id, epoch: command.life };
                alive.push((row, key, pid));
            }
            more = whole && alive.len() >= MOST;
            if !whole || more {
                break;
            }
        }
        more |= alive.len() > MOST;
        alive.truncate(MOST);
        let keys = alive.iter().map(|(_, key, _)| *key).collect();
        let used = processes.usages(keys).await?;
        let used: std::collections::HashMap<ProcessKey, Usage> = used.into_iter().collect();
        let lives = alive.into_iter().filter_map(|(row, key, pid)| {
            let usage = *used.get(&key)?;
            let activity = processes.activity(key)?;
            Some(LifeUsage { row, life: key.epoch, pid, usage, activity })
        });
        Ok(Usages { at: self.cortex.clock.now(), lives: lives.collect(), more })
    }
}
