//! Attacks of a caller who holds a key below admin, or who redirects a browser.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Home, until};

fn key(home: &Home, name: &str, role: &str) -> String {
    let made = home.run(&["key", "create", name, "--role", role, "-o", "json"]).ok().json();
    made["secret"].as_str().unwrap().to_owned()
}

/// Writes an agent that runs this script, as the holder of `token`.
fn agent(home: &Home, token: &str, verb: &[&str], script: &str) {
    let agent = json!({
        "name": "builds", "role": "builds", "model": "command",
        "command": {"argv": ["sh", "-c", script], "exact": true},
    });
    let file = home.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    let args = [&["agent"], verb, &["--file", file.to_str().unwrap()]].concat();
    home.run_env(&[("OVERMIND_TOKEN", token)], &args).ok();
}

/// A quest of an admin in a directory that only an admin may have a run work in.
fn quest(home: &Home, name: &str) {
    let project = home.path().join("elsewhere");
    std::fs::create_dir_all(&project).unwrap();
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Quest", "metadata": {"name": name},
        "spec": {"agent": "builds", "project": project},
    });
    std::fs::write(home.work().join("quest.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "quest.json"]).ok();
}

fn condition(home: &Home, name: &str, kind: &str) -> Value {
    until(kind, || {
        let quest = home.run(&["get", "quest", name, "-o", "json"]).ok().json();
        let all = quest["status"]["conditions"].as_array()?.clone();
        all.into_iter().find(|one| one["type"] == kind && one["status"] == "True")
    })
}

#[test]
fn an_agent_replaced_by_an_operator_gets_no_rights_of_an_admins_quest() {
    let home = Commands::up();
    let admin = std::fs::read_to_string(home.0.data().join("admin.token")).unwrap();
    let op = key(&home.0, "op", "operator");
    let there = |name: &str| home.0.path().join("elsewhere").join(name).exists();
    let (good, evil) = ("touch good", "touch owned");

    agent(&home.0, admin.trim(), &["create"], good);
    quest(&home.0, "first");
    condition(&home.0, "first", "Complete");
    assert!(there("good"), "a run of the admin's own agent works there");
    // Changed in place, and replaced by another one of the name.
    agent(&home.0, &op, &["edit", "builds"], evil);
    quest(&home.0, "changed");
    let waits = condition(&home.0, "changed", "Waiting");
    assert_eq!(waits["reason"], "Forbidden", "{waits}");
    let message = waits["message"].as_str().unwrap();
    assert!(message.contains("agent `builds` was last written by `op` (operator)"), "{message}");
    assert!(message.contains("overmind agent edit"), "{message}");
    home.0.run_env(&[("OVERMIND_TOKEN", &op)], &["agent", "rm", "builds"]).ok();
    agent(&home.0, &op, &["create"], evil);
    quest(&home.0, "replaced");
    assert_eq!(condition(&home.0, "replaced", "Waiting")["reason"], "Forbidden");
    // An operator who only switches it off and on writes nothing; an admin who writes it answers
    // for it, also with the same words.
    agent(&home.0, admin.trim(), &["edit", "builds"], good);
    for verb in ["disable", "enable"] {
        home.0.run_env(&[("OVERMIND_TOKEN", &op)], &["agent", verb, "builds"]).ok();
    }
    home.run(&["loop", "run", "quests"]).ok();
    for name in ["changed", "replaced"] {
        condition(&home.0, name, "Complete");
    }
    assert!(!there("owned"), "an operator's command ran where only an admin may");
    home.check();
}
