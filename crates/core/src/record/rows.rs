//! The rows of records, and the port to them. They change like all rows: in the commits that
//! explain them ([`crate::store::Change::Record`]).

use std::fmt;

use serde_json::Value;

use super::{Kind, Owner, Record, RecordKey, Selector, Terms};
use crate::Fut;
use crate::ids::{ColonyId, RecordId};
use crate::store::StoreError;
use crate::time::Timestamp;

/// A change of one record.
///
/// Each needs an event of its own in [`crate::store::StreamId::Records`]: the n-th change of a
/// commit has the n-th such event, and the record's `changed` becomes the global number of that
/// event. A commit that has more or fewer of them is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordChange {
    /// Inserts a record, or replaces the one with its id. Kind, colony, name and `created_at` never
    /// change. A key that another record has is refused with [`StoreError::Conflict`].
    Put(Box<Record>),
    /// Changes the status and what follows from it. The record must exist.
    Status(Box<StatusChange>),
    /// Removes the record and leaves a tombstone. The record must exist.
    Delete { key: RecordKey, id: RecordId, at: Timestamp },
}

#[derive(Clone, Debug, PartialEq)]
pub struct StatusChange {
    pub key: RecordKey,
    pub id: RecordId,
    /// The new one.
    pub version: u64,
    pub status: Value,
    pub terms: Terms,
    pub due: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub written_by: String,
}

/// Which records. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordQuery {
    /// `None`: of all colonies.
    pub colony: Option<ColonyId>,
    /// `None`: of all kinds. A selector or term alone then reads the whole index.
    pub kind: Option<Kind>,
    pub selector: Selector,
    /// The name and value of an index term, see [`super::Term`].
    pub term: Option<(String, String)>,
    pub owner: Option<Owner>,
    /// Names that begin with exactly this.
    pub prefix: String,
    /// Only records after this key, which need not exist any more. The key of the last record of a
    /// page begins the next page.
    pub after: Option<RecordKey>,
    /// At most this many, 1..=1000.
    pub limit: u32,
}

/// A page of a list, by kind, colony and name.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordPage {
    /// Fewer than asked for when they are large, but one at least where there is one.
    pub records: Vec<Record>,
    /// There are more behind the last.
    pub more: bool,
    /// The page has everything up to this number. To follow a list without a gap, ask for changes
    /// after the `at` of its first page.
    pub at: u64,
}

/// The current record, or the fact that it was deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordNews {
    Put(Box<Record>),
    Gone(Tombstone),
}

impl RecordNews {
    /// The global number of the change.
    pub fn changed(&self) -> u64 {
        match self {
            Self::Put(record) => record.changed,
            Self::Gone(tombstone) => tombstone.changed,
        }
    }

    pub fn key(&self) -> &RecordKey {
        match self {
            Self::Put(record) => &record.key,
            Self::Gone(tombstone) => &tombstone.key,
        }
    }
}

/// The remains of a deleted record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    pub id: RecordId,
    pub key: RecordKey,
    pub at: Timestamp,
    pub changed: u64,
}

/// Which changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesQuery {
    /// `None`: of all colonies.
    pub colony: Option<ColonyId>,
    /// Empty: of all kinds.
    pub kinds: Vec<Kind>,
    /// Only changes with a greater number. Begin with [`RecordPage::at`] or continue with
    /// [`RecordChanges::at`].
    pub after: u64,
    /// At most this many, 1..=1000.
    pub limit: u32,
}

/// Changes in the order of their numbers. Of a record that changed several times only the last
/// change is there.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordChanges {
    pub news: Vec<RecordNews>,
    /// All changes up to this number were processed: the position to resume.
    pub at: u64,
    /// There are more behind `at` already.
    pub more: bool,
}

/// Why changes cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// Deletions after the given number are no longer known: list again, and continue from that
    /// list's number.
    #[error(
        "changes after {after} are no longer kept, only those after {oldest}: list again and watch from there"
    )]
    Gone { after: u64, oldest: u64 },
    /// The number was not reached yet: it belongs to another store, or this one was restored from
    /// an older copy. List again, and continue from that list's number.
    #[error(
        "there is no change {after} yet, the newest is {newest}: the store may have been restored; list again and watch from there"
    )]
    Ahead { after: u64, newest: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Tombstones that are kept; older ones make an older place to resume from [`ChangesError::Gone`].
pub const MAX_TOMBSTONES: u32 = 5_000;

/// Reads records.
pub trait RecordRows: Send + Sync + fmt::Debug {
    fn record_fetch(&self, key: RecordKey) -> Fut<'_, Result<Option<Record>, StoreError>>;

    fn record_by_id(&self, id: RecordId) -> Fut<'_, Result<Option<Record>, StoreError>>;

    fn record_list(&self, query: RecordQuery) -> Fut<'_, Result<RecordPage, StoreError>>;

    /// The changes after a number: see [`RecordChanges`]. The newest [`MAX_TOMBSTONES`] deletions
    /// are known.
    fn record_changes(&self, query: ChangesQuery) -> Fut<'_, Result<RecordChanges, ChangesError>>;

    /// Returns records of one kind whose [`Record::wake`] is not after `now`, ordered by that time and
    /// their id. `after` is the place in this order behind which the page begins. A page ends early if
    /// its records are large, but has at least one record if there is one.
    fn record_due(
        &self,
        kind: Kind,
        now: Timestamp,
        after: Option<(Timestamp, RecordId)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>>;

    /// Returns records of all kinds whose [`Record::expires_at`] is not after `now`, ordered by that
    /// time and their id. Pages are those of [`Self::record_due`]. Records that are only due are not
    /// read.
    fn record_expired(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, RecordId)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>>;

    /// Records whose owner does not exist any more, by id, those after `after` only: what a crash
    /// between the end of an owner and that of its own has left. Reads every record that has an
    /// owner.
    fn record_orphans(
        &self,
        after: Option<RecordId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>>;

    /// Records that are being deleted, by id, those after `after` only. A page whose records grow
    /// large ends early, after one at least.
    fn record_deleting(
        &self,
        after: Option<RecordId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>>;
}
