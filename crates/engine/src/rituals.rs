//! Rituals: the loop that executes the decisions of [`overmind_core::ritual`].
//!
//! The status that says a tick was decided on and the quest of that tick are one commit, guarded by
//! the version of the ritual: a crash, or a second one who decides, can neither lose nor double it.
//! The loop sleeps until the next tick of any ritual, and reads no ritual that is not due. After a start
//! it also looks at all others, for a short time in each pass, so that no tick waits for them.

use std::time::{Duration, Instant};

use overmind_core::Fut;
use overmind_core::ids::RecordId;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::quest::{FINALIZER, QuestStatus};
use overmind_core::record::decide::{Draft, Put, RecordWrite, Stamp, put, status as status_write};
use overmind_core::record::kinds::quest::QUEST;
use overmind_core::record::kinds::ritual::{RITUAL, of};
use overmind_core::record::rows::{RecordChange, RecordPage, RecordQuery};
use overmind_core::record::{Kind, Name, Owner, Record, RecordKey};
use overmind_core::ritual::{Owned, Plan, RitualSpec, RitualStatus, decide, quest_name};
use overmind_core::store::{Commit, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::json;
use tokio::sync::watch;

use crate::Engine;
use crate::error::EngineError;
use crate::owners::{differs, sooner};
use crate::quests::system;
use crate::records::CascadeWish;

/// The time between two passes without other triggers.
const EVERY: Duration = Duration::from_mins(1);
/// Records that are read at once.
const PAGE: u32 = 500;
/// Rituals that are not due and are read at once after a start.
const OTHERS: u32 = 50;
/// The duration of a pass: a tick that becomes due meanwhile waits at most this long.
const OTHERS_FOR: Duration = Duration::from_millis(10);
/// How often one ritual is decided on in one pass, while it changes.
const TURNS: u32 = 8;
/// The time until a failed ritual is visited again.
const RETRY: Duration = Duration::from_secs(5);

/// The loop `rituals`.
pub(crate) struct Rituals {
    engine: Engine,
    changes: watch::Receiver<u64>,
    /// The last change before the last pass.
    seen: u64,
    /// The rituals that no pass has visited since the start: those after this one, or all.
    others: Option<Option<RecordKey>>,
}

impl Rituals {
    pub(crate) fn new(engine: Engine) -> Self {
        let changes = engine.cortex.watchers.watch(StreamId::Records);
        let seen = *changes.borrow();
        Self { engine, changes, seen, others: Some(None) }
    }

    async fn look(&mut self, now: Timestamp) -> Result<Report, String> {
        self.seen = *self.changes.borrow();
        let told = |err: StoreError| err.to_string();
        let mut looks = Looks::default();
        for ritual in self.engine.records_due(RITUAL.name, now).await.map_err(told)? {
            looks.add(self.engine.ritual_turns(ritual.id).await, &ritual);
        }
        if let Some(after) = self.others.clone() {
            let page = self.engine.rituals_after(after).await.map_err(told)?;
            let until = Instant::now() + OTHERS_FOR;
            self.others = None;
            let mut others = page.records.into_iter();
            while let Some(ritual) = others.next() {
                looks.add(self.engine.ritual_turns(ritual.id).await, &ritual);
                let is_last = others.len() == 0 && !page.more;
                self.others = (!is_last).then_some(Some(ritual.key));
                if until <= Instant::now() {
                    break;
                }
            }
        }
        // The start of this pass: ticks that became due later were not processed.
        let next = self.engine.ritual_next(now).await.map_err(told)?;
        let Looks { fired, wrong } = looks;
        let retry = wrong.is_some().then(|| now.after(RETRY));
        let others = self.others.is_some().then_some(now);
        let mut said = if fired == 0 { String::new() } else { format!("{fired} ticks") };
        if let Some(wrong) = wrong {
            tracing::warn!(error = wrong, "a ritual could not be looked at; it is tried again");
            said = format!("failing, {wrong}");
        }
        Ok(Report { said, again: sooner(others, sooner(retry, next)) })
    }
}

/// The result of a pass: the ticks that got a quest, and the last error.
#[derive(Default)]
struct Looks {
    fired: usize,
    wrong: Option<String>,
}

impl Looks {
    /// Counts a ritual. One that fails does not stop the pass.
    fn add(&mut self, found: Result<usize, EngineError>, ritual: &Record) {
        match found {
            Ok(count) => self.fired += count,
            Err(err) => self.wrong = Some(format!("{}: {err}", ritual.key)),
        }
    }
}

impl Reconcile for Rituals {
    fn name(&self) -> &'static str {
        "rituals"
    }

    fn pace(&self) -> Pace {
        Pace::every(EVERY).at_once()
    }

    fn wakes_on(&mut self) -> Fut<'_, ()> {
        Box::pin(differs(&mut self.changes, self.seen))
    }

    fn pass(&mut self, now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(self.look(now))
    }
}

impl Engine {
    /// Some rituals, by name, after the given one.
    async fn rituals_after(&self, after: Option<RecordKey>) -> Result<RecordPage, StoreError> {
        let kind = Kind::parse(RITUAL.name).ok();
        let query = RecordQuery { kind, after, limit: OTHERS, ..RecordQuery::default() };
        self.records.record_list(query).await
    }

    async fn all_of(&self, query: RecordQuery) -> Result<Vec<Record>, StoreError> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let after = all.last().map(|record| record.key.clone());
            let query = RecordQuery { after, limit: PAGE, ..query.clone() };
            let page = self.records.record_list(query).await?;
            let more = page.more && !page.records.is_empty();
            all.extend(page.records);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The time of the next due ritual, if that is soon. Rituals that are due by now were visited.
    async fn ritual_next(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let Ok(kind) = Kind::parse(RITUAL.name) else { return Ok(None) };
        let after = Some((now, RecordId::from_u128(u128::MAX)));
        let due = self.records.record_due(kind, now.after(EVERY), after, 1).await?;
        Ok(due.first().and_then(Record::wake))
    }

    /// Decides on a ritual and executes that, until there is nothing to do. Returns how many ticks
    /// got a quest.
    async fn ritual_turns(&self, id: RecordId) -> Result<usize, EngineError> {
        let mut fired = 0;
        for _ in 0..TURNS {
            let found = self.records.record_by_id(id).await?;
            let Some(record) = found.filter(|found| found.deleting.is_none()) else { break };
            let spec = RitualSpec::read(&record.spec).map_err(|wrong| {
                let first = wrong.first().map(ToString::to_string).unwrap_or_default();
                EngineError::invalid("spec", first)
            })?;
            let status = RitualStatus::read(&record.status);
            let owned = self.ritual_quests(&record).await?;
            let now = self.cortex.clock.now();
            let plan = decide(of(&record), &spec, &status, &owned, now);
            if plan.status == status && plan.delete.is_empty() {
                break;
            }
            match self.ritual_commit(&record, &spec, &status, &plan).await {
                Ok(()) => fired += plan.fire.len(),
                // Another caller has changed it: it is read again.
                Err(EngineError::Conflict { .. }) => continue,
                Err(err) => return Err(err),
            }
            for name in plan.delete {
                let Ok(name) = Name::parse(&name) else { continue };
                let how = CascadeWish::Background;
                let by = system().within(record.key.colony);
                let done = self.record_delete(&by, &QUEST, &name, how, None).await;
                if let Err(err) = done {
                    tracing::debug!(error = %err, %name, "a quest of a ritual was not deleted");
                }
            }
        }
        Ok(fired)
    }

    /// The quests that are not being deleted.
    async fn ritual_quests(&self, ritual: &Record) -> Result<Vec<Owned>, StoreError> {
        let query = RecordQuery {
            kind: Kind::parse(QUEST.name).ok(),
            owner: Some(Owner::Record(ritual.id)),
            ..RecordQuery::default()
        };
        let all = self.all_of(query).await?.into_iter().filter(|one| one.deleting.is_none());
        let owned = all.map(|record| {
            let status = QuestStatus::read(&record.status);
            Owned {
                name: record.key.name.as_str().to_owned(),
                created_at: record.created_at,
                finished: status.finished_at.map(|_| status.phase() == "Complete"),
            }
        });
        Ok(owned.collect())
    }

    /// Writes the status and the quests of its ticks, in one commit.
    async fn ritual_commit(
        &self,
        ritual: &Record,
        spec: &RitualSpec,
        before: &RitualStatus,
        plan: &Plan,
    ) -> Result<(), EngineError> {
        if plan.status == *before {
            return Ok(());
        }
        let by = system().name;
        let stamp = Stamp { now: self.cortex.clock.now(), by: &by };
        let status = serde_json::to_value(&plan.status)
            .map_err(|err| EngineError::invalid("status", err.to_string()))?;
        let write = status_write(&RITUAL, ritual, status, None, stamp)
            .map_err(|err| EngineError::invalid("status", err.to_string()))?;
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        if let Some(write) = write {
            write.join(&mut commit);
        }
        for tick in &plan.fire {
            if let Some(write) = self.ritual_quest(ritual, spec, *tick, stamp).await? {
                write.join(&mut commit);
            }
        }
        if !commit.changes.is_empty() {
            self.cortex.store.commit(commit).await?;
        }
        Ok(())
    }

    /// The quest of a tick. `None` if a record with its name exists.
    async fn ritual_quest(
        &self,
        ritual: &Record,
        spec: &RitualSpec,
        tick: Timestamp,
        stamp: Stamp<'_>,
    ) -> Result<Option<RecordWrite>, EngineError> {
        let invalid = |why: String| EngineError::invalid("metadata.name", why);
        let name = quest_name(ritual.key.name.as_str(), tick);
        let key = RecordKey {
            kind: Kind::parse(QUEST.name).map_err(|err| invalid(err.to_string()))?,
            colony: ritual.key.colony,
            name: Name::parse(&name).map_err(|err| invalid(err.to_string()))?,
        };
        if self.records.record_fetch(key.clone()).await?.is_some() {
            tracing::warn!(%key, "a ritual's tick has no quest: there is one of its name");
            return Ok(None);
        }
        let draft = Draft {
            key,
            labels: ritual.labels.clone(),
            annotations: [("overmind/tick".to_owned(), tick.to_string())].into(),
            spec: spec.template.clone(),
            owner: Some(Owner::Record(ritual.id)),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            expires_at: None,
        };
        let id = RecordId::mint(&*self.cortex.ids);
        let made = put(&QUEST, None, draft, id, stamp);
        let Put { write, .. } =
            made.map_err(|err| EngineError::invalid("spec", err.to_string()))?;
        Ok(write.map(|mut write| {
            // The quest gets the rights of the ritual's author.
            if let RecordChange::Put(record) = &mut write.change {
                record.status = json!({ "author": RitualStatus::read(&ritual.status).author });
            }
            write
        }))
    }
}
