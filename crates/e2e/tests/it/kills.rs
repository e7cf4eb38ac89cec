//! Kills at named points during one run: it ends correctly, once, and completely.
//!
//! The crash test beside this one kills at random under load; here each point is hit for sure.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::home::{Home, until};

/// Every point at which the process can be made to die during a run.
const POINTS: &[&str] = &[
    "store.before_commit:4",
    "store.in_group:5",
    "store.after_commit_before_ack:5",
    "driver.before_commit:3",
    "driver.after_commit:3",
    "hive.before_effect:2",
    "hive.before_report:2",
];

#[test]
fn a_run_ends_correctly_after_a_server_kill_at_any_point() {
    let turns = json!([
        {"calls": [{"name": "write_file", "args": {"path": "a.txt", "content": "1"}}]},
        {"calls": [{"name": "run_shell", "args": {"command": "cat a.txt"}}]},
        {"calls": [{"name": "final_answer", "args": {"message": "done"}}]},
    ]);
    for point in POINTS {
        let mut home = Home::up();
        home.scripted("worker", &turns, &["--on-unknown", "retry"]);
        home.run(&["down"]).ok();
        home.ended();
        home.start(&["--listen", "none"], &[("OVERMIND_FAILPOINTS", point)]);
        // The kill may come before the run is acknowledged: then there is none, and the command
        // says so. A repeated request with the same key must then create exactly one.
        let ask = ["run", "worker", "go", "--idempotency-key", "k", "-o", "name"];
        let asked = home.run(&ask);
        let status = home.ended();
        assert_eq!(status.code(), None, "{point}: the process died by a signal");
        home.start(&["--listen", "none"], &[]);
        let id = home.run(&ask).ok().line().to_owned();
        if asked.code == 0 {
            assert_eq!(asked.line(), id, "{point}: what was acknowledged is there");
        }
        let run = home.wait_for(&id, "succeeded");
        assert_eq!(run["final_answer"], "done", "{point}");
        home.run(&["replay", &id, "--verify"]).ok();
        home.run(&["audit", "verify"]).ok();
        let all = home.run(&["ps", "--all", "-o", "name"]).ok();
        assert_eq!(all.line(), id, "{point}: one run, not two");
    }
}

#[test]
fn a_watch_resumes_after_a_kill_and_a_restart() {
    let mut home = Home::up();
    home.agent("sleeper", &["--on-unknown", "retry"]);
    let task = "shell: test -e go && echo gone on || sleep 60";
    let watch = home
        .command(&["run", "sleeper", task, "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = until("it runs", || {
        let ids = home.run(&["ps", "--status", "running", "-o", "name"]).ok().out;
        ids.lines().next().map(str::to_owned)
    });
    home.kill();
    std::fs::write(home.work().join("go"), "").unwrap();
    home.start(&["--listen", "none"], &[]);
    let output = watch.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        out.contains("goes on after a restart (start 2)") && out.contains("│ gone on"),
        "{out}"
    );
    assert_eq!(out.matches("  started").count(), 1, "nothing is told twice: {out}");
    assert!(err.contains("the connection to the server was lost"), "{err}");
    home.run(&["replay", &id, "--verify"]).ok();
}

#[test]
fn the_global_log_is_followed_across_a_kill_and_a_restart() {
    let mut home = Home::up();
    home.agent("sh", &[]);
    let mut watch = home
        .command(&["events", "--follow", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (seen, out) = (Arc::new(Mutex::new(Vec::new())), watch.stdout.take().unwrap());
    let told = Arc::clone(&seen);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            told.lock().unwrap().push(serde_json::from_str::<Value>(&line).unwrap());
        }
    });
    let mut made = 0;
    until("somebody watches", || {
        made += 1;
        home.agent(&format!("one-more-{made}"), &[]);
        (!seen.lock().unwrap().is_empty()).then_some(())
    });
    let run = |home: &Home| {
        let id = home.run(&["run", "sh", "shell: echo 1", "-o", "name"]).ok().line().to_owned();
        until("its end is told", || {
            let seen = seen.lock().unwrap();
            let mut ends = seen.iter().filter(|event| event["type"] == "run.succeeded");
            ends.any(|event| event["run_id"] == id).then_some(())
        });
    };
    run(&home);
    home.kill();
    home.start(&["--listen", "none"], &[]);
    run(&home);
    watch.kill().unwrap();
    watch.wait().unwrap();
    reader.join().unwrap();
    let seen = seen.lock().unwrap();
    let numbers: Vec<u64> = seen.iter().map(|event| event["global"].as_u64().unwrap()).collect();
    assert!(
        numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "nothing twice, nothing left out: {numbers:?}"
    );
    let kinds: Vec<&str> = seen.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "run.queued").count(), 2, "{kinds:?}");
}

#[test]
fn an_effect_with_a_lost_result_asks_a_person() {
    let mut home = Home::up();
    home.agent("careful", &[]);
    let id = home.run(&["run", "careful", "shell: sleep 60", "-o", "name"]).ok().line().to_owned();
    // The command itself must have started, not only the run.
    until("the command runs", || {
        let steps = home.run(&["replay", &id, "-o", "json"]).ok().out;
        steps.contains("\"type\":\"tool\"").then_some(())
    });
    home.kill();
    home.start(&["--listen", "none"], &[]);
    let run = home.wait_for(&id, "awaiting_input");
    assert!(run["prompt"].as_str().unwrap().contains("Whether it was done is unknown"), "{run}");
    home.run(&["input", &id, "done"]).ok();
    home.run(&["logs", "-f", &id]).ok();
}

#[test]
fn a_database_that_lost_acknowledged_events_is_refused_until_accepted() {
    let mut home = Home::up();
    home.run(&["down"]).ok();
    home.ended();
    home.start(&["--listen", "none"], &[]);
    home.agent("first", &[]);
    home.agent("second", &[]);
    home.kill();
    // One bit in the middle of the part that was not copied into the database yet.
    let log = home.data().join("overmind.db-wal");
    let mut bytes = std::fs::read(&log).unwrap();
    let half = bytes.len() / 2;
    bytes[half] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    for _ in 0..2 {
        let up = home.run(&["up", "-d", "--listen", "none"]).fails(1);
        up.says("has lost acknowledged events").says("acknowledged event").says("since 2");
        up.says("overmind restore").says("overmind up --accept-loss");
        let audit = home.run(&["audit", "verify"]).fails(1);
        audit.says("was acknowledged and is gone").says("damages");
    }
    home.start(&["--listen", "none", "--accept-loss"], &[]);
    home.run(&["audit", "verify"]).ok();
    home.run(&["events", "--limit", "1000"]).ok().shows("store.loss_accepted");
    home.kill();
    home.start(&["--listen", "none"], &[]);
    // A log removed while the server runs is reported, and a shutdown still saves it.
    home.agent("third", &[]);
    home.run(&["status"]).ok();
    std::fs::remove_file(&log).unwrap();
    // On stderr when a connection that was opened only now could not read at all.
    let status = home.run(&["status"]).fails(1);
    let said = format!("{}{}", status.out, status.err);
    assert!(said.contains("overmind.db-wal was removed"), "{said}");
    home.run(&["down"]).ok();
    home.ended();
    home.start(&["--listen", "none"], &[]);
    home.run(&["agent", "ls"]).ok().shows("third");
    home.run(&["audit", "verify"]).ok();
}
