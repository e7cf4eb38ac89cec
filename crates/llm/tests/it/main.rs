//! The gateway against providers over a socket: scripted ones of `testkit::upstream`, and a real
//! small model when there is one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod calls;
mod cassettes;
mod failures;
mod llama;
mod relay;
mod requests;
mod support;
