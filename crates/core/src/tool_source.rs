//! The port to tools that appear and disappear while the daemon runs.
//!
//! The built-in tools are known when the program starts. The tools of an MCP server are known after
//! it has answered, and may change or vanish. A [`ToolSource`] offers such tools to the gateway,
//! which checks the allow-list, validates arguments, and creates the envelopes of its own refusals.
//! The source does the rest, including labels, because its results come from outside.
//!
//! A session decides with the definitions of its start ([`crate::session::Toolset`]). A caller that
//! knows them passes [`ToolSpec::definition`] along
//! ([`Toolbox::call_defined`](crate::tool::Toolbox::call_defined)). A call to a tool that has
//! changed since is refused with [`CHANGED`].

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::Fut;
use crate::ids::SessionId;
use crate::tool::{ToolContext, ToolOutcome, ToolSpec};

/// The error code of a call to a tool whose definition has changed since the caller decided.
pub const CHANGED: &str = "tool_changed";

/// Tools from outside the program.
pub trait ToolSource: Send + Sync + fmt::Debug {
    /// Returns the prefix of all names of this source, for example `mcp.`. No built-in tool and no
    /// other source may use it.
    fn prefix(&self) -> &str;

    /// Returns the tools that are offered now. It returns the same `Arc` while nothing changes,
    /// because the gateway compares pointers to detect changes.
    fn specs(&self) -> Arc<[ToolSpec]>;

    /// Calls one of the tools. The gateway has checked the allow-list and the arguments.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future also cancels the call on the other side.
    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome>;

    /// Called when the session is over, so that data kept only for it can be removed. Must not
    /// block.
    fn session_ended(&self, session: SessionId) {
        let _ = session;
    }
}

/// Stores the state of tool servers durably, and logs each change. The engine implements it,
/// because only the engine uses the store.
pub trait Keeper: Send + Sync + fmt::Debug {
    /// Saves the whole document durably. `kind` and `event` describe the change for the log, and
    /// contain no secret.
    ///
    /// # Errors
    ///
    /// Returns a text for people; then nothing is saved.
    fn save(
        &self,
        document: Value,
        kind: &'static str,
        event: Value,
    ) -> Fut<'_, Result<(), String>>;
}

/// The operations that a person may request of tool servers (MCP). The values are JSON objects in
/// the form of the API, and never contain secrets.
pub trait ToolServers: Send + Sync + fmt::Debug {
    /// Loads the last saved document, `None` if there is none, and starts every enabled server
    /// without waiting for it. Called once, before anything else.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`] if the document cannot be read.
    fn begin(&self, saved: Option<Value>, keeper: Arc<dyn Keeper>) -> Result<(), ToolServerError>;

    /// Returns all servers with their tools, by id.
    fn list(&self) -> Vec<Value>;

    /// Adds a server, or replaces the one with its id. Returns it after it has answered or failed.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`]; then nothing has changed.
    fn put(&self, config: Value) -> Fut<'_, Result<Value, ToolServerError>>;

    /// # Errors
    ///
    /// [`ToolServerError`]; then nothing has changed.
    fn remove<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), ToolServerError>>;

    /// Approves one tool, or all that can be approved. `hash` is the definition that the person
    /// saw.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`]; then nothing is approved.
    fn pin<'a>(
        &'a self,
        id: &'a str,
        tool: Option<&'a str>,
        hash: Option<&'a str>,
    ) -> Fut<'a, Result<Value, ToolServerError>>;

    /// Revokes an approval.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`].
    fn unpin<'a>(&'a self, id: &'a str, tool: &'a str) -> Fut<'a, Result<Value, ToolServerError>>;
}

/// Why a request about servers failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolServerError {
    #[error("{what} not found")]
    NotFound { what: String },
    /// The request is wrong. `field` is empty if no single field is wrong.
    #[error("{message}")]
    Bad { field: String, message: String },
    /// The request is valid, but not possible in the present state.
    #[error("{message}")]
    Refused { message: String },
    /// A later attempt may succeed.
    #[error("{message}")]
    Unavailable { message: String },
}
