//! Ends idle sessions that use resources: if nobody has written to a run for a long time, its
//! program and services are stopped. Its files stay, and `send` continues with them.

use std::time::Duration;

use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{EventQuery, StreamId};
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::Order;
use crate::error::EngineError;

/// The event with which a session becomes idle.
const IDLE: &[&str] = &["run.idle"];
/// Sessions and events that are read at once.
const PAGE: u32 = 500;
/// The setting that ends them, in place of a person's name in events.
const SETTING: &str = "engine.rest_hours";

impl Engine {
    /// Ends sessions that have been idle since before `now` minus `longest` and whose program or
    /// services are running. Returns how many there were; a failure is logged.
    ///
    /// # Errors
    ///
    /// The store's errors; [`EngineError::Forbidden`] below admin.
    pub async fn rests_end(
        &self,
        by: &Caller,
        now: Timestamp,
        longest: Duration,
    ) -> Result<u32, EngineError> {
        by.require(Role::Admin)?;
        let before = now.before(longest);
        let hours = longest.as_secs() / 3600;
        let (mut ended, mut after) = (0, None);
        loop {
            let store = &self.cortex.store;
            let rows = store.session_scan(SessionStatus::Idle, after, PAGE).await?;
            let Some(last) = rows.last() else { return Ok(ended) };
            after = Some(last.id);
            for row in rows.iter().filter(|row| costs(row)) {
                if self.rests_since(row).await?.is_none_or(|since| since > before) {
                    continue;
                }
                let by = format!("{SETTING}, after {hours} h at rest");
                match self.cortex.order(row.id, Order::EndRest { by }).await {
                    Ok(_) => ended += 1,
                    Err(err) => {
                        tracing::warn!(session.id = %row.id, error = %err, "its rest goes on");
                    }
                }
            }
        }
    }

    /// When it last became idle.
    async fn rests_since(&self, row: &SessionRow) -> Result<Option<Timestamp>, EngineError> {
        let (stream, mut since, mut after) = (Some(StreamId::Session(row.id)), None, 0);
        loop {
            let query = EventQuery { stream, after, kinds: IDLE, limit: PAGE };
            let events = self.cortex.store.events(query).await?;
            let Some(last) = events.last() else { return Ok(since) };
            (since, after) = (Some(last.ts), last.seq);
        }
    }
}

/// Whether an idle session uses the machine: by its program, or by services and databases of its
/// environment.
fn costs(row: &SessionRow) -> bool {
    let program = row.command.as_ref().is_some_and(|command| command.pid.is_some());
    let made = row.room.as_ref().and_then(|room| room.made.as_ref());
    program
        || made.is_some_and(|made| {
            let named = made.ports.keys().any(|name| name.contains('/'));
            named || !made.urls.is_empty() || !made.reaches.is_empty() || made.serves
        })
}
