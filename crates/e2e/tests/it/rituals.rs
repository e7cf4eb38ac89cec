//! Rituals over kills: each tick has its quest, once.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::home::{Home, until};

fn apply(home: &Home, name: &str, spec: &Value) {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Ritual", "metadata": {"name": name}, "spec": spec,
    });
    std::fs::write(home.work().join("ritual.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "ritual.json"]).ok();
}

/// The seconds of the ticks that have a quest.
fn ticks(home: &Home, name: &str) -> Vec<u64> {
    let all = home.run(&["get", "quests", "-o", "name"]).ok().out;
    let prefix = format!("quest/{name}-");
    let ticks = all.lines().filter_map(|line| line.strip_prefix(&prefix));
    ticks.map(|tick| tick.parse().unwrap()).collect()
}

#[test]
fn a_ritual_of_one_second_fires_each_tick_once_across_kills() {
    let mut home = Home::up();
    home.agent("sh", &["--on-unknown", "retry"]);
    let spec = json!({
        "schedule": "every 1s", "missed": "all", "succeededHistory": 1000, "failedHistory": 1000,
        "template": {"agent": "sh", "task": "shell: true"},
    });
    apply(&home, "tick", &spec);
    for round in 1..=3 {
        until("it fires", || (ticks(&home, "tick").len() >= round * 2).then_some(()));
        home.kill();
        home.start(&["--listen", "none"], &[]);
    }
    until("it has caught up", || (ticks(&home, "tick").len() >= 9).then_some(()));
    let mut suspended = spec.clone();
    suspended["suspend"] = json!(true);
    apply(&home, "tick", &suspended);
    home.run(&["get", "cronjobs"]).ok().shows("SCHEDULE").shows("every 1s").shows("true");
    let all = ticks(&home, "tick");
    let once: BTreeSet<u64> = all.iter().copied().collect();
    assert_eq!(once.len(), all.len(), "none twice: {all:?}");
    let (first, last) = (*once.first().unwrap(), *once.last().unwrap());
    assert_eq!(last - first + 1, once.len() as u64, "none left out: {all:?}");
    until("all have run", || {
        let quests = home.run(&["get", "quests", "-o", "json"]).ok().json();
        let done = |one: &Value| one["status"]["succeeded"] == 1;
        quests["items"].as_array().unwrap().iter().all(done).then_some(())
    });
    let runs = home.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
    assert_eq!(runs.as_array().unwrap().len(), once.len(), "a run a tick");
    home.run(&["delete", "ritual", "tick"]).ok();
    until("its quests are gone", || ticks(&home, "tick").is_empty().then_some(()));
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn a_tick_replaces_the_previous_quest_and_ends_its_run() {
    let home = Home::up();
    let agent = json!({
        "name": "sleeps", "role": "runs", "model": "command", "sandbox": "none",
        "command": {"argv": ["sleep", "1000"], "exact": true},
    });
    let file = home.path().join("sleeps.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    let mut spec = json!({
        "schedule": "every 1s", "concurrency": "replace", "template": {"agent": "sleeps"},
    });
    apply(&home, "swap", &spec);
    let mut seen = BTreeSet::new();
    until("three ticks have fired", || {
        seen.extend(ticks(&home, "swap"));
        (seen.len() >= 3).then_some(())
    });
    spec["suspend"] = json!(true);
    apply(&home, "swap", &spec);
    // The last one stays, and no run of the others continues.
    let runs = || -> Vec<(String, String)> {
        let all = home.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = all.as_array().unwrap().iter();
        all.map(|run| (text(&run["name"]), text(&run["status"]))).collect()
    };
    let last = until("one is left", || {
        let left = ticks(&home, "swap");
        let running = runs().iter().filter(|(_, status)| status == "running").count();
        (left.len() == 1 && running == 1).then(|| left[0])
    });
    assert!(seen.iter().all(|tick| *tick <= last), "the newest one stays: {last} of {seen:?}");
    for (name, status) in runs() {
        let wanted = if name == format!("swap-{last}-0") { "running" } else { "canceled" };
        assert_eq!(status, wanted, "{name}");
    }
    home.run(&["delete", "ritual", "swap"]).ok();
    until("its run has ended", || {
        runs().iter().all(|(_, status)| status == "canceled").then_some(())
    });
}
