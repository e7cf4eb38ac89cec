//! Colonies: which exist, which one a request is for, and what a new session must comply with.
//!
//! A colony is a record of the kind `Colony`; its id has the digits of the record's id, so that a
//! later colony of the same name is another one. The colony `default` always exists and needs no
//! record. The table in memory is read at the start, and again after each change of such a record.
//! A new session's commit is bound to the version of the record that the table contained.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use overmind_core::conflict::ConflictKind;
use overmind_core::ids::ColonyId;
use overmind_core::nearest::nearest;
use overmind_core::record::kinds::colony::{COLONY, ColonySpec, id_of};
use overmind_core::record::rows::{RecordQuery, RecordRows};
use overmind_core::record::{Kind, Record, RecordKey};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{Commit, Guard, Page, SessionFilter, StoreError};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::Cortex;
use crate::error::EngineError;
use crate::sessions::open_statuses;

/// Records and sessions that are read at once.
const PAGE: u32 = 1000;

/// A declared colony.
#[derive(Clone, Debug)]
pub(crate) struct Colony {
    key: RecordKey,
    /// The version of its record.
    version: u64,
    spec: ColonySpec,
    is_deleting: bool,
}

/// All declared colonies.
#[derive(Debug, Default)]
pub(crate) struct Colonies {
    all: RwLock<BTreeMap<ColonyId, Colony>>,
    /// Held while the table is read again, so that an older reading never replaces a newer one.
    turn: tokio::sync::Mutex<()>,
}

/// The colony that a request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ColonyWish {
    /// The caller's own, or `default`.
    #[default]
    Own,
    Named(String),
    /// Lists contain every colony that the caller may reach.
    All,
}

impl Colonies {
    fn read<T>(&self, look: impl FnOnce(&BTreeMap<ColonyId, Colony>) -> T) -> T {
        look(&self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The name of a colony; its id as text if it was deleted.
    pub(crate) fn name(&self, id: ColonyId) -> String {
        if id == ColonyId::DEFAULT {
            return ColonyId::DEFAULT_NAME.to_owned();
        }
        let name = self.read(|all| all.get(&id).map(|one| one.key.name.as_str().to_owned()));
        name.unwrap_or_else(|| id.to_string())
    }

    /// The colony of this name.
    pub(crate) fn named(&self, name: &str) -> Option<ColonyId> {
        if name == ColonyId::DEFAULT_NAME {
            return Some(ColonyId::DEFAULT);
        }
        self.read(|all| {
            all.iter().find(|(_, one)| one.key.name.as_str() == name).map(|(id, _)| *id)
        })
    }

    pub(crate) fn exists(&self, id: ColonyId) -> bool {
        id == ColonyId::DEFAULT || self.read(|all| all.contains_key(&id))
    }

    fn of(&self, id: ColonyId) -> Option<Colony> {
        self.read(|all| all.get(&id).cloned())
    }

    fn nearest(&self, name: &str) -> Option<String> {
        self.read(|all| {
            let names = all.values().map(|one| one.key.name.as_str());
            nearest(name, names.chain([ColonyId::DEFAULT_NAME])).map(str::to_owned)
        })
    }

    /// Replaces the table. Returns the ids before and after that.
    fn replace(&self, new: BTreeMap<ColonyId, Colony>) -> Vec<ColonyId> {
        let mut all = self.all.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut ids: Vec<ColonyId> = all.keys().chain(new.keys()).copied().collect();
        *all = new;
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl Cortex {
    /// Binds the commit that makes a session, or lets an ended one continue, to its colony: the
    /// colony exists, its quota is not reached, and the session's sandbox is strong enough.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if the colony was deleted, [`EngineError::Conflict`] if it is
    /// being deleted, [`EngineError::Forbidden`] for a sandbox that is too weak.
    pub(crate) fn admit(&self, row: &SessionRow, commit: &mut Commit) -> Result<(), EngineError> {
        let Some(colony) = self.colonies.of(row.colony) else {
            return match row.colony {
                ColonyId::DEFAULT => Ok(()),
                colony => Err(EngineError::NotFound {
                    message: format!("the colony {colony} was deleted"),
                }),
            };
        };
        let name = &colony.key.name;
        if colony.is_deleting {
            return Err(EngineError::conflict(format!("the colony `{name}` is being deleted")));
        }
        if let Some(least) = colony.spec.sandbox.filter(|least| row.sandbox < *least) {
            let message = format!(
                "the colony `{name}` requires the sandbox `{}` or a stronger one, and this run has \
                 `{}`: change the agent's sandbox, or give the run another (`--sandbox {}`)",
                least.as_str(),
                row.sandbox.as_str(),
                least.as_str()
            );
            return Err(EngineError::Forbidden { message });
        }
        let key = colony.key.clone();
        commit.guards.push(Guard::RecordVersion { key, version: Some(colony.version) });
        commit.guards.extend(self.room_in(row.colony));
        Ok(())
    }

    /// The quota of a colony as a guard, if it has one.
    pub(crate) fn room_in(&self, colony: ColonyId) -> Option<Guard> {
        let most = self.colonies.of(colony)?.spec.runs?;
        Some(Guard::ColonyHasRoom { colony, most })
    }

    /// The refusal of a session that a quota does not allow, in words that say what to do.
    pub(crate) fn explained(&self, colony: ColonyId, err: EngineError) -> EngineError {
        let EngineError::Conflict { what: Some(what), .. } = &err else { return err };
        if what.kind != ConflictKind::Quota {
            return err;
        }
        let most = self.colonies.of(colony).and_then(|one| one.spec.runs).unwrap_or_default();
        let name = self.colonies.name(colony);
        let message = format!(
            "the colony `{name}` has {most} runs that have not ended, and its quota is {most}: wait \
             until one ends, end one (`overmind -n {name} ps`), or have an admin raise \
             `spec.quota.runs` (`overmind edit colony {name}`)"
        );
        EngineError::conflict_of(what.clone(), message)
    }
}

impl Cortex {
    /// Reads the table of colonies again, and puts their quotas and budgets in force.
    pub(crate) async fn colonies_load(self: &Arc<Self>, by: &str) -> Result<(), EngineError> {
        let _turn = self.colonies.turn.lock().await;
        let mut new = BTreeMap::new();
        for record in colony_records(&*self.records).await? {
            // A spec that this program cannot read limits nothing and still names a colony.
            let spec = ColonySpec::read(&record.spec).unwrap_or_default();
            let is_deleting = record.deleting.is_some();
            let colony = Colony { key: record.key, version: record.version, spec, is_deleting };
            new.insert(id_of(record.id), colony);
        }
        let ids = self.colonies.replace(new);
        for id in ids {
            let spec = self.colonies.of(id).map(|one| one.spec).unwrap_or_default();
            self.set_quota(id, spec.running);
            self.budgets.follow_colony(id, spec.budget.as_ref(), by).await?;
        }
        Ok(())
    }
}

impl Engine {
    /// The caller in the colony that the request names.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such colony, or the caller does not reach it.
    pub fn in_colony(&self, by: Caller, wish: &ColonyWish) -> Result<Caller, EngineError> {
        let name = match wish {
            ColonyWish::Own => return Ok(by),
            ColonyWish::All => return Ok(Caller { all: true, ..by }),
            ColonyWish::Named(name) => name,
        };
        let found = self.cortex.colonies.named(name).filter(|id| by.reaches(*id));
        match found {
            Some(colony) => Ok(Caller { colony, ..by }),
            None => Err(self.no_colony(&by, name)),
        }
    }

    fn no_colony(&self, by: &Caller, name: &str) -> EngineError {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        let message = match by.wall {
            // Names of other colonies are not shown, and whether they exist neither.
            Some(wall) => {
                let own = self.colony_name(wall);
                format!(
                    "there is no colony `{shown}` here: this token belongs to the colony `{own}`"
                )
            }
            None => {
                let meant = self.cortex.colonies.nearest(name);
                let meant = meant.map(|meant| format!(" (did you mean `{meant}`?)"));
                format!(
                    "there is no colony `{shown}`{}; create it: overmind create colony {shown}",
                    meant.unwrap_or_default()
                )
            }
        };
        EngineError::NotFound { message }
    }

    /// The name of a colony; its id as text if it was deleted.
    pub fn colony_name(&self, id: ColonyId) -> String {
        self.cortex.colonies.name(id)
    }

    /// The colony of this name, if the caller reaches it.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub(crate) fn colony_named(&self, by: &Caller, name: &str) -> Result<ColonyId, EngineError> {
        let found = self.cortex.colonies.named(name).filter(|id| by.reaches(*id));
        found.ok_or_else(|| self.no_colony(by, name))
    }

    /// Refuses a run of a colony that the caller does not reach.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn session_within(
        &self,
        by: &Caller,
        id: overmind_core::ids::SessionId,
    ) -> Result<(), EngineError> {
        if by.wall.is_none() || matches!(by.rights, Rights::Session { .. }) {
            // The tree of its run limits the token of a run.
            return Ok(());
        }
        let row = self.find_session(id).await?;
        if by.reaches(row.colony) { Ok(()) } else { Err(EngineError::not_found("Run")) }
    }

    /// Writes what is in a colony into the status of its record, which no commit contains.
    pub(crate) async fn colony_observed(&self, record: &mut Record) -> Result<(), EngineError> {
        let id = id_of(record.id);
        let (mut runs, mut running, mut after) = (0_u64, 0_u64, None);
        loop {
            let filter = SessionFilter {
                colony: Some(id),
                statuses: open_statuses(),
                ..SessionFilter::default()
            };
            let rows = self.cortex.store.session_list(filter, Page { limit: PAGE, after }).await?;
            runs += rows.len() as u64;
            running +=
                rows.iter().filter(|row| row.status == SessionStatus::Running).count() as u64;
            after = rows.last().map(|row| row.id).filter(|_| rows.len() >= PAGE as usize);
            if after.is_none() {
                break;
            }
        }
        let spent = self.budgets().spent_in(id);
        let Some(status) = record.status.as_object_mut() else { return Ok(()) };
        status.insert("runs".to_owned(), runs.into());
        status.insert("running".to_owned(), running.into());
        if let Some(spent) = spent {
            status.insert("spentUsd".to_owned(), (spent as f64 / 1e6).into());
        }
        Ok(())
    }

    /// Refuses requests that no colony but `default` can answer.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn only_default(&self, by: &Caller, what: &str) -> Result<(), EngineError> {
        if by.colony == ColonyId::DEFAULT {
            return Ok(());
        }
        let message = format!(
            "{what} exists in the colony `default` alone, and this request is for the colony `{}`",
            self.colony_name(by.colony)
        );
        Err(EngineError::Forbidden { message })
    }
}

/// All records of colonies.
async fn colony_records(records: &dyn RecordRows) -> Result<Vec<Record>, StoreError> {
    let mut all: Vec<Record> = Vec::new();
    loop {
        let query = RecordQuery {
            colony: Some(ColonyId::DEFAULT),
            kind: Kind::parse(COLONY.name).ok(),
            after: all.last().map(|record| record.key.clone()),
            limit: PAGE,
            ..RecordQuery::default()
        };
        let page = records.record_list(query).await?;
        let more = page.more && !page.records.is_empty();
        all.extend(page.records);
        if !more {
            return Ok(all);
        }
    }
}

/// The colony to which a new key is bound, if it may be.
pub(crate) fn bindable(role: Role, colony: ColonyId) -> Result<(), EngineError> {
    if colony == ColonyId::DEFAULT {
        let message = "must not be `default`: a key without a colony works there, and a key that is \
                       bound to a colony needs one of its own";
        return Err(EngineError::invalid("colony", format!("colony {message}")));
    }
    match role {
        Role::Viewer | Role::Operator | Role::Runs | Role::Model => Ok(()),
        Role::Admin => Err(EngineError::invalid(
            "role",
            "role must be operator or less for a key with a colony: an admin changes the whole \
             server, and no colony limits that",
        )),
        Role::Mcp => Err(EngineError::invalid(
            "role",
            "role must not be mcp for a key with a colony: tools of the server belong to no colony",
        )),
    }
}
