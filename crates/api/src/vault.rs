//! Secrets, services and grants. The API accepts the values of secrets and never returns them.

use std::collections::BTreeMap;
use std::fmt;

use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A text that debug output hides.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", schema(value_type = String, format = Password))]
pub struct SecretText(String);

impl SecretText {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// Body of `PUT /api/vault/secrets/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretPut {
    /// The value, at least 8 characters and at most 32768 bytes. White space around it is removed.
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub value: SecretText,
    /// Number of older versions to keep for a rollback, 0 to 20.
    #[serde(default)]
    pub keep: u32,
}

/// Body of `POST /api/vault/secrets/{name}/rotate`: a new value, or an earlier version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretRotate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub value: Option<SecretText>,
    /// The version whose value becomes the newest again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<u32>,
    /// With `value`: number of older versions to keep, 0 to 20.
    #[serde(default)]
    pub keep: u32,
}

/// Body of `POST /api/vault/import`. Either all secrets are set or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretImport {
    /// The secrets by name, at most 200.
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub secrets: BTreeMap<String, SecretText>,
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretInfo {
    pub name: String,
    pub version: u32,
    /// The versions that are kept, newest first.
    pub versions: Vec<u32>,
    /// When this version was set.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    pub created_by: String,
    /// Number of uses.
    pub uses: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub last_used_at: Option<Timestamp>,
    /// Why it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the server's environment also has a credential of this name. This secret overrides
    /// it.
    pub shadows_environment: bool,
}

/// The state of the whole vault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VaultInfo {
    /// Why nothing can be decrypted, and how to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<String>,
    /// How the master key is protected: `key_file`, `keyring` or `passphrase`; omitted while there
    /// is no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<String>,
    pub secrets: u64,
    /// Number of secrets that cannot be decrypted.
    pub damaged: u64,
}

/// Body of `POST /api/vault/unlock` and `POST /api/vault/rotate-master`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VaultPassphrase {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub passphrase: Option<SecretText>,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceInfo {
    pub name: String,
    /// The origin: `built_in`, `declared` through the API, or `file` (in the server's file).
    pub origin: String,
    /// Whether the service can be used: it has a key, or needs none.
    pub ready: bool,
    /// The declaration, the same as in [`ServicePut`].
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub service: Value,
}

/// Body of `PUT /api/vault/services/{name}`: a declaration with `base_url`, `auth` (`bearer`,
/// `header NAME`, `query NAME`, `basic USER` or `none`), `secret`, `allow` (a list of `{"methods",
/// "path"}`), and optionally `key_optional`, `plaintext`, `headers`, `limits`, `kind`, `actions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", schema(value_type = Object))]
pub struct ServicePut(pub Value);

/// Body of `POST /api/vault/grants` and `POST /api/vault/grants/revoke`: `agent`, and either
/// `secret` or `service`. In each, `*` matches any characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GrantPut {
    /// Name pattern of agents.
    pub agent: String,
    /// Name pattern of secrets that the agents' commands may get as environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Name pattern of services that the agents may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GrantInfo {
    pub agent: String,
    /// What is granted: `secret` or `service`.
    pub kind: String,
    pub object: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    pub created_by: String,
}

/// Body of `POST /mesh/api`. The token identifies the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApiProxyRequest {
    pub service: String,
    /// The name of one of the service's actions.
    pub action: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub params: serde_json::Map<String, Value>,
}

/// Answer of `POST /mesh/api`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiProxyReply {
    pub success: bool,
    /// The service's answer: JSON, or a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}
