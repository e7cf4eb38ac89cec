//! Tool servers (MCP), under `/api/settings/mcp/servers`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The servers, by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpServers {
    pub ok: bool,
    /// The servers, each with `id`, `enabled`, `config`, `state` (`disabled`, `starting`, `ready`,
    /// `failed` with `reason`), `protocol`, `server_info`, `sessions`, `needs_approval` and
    /// `tools`. Local programs also have `command`, `args` and `env`. Values of `env` and of
    /// headers are masked as `***`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub servers: Vec<Value>,
}

/// One server, the same as in [`McpServers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpServer {
    pub ok: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub server: Value,
}

/// Body of `POST /api/settings/mcp/servers`: either the full configuration of a server (`id`,
/// `transport`, …), or the short form `{"id", "command", "args"?, "env"?, "enabled"?}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", schema(value_type = Object))]
pub struct McpServerPut(pub Value);

/// Body of `POST /api/settings/mcp/servers/{id}/pin`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct McpPin {
    /// The server's own name of the tool. Default: all tools that can be approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The `hash` of the tool that was reviewed. If the tool has changed since, nothing is
    /// approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// Body of `POST /api/settings/mcp/servers/{id}/unpin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct McpUnpin {
    /// The server's own name of the tool.
    pub tool: String,
}
