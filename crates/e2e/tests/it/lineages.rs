//! Lineages: runs that stay the same ones, through kills of theirs and of the server, scaling, another
//! template and deletion.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Done, Home, until};
use crate::worktrees::House;

fn apply(home: &Home, spec: &Value) -> Done {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Lineage", "metadata": {"name": "scribe"}, "spec": spec,
    });
    std::fs::write(home.work().join("lineage.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "lineage.json"])
}

fn status(home: &Home) -> Value {
    home.run(&["get", "lineage", "scribe", "-o", "json"]).ok().json()["status"].clone()
}

fn condition(home: &Home, kind: &str) -> Value {
    let all = status(home)["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
}

fn ready(home: &Home, wanted: u64) {
    until(
        &format!("{wanted} are ready: {}", home.run(&["describe", "lineage", "scribe"]).out),
        || {
            let is_so = condition(home, "Ready")["status"] == "True";
            (is_so && status(home)["ready"] == wanted).then_some(())
        },
    );
}

/// Names and ids of the runs that have not ended, by name.
fn runs(home: &Home) -> Vec<(String, String)> {
    let all = home.run(&["ps", "-l", "app=scribe", "-o", "json"]).ok().json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> =
        all.as_array().unwrap().iter().map(|run| (text(&run["name"]), text(&run["id"]))).collect();
    all.sort();
    all
}

fn names(home: &Home) -> Vec<String> {
    runs(home).into_iter().map(|(name, _)| name).collect()
}

/// A scripted agent that writes a file for each message, and a project.
fn house() -> (House, Value) {
    let house = House::new(None);
    let write = |path: &str| json!({"calls": [{"name": "write_file", "args": {"path": path, "content": path}}]});
    let says = |text: &str| json!({"text": text});
    let turns = json!([
        write("one.txt"),
        says("The first."),
        write("two.txt"),
        says("The second."),
        write("three.txt"),
        says("The third."),
    ]);
    house.home.0.scripted("writer", &turns, &[]);
    let template = json!({
        "agent": "writer", "task": "write", "project": house.project, "labels": {"app": "scribe"},
    });
    (house, template)
}

#[test]
fn a_lineage_continues_with_its_files_and_conversation_after_every_end() {
    let (mut house, template) = house();
    apply(&house.home.0, &json!({"replicas": 2, "template": template}))
        .ok()
        .shows("lineage/scribe created");
    ready(&house.home.0, 2);
    assert_eq!(names(&house.home.0), ["scribe-0", "scribe-1"]);
    house.run(&["get", "statefulsets"]).ok().shows("READY").shows("writer").shows("2/2");
    let rests = |house: &House, name: &str, answer: &str| {
        house
            .home
            .until(name, answer, |run| run["status"] == "idle" && run["final_answer"] == answer)
    };
    let tree = House::directory(&rests(&house, "scribe-0", "The first."));
    rests(&house, "scribe-1", "The first.");
    let before = runs(&house.home.0);
    let steps = |house: &House| {
        let all = house.run(&["events", "scribe-0", "--limit", "1000", "-o", "json"]).ok().json();
        let all = all.as_array().unwrap().iter();
        all.filter(|event| event["type"] == "step.started").count()
    };
    let so_far = steps(&house);

    // After a kill, the same run is idle again, and continues in the same files.
    house.run(&["kill", "scribe-0"]).ok();
    until("it is back", || (runs(&house.home.0) == before).then_some(()));
    assert_eq!(
        (rests(&house, "scribe-0", "The first.")["status"].clone(), steps(&house)),
        (json!("idle"), so_far)
    );
    house.run(&["send", "--wait", "scribe-0", "and another"]).ok().shows("The second.");
    let there = House::directory(&house.home.named("scribe-0"));
    assert!(there.join("one.txt").exists() && there.join("two.txt").exists());
    assert_eq!(there, tree, "the same worktree");
    assert!(steps(&house) > so_far);
    house.run(&["events", "scribe-0"]).ok().shows("run.restored");

    // So it does when it and the server are killed, whichever was first.
    house.run(&["kill", "scribe-0"]).ok();
    house.home.0.kill();
    house.home.0.start(&["--listen", "none"], &[]);
    until("it is back", || (runs(&house.home.0) == before).then_some(()));
    house.run(&["work", "scribe-0"]).ok().shows("two.txt");
    house.run(&["stop", "scribe-1"]).ok();
    until("it is back", || (runs(&house.home.0) == before).then_some(()));
    ready(&house.home.0, 2);

    // Scaled away and back, it is the same run with the same work.
    house.run(&["scale", "lineage/scribe", "--replicas", "0"]).ok().shows("lineage/scribe scaled");
    until("they have ended", || runs(&house.home.0).is_empty().then_some(()));
    assert!(tree.join("two.txt").exists(), "its work is kept");
    ready(&house.home.0, 0);
    house.run(&["scale", "sts/scribe", "--replicas", "2"]).ok();
    ready(&house.home.0, 2);
    assert_eq!(runs(&house.home.0), before);
    house.run(&["send", "--wait", "scribe-0", "and one more"]).ok().shows("The third.");
    house.run(&["done", "scribe-0", "--merge"]).ok();
    for file in ["one.txt", "two.txt", "three.txt"] {
        assert!(house.project.join(file).exists(), "{file}");
    }
    until("it is back", || (runs(&house.home.0) == before).then_some(()));

    let described = house.run(&["describe", "lineage", "scribe"]).ok();
    described.shows("session/scribe-0").shows("pack/scribe-lineage-r1").shows("Ready=True");
    house.run(&["delete", "lineage", "scribe"]).ok();
    until("it is gone", || (house.run(&["get", "lineage", "scribe"]).code == 3).then_some(()));
    assert_eq!(names(&house.home.0), Vec::<String>::new());
    house.run(&["replay", "scribe-0", "--verify"]).ok();
    house.run(&["done", "scribe-1", "--discard", "--yes"]).ok();
    house.check();
}

/// A program that keeps running, and prints how often its file was started.
fn stays(word: &str) -> Value {
    let line = "echo $0 >> begun.txt; wc -l < begun.txt; exec cat";
    json!({"command": ["sh", "-c", line, word], "labels": {"app": "scribe"}})
}

#[test]
fn programs_of_a_lineage_start_in_order_restart_in_place_and_roll_one_by_one() {
    let mut home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    let spec = |replicas: u32, word: &str| json!({"replicas": replicas, "template": stays(word)});
    apply(&home.0, &spec(3, "one")).ok();
    ready(&home.0, 3);
    let created =
        |home: &Commands, name: &str| home.named(name)["created_at"].as_str().unwrap().to_owned();
    let ordered =
        |home: &Commands, names: [&str; 3]| names.map(|name| created(home, name)).is_sorted();
    assert!(ordered(&home, ["scribe-0", "scribe-1", "scribe-2"]));
    let first = runs(&home.0);

    // The same run continues once more; a kill of the server ends none.
    home.run(&["kill", "scribe-1"]).ok();
    home.until("scribe-1", "its second life", |run| run["process"]["life"] == 2);
    assert_eq!(runs(&home.0), first);
    ready(&home.0, 3);
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    ready(&home.0, 3);
    assert_eq!(runs(&home.0), first);
    assert_eq!(home.named("scribe-0")["process"]["life"], 1);

    home.run(&["scale", "lineage/scribe", "--replicas", "1"]).ok();
    until("the highest went", || (names(&home.0) == ["scribe-0"]).then_some(()));
    ready(&home.0, 1);
    let ended = |name: &str| home.named(name)["finished_at"].as_str().unwrap().to_owned();
    assert!(ended("scribe-2") <= ended("scribe-1"), "the highest first");
    home.run(&["scale", "lineage/scribe", "--replicas", "3"]).ok();
    ready(&home.0, 3);
    assert_eq!(runs(&home.0), first);

    // Another template: other runs under the same names, also when the server is killed amid that.
    apply(&home.0, &spec(3, "two")).ok();
    until("one is replaced", || (runs(&home.0) != first).then_some(()));
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    let told = home.run(&["rollout", "status", "lineage/scribe", "--timeout", "1m"]).ok();
    told.shows("revision 2 is rolled out: 3 of 3 are available");
    let second = runs(&home.0);
    let all = home.run(&["ps", "-a", "-l", "app=scribe", "-o", "json"]).ok().json();
    assert_eq!(all.as_array().unwrap().len(), 6, "none was made twice: {all}");
    assert_eq!(names(&home.0), ["scribe-0", "scribe-1", "scribe-2"]);
    assert!(first.iter().zip(&second).all(|(one, two)| one.1 != two.1));
    assert!(ordered(&home, ["scribe-2", "scribe-1", "scribe-0"]));
    home.run(&["rollout", "history", "lineage/scribe"]).ok().shows("scribe-lineage-r2");
    home.run(&["rollout", "undo", "lineage/scribe"]).ok();
    home.run(&["rollout", "status", "lineage/scribe", "--timeout", "1m"]).ok().shows("revision 3");

    // Its owned objects may stay: the runs end nevertheless.
    home.run(&["delete", "lineage", "scribe", "--cascade", "orphan"]).ok();
    until("its runs have ended", || runs(&home.0).is_empty().then_some(()));
    until("it is gone", || (home.run(&["get", "lineage", "scribe"]).code == 3).then_some(()));
    home.check();
}

#[test]
fn a_lineage_that_cannot_continue_says_so_and_backs_off() {
    let home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    let labels = json!({"app": "scribe"});
    let template = json!({"command": ["false"], "labels": labels});
    apply(&home.0, &json!({"replicas": 2, "minReady": "1m", "template": template})).ok();
    let says = |kind: &str, reason: &str| {
        until(reason, || {
            let found = condition(&home.0, kind);
            (found["reason"] == reason).then_some(found)
        })
    };
    says("Waiting", "BackOff");
    let all = home.run(&["ps", "-a", "-l", "app=scribe", "-o", "json"]).ok().json();
    assert_eq!(all.as_array().unwrap().len(), 1, "the second waits for the first: {all}");
    assert!(all[0]["process"]["life"].as_u64().unwrap() <= 6, "{all}");
    // A restored run has its earlier agent, as long as that agent exists.
    let stays = json!({"agent": "stays", "labels": labels});
    home.0.scripted("stays", &json!([{"text": "I am here."}]), &[]);
    apply(&home.0, &json!({"template": stays})).ok();
    ready(&home.0, 1);
    home.run(&["agent", "disable", "stays"]).ok();
    home.run(&["kill", "scribe-0"]).ok();
    assert!(says("Waiting", "Conflict")["message"].as_str().unwrap().contains("disabled"));
    home.run(&["agent", "enable", "stays"]).ok();
    ready(&home.0, 1);
    // A name of another run is a conflict, and no other name is used.
    home.run(&["run", "--name", "scribe-1", "cat"]).ok();
    let stays = json!({"command": ["cat"], "labels": labels});
    apply(&home.0, &json!({"replicas": 2, "template": stays})).ok();
    says("Waiting", "Conflict");
    home.run(&["kill", "scribe-1"]).ok();
    ready(&home.0, 2);
    assert_eq!(names(&home.0), ["scribe-0", "scribe-1"]);
    let bad = json!({"replicas": -1, "maxSurge": 1, "template": {"agnet": "x"}});
    apply(&home.0, &bad).fails(2).says("spec.replicas").says("spec.maxSurge").says("agnet");
    home.run(&["explain", "lineage.spec.replicas"]).ok().shows("Desired number of runs");
    home.run(&["api-resources"]).ok().shows("lineages").shows("statefulset");
    home.run(&["delete", "lineage", "scribe"]).ok();
    until("its runs have ended", || runs(&home.0).is_empty().then_some(()));
    home.check();
}
