//! Integration tests: one conformance suite over all drivers, and special cases of each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]

mod attest;
mod called;
mod conformance;
mod docker;
mod door;
mod enclosure;
mod image;
mod microvm;
mod namespace;
mod outward;
mod piped;
mod repository;
mod service;
mod support;
mod unconfined;
mod warm;
