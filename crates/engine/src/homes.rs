//! Homes of programs in sandboxes. They outlive an attempt, and where the program has a conversation that
//! can go on, the run: what a provider needs to go on with it lies there.

use std::time::Duration;

use overmind_core::row::SessionRow;
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::error::EngineError;

/// How long after a run's end its conversation can go on.
const KEPT: Duration = Duration::from_hours(14 * 24);

/// Whether a session's provider can go on with its conversation.
pub(crate) fn has_conversation(row: &SessionRow) -> bool {
    row.command.as_ref().is_some_and(|command| command.conversation.is_some())
}

impl Engine {
    /// Removes the homes of sessions that are gone, that have ended without a conversation, or that ended
    /// more than 14 days before `now`. Answers how many went.
    ///
    /// # Errors
    ///
    /// When a session cannot be read: the homes that were not looked at stay.
    pub async fn homes_sweep(&self, now: Timestamp) -> Result<u32, EngineError> {
        let Some(enclosures) = &self.enclosures else { return Ok(0) };
        let mut removed = 0;
        for session in enclosures.kept().await {
            let row = self.cortex.store.session_fetch(session).await?;
            if row.is_some_and(|row| is_wanted(&row, now)) {
                continue;
            }
            enclosures.ended(session).await;
            removed += 1;
        }
        Ok(removed)
    }
}

fn is_wanted(row: &SessionRow, now: Timestamp) -> bool {
    if !row.status.is_terminal() {
        return true;
    }
    has_conversation(row) && row.finished_at.is_some_and(|at| now.since(at) < KEPT)
}
