//! The program `overmind`: one binary that is server, command line, demo and benchmark.
//!
//! Where to start: [`cli::main`] is what the binary runs; [`app::App::start`] is the composition
//! root, the one place that knows which adapter is behind which port; [`config::Config`] is
//! everything that can be set. Whole-product tests use the same [`app::App`].
//!
//! What this crate refuses: to decide anything about agents (that is the engine) and to know a
//! wire format (that is `api` and `client`). It alone reads the environment, installs signal
//! handlers and writes to the terminal.

pub mod app;
mod bench;
pub mod cli;
pub mod config;
mod demo;
mod doctor;
pub mod output;
mod sys;
