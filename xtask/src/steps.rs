//! A list of steps with the time each took: what CI prints, and what makes it fail.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::say;

/// The steps so far. Every step runs even after a failure, so that one run tells everything.
#[derive(Debug, Default)]
pub struct Steps {
    done: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

impl Steps {
    /// Runs `step` and notes how long it took and whether it failed.
    pub fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        say::note(&format!("==> {name}"));
        let started = Instant::now();
        let error = step().err();
        let took = started.elapsed();
        if let Some(error) = &error {
            say::note(&format!("==> {name} FAILED after {:.1} s: {error:#}", took.as_secs_f64()));
        }
        self.done.push(Step { name, took, error });
    }

    /// How many steps failed.
    pub fn failed(&self) -> usize {
        self.done.iter().filter(|step| step.error.is_some()).count()
    }

    /// One line a step: name, seconds, and `ok` or why it failed.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for Step { name, took, error } in &self.done {
            let outcome = error.as_ref().map_or("ok".into(), |error| format!("FAILED: {error:#}"));
            text += &format!("{name:<10} {:>8.1} s  {outcome}\n", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|step| step.took).sum();
        text += &format!("{:<10} {:>8.1} s\n", "total", total.as_secs_f64());
        text
    }
}

/// Runs `command` to its end with our own output streams.
///
/// # Errors
///
/// When it cannot be started, or ends with anything but success; the message has its words.
pub fn succeed(command: &mut Command) -> Result<()> {
    let words = words(command);
    let status = command.status().with_context(|| format!("starting `{words}`"))?;
    if !status.success() {
        bail!("`{words}` ended with {status}");
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to stdout.
///
/// # Errors
///
/// See [`succeed`]; the message ends with what the command wrote to stderr.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let words = words(command);
    let out = command.output().with_context(|| format!("starting `{words}`"))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("`{words}` ended with {}: {}", out.status, stderr.trim_end());
    }
    Ok(out.stdout)
}

fn words(command: &Command) -> String {
    let mut words = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        words.push(' ');
        words += &arg.to_string_lossy();
    }
    words
}
