//! Runs MCP servers and isolates their tools.
//!
//! [`McpServers`] runs the configured servers and implements the
//! [`ToolSource`](overmind_core::tool_source::ToolSource) of their tools, which agents call
//! `mcp.<server>.<tool>`. It encapsulates the MCP library; nothing above this crate sees its types.
//!
//! It refuses tools that nobody approved or that changed since (`pins.rs`), tools that hide text or
//! are made to do harm (`vet/`), messages and results beyond their limits, and a server's requests
//! to the client (sampling, roots, elicitation). It never shows a model a definition that is not
//! pinned, never gives a server the daemon's environment, never lets one server's failure affect
//! another's tools, and never leaves a process behind.
//!
//! Start at [`McpServers`] in `servers/mod.rs`. `servers/worker.rs` runs one server, `link.rs` is
//! one connection to it, and `result.rs` converts its answers.
//!
//! # Trust
//!
//! A server is not trusted. Models read its descriptions, and models and people read its results.
//! So all of its data is limited, checked, and labelled `"untrusted": true`. Its annotations
//! (`readOnlyHint` and others) are only claims; they count if the server's configuration allows
//! that.

mod artifacts;
mod config;
mod guard;
mod link;
mod pins;
mod result;
mod servers;
mod traced;
mod vet;

pub use config::{
    Approve, ConfigError, Limits, Protocol, SameNames, Scope, ServerConfig, Transport, Value,
};
pub use pins::Difference;
pub use servers::{
    McpError, McpServers, Parts, SecretLookup, ServerState, ServerView, ToolState, ToolView,
};

/// The prefix of the names of all tools from MCP servers.
pub const PREFIX: &str = "mcp.";
