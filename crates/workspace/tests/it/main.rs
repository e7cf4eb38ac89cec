//! Integration tests: against real processes, servers and engines.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]

mod config;
mod container;
mod crash;
mod figures;
mod leaks;
mod lease;
mod ports;
mod postgres;
mod propose;
mod redis;
mod support;
