//! Output of long commands, seen while they run: in the log, in the story, through a kill.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::Value;

use crate::home::{Home, until};

/// Writes a line, waits for the file `go`, writes another.
const WAITS: &str = "shell: echo one; while [ ! -e go ]; do sleep 0.05; done; echo two";

fn events(home: &Home, id: &str) -> Vec<Value> {
    let all = home.run(&["events", id, "--limit", "1000", "-o", "json"]).ok().json();
    all.as_array().unwrap().clone()
}

fn deltas(home: &Home, id: &str) -> Vec<Value> {
    let all = events(home, id).into_iter();
    let of_kind = all.filter(|event| event["type"] == "tool.output.delta");
    of_kind.map(|event| event["payload_json"].clone()).collect()
}

fn first_line(home: &Home, id: &str) {
    until("the first line is in the log", || {
        deltas(home, id).iter().any(|delta| delta["text"] == "one\n").then_some(())
    });
}

#[test]
fn a_line_is_shown_while_its_command_runs_and_not_repeated() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id = home.run(&["run", "sh", WAITS, "-o", "name"]).ok().line().to_owned();
    first_line(&home, &id);
    assert_eq!(home.fetch(&id)["status"], "running");
    std::fs::write(home.work().join("go"), "").unwrap();
    home.wait_for(&id, "succeeded");
    let told = home.run(&["logs", &id]).ok();
    told.shows("▸ run_shell echo one").shows("│ one\n").shows("│ two\n");
    assert_eq!(told.out.matches("│ one").count(), 1, "{}", told.out);
    assert_eq!(told.out.matches("│ two").count(), 1, "{}", told.out);
    let kinds: Vec<_> = events(&home, &id).iter().map(|event| event["type"].to_string()).collect();
    let at = |kind: &str| kinds.iter().position(|known| known.contains(kind)).unwrap();
    assert!(at("tool.output.delta") < at("tool.called"), "{kinds:?}");
    home.run(&["replay", &id, "--verify"]).ok();
}

#[test]
fn a_short_command_writes_no_more_events_than_before() {
    let home = Home::up();
    home.agent("sh", &[]);
    let id = home.run(&["run", "sh", "shell: echo short", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "succeeded");
    // On a busy machine this may take longer than the first look at its output.
    let took = events(&home, &id)
        .iter()
        .find(|event| event["type"] == "tool.called")
        .and_then(|event| event["payload_json"]["latency_ms"].as_u64())
        .unwrap();
    assert!(deltas(&home, &id).is_empty() || took >= 200, "{took}");
}

#[test]
fn a_kill_during_the_output_loses_and_doubles_nothing() {
    let mut home = Home::up();
    home.agent("sh", &[]);
    let id = home.run(&["run", "sh", WAITS, "-o", "name"]).ok().line().to_owned();
    first_line(&home, &id);
    home.kill();
    home.start(&["--listen", "none"], &[]);
    home.wait_for(&id, "awaiting_input");
    std::fs::write(home.work().join("go"), "").unwrap();
    home.run(&["input", &id, "retry"]).ok();
    home.wait_for(&id, "succeeded");
    let all = deltas(&home, &id);
    let of_first: Vec<_> = all.iter().filter(|delta| delta["epoch"] == 1).collect();
    assert_eq!(of_first.len(), 1, "{all:?}");
    // The output of the second attempt, if it took long enough to be shown, is complete and separate.
    let of_second: String = all
        .iter()
        .filter(|delta| delta["epoch"] != 1)
        .filter_map(|delta| delta["text"].as_str())
        .collect();
    assert!(of_second.is_empty() || of_second == "one\ntwo\n", "{all:?}");
    let called = events(&home, &id);
    let called: Vec<_> = called.iter().filter(|event| event["type"] == "tool.called").collect();
    assert_eq!(called.len(), 1);
    assert_eq!(called[0]["payload_json"]["result"]["stdout"], "one\ntwo\n");
    home.run(&["replay", &id, "--verify"]).ok();
    home.run(&["audit", "verify"]).ok();
}
