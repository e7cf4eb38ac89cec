//! Rebuilds sessions from their logs, in the same way as a verification but without the comparison.

use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::process::prompt::Provider;
use overmind_core::process::provider::launch;
use overmind_core::replay::{ReplayError, Replayer};
use overmind_core::session::{REBUILT_FROM, Recorded, Session, Toolset};
use overmind_core::store::{EventQuery, LogEvent, StreamId};

use super::Cortex;
use crate::error::EngineError;

/// Events that are read at once.
const PAGE: u32 = 2000;

impl Cortex {
    /// Rebuilds a session. `None` if there is no such session.
    pub(crate) async fn load(&self, id: SessionId) -> Result<Option<Session>, EngineError> {
        let mut replayer = Replayer::default();
        let mut after = 0;
        let mut toolset = None;
        loop {
            let stream = Some(StreamId::Session(id));
            let query = EventQuery { stream, after, kinds: REBUILT_FROM, limit: PAGE };
            let page = self.store.events(query).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            if toolset.is_none() {
                toolset = self.toolset_of(&page[0]).await?;
            }
            let find = |_: &str| toolset.clone();
            for event in &page {
                replayer
                    .event(event.seq, &event.kind, event.ts, &event.payload, None, &find)
                    .map_err(|err| broken(id, &err))?;
            }
            if page.len() < PAGE as usize {
                break;
            }
        }
        replayer.finish(after).map_err(|err| broken(id, &err))
    }

    /// The protocol of a session's command; raw if it has none.
    pub(crate) async fn speaks(&self, id: SessionId) -> Result<Provider, EngineError> {
        let stream = Some(StreamId::Session(id));
        let query = EventQuery { stream, after: 0, kinds: &["run.queued"], limit: 1 };
        let Some(first) = self.store.events(query).await?.pop() else { return Ok(Provider::Raw) };
        let recorded = Recorded::decode(&first.kind, &first.payload);
        let Ok(Recorded::Queued(spec)) = recorded else { return Ok(Provider::Raw) };
        let command = spec.agent.command.as_ref().filter(|command| launch::is_read(command));
        Ok(command.map_or(Provider::Raw, |command| command.provider))
    }

    /// The tool definitions of the session with this first event.
    pub(crate) async fn toolset_of(
        &self,
        first: &LogEvent,
    ) -> Result<Option<Arc<Toolset>>, EngineError> {
        match Recorded::decode(&first.kind, &first.payload) {
            Ok(Recorded::Queued(spec)) => Ok(self.toolset(&spec.toolset).await?),
            Ok(
                Recorded::Input(_)
                | Recorded::Decision
                | Recorded::Attested(_)
                | Recorded::RoomAttested(_)
                | Recorded::RoomDone(_)
                | Recorded::RoomChanges(_)
                | Recorded::Observation,
            )
            | Err(_) => Ok(None),
        }
    }
}

fn broken(id: SessionId, err: &ReplayError) -> EngineError {
    EngineError::Store(overmind_core::store::StoreError::Other {
        attempt: format!("rebuilding session {id} from its log"),
        detail: err.to_string(),
    })
}
