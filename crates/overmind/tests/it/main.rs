//! Texts that the program prints about itself. The crate `e2e` tests its behaviour.

mod help;
#[path = "../../../e2e/tests/it/home.rs"]
#[allow(dead_code, reason = "these tests start no server")]
mod home;
#[path = "../../../e2e/tests/it/program.rs"]
mod program;
