//! Applies requested records: all of one apply in one commit, or none.

use std::collections::{BTreeMap, HashMap, HashSet};

use overmind_core::ids::{ColonyId, RecordId};
use overmind_core::record::decide::{
    self, Deletion, Draft, Outcome, Put, RecordWrite, Refusal, Stamp,
};
use overmind_core::record::kinds::colony::{COLONY, default_record, is_of_swarm};
use overmind_core::record::rows::{RecordChange, RecordQuery};
use overmind_core::record::{
    FieldError, KINDS, KindInfo, Name, Owner, OwnerWish, Record, RecordKey, RecordVerb, Selector,
};
use overmind_core::store::{Commit, StoreError};
use serde_json::Value;

use super::delete::PAGE;
use super::{RecordError, TRIES, key};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::quests;

/// Maximum number of records of one apply.
pub const MAX_APPLIED: usize = 5_000;

/// The requested state of a record.
#[derive(Clone, Debug)]
pub struct RecordWish {
    pub info: &'static KindInfo,
    pub name: Name,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// A JSON object.
    pub spec: Value,
    /// `None` leaves them unchanged, and likewise for the owner.
    pub finalizers: Option<Vec<String>>,
    pub owner: Option<OwnerWish>,
    /// The resource version at which it was read; 0 means that it must not exist, `None` any state.
    pub was: Option<u64>,
}

/// The result for one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub outcome: Outcome,
    pub record: Record,
}

/// The results for all requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllApplied {
    /// One result for each request, in order.
    pub applied: Vec<Applied>,
    /// The deleted records that no request named.
    pub pruned: Vec<Record>,
}

impl Engine {
    /// Makes the records equal to `wishes`, all in one commit. With `dry` nothing is written, and
    /// the result is the same, without resource versions of new states.
    ///
    /// # Errors
    ///
    /// [`RecordError::Invalid`] with all errors of all requests, [`RecordError::Changed`],
    /// [`EngineError::Conflict`] for a record that is being deleted, [`EngineError::Forbidden`].
    /// Nothing is written then.
    pub async fn record_apply(
        &self,
        by: &Caller,
        wishes: Vec<RecordWish>,
        dry: bool,
    ) -> Result<Vec<Applied>, RecordError> {
        Ok(self.record_apply_all(by, wishes, None, dry).await?.applied)
    }

    /// Works as [`Self::record_apply`]. With `prune`, the same commit deletes records with those
    /// labels and without an owner that no request names; records that they own follow, as with
    /// each deletion.
    ///
    /// # Errors
    ///
    /// The same as for [`Self::record_apply`]; [`EngineError::Invalid`] if more than
    /// [`MAX_APPLIED`] would be pruned.
    pub async fn record_apply_all(
        &self,
        by: &Caller,
        mut wishes: Vec<RecordWish>,
        prune: Option<&Selector>,
        dry: bool,
    ) -> Result<AllApplied, RecordError> {
        if wishes.len() > MAX_APPLIED {
            let problem = format!("{} records at once; {MAX_APPLIED} is the most", wishes.len());
            return Err(EngineError::invalid("documents", problem).into());
        }
        let mut wrong = Vec::new();
        for (at, wish) in wishes.iter_mut().enumerate() {
            by.require((wish.info.role)(RecordVerb::Put))?;
            wrong.extend(self.record_mask(wish).into_iter().map(|error| (at, error)));
        }
        wrong.extend(doubled(&wishes));
        for _ in 0..TRIES {
            let pruned = match prune {
                Some(selector) => self.unnamed(by, &wishes, selector).await?,
                None => Vec::new(),
            };
            let puts = self.decided(by, &wishes, &pruned, wrong.clone()).await?;
            if dry {
                let applied = |put: Put| Applied { outcome: put.outcome, record: put.record };
                let applied = puts.into_iter().map(applied).collect();
                return Ok(AllApplied { applied, pruned });
            }
            match self.committed(&by.name, puts, &pruned).await {
                Ok(applied) => {
                    if applied.iter().any(|one| one.record.key.kind.as_str() == COLONY.name) {
                        self.cortex.colonies_load(&by.name).await?;
                    }
                    return Ok(AllApplied { applied, pruned });
                }
                // Another writer was faster: its records are read, and decided on.
                Err(StoreError::Conflict { .. }) => {}
                Err(err) => return Err(err.into()),
            }
        }
        let names = wishes.first().map(|wish| format!("{}/{}", wish.info.name, wish.name));
        Err(RecordError::Contended(names.unwrap_or_default()))
    }

    /// The records with the labels and without an owner that no request names, except those already
    /// being deleted.
    async fn unnamed(
        &self,
        by: &Caller,
        wishes: &[RecordWish],
        selector: &Selector,
    ) -> Result<Vec<Record>, RecordError> {
        let named: HashSet<(&str, &Name)> =
            wishes.iter().map(|wish| (wish.info.name, &wish.name)).collect();
        let mut found = Vec::new();
        // A colony is deleted by its name alone.
        let pruned = |info: &&KindInfo| info.changed_by.is_none() && !is_of_swarm(info);
        for info in KINDS.iter().filter(pruned) {
            let mut query = RecordQuery {
                colony: Some(by.colony),
                kind: Some(super::kind(info)?),
                selector: selector.clone(),
                limit: PAGE,
                ..RecordQuery::default()
            };
            let before = found.len();
            loop {
                let page = self.records.record_list(query.clone()).await?;
                query.after = page.records.last().map(|record| record.key.clone());
                found.extend(page.records.into_iter().filter(|record| {
                    record.owner.is_none()
                        && record.deleting.is_none()
                        && !named.contains(&(info.name, &record.key.name))
                }));
                if found.len() > MAX_APPLIED {
                    let problem = format!("matches more than {MAX_APPLIED} resources to delete");
                    return Err(EngineError::invalid("prune", problem).into());
                }
                if !page.more || query.after.is_none() {
                    break;
                }
            }
            if found.len() > before {
                by.require((info.role)(RecordVerb::Delete))?;
            }
        }
        Ok(found)
    }

    /// `wrong` contains the errors that are known already.
    async fn decided(
        &self,
        by: &Caller,
        wishes: &[RecordWish],
        pruned: &[Record],
        mut wrong: Vec<(usize, FieldError)>,
    ) -> Result<Vec<Put>, RecordError> {
        let stamp = Stamp { now: self.cortex.clock.now(), by: &by.name };
        let mut puts = Vec::with_capacity(wishes.len());
        let mut refused = None;
        let (mut there, mut ids) = (Vec::with_capacity(wishes.len()), HashMap::new());
        for wish in wishes {
            let found = self.records.record_fetch(key(by, wish.info, wish.name.clone())?).await?;
            let is_default = is_of_swarm(wish.info) && wish.name.as_str() == ColonyId::DEFAULT_NAME;
            let new = || match is_default {
                true => default_record(),
                false => RecordId::mint(&*self.cortex.ids),
            };
            let id = found.as_ref().map_or_else(new, |record| record.id);
            ids.insert((wish.info.name, &wish.name), id);
            there.push((id, found));
        }
        for (at, (wish, (id, found))) in wishes.iter().zip(there).enumerate() {
            if let Some(by) = wish.info.changed_by {
                let problem = format!("{} is only shown here", wish.info.name);
                wrong.push((
                    at,
                    FieldError::new("kind", problem).hint(format!("change it with {by}")),
                ));
                continue;
            }
            let key = key(by, wish.info, wish.name.clone())?;
            let version = found.as_ref().map_or(0, |record| record.changed);
            if let Some(wanted) = wish.was.filter(|was| *was != version) {
                refused.get_or_insert(RecordError::Changed { key, wanted, found: version });
                continue;
            }
            if let Some(error) = foreign_finalizer(by, wish, found.as_ref()) {
                wrong.push((at, error));
                continue;
            }
            let owner = match self.owner_wished(by, wish, id, &ids).await? {
                Ok(owner) => {
                    if owner != found.as_ref().and_then(|found| found.owner) {
                        self.may_own(by, wish.info, owner).await?;
                    }
                    owner
                }
                Err(error) => {
                    wrong.push((at, error));
                    None
                }
            };
            match put(wish, owner, found.as_ref(), key, id, stamp) {
                Ok(put) => {
                    let owner = match put.record.owner {
                        Some(Owner::Record(id)) if pruned.iter().any(|gone| gone.id == id) => {
                            let problem = "names what this apply prunes";
                            wrong.push((
                                at,
                                FieldError::new("metadata.ownerReferences[0]", problem),
                            ));
                            continue;
                        }
                        // An owner that is created in the same apply has the same author.
                        Some(Owner::Record(id)) => self.records.record_by_id(id).await?,
                        Some(Owner::Session(_)) | None => None,
                    };
                    let earlier = match &found {
                        Some(found) => self.packs_of(found).await?,
                        None => Vec::new(),
                    };
                    puts.push(quests::authored(by, found.as_ref(), owner.as_ref(), &earlier, put));
                }
                Err(Refusal::Invalid { wrong: more, .. }) => {
                    wrong.extend(more.into_iter().map(|error| (at, error)));
                }
                Err(refusal @ Refusal::Deleting { .. }) => {
                    refused.get_or_insert(EngineError::conflict(refusal.to_string()).into());
                }
            }
        }
        match refused {
            _ if !wrong.is_empty() => Err(RecordError::Invalid(wrong)),
            Some(refused) => Err(refused),
            None => Ok(puts),
        }
    }

    /// Refuses an owner that the caller may not change: owned records are deleted with it, and can
    /// block its deletion. For the same reason, callers can delete an owner only if they may delete
    /// the records that it owns.
    async fn may_own(
        &self,
        by: &Caller,
        owned: &KindInfo,
        owner: Option<Owner>,
    ) -> Result<(), RecordError> {
        let (Some(Owner::Record(id)), Rights::Role(role)) = (owner, &by.rights) else {
            return Ok(());
        };
        // One of the same apply does not exist yet: whether it may be written was checked.
        let Some(record) = self.records.record_by_id(id).await? else { return Ok(()) };
        let info = KINDS.iter().find(|info| info.name == record.key.kind.as_str());
        let [least, most] =
            [owned, info.unwrap_or(owned)].map(|info| (info.role)(RecordVerb::Delete));
        if most < least {
            let message = format!(
                "must not name {}, which a caller with the role {} may delete: a {} is deleted by {} alone",
                record.key,
                most.as_str(),
                owned.name,
                least.as_str()
            );
            return Err(EngineError::invalid("metadata.ownerReferences[0]", message).into());
        }
        match info.map(|info| (info.role)(RecordVerb::Put)) {
            Some(least) if *role < least => {
                let message = format!(
                    "metadata.ownerReferences[0] names {}, which you may not change: leave it out, or \
                     have its {} apply this",
                    record.key,
                    least.as_str()
                );
                Err(EngineError::Forbidden { message }.into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The requested owner, or why it cannot be one. `ids` are those of all requests.
    async fn owner_wished(
        &self,
        by: &Caller,
        wish: &RecordWish,
        own: RecordId,
        ids: &HashMap<(&str, &Name), RecordId>,
    ) -> Result<Result<Option<Owner>, FieldError>, RecordError> {
        let refused = |field: &str, problem: &str| {
            let at = format!("metadata.ownerReferences[0].{field}");
            Ok(Err(FieldError::new(at, problem)))
        };
        match &wish.owner {
            None => Ok(Ok(None)),
            Some(_) if is_of_swarm(wish.info) => {
                refused("uid", "must be left out: a colony is deleted by itself alone")
            }
            Some(OwnerWish::Is(Owner::Record(id))) if *id == own => {
                refused("uid", "must not be the record itself")
            }
            Some(OwnerWish::Is(Owner::Record(id))) => match self.records.record_by_id(*id).await? {
                Some(owner) if owner.key.colony == by.colony && !is_colony(&owner) => {
                    Ok(Ok(Some(Owner::Record(*id))))
                }
                Some(_) | None => refused("uid", "names no record that exists"),
            },
            Some(OwnerWish::Is(Owner::Session(id))) => {
                match self.cortex.store.session_fetch(*id).await? {
                    Some(row) if row.colony == by.colony => Ok(Ok(Some(Owner::Session(*id)))),
                    Some(_) | None => refused("uid", "names no run that exists"),
                }
            }
            Some(OwnerWish::Named(kind, name)) => {
                let found = match ids.get(&(kind.as_str(), name)) {
                    Some(id) => Some(*id),
                    None => {
                        let (kind, name) = (kind.clone(), name.clone());
                        let key = RecordKey { kind, colony: by.colony, name };
                        let found = self.records.record_fetch(key).await?;
                        found.filter(|owner| !is_colony(owner)).map(|record| record.id)
                    }
                };
                match found {
                    Some(id) if id == own => refused("name", "must not be the record itself"),
                    Some(id) => Ok(Ok(Some(Owner::Record(id)))),
                    None => refused("name", "names no resource that exists or is in this apply"),
                }
            }
        }
    }

    async fn committed(
        &self,
        by: &str,
        puts: Vec<Put>,
        pruned: &[Record],
    ) -> Result<Vec<Applied>, StoreError> {
        let mut commit = Commit { guards: vec![], events: vec![], changes: vec![] };
        let (mut applied, mut written) = (Vec::with_capacity(puts.len()), Vec::new());
        let mut gone = Vec::new();
        for Put { outcome, record, write } in puts {
            if let Some(write) = write {
                if matches!(write.change, RecordChange::Delete { .. }) {
                    gone.push(record.clone());
                }
                write.join(&mut commit);
                written.push(applied.len());
            }
            applied.push(Applied { outcome, record });
        }
        let puts = commit.changes.len();
        let stamp = Stamp { now: self.cortex.clock.now(), by };
        for record in pruned {
            let deletion = decide::delete(record, stamp);
            if matches!(deletion, Deletion::Gone(_)) {
                gone.push(record.clone());
            }
            if let Some(write) = deletion.into_write() {
                write.join(&mut commit);
            }
        }
        if commit.changes.is_empty() {
            return Ok(applied);
        }
        let deleted = commit.changes.len() - puts;
        let last = self.cortex.store.commit(commit).await?.global.saturating_sub(deleted as u64);
        // There is one event for each record, in this order; those of pruned records are the last.
        for (n, at) in written.iter().rev().enumerate() {
            if let Some(one) = applied.get_mut(*at) {
                one.record.changed = last.saturating_sub(n as u64);
            }
        }
        for record in &gone {
            self.after_gone(by, record).await;
        }
        Ok(applied)
    }
}

/// A finalizer of a caller below admin that neither the record has nor the server gives it. Nobody
/// but its author might remove it, and it could hold an admin's deletion.
fn foreign_finalizer(by: &Caller, wish: &RecordWish, found: Option<&Record>) -> Option<FieldError> {
    let wished = wish.finalizers.as_ref().filter(|_| !by.is_admin())?;
    let own = quests::held(wish.info, found, None).unwrap_or_default();
    let had = found.map(|found| found.finalizers.as_slice()).unwrap_or_default();
    let new = wished.iter().find(|one| !own.contains(one) && !had.contains(one))?;
    let problem = format!("has `{}`, and only an admin may set finalizers", new.escape_debug());
    Some(FieldError::new("metadata.finalizers", problem).hint("leave it out"))
}

fn is_colony(record: &Record) -> bool {
    record.key.kind.as_str() == COLONY.name
}

/// The second of two requests for one record is an error.
fn doubled(wishes: &[RecordWish]) -> Vec<(usize, FieldError)> {
    let mut known = HashSet::new();
    let again =
        wishes.iter().enumerate().filter(|(_, wish)| !known.insert((wish.info.name, &wish.name)));
    let wrong = again.map(|(at, wish)| {
        let problem = format!("names {}/{} a second time", wish.info.name, wish.name);
        (at, FieldError::new("metadata.name", problem))
    });
    wrong.collect()
}

fn put(
    wish: &RecordWish,
    owner: Option<Owner>,
    found: Option<&Record>,
    key: RecordKey,
    id: RecordId,
    stamp: Stamp<'_>,
) -> Result<Put, Refusal> {
    let RecordWish { info, labels, annotations, spec, finalizers, .. } = wish.clone();
    let finalizers = quests::held(info, found, finalizers);
    let draft = Draft {
        key,
        labels,
        annotations,
        spec,
        owner,
        finalizers: finalizers.clone(),
        expires_at: None,
    };
    // For a record that is being deleted, only finalizers can be removed.
    if let (Some(old), Some(left)) = (found, &finalizers)
        && old.deleting.is_some()
        && let Some(write) = released(old, left, stamp)
    {
        let record = Record { finalizers: left.clone(), ..old.clone() };
        return Ok(Put { outcome: Outcome::Configured, record, write: Some(write) });
    }
    decide::put(info, found, draft, id, stamp)
}

/// Removes finalizers that are not in `left` from a record that is being deleted, if `left` has no
/// others and is shorter.
fn released(old: &Record, left: &[String], stamp: Stamp<'_>) -> Option<RecordWrite> {
    let last = old.finalizers.iter().find(|one| !left.contains(one))?;
    if !left.iter().all(|one| old.finalizers.contains(one)) {
        return None;
    }
    let mut held = old.clone();
    held.finalizers = left.to_vec();
    held.finalizers.push(last.clone());
    decide::finalize(&held, last, stamp)
}
