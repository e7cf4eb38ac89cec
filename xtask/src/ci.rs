//! `cargo xtask ci`: everything that must hold, in the order that finds a mistake soonest.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::Host;
use crate::steps::{Steps, output, succeed};
use crate::{assets, counterparts, layout, openapi, say, suite};

/// Runs every step, prints the time of each, and ends with a line `N passed, N failed`.
///
/// When all is well and the checkout is that of a commit, the commit's hash is written to
/// `overmind-ci-green` in the user's cache directory.
///
/// # Errors
///
/// When a step failed. All steps run nevertheless.
pub fn command(host: &Host) -> Result<()> {
    // Downloads and server starts overlap with formatting, clippy and compiling.
    let counterparts = counterparts::start(host);
    let mut steps = Steps::default();
    let mut counts = suite::Counts::default();

    steps.run("fmt", || succeed(host.cargo().args(["fmt", "--all", "--check"])));
    steps.run("check", || layout::command(host));
    steps.run("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        succeed(host.cargo().args(clippy))
    });
    steps.run("tests", || {
        let (counted, outcome) = suite::run(host, &counterparts, true, &[]);
        counts = counted;
        outcome
    });
    // Ended before the docs: they need the processors.
    drop(counterparts);
    steps.run("assets", || assets::check(host));
    steps.run("openapi", || openapi::check(host));
    steps.run("docs", || {
        let doc = ["doc", "--workspace", "--no-deps", "--locked"];
        succeed(host.cargo().env("RUSTDOCFLAGS", "-D warnings").args(doc))
    });

    say::note(&format!("\n{}", steps.summary()));
    if steps.failed() == 0 {
        note_green(host)?;
    }
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

/// Writes down which commit passed; nothing for a checkout that differs from its commit.
fn note_green(host: &Host) -> Result<()> {
    let git = |args: &[&str]| -> Result<String> {
        // CI's checkout may belong to another user; we only look.
        let mut git = Command::new("git");
        let said = output(git.current_dir(&host.root).args(["-c", "safe.directory=*"]).args(args))?;
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    };
    if !git(&["status", "--porcelain"])?.is_empty() {
        say::note("green, but not of a commit: the checkout has changes");
        return Ok(());
    }
    let file: PathBuf = host.cache.with_file_name("overmind-ci-green");
    std::fs::write(&file, git(&["rev-parse", "HEAD"])? + "\n")
        .with_context(|| format!("writing {}", file.display()))
}
