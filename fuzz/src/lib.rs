//! Fuzz targets for everything that parses what comes from outside.
//!
//! A [`Target`] is a function that must not panic on any bytes; most also check a property, so
//! that a wrong answer counts as a find and not only a crash. Two runners share the targets:
//!
//! * `cargo xtask soak fuzz` runs the binary `smoke`: stable toolchain, bounded time, random mutation
//!   of the seeds. It finds what is near the surface; CI runs a few hundred inputs as a test.
//! * `cargo fuzz run --features libfuzzer --sanitizer none NAME` looks deeper, guided by coverage
//!   (`cargo install cargo-fuzz`; no nightly toolchain is needed without a sanitizer).
//!
//! Inputs that once broke a target stay in `regressions/NAME/` and run first.

mod mutate;
mod targets;

pub use mutate::{Mutator, Rng};
pub use targets::TARGETS;

/// One parser under attack.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// Must return for every input.
    pub run: fn(&[u8]),
    /// Inputs that reach deep; mutations start from them.
    pub seeds: &'static [&'static str],
    /// Pieces that mean something to this parser.
    pub words: &'static [&'static str],
}

/// The target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs the target called `name`: what an entry file calls.
///
/// # Panics
///
/// When there is no such target, and when the input breaks it.
pub fn run(name: &str, data: &[u8]) {
    (target(name).expect("an entry file names a target").run)(data);
}
