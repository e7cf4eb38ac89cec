//! Declared records: applied, read, followed and deleted, by the callers that their kind allows.
//!
//! [`overmind_core::record::decide`] decides on changes; this code reads, commits, and decides
//! again if another writer was faster. All records of one apply are one commit. A deletion includes
//! the records that a record owns ([`delete`](Engine::record_delete)); the loop `garbage` completes
//! it after a crash.

mod apply;
mod delete;
pub(crate) mod garbage;
mod observe;
mod past;

use std::collections::BTreeMap;

use overmind_core::ids::{ColonyId, RecordId};
use overmind_core::record::kinds::colony::{COLONY, default_record, id_of, is_of_swarm};
use overmind_core::record::rows::{
    ChangesError, ChangesQuery, RecordChanges, RecordNews, RecordPage, RecordQuery,
};
use overmind_core::record::{
    FieldError, Kind, KindInfo, Name, Owner, Record, RecordKey, RecordVerb, Selector,
};
use overmind_core::store::{StoreError, StreamId};
use serde_json::{Value, json};
use tokio::sync::watch;

pub use self::apply::{AllApplied, Applied, MAX_APPLIED, RecordWish};
pub use self::delete::{CascadeWish, RecordDeleted};
pub use self::observe::Observed;
pub use self::past::RecordOwned;
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// How often a write is decided again if others write the same records.
const TRIES: u32 = 8;

/// Why an operation on records failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// All errors, each with the index of its request, from 0.
    #[error("{}", list(.0))]
    Invalid(Vec<(usize, FieldError)>),
    /// The record has changed since it was read.
    #[error("{}", changed(key, *wanted, *found))]
    Changed { key: RecordKey, wanted: u64, found: u64 },
    /// Other writers were faster each time.
    #[error("other callers keep changing {0}; try again")]
    Contended(String),
    /// The changes are no longer known, or not known yet.
    #[error(transparent)]
    Changes(ChangesError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

fn changed(key: &RecordKey, wanted: u64, found: u64) -> String {
    match wanted {
        0 => format!("there is a {key} already, at resource version {found}"),
        _ => format!("{key} has changed: it is at resource version {found}, not {wanted}"),
    }
}

fn list(wrong: &[(usize, FieldError)]) -> String {
    wrong.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; ")
}

impl From<StoreError> for RecordError {
    fn from(err: StoreError) -> Self {
        Self::Engine(err.into())
    }
}

/// Selects records of a kind.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    pub selector: Selector,
    /// Only records that exist for this owner.
    pub owner: Option<Owner>,
    /// Only records after this one.
    pub after: Option<RecordKey>,
    /// The limit, 1..=1000.
    pub limit: u32,
}

impl Engine {
    /// One record.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], [`EngineError::NotFound`], and the store's errors.
    pub async fn record_fetch(
        &self,
        by: &Caller,
        info: &KindInfo,
        name: &Name,
    ) -> Result<Record, EngineError> {
        by.require((info.role)(RecordVerb::Read))?;
        let key = key(by, info, name.clone())?;
        let found = self.records.record_fetch(key.clone()).await?;
        match found {
            Some(record) if shows(by, &record.key, record.id) => self.observed(record).await,
            None if is_of_swarm(info) && name.as_str() == ColonyId::DEFAULT_NAME => {
                match by.reaches(ColonyId::DEFAULT) {
                    true => self.observed(self.default_colony(key)).await,
                    false => Err(absent(&key)),
                }
            }
            Some(_) | None => Err(absent(&key)),
        }
    }

    /// A record as it is shown: that of a colony with what is in it.
    async fn observed(&self, mut record: Record) -> Result<Record, EngineError> {
        if record.key.kind.as_str() == COLONY.name {
            self.colony_observed(&mut record).await?;
        }
        Ok(record)
    }

    /// The colony `default` as long as nobody has declared it.
    fn default_colony(&self, key: RecordKey) -> Record {
        Record {
            id: default_record(),
            key,
            version: 0,
            generation: 0,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            owner: None,
            spec: json!({}),
            status: json!({}),
            terms: Vec::new(),
            due: None,
            expires_at: None,
            deleting: None,
            finalizers: Vec::new(),
            created_at: self.cortex.started_at,
            updated_at: self.cortex.started_at,
            written_by: String::new(),
            changed: 0,
        }
    }

    /// The record with this id, whatever its kind.
    ///
    /// # Errors
    ///
    /// The same as for [`Self::record_fetch`].
    pub async fn record_by_id(&self, id: RecordId) -> Result<Option<Record>, EngineError> {
        Ok(self.records.record_by_id(id).await?)
    }

    /// A page of a kind's records, by name. A page with large records ends early.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`], and the store's errors.
    pub async fn record_list(
        &self,
        by: &Caller,
        info: &KindInfo,
        filter: RecordFilter,
    ) -> Result<RecordPage, EngineError> {
        by.require((info.role)(RecordVerb::Read))?;
        let is_first = filter.after.is_none();
        let query = RecordQuery {
            colony: listed(by, info),
            kind: Some(kind(info)?),
            selector: filter.selector,
            owner: filter.owner,
            after: filter.after,
            limit: filter.limit.clamp(1, 1000),
            ..RecordQuery::default()
        };
        if !is_of_swarm(info) {
            return Ok(self.records.record_list(query).await?);
        }
        let undeclared = is_first
            && query.owner.is_none()
            && by.reaches(ColonyId::DEFAULT)
            && query.selector.matches(&BTreeMap::new());
        let mut page = self.records.record_list(query).await?;
        if undeclared {
            let key = key(by, info, Name::parse(ColonyId::DEFAULT_NAME).map_err(named)?)?;
            if self.records.record_fetch(key.clone()).await?.is_none() {
                // It exists without a record. It comes first, so that pages need not be cut.
                page.records.insert(0, self.default_colony(key));
            }
        }
        page.records.retain(|record| shows(by, &record.key, record.id));
        for record in &mut page.records {
            self.colony_observed(record).await?;
        }
        Ok(page)
    }

    /// The changes of a kind after a resource version.
    ///
    /// # Errors
    ///
    /// [`RecordError::Changes`] if the changes are not known (any more), otherwise as for
    /// [`Self::record_list`].
    pub async fn record_changes(
        &self,
        by: &Caller,
        info: &KindInfo,
        after: u64,
        limit: u32,
    ) -> Result<RecordChanges, RecordError> {
        by.require((info.role)(RecordVerb::Read))?;
        let (colony, kinds) = (listed(by, info), vec![kind(info)?]);
        let query = ChangesQuery { colony, kinds, after, limit: limit.clamp(1, 1000) };
        let found = self.records.record_changes(query).await;
        let mut changes = found.map_err(|err| match err {
            ChangesError::Store(err) => err.into(),
            err => RecordError::Changes(err),
        })?;
        changes.news.retain(|news| match news {
            RecordNews::Put(record) => shows(by, &record.key, record.id),
            RecordNews::Gone(gone) => shows(by, &gone.key, gone.id),
        });
        Ok(changes)
    }

    /// A counter that changes with every record. Call [`Engine::record_changes`] again then.
    pub fn record_watch(&self) -> watch::Receiver<u64> {
        self.cortex.watchers.watch(StreamId::Records)
    }

    /// Masks texts that look like secrets, as the store will. A secret that cannot be masked is an
    /// error.
    fn record_mask(&self, wish: &mut RecordWish) -> Vec<FieldError> {
        let store = &self.cortex.store;
        store.redact_record(&mut wish.spec);
        let mask = |text: &str| {
            let mut value = Value::String(text.to_owned());
            store.redact(&mut value);
            match value {
                Value::String(masked) if masked != text => Some(masked),
                _ => None,
            }
        };
        for text in wish.annotations.values_mut() {
            if let Some(masked) = mask(text) {
                *text = masked;
            }
        }
        let holds = |text: &str| mask(text).is_some();
        let mut wrong = Vec::new();
        let mut refuse = |at: &str| {
            let hint =
                "keep it in the vault (`overmind vault set`), and change it where it is used";
            wrong.push(FieldError::new(at, "holds a secret").hint(hint));
        };
        if holds(wish.name.as_str()) {
            refuse("metadata.name");
        }
        if wish.labels.iter().any(|(key, value)| holds(key) || holds(value)) {
            refuse("metadata.labels");
        }
        if wish.annotations.keys().any(|key| holds(key)) {
            refuse("metadata.annotations");
        }
        if wish.finalizers.iter().flatten().any(|finalizer| holds(finalizer)) {
            refuse("metadata.finalizers");
        }
        wrong
    }
}

fn kind(info: &KindInfo) -> Result<Kind, EngineError> {
    Kind::parse(info.name).map_err(|err| EngineError::invalid("kind", err.to_string()))
}

/// The key of the record with this name in the caller's colony.
fn key(by: &Caller, info: &KindInfo, name: Name) -> Result<RecordKey, EngineError> {
    let colony = if is_of_swarm(info) { ColonyId::DEFAULT } else { by.colony };
    Ok(RecordKey { kind: kind(info)?, colony, name })
}

/// The colony whose records of a kind the caller is shown; `None` for all.
fn listed(by: &Caller, info: &KindInfo) -> Option<ColonyId> {
    if is_of_swarm(info) { Some(ColonyId::DEFAULT) } else { by.sight().only() }
}

/// Whether the caller may see a record: of the colonies, a caller that is bound to one sees that one.
fn shows(by: &Caller, key: &RecordKey, id: RecordId) -> bool {
    let colony = if key.kind.as_str() == COLONY.name { id_of(id) } else { key.colony };
    by.reaches(colony)
}

fn named(err: impl std::fmt::Display) -> EngineError {
    EngineError::invalid("metadata.name", err.to_string())
}

fn absent(key: &RecordKey) -> EngineError {
    EngineError::NotFound { message: format!("there is no {key}") }
}
