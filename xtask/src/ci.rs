//! `cargo xtask ci`: everything that must hold, in the order that finds a mistake soonest.

use anyhow::{Context, Result, bail};

use crate::host::Host;
use crate::steps::{Steps, succeed};
use crate::{counterparts, layout, openapi, say, suite};

/// How long the fuzz targets run in CI, all together, in seconds.
const FUZZ_SECONDS: u64 = 20;

/// Runs every step, prints the time of each, and ends with a line `N passed, N failed`.
///
/// # Errors
///
/// When a step failed. All steps run nevertheless.
pub fn command(host: &Host) -> Result<()> {
    // Downloads and server starts overlap with formatting, clippy and compiling.
    let counterparts = counterparts::start(host);
    let mut steps = Steps::default();
    let mut counts = suite::Counts::default();

    steps.run("fmt", || {
        succeed(host.cargo().args(["fmt", "--all", "--check"]))?;
        succeed(host.cargo().args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))
    });
    steps.run("check", || layout::command(host));
    steps.run("clippy", || {
        for workspace in
            [["--workspace", "--all-targets"], ["--manifest-path=fuzz/Cargo.toml", "--all-targets"]]
        {
            let mut clippy = host.cargo();
            succeed(
                clippy.arg("clippy").args(workspace).args(["--locked", "--", "-D", "warnings"]),
            )?;
        }
        Ok(())
    });
    steps.run("tests", || {
        let (counted, outcome) = suite::run(host, &counterparts, true, &[]);
        counts = counted;
        outcome
    });
    // Ended before the docs and the fuzz targets: they need the processors.
    drop(counterparts);
    steps.run("docs", || {
        let doc = ["doc", "--workspace", "--no-deps", "--locked"];
        succeed(host.cargo().env("RUSTDOCFLAGS", "-D warnings").args(doc))
    });
    steps.run("openapi", || openapi::check(host));
    steps.run("fuzz", || fuzz_smoke(host, FUZZ_SECONDS));

    say::note(&format!("\n{}", steps.summary()));
    // A failed step whose tests all passed must still read as a failure.
    let failed = match (steps.failed(), counts.failed) {
        (0, 0) => 0,
        (steps, 0) => steps,
        (_, tests) => tests,
    };
    say::out(&format!("{} passed, {failed} failed\n", counts.passed));
    match steps.failed() {
        0 => Ok(()),
        n => bail!("{n} of CI's steps failed: see the table above"),
    }
}

const FUZZ: &[&str] = &["--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml"];

/// Runs every fuzz target on the stable toolchain for `seconds` in all, and before that the tests
/// that prove that the targets reach what they are for.
///
/// # Errors
///
/// When a target breaks; the runner has printed the input.
pub fn fuzz_smoke(host: &Host, seconds: u64) -> Result<()> {
    let seconds = seconds.to_string();
    succeed(host.cargo().arg("test").args(FUZZ)).context("testing the fuzz targets")?;
    let smoke = ["--bin", "smoke", "--", "--seconds", &seconds];
    succeed(host.cargo().arg("run").args(FUZZ).args(smoke)).context("running the fuzz targets")
}
