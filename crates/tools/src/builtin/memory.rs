//! `store_memory` and `search_memory`.
//!
//! A result's items are as in the API, but without their vectors, which are useless to a model;
//! `dims` is their size.

use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryItem, MemoryQuery, Provenance, Trust,
};
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, cut, fields};
use crate::gateway::Tool;
use crate::schema::{integer, parse};

#[derive(Debug)]
pub(crate) struct StoreMemory(Arc<dyn Memory>);

#[derive(Debug)]
pub(crate) struct SearchMemory(Arc<dyn Memory>);

impl StoreMemory {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        Self(memory)
    }
}

impl SearchMemory {
    pub(crate) fn new(memory: Arc<dyn Memory>) -> Self {
        Self(memory)
    }
}

#[derive(Debug, Deserialize)]
struct StoreArgs {
    collection: Option<String>,
    text: String,
    #[serde(default)]
    metadata: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct SearchArgs {
    collection: Option<String>,
    query: String,
    #[serde(default = "five", deserialize_with = "integer")]
    top_k: u64,
}

/// The collection for sessions without memory claims.
const DEFAULT: &str = "default";

/// The collection of a call. A session whose memory claims name collections has only those; without
/// `wanted`, it gets the first that fits.
fn collection_of(
    context: &ToolContext,
    wanted: Option<String>,
    writes: bool,
) -> Result<String, Failure> {
    let claimed = context.claims.iter();
    let claimed = claimed.filter_map(|claim| Some((claim.collection.as_deref()?, claim.read_only)));
    let claimed: Vec<(&str, bool)> = claimed.collect();
    if claimed.is_empty() {
        return Ok(wanted.unwrap_or_else(|| DEFAULT.to_owned()));
    }
    let fits = |(_, read_only): &&(&str, bool)| !(writes && *read_only);
    let refused = |message: String| Err(Failure::new("not_permitted", message));
    match wanted {
        None => match claimed.iter().find(fits) {
            Some((name, _)) => Ok((*name).to_owned()),
            None => refused("the memory claims of this run are read-only".to_owned()),
        },
        Some(wanted) => match claimed.iter().find(|(name, _)| *name == wanted) {
            Some(found) if fits(&found) => Ok(wanted),
            Some(_) => refused(format!("the collection {wanted} is read-only for this run")),
            None => {
                let names: Vec<&str> = claimed.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                refused(format!("this run has only the collections of its memory claims: {names}"))
            }
        },
    }
}

fn five() -> u64 {
    5
}

impl Tool for StoreMemory {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "store_memory".into(),
            description: "Remember a text for later sessions. Store one fact or lesson at a time, \
                          in words that a later search would use."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "collection": {
                        "type": "string", "minLength": 1, "default": "default",
                        "description": "Name of the group of texts; at most 200 characters.",
                    },
                    "text": {
                        "type": "string", "minLength": 1,
                        "description": "The text to remember; at most 100000 bytes of UTF-8.",
                    },
                    "metadata": {
                        "type": "object", "default": {},
                        "description": "Anything to keep beside the text; it is not searched.",
                    },
                },
                "required": ["text"],
                "additionalProperties": false,
            }),
            class: EffectClass::Idempotent,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let StoreArgs { collection, text, metadata } = parse(args)?;
            let collection = collection_of(context, collection, true)?;
            let draft = MemoryDraft {
                metadata: Value::Object(metadata),
                source: Some(context.session),
                key: Some(context.effect),
                provenance: Provenance {
                    author: context.session.to_string(),
                    trust: Trust::Agent,
                    event: None,
                },
                ..MemoryDraft::new(context.colony, collection, text)
            };
            let item = self.0.store(draft).await.map_err(failure)?;
            Ok(fields(json!({"item": shown(&item, MAX_TEXT_BYTES)})))
        })
    }
}

impl Tool for SearchMemory {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "search_memory".into(),
            description:
                "Search remembered texts. The query is plain words, not a query language. \
                          The best matches come first; a higher score is better, and score 0 marks \
                          a recent text that does not match at all."
                    .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "collection": {
                        "type": "string", "minLength": 1, "default": "default",
                        "description": "Name of the group of texts to search.",
                    },
                    "query": {
                        "type": "string", "minLength": 1,
                        "description": "What to look for, in a few words.",
                    },
                    "top_k": {
                        "type": "integer", "minimum": 1, "maximum": 50, "default": 5,
                        "description": "How many results at most.",
                    },
                },
                "required": ["query"],
                "additionalProperties": false,
            }),
            class: EffectClass::Pure,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let SearchArgs { collection, query, top_k } = parse(args)?;
            let collection = collection_of(context, collection, false)?;
            let top_k = usize::try_from(top_k).unwrap_or(usize::MAX);
            let query = MemoryQuery {
                session: Some(context.session),
                caller: context.session.to_string(),
                ..MemoryQuery::new(context.colony, collection, query, top_k)
            };
            let hits = self.0.search(query).await.map_err(failure)?;
            // Each item gets the same share of the limit of one answer.
            let share = MAX_TEXT_BYTES / hits.len().max(1);
            let results: Vec<Value> = hits
                .iter()
                .map(|hit| {
                    let mut item = shown(&hit.item, share);
                    item.insert("score".into(), json!(hit.score));
                    Value::Object(item)
                })
                .collect();
            Ok(fields(json!({"results": results})))
        })
    }
}

/// An item with at most `max_bytes` of text and metadata, and a mark if something was left out.
fn shown(item: &MemoryItem, max_bytes: usize) -> Map<String, Value> {
    let metadata_bytes = item.metadata.to_string().len();
    // `{}` counts as nothing; other metadata may take half.
    let keep_metadata = metadata_bytes <= max_bytes / 2;
    let text = cut(&item.text, max_bytes - if keep_metadata { metadata_bytes } else { 0 });
    let mut all = fields(json!({
        "id": item.id.to_string(),
        "collection": item.collection,
        "text": text,
        "embedding_model": item.embedding_model,
        "dims": item.embedding.len(),
        "metadata_json": if keep_metadata { item.metadata.clone() } else { json!({}) },
        "created_at": item.created_at.to_string(),
        "trust": item.provenance.trust.as_str(),
    }));
    if text.len() < item.text.len() {
        all.insert("text_bytes".into(), item.text.len().into());
    }
    if !keep_metadata {
        all.insert("metadata_bytes".into(), metadata_bytes.into());
    }
    all
}

/// The engine repeats calls that fail with `temporarily_unavailable`.
fn failure(err: MemoryError) -> Failure {
    let message = err.to_string();
    let transient = match &err {
        MemoryError::Invalid { .. } => return Failure::bad_args(message),
        MemoryError::Embedding { transient, .. } => *transient,
        MemoryError::Store(err) => err.is_transient(),
    };
    Failure::new(if transient { "temporarily_unavailable" } else { "tool_error" }, message)
}
