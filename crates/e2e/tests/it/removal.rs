//! `overmind rm`: ended runs are removed with their files; and names that look like parts of ids.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::Value;

use crate::worktrees::House;

fn house() -> House {
    let house = House::new(None);
    house.home.0.agent("probe", &[]);
    house
}

#[test]
fn an_ended_run_with_decided_work_is_removed_with_its_log() {
    let house = house();
    let writes = "write: made.txt: by an agent";
    house.run(&["run", "--name", "2024", "--wait", "probe", writes]).ok();
    let id = house.home.named("2024")["id"].as_str().unwrap().to_owned();
    house.run(&["artifact", "save", "2024", "report.md", "--file", "story.txt"]).ok();
    // A removal that would lose work is refused, with a hint.
    house.run(&["rm", "2024"]).fails(2).says("--yes");
    house.run(&["rm", "2024", "--yes"]).fails(5).says("overmind done 2024").says("--discard");
    house.run(&["rm", "202", "--yes"]).fails(3).says("did you mean `2024`?");
    house.run(&["done", "2024", "--merge"]).ok();
    house.run(&["rm", "2024", "--yes"]).ok().shows("events");
    assert!(!house.run(&["ps", "--all"]).ok().out.contains("2024"));
    house.run(&["logs", "2024"]).fails(3);
    house.run(&["events", &id]).fails(3);
    house.run(&["rm", "2024", "--yes"]).fails(3);
    // The log still verifies, and contains the removal of the run.
    house.run(&["audit", "verify"]).ok();
    let events = house.run(&["events", "--stream", "--from", "0", "--no-follow"]).ok().out;
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_run = |event: &&Value| event["run_id"] == id.as_str();
    assert_eq!(events.iter().filter(of_run).count(), 0);
    let removed = |event: &&Value| {
        event["type"] == "retention.pruned" && event["payload_json"]["stream"] == id.as_str()
    };
    assert_eq!(events.iter().filter(removed).count(), 1);
    house.check();
}

#[test]
fn undecided_work_is_removed_with_its_run_only_on_request() {
    let house = house();
    for name in ["one", "two"] {
        let task = "write: made.txt: by an agent";
        house.run(&["run", "--name", name, "--wait", "probe", task]).ok();
    }
    let directory = House::directory(&house.home.named("one"));
    assert!(directory.exists());
    // All of several are tried, and the worst result is the exit code.
    house.run(&["rm", "nobody", "one", "--discard", "--yes"]).fails(3).says("nobody");
    assert!(!directory.exists(), "its worktree went with it");
    let left = house.run(&["ps", "--all", "-o", "json"]).ok().json();
    let names: Vec<&Value> = left.as_array().unwrap().iter().map(|run| &run["name"]).collect();
    assert_eq!(names, ["two"]);
    house.run(&["done", "two", "--keep"]).ok();
    house.run(&["rm", "two", "--yes"]).fails(5).says("was kept");
    house.run(&["rm", "two", "--yes", "--discard"]).ok();
    house.check();
}

#[test]
fn a_working_run_is_not_removed_and_only_admins_remove() {
    let house = house();
    house.run(&["run", "--name", "waits", "-d", "--", "sh", "-c", "echo up; read x"]).ok();
    house.home.says("waits", "up");
    let run = house.home.named("waits");
    house.run(&["rm", "waits", "--yes"]).fails(5).says("overmind stop waits");
    let kept = house.home.0.data().join("processes").join(run["id"].as_str().unwrap());
    assert!(kept.exists(), "{}", kept.display());
    house.run(&["stop", "waits"]).ok();
    house.run(&["wait", "waits"]);
    let key = house.run(&["key", "create", "ci", "--role", "operator", "-o", "name"]).ok();
    let by_key = [("OVERMIND_TOKEN", key.line())];
    house.home.0.run_env(&by_key, &["rm", "waits", "--yes", "--discard"]).fails(6).says("admin");
    house.run(&["rm", "waits", "--yes", "--discard"]).ok();
    assert!(!kept.exists(), "the output of its program is gone");
    house.check();
}

#[test]
fn a_name_is_preferred_to_part_of_an_id() {
    let house = house();
    let first =
        ["run", "--here", "--name", "first", "--wait", "-o", "json", "probe", "report: one"];
    let first = house.run(&first).ok().json();
    let id = first["id"].as_str().unwrap();
    // The other run's name is the end of the first one's id.
    let tail = &id[id.len() - 4..];
    house.run(&["info", tail, "-o", "json"]).ok().shows("\"first\"");
    house.home.0.agent("keeps", &["--approvals", "run_shell"]);
    house.run(&["run", "--here", "--name", tail, "-d", "keeps", "shell: true"]).ok();
    house.home.status(tail, "awaiting_approval");
    let other = house.home.named(tail)["id"].as_str().unwrap().to_owned();
    for args in [&["info", tail][..], &["events", tail]] {
        let out = house.run(&[args, &["-o", "json"]].concat()).ok().out;
        assert!(out.contains(&other) && !out.contains(id), "{args:?}: {out}");
    }
    house.run(&["approve", tail]).ok();
    house.run(&["wait", tail]).ok();
    house.run(&["rm", tail, "--yes"]).ok();
    assert_eq!(house.home.named("first")["id"], id, "the other one was meant");
    house.check();
}
