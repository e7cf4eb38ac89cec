//! The memory of agents: stored texts and the search in them.

use overmind_core::ids::{ColonyId, MemoryId, SessionId};
use overmind_core::memory as core;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{FieldError, refuse_non_object};
use crate::run::empty_object;

/// The longest time to live of an item: 100 years.
const MAX_TTL_SECONDS: u64 = 3_155_760_000;

/// A text in the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryItem {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: MemoryId,
    pub collection: String,
    pub text: String,
    /// The embedding, normalized to unit length; empty if the item was stored without one.
    pub embedding: Vec<f32>,
    /// The model that made the embedding; `fts5-bm25` if there is none.
    pub embedding_model: String,
    /// Length of `embedding`.
    pub dims: usize,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata_json: Value,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// The run that stored it, if a run did.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub source_run_id: Option<SessionId>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub colony: ColonyId,
    /// Who stored it.
    #[serde(default)]
    pub author: String,
    /// The kind of author: `user`, `agent`, `tool` or `untrusted`.
    #[serde(default)]
    pub trust: String,
    /// The event from which the text was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event: Option<String>,
    /// Time after which a search no longer finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<Timestamp>,
    /// The item that this one replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub supersedes: Option<MemoryId>,
    /// The item that replaced this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub superseded_by: Option<MemoryId>,
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
            author: item.provenance.author,
            trust: item.provenance.trust.as_str().to_owned(),
            source_event: item.provenance.event,
            expires_at: item.expires_at,
            supersedes: item.supersedes,
            superseded_by: item.superseded_by,
        }
    }
}

/// A memory item with the score of its match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryMatch {
    #[serde(flatten)]
    pub item: MemoryItem,
    /// The score; higher is better. It is 0 for items that are returned for a blank query.
    pub score: f64,
}

impl From<core::MemoryHit> for MemoryMatch {
    fn from(hit: core::MemoryHit) -> Self {
        Self { item: hit.item.into(), score: hit.score }
    }
}

/// Body of `POST /api/memory/store`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MemoryStore {
    /// The collection. May be empty; not trimmed.
    pub collection: String,
    /// The text. May be empty; not trimmed.
    pub text: String,
    /// An object. Default: `{}`.
    #[serde(default = "empty_object")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Value,
    /// Idempotency key: storing again with the same key in the same collection returns the first
    /// item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Seconds until the item expires, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3_155_760_000_u64))]
    pub ttl_seconds: Option<u64>,
    /// The item of the same collection that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
    /// The kind of author: `user` (the default), `agent`, `tool` or `untrusted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    /// The event from which the text was taken, `<stream>.<seq>`; at most 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event: Option<String>,
}

impl MemoryStore {
    /// Creates a request without optional fields.
    pub fn new(collection: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            collection: collection.into(),
            text: text.into(),
            metadata: empty_object(),
            key: None,
            ttl_seconds: None,
            supersedes: None,
            trust: None,
            source_event: None,
        }
    }

    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        refuse_non_object(&mut errors, "metadata", &self.metadata);
        if self.ttl_seconds.is_some_and(|ttl| !(1..=MAX_TTL_SECONDS).contains(&ttl)) {
            let message = format!("must be at least 1 and at most {MAX_TTL_SECONDS}, 100 years");
            errors.push(FieldError::new("ttl_seconds", message));
        }
        if self.supersedes.as_ref().is_some_and(|id| id.parse::<MemoryId>().is_err()) {
            errors.push(FieldError::new("supersedes", "must be the id of a memory item"));
        }
        if self.trust.as_ref().is_some_and(|label| core::Trust::parse(label).is_none()) {
            errors.push(FieldError::new("trust", "must be user, agent, tool or untrusted"));
        }
        errors
    }

    /// Returns the id of the item to replace. `None` also if the text is not an id; [`Self::check`]
    /// reports that.
    pub fn supersedes_id(&self) -> Option<MemoryId> {
        self.supersedes.as_ref()?.parse().ok()
    }

    /// Returns the trust label. The default is `user`.
    pub fn trust_label(&self) -> core::Trust {
        self.trust.as_deref().and_then(core::Trust::parse).unwrap_or(core::Trust::User)
    }
}

/// Answer of `POST /api/memory/store`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryStored {
    pub ok: bool,
    pub item: MemoryItem,
}

/// Body of `POST /api/memory/search`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MemorySearch {
    pub collection: String,
    /// Any text, searched literally. If blank, the newest items are returned.
    pub query: String,
    #[serde(default = "default_top_k")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50, default = 5))]
    pub top_k: u32,
    /// A filter on the metadata: field names with a value, or with `eq`, `in`, `gt`, `gte`, `lt`,
    /// `lte`, `exists`.
    #[serde(default = "empty_object", skip_serializing_if = "is_empty_object")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub filter: Value,
    /// Also returns items that were replaced by others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub history: bool,
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn default_top_k() -> u32 {
    5
}

impl MemorySearch {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !(1..=crate::MAX_TOP_K).contains(&self.top_k) {
            let message = format!("must be from 1 to {}, not {}", crate::MAX_TOP_K, self.top_k);
            errors.push(FieldError::new("top_k", message));
        }
        if let Err(err) = core::MemoryFilter::parse(&self.filter) {
            let text = err.to_string();
            let text = text.strip_prefix("filter: ").unwrap_or(&text);
            errors.push(FieldError::new("filter", text));
        }
        errors
    }

    /// Creates a search of all current items.
    pub fn new(collection: impl Into<String>, query: impl Into<String>, top_k: u32) -> Self {
        let (collection, query) = (collection.into(), query.into());
        Self { collection, query, top_k, filter: empty_object(), history: false }
    }
}

/// Body of `POST /api/memory/reembed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MemoryReembed {
    /// Maximum number of items to embed with this request.
    #[serde(default = "default_batch")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 500, default = 100))]
    pub limit: u32,
}

fn default_batch() -> u32 {
    100
}

impl MemoryReembed {
    /// Returns the mistakes in the fields; empty if there are none.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !(1..=500).contains(&self.limit) {
            let message = format!("must be from 1 to 500, not {}", self.limit);
            errors.push(FieldError::new("limit", message));
        }
        errors
    }
}

/// Answer of `POST /api/memory/reembed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryReembedded {
    pub ok: bool,
    /// Number of items that this request embedded with the configured model.
    pub done: u64,
    /// Whether items remain, so that another request is needed.
    pub more: bool,
}

/// Answer of `POST /api/memory/search`, best match first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryFound {
    pub ok: bool,
    pub results: Vec<MemoryMatch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_returns_1_to_50_results_and_5_by_default() {
        let search: MemorySearch = serde_json::from_str(r#"{"collection":"","query":""}"#).unwrap();
        assert_eq!((search.top_k, search.check()), (5, vec![]));
        for (top_k, right) in [(0, false), (1, true), (50, true), (51, false)] {
            let search = MemorySearch { top_k, ..search.clone() };
            assert_eq!(search.check().is_empty(), right, "{top_k}");
        }
    }

    #[test]
    fn optional_fields_are_checked_if_present() {
        let store = MemoryStore {
            ttl_seconds: Some(0),
            supersedes: Some("x".into()),
            trust: Some("me".into()),
            ..MemoryStore::new("c", "t")
        };
        let fields: Vec<String> = store.check().into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["ttl_seconds", "supersedes", "trust"]);
        let search = MemorySearch {
            filter: serde_json::json!({"a": {"like": "%"}}),
            ..MemorySearch::new("c", "q", 5)
        };
        assert_eq!(search.check()[0].field, "filter");
        let text = serde_json::to_string(&MemorySearch::new("c", "q", 5)).unwrap();
        assert_eq!(text, r#"{"collection":"c","query":"q","top_k":5}"#, "as it always was");
    }

    #[test]
    fn metadata_must_be_an_object() {
        let store: MemoryStore =
            serde_json::from_str(r#"{"collection":"c","text":"t","metadata":"m"}"#).unwrap();
        assert_eq!(store.check(), [FieldError::new("metadata", "must be an object, not a string")]);
    }
}
