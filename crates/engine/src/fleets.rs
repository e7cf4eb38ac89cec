//! Fleets, lineages and sentinels: the loops that execute the decisions of
//! [`overmind_core::fleet`].
//!
//! The status that names a slot, and the pack of a new revision, are written in one commit. The
//! session of a slot is made after it, from the pack of its revision, and is found by its owner and
//! the label with its number. So the next pass can finish the work after a crash at any point. When
//! the session of a lineage's slot has ended, that end is undone, and no later one.

use std::collections::{BTreeMap, BTreeSet};

use overmind_core::command::CommandKind;
use overmind_core::fleet::{
    FINALIZER, FleetSpec, FleetStatus, Plan, Seen, Slot, Template, decide, lineage, pack_name,
    sentinel, why_ended,
};
use overmind_core::ids::{AgentId, ColonyId, RecordId};
use overmind_core::record::decide::{Draft, RecordWrite, Stamp, put, status as status_write};
use overmind_core::record::kinds::fleet::{FLEET, LINEAGE, OPEN, PACK, SENTINEL};
use overmind_core::record::rows::RecordQuery;
use overmind_core::record::{FieldError, Kind, KindInfo, Name, Owner, Record, RecordKey};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::Commit;
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::Engine;
use crate::cortex::Order;
use crate::error::EngineError;
use crate::owners::{Owning, Turned, is_up, sooner};
use crate::quests::start::{Begin, reason};
use crate::quests::{kept_author, system, told};
use crate::records::CascadeWish;

/// How often one fleet is decided on in one pass while it changes.
const TURNS: u32 = 16;
/// The label of a session with its fleet's revision.
const REVISION: &str = "overmind/revision";

/// The loop `fleets`.
pub(crate) const FLEETS: Owning = Owning {
    name: "fleets",
    kind: FLEET.name,
    open: OPEN,
    turns: |engine, id| Box::pin(engine.fleet_turns(id, &OF_FLEETS)),
    follows_starts: true,
};

/// The loop `lineages`.
pub(crate) const LINEAGES: Owning = Owning {
    name: "lineages",
    kind: LINEAGE.name,
    turns: |engine, id| Box::pin(engine.fleet_turns(id, &OF_LINEAGES)),
    ..FLEETS
};

/// The loop `sentinels`.
pub(crate) const SENTINELS: Owning = Owning {
    name: "sentinels",
    kind: SENTINEL.name,
    turns: |engine, id| Box::pin(engine.fleet_turns(id, &OF_SENTINELS)),
    ..FLEETS
};

type Decide = fn(
    &FleetSpec,
    u64,
    &FleetStatus,
    &BTreeMap<u32, Seen>,
    bool,
    Timestamp,
    &[sentinel::Hive],
) -> Plan;

/// The differences between fleets, lineages and sentinels.
struct Sort {
    info: &'static KindInfo,
    read: fn(&Value) -> Result<FleetSpec, Vec<FieldError>>,
    decide: Decide,
    pack_name: fn(&str, u32) -> String,
    /// Whether an ended session is restored, so that its name stays reserved.
    keeps: bool,
}

const OF_FLEETS: Sort = Sort {
    info: &FLEET,
    read: FleetSpec::read,
    decide: |spec, generation, status, seen, deleting, now, _| {
        decide(spec, generation, status, seen, deleting, now)
    },
    pack_name,
    keeps: false,
};
const OF_LINEAGES: Sort = Sort {
    info: &LINEAGE,
    read: FleetSpec::read_lineage,
    decide: |spec, generation, status, seen, deleting, now, _| {
        lineage::decide(spec, generation, status, seen, deleting, now)
    },
    pack_name: lineage::pack_name,
    keeps: true,
};
const OF_SENTINELS: Sort = Sort {
    info: &SENTINEL,
    read: FleetSpec::read_sentinel,
    decide: sentinel::decide,
    pack_name: sentinel::pack_name,
    keeps: false,
};

impl Sort {
    fn of(record: &Record) -> &'static Self {
        match record.key.kind.as_str() {
            kind if kind == LINEAGE.name => &OF_LINEAGES,
            kind if kind == SENTINEL.name => &OF_SENTINELS,
            _ => &OF_FLEETS,
        }
    }
}

fn invalid(what: &str, why: impl ToString) -> EngineError {
    EngineError::invalid(what, why.to_string())
}

impl Engine {
    /// Decides on a fleet and executes that, until there is nothing to do.
    async fn fleet_turns(&self, id: RecordId, of: &Sort) -> Result<Turned, EngineError> {
        let mut turned = Turned::default();
        for _ in 0..TURNS {
            let Some(record) = self.records.record_by_id(id).await? else { return Ok(turned) };
            let mut spec = (of.read)(&record.spec).map_err(|wrong| {
                let first = wrong.first().map(ToString::to_string).unwrap_or_default();
                EngineError::invalid("spec", first)
            })?;
            let status = FleetStatus::read(&record.status);
            let seen = self.fleet_seen(&record, &status).await?;
            let now = self.cortex.clock.now();
            let deleting = record.deleting.is_some();
            let (at, hives) = (record.generation, self.hives());
            let (known, size_again) =
                self.fleet_size(&mut spec, &status, record.key.colony, now).await?;
            let mut plan = (of.decide)(&spec, at, &known, &seen, deleting, now, &hives);
            plan.again = sooner(plan.again, size_again);
            turned.again = plan.again;
            let runs = |slot: &Slot| slot.ended.is_none() && slot.session.is_some();
            turned.still = plan.again.is_none()
                && plan.start.is_empty()
                && plan.cancel.is_empty()
                && plan.status.slots.iter().all(runs);
            let open = plan.status.slots.iter().filter(|slot| slot.ended.is_none());
            turned.running = open.filter_map(|slot| slot.session).collect();
            turned.running.extend(plan.cancel.iter().copied());
            match self.fleet_do(record, &spec, status, plan).await {
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

    /// Computes the number of sessions if the spec follows a schedule or a queue. Returns the
    /// status with it, and when to compute it again.
    async fn fleet_size(
        &self,
        spec: &mut FleetSpec,
        status: &FleetStatus,
        colony: ColonyId,
        now: Timestamp,
    ) -> Result<(FleetStatus, Option<Timestamp>), EngineError> {
        let mut known = status.clone();
        let Some(scale) = &spec.scale else {
            known.scaled = None;
            return Ok((known, None));
        };
        let waiting = match &scale.queue {
            Some(queue) => self.waiting_for(colony, &queue.agent).await?,
            None => 0,
        };
        let (scaled, again) = scale.decide(spec.replicas, waiting, status.scaled.as_ref(), now);
        spec.replicas = scaled.replicas;
        known.scaled = Some(scaled);
        Ok((known, again))
    }

    /// The number of messages that wait in an agent's mailbox; 0 for a missing agent.
    async fn waiting_for(&self, colony: ColonyId, agent: &str) -> Result<u32, EngineError> {
        let by = system().within(colony);
        let id = match self.agent_wanted(&by, agent).await {
            Ok(agent) => agent.id,
            Err(EngineError::NotFound { .. }) => return Ok(0),
            Err(err) => return Err(err),
        };
        // The list is ordered by agent, so this reads the first one after its predecessor.
        let before = id.as_u128().checked_sub(1).map(AgentId::from_u128);
        let found = self.cortex.store.mailbox_list(before, 1).await?;
        let own = found.into_iter().find(|(of, _)| *of == id);
        Ok(own.map_or(0, |(_, counts)| counts.waiting))
    }

    /// The existing hives: this server.
    #[expect(clippy::unused_self, reason = "which hives there are is the engine's to know")]
    fn hives(&self) -> Vec<sentinel::Hive> {
        vec![sentinel::Hive::new("local")]
    }

    /// Returns whether anything was done.
    async fn fleet_do(
        &self,
        mut record: Record,
        spec: &FleetSpec,
        status: FleetStatus,
        plan: Plan,
    ) -> Result<bool, EngineError> {
        let mut did = false;
        if plan.status != status || plan.pack.is_some() {
            record = self.fleet_status(&record, &plan.status, plan.pack).await?;
            did = true;
        }
        if plan.pack.is_some() {
            self.fleet_prune(&record, spec, &plan.status).await?;
        }
        let mut templates: BTreeMap<u32, Template> = BTreeMap::new();
        for slot in &plan.start {
            let made = match templates.get(&slot.revision) {
                Some(template) => self.fleet_start(&record, template, &plan.status, slot).await,
                None => match self.fleet_template(&record, slot.revision).await {
                    Ok(template) => {
                        let template = templates.entry(slot.revision).or_insert(template);
                        self.fleet_start(&record, template, &plan.status, slot).await
                    }
                    Err(err) => Err(err),
                },
            };
            match made {
                Ok(()) => did = true,
                Err(refused) => {
                    let mut status = plan.status.clone();
                    let (word, message) = reason(&refused);
                    status.refuse(word, message, self.cortex.clock.now());
                    self.fleet_status(&record, &status, None).await?;
                    return Ok(true);
                }
            }
        }
        for session in plan.cancel {
            let owner = record.key.to_string();
            let reason = Some(why_ended(&plan.status, session, &owner, record.deleting.is_some()));
            let order = Order::Cancel { by: system().name, reason };
            did |= self.cortex.order(session, order).await.is_ok();
        }
        if plan.release {
            let info = Sort::of(&record).info;
            let done = self.record_finalize(&system(), info, record.id, FINALIZER).await;
            return done.map_err(told);
        }
        Ok(did)
    }

    async fn fleet_start(
        &self,
        record: &Record,
        template: &Template,
        status: &FleetStatus,
        slot: &Slot,
    ) -> Result<(), EngineError> {
        let keeps = Sort::of(record).keeps;
        if keeps && let Some(row) = self.attempt_made(record, slot.number).await? {
            return self.bring_back(status, slot, &row).await;
        }
        let mut labels = template.labels.clone();
        labels.insert(REVISION.to_owned(), slot.revision.to_string());
        let short: String = record.key.name.as_str().chars().take(50).collect();
        let begin = Begin {
            spec: &template.run,
            number: slot.number,
            name: match &slot.hive {
                Some(hive) => format!("{}-{hive}", short.replace('.', "-")),
                None => format!("{}-{}", short.replace('.', "-"), slot.ordinal),
            },
            labels,
            // It stays, and takes further messages.
            kind: CommandKind::Session,
            // An agent is idle after its answer; a program takes more if it supports that.
            conversation: template.run.command.is_none().then_some(true),
            named_so: keeps,
        };
        self.owned_start(record, status.author.as_ref(), begin).await
    }

    /// Restores an ended session of a lineage, with the rights of the spec's last author, who must
    /// still exist.
    async fn bring_back(
        &self,
        status: &FleetStatus,
        slot: &Slot,
        row: &SessionRow,
    ) -> Result<(), EngineError> {
        let Some(ended) = slot.ended.filter(|ended| *ended == row.epoch) else { return Ok(()) };
        if !row.status.is_terminal() {
            return Ok(());
        }
        self.author(status.author.as_ref(), row.colony).await?;
        if self.budgets().halted().is_some() {
            let message = "everything is halted: `overmind resume` lets it go on".to_owned();
            return Err(EngineError::Unavailable { message });
        }
        self.may_go_on(row).await?;
        self.still_has_place(row).await?;
        let by = system().name;
        self.cortex.order(row.id, Order::Restore { ended, by }).await.map(drop)
    }

    /// The sessions' template in a revision.
    async fn fleet_template(&self, fleet: &Record, revision: u32) -> Result<Template, EngineError> {
        let key = self.pack_key(fleet, revision)?;
        let pack = self.records.record_fetch(key.clone()).await?;
        let pack = pack.filter(|pack| pack.owner == Some(Owner::Record(fleet.id)));
        let pack = pack.ok_or_else(|| EngineError::NotFound {
            message: format!("{key} was deleted or has another owner: change the template"),
        })?;
        let template = pack.spec.get("template").cloned().unwrap_or_default();
        Template::read("spec.template", &template).map_err(|wrong| {
            invalid("spec", wrong.first().map(ToString::to_string).unwrap_or_default())
        })
    }

    fn pack_key(&self, fleet: &Record, revision: u32) -> Result<RecordKey, EngineError> {
        Ok(RecordKey {
            kind: Kind::parse(PACK.name).map_err(|err| invalid("kind", err))?,
            colony: fleet.key.colony,
            name: Name::parse(&(Sort::of(fleet).pack_name)(fleet.key.name.as_str(), revision))
                .map_err(|err| invalid("metadata.name", err))?,
        })
    }

    /// Writes a status, with the pack of a new revision, if the record has not changed since it was
    /// read.
    async fn fleet_status(
        &self,
        record: &Record,
        status: &FleetStatus,
        pack: Option<u32>,
    ) -> Result<Record, EngineError> {
        let value = serde_json::to_value(status).map_err(|err| invalid("status", err))?;
        let by = system().name;
        let stamp = Stamp { now: self.cortex.clock.now(), by: &by };
        let write = status_write(Sort::of(record).info, record, value.clone(), None, stamp)
            .map_err(|err| invalid("status", err))?;
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        let changed = write.is_some();
        if let Some(write) = write {
            write.join(&mut commit);
        }
        if let Some(revision) = pack
            && let Some(write) = self.pack_write(record, revision, stamp).await?
        {
            write.join(&mut commit);
        }
        if commit.changes.is_empty() {
            return Ok(record.clone());
        }
        let global = self.cortex.store.commit(commit).await?.global;
        let version = record.version + u64::from(changed);
        Ok(Record { version, changed: global, status: value, ..record.clone() })
    }

    /// The write of a revision's pack. `None` if it exists already with the same content.
    async fn pack_write(
        &self,
        fleet: &Record,
        revision: u32,
        stamp: Stamp<'_>,
    ) -> Result<Option<RecordWrite>, EngineError> {
        let key = self.pack_key(fleet, revision)?;
        let found = self.records.record_fetch(key.clone()).await?;
        if found.as_ref().is_some_and(|found| found.owner != Some(Owner::Record(fleet.id))) {
            let message =
                format!("{key} is another's: delete it, or give {} another name", fleet.key);
            return Err(EngineError::conflict(message));
        }
        let draft = Draft {
            key,
            labels: fleet.labels.clone(),
            annotations: BTreeMap::new(),
            spec: json!({
                "fleet": fleet.key.name.as_str(), "revision": revision,
                "template": fleet.spec.get("template").cloned().unwrap_or(Value::Null),
            }),
            owner: Some(Owner::Record(fleet.id)),
            finalizers: None,
            expires_at: None,
        };
        let id = RecordId::mint(&*self.cortex.ids);
        let made = put(&PACK, found.as_ref(), draft, id, stamp);
        let made = made.map_err(|err| invalid("spec", err))?;
        let status = FleetStatus::read(&fleet.status);
        Ok(kept_author(made, status.author.as_ref()).write)
    }

    /// The revisions of the template of a fleet, a lineage or a sentinel; none for other records.
    pub(crate) async fn packs_of(&self, record: &Record) -> Result<Vec<Record>, EngineError> {
        if ![FLEET.name, LINEAGE.name, SENTINEL.name].contains(&record.key.kind.as_str()) {
            return Ok(Vec::new());
        }
        let query = RecordQuery {
            kind: Kind::parse(PACK.name).ok(),
            owner: Some(Owner::Record(record.id)),
            limit: 1000,
            ..RecordQuery::default()
        };
        Ok(self.records.record_list(query).await?.records)
    }

    /// Deletes packs beyond the length of the history, except those of existing sessions.
    async fn fleet_prune(
        &self,
        fleet: &Record,
        spec: &FleetSpec,
        status: &FleetStatus,
    ) -> Result<(), EngineError> {
        let packs = self.packs_of(fleet).await?;
        let used: BTreeSet<u32> = status.slots.iter().map(|slot| slot.revision).collect();
        let revision = |pack: &Record| {
            pack.spec.get("revision").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok())
        };
        let oldest = status.revision.saturating_sub(spec.history);
        for pack in packs {
            let keeps = revision(&pack).is_some_and(|n| n >= oldest || used.contains(&n));
            if !keeps {
                let how = CascadeWish::Background;
                let by = system().within(pack.key.colony);
                let done = self.record_delete(&by, &PACK, &pack.key.name, how, None).await;
                if let Err(err) = done {
                    tracing::debug!(error = %err, pack = %pack.key, "a pack was not deleted");
                }
            }
        }
        Ok(())
    }

    /// The sessions of a fleet by number: all that have not ended, and the results of those in
    /// slots.
    async fn fleet_seen(
        &self,
        record: &Record,
        status: &FleetStatus,
    ) -> Result<BTreeMap<u32, Seen>, EngineError> {
        let known = status.slots.iter().map(|slot| (slot.number, slot.session)).collect();
        let rows = self.owned_sessions(record, known).await?;
        Ok(rows.into_iter().map(|(number, row)| (number, seen_of(&row))).collect())
    }
}

fn seen_of(row: &SessionRow) -> Seen {
    let ended = |by_hand, why: String| Seen::Ended { epoch: row.epoch, by_hand, why };
    match row.status {
        SessionStatus::Queued | SessionStatus::Running if !is_up(row) => Seen::Starting(row.id),
        SessionStatus::Queued
        | SessionStatus::Running
        | SessionStatus::AwaitingInput
        | SessionStatus::AwaitingApproval
        | SessionStatus::Idle => Seen::Running(row.id),
        SessionStatus::Canceled => ended(true, format!("run {} was canceled", row.name)),
        SessionStatus::Succeeded => ended(false, format!("run {} has ended", row.name)),
        SessionStatus::Failed => {
            let message = row.error.as_ref().and_then(|error| error.get("message"));
            let message = message.and_then(Value::as_str).unwrap_or("it failed");
            let message: String =
                message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
            ended(false, format!("run {}: {message}", row.name))
        }
    }
}
