//! Memory stores texts in collections, and finds them by words and, with an embedder, by meaning.
//!
//! [`MemoryService`] implements the product's [`Memory`](overmind_core::memory::Memory). It splits
//! a query into words, gets matches from the store, and in hybrid mode merges them with the nearest
//! vectors. It stores each item once per idempotency key, together with its event. The store itself
//! contains the items, the word index and the search by vectors.
//!
//! Texts, collections and metadata beyond their limits are refused ([`MAX_TEXT_BYTES`] and its
//! neighbours). A query is never read as syntax. If the embedder does not work, the search fails
//! instead of silently using words only (see [`MemoryService`]).
//!
//! Embeddings from a model file need the feature `model-files`, because the crates that read them
//! are a large part of the program's build time; without it, configuring one is an error.
//!
//! Start at [`MemoryService::new`]; [`Config::from_vars`] reads the user's settings.

mod config;
mod embed;
mod fusion;
#[cfg(not(feature = "model-files"))]
mod no_table;
mod service;
#[cfg(feature = "model-files")]
mod table;
mod terms;

pub use config::{Config, ConfigError, DEFAULT_MODEL, DEFAULT_URL, HttpConfig, Secret};
pub use embed::{EmbedError, Embedder, HttpEmbedder};
pub use fusion::Fusion;
#[cfg(not(feature = "model-files"))]
pub use no_table::FileEmbedder;
pub use service::{
    LOCAL_MODEL, MAX_COLLECTION_CHARS, MAX_METADATA_BYTES, MAX_PROVENANCE_BYTES, MAX_TEXT_BYTES,
    MAX_TOP_K, MemoryService,
};
#[cfg(feature = "model-files")]
pub use table::FileEmbedder;
pub use terms::{MAX_TERMS, terms};
