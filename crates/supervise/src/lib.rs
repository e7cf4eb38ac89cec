//! Processes that outlive their supervisor: terminals, process trees, output on disk, adoption.
//!
//! Each life of a session's command is owned by a small process of its own, its *keeper*: it holds
//! the terminal or the pipes, writes the output to disk, ends the whole tree when asked, and knows
//! the true exit. The daemon may be killed and started again at any moment; it finds the keepers
//! by their sockets and the ends that it missed by their records.
//!
//! ```text
//! daemon ── Supervisor ──(descriptors)──▶ zygote ──(fork)──▶ keeper ──(fork, exec)──▶ command
//!              │  ▲                                           │  ▲
//!              │  └──────────── one unix socket ──────────────┘  └── terminal or pipes
//!              └── reads the log files by offset ◀── writes them ──┘
//! ```
//!
//! Begin with [`Supervisor::open`]; it is the port [`overmind_core::process::Processes`]. The
//! binary calls [`zygote::main_if_requested`] first thing in `main`.
//!
//! A daemon under a service manager must not take its keepers along: with systemd that is
//! `KillMode=process` and, for control groups, `Delegate=yes`. `docs/processes.md` has the whole
//! story, with its limits.
//!
//! Refused here: deciding what is run, whether it may be, and when it is started again; isolation
//! (a sandbox is part of the command line that is given). Not found by anybody: processes that
//! another daemon starts on a session's behalf (`systemd-run`, `docker run`, `at`).

mod group;
mod keeper;
mod log;
mod proc;
mod record;
mod screen;
mod supervisor;
mod sys;
mod wire;
pub mod zygote;

pub use crate::supervisor::{Options, Supervisor};
