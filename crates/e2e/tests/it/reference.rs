//! The page of events matches the program: each event of a working day is listed, with its fields.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::home::until;
use crate::pages::repository;
use crate::worktrees::House;

/// The rows of `docs/reference/events.md`: a type may have one for each stream.
fn listed() -> BTreeMap<String, Vec<Vec<String>>> {
    let page = std::fs::read_to_string(repository().join("docs/reference/events.md")).unwrap();
    let mut all: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let kind = cells[0].trim_matches(['|', ' ', '`']).to_owned();
        let fields = cells[1].split(", ").map(|field| field.trim_matches('`').to_owned());
        all.entry(kind).or_default().push(fields.collect());
    }
    all
}

/// Whether a payload has all fields that a row lists, and no other.
fn fits(row: &[String], payload: &Value) -> bool {
    let has: BTreeSet<&str> = payload.as_object().unwrap().keys().map(String::as_str).collect();
    let known: BTreeSet<&str> = row.iter().map(|field| field.trim_end_matches('?')).collect();
    let must = row.iter().filter(|field| !field.ends_with('?') && *field != "…");
    must.map(String::as_str).all(|field| has.contains(field))
        && (known.contains("…") || has.is_subset(&known))
}

/// The events of a log that the page does not describe, a line for each.
fn unlisted(listed: &BTreeMap<String, Vec<Vec<String>>>, events: &[Value]) -> BTreeSet<String> {
    let wrong = events.iter().filter(|event| {
        let rows = listed.get(event["type"].as_str().unwrap());
        !rows.is_some_and(|rows| rows.iter().any(|row| fits(row, &event["payload_json"])))
    });
    let told = |event: &Value| {
        let fields = event["payload_json"].as_object().unwrap().keys().cloned();
        format!("{}: {}", event["type"], fields.collect::<Vec<_>>().join(" "))
    };
    wrong.map(told).collect()
}

#[test]
fn every_event_of_a_working_day_is_documented_with_its_fields() {
    let house = House::new(None);
    house.home.0.agent("probe", &[]);
    house.home.0.agent("keeps", &["--approvals", "run_shell"]);
    let secret = |args: &[&str]| {
        let mut command = house.home.0.command(args);
        let file = house.home.0.path().join("value");
        std::fs::write(&file, "s3cret-value-of-twenty").unwrap();
        let done = command.stdin(std::fs::File::open(file).unwrap()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    // Runs: an agent that changes files, approvals, programs that end, restart and are stopped.
    house.run(&["run", "--name", "edit", "--wait", "probe", "write: made.txt: by an agent"]).ok();
    for (name, verdict) in [("yes", "approve"), ("no", "deny")] {
        house.run(&["run", "--name", name, "-d", "keeps", "shell: touch x"]).ok();
        house.home.status(name, "awaiting_approval");
        house.run(&[verdict, name, "--reason", "looked"]).ok();
        house.run(&["wait", name]);
    }
    let again = ["--restart", "on-failure", "--max-restarts", "1"];
    let fails = ["--wait", "--", "sh", "-c", "echo hello; exit 3"];
    house.run(&[&["run", "--name", "fails"][..], &again, &fails].concat()).fails(3);
    let waits = ["run", "--name", "waits", "-d", "--", "sh", "-c", "read x; echo got $x; read y"];
    house.run(&waits).ok();
    house.home.alive("waits");
    house.run(&["send", "waits", "hello"]).ok();
    house.home.says("waits", "got hello");
    house.run(&["stop", "waits"]).ok();
    house.run(&["wait", "waits"]);
    // Their work.
    house.run(&["artifact", "save", "edit", "report.md", "--file", "story.txt"]).ok();
    house.run(&["artifact", "rm", "edit", "report.md"]).ok();
    house.run(&["undo", "edit"]).ok();
    house.run(&["fork", "edit", "--at", "1"]).ok();
    house.run(&["done", "edit", "--discard", "--yes"]).ok();
    // State that agents share, and state that people set.
    house.run(&["memory", "add", "the staging port is 8080"]).ok();
    house.run(&["mesh", "put", "tasks/42", "{}"]).ok();
    house.run(&["mesh", "rm", "tasks/42"]).ok();
    house.run(&["acl", "allow", "probe", "subscribe", "build.*"]).ok();
    house.run(&["mesh", "subscribe", "build.*", "--agent", "probe"]).ok();
    house.run(&["mesh", "publish", "build.done", "{}"]).ok();
    house.run(&["mail", "send", "probe", "the build is done"]).ok();
    house.run(&["key", "create", "ci", "--role", "operator"]).ok();
    house.run(&["key", "revoke", "ci"]).ok();
    secret(&["vault", "set", "npm_token", "--from-stdin"]);
    house.run(&["vault", "grant", "probe", "--secret", "npm_token"]).ok();
    house.run(&["vault", "revoke", "probe", "--secret", "npm_token"]).ok();
    house.run(&["vault", "rm", "npm_token"]).ok();
    house.run(&["budget", "set", "agent:probe", "--usd", "5", "--per", "day"]).ok();
    house.run(&["budget", "rm", "agent:probe"]).ok();
    house.run(&["halt", "--reason", "a test"]).ok();
    house.run(&["resume"]).ok();
    house.run(&["loop", "pause", "rituals"]).ok();
    house.run(&["loop", "resume", "rituals"]).ok();
    house.run(&["backup", house.home.0.path().join("b.db").to_str().unwrap()]).ok();
    house.run(&["cron", "add", "daily", "every 30m", "--", "run", "probe", "report: x"]).ok();
    house.run(&["cron", "rm", "daily"]).ok();

    let read = || -> Vec<Value> {
        let all = house.run(&["events", "--stream", "--from", "0", "--no-follow"]).ok().out;
        all.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // The fork ends by itself.
    let ended = |events: &[Value]| {
        events.iter().filter(|event| event["type"] == "run.succeeded").count() >= 2
    };
    let events = until("the fork has ended", || Some(read()).filter(|events| ended(events)));
    let listed = listed();
    let wrong = unlisted(&listed, &events);
    assert!(wrong.is_empty(), "docs/reference/events.md does not list:\n{wrong:#?}");
    let kinds: BTreeSet<&str> =
        events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    for area in ["run.", "room.", "process.", "approval.", "vault.", "record.", "mail.", "budget."]
    {
        assert!(kinds.iter().any(|kind| kind.starts_with(area)), "none of {area}: {kinds:?}");
    }
    // It finds missing and superfluous fields.
    let planted = [
        serde_json::json!({"type": "run.unheard", "payload_json": {}}),
        serde_json::json!({"type": "run.idle", "payload_json": {"run_id": "x"}}),
        serde_json::json!({"type": "run.failed", "payload_json": {"run_id": "x", "error": {}, "more": 1}}),
    ];
    assert_eq!(unlisted(&listed, &planted).len(), 3);
}
