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

use overmind_core::ids::{ColonyId, RecordId};
use overmind_core::record::rows::{
    ChangesError, ChangesQuery, RecordChanges, RecordPage, RecordQuery,
};
use overmind_core::record::{
    FieldError, Kind, KindInfo, Name, Owner, Record, RecordKey, RecordVerb, Selector,
};
use overmind_core::store::{StoreError, StreamId};
use serde_json::Value;
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
    #[error("{key} has changed: it is at resource version {found}, not {wanted}")]
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
    /// Only records after this name.
    pub after: Option<Name>,
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
        let key = key(info, name.clone())?;
        self.records.record_fetch(key.clone()).await?.ok_or_else(|| absent(&key))
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
        let after = filter.after.map(|name| key(info, name)).transpose()?;
        let query = RecordQuery {
            colony: Some(ColonyId::DEFAULT),
            kind: Some(kind(info)?),
            selector: filter.selector,
            owner: filter.owner,
            after,
            limit: filter.limit.clamp(1, 1000),
            ..RecordQuery::default()
        };
        Ok(self.records.record_list(query).await?)
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
        let (colony, kinds) = (Some(ColonyId::DEFAULT), vec![kind(info)?]);
        let query = ChangesQuery { colony, kinds, after, limit: limit.clamp(1, 1000) };
        self.records.record_changes(query).await.map_err(|err| match err {
            ChangesError::Store(err) => err.into(),
            err => RecordError::Changes(err),
        })
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

fn key(info: &KindInfo, name: Name) -> Result<RecordKey, EngineError> {
    Ok(RecordKey { kind: kind(info)?, colony: ColonyId::DEFAULT, name })
}

fn absent(key: &RecordKey) -> EngineError {
    EngineError::NotFound { message: format!("there is no {key}") }
}
