//! The tool gateway and the built-in tools.
//!
//! [`Gateway`] is the [`Toolbox`](overmind_core::tool::Toolbox) of the product: it checks that a
//! tool is registered and allowed, validates the arguments against the tool's JSON Schema, runs the
//! handler and wraps every result in the same envelope. All effects of an agent go through it.
//!
//! It refuses unknown tools, tools outside of the agent's allow-list, arguments that do not match
//! the schema, paths that lead out of the workspace, and files that are not regular. It does not
//! write the audit row and the event of a call, ask a human, repeat a failed call (the engine
//! does), or isolate commands (a [`Sandbox`](overmind_core::sandbox::Sandbox) does).
//!
//! Start at [`Gateway::call`](overmind_core::tool::Toolbox::call) in `gateway.rs`. Each tool is one
//! file under `builtin/`; a new one implements [`Tool`] there and gets one line in `builtin::all`.
//! Tools from other crates are passed to [`Gateway::with_tools`], tools that come and go to
//! [`Gateway::with_source`].
//!
//! # Trust
//!
//! Arguments come from a model; file contents and command output can come from anyone. Arguments
//! are limited (1 MiB, 64 levels), every text in a result is limited ([`MAX_TEXT_BYTES`]), and the
//! kernel resolves paths below the workspace's directory (`openat2`), so that nothing can change
//! between check and use. This needs Linux 5.6 or newer.

mod answer;
mod binding;
mod builtin;
mod canaries;
pub mod egress;
mod file_labels;
mod gateway;
mod glob;
mod html;
mod options;
mod schema;
mod sources;
mod workspace;

pub use answer::{Answer, Failure, untrusted};
pub use binding::Execution;
pub use builtin::mesh_tools;
pub use file_labels::FileLabels;
pub use gateway::{
    Gateway, MAX_ARGS_BYTES, MAX_ARGS_DEPTH, Parts, RegisterError, SandboxLookup, Tool,
};
pub use options::{CommandNameError, Commands, Options};

/// Maximum number of bytes of text that one result carries from a file, or from one stream of a
/// command.
pub const MAX_TEXT_BYTES: usize = 100_000;
