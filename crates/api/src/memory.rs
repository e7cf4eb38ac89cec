//! Memory on the wire.

use overmind_core::ids::{ColonyId, MemoryId, SessionId};
use overmind_core::memory as core;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::problem::{FieldError, refuse_non_object};
use crate::run::empty_object;

/// One remembered text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryItem {
    #[schema(value_type = String)]
    pub id: MemoryId,
    pub collection: String,
    pub text: String,
    /// Unit length; empty when the item was stored without embeddings.
    pub embedding: Vec<f32>,
    /// `fts5-bm25` when there is no embedding.
    pub embedding_model: String,
    /// Length of `embedding`.
    pub dims: usize,
    #[schema(value_type = Object)]
    pub metadata_json: Value,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The run that stored it, if one did.
    #[schema(value_type = Option<String>)]
    pub source_run_id: Option<SessionId>,
    #[schema(value_type = String)]
    pub colony: ColonyId,
}

impl From<core::MemoryItem> for MemoryItem {
    fn from(item: core::MemoryItem) -> Self {
        Self {
            id: item.id,
            collection: item.collection,
            text: item.text,
            dims: item.embedding.len(),
            embedding: item.embedding,
            embedding_model: item.embedding_model,
            metadata_json: item.metadata,
            created_at: item.created_at,
            source_run_id: item.source,
            colony: item.colony,
        }
    }
}

/// A memory item with how well it matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryMatch {
    #[serde(flatten)]
    pub item: MemoryItem,
    /// Higher is better. 0 for items that fill up a blank query.
    pub score: f64,
}

impl From<core::MemoryHit> for MemoryMatch {
    fn from(hit: core::MemoryHit) -> Self {
        Self { item: hit.item.into(), score: hit.score }
    }
}

/// Body of `POST /api/memory/store`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryStore {
    /// May be empty; not trimmed.
    pub collection: String,
    /// May be empty; not trimmed.
    pub text: String,
    /// An object; not given: `{}`.
    #[serde(default = "empty_object")]
    #[schema(value_type = Object)]
    pub metadata: Value,
}

impl MemoryStore {
    /// What is wrong with the values; empty when nothing is.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_non_object(&mut errors, "metadata", &self.metadata);
        errors
    }
}

/// Answer of `POST /api/memory/store`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStored {
    pub ok: bool,
    pub item: MemoryItem,
}

/// Body of `POST /api/memory/search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySearch {
    pub collection: String,
    /// Any text; never syntax. Blank: the newest items.
    pub query: String,
    #[serde(default = "default_top_k")]
    #[schema(minimum = 1, maximum = 50, default = 5)]
    pub top_k: u32,
}

fn default_top_k() -> u32 {
    5
}

impl MemorySearch {
    /// What is wrong with the values; empty when nothing is.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !(1..=crate::MAX_TOP_K).contains(&self.top_k) {
            let message = format!("must be from 1 to {}, not {}", crate::MAX_TOP_K, self.top_k);
            errors.push(FieldError::new("top_k", message));
        }
        errors
    }
}

/// Answer of `POST /api/memory/search`, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFound {
    pub ok: bool,
    pub results: Vec<MemoryMatch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_takes_1_to_50_results_and_5_when_silent() {
        let search: MemorySearch = serde_json::from_str(r#"{"collection":"","query":""}"#).unwrap();
        assert_eq!((search.top_k, search.check()), (5, vec![]));
        for (top_k, right) in [(0, false), (1, true), (50, true), (51, false)] {
            let search = MemorySearch { top_k, ..search.clone() };
            assert_eq!(search.check().is_empty(), right, "{top_k}");
        }
    }

    #[test]
    fn metadata_must_be_an_object() {
        let store: MemoryStore =
            serde_json::from_str(r#"{"collection":"c","text":"t","metadata":"m"}"#).unwrap();
        assert_eq!(store.check(), [FieldError::new("metadata", "must be an object, not a string")]);
    }
}
