//! The port to tools that come and go while the daemon runs.
//!
//! The built-in tools are known when the program starts; those of an MCP server are known once it
//! has answered, and may change or vanish. A [`ToolSource`] offers such tools to the gateway,
//! which keeps its part: the allow-list, the validation of arguments, the envelope of its own
//! refusals. The source keeps the rest, labels included: its results are from outside.
//!
//! A session decides with the definitions it was begun with ([`crate::session::Toolset`]). So a
//! caller that knows them passes [`ToolSpec::definition`] along
//! ([`Toolbox::call_defined`](crate::tool::Toolbox::call_defined)), and a tool that has become
//! another one since is refused with [`CHANGED`], never used silently.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::Fut;
use crate::ids::SessionId;
use crate::tool::{ToolContext, ToolOutcome, ToolSpec};

/// The code of a call to a tool whose definition is not the one the caller decided with.
pub const CHANGED: &str = "tool_changed";

/// Tools from outside the program.
pub trait ToolSource: Send + Sync + fmt::Debug {
    /// What every name of this source begins with, for example `mcp.`. No built-in tool has it,
    /// and no other source.
    fn prefix(&self) -> &str;

    /// The tools offered now. The same `Arc` for as long as nothing changes: the gateway
    /// compares pointers to see whether it has to look again.
    fn specs(&self) -> Arc<[ToolSpec]>;

    /// Calls one of them. The gateway has checked allow-list and arguments.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the call, at the other side as well.
    fn call<'a>(
        &'a self,
        context: &'a ToolContext,
        name: &'a str,
        args: &'a Value,
    ) -> Fut<'a, ToolOutcome>;

    /// The session is over: what was kept for it alone can go. Must not block.
    fn session_ended(&self, session: SessionId) {
        let _ = session;
    }
}

/// Keeps what servers of tools must remember beyond this process, and tells the log of each change:
/// the engine, for nobody else touches the store.
pub trait Keeper: Send + Sync + fmt::Debug {
    /// Saves the whole document durably. `kind` and `event` say what happened, for the log; they
    /// hold no secret.
    ///
    /// # Errors
    ///
    /// A text for people; nothing is saved then.
    fn save(
        &self,
        document: Value,
        kind: &'static str,
        event: Value,
    ) -> Fut<'_, Result<(), String>>;
}

/// What a person may ask of sources that are servers (MCP). The values are JSON objects in the
/// shape that the API shows; secrets are in none of them.
pub trait ToolServers: Send + Sync + fmt::Debug {
    /// Takes what was saved last, `None` when nothing ever was, and starts every enabled server
    /// without waiting for it. Called once, before anything else.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`] when what was saved cannot be read.
    fn begin(&self, saved: Option<Value>, keeper: Arc<dyn Keeper>) -> Result<(), ToolServerError>;

    /// All servers with their tools, by id.
    fn list(&self) -> Vec<Value>;

    /// Adds a server or replaces the one with its id, and answers it once it has answered or
    /// failed.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`]; nothing has changed then.
    fn put(&self, config: Value) -> Fut<'_, Result<Value, ToolServerError>>;

    /// # Errors
    ///
    /// [`ToolServerError`]; nothing has changed then.
    fn remove<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), ToolServerError>>;

    /// Approves one tool, or all that can be; `hash` is what the person saw.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`]; nothing is approved then.
    fn pin<'a>(
        &'a self,
        id: &'a str,
        tool: Option<&'a str>,
        hash: Option<&'a str>,
    ) -> Fut<'a, Result<Value, ToolServerError>>;

    /// Takes an approval back.
    ///
    /// # Errors
    ///
    /// [`ToolServerError`].
    fn unpin<'a>(&'a self, id: &'a str, tool: &'a str) -> Fut<'a, Result<Value, ToolServerError>>;
}

/// Why a request about servers was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolServerError {
    #[error("{what} not found")]
    NotFound { what: String },
    /// The request is wrong; `field` is empty when it is not about one.
    #[error("{message}")]
    Bad { field: String, message: String },
    /// The request is right and cannot be done as things stand.
    #[error("{message}")]
    Refused { message: String },
    /// It may work later.
    #[error("{message}")]
    Unavailable { message: String },
}
