//! MCP servers: tools from outside, kept at arm's length.
//!
//! [`McpServers`] runs the configured servers and is the
//! [`ToolSource`](overmind_core::tool_source::ToolSource) of their tools, which agents know as
//! `mcp.<server>.<tool>`. It isolates the MCP library; nothing above this crate sees its types.
//!
//! What it refuses: tools that nobody approved, or that changed since (`pins.rs`), tools that
//! hide something or are built to harm (`vet/`), messages and results beyond their bounds, and a
//! server's wishes to use the client (sampling, roots, elicitation). What it never does: show a
//! model a definition that is not pinned, pass a server the daemon's environment, let one
//! server's failure reach another's tools, or leave a process behind.
//!
//! Start at [`McpServers`] in `servers/mod.rs`; `servers/worker.rs` is the life of one server,
//! `link.rs` one connection to it, `result.rs` what becomes of an answer.
//!
//! # Trust
//!
//! A server is a stranger, its descriptions are read by models and its results by both. So all
//! of it is data: bounded, vetted, labelled `"untrusted": true`. Its annotations (`readOnlyHint`
//! and the like) are claims; they count only for a server whose configuration says so.

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

/// What the names of all tools from MCP servers begin with.
pub const PREFIX: &str = "mcp.";
