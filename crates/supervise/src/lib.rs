//! Processes that outlive their supervisor: terminals, process trees, output on disk, adoption.
//!
//! A small *supervisor process* ("keeper" in the code) owns each command of a session. It holds the
//! terminal or the pipes, writes the output to disk, ends the whole process tree when asked, and
//! knows the true exit status. The daemon may be killed and restarted at any moment; it finds the
//! supervisor processes by their sockets, and exits that it missed by their records.
//!
//! ```text
//! daemon ── Supervisor ──(descriptors)──▶ zygote ──(fork)──▶ keeper ──(fork, exec)──▶ command
//!              │  ▲                                           │  ▲
//!              │  └──────────── one unix socket ──────────────┘  └── terminal or pipes
//!              └── reads the log files by offset ◀── writes them ──┘
//! ```
//!
//! Start at [`Supervisor::open`]; it implements the port [`overmind_core::process::Processes`]. The
//! binary first calls [`zygote::main_if_requested`] in `main`.
//!
//! A service manager must not end the supervisor processes with the daemon: with systemd that needs
//! `KillMode=process` and, for cgroups, `Delegate=yes`. `docs/processes.md` describes all of it,
//! with the limits.
//!
//! This crate does not decide what is run, whether it may run, and when it is restarted, and it
//! does not isolate (a sandbox is part of the command line that it gets). Nobody finds processes
//! that another daemon starts for a session (`systemd-run`, `docker run`, `at`).

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
