//! The way in: HTTP on TCP, TLS and a Unix socket, in front of one engine.
//!
//! [`Server::new`] takes the engine and a [`ServerConfig`]; [`Server::serve`] takes [`Listener`]s
//! and runs until it is told to stop, then drains. Every request goes the same way, in `front`:
//!
//! ```text
//! accept → headers in time → Host → Origin → rate by address → token → rate by caller → route
//! ```
//!
//! and every handler does the same four things: parse, prove (the engine takes a `Caller`), do,
//! show. What changes something runs detached from the connection: a client that leaves does not
//! cut it in half.
//!
//! [`Proxy`] stands beside it: stable names for what runs serve, on a port of its own.
//!
//! This crate decides nothing about agents and runs; it never touches the store. It refuses:
//! a listener beyond loopback without TLS, requests without a token (but for `/health`,
//! `/healthz`, `/readyz` and the sign-in page), foreign hosts and origins, and bodies it cannot bound.
//! It has no CORS, and the API takes no cookie: only the dashboard's pages (`routes::web`) do.

mod agents;
mod auth;
mod bodies;
mod colony;
mod config;
mod convert;
mod cx;
mod decode;
mod extract;
mod fault;
mod front;
mod host;
mod inbox_stream;
mod links;
mod listen;
mod log_stream;
mod mesh_stream;
mod metrics;
mod openapi;
mod page;
mod places;
mod proof;
mod proxy;
mod rate;
mod routes;
mod serve;
mod socket;
mod sse;
mod timeline_stream;
mod viewer;

pub use config::{ProviderKey, RateLimit, ServerConfig, mask};
pub use listen::{ListenError, Listener, Tls};
pub use openapi::openapi;
#[cfg(feature = "openapi")]
pub use openapi::openapi_from_code;
pub use proxy::{Backends, Found, Proxy, label};
pub use routes::roles::roles_document;
pub use serve::{Drained, Server};
