//! The port to the memory: texts in collections, found by words or by meaning.
//!
//! An item has its origin ([`Provenance`]), may expire (`expires_at`), and may replace another
//! (`supersedes`). Replaced items are kept as history and found only on request. A [`MemoryFilter`]
//! on the items' metadata can narrow a search.

mod filter;

use std::fmt;

use serde_json::{Value, json};

pub use self::filter::{
    Condition, FilterError, MAX_CONDITIONS, MAX_FILTER_VALUE_BYTES, MAX_KEY_BYTES, MAX_VALUES,
    MemoryFilter, Test,
};
use crate::Fut;
use crate::ids::{ColonyId, EffectId, MemoryId, SessionId};
use crate::time::Timestamp;

/// The kind of author of a text. It is a label for readers and does not change the ranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// A human, or a program that acts for one through the API.
    User,
    /// A model.
    Agent,
    /// A tool's own result, from inside the workspace.
    Tool,
    /// A source outside: the web, a mail, another machine. Nobody vouches for it.
    #[default]
    Untrusted,
}

impl Trust {
    pub const ALL: [Self; 4] = [Self::User, Self::Agent, Self::Tool, Self::Untrusted];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::Tool => "tool",
            Self::Untrusted => "untrusted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|trust| trust.as_str() == text)
    }
}

/// The origin of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Who stored it: a caller's name, or `session`. At most 200 bytes.
    pub author: String,
    pub trust: Trust,
    /// The event from which it was taken, `<stream>.<seq>`, as the author stated. At most 200
    /// bytes.
    pub event: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryItem {
    pub id: MemoryId,
    pub colony: ColonyId,
    pub collection: String,
    pub text: String,
    /// The embedding, normalized to unit length; empty if the item was stored without one.
    pub embedding: Vec<f32>,
    /// The model that made the embedding; `fts5-bm25` if there is none.
    pub embedding_model: String,
    pub metadata: Value,
    pub created_at: Timestamp,
    /// The session that stored it, if a session did.
    pub source: Option<SessionId>,
    pub provenance: Provenance,
    /// Time after which it is no longer found. It is removed some time later.
    pub expires_at: Option<Timestamp>,
    /// The item that this one replaced. It may have been removed.
    pub supersedes: Option<MemoryId>,
    /// The item that replaced this one, which is then history. It may have been removed.
    pub superseded_by: Option<MemoryId>,
}

impl MemoryItem {
    /// Returns whether it has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryHit {
    pub item: MemoryItem,
    /// The score; higher is better. The BM25 score (positive), or in hybrid mode the fused score.
    pub score: f64,
}

#[derive(Clone, Debug)]
pub struct MemoryDraft {
    pub colony: ColonyId,
    pub collection: String,
    pub text: String,
    pub metadata: Value,
    pub source: Option<SessionId>,
    /// Idempotency key: storing again with the same key returns the first item.
    pub key: Option<EffectId>,
    pub provenance: Provenance,
    /// Must be later than now.
    pub expires_at: Option<Timestamp>,
    /// Must be an item of the same collection that nothing has replaced yet.
    pub supersedes: Option<MemoryId>,
}

impl MemoryDraft {
    /// Creates a draft without optional fields.
    pub fn new(colony: ColonyId, collection: String, text: String) -> Self {
        Self {
            colony,
            collection,
            text,
            metadata: json!({}),
            source: None,
            key: None,
            provenance: Provenance::default(),
            expires_at: None,
            supersedes: None,
        }
    }
}

/// Returns the key for a caller's `text`. The same text in the same collection gives the same key,
/// and no effect of a session has it.
pub fn named_key(colony: ColonyId, collection: &str, text: &str) -> EffectId {
    let mut hash = blake3::Hasher::new();
    hash.update(b"memory key").update(&colony.as_u128().to_be_bytes());
    hash.update(&(collection.len() as u64).to_be_bytes()).update(collection.as_bytes());
    hash.update(text.as_bytes());
    let mut id = [0; 16];
    hash.finalize_xof().fill(&mut id);
    EffectId::from_u128(u128::from_be_bytes(id))
}

#[derive(Clone, Debug)]
pub struct MemoryQuery {
    pub colony: ColonyId,
    pub collection: String,
    /// Any text, searched literally. If blank, the newest items are returned with score 0.
    pub query: String,
    /// 1..=50.
    pub top_k: usize,
    /// A condition on the items' metadata.
    pub filter: MemoryFilter,
    /// Also returns items that were replaced by others.
    pub history: bool,
    /// The session that searches, if any. It pays the cost of the search.
    pub session: Option<SessionId>,
    /// The caller, as the log names callers.
    pub caller: String,
}

impl MemoryQuery {
    /// Creates a query of all current items of a collection.
    pub fn new(colony: ColonyId, collection: String, query: String, top_k: usize) -> Self {
        Self {
            colony,
            collection,
            query,
            top_k,
            filter: MemoryFilter::default(),
            history: false,
            session: None,
            caller: String::new(),
        }
    }
}

/// The result of one batch of [`Memory::reembed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reembedded {
    /// Number of items that this batch embedded with the configured model.
    pub done: u64,
    /// Whether items remain, so that another call is needed.
    pub more: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The draft or the query exceeds a limit. The text names the field and the limit.
    #[error("{message}")]
    Invalid { message: String },
    #[error("embedding the text: {message}")]
    Embedding { message: String, transient: bool },
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
}

pub trait Memory: Send + Sync + fmt::Debug {
    /// # Errors
    ///
    /// [`MemoryError`]; then nothing was stored.
    fn store(&self, draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>>;

    /// # Errors
    ///
    /// [`MemoryError`].
    fn search(&self, query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>>;

    /// Embeds up to `limit` items that have no vector of the configured model. Each batch is one
    /// commit with its event. Finished batches stay, so call again after a crash.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Invalid`] if no embedder is configured.
    fn reembed(&self, limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>>;

    /// Removes up to `limit` expired items, with an event. Returns their number.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Store`].
    fn collect(&self, limit: u32) -> Fut<'_, Result<u64, MemoryError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_key_belongs_to_its_collection() {
        let key = |collection, text| named_key(ColonyId::DEFAULT, collection, text);
        assert_eq!(key("a", "bc"), key("a", "bc"));
        assert_ne!(key("a", "bc"), key("ab", "c"));
        assert_ne!(key("a", "bc"), named_key(ColonyId::from_u128(9), "a", "bc"));
    }

    #[test]
    fn trust_labels_are_parsed_back() {
        for trust in Trust::ALL {
            assert_eq!(Trust::parse(trust.as_str()), Some(trust));
        }
        assert_eq!(Trust::parse("User"), None);
        assert_eq!(Trust::default(), Trust::Untrusted);
    }
}
