//! The dispatcher: delivers messages to agents that do not ask for them.
//!
//! There is one lane for each agent: its messages are delivered one after the other, a few before
//! another agent has its turn, and a limited number of lanes works at once. A message that cannot
//! be delivered now waits: a session that becomes idle, a new message, or time wakes the lane
//! again. The loop `dispatcher` decides who has a turn; the lanes work beside it, so that none
//! waits for another.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::acl::OnMessage;
use overmind_core::agent::AgentSpec;
use overmind_core::ids::AgentId;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::mesh::{Letter, LetterFilter};
use overmind_core::process::prompt::Provider;
use overmind_core::process::provider::launch;
use overmind_core::process::{NoteKind, ProcessKey};
use overmind_core::room::stay::RoomPhase;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::{Change, Guard, NewEvent, Page, SessionFilter, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use super::letters::Mailbox;
use super::{event, explained};
use crate::Engine;
use crate::caller::{Caller, Part};
use crate::cortex::{Order, lock};
use crate::error::EngineError;
use crate::request::SessionDraft;

/// Maximum number of lanes that work at once.
const LANES: usize = 16;
/// Messages that a lane delivers before another agent has its turn.
const TURN: u32 = 8;
/// Maximum number of sessions of an agent that are checked.
const LOOKED_AT: u32 = 50;
/// How long a command may take to read a line.
const TYPING: Duration = Duration::from_secs(10);
/// The interval of sweeps for expired entries.
const SWEEP: Duration = Duration::from_secs(1);
const SWEEP_BATCH: u32 = 200;

/// Agents whose messages may be delivered now, in turn. Bounded by the number of agents.
#[derive(Debug, Default)]
pub(crate) struct Post {
    line: Mutex<Turns>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Turns {
    queue: VecDeque<AgentId>,
    queued: HashSet<AgentId>,
    busy: HashSet<AgentId>,
    /// Retries, with their times.
    later: BTreeSet<(Timestamp, AgentId)>,
}

impl Post {
    /// Notifies that there may be something to deliver to this agent.
    pub(crate) fn poke(&self, agent: AgentId) {
        let mut turns = lock(&self.line);
        if turns.queued.insert(agent) {
            turns.queue.push_back(agent);
        }
        drop(turns);
        self.bell.notify_one();
    }

    fn poke_at(&self, at: Timestamp, agent: AgentId) {
        lock(&self.line).later.insert((at, agent));
        self.bell.notify_one();
    }

    /// The next agent whose lane is free; it is busy then.
    fn next(&self, now: Timestamp) -> Option<AgentId> {
        let mut turns = lock(&self.line);
        while let Some((at, agent)) = turns.later.first().copied().filter(|(at, _)| *at <= now) {
            turns.later.remove(&(at, agent));
            if turns.queued.insert(agent) {
                turns.queue.push_back(agent);
            }
        }
        let free = turns.queue.iter().position(|agent| !turns.busy.contains(agent))?;
        let agent = turns.queue.remove(free)?;
        turns.queued.remove(&agent);
        turns.busy.insert(agent);
        Some(agent)
    }

    fn done(&self, agent: AgentId) {
        lock(&self.line).busy.remove(&agent);
        self.bell.notify_one();
    }

    fn wakes_at(&self) -> Option<Timestamp> {
        lock(&self.line).later.first().map(|(at, _)| *at)
    }
}

/// The result for one message.
enum Brought {
    Yes,
    /// No session can take it: it waits until one becomes idle.
    Nobody,
    /// Its sender may not direct these sessions. It stays in the mailbox, where the agent may read
    /// it, and delays no other message.
    Refused,
    /// It may work later.
    Failed(EngineError),
}

/// The loop `dispatcher`.
pub(crate) struct Dispatcher {
    engine: Engine,
    lanes: Arc<Semaphore>,
    /// The time of the next sweep.
    sweep: Timestamp,
}

impl Dispatcher {
    pub(crate) fn new(engine: Engine) -> Self {
        let sweep = engine.cortex.clock.now().after(SWEEP);
        Self { engine, lanes: Arc::new(Semaphore::new(LANES)), sweep }
    }

    /// Gives each waiting agent its turn, while there are free lanes. A failure stops nothing: it
    /// is tried again at its own time.
    async fn look(&mut self, now: Timestamp) -> Report {
        let engine = &self.engine;
        let mut said = String::new();
        if now >= self.sweep {
            if let Err(err) = engine.sweep_all().await {
                tracing::warn!(error = %err, "the mesh could not be swept");
                said = format!("failing, the mesh could not be swept: {err}");
            }
            self.sweep = engine.cortex.clock.now().after(SWEEP);
        }
        let post = &engine.cortex.mesh.post;
        while let Ok(lane) = Arc::clone(&self.lanes).try_acquire_owned() {
            let Some(agent) = post.next(engine.cortex.clock.now()) else { break };
            let engine = engine.clone();
            self.engine.tasks.spawn(move |_| async move {
                engine.bring(agent).await;
                drop(lane);
                engine.cortex.mesh.post.done(agent);
            });
        }
        // While all lanes are busy, nothing can start; a free lane notifies.
        let retry = post.wakes_at().filter(|_| self.lanes.available_permits() > 0);
        Report { said, again: Some(retry.map_or(self.sweep, |at| at.min(self.sweep))) }
    }
}

impl Reconcile for Dispatcher {
    fn name(&self) -> &'static str {
        "dispatcher"
    }

    fn pace(&self) -> Pace {
        Pace { jitter: Duration::ZERO, ..Pace::every(SWEEP).at_once().steady() }
    }

    /// A notification without a receiver is kept.
    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(self.engine.cortex.mesh.post.bell.notified())
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move { Ok(self.look(now).await) })
    }
}

impl Engine {
    /// It works in batches and has a limit, so that other commits continue in between.
    async fn sweep_all(&self) -> Result<(), EngineError> {
        for _ in 0..5 {
            if !self.mesh_sweep(SWEEP_BATCH).await? {
                break;
            }
        }
        Ok(())
    }

    /// One turn of an agent's lane.
    async fn bring(&self, agent: AgentId) {
        match self.bring_some(agent).await {
            // If more may wait, the agent goes to the end of the line.
            Ok(true) => self.cortex.mesh.post.poke(agent),
            Ok(false) => {}
            Err(err) => {
                tracing::warn!(agent.id = %agent, error = %err, "letters are not brought");
                let later = self.cortex.clock.now().after(Duration::from_secs(5));
                self.cortex.mesh.post.poke_at(later, agent);
            }
        }
    }

    /// Returns whether there may be more to deliver at once.
    async fn bring_some(&self, id: AgentId) -> Result<bool, EngineError> {
        let mailbox = self.cortex.mesh.mail.of(id);
        use std::sync::atomic::Ordering::Acquire;
        // A call that waits for a message gets it in that way.
        if mailbox.waiting.load(Acquire) == 0 || mailbox.readers.load(Acquire) > 0 {
            return Ok(false);
        }
        let Some(agent) = self.cortex.agent(id).await? else { return Ok(false) };
        let policy = self.permissions().layer(&agent.spec.name).permissions.on_message;
        if policy == OnMessage::Queue || self.cortex.draining() {
            return Ok(false);
        }
        let _turn = mailbox.turn.lock().await;
        let now = self.cortex.clock.now();
        let (mut left, mut after, mut refused) = (TURN, 0, HashSet::new());
        while left > 0 {
            let readable = LetterFilter::Readable(now);
            let letters = self.cortex.store.letter_list(id, readable, after, TURN).await?;
            let Some(last) = letters.last() else { return Ok(false) };
            after = last.place;
            for letter in letters.into_iter().filter(|letter| letter.fate(now).is_none()) {
                if left == 0 || refused.contains(&letter.from) {
                    continue;
                }
                match self.bring_one(&agent.spec, policy, &letter).await {
                    Brought::Refused => {
                        refused.insert(letter.from);
                        continue;
                    }
                    Brought::Nobody => return Ok(false),
                    brought => self.brought(&mailbox, id, &letter, brought).await?,
                }
                left -= 1;
            }
        }
        Ok(true)
    }

    /// Records the result of a delivery.
    async fn brought(
        &self,
        mailbox: &Mailbox,
        id: AgentId,
        letter: &Letter,
        brought: Brought,
    ) -> Result<(), EngineError> {
        match brought {
            Brought::Yes => {
                self.acknowledge(mailbox, id, "postmaster", vec![letter.id]).await?;
            }
            Brought::Nobody | Brought::Refused => {}
            Brought::Failed(err) => {
                tracing::debug!(letter.id = %letter.id, error = %err, "a letter came back");
                let now = self.cortex.clock.now();
                let mark = letter.mark.read(now, None, None);
                let payload = json!({
                    "agent_id": id, "by": "postmaster", "ids": [letter.id],
                    "attempts": [mark.attempts], "error": err.to_string(),
                });
                let (to, id, attempts) = (letter.to, letter.id, letter.mark.attempts);
                let guard = Guard::LetterAt { to, id, attempts, dead: false };
                let expires_at = letter.expires_at;
                let change = Change::LetterMark { to, id, mark, expires_at };
                let told = event("mail.delivered", now, payload);
                self.cortex.store.commit(explained(told, vec![guard], vec![change])).await?;
                self.cortex.mesh.post.poke_at(mark.visible_at, to);
            }
        }
        Ok(())
    }

    async fn bring_one(&self, agent: &AgentSpec, policy: OnMessage, letter: &Letter) -> Brought {
        let rows = match self.live_sessions(letter.to).await {
            Ok(rows) => rows,
            Err(err) => return Brought::Failed(err),
        };
        let mut refused = false;
        for row in &rows {
            match self.may_be_told(letter, row.id).await {
                Ok(()) => {}
                Err(EngineError::Forbidden { .. }) => {
                    refused = true;
                    continue;
                }
                Err(err) => return Brought::Failed(err),
            }
            let taken = match (&row.command, row.status) {
                (Some(command), _) if command.pid.is_some() => {
                    self.type_letter(row, command.life, letter).await
                }
                (None, SessionStatus::AwaitingInput) => {
                    let by = format!("agent:{}", letter.from);
                    let message = shown(letter);
                    self.cortex
                        .order(row.id, Order::Answer { item: None, message, by })
                        .await
                        .map(drop)
                }
                (_, SessionStatus::Idle) => {
                    let by = format!("agent:{}", letter.from);
                    let message = shown(letter);
                    self.cortex.order(row.id, Order::Tell { message, by }).await.map(drop)
                }
                _ => continue,
            };
            match taken {
                Ok(()) => return Brought::Yes,
                // The message has changed meanwhile.
                Err(EngineError::Conflict { .. }) => {}
                Err(err) => return Brought::Failed(err),
            }
        }
        if refused {
            return Brought::Refused;
        }
        if policy != OnMessage::Start || !rows.is_empty() {
            return Brought::Nobody;
        }
        match self.may_be_started_by(letter, agent).await {
            Ok(()) => {}
            Err(EngineError::Forbidden { .. }) => return Brought::Refused,
            Err(err) => return Brought::Failed(err),
        }
        let starter = Caller::system(Part::Dispatcher);
        let draft = SessionDraft {
            agent: letter.to.to_string(),
            task: shown(letter),
            name: None,
            parent: None,
            command: None,
            sandbox: None,
            room: None,
            step_limit: None,
            workspace: None,
            conversation: Some(false),
            idempotency: Some((letter.id.to_string(), [0; 32])),
            ..SessionDraft::default()
        };
        match Box::pin(self.session_create(&starter, draft)).await {
            Ok(_) => Brought::Yes,
            Err(err) => {
                tracing::debug!(agent = agent.name, error = %err, "no session was started for a letter");
                Brought::Failed(err)
            }
        }
    }

    /// Sessions of an agent that have not ended: those that wait for input first, newer before
    /// older.
    async fn live_sessions(&self, agent: AgentId) -> Result<Vec<SessionRow>, EngineError> {
        use SessionStatus::{AwaitingApproval, AwaitingInput, Idle, Queued, Running};
        let filter = SessionFilter {
            agent: Some(agent),
            statuses: vec![AwaitingInput, Idle, Running, AwaitingApproval, Queued],
            ..SessionFilter::default()
        };
        let page = Page { limit: LOOKED_AT, after: None };
        let mut rows = self.cortex.store.session_list(filter, page).await?;
        rows.retain(|row| row.room.as_ref().is_none_or(|room| room.phase != RoomPhase::Closing));
        rows.sort_by_key(|row| !matches!(row.status, AwaitingInput | Idle));
        Ok(rows)
    }

    /// Types a message into a command, like a person's text.
    async fn type_letter(
        &self,
        row: &SessionRow,
        life: u32,
        letter: &Letter,
    ) -> Result<(), EngineError> {
        let processes = self.processes()?;
        let speaks = self.cortex.speaks(row.id).await?;
        let text = match speaks {
            Provider::Claude => shown(letter),
            // It must be one line, whatever the payload contains.
            Provider::Raw | Provider::Codex | Provider::Lines => {
                json!({"message": told(letter)}).to_string()
            }
        };
        let key = ProcessKey { session: row.id, epoch: life };
        processes.note(row.id, NoteKind::Human, text.clone()).await?;
        let bytes = launch::input(speaks, &text).into_bytes();
        let size = bytes.len();
        processes.write(key, bytes, TYPING).await?;
        let told = NewEvent {
            stream: StreamId::Session(row.id),
            kind: "input.sent",
            ts: self.cortex.clock.now(),
            payload: json!({
                "run_id": row.id, "life": life, "by": format!("agent:{}", letter.from),
                "text": text, "bytes": size, "letter_id": letter.id,
            }),
        };
        let guards = vec![Guard::SessionExists { session: row.id }];
        self.cortex.store.commit(explained(told, guards, vec![])).await?;
        Ok(())
    }

    /// For tests and status: how many messages wait for an agent.
    pub fn letters_waiting(&self, agent: AgentId) -> u32 {
        self.cortex.mesh.mail.of(agent).waiting.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// The form of a message for a program.
pub(super) fn told(letter: &Letter) -> Value {
    json!({
        "id": letter.id, "from": letter.from, "type": letter.kind, "topic": letter.topic,
        "payload": letter.payload, "workflow_id": letter.workflow, "reply_to": letter.reply_to,
        "priority": letter.priority.as_str(), "timestamp": letter.sent_at,
        "attempt": letter.mark.attempts,
    })
}

/// The form of a message for a model.
fn shown(letter: &Letter) -> String {
    let text = match (&letter.payload, letter.payload.get("text").and_then(Value::as_str)) {
        (Value::String(text), _) => text.clone(),
        (Value::Object(fields), Some(text)) if fields.len() == 1 => text.to_owned(),
        (other, _) => other.to_string(),
    };
    let what = match &letter.topic {
        Some(topic) => format!("Event {} on `{topic}`", letter.id),
        None => format!("Message {} ({})", letter.id, letter.kind),
    };
    format!("{what} from the agent `{}`, not from a person:\n{text}", letter.from)
}
