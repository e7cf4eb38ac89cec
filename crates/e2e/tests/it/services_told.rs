//! Measurements of the sandboxes of services and hooks, in the log and in the API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::home::until;
use crate::worktrees::House;

const CONFIG: &str = "version: 1
services:
  file:
    strategy: database
    engine: sqlite
    file: own.sqlite3
    template: {files: [story.txt], command: 'true'}
  web:
    strategy: process
    command: 'echo up >> web.txt; while [ ! -e die ]; do sleep 0.02; done; rm die; exit 1'
    restart: {policy: always, backoff: 10ms, max: 100}
    ready: {command: 'echo look >> looks.txt; test $(wc -l < looks.txt) -ge 4', interval: 10ms}
setup: [{name: first, command: 'true'}]
teardown: [{name: last, command: 'true'}]
";

/// How often the log contains the measurement of each program's sandbox; none of the run itself.
fn told(house: &House, name: &str) -> BTreeMap<String, usize> {
    let args =
        ["subscribe", "--from", "0", "--run", name, "--kind", "sandbox.attested", "--no-follow"];
    let all = house.run(&args).ok().out;
    let mut found = BTreeMap::new();
    for line in all.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        if let Some(of) = event["payload_json"]["of"].as_str() {
            *found.entry(of.to_owned()).or_default() += 1;
        }
    }
    found
}

fn times(all: &[(&str, usize)]) -> BTreeMap<String, usize> {
    all.iter().map(|(of, times)| ((*of).to_owned(), *times)).collect()
}

#[test]
fn sandboxes_of_services_and_hooks_are_recorded_once_per_start_signed_and_shown() {
    let house = House::new(Some(CONFIG));
    let run = house.start("told", &["--sandbox", "namespace"], "sleep 600");
    assert_eq!(run["room"]["phase"], "ready", "{run} {}", house.log("told"));
    let mut all = [
        ("first", "setup: first", "host"),
        ("template", "template of file", "host"),
        ("service", "service web", "none"),
        ("look", "ready check of web", "none"),
    ];
    all.sort_by_key(|(_, of, _)| *of);
    let room = |name: &str| {
        let run = house.home.named(name);
        let mut all = run["room"]["attested"].as_array().unwrap().clone();
        all.sort_by_key(|one| one["of"].to_string());
        all
    };
    let found = room("told");
    assert_eq!(found.len(), all.len(), "{found:?}");
    for ((_, of, network), one) in all.iter().zip(&found) {
        assert_eq!(one["of"], *of);
        let driver = format!("namespace of a command that lives, network {network}");
        assert!(one["driver"].as_str().unwrap().starts_with(&driver), "{one}");
        let attestation = &one["attestation"];
        assert_eq!(
            (&attestation["asked"], &attestation["achieved"]),
            (&json!("namespace"), &json!("namespace"))
        );
        assert!(attestation["signer"].is_string(), "{one}");
        // The record itself, by the program's name.
        let record = house.run(&["sandbox", "verify", "told", of, "-o", "json"]).ok().json();
        assert_eq!((&record["digest"], &record["seal"]), (&attestation["digest"], &json!("holds")));
        assert_eq!(record["attestation"]["driver"], one["driver"]);
    }
    let info = house.run(&["info", "told"]).ok();
    info.shows("service web: namespace by namespace of a command that lives, network none");
    info.shows("setup: first: namespace by namespace of a command that lives, network host");
    let why = house.run(&["sandbox", "verify", "told", "service db"]).fails(3);
    why.says("there is no measurement of `service db`").says("service web");

    // Once per start, however often it was checked.
    let looks = std::fs::read_to_string(House::directory(&run).join("looks.txt")).unwrap();
    assert!(looks.lines().count() >= 4, "{looks}");
    assert_eq!(told(&house, "told"), times(&all.map(|(_, of, _)| (of, 1))));
    std::fs::write(House::directory(&run).join("die"), "").unwrap();
    until("its start is told", || (told(&house, "told")["service web"] == 2).then_some(()));
    assert_eq!(room("told"), found, "in the same sandbox");

    house.run(&["stop", "told"]).ok();
    house.ended("told");
    assert_eq!(told(&house, "told")["teardown: last"], 1);
    assert_eq!(room("told").len(), all.len() + 1);

    // Without a sandbox, nothing is measured.
    house.start("open", &["--sandbox", "none"], "true");
    house.ended("open");
    assert_eq!((room("open"), told(&house, "open")), (vec![], BTreeMap::new()));
    house.run(&["sandbox", "verify", "open", "service web"]).fails(3);
    house.run(&["audit", "verify"]).ok();
    house.check();
}
