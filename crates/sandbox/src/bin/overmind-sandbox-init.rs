//! The sandbox's init as a program of its own, for this crate's tests. The product's binary
//! calls the same function from its own `main`.

fn main() -> std::process::ExitCode {
    overmind_sandbox::init::main_if_requested();
    eprintln!("this program is started by a sandbox driver, not by hand");
    std::process::ExitCode::from(2)
}
