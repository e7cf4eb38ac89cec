//! Sessions as they change, for whoever follows all of them.

use std::collections::BTreeSet;

use overmind_core::ids::SessionId;
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::{EventQuery, StreamId};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// What changed between two places of the log.
#[derive(Clone, Debug, Default)]
pub struct SessionChanges {
    /// As they are now, each once. Their `global` is not the place of any one event: all of them
    /// are told before `at` is.
    pub rows: Vec<SessionRow>,
    /// Sessions that retention has removed meanwhile.
    pub gone: Vec<SessionId>,
    /// Everything up to this number of the log was looked at: where to go on.
    pub at: u64,
    /// There is more behind `at` already.
    pub more: bool,
}

impl Engine {
    /// Sessions that changed after a number of the log, from at most `limit` events. The log is what
    /// is resumed by: nothing is missed, whatever was asked for how long ago, as long as retention
    /// keeps it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn session_changes(
        &self,
        by: &Caller,
        after: u64,
        limit: u32,
    ) -> Result<SessionChanges, EngineError> {
        by.require(Role::Viewer)?;
        let query = EventQuery { stream: None, after, kinds: &[], limit };
        let events = self.cortex.store.events(query).await?;
        let Some(last) = events.last() else {
            return Ok(SessionChanges { at: after, ..SessionChanges::default() });
        };
        let mut changes = SessionChanges {
            at: last.global,
            more: u64::try_from(events.len()).is_ok_and(|count| count >= u64::from(limit)),
            ..SessionChanges::default()
        };
        let moved: BTreeSet<SessionId> = events
            .iter()
            .filter_map(|event| match event.stream {
                StreamId::Session(id) => Some(id),
                StreamId::System | StreamId::Mesh | StreamId::Records => None,
            })
            .collect();
        for id in moved {
            match self.cortex.store.session_fetch(id).await? {
                Some(row) => changes.rows.push(row),
                None => changes.gone.push(id),
            }
        }
        changes.rows = self.settled(std::mem::take(&mut changes.rows)).await?;
        Ok(changes)
    }
}
