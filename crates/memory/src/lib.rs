//! Memory: texts in collections, found by words, and by meaning where an embedder is configured.
//!
//! [`MemoryService`] is the [`Memory`](overmind_core::memory::Memory) of the product. It turns a
//! query into words, asks the store for matches, and in hybrid mode fuses them with the nearest
//! vectors; it stores each item once per idempotency key, together with the event that says so.
//! The items themselves, the word index and the search over vectors are the store's.
//!
//! What it refuses: texts, collections and metadata beyond their bounds ([`MAX_TEXT_BYTES`] and
//! its neighbours). What it never does: read a query as syntax, or answer from words alone
//! without saying so when the embedder is down (the search fails, see [`MemoryService`]).
//!
//! Embeddings from a model file are behind the feature `model-files`, for the crates that read them
//! are a good part of the program's build; without it, configuring one is an error that says so.
//!
//! Start at [`MemoryService::new`]; [`Config::from_vars`] reads what a user may set.

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
