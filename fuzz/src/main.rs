//! `smoke`: every target for a bounded time, on the stable toolchain.
//!
//! Each target runs in a process of its own, so that an abort (a stack that overflows, memory
//! that runs out) is found too and does not hide the other targets. The input at work is kept in
//! a file, which is the evidence when that process dies.

#![expect(clippy::print_stdout, reason = "a program that says what it did")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use overmind_fuzz::{Mutator, TARGETS, Target, target};

const USAGE: &str = "usage: smoke [--seconds N] [--seed N] [TARGET [FILE]]\n\n\
    Without TARGET, all of them share N seconds (default 20). With FILE, TARGET runs on it once.";

/// One input may take this long; more is a find, for these parsers face the network.
const SLOW: Duration = Duration::from_secs(5);

struct Options {
    seconds: u64,
    seed: u64,
    rest: Vec<String>,
}

fn options() -> Result<Options, String> {
    // A new seed each time, so that runs add up; printed, so that one can be repeated.
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let mut options = Options { seconds: 20, seed: now, rest: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().unwrap_or_default();
            value.parse().map_err(|_| format!("`{arg} {value}`: not a number\n\n{USAGE}"))
        };
        match arg.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            flag if flag.starts_with('-') => {
                return Err(format!("`{flag}` is not an option\n\n{USAGE}"));
            }
            _ => options.rest.push(arg),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let outcome = options().and_then(|options| match options.rest.as_slice() {
        [] => all(&options),
        [name] => find(name).and_then(|target| one(target, &options)),
        [name, file] => find(name).and_then(|target| replay(target, Path::new(file))),
        _ => Err(USAGE.to_owned()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target(name).ok_or_else(|| format!("no target `{name}`; there are: {}", names.join(", ")))
}

/// Runs every target in a process of its own, two at a time.
fn all(options: &Options) -> Result<(), String> {
    let this = std::env::current_exe().map_err(|err| format!("finding this program: {err}"))?;
    let each = (options.seconds * 2 / TARGETS.len() as u64).max(1);
    let mut failed = Vec::new();
    for pair in TARGETS.chunks(2) {
        let children: Vec<_> = pair
            .iter()
            .map(|target| {
                let mut command = Command::new(&this);
                command.args(["--seconds", &each.to_string(), "--seed", &options.seed.to_string()]);
                (target.name, command.arg(target.name).spawn())
            })
            .collect();
        for (name, child) in children {
            let ended = child.and_then(|mut child| child.wait());
            match ended {
                Ok(status) if status.success() => {}
                Ok(status) => failed.push(format!("{name} ({status})")),
                Err(err) => failed.push(format!("{name} ({err})")),
            }
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!(
            "fuzz: FAILED: {}. The input is fuzz/artifacts/TARGET.input; run it alone with\n  \
             cargo run --package overmind-fuzz -- TARGET fuzz/artifacts/TARGET.input\n\
             and keep it in fuzz/regressions/TARGET/ once it is mended",
            failed.join(", ")
        )),
    }
}

#[expect(clippy::disallowed_methods, reason = "a program of its own; cargo says where it stands")]
fn here() -> PathBuf {
    // Set by `cargo run`; the directory we are in when started by hand.
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("fuzz"), PathBuf::from)
}

/// The regressions of one target, then new inputs until the time is up.
fn one(target: &Target, options: &Options) -> Result<(), String> {
    let regressions = here().join("regressions").join(target.name);
    let mut old = 0_u64;
    // No directory: nothing has broken this target yet.
    for entry in std::fs::read_dir(&regressions).into_iter().flatten().flatten() {
        replay(target, &entry.path())?;
        old += 1;
    }

    let artifacts = here().join("artifacts");
    std::fs::create_dir_all(&artifacts)
        .map_err(|err| format!("making {}: {err}", artifacts.display()))?;
    let evidence = artifacts.join(format!("{}.input", target.name));
    // Kept open and overwritten: making it anew each time would wait for the disk.
    let file =
        File::create(&evidence).map_err(|err| format!("making {}: {err}", evidence.display()))?;
    let keep = |input: &[u8]| {
        file.write_all_at(input, 0)
            .and_then(|()| file.set_len(input.len() as u64))
            .map_err(|err| format!("writing {}: {err}", evidence.display()))
    };
    let mut mutator = Mutator::new(target, options.seed);
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let mut inputs = 0_u64;
    let mut slowest = Duration::ZERO;
    while Instant::now() < deadline {
        let input = mutator.next_input();
        keep(&input)?;
        let began = Instant::now();
        let held = catch_unwind(|| (target.run)(&input)).is_ok();
        let took = began.elapsed();
        slowest = slowest.max(took);
        inputs += 1;
        if !held || took > SLOW {
            return Err(format!(
                "fuzz: {} broke on input {inputs} of seed {} after {took:.1?}: {:?}",
                target.name,
                options.seed,
                String::from_utf8_lossy(&input)
            ));
        }
    }
    std::fs::remove_file(&evidence)
        .map_err(|err| format!("removing {}: {err}", evidence.display()))?;
    println!(
        "fuzz: {:<10} {inputs:>8} inputs, {old} old ones, slowest {slowest:.1?}, seed {}",
        target.name, options.seed
    );
    Ok(())
}

fn replay(target: &Target, file: &Path) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|err| format!("reading {}: {err}", file.display()))?;
    catch_unwind(|| (target.run)(&input))
        .map_err(|_| format!("fuzz: {} breaks on {}", target.name, file.display()))
}
