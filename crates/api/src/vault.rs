//! Secrets, services and grants. Values of secrets go in and never come out.

use std::collections::BTreeMap;
use std::fmt;

use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A text that never shows itself in a debug print.
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
    /// At least 8 characters and at most 32768 bytes; white space around it is dropped.
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub value: SecretText,
    /// Older versions that stay, to go back to; 0 to 20.
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
    /// With `value`: older versions that stay; 0 to 20.
    #[serde(default)]
    pub keep: u32,
}

/// Body of `POST /api/vault/import`: all are set, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretImport {
    /// By name, at most 200.
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub secrets: BTreeMap<String, SecretText>,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretInfo {
    pub name: String,
    pub version: u32,
    /// All that are kept, the newest first.
    pub versions: Vec<u32>,
    /// When this version was set, and by whom.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    pub created_by: String,
    /// How often it was used, and when last.
    pub uses: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub last_used_at: Option<Timestamp>,
    /// Why it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The server's environment has a credential of this name, too. This one goes before it.
    pub shadows_environment: bool,
}

/// The vault as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VaultInfo {
    /// Why nothing can be decrypted, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<String>,
    /// `key_file`, `keyring` or `passphrase`; not given while there is no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<String>,
    pub secrets: u64,
    /// Secrets that do not open.
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
    /// `built_in`, `declared` by the API, or `file`: by the server's own.
    pub origin: String,
    /// There is a key for it, or it needs none.
    pub ready: bool,
    /// The declaration, as in [`ServicePut`].
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub service: Value,
}

/// Body of `PUT /api/vault/services/{name}`: a declaration with `base_url`, `auth` (`bearer`, `header
/// NAME`, `query NAME`, `basic USER` or `none`), `secret`, `allow` (a list of `{"methods", "path"}`),
/// and perhaps `key_optional`, `plaintext`, `headers`, `limits`, `kind`, `actions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", schema(value_type = Object))]
pub struct ServicePut(pub Value);

/// Body of `POST /api/vault/grants` and `POST /api/vault/grants/revoke`: `agent` and one of the
/// others. In each `*` stands for any characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GrantPut {
    /// Names of agents.
    pub agent: String,
    /// Names of secrets, to have in the environment of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Names of services, to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GrantInfo {
    pub agent: String,
    /// `secret` or `service`.
    pub kind: String,
    pub object: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    pub created_by: String,
}

/// Body of `POST /mesh/api`. The token says who calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApiProxyRequest {
    pub service: String,
    /// The name of one of its actions.
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
    /// What the service answered: JSON, or a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
}
