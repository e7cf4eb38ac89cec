//! A typed client of the HTTP API, small enough for a command that takes five milliseconds.
//!
//! [`Client::connect`] takes a [`Target`] (a Unix socket or a URL) and a token. It opens no
//! connection before the first call. There is one method per operation, named as in the OpenAPI
//! document. [`Client::run_replay`] returns a stream that reconnects automatically. Every failure
//! is a [`ClientError`], and [`ClientError::hint`] says what to do about it.
//!
//! Connections are HTTP/1.1 and are reused. A request that may have reached the server is repeated
//! only if it changes nothing. Redirects are not followed and proxies are not used, so the token is
//! sent only to the target.

mod artifacts;
mod budgets;
mod calls;
mod connection;
mod error;
mod inbox;
mod log;
mod mesh;
mod page;
mod replay;
mod resources;
mod run_log;
mod sse;
mod stream;
mod target;
mod terminal;
mod tls;
mod vault;

pub use calls::{Client, RunShape};
pub use connection::Options;
pub use error::ClientError;
pub use inbox::{InboxNews, InboxWatch};
pub use log::LogWatch;
pub use mesh::BoardWatch;
pub use page::Page;
pub use replay::{Replay, ReplayItem, ReplayOptions};
pub use resources::{ResourceNews, ResourceWatch};
pub use run_log::{LogOptions, RunLog};
pub use target::{Target, TargetError};
pub use terminal::{Terminal, TerminalNews};
