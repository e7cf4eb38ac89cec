//! The inbox in the whole product: listed, grouped, watched, answered, and rules out of it.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::home::{Home, until};

const PUSH: &str = "shell: curl -s http://127.0.0.1:9/hook";

fn gated() -> (Home, std::path::PathBuf) {
    let mut home = Home::new();
    let file = home.path().join("policy.toml");
    std::fs::write(&file, "version = 1\n").unwrap();
    home.start(&["--listen", "none"], &[("OVERMIND_POLICY", file.to_str().unwrap())]);
    // Commands in a sandbox have no network, so nobody is asked about one.
    home.agent("sh", &["--sandbox", "none"]);
    (home, file)
}

/// A run that waits for approval.
fn waits(home: &Home, task: &str) -> String {
    let id = home.run(&["run", "sh", task, "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "awaiting_approval");
    id
}

fn items(home: &Home, more: &[&str]) -> Vec<Value> {
    let args = [&["inbox", "-o", "json"], more].concat();
    home.run(&args).ok().json().as_array().unwrap().clone()
}

#[test]
fn an_empty_inbox_says_so_and_waiting_items_are_listed_and_answered() {
    let (home, _) = gated();
    home.run(&["inbox"]).ok().says("the inbox is empty: nothing waits for you");
    home.run(&["inbox", "--all"]).ok().says("there were never any items");
    home.run(&["approve", "--group", "4f1c", "--yes"]).fails(3).says("nothing waits for you");
    let run = waits(&home, PUSH);
    let listed = home.run(&["inbox"]).ok();
    for text in ["ID", "KIND", "AGENT", "RUN", "AGE", "RISK", "WHAT"] {
        assert!(listed.out.lines().next().unwrap().contains(text), "{}", listed.out);
    }
    listed.shows("approval").shows("sh").shows("run_shell: curl -s http://127.0.0.1:9/hook");
    let item = items(&home, &[]).remove(0);
    let id = item["id"].as_str().unwrap();
    home.run(&["inbox", "show", &id[id.len() - 8..]]).ok().shows("curl: network").shows(&run);
    home.run(&["answer", id, "yes"]).fails(5).says("waits for approval, not for an answer");
    let single = home.run(&["approve", "--group", &id[id.len() - 8..], "--yes"]).fails(3);
    single.says("there is no group").says("it is a single request: overmind approve");
    home.run(&["approve", "zzz"]).fails(3).says("there is no item or run `zzz`");
    home.run(&["deny", &id[id.len() - 8..], "--reason", "not from here"]).ok().shows("failed");
    home.run(&["approve", id]).fails(5).says("this was already denied by admin at ");
    // A waiting item is found by the run's name, too.
    let second = waits(&home, PUSH);
    let name = home.fetch(&second)["name"].as_str().unwrap().to_owned();
    home.run(&["inbox", "show", &name]).ok().shows("curl: network");
    let near = format!("x{}", &name[1..]);
    home.run(&["approve", &near]).fails(3).says(&format!("did you mean `{name}`?"));
    home.run(&["deny", &name, "--reason", "not this one"]).ok().shows("failed");
    home.run(&["inbox"]).ok().says("the inbox is empty");
    home.run(&["inbox", "--all"]).ok().shows("denied").shows("admin");

    let turns = json!([
        {"calls": [{"name": "ask_user", "args": {"message": "which file?"}}]},
        {"expect": {"last_tool_contains": "b.txt please"},
         "calls": [{"name": "final_answer", "args": {"message": "done"}}]},
    ]);
    home.scripted("asker", &turns, &[]);
    let asks = home.run(&["run", "asker", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&asks, "awaiting_input");
    home.run(&["approve", &asks]).fails(5).says("this does not wait for approval, it asks:");
    let name = home.fetch(&asks)["name"].as_str().unwrap().to_owned();
    let group = home.run(&["approve", "--group", &name, "--yes"]).fails(5);
    group.says("it asks: which file?").says(&format!("overmind answer {name}"));
    home.run(&["answer", &name, "b.txt", "please"]).ok();
    home.wait_for(&asks, "succeeded");
    home.run(&["answer", &asks, "again"]).fails(5).says("does not wait for an answer");
}

#[test]
fn similar_items_share_a_row_and_are_answered_together() {
    let (home, _) = gated();
    let runs: Vec<_> = (0..3).map(|_| waits(&home, PUSH)).collect();
    let other = waits(&home, "shell: curl -s http://example.com/hook");
    let found = items(&home, &[]);
    let key = found[3]["group"].as_str().unwrap();
    let table = home.run(&["inbox"]).ok();
    assert_eq!(table.out.lines().count(), 3, "a header, the group, the other: {}", table.out);
    table.shows("approval ×3").shows("3 runs").shows("(and 2 alike)");
    table.says(&format!("overmind approve --group {}", &key[..8]));
    assert_eq!(home.run(&["inbox", "--flat"]).ok().out.lines().count(), 5);
    assert_eq!(items(&home, &["--group", &key[..8]]).len(), 3);
    // Without a person to answer, no question is asked.
    let asked = home.run(&["approve", "--group", &key[..8]]).fails(2);
    asked.says("3 items of group").says("add --yes");
    home.run(&["deny", "--group", "ffffffffffff", "--yes"]).fails(3);
    home.run(&["deny", "--group", &key[..8], "--yes", "--reason", "no hooks"]).ok();
    for run in &runs {
        assert!(home.wait_for(run, "failed")["error"].to_string().contains("no hooks"));
    }
    assert_eq!(home.fetch(&other)["status"], "awaiting_approval");
    assert_eq!(items(&home, &[]).len(), 1);
}

#[test]
fn three_equal_approvals_propose_a_rule_that_works_when_pasted() {
    let (home, file) = gated();
    home.run(&["inbox", "proposals"]).ok().says("no rules to propose");
    for _ in 0..3 {
        let run = waits(&home, PUSH);
        home.run(&["approve", &run]).ok();
        // The result of the command does not matter, because nothing listens there.
        until("it ends", || {
            let status = home.fetch(&run)["status"].clone();
            (status == "failed" || status == "succeeded").then_some(())
        });
    }
    let text = home.run(&["inbox", "proposals"]).ok().out;
    assert!(text.starts_with("# approved 3 times for sh: run_shell: curl -s"), "{text}");
    std::fs::write(&file, format!("version = 1\n{text}")).unwrap();
    until("nothing more is proposed once the rule holds", || {
        home.run(&["inbox", "proposals"]).ok().out.is_empty().then_some(())
    });
    let run = home.run(&["run", "sh", PUSH, "-o", "name"]).ok().line().to_owned();
    until("it ends unasked", || {
        let status = home.fetch(&run)["status"].clone();
        assert_ne!(status, "awaiting_approval");
        (status == "failed" || status == "succeeded").then_some(())
    });
    // And nothing wider.
    waits(&home, "shell: curl -s http://127.0.0.1:9/other");
}
