//! Artifacts: files that a run saves.

use overmind_core::artifact as core;
use overmind_core::ids::SessionId;
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Largest artifact, in bytes.
pub const MAX_ARTIFACT: usize = core::MAX_BYTES;

/// The newest version of an artifact, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Artifact {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: SessionId,
    #[cfg_attr(feature = "openapi", schema(example = "out/report.md"))]
    pub name: String,
    /// Starts at 1 and increases by one with each new content.
    pub version: u64,
    /// Size of the content in bytes.
    pub size: u64,
    #[cfg_attr(feature = "openapi", schema(example = "text/markdown; charset=utf-8"))]
    pub media_type: String,
    /// BLAKE3 of the content, in hexadecimal. Also sent as the `ETag` of the content.
    pub blake3: String,
    /// Whether the content is UTF-8.
    pub text: bool,
    /// Whether a secret in the content was masked before it was stored.
    pub masked: bool,
    /// The author: the name of an agent or of a key, or `admin`.
    pub author: String,
    /// When the first version was saved.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub updated_at: Timestamp,
}

impl From<core::Artifact> for Artifact {
    fn from(row: core::Artifact) -> Self {
        Self {
            run_id: row.session,
            blake3: row.blake3(),
            name: row.name.to_string(),
            version: row.version,
            size: row.bytes,
            media_type: row.media_type,
            text: row.is_text,
            masked: row.is_masked,
            author: row.author,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// The result of saving an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactSaved {
    #[serde(flatten)]
    pub artifact: Artifact,
    /// The key of the shared state that announces it to other agents.
    pub shared: Option<String>,
    /// Why it was not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_shared: Option<String>,
}
