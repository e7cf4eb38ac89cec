//! `cargo xtask soak`: the second tier. The tests of storms, kills, hostile corpora, emulated machines
//! and random schedules with large counts, the fuzz targets, and strangers' programs that read the
//! OpenAPI document, for as long as somebody wants.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::Host;
use crate::report::Report;
use crate::steps::succeed;
use crate::{counterparts, say};

mod surface;

const HELP: &str = "`cargo xtask soak [--minutes N] [NAME…]`";

/// The soak tests: a name, and its tests (a filter of nextest).
const TESTS: &[(&str, &str)] = &[
    ("kills", "test(/crash::/) | test(/kills::/) | test(/letters::/)"),
    ("storm", "test(/storm::/)"),
    ("hostile", "test(/hostile/) | test(/corpus::/) | test(/traced::/)"),
    ("schedules", "test(/properties::/)"),
    ("rituals", "test(/ticks::/) | test(/rituals::/)"),
    ("machines", "test(/needs_qemu_/)"),
    ("rankings", "test(/needs_embedding_model_/)"),
    ("sandbox", "package(overmind-sandbox)"),
];

/// The fuzz targets, by the name under which they are soaked.
const FUZZ: &str = "fuzz";
/// A fuzzer of the HTTP surface, see [`surface::fuzz`].
const OPENAPI: &str = "openapi";
/// Generated clients of the HTTP surface, see [`surface::clients`].
const CLIENTS: &str = "clients";
/// How long the fuzz targets run where no time is given, all together.
const FUZZ_SECONDS: u64 = 60;
/// How long the HTTP surface is fuzzed where no time is given.
const OPENAPI_SECONDS: u64 = 300;

#[derive(Debug, PartialEq, Eq)]
struct Options<'a> {
    /// How long to begin new rounds; one round when it is not given.
    minutes: Option<u64>,
    names: Vec<&'a str>,
}

fn options<'a>(args: &[&'a str]) -> Result<Options<'a>> {
    let known = || TESTS.iter().map(|(name, _)| *name).chain([FUZZ, OPENAPI, CLIENTS]);
    let mut options = Options { minutes: None, names: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--minutes" => {
                let given = args.next().copied().unwrap_or_default();
                let minutes = given.parse().ok().filter(|minutes| *minutes > 0);
                let minutes = minutes.with_context(|| {
                    format!("--minutes `{given}`: not a number of minutes: {HELP}")
                })?;
                options.minutes = Some(minutes);
            }
            name if known().any(|known| known == name) => options.names.push(name),
            other => {
                let known: Vec<&str> = known().collect();
                bail!("`{other}` cannot be soaked; there are {}: {HELP}", known.join(", "));
            }
        }
    }
    if options.names.is_empty() {
        options.names = known().collect();
    }
    Ok(options)
}

/// Runs what `args` name, all by default: one round, or rounds for so many minutes.
///
/// # Errors
///
/// When an argument is not known, or something failed; then all rounds of the time have run.
pub fn command(host: &Host, args: &[&str]) -> Result<()> {
    let options = options(args)?;
    let began = Instant::now();
    let limit = options.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let wanted = TESTS.iter().filter(|(name, _)| options.names.contains(name));
    let filter: Vec<String> = wanted.map(|(_, filter)| format!("({filter})")).collect();
    let fuzz = options.names.contains(&FUZZ);

    let mut failed = 0;
    if fuzz {
        // A quarter of the time beside tests, all of it alone.
        let share = if filter.is_empty() { 1 } else { 4 };
        let seconds = limit.map_or(FUZZ_SECONDS, |limit| (limit.as_secs() / share).max(1));
        if let Err(err) = fuzz_targets(host, seconds) {
            say::note(&format!("soak: fuzz FAILED: {err:#}"));
            failed += 1;
        }
    }
    let mut passed = 0;
    if options.names.contains(&OPENAPI) {
        let share = if options.names.len() > 1 { 4 } else { 1 };
        let seconds = limit.map_or(OPENAPI_SECONDS, |limit| (limit.as_secs() / share).max(1));
        count("openapi", surface::fuzz(host, seconds), &mut passed, &mut failed);
    }
    if options.names.contains(&CLIENTS) {
        count("clients", surface::clients(host), &mut passed, &mut failed);
    }
    if !filter.is_empty() {
        let counterparts = counterparts::start(host);
        let nextest = ["nextest", "run", "--workspace", "--locked", "--profile", "soak"];
        succeed(host.cargo().args(nextest).arg("--no-run"))?;
        let ready = counterparts.wait(true)?;
        let directory = host.root.join("target/nextest/soak");
        for round in 1.. {
            say::note(&format!("==> soak: round {round} of {}", options.names.join(", ")));
            let mut tests = host.cargo();
            tests.envs(ready.variables.iter().map(|(name, value)| (*name, value.as_str())));
            tests.env("OVERMIND_TEST_SOAK", "1").env("OVERMIND_TEST_STRICT", "1");
            let outcome = succeed(tests.args(nextest).args(["-E", &filter.join(" | ")]));
            let report = Report::read(&directory.join("junit.xml"))?;
            report.tell(&directory.join("flaky"))?;
            passed += report.passed;
            failed += report.failed.max(usize::from(outcome.is_err()));
            if limit.is_none_or(|limit| began.elapsed() >= limit) {
                break;
            }
        }
    }
    say::note(&format!("soak: {:.0} s", began.elapsed().as_secs_f64()));
    say::out(&format!("{passed} passed, {failed} failed\n"));
    if failed > 0 {
        bail!("soaking found something: see above");
    }
    Ok(())
}

/// Counts what came of one thing that is no test of nextest, and says why it failed.
fn count(name: &str, outcome: Result<()>, passed: &mut usize, failed: &mut usize) {
    match outcome {
        Ok(()) => *passed += 1,
        Err(err) => {
            say::note(&format!("soak: {name} FAILED: {err:#}"));
            *failed += 1;
        }
    }
}

/// Runs every fuzz target on the stable toolchain for `seconds` in all.
fn fuzz_targets(host: &Host, seconds: u64) -> Result<()> {
    // With the workspace's features, so that this shares the builds of the tests.
    succeed(host.cargo().args(["build", "--workspace", "--locked", "--bin", "smoke"]))?;
    let mut smoke = std::process::Command::new(host.target.join("debug/smoke"));
    smoke.current_dir(&host.root).args(["--seconds", &seconds.to_string()]);
    succeed(&mut smoke).context("running the fuzz targets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_names_are_parsed_and_an_unknown_name_lists_the_known_ones() {
        let read = options(&["--minutes", "3", "kills", "fuzz"]).expect("options");
        assert_eq!(read, Options { minutes: Some(3), names: vec!["kills", "fuzz"] });
        let all = options(&[]).expect("no options");
        assert_eq!((all.minutes, all.names.len()), (None, TESTS.len() + 3));
        for wrong in [&["storms"][..], &["--minutes"], &["--minutes", "0"], &["--minutes", "x"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
        let err = options(&["storms"]).expect_err("no such name").to_string();
        assert!(err.contains("storm, hostile"), "{err}");
    }
}
