//! What the program says about itself. What it does is tested in the crate `e2e`.

mod help;
#[path = "../../../e2e/tests/it/home.rs"]
#[allow(dead_code, reason = "these tests start no server")]
mod home;
#[path = "../../../e2e/tests/it/program.rs"]
mod program;
