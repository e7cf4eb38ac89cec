//! Integration tests: against real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]
