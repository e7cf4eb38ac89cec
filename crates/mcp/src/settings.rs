//! Where the servers and their pins are kept between two lives of the daemon.

use std::fmt;
use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::store::{Change, Commit, NewEvent, Store, StreamId};
use overmind_core::time::Clock;
use serde_json::Value;

/// One JSON document, and a record of each change.
pub trait Settings: Send + Sync + fmt::Debug {
    /// `None` when nothing was ever saved.
    ///
    /// # Errors
    ///
    /// A text for people.
    fn load(&self) -> Fut<'_, Result<Option<Value>, String>>;

    /// Saves durably. `kind` and `event` say what happened, for the log; they hold no secret.
    ///
    /// # Errors
    ///
    /// A text for people; nothing is saved then.
    fn save(
        &self,
        document: Value,
        kind: &'static str,
        event: Value,
    ) -> Fut<'_, Result<(), String>>;
}

/// In the store, under one key, with an event in the same commit.
#[derive(Debug)]
pub struct StoreSettings {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

impl StoreSettings {
    /// The key in the store.
    pub const KEY: &str = "mcp_servers";

    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }
}

impl Settings for StoreSettings {
    fn load(&self) -> Fut<'_, Result<Option<Value>, String>> {
        Box::pin(async {
            self.store.setting_fetch(Self::KEY.to_owned()).await.map_err(|err| err.to_string())
        })
    }

    fn save(
        &self,
        document: Value,
        kind: &'static str,
        event: Value,
    ) -> Fut<'_, Result<(), String>> {
        Box::pin(async move {
            let at = self.clock.now();
            let event = NewEvent { stream: StreamId::System, kind, ts: at, payload: event };
            let change = Change::SettingPut { key: Self::KEY.to_owned(), value: document, at };
            let commit = Commit { guards: Vec::new(), events: vec![event], changes: vec![change] };
            self.store.commit(commit).await.map(drop).map_err(|err| err.to_string())
        })
    }
}
