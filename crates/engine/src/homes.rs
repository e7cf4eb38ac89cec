//! Homes of programs in sandboxes. A home outlives the process and, if the program's conversation
//! can continue, the run: it contains what a provider needs to continue.

use std::time::Duration;

use overmind_core::row::SessionRow;
use overmind_core::time::Timestamp;

use crate::Engine;
use crate::error::EngineError;

/// How long after a run's end its conversation can continue.
const KEPT: Duration = Duration::from_hours(14 * 24);

/// Whether a session's provider can continue its conversation.
pub(crate) fn has_conversation(row: &SessionRow) -> bool {
    row.command.as_ref().is_some_and(|command| command.conversation.is_some())
}

impl Engine {
    /// Removes the homes of removed sessions, of sessions that ended without a conversation, and of
    /// those that ended more than 14 days before `now`. Returns their number.
    ///
    /// # Errors
    ///
    /// Fails if a session cannot be read: the homes that were not checked stay.
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
