//! The program `overmind`: one binary that is server, command line and demo.
//!
//! Everything is in libraries: the command line in `cli`, the server in `node`. What is here concerns
//! the process, and must be done first.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The namespace sandbox starts this same program as the first process inside; then this
    // call does that work and does not come back.
    overmind_sandbox::init::main_if_requested();
    // So does the process that shims of commands are forked from.
    overmind_supervise::zygote::main_if_requested();
    overmind_node::sys::frugal_allocator();
    // One provider of cryptography for every TLS connection of the program, chosen here. It is
    // the first choice of this process, so it cannot fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    overmind_cli::main()
}
