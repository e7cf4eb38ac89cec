//! Runs of built-in agents work in rooms as runs of commands do.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::worktrees::House;

fn house() -> House {
    let house = House::new(None);
    house.home.0.agent("probe", &[]);
    house
}

/// A run of the agent by a person who stands in the project, to where it ends or waits.
fn task(house: &House, name: &str, more: &[&str], task: &str) -> Value {
    house.run(&[&["run", "--name", name, "--wait"], more, &["probe", task]].concat());
    house.home.named(name)
}

#[test]
fn a_built_in_agent_works_in_a_worktree_of_the_repository_where_its_caller_stands() {
    let house = house();
    let run = task(&house, "edit", &[], "write: made.txt: by an agent");
    assert_eq!(run["status"], "succeeded", "{run}");
    assert_eq!(run["room"]["branch"], "overmind/edit", "{run}");
    assert_eq!(run["room"]["phase"], "closed", "{run}");
    assert!(!House::directory(&run).exists(), "its tree is given back");
    assert!(!house.project.join("made.txt").exists(), "the project is as it was");
    house.run(&["work", "edit"]).ok().shows("by an agent");
    house.run(&["replay", "edit", "--verify"]).ok();
    // A fork has a room of its own.
    let forked = house.run(&["fork", "edit", "--at", "1", "-o", "json"]).ok().out;
    let forked: Value = serde_json::from_str(&forked).unwrap();
    let id = forked["id"].as_str().unwrap();
    house.run(&["wait", id]).ok();
    let fork = house.home.named(forked["name"].as_str().unwrap());
    assert_eq!(fork["room"]["phase"], "closed", "{fork}");
    assert_ne!(fork["room"]["branch"], run["room"]["branch"], "{fork}");
    house.run(&["done", id, "--discard", "--yes"]).ok();
    house.run(&["done", "edit", "--merge"]).ok();
    assert_eq!(std::fs::read_to_string(house.project.join("made.txt")).unwrap(), "by an agent");
    // In the directory itself, for who says so.
    let here = task(&house, "here", &["--here"], "write: here.txt: at once");
    assert_eq!((&here["status"], &here["room"]), (&json!("succeeded"), &Value::Null), "{here}");
    assert!(house.project.join("here.txt").exists());
    std::fs::remove_file(house.project.join("here.txt")).unwrap();
    house.check();
}

#[test]
fn a_built_in_agent_that_waits_for_a_person_gives_its_room_back_when_it_is_canceled() {
    let mut house = house();
    let run = task(&house, "asks", &[], "shell: rm -rf story.txt; curl http://example.invalid");
    assert_eq!(run["status"], "awaiting_approval", "{run}");
    let directory = House::directory(&run);
    assert!(directory.join("story.txt").exists(), "{run}");
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    assert!(directory.join("story.txt").exists(), "it waits with its room");
    house.run(&["cancel", "asks"]).ok();
    let run = house.home.status("asks", "canceled");
    assert_eq!(run["room"]["phase"], "closed", "{run}");
    assert!(!directory.exists());
    house.check();
}

#[test]
fn a_run_without_a_project_works_in_an_empty_directory_that_goes_if_it_stays_empty() {
    let house = house();
    let home = house.home.0.path().to_owned();
    let at_home = |name: &str, task: &str| {
        let args = ["run", "--name", name, "--wait", "probe", task];
        let done = house.home.0.command(&args).current_dir(&home).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        house.home.named(name)
    };
    let wrote = at_home("wrote", "write: a.txt: kept");
    let directory = wrote["workspace"].as_str().unwrap();
    let found = std::fs::metadata(directory).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o700, "{directory}");
    assert_eq!(std::fs::read_to_string(format!("{directory}/a.txt")).unwrap(), "kept");
    let looked = at_home("looked", "shell: ls -A");
    assert_eq!(looked["room"], Value::Null, "{looked}");
    let empty = looked["workspace"].as_str().unwrap();
    assert_ne!(empty, directory);
    crate::home::until("it is removed", || (!std::path::Path::new(empty).exists()).then_some(()));
}
