//! Removes an ended session with its log at once, as retention does later.

use overmind_core::ids::SessionId;
use overmind_core::process::ProcessError;
use overmind_core::room::RoomDone;
use overmind_core::room::stay::RoomPhase;
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::Pruned;

use super::Deciding;
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

impl Engine {
    /// Removes an ended session: its row, steps, log, artifacts and the output of its program. A
    /// record of the removal stays in the log. With `discard`, undecided work is dropped first.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has not ended, if its work is undecided, or if a part of its
    /// environment is left; [`EngineError::NotFound`]; [`EngineError::Forbidden`] for callers below
    /// admin.
    pub async fn session_remove(
        &self,
        by: &Caller,
        id: SessionId,
        discard: bool,
    ) -> Result<Pruned, EngineError> {
        by.require(Role::Admin)?;
        let row = self.find_session(id).await?;
        has_ended(&row)?;
        let name = &row.name;
        if discard && row.room.as_ref().is_some_and(|room| room.phase == RoomPhase::Kept) {
            self.session_done(by, id, RoomDone::Discard, None, &[]).await?;
        }
        // No decision about its work can begin meanwhile.
        let _deciding = Deciding::begin(&self.decisions, id)?;
        let row = self.find_session(id).await?;
        has_ended(&row)?;
        let room = row.room.as_ref();
        if room.is_some_and(|room| room.is_undecided()) {
            let message = format!(
                "{name} has work that nobody has decided about: merge it or put it on a branch with \
                 `overmind done {name}`, or add --discard to throw it away"
            );
            return Err(EngineError::conflict(message));
        }
        if room.is_some_and(|room| room.phase == RoomPhase::Left) {
            let message = format!(
                "something of the environment of {name} is left: `overmind doctor --fix` removes it"
            );
            return Err(EngineError::conflict(message));
        }
        if room.is_some_and(|room| {
            room.phase == RoomPhase::Kept
                && room.done.as_ref().is_none_or(|done| matches!(done.what, RoomDone::Keep))
        }) {
            let message = format!(
                "the worktree of {name} was kept: `overmind done {name} --park` puts its work on a branch, \
                 or add --discard to throw it away"
            );
            return Err(EngineError::conflict(message));
        }
        // Its output is removed first: without the row, nothing would find it again.
        if let Some(processes) = &self.processes {
            processes.forget(id).await.map_err(|err| match err {
                ProcessError::AlreadyLive { .. } => {
                    EngineError::conflict(format!("a program of {name} is still running"))
                }
                other => other.into(),
            })?;
        }
        let removed = self.cortex.store.session_remove(id, self.cortex.clock.now()).await?;
        let removed = removed.ok_or_else(|| {
            EngineError::conflict(format!("{name} has changed meanwhile: try again"))
        })?;
        self.cortex.mesh.questions.take(id);
        self.budgets().unbind(id, &by.name).await?;
        Ok(removed)
    }
}

fn has_ended(row: &SessionRow) -> Result<(), EngineError> {
    if row.status.is_terminal() {
        return Ok(());
    }
    let name = &row.name;
    let message = format!("{name} has not ended: stop it first with `overmind stop {name}`");
    Err(EngineError::conflict(message))
}
