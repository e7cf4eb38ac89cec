//! Quests: the loop that executes the decisions of [`overmind_core::quest`].
//!
//! A pass visits each quest that has not finished or is being deleted. It writes the decided status
//! first and then starts and ends sessions. The next pass completes this after a crash in between,
//! because an attempt's session is found by its owner and the label with its number. Sessions are
//! started with the rights of the spec's author: the role at the time of writing, and no more than
//! the author has now ([`author`]).

mod author;
pub(crate) mod start;

use std::collections::BTreeMap;

use overmind_core::ids::RecordId;
use overmind_core::quest::{End, FINALIZER, Plan, QuestSpec, QuestStatus, Seen, decide};
use overmind_core::record::Record;
use overmind_core::record::decide::{Stamp, status as status_write};
use overmind_core::record::kinds::quest::{OPEN, QUEST};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::Commit;
use serde_json::Value;

pub(crate) use self::author::{
    authored, held, is_of_an_admin, kept_author, lent, lent_less, starts_runs,
};
use crate::Engine;
use crate::caller::{Caller, Part};
use crate::cortex::Order;
use crate::error::EngineError;
use crate::owners::{Owning, Turned, sooner};
use crate::records::CascadeWish;

/// How often one quest is decided on in one pass while it changes.
const TURNS: u32 = 16;

/// The caller that reconcilers act as.
pub(crate) fn system() -> Caller {
    Caller::system(Part::Reconcilers)
}

/// The loop `quests`.
pub(crate) const QUESTS: Owning = Owning {
    name: "quests",
    kind: QUEST.name,
    open: OPEN,
    turns: |engine, id| Box::pin(engine.quest_turns(id)),
    follows_starts: false,
};

impl Engine {
    /// Decides on a quest and executes that, until there is nothing to do.
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
                // Another caller has changed it: it is read again.
                Err(EngineError::Conflict { .. }) => {}
                Err(err) => return Err(err),
            }
        }
        turned.again = sooner(turned.again, Some(self.cortex.clock.now()));
        Ok(turned)
    }

    /// Returns whether anything was done.
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
            let order = Order::Cancel { by: system().name, reason: None };
            did |= self.cortex.order(session, order).await.is_ok();
        }
        match plan.end {
            End::Stays => Ok(did),
            End::Delete => {
                let how = CascadeWish::Background;
                let was = Some(record.changed).filter(|changed| *changed > 0);
                let by = system().within(record.key.colony);
                let done = self.record_delete(&by, &QUEST, &record.key.name, how, was).await;
                done.map(|_| true).map_err(told)
            }
            End::Release => {
                let done = self.record_finalize(&system(), &QUEST, record.id, FINALIZER).await;
                done.map_err(told)
            }
        }
    }

    /// Writes a status, if the record has not changed since it was read.
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

    /// The sessions of a quest: all that have not ended, and the results of the active ones.
    async fn attempts(
        &self,
        record: &Record,
        status: &QuestStatus,
    ) -> Result<BTreeMap<u32, Seen>, EngineError> {
        let known = status.active.iter().map(|attempt| (attempt.number, attempt.session)).collect();
        let rows = self.owned_sessions(record, known).await?;
        Ok(rows.into_iter().map(|(number, row)| (number, seen_of(&row))).collect())
    }
}

pub(crate) fn told(err: crate::RecordError) -> EngineError {
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

/// The first part of a message, on one line.
fn short(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}
