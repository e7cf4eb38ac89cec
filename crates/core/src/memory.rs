//! The port to memory: texts in collections, stored once, found by words or meaning.
//!
//! An item says where it came from ([`Provenance`]), may end by itself (`expires_at`), and may
//! take the place of another (`supersedes`); what was replaced is kept as history and found only
//! on request. Searches may be narrowed by a [`MemoryFilter`] over the items' metadata.

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

/// Whose word a remembered text is. A label for whoever reads the text; nothing ranks by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// A human, or a program that acts for one through the API.
    User,
    /// A model wrote it.
    Agent,
    /// A tool's own result, from inside the workspace.
    Tool,
    /// It comes from outside: the web, a mail, another machine. What nobody vouched for.
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

/// Where a text came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Who stored it: a caller's name, or `session`. At most 200 bytes.
    pub author: String,
    pub trust: Trust,
    /// The event it was taken from, `<stream>.<seq>`, as the one who stored it says. At most 200
    /// bytes.
    pub event: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryItem {
    pub id: MemoryId,
    pub colony: ColonyId,
    pub collection: String,
    pub text: String,
    /// Unit length; empty when the item was stored without embeddings.
    pub embedding: Vec<f32>,
    /// `fts5-bm25` when there is no embedding.
    pub embedding_model: String,
    pub metadata: Value,
    pub created_at: Timestamp,
    /// The session that stored it, if one did.
    pub source: Option<SessionId>,
    pub provenance: Provenance,
    /// From this moment on it is not found any more, and removed some time later.
    pub expires_at: Option<Timestamp>,
    /// The item that this one took the place of. It may be gone.
    pub supersedes: Option<MemoryId>,
    /// The item that took this one's place: this one is history. It may be gone.
    pub superseded_by: Option<MemoryId>,
}

impl MemoryItem {
    /// Whether it has ended by itself.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryHit {
    pub item: MemoryItem,
    /// Higher is better. The BM25 score (positive), or in hybrid mode the fused score.
    pub score: f64,
}

#[derive(Clone, Debug)]
pub struct MemoryDraft {
    pub colony: ColonyId,
    pub collection: String,
    pub text: String,
    pub metadata: Value,
    pub source: Option<SessionId>,
    /// Storing twice with the same key stores once and answers with the first item.
    pub key: Option<EffectId>,
    pub provenance: Provenance,
    /// Must be later than now.
    pub expires_at: Option<Timestamp>,
    /// Must be an item of the same collection that nothing has replaced yet.
    pub supersedes: Option<MemoryId>,
}

impl MemoryDraft {
    /// A text with nothing optional.
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

/// The key of a draft that a caller names by `text`: the same text in the same collection is the
/// same key, and no effect of a session has it.
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
    /// Any text; never syntax. Blank: the newest items with score 0.
    pub query: String,
    /// 1..=50.
    pub top_k: usize,
    /// Only items whose metadata fit.
    pub filter: MemoryFilter,
    /// Also items that others have replaced.
    pub history: bool,
    /// The session that asks, if one does: what the search costs is its own.
    pub session: Option<SessionId>,
    /// Who asks, as the log names callers.
    pub caller: String,
}

impl MemoryQuery {
    /// A query over all current items of a collection.
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

/// What one batch of [`Memory::reembed`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reembedded {
    /// Items that have a vector of the configured model now.
    pub done: u64,
    /// There are items left; call again.
    pub more: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The draft or the query is outside its bounds; the text names the field and the bound.
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
    /// [`MemoryError`]; nothing was stored then.
    fn store(&self, draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>>;

    /// # Errors
    ///
    /// [`MemoryError`].
    fn search(&self, query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>>;

    /// Gives up to `limit` items that have no vector of the configured model one, each batch in
    /// one commit with the event that says so. What was done stays done: after a crash, call
    /// again.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Invalid`] when no embedder is configured.
    fn reembed(&self, limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>>;

    /// Removes up to `limit` items that have expired, with the event that says so; how many.
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
    fn a_named_key_is_of_its_collection() {
        let key = |collection, text| named_key(ColonyId::DEFAULT, collection, text);
        assert_eq!(key("a", "bc"), key("a", "bc"));
        assert_ne!(key("a", "bc"), key("ab", "c"));
        assert_ne!(key("a", "bc"), named_key(ColonyId::from_u128(9), "a", "bc"));
    }

    #[test]
    fn labels_of_trust_are_read_back() {
        for trust in Trust::ALL {
            assert_eq!(Trust::parse(trust.as_str()), Some(trust));
        }
        assert_eq!(Trust::parse("User"), None);
        assert_eq!(Trust::default(), Trust::Untrusted);
    }
}
