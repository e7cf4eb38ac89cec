//! The server as a whole: its configuration, and what is behind which port.
//!
//! Where to start: [`app::App::start`] is the composition root, the one place that knows which
//! adapter is behind which port; [`config::Config`] is everything that can be set. Tests of the
//! whole product in one process use the same [`app::App`].
//!
//! What this crate refuses: to decide anything about agents (that is the engine) and to know a
//! command line or a terminal (that is `cli`). It alone reads the environment and installs signal
//! handlers.

pub mod app;
pub mod config;
pub mod sys;
