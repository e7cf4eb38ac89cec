//! The zygote and its keepers as a program of its own, for this crate's tests; the product's
//! binary calls the same function from its own `main`.

fn main() -> std::process::ExitCode {
    overmind_supervise::zygote::main_if_requested();
    eprintln!("this program is started by a supervisor, not by hand");
    std::process::ExitCode::from(2)
}
