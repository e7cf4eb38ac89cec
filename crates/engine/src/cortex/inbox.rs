//! Keeps the inbox consistent with the sessions: both change in the same commits.

use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::inbox::InboxItem;
use overmind_core::session::{Input, Session};
use overmind_core::store::{Change, Commit, Guard, NewEvent, StoreError, StreamId};
use overmind_core::time::Timestamp;
use serde_json::json;

use super::Cortex;
use crate::mesh::ask::AtEnd;

/// Sessions read at a time.
const SCAN: u32 = 500;

/// Adds to `commit` the inbox changes that `input` causes: `waited` is the previously open item.
/// Returns whether anything changed.
pub(super) fn follow(
    waited: Option<InboxItem>,
    session: &Session,
    input: &Input,
    now: Timestamp,
    commit: &mut Commit,
) -> bool {
    let same = match (&waited, session.waiting()) {
        (Some(before), Some(after)) => before.id == after.id,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if same {
        return false;
    }
    let closed = waited.map(|item| item.closed_by(input, now));
    let opened = session.inbox_item();
    let changed = closed.into_iter().chain(opened);
    commit.changes.extend(changed.map(|item| Change::InboxPut(Box::new(item))));
    true
}

impl Cortex {
    /// Notifies watchers of the inbox. Call it after the commit.
    pub(crate) fn inbox_moved(&self) {
        self.inbox.send_modify(|changes| *changes += 1);
    }

    /// Closes the questions that an ending session has asked by its tools, because nobody reads the
    /// answers. If it failed, its budget requests stay: an increase continues it.
    pub(super) async fn withdraw_questions(
        &self,
        session: &Session,
        now: Timestamp,
        commit: &mut Commit,
    ) -> bool {
        let at_end = match session.failed_with_conversation() {
            true => AtEnd::KeepRaises,
            false => AtEnd::WithdrawAll,
        };
        let id = session.row().id;
        match self.mesh.questions.withdrawn(&*self.store, id, at_end, now).await {
            Ok(changes) => {
                let any = !changes.is_empty();
                commit.changes.extend(changes);
                any
            }
            Err(err) => {
                tracing::error!(error = %err, "questions of a run that ends stay open");
                false
            }
        }
    }

    /// Makes an item for each waiting session without one: those from before there was an inbox. No
    /// session is running during this.
    pub(super) async fn fill_inbox(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut after = None;
        let mut filled = 0_u64;
        loop {
            let page = self.store.inbox_missing(after, SCAN).await?;
            let Some(last) = page.last() else { break };
            after = Some(*last);
            for id in page {
                // A session with an unreadable log must not stop its server.
                match self.load(id).await {
                    Ok(Some(session)) => filled += u64::from(self.fill(id, &session).await?),
                    Ok(None) => {}
                    Err(err) => {
                        tracing::error!(session.id = %id, error = %err, "what it waits for is unknown");
                    }
                }
            }
        }
        if filled > 0 {
            tracing::info!(sessions = filled, "sessions that waited were put into the inbox");
        }
        Ok(())
    }

    async fn fill(&self, id: SessionId, session: &Session) -> Result<bool, StoreError> {
        let Some(item) = session.inbox_item() else { return Ok(false) };
        let event = NewEvent {
            stream: StreamId::System,
            kind: "inbox.filled",
            ts: self.clock.now(),
            payload: json!({"inbox_id": item.id, "run_id": id}),
        };
        let guard = Guard::SessionEpoch { session: id, epoch: session.row().epoch };
        let changes = vec![Change::InboxPut(Box::new(item))];
        match self.store.commit(Commit { guards: vec![guard], events: vec![event], changes }).await
        {
            Ok(_) => Ok(true),
            // It has continued after all; the other task has updated its item.
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(err) => Err(err),
        }
    }
}
