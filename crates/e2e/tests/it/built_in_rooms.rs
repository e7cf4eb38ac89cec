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

/// A run of the agent, started in the project, until it ends or waits.
fn task(house: &House, name: &str, more: &[&str], task: &str) -> Value {
    house.run(&[&["run", "--name", name, "--wait"], more, &["probe", task]].concat());
    house.home.named(name)
}

#[test]
fn a_built_in_agent_works_in_a_worktree_of_the_current_repository() {
    let house = house();
    let run = task(&house, "edit", &[], "write: made.txt: by an agent");
    assert_eq!(run["status"], "succeeded", "{run}");
    assert_eq!(run["room"]["branch"], "overmind/edit", "{run}");
    assert_eq!(run["room"]["phase"], "kept", "{run}");
    assert!(House::directory(&run).exists(), "it stays until somebody decides");
    assert!(!house.project.join("made.txt").exists(), "the project is as it was");
    house.run(&["work", "edit"]).ok().shows("by an agent");
    house.run(&["replay", "edit", "--verify"]).ok();
    // A fork has its own environment.
    let forked = house.run(&["fork", "edit", "--at", "1", "-o", "json"]).ok().out;
    let forked: Value = serde_json::from_str(&forked).unwrap();
    let id = forked["id"].as_str().unwrap();
    house.run(&["wait", id]).ok();
    let fork = house.home.named(forked["name"].as_str().unwrap());
    assert_eq!(fork["room"]["phase"], "kept", "{fork}");
    assert_ne!(fork["room"]["branch"], run["room"]["branch"], "{fork}");
    house.run(&["done", id, "--discard", "--yes"]).ok();
    house.run(&["done", "edit", "--merge"]).ok();
    assert_eq!(std::fs::read_to_string(house.project.join("made.txt")).unwrap(), "by an agent");
    // In the directory itself, on request.
    let here = task(&house, "here", &["--here"], "write: here.txt: at once");
    assert_eq!((&here["status"], &here["room"]), (&json!("succeeded"), &Value::Null), "{here}");
    assert!(house.project.join("here.txt").exists());
    std::fs::remove_file(house.project.join("here.txt")).unwrap();
    house.check();
}

#[test]
fn canceling_a_waiting_built_in_agent_releases_its_environment() {
    let mut house = house();
    let run = task(&house, "asks", &[], "shell: rm -rf story.txt; touch .envrc");
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
    // A fork of all its steps repeats its actions, and not its cancellation.
    let at = run["step_count"].to_string();
    let fork = house.run(&["fork", "asks", "--at", &at, "-o", "name"]).ok().line().to_owned();
    assert_eq!(house.home.0.fetch(&fork)["status"], "awaiting_approval");
    assert!(events(&house, &fork, "run.canceled").is_empty());
    house.run(&["cancel", &fork]).ok();
    house.check();
}

#[test]
fn a_run_without_a_project_gets_an_empty_directory_that_is_removed_if_unused() {
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

/// An agent that edits a file twice, adds another in a directory, and then asks.
fn editor(house: &House) {
    let write = |path: &str, text: &str| json!({"calls": [{"name": "write_file", "args": {"path": path, "content": text}}]});
    let asks = json!({"calls": [{"name": "ask_user", "args": {"message": "go on?"}}]});
    let last = json!({"calls": [{"name": "final_answer", "args": {"message": "done"}}]});
    let writes = [("story.txt", "first\n"), ("story.txt", "second\n"), ("d/x", "third\n")];
    let [one, two, three] = writes.map(|(path, text)| write(path, text));
    house.home.0.scripted("editor", &json!([one, two, three, asks, last]), &[]);
}

fn events(house: &House, run: &str, kind: &str) -> Vec<Value> {
    let events = house.run(&["events", run, "-o", "json", "--limit", "1000"]).ok().json();
    let events = events.as_array().unwrap().iter();
    events
        .filter(|event| event["type"] == kind)
        .map(|event| event["payload_json"].clone())
        .collect()
}

#[test]
fn undo_restores_files_step_by_step_and_a_fork_starts_with_those_of_its_step() {
    let mut house = house();
    editor(&house);
    house.run(&["run", "--name", "edit", "editor", "go"]);
    let run = house.home.status("edit", "awaiting_input");
    let tree = House::directory(&run);
    let story = || std::fs::read_to_string(tree.join("story.txt")).ok();
    let added = || std::fs::read_to_string(tree.join("d/x")).ok();
    assert_eq!((story().as_deref(), added().as_deref()), (Some("second\n"), Some("third\n")));
    let saved = events(&house, "edit", "room.snapshot");
    let labels: Vec<&str> =
        saved.iter().map(|event| event["snapshot"]["label"].as_str().unwrap()).collect();
    assert_eq!(
        labels,
        ["1", "2", "3", "4"],
        "the state before each step, of which the first planned"
    );
    // The session's own git does not contain it.
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).current_dir(&tree).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(git(&["for-each-ref", "refs/overmind"]), "");
    assert_eq!(git(&["rev-list", "--count", "HEAD"]).trim(), "1");
    assert_eq!(house.git(&["for-each-ref", "refs/overmind/snapshots"]), "");

    let undone = house.run(&["undo", "edit"]);
    undone.ok().shows("removed again d/x").says("overmind undo edit --to 4");
    assert_eq!((story().as_deref(), added()), (Some("second\n"), None));
    assert!(!tree.join("d").exists(), "the directory was made by that step");
    house.run(&["undo", "edit"]).ok();
    assert_eq!(story().as_deref(), Some("first\n"), "again goes further back");
    // A person's own change is saved before it is undone, also across a kill of the server.
    std::fs::write(tree.join("note.txt"), "mine").unwrap();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    house.run(&["undo", "edit", "--to", "0"]).ok().shows("note.txt").shows("story.txt");
    assert_eq!((story().as_deref(), tree.join("note.txt").exists()), (Some("once\n"), false));
    let back = house.run(&["undo", "edit", "--to", "0", "-o", "json"]).ok().json();
    assert_eq!(back["files"], json!([]), "{back}");
    let last = events(&house, "edit", "room.undone");
    let mine = last[last.len() - 2]["undone"]["saved"].as_str().unwrap().to_owned();
    house.run(&["undo", "edit", "--to", &mine]).ok();
    assert_eq!(std::fs::read_to_string(tree.join("note.txt")).unwrap(), "mine");
    house.run(&["undo", "edit", "--to", "77.7"]).fails(2).says("there is no snapshot 77.7");
    house.run(&["undo", "edit", "--to", "../x"]).fails(2).says("must be a step");
    house.run(&["undo", "edit", "--to", "4"]).ok();
    assert_eq!(added().as_deref(), Some("third\n"));
    house.run(&["replay", "edit", "--verify"]).ok();

    house.run(&["input", "edit", "yes"]).ok();
    house.home.status("edit", "succeeded");
    house.run(&["undo", "edit"]).ok().shows("d/x");
    house.run(&["undo", "edit", "--to", "4"]).ok();
    house.run(&["done", "edit", "--park"]).ok().shows("overmind/edit");
    house.run(&["undo", "edit"]).fails(5).says("overmind fork edit --at STEP");
    // Its tree was removed, but not its saved work.
    house.git(&["commit", "-qm", "later", "--allow-empty"]);
    let forked = house.run(&["fork", "edit", "--at", "3"]);
    forked.ok().says("as they were before step 3 (snapshot 3)");
    let fork = house.home.until("edit", "it is there", |_| true);
    let all = house.run(&["ps", "--all", "-o", "json"]).ok().json();
    let of = |run: &&Value| run["forked_from"]["run_id"] == fork["id"];
    let name =
        all.as_array().unwrap().iter().find(of).unwrap()["name"].as_str().unwrap().to_owned();
    let fork = house.home.status(&name, "awaiting_input");
    let tree = House::directory(&fork);
    assert_eq!(std::fs::read_to_string(tree.join("story.txt")).unwrap(), "second\n", "{fork}");
    house.run(&["work", &name]).ok().shows("d/x");
    house.run(&["replay", &name, "--verify"]).ok();
    house.run(&["cancel", &name]).ok();
    house.home.status(&name, "canceled");
    house.check();
}

#[test]
fn undo_restores_changes_of_a_command_in_a_kept_worktree() {
    let house = house();
    let line = "sh -c 'echo new > new.txt; rm story.txt; seq 1 3'";
    house.run(&["run", "--name", "shell", "--keep", "--wait", line]).ok();
    let run = house.home.named("shell");
    let tree = House::directory(&run);
    assert!(!tree.join("story.txt").exists(), "{run}");
    house.run(&["undo", "shell"]).ok().shows("new.txt").shows("story.txt");
    assert_eq!(std::fs::read_to_string(tree.join("story.txt")).unwrap(), "once\n");
    assert!(!tree.join("new.txt").exists());
    house.run(&["undo", "shell"]).fails(5).says("nothing of shell was changed");
    house.run(&["undo", "shell", "--to", "1"]).ok();
    assert_eq!(std::fs::read_to_string(tree.join("new.txt")).unwrap(), "new\n");
    house.run(&["run", "--name", "works", "sleep", "600"]).ok();
    house.home.until("works", "its room is ready", |run| run["room"]["phase"] == "ready");
    house.run(&["undo", "works"]).fails(5).says("works is working");
    house.run(&["kill", "works"]).ok();
    house.run(&["run", "--name", "here", "--here", "--wait", "true"]).ok();
    house.run(&["undo", "here"]).fails(5).says("here has no environment");
    house.run(&["done", "shell", "--discard", "--yes"]).ok();
    house.ended("works");
    house.check();
}

/// An agent with a model that makes these calls of `run_shell`, each of which may write. No questions.
fn shells(house: &mut House, name: &str, commands: &[&str]) {
    let call = |command: &&str| json!({"calls": [{"name": "run_shell", "args": {"command": command, "allow_write": true, "write_subdir": "."}}]});
    let last = json!({"calls": [{"name": "final_answer", "args": {"message": "done"}}]});
    let turns: Vec<Value> = commands.iter().map(call).chain([last]).collect();
    house.home.0.scripted(name, &json!(turns), &[]);
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[("OVERMIND_POLICY", "none")]);
}

/// The outputs of its calls, in order. All of them have succeeded.
fn said(house: &House, run: &str) -> Vec<String> {
    let ended = house.home.named(run);
    assert_eq!(ended["status"], "succeeded", "{ended} {}", house.run(&["events", run]).out);
    let calls = events(house, run, "tool.called");
    let calls = calls.iter().filter(|call| call["tool_name"] == "run_shell");
    let text = |call: &Value| {
        assert_eq!(call["result"]["ok"], json!(true), "{call}");
        call["result"]["stdout"].as_str().unwrap().to_owned()
    };
    calls.map(text).collect()
}

/// The person's name in their own git.
fn ann(house: &House) {
    let text = "[user]\n\tname = Ann of the house\n\temail = ann@house\n";
    std::fs::write(house.home.0.path().join(".gitconfig"), text).unwrap();
}

const GIT: &str = "git status --porcelain && git log --oneline && git diff HEAD && mktemp && \
                   echo x > x && git add x && git commit -qm x && \
                   git log -1 --format='%an %ae %cn %ce %s' && git fsck --connectivity-only";

/// Its reply after the history.
const BY_ANN: &str = "Ann of the house ann@house Ann of the house ann@house x\n";

#[test]
fn git_works_in_the_sandbox_of_a_built_in_agent_and_commits_name_the_user() {
    let mut house = House::new(None);
    ann(&house);
    shells(&mut house, "git", &[GIT, "pwd -P; test \"$(pwd -P)\" = \"$OVERMIND_WORKTREE\""]);
    house.run(&["run", "--name", "git", "--wait", "git", "go"]);
    let said = said(&house, "git");
    let (_, log) = said[0].split_once(" first\n").unwrap_or_else(|| panic!("{said:?}"));
    assert!(log.starts_with("/tmp/tmp.") && log.ends_with(BY_ANN), "{log}");
    house.run(&["done", "git", "--park"]).ok();
    assert_eq!(
        house.git(&["log", "-1", "--format=%an %s", "overmind/git"]),
        "Ann of the house x\n"
    );
    house.run(&["replay", "git", "--verify"]).ok();
    house.run(&["done", "git", "--merge"]).ok();
    // The same in commands, in every kind of sandbox.
    for level in ["none", "namespace"] {
        let line = format!("sh -c 'mkdir d && cd d && {}'", GIT.replace('\'', "\""));
        house.run(&["run", "--name", level, "--sandbox", level, "--wait", &line]);
        let log = house.log(level);
        assert!(log.contains(BY_ANN.trim_end()), "{level}: {log}");
        house.run(&["done", level, "--discard", "--yes"]).ok();
    }
    house.check();
}

#[test]
fn a_project_with_borrowed_objects_has_its_history_in_every_sandbox() {
    let mut house = House::new(None);
    ann(&house);
    // The person's checkout borrows of a mirror, which borrows of another.
    let first = house.project.clone();
    let work = first.parent().unwrap().to_owned();
    let clone = |from: &std::path::Path, to: &str| {
        let (from, to) = (format!("file://{}", from.display()), work.join(to));
        let reference = from.strip_prefix("file://").unwrap();
        house.git(&["clone", "-q", "--reference", reference, &from, to.to_str().unwrap()]);
        to
    };
    let second = clone(&first, "second");
    let third = clone(&second, "third");
    std::fs::write(
        third.join(".git/objects/info/alternates"),
        format!("{}\n", second.join(".git/objects").display()),
    )
    .unwrap();
    house.project = third;
    shells(&mut house, "git", &[GIT]);
    house.run(&["run", "--name", "built-in", "--wait", "git", "go"]);
    assert!(said(&house, "built-in")[0].contains(" first\n"));
    let line = format!("sh -c '{}'", GIT.replace('\'', "\""));
    house.run(&["run", "--name", "command", "--sandbox", "namespace", "--wait", &line]);
    let log = house.log("command");
    assert!(log.contains(" first") && log.contains(BY_ANN.trim_end()), "{log}");
    for name in ["built-in", "command"] {
        house.run(&["done", name, "--discard", "--yes"]).ok();
    }
    house.check();
}

#[test]
fn a_built_in_agent_reaches_only_the_services_of_its_environment() {
    let config = "version: 1\nservices:\n  api:\n    strategy: process\n    ports: [http]\n    \
                  command: exec python3 -m http.server --bind 127.0.0.1 $PORT\n    \
                  ready: {http: /}\nenv:\n  API: '${api.url}'\n";
    let mut house = House::new(Some(config));
    let mark = "python3 -c 'import os, urllib.request as u; print(u.urlopen(os.environ[\"API\"] + \"/story.txt\").read().decode())'";
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let refused = format!(
        "python3 -c 'import socket; print(socket.socket().connect_ex((\"127.0.0.1\", {port})))'; cat /proc/net/route | wc -l"
    );
    shells(&mut house, "asks", &[mark, &refused]);
    house.run(&["run", "--name", "asks", "--wait", "asks", "go"]);
    let said = said(&house, "asks");
    assert_eq!(said, ["once\n\n", "111\n1\n"]);
    house.run(&["sandbox", "verify", "asks"]).ok().shows("network of its room");
    house.run(&["replay", "asks", "--verify"]).ok();
    house.check();
}

#[test]
fn undo_reverts_unapproved_changes_including_moved_files() {
    let house = house();
    let call = |command: &str| json!({"calls": [{"name": "run_shell", "args": {"command": command, "allow_write": true, "write_subdir": "."}}]});
    let asks = json!({"calls": [{"name": "ask_user", "args": {"message": "go on?"}}]});
    let last = json!({"calls": [{"name": "final_answer", "args": {"message": "done"}}]});
    let commands = [
        "mkdir d && echo deep > d/x && git add d",
        "mv story.txt d /tmp && ls /tmp && git status --short",
        "echo more > story.txt; git add -A; git read-tree -u --reset HEAD",
        "rm -rf $(ls)",
    ];
    let turns: Vec<Value> = commands.map(call).into_iter().chain([asks, last]).collect();
    house.home.0.scripted("mover", &json!(turns), &[]);
    house.run(&["run", "--name", "move", "mover", "go"]);
    let run = house.home.status("move", "awaiting_input");
    assert_eq!(events(&house, "move", "approval.requested"), Vec::<Value>::new(), "{run}");
    let tree = House::directory(&run);
    let text = |path: &str| std::fs::read_to_string(tree.join(path)).ok();
    assert_eq!((text("story.txt"), text("d/x")), (None, None));
    house.run(&["undo", "move"]).ok();
    assert_eq!(text("story.txt").as_deref(), Some("once\n"), "read-tree had brought it back");
    house.run(&["undo", "move"]).ok();
    assert_eq!((text("story.txt"), text("d/x")), (None, None), "they were in /tmp");
    house.run(&["undo", "move"]).ok().shows("story.txt").shows("d/x");
    assert_eq!(text("story.txt").as_deref(), Some("once\n"));
    assert_eq!(text("d/x").as_deref(), Some("deep\n"));
    house.run(&["cancel", "move"]).ok();
    house.home.status("move", "canceled");
    house.check();
}

#[test]
fn a_command_cut_off_by_a_kill_is_repeated_from_the_earlier_files_without_a_question() {
    let mut house = House::new(None);
    std::fs::write(house.project.join(".gitignore"), "go\n").unwrap();
    house.git(&["add", "-A"]);
    house.git(&["commit", "-qm", "ignore"]);
    let shell = |command: &str| json!({"calls": [{"name": "run_shell", "args": {"command": command, "allow_write": true, "write_subdir": "."}}]});
    let turns = json!([
        shell("echo first >> done.txt"),
        shell("echo second >> done.txt; rm story.txt; while [ ! -e go ]; do sleep 0.05; done"),
        {"text": "done"},
    ]);
    house.home.0.scripted("worker", &turns, &[]);
    house.run(&["run", "--name", "cut", "-d", "worker", "go"]).ok();
    house.home.until("cut", "its room is ready", |run| run["room"]["phase"] == "ready");
    let tree = || House::directory(&house.home.named("cut"));
    let done = || std::fs::read_to_string(tree().join("done.txt")).unwrap_or_default();
    crate::home::until("it is in the middle", || {
        (!tree().join("story.txt").exists()).then_some(())
    });
    assert_eq!(done(), "first\nsecond\n");
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    let done = || {
        let tree = House::directory(&house.home.named("cut"));
        (std::fs::read_to_string(tree.join("done.txt")).unwrap_or_default(), tree)
    };
    crate::home::until("it is done again", || {
        (!events(&house, "cut", "effect.redone").is_empty()).then_some(())
    });
    let (_, tree) = done();
    crate::home::until("it is in the middle again", || {
        (!tree.join("story.txt").exists()).then_some(())
    });
    std::fs::write(tree.join("go"), "").unwrap();
    house.home.status("cut", "succeeded");
    assert_eq!(done().0, "first\nsecond\n", "as if it had been done once");
    assert_eq!(events(&house, "cut", "effect.redone")[0]["restored"], true);
    assert!(events(&house, "cut", "run.awaiting_input").is_empty(), "nobody is asked");
    house.run(&["replay", "cut", "--verify"]).ok();
    house.check();
}
