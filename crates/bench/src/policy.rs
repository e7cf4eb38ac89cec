//! How long the policy takes to decide about a call: the commands that people use every day, as
//! the tests of the policy know them, judged by the built-in policy.

use std::hint::black_box;
use std::time::{Duration, Instant};

use overmind_cli::exit::Failure;
use overmind_core::gate::GateRequest;
use overmind_policy::{Policy, request};
use serde_json::{Value, json};

use super::{Figure, Goal, Setting, percentile};

const HARMLESS: &str = include_str!("../../policy/corpus/harmless.txt");

pub(super) fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let policy = Policy::default();
    let commands = commands();
    let texts: Vec<String> =
        commands.iter().map(|command| json!({ "command": command }).to_string()).collect();
    let requests: Vec<GateRequest> = commands
        .iter()
        .map(|command| request("run_shell", json!({ "command": command })))
        .collect();
    let rounds = setting.count(40);
    let (mut decided, mut parsed) = (Vec::new(), Vec::new());
    // Alternating, so that other load on the machine affects both.
    for _ in 0..rounds {
        decided.extend(requests.iter().map(|request| timed(|| policy.judge(black_box(request)))));
        parsed.extend(
            texts.iter().map(|text| timed(|| serde_json::from_str::<Value>(black_box(text)))),
        );
    }
    decided.sort_unstable();
    parsed.sort_unstable();
    let floor = us(percentile(&parsed, 0.5));
    Ok(vec![
        Figure::new("policy decision p50", us(percentile(&decided, 0.5)), "µs")
            .floor("reading the call's JSON", floor)
            .goal(Goal::Most(50.0))
            .note(format!(
                "{} everyday shell commands, {rounds} times each, by the built-in policy",
                commands.len()
            )),
        Figure::new("policy decision p99", us(percentile(&decided, 0.99)), "µs")
            .floor("reading the call's JSON", floor)
            .note(format!("the slowest {:.0} µs", us(percentile(&decided, 1.0)))),
    ])
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    black_box(work());
    begun.elapsed()
}

/// The lines of the corpus, without comments and without those that need characters by number.
fn commands() -> Vec<String> {
    let lines = HARMLESS.lines();
    let plain = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    plain.filter(|line| !line.contains('‹')).map(|line| line.replace('⏎', "\n")).collect()
}

/// Microseconds.
fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_everyday_commands() {
        let commands = commands();
        assert!(commands.len() >= 400, "{}", commands.len());
        assert!(commands.iter().any(|command| command.starts_with("git ")));
        assert!(commands.iter().any(|command| command.contains('\n')));
    }
}
