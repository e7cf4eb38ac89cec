//! `cargo xtask …`: see the library.

use std::process::ExitCode;

use xtask::{host::Host, say};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match Host::from_environment().and_then(|host| xtask::run(&host, &args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            say::note(&format!("error: {err:#}"));
            ExitCode::FAILURE
        }
    }
}
