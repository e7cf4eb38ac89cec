//! Removes sessions with all their data: by retention, or a single one.

use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::store::{Pruned, StoreError};
use overmind_core::time::Timestamp;

use super::Sqlite;
use crate::artifacts;
use crate::writer::Job;

impl Sqlite {
    pub(super) async fn remove_old(
        &self,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<Pruned, StoreError> {
        let mut all = Pruned::default();
        loop {
            // Each batch goes through the queue, so that commits continue between them.
            let (part, more, sessions) =
                self.ask(move |reply| Job::Prune { before, now, reply }).await?;
            self.drop_artifacts(sessions).await?;
            all.sessions += part.sessions;
            all.events += part.events;
            all.steps += part.steps;
            if !more {
                return Ok(all);
            }
        }
    }

    pub(super) async fn remove_one(
        &self,
        session: SessionId,
        now: Timestamp,
    ) -> Result<Option<Pruned>, StoreError> {
        let removed = self.ask(move |reply| Job::Remove { session, now, reply }).await?;
        if removed.is_some() {
            self.drop_artifacts(vec![session]).await?;
        }
        Ok(removed)
    }

    /// Removes the artifact bytes that no row names any more.
    async fn drop_artifacts(&self, sessions: Vec<SessionId>) -> Result<(), StoreError> {
        let files = Arc::clone(&self.artifacts);
        artifacts::blocking("removing artifacts", move || {
            sessions.into_iter().for_each(|session| files.drop_all(session));
            Ok(())
        })
        .await
    }
}
