//! Changes of sessions, for clients that follow all of them.

use std::collections::BTreeSet;

use overmind_core::ids::SessionId;
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::{EventQuery, StreamId};

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// The changes between two places of the log.
#[derive(Clone, Debug, Default)]
pub struct SessionChanges {
    /// The current rows, each once. Their `global` is not the number of any one event: all of their
    /// events are before `at`.
    pub rows: Vec<SessionRow>,
    /// Sessions that retention has removed meanwhile.
    pub gone: Vec<SessionId>,
    /// The number of the log up to which everything was read; continue from here.
    pub at: u64,
    /// Whether there is already more after `at`.
    pub more: bool,
}

impl Engine {
    /// Sessions that changed after a number of the log, from at most `limit` events. As the log is
    /// the basis, nothing is missed, however long ago the last request was, as long as retention
    /// keeps the log.
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
                Some(row) if by.sight().sees(row.colony) => changes.rows.push(row),
                Some(_) => {}
                // Its colony is not known any more.
                None if by.wall.is_some() => {}
                None => changes.gone.push(id),
            }
        }
        changes.rows = self.settled(std::mem::take(&mut changes.rows)).await?;
        Ok(changes)
    }
}
