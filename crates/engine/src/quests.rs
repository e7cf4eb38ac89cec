//! Quests: the loop that carries out what [`overmind_core::quest`] decides.
//!
//! A pass looks at each quest that has not finished or is being deleted. It writes the status that
//! was decided, and only then starts and ends sessions; a crash between the two is finished by the
//! next pass, for the session of an attempt is found by its owner and the label of its number. Sessions are started with the
//! rights of the author of the spec: the role that they had when they wrote it, and no more than
//! they have now ([`author`]).

mod author;
mod start;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use futures_util::future::select_all;
use overmind_core::Fut;
use overmind_core::ids::{RecordId, SessionId};
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::quest::{
    ATTEMPT, End, FINALIZER, Plan, QuestSpec, QuestStatus, Seen, backoff, decide,
};
use overmind_core::record::decide::{Stamp, status as status_write};
use overmind_core::record::kinds::quest::{OPEN, QUEST};
use overmind_core::record::rows::RecordQuery;
use overmind_core::record::{Kind, Record};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{Commit, Page, SessionFilter, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

pub(crate) use self::author::{authored, held};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::Order;
use crate::error::EngineError;
use crate::records::CascadeWish;
use crate::sessions::open_statuses;

/// Between two passes that nothing begins.
const EVERY: Duration = Duration::from_secs(20);
/// Records, and sessions of one quest, that are read at once.
const PAGE: u32 = 500;
/// How often one quest is decided on in one pass, while it changes.
const TURNS: u32 = 16;

/// Who the reconcilers are.
pub(crate) fn system() -> Caller {
    Caller::new("system", Rights::Role(Role::Admin))
}

/// The loop `quests`.
pub(crate) struct Quests {
    engine: Engine,
    changes: watch::Receiver<u64>,
    /// The last change before the last pass.
    seen: u64,
    /// Sessions of quests that have not ended, and what tells that they move.
    running: HashMap<SessionId, watch::Receiver<u64>>,
    /// Of those, which have moved and were not looked at since.
    moved: HashSet<SessionId>,
    /// One has ended and no pass has begun since.
    ended: bool,
    /// Quests that failed to be looked at: how often in a row, and when to look again.
    failing: HashMap<RecordId, (u32, Timestamp)>,
    /// A pass has looked at all quests since the start.
    looked: bool,
}

impl Quests {
    pub(crate) fn new(engine: Engine) -> Self {
        let changes = engine.cortex.watchers.watch(StreamId::Records);
        let seen = *changes.borrow();
        Self {
            engine,
            changes,
            seen,
            running: HashMap::new(),
            moved: HashSet::new(),
            ended: false,
            failing: HashMap::new(),
            looked: false,
        }
    }

    /// Whether one of those that have moved has ended.
    async fn any_ended(&mut self) {
        while let Some(id) = self.moved.iter().next().copied() {
            let row = self.engine.cortex.store.session_fetch(id).await;
            let open = row.is_ok_and(|row| row.is_some_and(|row| !row.status.is_terminal()));
            self.moved.remove(&id);
            if !open {
                self.running.remove(&id);
                self.ended = true;
            }
        }
    }

    fn follow(&mut self, id: SessionId) {
        let engine = &self.engine;
        self.running.entry(id).or_insert_with(|| {
            // It may have ended before this.
            self.moved.insert(id);
            engine.cortex.watchers.watch(StreamId::Session(id))
        });
    }

    async fn look(&mut self, now: Timestamp) -> Result<Report, String> {
        self.seen = *self.changes.borrow();
        self.ended = false;
        let told = |err: StoreError| err.to_string();
        let quests = match self.looked {
            true => self.engine.open_quests().await.map_err(told)?,
            false => self.engine.quests(None).await.map_err(told)?,
        };
        let mut again = None;
        let (mut did, mut wrong) = (0_u32, None);
        let mut running = HashSet::new();
        let mut failing = std::mem::take(&mut self.failing);
        for quest in quests {
            let before = failing.remove(&quest.id);
            if let Some((times, until)) = before.filter(|(_, until)| *until > now) {
                self.failing.insert(quest.id, (times, until));
                again = sooner(again, Some(until));
                continue;
            }
            match Box::pin(self.engine.quest_turns(quest.id)).await {
                Ok(turned) => {
                    did += u32::from(turned.did);
                    again = sooner(again, turned.again);
                    running.extend(turned.running);
                }
                // One that fails holds up no other.
                Err(err) => {
                    let times = before.map_or(0, |(times, _)| times) + 1;
                    let until = now.after(backoff(Duration::from_secs(1), times));
                    self.failing.insert(quest.id, (times, until));
                    again = sooner(again, Some(until));
                    wrong = Some(format!("{}: {err}", quest.key));
                }
            }
        }
        self.looked = true;
        self.running.retain(|id, _| running.contains(id));
        for id in running {
            self.follow(id);
        }
        let mut said = if did == 0 { String::new() } else { format!("{did} moved on") };
        if let Some(wrong) = wrong {
            tracing::warn!(error = wrong, "a quest could not be looked at; it is tried again");
            said = format!("{} failing, {wrong}", self.failing.len());
        }
        Ok(Report { said, again })
    }
}

/// The earlier of two times, of which either may be missing.
pub(crate) fn sooner(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

/// Returns when the number is another one; never when nothing changes any more.
pub(crate) async fn differs(changes: &mut watch::Receiver<u64>, seen: u64) {
    if changes.wait_for(|now| *now != seen).await.is_err() {
        // The engine stops.
        std::future::pending::<()>().await;
    }
}

/// Returns a session that has moved.
async fn any(running: &mut HashMap<SessionId, watch::Receiver<u64>>) -> SessionId {
    if running.is_empty() {
        return std::future::pending().await;
    }
    let moves = running.iter_mut().map(|(id, moves)| {
        Box::pin(async move {
            // Whose watcher is gone is looked at as well.
            let _ = moves.changed().await;
            *id
        })
    });
    select_all(moves).await.0
}

impl Reconcile for Quests {
    fn name(&self) -> &'static str {
        "quests"
    }

    fn pace(&self) -> Pace {
        Pace::every(EVERY).at_once()
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(async move {
            loop {
                self.any_ended().await;
                if self.ended {
                    return;
                }
                let Self { seen, changes, running, moved, .. } = self;
                tokio::select! {
                    () = differs(changes, *seen) => return,
                    id = any(running) => drop(moved.insert(id)),
                }
            }
        })
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(self.look(now))
    }
}

/// What the turns of one quest came to.
#[derive(Default)]
struct Turned {
    did: bool,
    again: Option<Timestamp>,
    running: Vec<SessionId>,
}

impl Engine {
    /// Quests for which there may be something to do, and those whose time is over.
    async fn open_quests(&self) -> Result<Vec<Record>, StoreError> {
        let mut found = self.quests(Some((OPEN.0.to_owned(), OPEN.1.to_owned()))).await?;
        // A deletion computes no index terms.
        let mut after = None;
        loop {
            let deleting = self.records.record_deleting(after, PAGE).await?;
            after = deleting.last().map(|last| last.id);
            let is_new = |record: &Record| {
                record.key.kind.as_str() == QUEST.name
                    && !found.iter().any(|one| one.id == record.id)
            };
            let more: Vec<Record> = deleting.into_iter().filter(is_new).collect();
            found.extend(more);
            if after.is_none() {
                break;
            }
        }
        let now = self.cortex.clock.now();
        let mut after = None;
        loop {
            let due = self.records.record_due(now, after, PAGE).await?;
            after = due.last().and_then(|last| Some((last.wake()?, last.id)));
            found.extend(due.into_iter().filter(|record| record.key.kind.as_str() == QUEST.name));
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// All quests, or those with this index term.
    async fn quests(&self, term: Option<(String, String)>) -> Result<Vec<Record>, StoreError> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let query = RecordQuery {
                kind: Kind::parse(QUEST.name).ok(),
                term: term.clone(),
                after: all.last().map(|record| record.key.clone()),
                limit: PAGE,
                ..RecordQuery::default()
            };
            let page = self.records.record_list(query).await?;
            let more = page.more && !page.records.is_empty();
            all.extend(page.records);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Decides on a quest and does it, until there is nothing to do.
    async fn quest_turns(&self, id: RecordId) -> Result<Turned, EngineError> {
        let mut turned = Turned::default();
        for _ in 0..TURNS {
            let Some(record) = self.records.record_by_id(id).await? else { return Ok(turned) };
            let spec = QuestSpec::read("spec", &record.spec).map_err(|wrong| {
                let first = wrong.first().map(ToString::to_string).unwrap_or_default();
                EngineError::invalid("spec", first)
            })?;
            let generation = record.generation;
            let status = QuestStatus { generation, ..QuestStatus::read(&record.status) };
            let seen = self.attempts(&record, &status).await?;
            let now = self.cortex.clock.now();
            let plan = decide(&spec, &status, &seen, record.deleting.is_some(), now);
            turned.again = plan.again;
            turned.running.clear();
            turned.running.extend(plan.status.active.iter().filter_map(|one| one.session));
            turned.running.extend(plan.cancel.iter().copied());
            match self.carry_out(record, &spec, status, plan).await {
                Ok(false) => return Ok(turned),
                Ok(true) => turned.did = true,
                // Somebody has changed it: it is read again.
                Err(EngineError::Conflict { .. }) => {}
                Err(err) => return Err(err),
            }
        }
        turned.again = sooner(turned.again, Some(self.cortex.clock.now()));
        Ok(turned)
    }

    /// Answers whether anything was done.
    async fn carry_out(
        &self,
        mut record: Record,
        spec: &QuestSpec,
        status: QuestStatus,
        plan: Plan,
    ) -> Result<bool, EngineError> {
        let mut did = false;
        if plan.status != status {
            record = self.quest_status(&record, &plan.status).await?;
            did = true;
        }
        for number in plan.start {
            match self.attempt_start(&record, spec, plan.status.author.as_ref(), number).await {
                Ok(()) => did = true,
                Err(refused) => {
                    let mut status = plan.status.clone();
                    let (reason, message) = start::reason(&refused);
                    status.refuse(reason, message, self.cortex.clock.now());
                    self.quest_status(&record, &status).await?;
                    return Ok(true);
                }
            }
        }
        for session in plan.cancel {
            let order = Order::Cancel { by: system().name };
            did |= self.cortex.order(session, order).await.is_ok();
        }
        match plan.end {
            End::Stays => Ok(did),
            End::Delete => {
                let how = CascadeWish::Background;
                let was = Some(record.changed).filter(|changed| *changed > 0);
                let done = self.record_delete(&system(), &QUEST, &record.key.name, how, was).await;
                done.map(|_| true).map_err(told)
            }
            End::Release => {
                let done = self.record_finalize(&system(), &QUEST, record.id, FINALIZER).await;
                done.map_err(told)
            }
        }
    }

    /// Writes a status, if the record is still as it was read.
    async fn quest_status(
        &self,
        record: &Record,
        status: &QuestStatus,
    ) -> Result<Record, EngineError> {
        let now = self.cortex.clock.now();
        let value = serde_json::to_value(status)
            .map_err(|err| EngineError::invalid("status", err.to_string()))?;
        let by = system().name;
        let stamp = Stamp { now, by: &by };
        let write = status_write(&QUEST, record, value.clone(), None, stamp)
            .map_err(|err| EngineError::invalid("status", err.to_string()))?;
        let Some(write) = write else { return Ok(record.clone()) };
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        write.join(&mut commit);
        let changed = self.cortex.store.commit(commit).await?.global;
        let version = record.version + 1;
        Ok(Record { version, changed, status: value, ..record.clone() })
    }

    /// The sessions of a quest: all that have not ended, and what became of those that are active.
    async fn attempts(
        &self,
        record: &Record,
        status: &QuestStatus,
    ) -> Result<BTreeMap<u32, Seen>, EngineError> {
        let mut seen = BTreeMap::new();
        let mut add = |row: &SessionRow| {
            let number = row.labels.get(ATTEMPT).and_then(|number| number.parse().ok());
            if let Some(number) = number {
                seen.insert(number, seen_of(row));
            }
        };
        let mut after = None;
        loop {
            let filter = SessionFilter {
                owner: Some(record.id),
                statuses: open_statuses(),
                ..SessionFilter::default()
            };
            let rows = self.cortex.store.session_list(filter, Page { after, limit: PAGE }).await?;
            rows.iter().for_each(&mut add);
            match rows.last() {
                Some(last) if rows.len() >= PAGE as usize => after = Some(last.id),
                Some(_) | None => break,
            }
        }
        for attempt in &status.active {
            if seen.contains_key(&attempt.number) {
                continue;
            }
            let row = match attempt.session {
                Some(id) => self.cortex.store.session_fetch(id).await?,
                None => self.attempt_made(record, attempt.number).await?,
            };
            if let Some(row) = row {
                seen.insert(attempt.number, seen_of(&row));
            }
        }
        Ok(seen)
    }
}

fn told(err: crate::RecordError) -> EngineError {
    match err {
        crate::RecordError::Engine(err) => err,
        crate::RecordError::Changed { .. } | crate::RecordError::Contended(_) => {
            EngineError::conflict(err.to_string())
        }
        crate::RecordError::Invalid(_) | crate::RecordError::Changes(_) => {
            EngineError::invalid("record", err.to_string())
        }
    }
}

fn seen_of(row: &SessionRow) -> Seen {
    match row.status {
        SessionStatus::Succeeded => Seen::Succeeded,
        SessionStatus::Failed => {
            let message = row.error.as_ref().and_then(|error| error.get("message"));
            let message = message.and_then(Value::as_str).unwrap_or("it failed");
            Seen::Failed(format!("run {}: {}", row.name, short(message)))
        }
        SessionStatus::Canceled => Seen::Failed(format!("run {} was canceled", row.name)),
        SessionStatus::Queued
        | SessionStatus::Running
        | SessionStatus::AwaitingInput
        | SessionStatus::AwaitingApproval
        | SessionStatus::Idle => Seen::Open(row.id),
    }
}

/// The beginning of a message, on one line.
fn short(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}
