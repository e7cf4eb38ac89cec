//! The Cortex: the only code that accesses the store, decides, and sends orders to Hives.
//!
//! Each active session has one driver task ([`driver`]), and nothing else changes it. A driver
//! begins when there is work, and ends when its session ends or waits for a human: a waiting
//! session needs no task and no timer.

mod driver;
mod gating;
mod identities;
mod inbox;
mod keeper;
mod load;
pub(crate) mod projects;
mod quota;
pub(crate) mod tokens;
mod unrecorded;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overmind_core::agent::{Agent, AgentStatus};
use overmind_core::attest::Attested;
use overmind_core::bus::{BUS_VERSION, CortexBus, ToCortex, ToHive};
use overmind_core::canary::Alarm;
use overmind_core::command::LifeInput;
use overmind_core::gate::Gate;
use overmind_core::ids::{AgentId, ColonyId, EffectId, HiveId, IdSource, SessionId};
use overmind_core::memory::Memory;
use overmind_core::queue::{FairQueue, Ticket};
use overmind_core::record::rows::RecordRows;
use overmind_core::room::history::RoomUndone;
use overmind_core::room::stay::{RoomDecision, RoomInput, RoomPhase};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::session::{Input, Session, Toolset};
use overmind_core::store::{Change, Commit, NewEvent, Store, StoreError, StreamId};
use overmind_core::time::{Clock, Timestamp};
use overmind_core::tool::{ToolOutcome, ToolSpec, Toolbox};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(crate) use self::driver::Order;
use self::driver::{Mail, Mailbox, Slot};
pub(crate) use self::gating::gate_request;
use self::identities::Identities;
pub(crate) use self::keeper::{TOOL_SERVERS, ToolServersKeeper};
pub(crate) use self::watch::Watchers;
use crate::Config;
use crate::alarms::Alarms;
use crate::budgets::Budgets;
use crate::colonies::Colonies;
use crate::error::EngineError;
use crate::mesh::MeshState;
use crate::passes::Passes;
use crate::tasks::Tasks;
use crate::troubles::Troubles;
use crate::view::Readiness;

/// Maximum number of new sessions that are kept in memory until their turn; others are read from
/// the log.
const KEPT_FRESH: usize = 4096;
/// Maximum number of agents that are cached.
const KEPT_AGENTS: usize = 10_000;
/// Maximum number of sets of tool definitions that are cached; changing tools make new sets.
const KEPT_TOOLSETS: usize = 256;
/// Sessions that are read at once when the engine starts.
const SCAN: u32 = 500;

#[derive(Debug)]
pub(crate) struct Cortex {
    pub(crate) store: Arc<dyn Store>,
    /// Declared records, in the same store.
    pub(crate) records: Arc<dyn RecordRows>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) bus: Arc<dyn CortexBus>,
    pub(crate) gate: Option<Arc<dyn Gate>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) config: Config,
    pub(crate) tasks: Tasks,
    /// The tools offered now, and the definitions that new sessions get.
    toolset: Mutex<(Arc<[ToolSpec]>, Arc<Toolset>)>,
    tools: Arc<dyn Toolbox>,
    pub(crate) watchers: Arc<Watchers>,
    /// Counts this process's commits that changed the inbox.
    pub(crate) inbox: tokio::sync::watch::Sender<u64>,
    pub(crate) budgets: Budgets,
    pub(crate) started_at: Timestamp,
    pub(crate) counters: Counters,
    pub(crate) alarms: Alarms,
    pub(crate) troubles: Troubles,
    pub(crate) mesh: MeshState,
    /// Set when the drain begins, after which nothing new starts.
    draining: AtomicBool,
    /// Why the store refuses writes now, if it does.
    degraded: tokio::sync::watch::Sender<Option<String>>,
    pub(crate) colonies: Colonies,
    queue: Mutex<FairQueue>,
    drivers: Mutex<HashMap<SessionId, Slot>>,
    fresh: Mutex<HashMap<SessionId, Box<Session>>>,
    agents: Mutex<HashMap<AgentId, Arc<Agent>>>,
    /// Ids of agents by names that they had at some time.
    agent_names: Mutex<HashMap<(ColonyId, String), AgentId>>,
    toolsets: Mutex<HashMap<String, Arc<Toolset>>>,
    calls: Mutex<HashMap<EffectId, oneshot::Sender<Called>>>,
    pub(crate) identities: Identities,
    pub(crate) tokens: tokens::Tokens,
    pub(crate) passes: Passes,
}

/// The result of a call from outside of sessions.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) outcome: ToolOutcome,
    pub(crate) latency_ms: u64,
    pub(crate) attested: Option<Arc<Attested>>,
}

/// The counters of `/metrics`; all only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) created: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) canceled: AtomicU64,
    pub(crate) recovered: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) store_errors: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) canaries_seen: AtomicU64,
    pub(crate) canaries_tripped: AtomicU64,
}

impl Counters {
    /// Counts an event that an operator should check.
    pub(crate) fn of_event(&self, kind: &str) {
        if kind == Alarm::Seen.kind() {
            count(&self.canaries_seen);
        } else if kind == Alarm::Tripped.kind() {
            count(&self.canaries_tripped);
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The dependencies of [`Cortex::new`].
pub(crate) struct CortexParts {
    pub(crate) budgets: Budgets,
    pub(crate) inbox: tokio::sync::watch::Sender<u64>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) records: Arc<dyn RecordRows>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) bus: Arc<dyn CortexBus>,
    pub(crate) gate: Option<Arc<dyn Gate>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) config: Config,
    pub(crate) tasks: Tasks,
    pub(crate) tools: Arc<dyn Toolbox>,
    pub(crate) toolset: (Arc<[ToolSpec]>, Arc<Toolset>),
}

impl Cortex {
    pub(crate) fn new(parts: CortexParts) -> Arc<Self> {
        let CortexParts {
            budgets,
            inbox,
            store,
            records,
            memory,
            bus,
            gate,
            clock,
            ids,
            config,
            tasks,
            tools,
            toolset,
        } = parts;
        let watchers = Arc::new(Watchers::default());
        let listener = Arc::clone(&watchers);
        store.listen(Box::new(move |places| listener.committed(places)));
        let toolsets = HashMap::from([(toolset.1.hash().to_owned(), Arc::clone(&toolset.1))]);
        Arc::new(Self {
            started_at: clock.now(),
            queue: Mutex::new(FairQueue::new(config.bounds())),
            store,
            records,
            memory,
            bus,
            gate,
            clock,
            ids,
            config,
            tasks,
            tools,
            toolset: Mutex::new(toolset),
            watchers,
            inbox,
            budgets,
            counters: Counters::default(),
            alarms: Alarms::default(),
            troubles: Troubles::default(),
            mesh: MeshState::default(),
            colonies: Colonies::default(),
            draining: AtomicBool::new(false),
            degraded: tokio::sync::watch::Sender::new(None),
            drivers: Mutex::default(),
            fresh: Mutex::default(),
            agents: Mutex::default(),
            agent_names: Mutex::default(),
            toolsets: Mutex::new(toolsets),
            calls: Mutex::default(),
            identities: Identities::default(),
            tokens: tokens::Tokens::default(),
            passes: Passes::default(),
        })
    }

    /// Handles messages of the Hives until the bus closes.
    pub(crate) async fn hear(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => return,
                message = self.bus.receive() => match message {
                    Some(message) => message,
                    None => return,
                },
            };
            if message.version != BUS_VERSION {
                tracing::warn!(version = message.version, "message of an unknown version dropped");
                continue;
            }
            match message.body {
                ToCortex::Report { session, epoch, effect, result, streamed, live } => {
                    self.report(session, Mail::Report { epoch, effect, result, streamed, live });
                }
                ToCortex::Live { session, epoch, effect, pieces } => {
                    self.report(session, Mail::Live { epoch, effect, pieces });
                }
                ToCortex::Progress { session, epoch, effect, delta } => {
                    self.report(session, Mail::Progress { epoch, effect, delta });
                }
                ToCortex::Life { session, epoch, effect, word } => {
                    self.report(session, Mail::Life { epoch, effect, word });
                }
                ToCortex::Room { session, epoch, effect, word } => {
                    self.report(session, Mail::Room { epoch, effect, word });
                }
                ToCortex::Attested { session, epoch, attested } => {
                    self.attested(session, epoch, attested);
                }
                ToCortex::RoomAttested { session, of, attested } => {
                    self.room_attested(session, of, attested);
                }
                ToCortex::Acknowledge { session, epoch, accepted } => {
                    if !accepted {
                        tracing::warn!(session.id = %session, epoch, "the hive knows a newer epoch");
                    }
                }
                ToCortex::Called { call, outcome, latency_ms, attested } => {
                    if let Some(waiting) = lock(&self.calls).remove(&call) {
                        // A disconnected caller gets no answer; its task records the result nevertheless.
                        let _ = waiting.send(Called { outcome, latency_ms, attested });
                    }
                }
                ToCortex::Heartbeat { at, sessions, effects } => {
                    tracing::trace!(hive.id = %message.hive, %at, sessions, effects, "heartbeat");
                }
            }
        }
    }

    /// Sends a session its sandbox's attestation. Without a driver it has ended or is idle, and its
    /// row does not change.
    pub(crate) fn attested(&self, session: SessionId, epoch: u32, attested: Arc<Attested>) {
        if let Some(driver) = lock(&self.drivers).get(&session) {
            put(driver, Mail::Attested { epoch, attested });
        }
    }

    /// Does the same for a program of its environment, which may start before the session is
    /// recovered after a restart; this then starts its driver.
    fn room_attested(self: &Arc<Self>, session: SessionId, of: String, attested: Arc<Attested>) {
        let mail = Mail::RoomAttested { of, attested };
        if let Some(driver) = lock(&self.drivers).get(&session) {
            return put(driver, mail);
        }
        if !self.draining() {
            self.post(session, mail);
        }
    }

    /// Results go only to an existing driver: without one, nobody waits for them.
    fn report(&self, session: SessionId, mail: Mail) {
        match lock(&self.drivers).get(&session) {
            Some(driver) => put(driver, mail),
            None => count(&self.counters.stale),
        }
    }

    /// Posts mail to the session's driver, and starts one if there is none.
    pub(crate) fn post(self: &Arc<Self>, session: SessionId, mail: Mail) {
        self.drive(session, None, mail);
    }

    /// Works as [`Self::post`]; a newly started driver gets `fresh`.
    fn drive(self: &Arc<Self>, session: SessionId, fresh: Option<Box<Session>>, mail: Mail) {
        let mut drivers = lock(&self.drivers);
        if let Some(driver) = drivers.get(&session) {
            // The driver unregisters under this lock with an empty mailbox, so it will read this.
            return put(driver, mail);
        }
        // The queue is unbounded because its senders are bounded: one result per effect, collected
        // pieces of one model call over a bounded bus, and API requests that wait for their answer.
        let (slot, mailbox): (Slot, Mailbox) = mpsc::unbounded_channel();
        put(&slot, mail);
        drivers.insert(session, slot);
        drop(drivers);
        let cortex = Arc::clone(self);
        self.tasks.spawn(move |stop| driver::drive(cortex, session, fresh, mailbox, stop));
    }

    /// Sends a request to a session and waits for the result.
    pub(crate) async fn order(
        self: &Arc<Self>,
        session: SessionId,
        order: driver::Order,
    ) -> Result<SessionRow, EngineError> {
        if self.draining() {
            return Err(shutting_down());
        }
        let end = order.end();
        let (reply, answer) = oneshot::channel();
        self.post(session, Mail::Order { order, reply });
        match end {
            Some((how, by)) => self.ended_by(session, how, &by, answer).await,
            None => answer.await.unwrap_or_else(|_| Err(shutting_down())),
        }
    }

    /// Records the decision about the work in a session's environment.
    pub(crate) async fn room_done(
        self: &Arc<Self>,
        session: SessionId,
        decision: RoomDecision,
    ) -> Result<SessionRow, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.post(session, Mail::RoomDone { decision: Box::new(decision), reply });
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Records that the files in a session's environment were restored.
    pub(crate) async fn room_undone(
        self: &Arc<Self>,
        session: SessionId,
        by: String,
        undone: RoomUndone,
    ) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.post(session, Mail::RoomUndone { by, undone: Box::new(undone), reply });
        answer.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    // --- the queue

    /// Makes a new session with the commit `opening`. If nothing is queued and there is capacity,
    /// it begins in that same commit: one disk write, and no crash in between.
    ///
    /// # Errors
    ///
    /// Returns the store's error. There is no session then.
    pub(crate) async fn make(
        self: &Arc<Self>,
        session: Session,
        opening: Commit,
    ) -> Result<(), StoreError> {
        let row = session.row();
        let id = row.id;
        let agent_bound = session.agent().limits.max_concurrent;
        let ticket = Ticket { session: id, colony: row.colony, agent: row.agent, agent_bound };
        if self.holds_back() || !lock(&self.queue).claim(ticket) {
            self.store.commit(opening).await?;
            self.enqueue(ticket, Some(session));
            return Ok(());
        }
        let (reply, made) = oneshot::channel();
        // Its driver gives the place back, also if the session could not be made.
        self.drive(id, Some(Box::new(session)), Mail::Begin { opening: Box::new(opening), reply });
        let closed = || StoreError::Closed { detail: "the server is shutting down".into() };
        made.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Whether nothing may start now.
    fn holds_back(&self) -> bool {
        self.draining() || self.budgets.halted().is_some()
    }

    pub(crate) fn enqueue(self: &Arc<Self>, ticket: Ticket, session: Option<Session>) {
        if let Some(session) = session {
            let mut fresh = lock(&self.fresh);
            if fresh.len() < KEPT_FRESH {
                fresh.insert(ticket.session, Box::new(session));
            }
        }
        lock(&self.queue).push(ticket);
        self.pump();
    }

    /// Starts the sessions that may run now.
    fn pump(self: &Arc<Self>) {
        if self.holds_back() {
            return;
        }
        loop {
            // This is a separate statement, because the lock must not be held while mail is posted.
            let next = lock(&self.queue).pop();
            match next {
                Some(ticket) => self.post(ticket.session, Mail::Start),
                None => return,
            }
        }
    }

    /// Starts the sessions that waited for the end of an emergency stop.
    pub(crate) fn go_on(self: &Arc<Self>) {
        self.pump();
    }

    fn left(self: &Arc<Self>, session: SessionId) {
        {
            let mut queue = lock(&self.queue);
            queue.remove(session);
            queue.finished(session);
        }
        self.pump();
    }

    pub(crate) fn running(&self) -> usize {
        lock(&self.queue).running()
    }

    pub(crate) fn queued(&self) -> usize {
        lock(&self.queue).waiting()
    }

    fn take_fresh(&self, session: SessionId) -> Option<Box<Session>> {
        lock(&self.fresh).remove(&session)
    }

    /// Continues the sessions that a crash or a shutdown interrupted.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<u64, StoreError> {
        self.fill_inbox().await?;
        self.keep_what_lives().await?;
        let mut recovered = 0;
        use SessionStatus::{AwaitingInput, Idle, Queued, Running};
        for status in [Running, AwaitingInput, Idle, Queued] {
            let mut after = None;
            loop {
                let page = self.store.session_scan(status, after, SCAN).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                for row in &page {
                    if matches!(status, AwaitingInput | Idle) {
                        // Only a command keeps running while it waits for a human.
                        if row.command.as_ref().is_some_and(|command| command.pid.is_some()) {
                            recovered += 1;
                            self.post(row.id, Mail::Recover);
                        }
                        continue;
                    }
                    let ticket = self.ticket(row).await?;
                    if status == Running {
                        recovered += 1;
                        lock(&self.queue).run_now(ticket);
                        self.post(row.id, Mail::Recover);
                    } else {
                        lock(&self.queue).push(ticket);
                    }
                }
            }
        }
        self.counters.recovered.fetch_add(recovered, Ordering::Relaxed);
        self.pump();
        Ok(recovered)
    }

    /// Reports which processes of commands and which environments are still needed, before anything
    /// is done with them.
    async fn keep_what_lives(&self) -> Result<(), StoreError> {
        let (mut lives, mut rooms) = (Vec::new(), Vec::new());
        use SessionStatus::{AwaitingApproval, AwaitingInput, Idle, Running};
        for status in [Running, AwaitingInput, AwaitingApproval, Idle] {
            let mut after = None;
            loop {
                let page = self.store.session_scan(status, after, SCAN).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                for row in &page {
                    let room = row.room.as_ref().map(|room| room.phase);
                    if room.is_some_and(RoomPhase::is_open) {
                        rooms.push(row.id);
                    }
                    match row.command.as_ref().map(|command| (command.life, command.restart_at)) {
                        // If a session only waits for its environment to be removed, none of its
                        // processes is running.
                        Some((life, None)) if room != Some(RoomPhase::Closing) => {
                            lives.push((row.id, life));
                        }
                        Some(_) | None => {}
                    }
                }
            }
        }
        let keep = ToHive::Keep { lives, rooms };
        if let Err(err) = self.bus.send(self.hive(), keep).await {
            tracing::warn!(error = %err, "the hive does not hear");
        }
        Ok(())
    }

    pub(crate) async fn ticket(&self, row: &SessionRow) -> Result<Ticket, StoreError> {
        let agent = self.agent(row.agent).await?;
        let agent_bound = agent.map_or(0, |agent| agent.spec.limits.max_concurrent);
        Ok(Ticket { session: row.id, colony: row.colony, agent: row.agent, agent_bound })
    }

    // --- agents, tools, identities: read once, changed only through here

    pub(crate) async fn agent(&self, id: AgentId) -> Result<Option<Arc<Agent>>, StoreError> {
        if let Some(agent) = lock(&self.agents).get(&id) {
            return Ok(Some(Arc::clone(agent)));
        }
        let agent = self.store.agent_fetch(id).await?.map(Arc::new);
        if let Some(agent) = &agent {
            self.keep_agent(agent);
        }
        Ok(agent)
    }

    /// The agent of this name. It does not read the store if the agent is cached under its current
    /// name.
    pub(crate) async fn agent_named(
        &self,
        colony: ColonyId,
        name: &str,
    ) -> Result<Option<Arc<Agent>>, StoreError> {
        let key = (colony, name.to_owned());
        let known = lock(&self.agent_names).get(&key).copied();
        if let Some(id) = known
            && let Some(agent) = self.agent(id).await?
            && agent.spec.name == name
            && agent.status != AgentStatus::Removed
        {
            return Ok(Some(agent));
        }
        let agent = self.store.agent_by_name(colony, name.to_owned()).await?.map(Arc::new);
        if let Some(agent) = &agent {
            self.keep_agent(agent);
            let mut names = lock(&self.agent_names);
            if names.len() >= KEPT_AGENTS {
                names.clear();
            }
            names.insert(key, agent.id);
        }
        Ok(agent)
    }

    pub(crate) fn keep_agent(&self, agent: &Arc<Agent>) {
        let mut agents = lock(&self.agents);
        if agents.len() >= KEPT_AGENTS {
            agents.clear();
        }
        // Two writers may arrive here in either order; the newer version is kept.
        match agents.get(&agent.id) {
            Some(known) if known.version > agent.version => {}
            Some(_) | None => {
                agents.insert(agent.id, Arc::clone(agent));
            }
        }
    }

    async fn agent_is_active(&self, id: AgentId) -> bool {
        match self.agent(id).await {
            Ok(agent) => agent.is_some_and(|agent| agent.status == AgentStatus::Active),
            Err(err) => {
                tracing::warn!(agent.id = %id, error = %err, "agent not readable");
                false
            }
        }
    }

    /// The definitions that a session begins with now, stored under their hash.
    pub(crate) async fn current_toolset(&self) -> Result<Arc<Toolset>, EngineError> {
        let specs = self.tools.specs();
        {
            let (known, toolset) = &*lock(&self.toolset);
            if Arc::ptr_eq(known, &specs) {
                return Ok(Arc::clone(toolset));
            }
        }
        let toolset = Arc::new(Toolset::new(Arc::clone(&specs)));
        keep_toolset(&*self.store, &*self.clock, &toolset).await?;
        self.keep_decoded(&toolset);
        *lock(&self.toolset) = (specs, Arc::clone(&toolset));
        Ok(toolset)
    }

    fn keep_decoded(&self, toolset: &Arc<Toolset>) {
        let mut toolsets = lock(&self.toolsets);
        if toolsets.len() >= KEPT_TOOLSETS {
            toolsets.clear();
        }
        toolsets.insert(toolset.hash().to_owned(), Arc::clone(toolset));
    }

    pub(crate) async fn toolset(&self, hash: &str) -> Result<Option<Arc<Toolset>>, StoreError> {
        if let Some(toolset) = lock(&self.toolsets).get(hash) {
            return Ok(Some(Arc::clone(toolset)));
        }
        let stored = self.store.setting_fetch(toolset_key(hash)).await?;
        let toolset = stored.as_ref().and_then(Toolset::from_value).map(Arc::new);
        if let Some(toolset) = &toolset {
            self.keep_decoded(toolset);
        }
        Ok(toolset)
    }

    pub(crate) fn await_call(&self, call: EffectId) -> oneshot::Receiver<Called> {
        let (send, receive) = oneshot::channel();
        lock(&self.calls).insert(call, send);
        receive
    }

    pub(crate) fn forget_call(&self, call: EffectId) {
        lock(&self.calls).remove(&call);
    }

    // --- state

    pub(crate) fn hive(&self) -> HiveId {
        HiveId::LOCAL
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// From here on nothing starts; running effects may still end.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
        for driver in lock(&self.drivers).values() {
            put(driver, Mail::Drain);
        }
    }

    /// Whether a driver is running for this session.
    pub(crate) fn moves(&self, session: SessionId) -> bool {
        lock(&self.drivers).contains_key(&session)
    }

    pub(crate) fn drivers_left(&self) -> usize {
        lock(&self.drivers).len()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        if self.draining() {
            return Readiness::Draining;
        }
        let why = self.degraded.borrow().clone().or_else(|| self.store.trouble());
        why.map_or(Readiness::Ready, Readiness::Degraded)
    }

    fn set_degraded(&self, why: Option<String>) {
        self.degraded.send_if_modified(|now| {
            let changed = *now != why;
            *now = why;
            changed
        });
    }

    /// Masks secrets in plain data.
    fn mask<T: Serialize + DeserializeOwned>(&self, data: &mut T) {
        if let Ok(mut value) = serde_json::to_value(&*data) {
            self.store.redact_record(&mut value);
            if let Ok(masked) = serde_json::from_value(value) {
                *data = masked;
            }
        }
    }

    /// Masks secrets in an input before anything is decided on it, so that recorded and actual
    /// decisions are the same.
    fn redact(&self, input: &mut Input) {
        let text = |text: &mut String| {
            let mut value = serde_json::Value::String(std::mem::take(text));
            self.store.redact(&mut value);
            if let serde_json::Value::String(masked) = value {
                *text = masked;
            }
        };
        match input {
            Input::ToolDone { outcome, .. } => self.store.redact(&mut outcome.result),
            Input::ModelDone { reply: Ok(reply), .. } => {
                text(&mut reply.text);
                text(&mut reply.reasoning);
                for call in &mut reply.calls {
                    self.store.redact(&mut call.args);
                }
                if let Some(state) = &mut reply.provider_state {
                    self.store.redact(state);
                }
            }
            Input::ModelDone { reply: Err(failure), .. } => {
                text(&mut failure.message);
                if let Some(body) = &mut failure.body {
                    text(body);
                }
            }
            Input::Answered { message, .. } | Input::Told { message, .. } => text(message),
            Input::Decided { reason: Some(reason), .. } => text(reason),
            // A policy sees the arguments, and may have repeated them.
            Input::Judged { verdict } => self.mask(&mut **verdict),
            Input::Life(life) => match life {
                LifeInput::Noticed { effect: _, notice } => self.mask(notice),
                LifeInput::Ended { effect: _, end } => {
                    if let Some(reason) = &mut end.reason {
                        text(reason);
                    }
                }
                LifeInput::Started { .. } | LifeInput::StopAsked { .. } | LifeInput::Due => {}
            },
            Input::Room(input) => match input {
                RoomInput::Ready { effect: _, made } => self.mask(&mut **made),
                RoomInput::Closed { effect: _, closed } => self.mask(&mut **closed),
                RoomInput::Failed { effect: _, error } | RoomInput::Left { effect: _, error } => {
                    text(&mut error.message);
                }
            },
            Input::Bound { .. }
            | Input::Decided { reason: None, .. }
            | Input::Started { .. }
            | Input::Recovered { .. }
            | Input::Restored { .. }
            | Input::Canceled { .. }
            | Input::TimeLimit
            | Input::Forked
            | Input::HandedOver { .. } => {}
        }
    }
}

/// Stores the tool definitions once, under their hash: sessions refer to the hash.
pub(crate) async fn keep_toolset(
    store: &dyn Store,
    clock: &dyn Clock,
    toolset: &Toolset,
) -> Result<(), EngineError> {
    let key = toolset_key(toolset.hash());
    if store.setting_fetch(key.clone()).await?.is_some() {
        return Ok(());
    }
    let at = clock.now();
    let event = NewEvent {
        stream: StreamId::System,
        kind: "toolset.registered",
        ts: at,
        payload: json!({"hash": toolset.hash()}),
    };
    let change = Change::SettingPut { key, value: toolset.to_value(), at };
    store.commit(Commit { guards: vec![], events: vec![event], changes: vec![change] }).await?;
    Ok(())
}

fn toolset_key(hash: &str) -> String {
    format!("toolset/{hash}")
}

pub(crate) fn shutting_down() -> EngineError {
    EngineError::Unavailable { message: "the server is shutting down; try again soon".into() }
}

/// Posts mail to a driver. If it has just ended, waiting callers are informed.
fn put(driver: &Slot, mail: Mail) {
    let _ = driver.send(Box::new(mail));
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in another task must not stop the whole engine: the data behind these locks is
    // changed in single steps that cannot stop halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
