//! Changes of the shared state as a [stream](crate::sse): the changed keys and their current values.

use overmind_api::{BlackboardChange, BlackboardEntry};
use overmind_core::store::LogEvent;
use overmind_engine::{Caller, EngineError};
use serde_json::Value;
use tokio::sync::watch;

use crate::cx::Cx;
use crate::sse::{Look, Source, say};

pub(crate) struct BoardSource {
    prefix: String,
    /// Number of the last event of the mesh's stream that was read.
    after: u64,
}

impl BoardSource {
    pub(crate) fn new(prefix: String, after: u64) -> Self {
        Self { prefix, after }
    }

    async fn told(
        cx: &Cx,
        by: &Caller,
        event: &LogEvent,
    ) -> Result<Option<BlackboardChange>, EngineError> {
        let payload = event.value();
        let text = |name: &str| payload.get(name).and_then(Value::as_str).map(str::to_owned);
        let Some(key) = text("key") else { return Ok(None) };
        let entry = match cx.engine.board_get(by, None, &key).await {
            Ok(entry) => Some(BlackboardEntry::from((*entry).clone())),
            Err(EngineError::NotFound { .. }) => None,
            // Keys that may no longer be read are left out.
            Err(EngineError::Forbidden { .. }) => return Ok(None),
            Err(err) => return Err(err),
        };
        Ok(Some(BlackboardChange {
            key,
            version: payload.get("version").and_then(Value::as_u64).unwrap_or(0),
            change: event.kind.trim_start_matches("blackboard.").to_owned(),
            by: text("by"),
            at: event.ts,
            entry,
        }))
    }
}

impl Source for BoardSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        let (upto, events) = cx.engine.board_changes(by, &self.prefix, self.after).await?;
        if upto == self.after {
            return Ok(Look::Nothing);
        }
        let mut out = String::new();
        for event in &events {
            if let Some(change) = Self::told(cx, by, event).await? {
                say(&mut out, Some(event.seq), None, &change);
            }
        }
        self.after = upto;
        if events.last().is_none_or(|event| event.seq < upto) {
            // Other things happened in the mesh: a client that resumes need not read them again.
            out.push_str(&format!("id: {upto}\n\n"));
        }
        Ok(Look::More(out))
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.mesh_watch()
    }
}
