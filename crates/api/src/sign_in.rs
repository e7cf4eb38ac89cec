//! Signing in to the dashboard.

use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A link that signs in one browser, once: answer of `POST /api/sign-in/links`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInLink {
    /// Path and query on this server. The first person who opens the link and presses its button
    /// acts as you for twelve hours. Opening the link alone does nothing.
    #[cfg_attr(feature = "openapi", schema(example = "/login?code=…"))]
    pub path: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for SignInLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = &self.expires_at;
        f.debug_struct("SignInLink").field("expires_at", at).finish_non_exhaustive()
    }
}
