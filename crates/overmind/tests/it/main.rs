//! The whole product, from outside: the real binary on data directories of its own.

mod api;
mod commands;
mod crash;
mod demo;
mod docker;
mod exfiltration;
mod gate;
mod help;
mod home;
mod inbox;
mod kills;
mod life;
mod mcp;
mod nouns;
mod offline;
mod policy;
mod rooms;
mod runs;
mod streaming;
mod surface;
