//! What a session works in and must give back: worktree, ports, databases, services.

pub mod config;
pub mod database;
pub mod env;
mod hooks;
pub mod leaks;
pub mod lease;
pub mod ports;
pub mod services;
