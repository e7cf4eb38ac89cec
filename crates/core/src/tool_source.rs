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
