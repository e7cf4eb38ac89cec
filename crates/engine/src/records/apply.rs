//! Records as somebody wants them: all of one apply in one commit, or none.

use std::collections::{BTreeMap, HashSet};

use overmind_core::ids::RecordId;
use overmind_core::record::decide::{self, Draft, Outcome, Put, RecordWrite, Refusal, Stamp};
use overmind_core::record::rows::RecordChange;
use overmind_core::record::{FieldError, KindInfo, Name, Owner, Record, RecordKey, RecordVerb};
use overmind_core::store::{Commit, StoreError};
use serde_json::Value;

use super::{RecordError, TRIES, key};
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;
use crate::quests;

/// Most records of one apply.
pub const MAX_APPLIED: usize = 5_000;

/// What somebody wants a record to be.
#[derive(Clone, Debug)]
pub struct RecordWish {
    pub info: &'static KindInfo,
    pub name: Name,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// An object.
    pub spec: Value,
    /// `None` leaves them as they are, and so the owner.
    pub finalizers: Option<Vec<String>>,
    pub owner: Option<Owner>,
    /// The resource version that it was read at; 0: it must not exist. `None`: whatever it is.
    pub was: Option<u64>,
}

/// What became of one wish.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub outcome: Outcome,
    pub record: Record,
}

impl Engine {
    /// Makes records what `wishes` say: all in one commit. With `dry` nothing is written, and the
    /// answer is the same, without resource versions of what would be new.
    ///
    /// # Errors
    ///
    /// [`RecordError::Invalid`] with all mistakes of all wishes, [`RecordError::Changed`],
    /// [`EngineError::Conflict`] for what is being deleted, [`EngineError::Forbidden`]. Nothing is
    /// written then.
    pub async fn record_apply(
        &self,
        by: &Caller,
        mut wishes: Vec<RecordWish>,
        dry: bool,
    ) -> Result<Vec<Applied>, RecordError> {
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
            let puts = self.decided(by, &wishes, wrong.clone()).await?;
            if dry {
                let applied = |put: Put| Applied { outcome: put.outcome, record: put.record };
                return Ok(puts.into_iter().map(applied).collect());
            }
            match self.committed(&by.name, puts).await {
                Ok(applied) => return Ok(applied),
                // Somebody was faster: what they wrote is read, and decided on.
                Err(StoreError::Conflict { .. }) => {}
                Err(err) => return Err(err.into()),
            }
        }
        let names = wishes.first().map(|wish| format!("{}/{}", wish.info.name, wish.name));
        Err(RecordError::Contended(names.unwrap_or_default()))
    }

    /// `wrong` has the mistakes that are known already.
    async fn decided(
        &self,
        by: &Caller,
        wishes: &[RecordWish],
        mut wrong: Vec<(usize, FieldError)>,
    ) -> Result<Vec<Put>, RecordError> {
        let stamp = Stamp { now: self.cortex.clock.now(), by: &by.name };
        let mut puts = Vec::with_capacity(wishes.len());
        let mut refused = None;
        for (at, wish) in wishes.iter().enumerate() {
            if let Some(by) = wish.info.changed_by {
                let problem = format!("{} is only shown here", wish.info.name);
                wrong.push((
                    at,
                    FieldError::new("kind", problem).hint(format!("change it with {by}")),
                ));
                continue;
            }
            let key = key(wish.info, wish.name.clone())?;
            let found = self.records.record_fetch(key.clone()).await?;
            let version = found.as_ref().map_or(0, |record| record.changed);
            if let Some(wanted) = wish.was.filter(|was| *was != version) {
                refused.get_or_insert(RecordError::Changed { key, wanted, found: version });
                continue;
            }
            if let Some(error) = self.owner_mistake(wish, found.as_ref()).await? {
                wrong.push((at, error));
            }
            let id = RecordId::mint(&*self.cortex.ids);
            match put(wish, found.as_ref(), key, id, stamp) {
                Ok(put) => {
                    let owner = match put.record.owner {
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

    /// Why the owner that is wished for cannot be one.
    async fn owner_mistake(
        &self,
        wish: &RecordWish,
        found: Option<&Record>,
    ) -> Result<Option<FieldError>, RecordError> {
        let problem = match wish.owner {
            None => return Ok(None),
            Some(Owner::Record(id)) if found.is_some_and(|record| record.id == id) => {
                "must not be the record itself"
            }
            Some(Owner::Record(id)) => match self.records.record_by_id(id).await? {
                Some(_) => return Ok(None),
                None => "names no record that exists",
            },
            Some(Owner::Session(id)) => match self.cortex.store.session_fetch(id).await? {
                Some(_) => return Ok(None),
                None => "names no run that exists",
            },
        };
        Ok(Some(FieldError::new("metadata.ownerReferences[0].uid", problem)))
    }

    async fn committed(&self, by: &str, puts: Vec<Put>) -> Result<Vec<Applied>, StoreError> {
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
        if written.is_empty() {
            return Ok(applied);
        }
        let last = self.cortex.store.commit(commit).await?.global;
        // One event a record, in this order: the last has the commit's number.
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

/// Two wishes for one record are a mistake of the second.
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
    found: Option<&Record>,
    key: RecordKey,
    id: RecordId,
    stamp: Stamp<'_>,
) -> Result<Put, Refusal> {
    let RecordWish { info, labels, annotations, spec, finalizers, owner, .. } = wish.clone();
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
    // What is being deleted can only be let go.
    if let (Some(old), Some(left)) = (found, &finalizers)
        && old.deleting.is_some()
        && let Some(write) = released(old, left, stamp)
    {
        let record = Record { finalizers: left.clone(), ..old.clone() };
        return Ok(Put { outcome: Outcome::Configured, record, write: Some(write) });
    }
    decide::put(info, found, draft, id, stamp)
}

/// Takes off a record that is being deleted the finalizers that are not in `left`, if `left` has no
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
