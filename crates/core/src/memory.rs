//! The port to memory: texts in collections, stored once, found by words or meaning.

use std::fmt;

use serde_json::Value;

use crate::Fut;
use crate::ids::{ColonyId, EffectId, MemoryId, SessionId};
use crate::time::Timestamp;

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
}

#[derive(Clone, Debug)]
pub struct MemoryQuery {
    pub colony: ColonyId,
    pub collection: String,
    /// Any text; never syntax. Blank: the newest items with score 0.
    pub query: String,
    /// 1..=50.
    pub top_k: usize,
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
}
