//! The tables of records: writing, queries, and the port's implementation.

mod read;
mod write;

use overmind_core::Fut;
use overmind_core::ids::RecordId;
use overmind_core::record::rows::{
    ChangesError, ChangesQuery, RecordChanges, RecordPage, RecordQuery, RecordRows,
};
use overmind_core::record::{Kind, Record, RecordKey};
use overmind_core::store::StoreError;
use overmind_core::time::Timestamp;

use crate::sqlite::Sqlite;

pub(crate) use write::{Write, apply, prepare, stands_at};

const ATTEMPT: &str = "reading records";

impl RecordRows for Sqlite {
    fn record_fetch(&self, key: RecordKey) -> Fut<'_, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::fetch(conn, &key)))
    }

    fn record_by_id(&self, id: RecordId) -> Fut<'_, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::by_id(conn, id)))
    }

    fn record_list(&self, query: RecordQuery) -> Fut<'_, Result<RecordPage, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::list(conn, &query)))
    }

    fn record_changes(&self, query: ChangesQuery) -> Fut<'_, Result<RecordChanges, ChangesError>> {
        Box::pin(async move {
            let after = query.after;
            match self.read(ATTEMPT, move |conn| read::changes(conn, &query)).await? {
                read::Found::Changes(changes) => Ok(changes),
                read::Found::Beyond(oldest) => Err(ChangesError::Gone { after, oldest }),
                read::Found::Ahead(newest) => Err(ChangesError::Ahead { after, newest }),
            }
        })
    }

    fn record_due(
        &self,
        kind: Kind,
        now: Timestamp,
        after: Option<(Timestamp, RecordId)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::due(conn, &kind, now, after, limit)))
    }

    fn record_expired(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, RecordId)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::expired(conn, now, after, limit)))
    }

    fn record_orphans(
        &self,
        after: Option<RecordId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::orphans(conn, after, limit)))
    }

    fn record_deleting(
        &self,
        after: Option<RecordId>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(self.read(ATTEMPT, move |conn| read::deleting(conn, after, limit)))
    }
}
