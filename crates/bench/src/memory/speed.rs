//! How fast memory is at 100,000 items.
//!
//! The texts are made of the words of the manual's pages, so that common words are as common as
//! they are in real text. The questions are those of the corpus.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::budget::Behalf;
use overmind_core::ids::{ColonyId, MemoryId};
use overmind_core::memory::{Memory, MemoryError, MemoryItem, MemoryQuery, Provenance, Trust};
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_memory::{Embedder, MemoryService};
use serde_json::json;

use super::corpus::Corpus;
use super::quality::Parts;

const COLLECTION: &str = "speed";
/// Items in one commit.
const BULK: usize = 1_000;
/// Words of one item.
const WORDS: usize = 40;

#[derive(Clone, Debug, Default)]
pub(crate) struct Speed {
    pub(crate) items: usize,
    /// Sorted.
    pub(crate) words: Vec<Duration>,
    /// Sorted.
    pub(crate) hybrid: Vec<Duration>,
    /// Components of a vector.
    pub(crate) dims: usize,
    /// The first search by vector, which reads them all.
    pub(crate) first: Duration,
}

/// Stores `items` items and asks every question twice, by words and in both ways.
///
/// # Errors
///
/// [`MemoryError`].
pub(crate) async fn measure(
    parts: &Parts,
    corpus: &Corpus,
    items: usize,
) -> Result<Speed, MemoryError> {
    let dims =
        parts.embedder.embed("some text", &Behalf::default()).await.map_err(embedding)?.len();
    fill(parts, COLLECTION, texts(corpus, items)).await?;
    let memory = |embedder: Option<Arc<dyn Embedder>>| {
        let Parts { store, clock, ids, .. } = parts;
        MemoryService::new(Arc::clone(store), Arc::clone(clock), Arc::clone(ids), embedder)
    };
    let (by_words, both) = (memory(None), memory(Some(Arc::clone(&parts.embedder))));
    let start = Instant::now();
    both.search(query("warm up")).await?;
    let mut speed = Speed { items, dims, first: start.elapsed(), ..Speed::default() };
    // Once round for the caches of the store's threads.
    for round in 0..2 {
        for question in &corpus.questions {
            let start = Instant::now();
            by_words.search(query(&question.text)).await?;
            let words = start.elapsed();
            let start = Instant::now();
            both.search(query(&question.text)).await?;
            if round > 0 {
                speed.words.push(words);
                speed.hybrid.push(start.elapsed());
            }
        }
    }
    speed.words.sort_unstable();
    speed.hybrid.sort_unstable();
    Ok(speed)
}

/// Stores texts with their vectors, many in one commit.
///
/// # Errors
///
/// [`MemoryError`].
pub(super) async fn fill(
    parts: &Parts,
    collection: &str,
    texts: impl Iterator<Item = String>,
) -> Result<(), MemoryError> {
    let model = parts.embedder.model().await.map_err(embedding)?;
    let mut texts = texts.peekable();
    while texts.peek().is_some() {
        let mut changes = Vec::with_capacity(BULK);
        for text in texts.by_ref().take(BULK) {
            let item = item(parts, &model, collection, text).await?;
            changes.push(Change::MemoryInsert { item: Box::new(item), key: None });
        }
        let payload = json!({"items": changes.len()});
        let event = NewEvent {
            stream: StreamId::System,
            kind: "memory.stored",
            ts: parts.clock.now(),
            payload,
        };
        parts.store.commit(Commit { guards: vec![], events: vec![event], changes }).await?;
    }
    Ok(())
}

/// Running text, of each item from another place of the manual.
pub(super) fn texts(corpus: &Corpus, items: usize) -> impl Iterator<Item = String> {
    let words: Vec<&str> =
        corpus.pages.iter().flat_map(|(_, text)| text.split_whitespace()).collect();
    (0..items).map(move |n| {
        let at = n.wrapping_mul(0x9e37_79b9) % words.len().saturating_sub(WORDS).max(1);
        words.get(at..at + WORDS).unwrap_or(&words).join(" ")
    })
}

fn query(text: &str) -> MemoryQuery {
    MemoryQuery::new(ColonyId::DEFAULT, COLLECTION.into(), text.into(), 5)
}

fn embedding(err: overmind_memory::EmbedError) -> MemoryError {
    MemoryError::Embedding { message: err.message, transient: err.transient }
}

async fn item(
    parts: &Parts,
    model: &str,
    collection: &str,
    text: String,
) -> Result<MemoryItem, MemoryError> {
    let mut embedding = parts.embedder.embed(&text, &Behalf::default()).await.map_err(embedding)?;
    let length = embedding.iter().map(|part| part * part).sum::<f32>().sqrt();
    if length > 0.0 {
        embedding.iter_mut().for_each(|part| *part /= length);
    }
    Ok(MemoryItem {
        id: MemoryId::mint(&*parts.ids),
        colony: ColonyId::DEFAULT,
        collection: collection.into(),
        text,
        embedding,
        embedding_model: model.to_owned(),
        metadata: json!({}),
        created_at: parts.clock.now(),
        source: None,
        provenance: Provenance { author: "bench".into(), trust: Trust::User, event: None },
        expires_at: None,
        supersedes: None,
        superseded_by: None,
    })
}
