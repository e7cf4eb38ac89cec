//! Quests with real programs, over kills.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Home, until};

/// An agent that runs a script with `sh`, on the host itself.
fn scripted(home: &Home, name: &str, script: &str) {
    let agent = json!({
        "name": name, "role": "runs", "model": "command", "sandbox": "none",
        "command": {"argv": ["sh", "-c", script], "exact": true},
    });
    let file = home.path().join(format!("{name}.json"));
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}

fn quest(home: &Home, name: &str, spec: &Value) {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Quest", "metadata": {"name": name}, "spec": spec,
    });
    let file = format!("{name}.quest.json");
    std::fs::write(home.work().join(&file), document.to_string()).unwrap();
    home.run(&["apply", "-f", &file]).ok();
}

fn status(home: &Home, name: &str) -> Value {
    home.run(&["get", "quest", name, "-o", "json"]).ok().json()["status"].clone()
}

fn says(status: &Value, kind: &str) -> Option<Value> {
    let all = status["conditions"].as_array()?;
    all.iter().find(|one| one["type"] == kind && one["status"] == "True").cloned()
}

fn until_it_says(home: &Home, name: &str, kind: &str) -> Value {
    until(kind, || says(&status(home, name), kind))
}

/// The runs of a quest: names and states.
fn runs(home: &Home, name: &str) -> Vec<(String, String)> {
    let all = home.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = all.as_array().unwrap().iter();
    let all = all.map(|run| (text(&run["name"]), text(&run["status"])));
    all.filter(|(run, _)| run.starts_with(&format!("{name}-"))).collect()
}

#[test]
fn three_completions_with_two_at_once_survive_kills_without_a_doubled_run() {
    let mut home = Commands::up();
    let go = home.0.work().join("go");
    let script = format!("until test -e {}; do sleep 0.05; done; echo done", go.display());
    scripted(&home.0, "waits", &script);
    quest(&home.0, "three", &json!({"agent": "waits", "completions": 3, "parallelism": 2}));
    until("two run", || (runs(&home.0, "three").len() == 2).then_some(()));
    for _ in 0..2 {
        home.0.kill();
        home.0.start(&["--listen", "none"], &[]);
    }
    until("they are known again", || {
        let running = runs(&home.0, "three").iter().filter(|(_, s)| s == "running").count();
        (running == 2).then_some(())
    });
    assert_eq!(runs(&home.0, "three").len(), 2, "two at once");
    home.run(&["get", "jobs"]).ok().shows("COMPLETIONS").shows("0/3");
    std::fs::write(&go, "").unwrap();
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    let complete = until_it_says(&home.0, "three", "Complete");
    assert_eq!(complete["message"], "3 of 3 succeeded");
    assert_eq!(complete["observedGeneration"], 1, "{complete}");
    home.run(&["loop", "run", "quests"]).ok();
    let mut all = runs(&home.0, "three");
    assert!(all.iter().all(|(_, status)| status == "succeeded"), "{all:?}");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "{all:?}");
    home.run(&["delete", "quest", "three"]).ok();
    until("it is gone", || (home.run(&["get", "quest", "three"]).code == 3).then_some(()));
    home.check();
}

#[test]
fn failures_are_retried_and_the_last_one_fails_the_quest() {
    let home = Commands::up();
    scripted(&home.0, "fails", "exit 7");
    let spec = json!({"agent": "fails", "retries": 1, "backoff": "0s", "ttlAfterFinish": "366d"});
    quest(&home.0, "hopeless", &spec);
    let failed = until_it_says(&home.0, "hopeless", "Failed");
    assert_eq!(failed["reason"], "RetriesExhausted", "{failed}");
    assert_eq!(runs(&home.0, "hopeless").len(), 2);
    let spec = json!({"agent": "fails", "retries": 0, "ttlAfterFinish": "0s"});
    quest(&home.0, "brief", &spec);
    until("it is deleted after its end", || {
        (home.run(&["get", "quest", "brief"]).code == 3).then_some(())
    });
    home.check();
}

/// Also where nobody has run a command on the server yet, and with the rights of its author: an operator
/// gets a sandbox, or a refusal.
#[test]
fn a_new_server_runs_a_command_without_an_agent() {
    let home = Commands::up();
    quest(&home.0, "first", &json!({"command": ["true"]}));
    until_it_says(&home.0, "first", "Complete");
    assert_eq!(home.run(&["agent", "get", "command", "-o", "json"]).ok().json()["version"], 1);
    home.run(&["agent", "rm", "command"]).ok();
    let key = home.run(&["key", "create", "bob", "--role", "operator", "-o", "name"]).ok();
    let env = [("OVERMIND_TOKEN", key.line())];
    let file = home.0.work().join("quests.yaml");
    let text = |name: &str, more: &str| {
        format!(
            "apiVersion: overmind/v1\nkind: Quest\nmetadata: {{name: {name}}}\n\
             spec: {{command: ['true']{more}}}\n"
        )
    };
    for (name, more) in [("bare", ""), ("boxed", ", sandbox: namespace")] {
        std::fs::write(&file, text(name, more)).unwrap();
        home.0.run_env(&env, &["apply", "-f", file.to_str().unwrap()]).ok();
    }
    let refused = until_it_says(&home.0, "bare", "Waiting");
    assert_eq!(refused["reason"], "Forbidden", "{refused}");
    until_it_says(&home.0, "boxed", "Complete");
    home.check();
}

#[test]
fn a_missing_agent_is_a_condition_and_the_quest_continues_once_it_exists() {
    let home = Commands::up();
    quest(&home.0, "early", &json!({"agent": "late", "task": "t"}));
    let waits = until_it_says(&home.0, "early", "Waiting");
    assert_eq!(waits["reason"], "NotFound", "{waits}");
    assert!(waits["message"].as_str().unwrap().contains("no agent `late`"), "{waits}");
    assert_eq!(runs(&home.0, "early"), []);
    scripted(&home.0, "late", "true");
    until_it_says(&home.0, "early", "Complete");
    assert_eq!(runs(&home.0, "early").len(), 1);
    home.check();
}

/// The deadline counts from the first run on, with or without a server.
#[test]
fn a_run_past_its_quests_deadline_is_ended_even_if_no_server_ran_then() {
    let mut home = Commands::up();
    let pids = home.0.work().join("pids");
    scripted(&home.0, "sleeps", &format!("echo $$ >> {}; exec sleep 1000", pids.display()));
    let begun = |count: usize| {
        let begun = || std::fs::read_to_string(&pids).is_ok_and(|t| t.lines().count() == count);
        until("its run has begun", || begun().then_some(()));
    };
    let ended = |home: &Commands, name: &str| {
        let failed = until_it_says(&home.0, name, "Failed");
        assert_eq!(failed["reason"], "DeadlineExceeded", "{failed}");
        let canceled = [(format!("{name}-0"), "canceled".to_owned())];
        until("its run has ended", || (runs(&home.0, name) == canceled).then_some(()));
        let all = std::fs::read_to_string(&pids).unwrap();
        for pid in all.lines() {
            until("its program is gone", || {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                (!command.starts_with(b"sleep")).then_some(())
            });
        }
        assert_eq!(status(&home.0, name)["succeeded"], 0, "and none follows it");
    };
    let spec = json!({"agent": "sleeps", "deadline": "1s", "retries": 5});
    quest(&home.0, "late", &spec);
    begun(1);
    ended(&home, "late");
    // The server is killed with a running run: the deadline passes, and the next start ends the run.
    let spec = json!({"agent": "sleeps", "deadline": "5s", "retries": 5});
    quest(&home.0, "later", &spec);
    begun(2);
    let started = std::time::Instant::now();
    home.0.kill();
    until("it has passed", || (started.elapsed().as_secs() >= 5).then_some(()));
    home.0.start(&["--listen", "none"], &[]);
    ended(&home, "later");
    home.check();
}

#[test]
fn deleting_a_quest_ends_its_runs_across_a_kill() {
    let mut home = Commands::up();
    scripted(&home.0, "sleeps", "sleep 1000");
    quest(&home.0, "long", &json!({"agent": "sleeps", "completions": 2, "parallelism": 2}));
    until("both run", || {
        let all = runs(&home.0, "long");
        (all.len() == 2 && all.iter().all(|(_, status)| status == "running")).then_some(())
    });
    home.run(&["delete", "quest", "long"]).ok();
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    until("it is gone", || (home.run(&["get", "quest", "long"]).code == 3).then_some(()));
    let all = runs(&home.0, "long");
    assert!(all.len() == 2 && all.iter().all(|(_, status)| status == "canceled"), "{all:?}");
    home.check();
}

#[test]
fn a_quest_has_the_rights_of_its_author_and_a_label_adds_none() {
    let home = Commands::up();
    scripted(&home.0, "bare", "true");
    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let key = key.line().to_owned();
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Quest", "metadata": {"name": "sly"},
        "spec": {"agent": "bare"},
        "status": {"author": {"name": "admin", "role": "admin"}},
    });
    std::fs::write(home.0.work().join("sly.json"), document.to_string()).unwrap();
    let apply = ["apply", "-f", "sly.json"];
    home.0.run_env(&[("OVERMIND_TOKEN", &key)], &apply).ok();
    let refused = |home: &Commands| {
        let waits = until_it_says(&home.0, "sly", "Waiting");
        assert_eq!(waits["reason"], "Forbidden", "{waits}");
        assert_eq!(status(&home.0, "sly")["author"], json!({"name": "op", "role": "operator"}));
    };
    refused(&home);
    home.run(&["label", "quest", "sly", "seen=yes"]).ok();
    home.run(&["loop", "run", "quests"]).ok();
    refused(&home);
    assert_eq!(runs(&home.0, "sly"), []);
    // An admin who writes the spec is its author.
    let mut other = document.clone();
    other["spec"]["task"] = json!("mine now");
    std::fs::write(home.0.work().join("sly.json"), other.to_string()).unwrap();
    home.run(&apply).ok();
    until_it_says(&home.0, "sly", "Complete");
    home.check();
}
