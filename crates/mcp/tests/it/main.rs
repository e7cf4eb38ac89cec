//! Integration tests: against a server that behaves as badly as it is told, in the real sandbox,
//! and against real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]

mod behaviour;
mod gateway;
mod hostile_http;
mod pins;
mod processes;
mod real;
mod support;
mod traced;
