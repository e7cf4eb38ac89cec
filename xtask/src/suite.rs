//! `cargo xtask test`: the counterparts, then every test of the workspace.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};

use crate::counterparts::{self, Counterparts, Ready};
use crate::host::Host;
use crate::report::Report;
use crate::say;
use crate::steps::succeed;

const NEXTEST: &[&str] = &["--workspace", "--locked", "--profile", "ci"];

/// How many tests passed and failed. Nothing is ever skipped in strict mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
}

/// `cargo xtask test [--strict] [-- ARGS]`.
///
/// # Errors
///
/// When a test fails, none runs, or (strict) a counterpart is missing.
pub fn command(host: &Host, strict: bool, args: &[&str]) -> Result<()> {
    let counterparts = counterparts::start(host);
    let (counts, outcome) = run(host, &counterparts, strict, args);
    say::out(&format!("{} passed, {} failed\n", counts.passed, counts.failed));
    outcome
}

/// Waits for the counterparts and runs the tests. What was counted is told even on failure.
pub fn run(
    host: &Host,
    counterparts: &Counterparts,
    strict: bool,
    args: &[&str],
) -> (Counts, Result<()>) {
    let nextest = host.which("cargo-nextest").is_some();
    // Compile first: the counterparts may still be on their way, and code that does not compile
    // is told before anything that is missing.
    let compiled = if nextest {
        succeed(host.cargo().args(["nextest", "run", "--no-run"]).args(NEXTEST))
    } else {
        succeed(host.cargo().args(["test", "--workspace", "--locked", "--no-run"]))
    };
    let ready = match compiled.and_then(|()| counterparts.wait(strict)) {
        Ok(ready) => ready,
        Err(err) => return (Counts::default(), Err(err)),
    };
    let ran = if nextest {
        with_nextest(host, &ready, strict, args)
    } else {
        with_cargo(host, &ready, strict, args)
    };
    match ran {
        Err(err) => (Counts::default(), Err(err)),
        Ok((counts, outcome)) if counts == Counts::default() => {
            (counts, outcome.and(Err(anyhow!("no test ran"))))
        }
        Ok(both) => both,
    }
}

fn cargo_for(host: &Host, ready: &Ready, strict: bool) -> Command {
    let mut cargo = host.cargo();
    cargo.envs(ready.variables.iter().map(|(name, value)| (*name, value.as_str())));
    if strict {
        cargo.env("OVERMIND_TEST_STRICT", "1");
    }
    cargo
}

fn with_nextest(
    host: &Host,
    ready: &Ready,
    strict: bool,
    args: &[&str],
) -> Result<(Counts, Result<()>)> {
    let directory = host.root.join("target/nextest/ci");
    let file = directory.join("junit.xml");
    // A report of an earlier run must not be counted for this one.
    if file.exists() {
        std::fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    let outcome =
        succeed(cargo_for(host, ready, strict).args(["nextest", "run"]).args(NEXTEST).args(args));
    let report = Report::read(&file)?;
    report.tell(&directory.join("flaky"))?;
    Ok((Counts { passed: report.passed, failed: report.failed }, outcome))
}

/// Without nextest: the same tests, in one process per crate. Its result lines are counted.
fn with_cargo(
    host: &Host,
    ready: &Ready,
    strict: bool,
    args: &[&str],
) -> Result<(Counts, Result<()>)> {
    say::note(
        "    cargo-nextest is not installed: using `cargo test` (cargo install cargo-nextest --locked)",
    );
    let mut child = cargo_for(host, ready, strict)
        .args(["test", "--workspace", "--locked", "--no-fail-fast", "--"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .context("starting `cargo test`")?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut counts = Counts::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("reading what `cargo test` says")?;
        let line = String::from_utf8_lossy(&line);
        counts = add(counts, &line);
        let mut stderr = std::io::stderr().lock();
        writeln!(stderr, "{line}").context("passing on what `cargo test` says")?;
    }
    let status = child.wait().context("waiting for `cargo test`")?;
    let outcome =
        if status.success() { Ok(()) } else { Err(anyhow!("`cargo test` ended with {status}")) };
    Ok((counts, outcome))
}

/// Adds a line such as `test result: ok. 3 passed; 0 failed; …`; any other line adds nothing.
fn add(counts: Counts, line: &str) -> Counts {
    let Some((_, result)) = line.split_once("test result: ") else { return counts };
    let number = |word: &str| -> usize {
        let before = result.split_once(&format!(" {word};")).map_or("", |(before, _)| before);
        before.rsplit(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    Counts { passed: counts.passed + number("passed"), failed: counts.failed + number("failed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_result_lines_of_cargo_test_are_added_up() {
        let lines = [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "passed; failed;",
        ];
        let counts = lines.iter().fold(Counts::default(), |counts, line| add(counts, line));
        assert_eq!(counts, Counts { passed: 13, failed: 2 });
    }
}
