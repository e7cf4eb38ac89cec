//! The server as a whole: its configuration, and which adapter implements which port.
//!
//! Start at [`app::App::start`], the composition root and the only place that knows which adapter
//! implements which port; [`config::Config`] contains all settings. Tests of the whole product in
//! one process use the same [`app::App`].
//!
//! This crate does not decide anything about agents (the engine does) and knows no command line or
//! terminal (`cli` does). It is the only crate that reads the environment and installs signal
//! handlers.

pub mod app;
pub mod config;
pub mod sys;
