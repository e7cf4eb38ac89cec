//! The figure of the product: a decision in 50 µs. Nothing is asserted: figures are for people.

use std::time::Instant;

use overmind_policy::Policy;

use super::corpus::{bypasses, harmless, shell};

#[test]
#[ignore = "prints figures of a release build"]
fn time_of_a_decision() {
    let policy = Policy::default();
    let requests: Vec<_> = harmless().iter().map(|command| shell(command)).collect();
    let hostile: Vec<_> = bypasses().iter().map(|(_, command)| shell(command)).collect();
    for (name, requests) in [("harmless", requests), ("bypass", hostile)] {
        let mut times: Vec<u128> = Vec::new();
        for _ in 0..20 {
            for request in &requests {
                let began = Instant::now();
                std::hint::black_box(policy.judge(std::hint::black_box(request)));
                times.push(began.elapsed().as_nanos());
            }
        }
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 1000] / 100;
        let micros = |tenths: u128| format!("{}.{} µs", tenths / 10, tenths % 10);
        eprintln!(
            "{name}: p50 {} p95 {} p99 {}",
            micros(at(500)),
            micros(at(950)),
            micros(at(990))
        );
    }
}
