//! Administration of MCP servers.
//!
//! An added server runs programs on this machine, so only admins may make changes.

use overmind_core::row::Role;
use overmind_core::tool_source::{ToolServerError, ToolServers};
use serde_json::Value;

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

impl Engine {
    /// All servers with their tools, by id.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] below viewer.
    pub fn tool_server_list(&self, by: &Caller) -> Result<Vec<Value>, EngineError> {
        by.require(Role::Viewer)?;
        Ok(self.tool_servers.as_ref().map(|servers| servers.list()).unwrap_or_default())
    }

    /// One server with its tools.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such server.
    pub fn tool_server(&self, by: &Caller, id: &str) -> Result<Value, EngineError> {
        let found = self.tool_server_list(by)?.into_iter().find(|server| server["id"] == id);
        found.ok_or_else(|| EngineError::not_found("MCP server"))
    }

    /// Adds a server, or replaces the one with its id; returns once it has answered or failed.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`]; nothing has changed then.
    pub async fn tool_server_put(&self, by: &Caller, config: Value) -> Result<Value, EngineError> {
        self.tool_servers(by)?.put(config).await.map_err(told)
    }

    /// # Errors
    ///
    /// [`EngineError::NotFound`].
    pub async fn tool_server_remove(&self, by: &Caller, id: &str) -> Result<(), EngineError> {
        self.tool_servers(by)?.remove(id).await.map_err(told)
    }

    /// Approves one tool as it is offered now, or all that can be approved. `hash` is the
    /// definition that was seen.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Conflict`] if the tool is refused, or differs from
    /// the one that was seen.
    pub async fn tool_server_pin(
        &self,
        by: &Caller,
        id: &str,
        tool: Option<&str>,
        hash: Option<&str>,
    ) -> Result<Value, EngineError> {
        self.tool_servers(by)?.pin(id, tool, hash).await.map_err(told)
    }

    /// Withdraws the approval of a tool.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Conflict`] if it has none.
    pub async fn tool_server_unpin(
        &self,
        by: &Caller,
        id: &str,
        tool: &str,
    ) -> Result<Value, EngineError> {
        self.tool_servers(by)?.unpin(id, tool).await.map_err(told)
    }

    fn tool_servers(&self, by: &Caller) -> Result<&dyn ToolServers, EngineError> {
        by.require(Role::Admin)?;
        self.tool_servers.as_deref().ok_or_else(|| EngineError::Unavailable {
            message: "this server has no client for MCP servers".into(),
        })
    }
}

pub(crate) fn told(err: ToolServerError) -> EngineError {
    match err {
        ToolServerError::NotFound { what } => EngineError::not_found(&what),
        ToolServerError::Bad { field, message } => EngineError::invalid(&field, message),
        ToolServerError::Refused { message } => EngineError::conflict(message),
        ToolServerError::Unavailable { message } => EngineError::Unavailable { message },
    }
}
