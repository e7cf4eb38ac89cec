//! The workspace's own chores: set-up of what the tests need, CI, the map's checks, figures.
//!
//! `cargo xtask help` lists the commands; [`run`] is the entry point. It depends on no crate of
//! the product, so that it builds in seconds and still works when the product does not compile.
//!
//! Nothing here is shipped. What users need is in the `overmind` binary.

pub mod assets;
pub mod bench;
pub mod ci;
pub mod counterparts;
pub mod host;
pub mod layout;
pub mod openapi;
pub mod reference;
pub mod report;
pub mod say;
pub mod shots;
pub mod soak;
pub mod steps;
pub mod suite;

use anyhow::{Result, bail};

use crate::host::Host;

const HELP: &str = "\
cargo xtask COMMAND

  test [--strict] [-- ARGS]  install and start what the tests need, then run all tests;
                             ARGS go to cargo-nextest (for example a filter)
  ci                         everything CI runs: fmt, check, clippy, tests, openapi, docs
  check                      the map's checks: crate graph, file lengths, unsafe, stray words
  up                         start the tests' counterparts, print their addresses, wait for Enter
  soak [--minutes N] [NAME…] the long tests with large counts, and the fuzz targets: one round, or
                             rounds for N minutes; NAME is kills, storm, hostile, schedules,
                             machines, rankings, sandbox or fuzz (default: all)
  openapi [--check]          write docs/openapi.json from the code, or compare and fail
  reference                  write docs/reference from the code; a test compares
  shots                      write docs/pictures: the dashboard in a real browser
  assets [--check]           copy the dashboard's third-party files from npm, or compare and fail
  bench                      build the release binary, measure, write docs/benchmarks.md
  help                       this text

--strict makes a counterpart that is not there (Docker, a model server) a failure instead of a
skip; CI is always strict. The environment variable CARGO_TARGET_DIR is honoured.
";

/// Runs one command; `args` come without the program's name.
///
/// # Errors
///
/// The failed step, in words for the person who typed the command.
pub fn run(host: &Host, args: &[&str]) -> Result<()> {
    match args {
        [] | ["help" | "--help" | "-h"] => {
            say::out(HELP);
            Ok(())
        }
        ["test", rest @ ..] => {
            let (strict, rest) = match rest {
                ["--strict", rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            let nextest_args = match rest {
                [] => rest,
                ["--", nextest_args @ ..] => nextest_args,
                [other, ..] => {
                    bail!("`{other}` is not an option of `test`; put test arguments after `--`")
                }
            };
            suite::command(host, strict || host.in_ci, nextest_args)
        }
        ["ci"] => ci::command(host),
        ["check"] => layout::command(host),
        ["up"] => counterparts::up(host),
        ["soak", args @ ..] => soak::command(host, args),
        ["openapi"] => openapi::write(host),
        ["openapi", "--check"] => openapi::check(host),
        ["reference"] => reference::write(host),
        ["shots"] => shots::take(host),
        ["assets"] => assets::write(host),
        ["assets", "--check"] => assets::check(host),
        ["bench"] => bench::command(host),
        [other, ..] => bail!("`{other}` is no command of xtask, or takes other options:\n\n{HELP}"),
    }
}
