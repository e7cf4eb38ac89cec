//! Words and options that scripts were written with.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use serde_json::Value;

use crate::home::{Home, until};

#[test]
fn a_run_starts_in_a_directory_of_a_project_and_is_returned_as_an_object() {
    let home = Home::up();
    let project = home.path().join("project");
    std::fs::create_dir_all(project.join("part/deep")).unwrap();
    let at = project.to_str().unwrap();
    for (name, options, directory) in [
        ("whole", vec!["--project", at], "project"),
        ("part", vec!["--project", at, "--cwd", "part/deep"], "project/part/deep"),
        ("absolute", vec!["--cwd", at], "project"),
        ("old", vec!["--workspace", "../project", "--cwd", "part"], "project/part"),
    ] {
        let args = [
            &["run", "--agent", "pwd", "--name", name, "--detach", "--json", "--env", "A=b"],
            &options[..],
            &["--restart", "never", "--max-seconds", "9", "--type", "task"],
        ]
        .concat();
        let made = home.run(&args).ok().json();
        assert_eq!(made["name"], name);
        assert!(made["id"].as_str().unwrap().starts_with("ses_"));
        home.run(&["wait", name]).ok();
        let log = home.run(&["logs", name]).ok().out;
        let stands = home.path().join(directory).canonicalize().unwrap();
        assert!(log.contains(&format!("{}\n", stands.display())), "{name}: {log}");
    }
    let listed = home.run(&["ps", "--all", "--json"]).ok().json();
    assert_eq!(listed.as_array().unwrap().len(), 4);
    home.run(&["run", "--cwd", "nowhere", "true"]).fails(1).says("--cwd");
    home.run(&["run", "--project", "nowhere", "true"]).fails(1).says("--project nowhere");
    home.run(&["run", "--detach", "--wait", "true"]).fails(2).says("cannot be used with");
    home.run(&["ps", "--json", "-o", "wide"]).fails(2).says("cannot be used with");

    let told = home.run(&["subscribe", "whole", "--from", "0"]).ok().out;
    let kinds: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(kinds.iter().any(|event| event["type"] == "process.ended"), "{told}");
    let run = kinds[0]["run_id"].clone();
    assert!(run.is_string() && kinds.iter().all(|event| event["run_id"] == run), "{told}");
}

#[test]
fn the_earlier_commands_start_and_stop_a_server() {
    let home = Home::new();
    home.run(&["start", "--listen", "none"]).ok();
    home.run(&["status"]).ok();
    home.run(&["shutdown"]).ok();
    until("it has ended", || (home.run(&["status"]).code != 0).then_some(()));
}
