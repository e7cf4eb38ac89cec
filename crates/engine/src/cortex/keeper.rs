//! Stores the persistent state of MCP servers in the Cortex: one document, and an event for each
//! change of it in the same commit.

use std::sync::Weak;

use overmind_core::Fut;
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_core::tool_source::Keeper;
use serde_json::Value;
use tokio::sync::watch;

use super::{Cortex, count};

/// The document's key in the store.
pub(crate) const TOOL_SERVERS: &str = "mcp_servers";

/// Connects the servers, which are created first, to the Cortex. It holds only a weak reference.
#[derive(Debug, Default)]
pub(crate) struct ToolServersKeeper {
    cortex: watch::Sender<Option<Weak<Cortex>>>,
}

impl ToolServersKeeper {
    /// From now on changes are saved; earlier ones waited.
    pub(crate) fn bind(&self, cortex: Weak<Cortex>) {
        self.cortex.send_replace(Some(cortex));
    }
}

impl Keeper for ToolServersKeeper {
    fn save(
        &self,
        document: Value,
        kind: &'static str,
        event: Value,
    ) -> Fut<'_, Result<(), String>> {
        Box::pin(async move {
            let mut bound = self.cortex.subscribe();
            let bound = bound.wait_for(Option::is_some).await.map(|bound| bound.clone());
            let bound = bound.map_err(|err| err.to_string())?;
            let cortex = bound.as_ref().and_then(Weak::upgrade);
            let cortex = cortex.ok_or_else(|| "the engine has ended".to_owned())?;
            let at = cortex.clock.now();
            let event = NewEvent { stream: StreamId::System, kind, ts: at, payload: event };
            let key = TOOL_SERVERS.to_owned();
            let change = Change::SettingPut { key, value: document, at };
            let commit = Commit { guards: Vec::new(), events: vec![event], changes: vec![change] };
            cortex.store.commit(commit).await.map_err(|err| err.to_string())?;
            count(&cortex.counters.commits);
            Ok(())
        })
    }
}
