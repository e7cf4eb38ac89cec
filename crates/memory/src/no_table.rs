//! Replaces model files in a build without the feature `model-files` by an error.

use std::path::PathBuf;
use std::sync::Arc;

use overmind_core::Fut;
use overmind_core::budget::Behalf;

use crate::config::ConfigError;
use crate::embed::{EmbedError, Embedder};

/// A static model in a directory, which this build cannot read.
#[derive(Debug)]
pub struct FileEmbedder(());

impl FileEmbedder {
    /// Makes an embedder that refuses every text.
    pub fn new(_: PathBuf) -> Self {
        Self(())
    }
}

fn refused() -> EmbedError {
    EmbedError { message: ConfigError::NoModelFiles.to_string(), transient: false }
}

impl Embedder for FileEmbedder {
    fn model(&self) -> Fut<'_, Result<Arc<str>, EmbedError>> {
        Box::pin(async { Err(refused()) })
    }

    fn embed<'a>(&'a self, _: &'a str, _: &'a Behalf) -> Fut<'a, Result<Vec<f32>, EmbedError>> {
        Box::pin(async { Err(refused()) })
    }
}
