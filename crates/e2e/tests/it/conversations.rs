//! Runs that are idle after their answer, and continue with the next message.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::home::{Done, done};
use crate::worktrees::{House, git_in};

fn house() -> House {
    let house = House::new(None);
    let write = |path: &str| json!({"calls": [{"name": "write_file", "args": {"path": path, "content": path}}]});
    let says = |text: &str| json!({"text": text});
    let turns = json!([
        write("fix.txt"),
        says("It is mended."),
        write("test.txt"),
        says("There is a test for it."),
        write("more.txt"),
        says("And more."),
    ]);
    house.home.0.scripted("coder", &turns, &[]);
    house
}

/// A run of the agent by a person who did not request an end after the answer.
fn start(house: &House, more: &[&str]) -> Done {
    let args = [&["run", "--name", "fix"], more, &["coder", "fix the failing test"]].concat();
    let mut command = house.home.0.command(&args);
    done(command.env_remove("OVERMIND_ONCE").current_dir(&house.project).output().unwrap()).ok()
}

fn fix(house: &House, more: &[&str]) -> Value {
    start(house, more);
    house.home.named("fix")
}

#[test]
fn an_idle_run_continues_with_a_message_and_its_work_is_decided() {
    let house = house();
    let told = start(&house, &["--follow"]);
    told.shows("It is mended.").says("overmind send fix").says("overmind done fix --merge");
    let run = house.home.named("fix");
    assert_eq!((&run["status"], &run["final_answer"]), (&json!("idle"), &json!("It is mended.")));
    assert_eq!(house.run(&["inbox", "-o", "json"]).ok().json(), json!([]), "nothing is asked");
    house.run(&["ps"]).ok().shows("fix").shows("your turn");
    house.run(&["wait", "fix"]).ok();
    let tree = House::directory(&run);
    assert!(tree.join("fix.txt").exists() && !tree.join("test.txt").exists());

    let sent = house.run(&["send", "--wait", "fix", "and add a test for it"]).ok();
    sent.shows("admin says: and add a test for it").shows("There is a test for it.");
    assert!(!sent.out.contains("It is mended."), "only what is new: {}", sent.out);
    assert!(tree.join("test.txt").exists(), "the same files");

    // The changes of the last turn are undone while it is idle.
    let undone = house.run(&["undo", "fix", "-o", "json"]).ok().json();
    assert!(tree.join("fix.txt").exists() && !tree.join("test.txt").exists());
    house.run(&["undo", "fix", "--to", undone["saved"].as_str().unwrap()]).ok();
    assert!(tree.join("test.txt").exists(), "undone itself");

    house.run(&["done", "fix", "--merge"]).ok();
    let run = house.home.named("fix");
    assert_eq!(
        (&run["status"], &run["final_answer"]),
        (&json!("succeeded"), &json!("There is a test for it."))
    );
    house.run(&["work", "fix"]).fails(5).says("fix is merged already: main has its work at");
    for file in ["fix.txt", "test.txt"] {
        assert_eq!(std::fs::read_to_string(house.project.join(file)).unwrap(), file);
    }
    house.run(&["replay", "fix", "--verify"]).ok();
    house.check();
}

#[test]
fn an_idle_run_survives_a_crash_and_stopping_it_succeeds() {
    let mut house = house();
    let run = fix(&house, &["--wait"]);
    assert_eq!(run["status"], "idle");
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    assert_eq!(house.home.named("fix")["status"], "idle");
    assert!(House::directory(&run).join("fix.txt").exists(), "its files are kept");
    house.run(&["send", "--wait", "fix", "and a test"]).ok().shows("There is a test for it.");
    house.run(&["stop", "fix"]).ok().shows("done");
    assert_eq!(house.home.named("fix")["status"], "succeeded");
    house.run(&["done", "fix", "--merge"]).ok();
    assert!(house.project.join("test.txt").exists());
    house.check();
}

#[test]
fn the_next_start_names_the_runs_that_wait_for_a_person() {
    let mut house = house();
    fix(&house, &["--wait"]);
    house.run(&["down"]).ok();
    house.home.0.ended();
    let started = house.run(&["up", "-d", "--listen", "none"]).ok();
    started.says("1 run waits for you: fix; see `overmind ps` and `overmind inbox`");
    let again = house.run(&["down"]).ok();
    assert!(!again.err.contains("fix"), "an idle run does not continue: {}", again.err);
}

#[test]
fn an_ended_run_continues_with_its_conversation_and_files() {
    let house = house();
    let run = fix(&house, &["--once", "--wait"]);
    assert_eq!(run["status"], "succeeded", "{run}");
    house.run(&["send", "--wait", "fix", "and a test"]).ok().shows("There is a test for it.");
    let tree = House::directory(&house.home.named("fix"));
    assert!(tree.join("fix.txt").exists() && tree.join("test.txt").exists(), "{}", tree.display());
    house.run(&["done", "fix", "--merge"]).ok();
    for file in ["fix.txt", "test.txt"] {
        assert!(house.project.join(file).exists(), "{file}");
    }
    for again in [&["done", "fix", "--merge"][..], &["done", "fix", "--discard", "--yes"]] {
        house.run(again).fails(5).says("fix is merged already: main has its work at");
    }
    // Its work is merged: the next turn begins with the project's current state.
    house.run(&["send", "--wait", "fix", "and more"]).ok().shows("And more.");
    let tree = House::directory(&house.home.named("fix"));
    assert!(tree.join("test.txt").exists() && tree.join("more.txt").exists());
    house.run(&["done", "fix", "--discard", "--yes"]).ok();
    assert!(!house.project.join("more.txt").exists());
    house.check();
}

#[test]
fn changes_of_a_run_are_shown_in_ps_info_and_get_while_idle_and_after_its_end() {
    let mut house = house();
    let run = fix(&house, &["--wait"]);
    let counted = |files: u32, added: u32| json!({"files": files, "added": added, "removed": 0});
    assert_eq!(run["room"]["changes"], counted(1, 1), "{run}");
    house.run(&["ps"]).ok().shows("CHANGES").shows("1 +1 −0");
    house.run(&["ps", "-o", "wide"]).ok().shows("1 +1 −0");
    house.run(&["info", "fix"]).ok().shows("1 +1 −0");
    let shown = house.run(&["get", "session", "fix", "-o", "json"]).ok().json();
    assert_eq!(shown["status"]["changes"], counted(1, 1), "{shown}");
    house.run(&["send", "--wait", "fix", "and a test"]).ok();
    house.run(&["ps"]).ok().shows("2 +2 −0");

    // The same after an undo, and when the run is read back from its log.
    let undone = house.run(&["undo", "fix", "-o", "json"]).ok().json();
    house.run(&["ps"]).ok().shows("1 +1 −0");
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    assert_eq!(house.home.named("fix")["room"]["changes"], counted(1, 1));
    house.run(&["undo", "fix", "--to", undone["saved"].as_str().unwrap()]).ok();
    assert_eq!(house.home.named("fix")["room"]["changes"], counted(2, 2));
    house.run(&["stop", "fix"]).ok();
    house.run(&["done", "fix", "--merge"]).ok();
    house.run(&["ps", "-a"]).ok().shows("2 +2 −0").shows("merged");

    // A command: its deletions and commits count, too; a dash means no changes.
    house
        .run(&[
            "run",
            "--name",
            "cut",
            "--wait",
            "git rm -q story.txt && git -c user.name=a -c user.email=a@b commit -qm cut",
        ])
        .ok();
    house.run(&["run", "--name", "idle", "--wait", "true"]).ok();
    assert_eq!(
        house.home.named("cut")["room"]["changes"],
        json!({"files": 1, "added": 0, "removed": 1})
    );
    assert_eq!(house.home.named("idle")["room"]["changes"]["files"], 0);
    house.run(&["done", "cut", "--discard", "--yes"]).ok();
    house.check();
}

#[test]
fn runs_that_refuse_messages_give_the_reason() {
    let house = house();
    house.run(&["run", "--name", "script", "--wait", "true"]).ok();
    house.run(&["send", "script", "more"]).fails(5).says("no conversation to continue");
    fix(&house, &["--wait"]);
    house.run(&["send", "fix", " "]).fails(2);
    house.run(&["agent", "disable", "coder"]).ok();
    house.run(&["stop", "fix"]).ok();
    house.run(&["send", "fix", "more"]).fails(5).says("disabled");
    house.run(&["done", "fix", "--discard", "--yes"]).ok();
    house.check();
}

#[test]
fn a_refused_merge_leaves_an_idle_run_unchanged() {
    let house = house();
    start(&house, &["--follow"]);
    let rests = || assert_eq!(house.home.named("fix")["status"], "idle");
    std::fs::write(house.project.join("fix.txt"), "mine\n").unwrap();
    house.run(&["done", "fix", "--merge"]).fails(5).says("fix.txt");
    rests();
    git_in(&house.project, &["add", "fix.txt"]);
    git_in(&house.project, &["commit", "-qm", "mine"]);
    house.run(&["done", "fix", "--merge"]).fails(5).says("both changed fix.txt");
    rests();
    assert_ne!(house.run(&["done", "fix", "--merge", "--into", "nosuch"]).code, 0);
    rests();
    // It continues, and its work is merged once nothing is in the way.
    house.run(&["send", "--wait", "fix", "and add a test for it"]).ok().shows("a test for it");
    git_in(&house.project, &["reset", "-q", "--hard", "HEAD~1"]);
    let done = house.run(&["done", "fix", "--merge"]).ok();
    done.shows("main is at the last commit of fix now");
    assert_eq!(house.home.named("fix")["status"], "succeeded");
    assert_eq!(std::fs::read_to_string(house.project.join("test.txt")).unwrap(), "test.txt");
    house.home.check();
}
