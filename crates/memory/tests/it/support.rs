use std::sync::Arc;

use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::memory::{Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery};
use overmind_core::store::{EventQuery, LogEvent, Store};
use overmind_memory::{Embedder, MemoryService};
use overmind_store::{Options, Sqlite};
use overmind_testkit::clock::ManualClock;
use overmind_testkit::ids::SeededIds;

pub(crate) const COLLECTION: &str = "notes";

/// A memory over a store in a separate directory.
pub(crate) struct Bench {
    pub(crate) memory: MemoryService,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<ManualClock>,
    ids: Arc<SeededIds>,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn local() -> Self {
        Self::new(None)
    }

    pub(crate) fn new(embedder: Option<Arc<dyn Embedder>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("overmind.db"));
        options.add_secret("hunter2-is-my-password");
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(options).unwrap());
        let clock = Arc::new(ManualClock::default());
        let ids = Arc::new(SeededIds::new(1));
        let memory = MemoryService::new(store.clone(), clock.clone(), ids.clone(), embedder);
        Self { memory, store, clock, ids, _dir: dir }
    }

    /// Another memory over the same store.
    pub(crate) fn beside(&self, embedder: Option<Arc<dyn Embedder>>) -> MemoryService {
        MemoryService::new(self.store.clone(), self.clock.clone(), self.ids.clone(), embedder)
    }

    pub(crate) async fn add(&self, text: &str) -> MemoryItem {
        self.clock.advance(std::time::Duration::from_secs(1));
        self.memory.store(draft(text)).await.unwrap()
    }

    pub(crate) async fn find(&self, query: &str, top_k: usize) -> Vec<MemoryHit> {
        self.memory.search(ask(query, top_k)).await.unwrap()
    }

    /// The texts found, in order.
    pub(crate) async fn texts(&self, query: &str, top_k: usize) -> Vec<String> {
        self.find(query, top_k).await.into_iter().map(|hit| hit.item.text).collect()
    }

    pub(crate) async fn stored_events(&self) -> Vec<LogEvent> {
        let kinds = &["memory.stored"];
        self.store.events(EventQuery { stream: None, after: 0, kinds, limit: 1000 }).await.unwrap()
    }
}

pub(crate) fn draft(text: &str) -> MemoryDraft {
    MemoryDraft::new(ColonyId::DEFAULT, COLLECTION.into(), text.into())
}

pub(crate) fn keyed(text: &str, key: u128) -> MemoryDraft {
    MemoryDraft { key: Some(EffectId::from_u128(key)), ..draft(text) }
}

pub(crate) fn from_session(text: &str, session: SessionId) -> MemoryDraft {
    MemoryDraft { source: Some(session), ..draft(text) }
}

pub(crate) fn ask(query: &str, top_k: usize) -> MemoryQuery {
    MemoryQuery::new(ColonyId::DEFAULT, COLLECTION.into(), query.into(), top_k)
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, MemoryError>) -> String {
    match result {
        Err(MemoryError::Invalid { message }) => message,
        other => panic!("wanted a refusal, got {other:?}"),
    }
}
