//! The binary: everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The namespace sandbox starts this same program as the first process inside; then this
    // call does that work and does not come back.
    overmind_sandbox::init::main_if_requested();
    // So does the process that keepers of commands are made from.
    overmind_supervise::zygote::main_if_requested();
    overmind::cli::main()
}
