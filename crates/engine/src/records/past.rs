//! The history of a record, and the records and sessions that it owns.

use overmind_core::record::rows::RecordQuery;
use overmind_core::record::{KindInfo, Name, Owner, Record};
use overmind_core::row::SessionRow;
use overmind_core::store::{LogEvent, Page, SessionFilter, StreamId};
use serde_json::Value;

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// The newest changes of all records, among which those of one are searched.
const LOOKED_AT: u32 = 5_000;
/// Maximum number of events of one record that are returned.
const EVENTS: usize = 200;
/// Maximum number of records, and of sessions, that are returned.
const OWNED: u32 = 500;

/// The records and sessions that a record owns.
#[derive(Clone, Debug, Default)]
pub struct RecordOwned {
    pub records: Vec<Record>,
    /// Newest first.
    pub sessions: Vec<SessionRow>,
}

impl Engine {
    /// The events of a record, oldest first: at most the newest 200, of those among the newest
    /// 5,000 of all records.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::record_fetch`].
    pub async fn record_events(
        &self,
        by: &Caller,
        info: &KindInfo,
        name: &Name,
    ) -> Result<Vec<LogEvent>, EngineError> {
        let record = self.record_fetch(by, info, name).await?;
        let id = record.id.to_string();
        let newest = Page { after: None, limit: LOOKED_AT };
        let found = self.cortex.store.events_newest(Some(StreamId::Records), newest).await?;
        let of_it = |event: &LogEvent| {
            let payload: Option<Value> = serde_json::from_str(&event.payload).ok();
            payload.is_some_and(|payload| payload.get("id").and_then(Value::as_str) == Some(&id))
        };
        let mut events: Vec<LogEvent> = found.into_iter().filter(of_it).collect();
        events.sort_by_key(|event| event.seq);
        let superfluous = events.len().saturating_sub(EVENTS);
        events.drain(..superfluous);
        Ok(events)
    }

    /// The owned records and sessions: at most 500 records and the newest 500 sessions.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::record_fetch`].
    pub async fn record_owned(
        &self,
        by: &Caller,
        info: &KindInfo,
        name: &Name,
    ) -> Result<RecordOwned, EngineError> {
        let record = self.record_fetch(by, info, name).await?;
        let query = RecordQuery {
            colony: Some(record.key.colony),
            owner: Some(Owner::Record(record.id)),
            limit: OWNED,
            ..RecordQuery::default()
        };
        let records = self.records.record_list(query).await?.records;
        let filter = SessionFilter {
            colony: Some(record.key.colony),
            owner: Some(record.id),
            ..SessionFilter::default()
        };
        let page = Page { after: None, limit: OWNED };
        let sessions = self.cortex.store.session_list(filter, page).await?;
        Ok(RecordOwned { records, sessions })
    }
}
