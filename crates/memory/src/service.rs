//! The memory service: limits, embedding, storing once, ranking.

use std::collections::HashSet;
use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::budget::Behalf;
use overmind_core::ids::{EffectId, IdSource, MemoryId};
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery, Provenance, Reembedded,
};
use overmind_core::store::{
    Change, Commit, MemoryMatch, MemoryScope, NewEvent, Page, Store, StreamId,
};
use overmind_core::time::Clock;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::embed::{EmbedError, Embedder};
use crate::fusion::Fusion;
use crate::terms::terms;

/// Maximum number of bytes of UTF-8 in an item's text, and in a query.
pub const MAX_TEXT_BYTES: usize = 100_000;
/// Maximum number of characters in the name of a collection.
pub const MAX_COLLECTION_CHARS: usize = 200;
/// Maximum number of bytes of an item's metadata as compact JSON.
pub const MAX_METADATA_BYTES: usize = 16 << 10;
/// Maximum number of bytes of an author's name, and of the name of a text's source event.
pub const MAX_PROVENANCE_BYTES: usize = 200;
/// Maximum number of results of one search.
pub const MAX_TOP_K: usize = 50;
/// The `embedding_model` of an item without a vector.
pub const LOCAL_MODEL: &str = "fts5-bm25";

/// Only the first part of a long text is embedded: models accept about 8,000 tokens and refuse
/// more.
const MAX_EMBEDDED_BYTES: usize = 16_000;
/// Maximum number of items of one batch of `reembed` and `collect`; each batch is one commit.
const MAX_BATCH: u32 = 500;
/// The name in the log for requests of vectors for existing items.
const REEMBEDDING: &str = "reembed";
/// The number of locks among which idempotency keys are distributed.
const LOCKS: usize = 64;

/// Memory in a store, with or without an embedder.
///
/// # Ranking
///
/// Without an embedder, items that contain any of the query's words come first, ranked by BM25
/// (always above 0). If there are matches but fewer than `top_k`, the newest other items of the
/// collection follow with score 0, which means "recent, but no match". If nothing matches, the
/// result is empty. A blank query returns the newest items, with score 0.
///
/// With an embedder, the rankings by words and by cosine are merged by reciprocal rank (see
/// [`Fusion`]). Items that were stored without a vector, or with another model's, are still found
/// by their words. No recent items are added, because there are always nearest vectors.
///
/// Expired items are never found, replaced items only on request, and a filter applies to all
/// results, including added recent items.
///
/// # When the embedder is down
///
/// Storing and searching fail with [`MemoryError::Embedding`]. A search by words only would return
/// a worse result without notice; an item without its vector would be only partly findable forever.
/// Only a blank query needs no embedder.
///
/// # What it costs
///
/// A call of an embeddings server is reserved and settled like any model call: in the budgets of
/// the calling session, or of the swarm. If a budget refuses it, the call fails with
/// [`MemoryError::Embedding`] before anything is sent.
///
/// # What leaves the machine
///
/// Texts and queries are redacted by the store before they go to the embedder, so it never gets a
/// secret that the store would mask.
#[derive(Debug)]
pub struct MemoryService {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    embedder: Option<Arc<dyn Embedder>>,
    fusion: Fusion,
    /// Held from looking a key up to its commit, so that one key is stored once even if two calls
    /// use it at the same time. Another process cannot interfere: the store has one owner.
    locks: [Mutex<()>; LOCKS],
}

impl MemoryService {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        embedder: Option<Arc<dyn Embedder>>,
    ) -> Self {
        let locks = std::array::from_fn(|_| Mutex::new(()));
        Self { store, clock, ids, embedder, fusion: Fusion::default(), locks }
    }

    /// The same service with other weights, for measurements.
    #[must_use]
    pub fn with_fusion(self, fusion: Fusion) -> Self {
        Self { fusion, ..self }
    }

    async fn put(&self, draft: MemoryDraft) -> Result<MemoryItem, MemoryError> {
        check_draft(&draft)?;
        if draft.expires_at.is_some_and(|at| at <= self.clock.now()) {
            return Err(invalid("expires_at must be later than now".into()));
        }
        let MemoryDraft {
            colony,
            collection,
            text,
            metadata,
            source,
            key,
            mut provenance,
            expires_at,
            supersedes,
        } = draft;
        if let Some(first) = self.seen(key).await? {
            return Ok(first);
        }
        // The masked text is embedded, stored and returned.
        let text = self.masked(text);
        let mut metadata = metadata;
        self.store.redact(&mut metadata);
        provenance.author = self.masked(provenance.author);
        provenance.event = provenance.event.map(|event| self.masked(event));
        let (embedding, embedding_model) = match &self.embedder {
            Some(embedder) => {
                let behalf = Behalf { colony, session: source, caller: provenance.author.clone() };
                let vector = self.vector(&**embedder, &text, &behalf).await?;
                (vector, model(&**embedder).await?.as_ref().to_owned())
            }
            None => (Vec::new(), LOCAL_MODEL.to_owned()),
        };
        let _turn = match key {
            Some(key) => Some(self.locks[slot(key)].lock().await),
            None => None,
        };
        // It is checked again, because another call may have stored it while the vector was made.
        if let Some(first) = self.seen(key).await? {
            return Ok(first);
        }
        let old = match supersedes {
            Some(old) => self.store.memory_fetch(old).await?,
            None => None,
        };
        let item = MemoryItem {
            id: MemoryId::mint(&*self.ids),
            colony,
            collection,
            text,
            embedding,
            embedding_model,
            metadata,
            created_at: self.clock.now(),
            source,
            provenance,
            expires_at,
            supersedes,
            superseded_by: None,
        };
        let event = stored(&item, old.as_ref());
        let change = Change::MemoryInsert { item: Box::new(item.clone()), key };
        let commit = Commit { guards: Vec::new(), events: vec![event], changes: vec![change] };
        self.store.commit(commit).await?;
        match key {
            // The store ignores a known key. If its item was deleted since, nothing was stored now,
            // and success must not be reported.
            Some(key) => self.store.memory_by_key(key).await?.ok_or_else(|| {
                invalid("this call stored its text before, and the item was deleted since".into())
            }),
            None => Ok(item),
        }
    }

    /// The item with the key; `None` if it has expired, because then the key is free again.
    async fn seen(&self, key: Option<EffectId>) -> Result<Option<MemoryItem>, MemoryError> {
        let Some(key) = key else { return Ok(None) };
        let now = self.clock.now();
        let held = self.store.memory_by_key(key).await?;
        Ok(held.filter(|item| item.expires_at.is_none_or(|at| at > now)))
    }

    async fn find(&self, query: MemoryQuery) -> Result<Vec<MemoryHit>, MemoryError> {
        check_query(&query)?;
        let MemoryQuery { colony, collection, query, top_k, filter, history, session, caller } =
            query;
        let behalf = Behalf { colony, session, caller };
        let collection = Some(collection);
        let scope = MemoryScope { colony, collection, filter, history, now: self.clock.now() };
        let newest = |limit: usize| {
            let page = Page { limit: small(limit), after: None };
            self.store.memory_list(scope.clone(), page)
        };
        if query.trim().is_empty() {
            let items = newest(top_k).await?;
            return Ok(items.into_iter().map(|item| MemoryHit { item, score: 0.0 }).collect());
        }
        let words = terms(&query);
        let matches = async |limit: usize| -> Result<Vec<MemoryMatch>, MemoryError> {
            if words.is_empty() {
                return Ok(Vec::new());
            }
            Ok(self.store.memory_match(scope.clone(), words.clone(), small(limit)).await?)
        };
        let Some(embedder) = &self.embedder else {
            let mut hits: Vec<_> = matches(top_k).await?.into_iter().map(matched).collect();
            let missing = top_k.saturating_sub(hits.len());
            if !hits.is_empty() && missing > 0 {
                let known: HashSet<MemoryId> = hits.iter().map(|hit| hit.item.id).collect();
                // The `top_k` newest contain `missing` others, if there are so many.
                let others = newest(top_k).await?.into_iter().filter(|i| !known.contains(&i.id));
                hits.extend(others.take(missing).map(|item| MemoryHit { item, score: 0.0 }));
            }
            return Ok(hits);
        };
        // An item beyond that in both lists cannot come to the front.
        let limit = (4 * top_k).max(50);
        let near = async || -> Result<Vec<MemoryMatch>, MemoryError> {
            let vector = self.vector(&**embedder, &self.masked(query.clone()), &behalf).await?;
            if vector.is_empty() {
                return Ok(Vec::new());
            }
            let model = model(&**embedder).await?.as_ref().to_owned();
            Ok(self.store.memory_nearest(scope.clone(), model, vector, small(limit)).await?)
        };
        // Each search runs on a thread of the store.
        let (by_words, by_meaning) = tokio::try_join!(matches(limit), near())?;
        Ok(self.fusion.fuse(by_words, by_meaning, top_k))
    }

    async fn embed_again(&self, limit: u32) -> Result<Reembedded, MemoryError> {
        let Some(embedder) = &self.embedder else {
            return Err(invalid("no embedder is configured: set memory.embedding_provider".into()));
        };
        let limit = limit.clamp(1, MAX_BATCH);
        let (name, now) = (model(&**embedder).await?, self.clock.now());
        let stale =
            self.store.memory_stale(name.as_ref().into(), embedder.dims(), now, None, limit);
        let stale = stale.await?;
        let more = stale.len() == limit as usize;
        let mut changes = Vec::with_capacity(stale.len());
        for item in &stale {
            let behalf =
                Behalf { colony: item.colony, session: None, caller: REEMBEDDING.to_owned() };
            let vector = self.vector(&**embedder, &item.text, &behalf).await?;
            changes.push(Change::MemoryEmbed { id: item.id, model: name.as_ref().into(), vector });
        }
        if changes.is_empty() {
            return Ok(Reembedded::default());
        }
        let ids: Vec<MemoryId> = stale.iter().map(|item| item.id).collect();
        let payload = json!({"item_ids": ids, "embedding_model": name.as_ref()});
        self.tell("memory.reembedded", payload, changes).await?;
        Ok(Reembedded { done: stale.len() as u64, more })
    }

    async fn remove_expired(&self, limit: u32) -> Result<u64, MemoryError> {
        let limit = limit.clamp(1, MAX_BATCH);
        let expired = self.store.memory_expired(self.clock.now(), limit).await?;
        if expired.is_empty() {
            return Ok(0);
        }
        let ids: Vec<MemoryId> = expired.iter().map(|(id, _, _)| *id).collect();
        let changes = ids.iter().map(|id| Change::MemoryDelete(*id)).collect();
        self.tell("memory.expired", json!({"item_ids": ids}), changes).await?;
        Ok(ids.len() as u64)
    }

    /// Commits changes of many items together with their event.
    async fn tell(
        &self,
        kind: &'static str,
        payload: Value,
        changes: Vec<Change>,
    ) -> Result<(), MemoryError> {
        let event = NewEvent { stream: StreamId::System, kind, ts: self.clock.now(), payload };
        self.store.commit(Commit { guards: Vec::new(), events: vec![event], changes }).await?;
        Ok(())
    }

    fn masked(&self, text: String) -> String {
        let mut value = Value::String(text);
        self.store.redact(&mut value);
        match value {
            Value::String(text) => text,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => {
                unreachable!("redaction masks within texts and keeps their kind")
            }
        }
    }

    /// The vector of the text's first part, with unit length; empty if the model knows nothing in
    /// it.
    async fn vector(
        &self,
        embedder: &dyn Embedder,
        text: &str,
        behalf: &Behalf,
    ) -> Result<Vec<f32>, MemoryError> {
        // Endpoints refuse an empty input, and an empty text has no meaning.
        let text = match &text[..text.floor_char_boundary(MAX_EMBEDDED_BYTES)] {
            "" => " ",
            text => text,
        };
        let mut vector = embedder.embed(text, behalf).await.map_err(failed)?;
        if vector.is_empty() {
            return Ok(vector);
        }
        if let Err(why) = unit(&mut vector) {
            let message = format!("the model {} answered {why}", model(embedder).await?);
            return Err(MemoryError::Embedding { message, transient: false });
        }
        Ok(vector)
    }
}

impl Memory for MemoryService {
    fn store(&self, draft: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>> {
        Box::pin(self.put(draft))
    }

    fn search(&self, query: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>> {
        Box::pin(self.find(query))
    }

    fn reembed(&self, limit: u32) -> Fut<'_, Result<Reembedded, MemoryError>> {
        Box::pin(self.embed_again(limit))
    }

    fn collect(&self, limit: u32) -> Fut<'_, Result<u64, MemoryError>> {
        Box::pin(self.remove_expired(limit))
    }
}

/// The event of a new item that replaces `old`. Default values are omitted.
fn stored(item: &MemoryItem, old: Option<&MemoryItem>) -> NewEvent {
    let mut payload = json!({
        "item_id": item.id,
        "colony": item.colony,
        "collection": item.collection,
        "bytes": item.text.len(),
        "embedding_model": item.embedding_model,
        "dims": item.embedding.len(),
        "author": item.provenance.author,
        "trust": item.provenance.trust.as_str(),
    });
    if let Some(at) = item.expires_at {
        payload["expires_at"] = json!(at.to_string());
    }
    if let Some(old) = item.supersedes {
        payload["supersedes"] = json!(old);
    }
    if let Some(event) = &item.provenance.event {
        payload["source_event"] = json!(event);
    }
    if let Some(MemoryItem { provenance: Provenance { author, trust, event }, .. }) = old {
        payload["was"] = json!({"author": author, "trust": trust.as_str()});
        if let Some(event) = event {
            payload["was"]["source_event"] = json!(event);
        }
    }
    NewEvent {
        stream: item.source.map_or(StreamId::System, StreamId::Session),
        kind: "memory.stored",
        ts: item.created_at,
        payload,
    }
}

async fn model(embedder: &dyn Embedder) -> Result<Arc<str>, MemoryError> {
    embedder.model().await.map_err(failed)
}

fn failed(err: EmbedError) -> MemoryError {
    MemoryError::Embedding { message: err.message, transient: err.transient }
}

fn matched(found: MemoryMatch) -> MemoryHit {
    // 0 means "no match", so a match is always above 0, however common its words are.
    MemoryHit { item: found.item, score: found.bm25.max(1e-9) }
}

fn check_draft(draft: &MemoryDraft) -> Result<(), MemoryError> {
    check_bytes("text", &draft.text)?;
    check_collection(&draft.collection)?;
    if !draft.metadata.is_object() {
        return Err(invalid("metadata must be an object".into()));
    }
    let bytes = draft.metadata.to_string().len();
    if bytes > MAX_METADATA_BYTES {
        return Err(invalid(format!(
            "metadata must be at most {MAX_METADATA_BYTES} bytes of JSON, got {bytes}"
        )));
    }
    let provenance = &draft.provenance;
    let event = provenance.event.as_deref().unwrap_or_default();
    for (field, text) in [("author", provenance.author.as_str()), ("source_event", event)] {
        if text.len() > MAX_PROVENANCE_BYTES {
            return Err(invalid(format!(
                "{field} must be at most {MAX_PROVENANCE_BYTES} bytes, got {}",
                text.len()
            )));
        }
    }
    Ok(())
}

fn check_query(query: &MemoryQuery) -> Result<(), MemoryError> {
    check_bytes("query", &query.query)?;
    check_collection(&query.collection)?;
    match query.top_k {
        0 => Err(invalid("top_k must be >= 1".into())),
        1..=MAX_TOP_K => Ok(()),
        _ => Err(invalid(format!("top_k must be <= {MAX_TOP_K}"))),
    }
}

fn check_bytes(field: &str, text: &str) -> Result<(), MemoryError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(invalid(format!(
            "{field} must be at most {MAX_TEXT_BYTES} bytes, got {}",
            text.len()
        )));
    }
    Ok(())
}

fn check_collection(collection: &str) -> Result<(), MemoryError> {
    if collection.chars().nth(MAX_COLLECTION_CHARS).is_some() {
        return Err(invalid(format!(
            "collection must be at most {MAX_COLLECTION_CHARS} characters"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> MemoryError {
    MemoryError::Invalid { message }
}

/// Scales a vector to length 1, so that a dot product is a cosine.
fn unit(vector: &mut [f32]) -> Result<(), &'static str> {
    // It uses f64, because squares of large components would overflow f32.
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err("a vector with components that are not numbers");
    }
    if length == 0.0 {
        return Err("a vector of length zero");
    }
    for x in vector {
        #[expect(clippy::cast_possible_truncation, reason = "within -1..=1; rounding is meant")]
        let scaled = (f64::from(*x) / length) as f32;
        *x = scaled;
    }
    Ok(())
}

fn slot(key: EffectId) -> usize {
    // The low bits of an id are random or counted; both distribute well.
    usize::try_from(key.as_u128() % LOCKS as u128).unwrap_or(0)
}

fn small(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_get_unit_length_or_are_refused() {
        let mut v = vec![3.0, 4.0];
        unit(&mut v).unwrap();
        assert_eq!(v, [0.6, 0.8]);
        let mut huge = vec![f32::MAX, f32::MAX];
        unit(&mut huge).unwrap();
        assert!((huge[0] - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-6);
        assert!(unit(&mut [0.0, 0.0]).is_err());
        assert!(unit(&mut [f32::NAN]).is_err());
        assert!(unit(&mut [f32::INFINITY]).is_err());
    }
}
