//! Loops over records that own sessions: quests, fleets and lineages.
//!
//! A pass visits each record with possible work and decides on it until nothing is left. Passes are
//! started by changes of records, by changes of their sessions, and by time. A failing record waits
//! for its own next attempt and delays no other. A [still](Turned::still) record is skipped until
//! it or one of its sessions changes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use futures_util::future::select_all;
use overmind_core::Fut;
use overmind_core::ids::{RecordId, SessionId};
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::quest::{ATTEMPT, backoff};
use overmind_core::record::rows::RecordQuery;
use overmind_core::record::{Kind, Record};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::{Page, SessionFilter, StoreError, StreamId};
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use crate::Engine;
use crate::error::EngineError;
use crate::sessions::open_statuses;

/// The time between two passes without other triggers.
const EVERY: Duration = Duration::from_secs(20);
/// The longest time that a pass waits for more changes.
const MOST_WAIT: Duration = Duration::from_millis(500);
/// The time between two passes that also visit still records, in case a change was not reported.
const ALL: Duration = Duration::from_mins(5);
/// Records that are read at once.
const PAGE: u32 = 500;

/// A kind with records that own sessions.
pub(crate) struct Owning {
    /// The loop's name.
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    /// The index term of the records with possible work.
    pub(crate) open: (&'static str, &'static str),
    /// Decides on one record and executes that, until there is nothing to do.
    pub(crate) turns: for<'a> fn(&'a Engine, RecordId) -> Fut<'a, Result<Turned, EngineError>>,
    /// Whether it is also visited when one of its sessions starts to run, and not only when one
    /// ends.
    pub(crate) follows_starts: bool,
}

/// A loop over the records of one kind.
pub(crate) struct Owners {
    of: &'static Owning,
    engine: Engine,
    changes: watch::Receiver<u64>,
    /// The last change before the last pass.
    seen: u64,
    /// Sessions of records that have not ended, with watches of their changes.
    running: HashMap<SessionId, watch::Receiver<u64>>,
    /// Those of them that are running, not only queued.
    begun: HashSet<SessionId>,
    /// Those of them that have changed and were not visited since.
    moved: HashSet<SessionId>,
    /// Whether one has ended and no pass has begun since.
    ended: bool,
    /// Records whose visit failed: how often in a row, and when to try again.
    failing: HashMap<RecordId, (u32, Timestamp)>,
    /// The still records: the visited version, and the running sessions.
    still: HashMap<RecordId, (u64, Vec<SessionId>)>,
    /// When a pass visits them, too.
    all: Timestamp,
    /// Whether a pass has visited all records since the start.
    looked: bool,
    /// The duration of the last pass.
    took: Duration,
}

impl Owners {
    pub(crate) fn new(of: &'static Owning, engine: Engine) -> Self {
        let changes = engine.cortex.watchers.watch(StreamId::Records);
        let seen = *changes.borrow();
        let all = engine.cortex.clock.now().after(ALL);
        Self {
            of,
            engine,
            changes,
            seen,
            running: HashMap::new(),
            begun: HashSet::new(),
            moved: HashSet::new(),
            ended: false,
            failing: HashMap::new(),
            still: HashMap::new(),
            all,
            looked: false,
            took: Duration::ZERO,
        }
    }

    /// Checks whether a changed session has ended or, if that matters, started.
    async fn any_ended(&mut self) {
        while let Some(id) = self.moved.iter().next().copied() {
            let row = self.engine.cortex.store.session_fetch(id).await.ok().flatten();
            match row.as_ref().and_then(|row| row.owner) {
                Some(owner) => drop(self.still.remove(&owner)),
                None => self.still.clear(),
            }
            let row = row.filter(|row| !row.status.is_terminal());
            self.moved.remove(&id);
            let Some(row) = row else {
                self.running.remove(&id);
                self.begun.remove(&id);
                self.ended = true;
                continue;
            };
            if is_up(&row) && self.begun.insert(id) {
                self.ended |= self.of.follows_starts;
            }
        }
    }

    fn follow(&mut self, id: SessionId) {
        let engine = &self.engine;
        self.running.entry(id).or_insert_with(|| {
            // The session may have ended before this.
            self.moved.insert(id);
            engine.cortex.watchers.watch(StreamId::Session(id))
        });
    }

    async fn look(&mut self, now: Timestamp) -> Result<Report, String> {
        self.seen = *self.changes.borrow();
        self.ended = false;
        let told = |err: StoreError| err.to_string();
        let records = match self.looked {
            true => self.engine.open_owners(self.of).await.map_err(told)?,
            false => self.engine.owners(self.of, None).await.map_err(told)?,
        };
        let mut again = None;
        let (mut did, mut looked, mut wrong) = (0_u32, 0_u32, None);
        let mut running = HashSet::new();
        let mut failing = std::mem::take(&mut self.failing);
        let mut still = std::mem::take(&mut self.still);
        if now >= self.all {
            still.clear();
            self.all = now.after(ALL);
        }
        for record in records {
            let is_due = record.wake().is_some_and(|at| at <= now);
            let kept = still.remove(&record.id).filter(|(version, _)| *version == record.version);
            if let Some(kept) = kept.filter(|_| !is_due) {
                running.extend(kept.1.iter().copied());
                self.still.insert(record.id, kept);
                continue;
            }
            let before = failing.remove(&record.id);
            if let Some((times, until)) = before.filter(|(_, until)| *until > now) {
                self.failing.insert(record.id, (times, until));
                again = sooner(again, Some(until));
                continue;
            }
            looked += 1;
            match (self.of.turns)(&self.engine, record.id).await {
                Ok(turned) => {
                    if turned.still && !turned.did {
                        self.still.insert(record.id, (record.version, turned.running.clone()));
                    }
                    did += u32::from(turned.did);
                    again = sooner(again, turned.again);
                    running.extend(turned.running);
                }
                // A failing record delays no other.
                Err(err) => {
                    let times = before.map_or(0, |(times, _)| times) + 1;
                    let until = now.after(backoff(Duration::from_secs(1), times));
                    self.failing.insert(record.id, (times, until));
                    again = sooner(again, Some(until));
                    wrong = Some(format!("{}: {err}", record.key));
                }
            }
        }
        self.looked = true;
        self.running.retain(|id, _| running.contains(id));
        self.begun.retain(|id| running.contains(id));
        for id in running {
            self.follow(id);
        }
        let mut said = match (did, looked) {
            (0, 0) => String::new(),
            (0, looked) => format!("{looked} looked at"),
            (did, _) => format!("{did} moved on"),
        };
        if let Some(wrong) = wrong {
            tracing::warn!(error = wrong, "it could not be looked at and is tried again");
            said = format!("{} failing, {wrong}", self.failing.len());
        }
        Ok(Report { said, again })
    }
}

/// Whether a session is running: for a command, whether its program is.
pub(crate) fn is_up(row: &SessionRow) -> bool {
    match row.status {
        SessionStatus::Queued => false,
        SessionStatus::Running => row.command.as_ref().is_none_or(|command| command.pid.is_some()),
        _ => true,
    }
}

/// The earlier of two times, of which either may be missing.
pub(crate) fn sooner(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

/// Returns when the number differs; never if nothing changes any more.
pub(crate) async fn differs(changes: &mut watch::Receiver<u64>, seen: u64) {
    if changes.wait_for(|now| *now != seen).await.is_err() {
        // The engine is stopping.
        std::future::pending::<()>().await;
    }
}

/// Returns a session that has changed.
async fn any(running: &mut HashMap<SessionId, watch::Receiver<u64>>) -> SessionId {
    if running.is_empty() {
        return std::future::pending().await;
    }
    let moves = running.iter_mut().map(|(id, moves)| {
        Box::pin(async move {
            // A session without a watcher is visited as well.
            let _ = moves.changed().await;
            *id
        })
    });
    select_all(moves).await.0
}

impl Reconcile for Owners {
    fn name(&self) -> &'static str {
        self.of.name
    }

    fn pace(&self) -> Pace {
        Pace::every(EVERY).at_once()
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(async move {
            loop {
                self.any_ended().await;
                if self.ended {
                    break;
                }
                let Self { seen, changes, running, moved, .. } = self;
                tokio::select! {
                    () = differs(changes, *seen) => break,
                    id = any(running) => drop(moved.insert(id)),
                }
            }
            // Changes at the same time are handled together: when a thousand sessions start, they
            // do not each cause a pass over the thousand. After a quick pass there is almost no
            // wait.
            let wait = self.took.min(MOST_WAIT);
            let clock = &self.engine.cortex.clock;
            clock.sleep_until(clock.now().after(wait)).await;
        })
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            let done = self.look(now).await;
            self.took = self.engine.cortex.clock.now().since(now);
            done
        })
    }
}

/// The result of deciding on one record.
#[derive(Default)]
pub(crate) struct Turned {
    pub(crate) did: bool,
    pub(crate) again: Option<Timestamp>,
    pub(crate) running: Vec<SessionId>,
    /// Whether it waits for no time and for nothing else: only a change of it or of these sessions
    /// can give it work.
    pub(crate) still: bool,
}

impl Engine {
    /// Records with possible work, and those that are being deleted.
    pub(crate) async fn open_owners(&self, of: &Owning) -> Result<Vec<Record>, StoreError> {
        let mut found = self.owners(of, Some((of.open.0.to_owned(), of.open.1.to_owned()))).await?;
        // A deletion computes no index terms.
        let mut after = None;
        loop {
            let deleting = self.records.record_deleting(after, PAGE).await?;
            after = deleting.last().map(|last| last.id);
            let is_new = |record: &Record| {
                record.key.kind.as_str() == of.kind && !found.iter().any(|one| one.id == record.id)
            };
            let more: Vec<Record> = deleting.into_iter().filter(is_new).collect();
            found.extend(more);
            if after.is_none() {
                break;
            }
        }
        found.extend(self.records_due(of.kind, self.cortex.clock.now()).await?);
        Ok(found)
    }

    /// All due records of a kind, the longest due first.
    pub(crate) async fn records_due(
        &self,
        kind: &str,
        now: Timestamp,
    ) -> Result<Vec<Record>, StoreError> {
        let (mut found, mut after) = (Vec::new(), None);
        let Ok(kind) = Kind::parse(kind) else { return Ok(found) };
        loop {
            let due = self.records.record_due(kind.clone(), now, after, PAGE).await?;
            after = due.last().and_then(|last| Some((last.wake()?, last.id)));
            found.extend(due);
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// All records of the kind, or those with this index term.
    async fn owners(
        &self,
        of: &Owning,
        term: Option<(String, String)>,
    ) -> Result<Vec<Record>, StoreError> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let query = RecordQuery {
                kind: Kind::parse(of.kind).ok(),
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

    /// The sessions of a record by the number in their label: all that have not ended and, for
    /// `known` numbers, also those that have.
    pub(crate) async fn owned_sessions(
        &self,
        record: &Record,
        known: Vec<(u32, Option<SessionId>)>,
    ) -> Result<BTreeMap<u32, SessionRow>, EngineError> {
        let mut found = BTreeMap::new();
        let mut after = None;
        loop {
            let filter = SessionFilter {
                owner: Some(record.id),
                statuses: open_statuses(),
                ..SessionFilter::default()
            };
            let rows = self.cortex.store.session_list(filter, Page { after, limit: PAGE }).await?;
            after = rows.last().filter(|_| rows.len() >= PAGE as usize).map(|last| last.id);
            for row in rows {
                let number = row.labels.get(ATTEMPT).and_then(|number| number.parse().ok());
                if let Some(number) = number {
                    found.insert(number, row);
                }
            }
            if after.is_none() {
                break;
            }
        }
        for (number, id) in known {
            if found.contains_key(&number) {
                continue;
            }
            let row = match id {
                Some(id) => self.cortex.store.session_fetch(id).await?,
                None => self.attempt_made(record, number).await?,
            };
            if let Some(row) = row {
                found.insert(number, row);
            }
        }
        Ok(found)
    }
}
