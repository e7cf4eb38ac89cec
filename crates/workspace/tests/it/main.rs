//! Integration tests: against real processes, servers and engines.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails at that line")]

mod config;
mod confined;
mod container;
mod crash;
mod figures;
mod leaks;
mod lease;
mod opener;
mod ports;
mod postgres;
mod propose;
mod redis;
mod rooms;
mod rooms_crash;
mod rooms_life;
mod support;
mod tree_finish;
mod tree_hostile;
mod tree_lfs;
mod tree_merge;
mod tree_owner;
mod tree_pool;
mod tree_prepare;
mod tree_reach;
mod tree_repo;
