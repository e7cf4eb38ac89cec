//! What the program takes and says, and the whole product in this process. What it does when it runs
//! is tested in the crate `e2e`.

mod api;
mod examples;
mod help;
#[path = "../../../e2e/tests/it/home.rs"]
#[allow(dead_code, reason = "these tests start no server")]
mod home;
#[path = "../../../e2e/tests/it/pages.rs"]
mod pages;
#[path = "../../../e2e/tests/it/program.rs"]
mod program;
