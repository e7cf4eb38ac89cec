//! Real processes, real terminals, real kills.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]

mod adoption;
mod attach;
mod common;
mod figures;
mod lives;
mod logs;
mod trees;
