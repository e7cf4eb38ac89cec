//! Records the policies that were in force.

use overmind_core::gate::{PolicySource, PolicyVersion};
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use serde_json::json;

use crate::Engine;
use crate::error::EngineError;

impl Engine {
    /// Stores the text of a policy that has come into force under its version, so that a verdict in
    /// the log can be explained later.
    ///
    /// # Errors
    ///
    /// [`EngineError::Store`] if it cannot be written.
    pub async fn policy_loaded(
        &self,
        version: &PolicyVersion,
        source: &PolicySource,
        text: &str,
    ) -> Result<(), EngineError> {
        let at = self.cortex.clock.now();
        let event = NewEvent {
            stream: StreamId::System,
            kind: "policy.loaded",
            ts: at,
            payload: json!({
                "policy": version, "source": source.as_str(), "file": source.file(),
            }),
        };
        let key = format!("policy/{version}");
        let changes = vec![Change::SettingPut { key, value: json!(text), at }];
        self.cortex.store.commit(Commit { guards: vec![], events: vec![event], changes }).await?;
        Ok(())
    }
}
