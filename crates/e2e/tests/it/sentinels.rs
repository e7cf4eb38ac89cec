//! Sentinels: one run on each hive that matches, through kills of it and of the server, another template,
//! a selector that matches nothing, and deletion.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Done, Home, until};

fn apply(home: &Home, spec: &Value) -> Done {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Sentinel", "metadata": {"name": "eye"}, "spec": spec,
    });
    std::fs::write(home.work().join("sentinel.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "sentinel.json"])
}

fn spec(word: &str, selector: &str) -> Value {
    let command = ["sh", "-c", "echo $0; exec cat", word];
    json!({"selector": selector, "template": {"command": command, "labels": {"app": "eye"}}})
}

fn condition(home: &Home, kind: &str) -> Value {
    let found = home.run(&["get", "sentinel", "eye", "-o", "json"]).ok().json();
    let all = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["type"] == kind).unwrap_or_default()
}

fn ready(home: &Home) {
    until("it is ready", || (condition(home, "Ready")["status"] == "True").then_some(()));
}

/// Names and ids of the runs that have not ended.
fn runs(home: &Home) -> Vec<(String, String)> {
    let all = home.run(&["ps", "-l", "app=eye", "-o", "json"]).ok().json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.as_array().unwrap().iter().map(|run| (text(&run["name"]), text(&run["id"]))).collect()
}

#[test]
fn a_sentinel_has_one_run_on_the_matching_hive() {
    let mut home = Commands::up();
    home.run(&["run", "--once", "--wait", "--", "true"]).ok();
    apply(&home.0, &spec("one", "overmind/hive=local")).ok().shows("sentinel/eye created");
    ready(&home.0);
    let first = runs(&home.0);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0].0, "eye-local");
    home.run(&["get", "ds"]).ok().shows("DESIRED").shows("CURRENT").shows("Complete");

    // A killed run is restarted, also if the server is killed after it.
    home.run(&["kill", "eye-local"]).ok();
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    until("it is back", || {
        let now = runs(&home.0);
        (now.len() == 1 && now[0].0 == "eye-local" && now[0].1 != first[0].1).then_some(())
    });
    ready(&home.0);

    // Another template replaces it.
    let second = runs(&home.0);
    apply(&home.0, &spec("two", "")).ok().shows("configured");
    let told = home.run(&["rollout", "status", "sentinel/eye", "--timeout", "1m"]).ok();
    told.shows("revision 2 is rolled out");
    assert_ne!(runs(&home.0), second);
    home.run(&["logs", "eye-local"]).ok().shows("two");
    home.run(&["info", &second[0].1]).ok().shows("replaced by revision 2 of sentinel/eye");
    home.run(&["rollout", "history", "sentinel/eye"]).ok().shows("eye-sentinel-r2");

    // No hive matches: it ends, and a condition names the hives that there are.
    apply(&home.0, &spec("two", "zone=mars")).ok();
    until("it has ended", || runs(&home.0).is_empty().then_some(()));
    until("it says so", || {
        let going = condition(&home.0, "Progressing");
        (going["reason"] == "NoHiveMatches" && going["message"].as_str()?.ends_with("local"))
            .then_some(())
    });
    assert_eq!(condition(&home.0, "Ready")["status"], "False");
    home.run(&["get", "sentinels"]).ok().shows("NoHiveMatches");
    apply(&home.0, &spec("two", "zone!=mars")).ok();
    ready(&home.0);
    assert_eq!(runs(&home.0).len(), 1);

    home.run(&["scale", "sentinel/eye", "--replicas", "2"]).fails(2).says("one run on each hive");
    apply(&home.0, &json!({"selector": "a b", "replicas": 2, "template": {"agent": "x"}}))
        .fails(2)
        .says("spec.selector")
        .says("spec.replicas");
    home.run(&["delete", "sentinel", "eye"]).ok();
    until("it is gone", || (home.run(&["get", "sentinel", "eye"]).code == 3).then_some(()));
    assert!(runs(&home.0).is_empty());
    home.check();
}
