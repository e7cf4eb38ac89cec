//! The tool gateway and the built-in tools.
//!
//! [`Gateway`] is the [`Toolbox`](overmind_core::tool::Toolbox) of the product: it checks that a
//! tool is registered and allowed, validates the arguments against the tool's JSON Schema, runs
//! the handler and turns whatever happened into one envelope. Everything an agent does to the
//! world goes through it.
//!
//! What it refuses: unknown tools, tools outside the agent's allow-list, arguments that do not
//! fit the schema, paths that lead out of the workspace, anything on disk that is not a regular
//! file. What it does not do: write the audit row and the event of a call, ask a human, repeat a
//! failed call (the engine does), or decide how a command is isolated (a
//! [`Sandbox`](overmind_core::sandbox::Sandbox) does).
//!
//! Start at [`Gateway::call`](overmind_core::tool::Toolbox::call) in `gateway.rs`. One tool is one
//! file under `builtin/`; a new one implements [`Tool`] there and gets one line in
//! `builtin::all`. A tool from outside this crate is given to [`Gateway::with_tools`], tools that
//! come and go to [`Gateway::with_source`].
//!
//! # Trust
//!
//! Arguments come from a model, file contents and command output from anywhere. Arguments are
//! bounded (1 MiB, 64 levels), every text that a result carries is bounded
//! ([`MAX_TEXT_BYTES`]), and paths are resolved by the kernel beneath the workspace's directory
//! (`openat2`), so that there is no moment between a check and its use. Linux 5.6 or newer.

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

/// Most bytes of text that one result carries from a file, or from one stream of a command.
pub const MAX_TEXT_BYTES: usize = 100_000;
