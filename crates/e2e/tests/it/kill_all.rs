//! `kill` of many runs: one order for all, whatever happens to the server meanwhile.

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::until;

/// Starts so many commands that sleep, and waits until each has its process.
fn sleepers(home: &Commands, count: usize) {
    for n in 0..count {
        home.run(&["run", "--name", &format!("many-{n}"), "sleep 600"]).ok();
    }
    until("all of them run", || (alive(home).len() == count).then_some(()));
}

/// Runs that have a process now.
fn alive(home: &Commands) -> Vec<Value> {
    let running = home.run(&["ps", "--status", "running", "-o", "json"]).ok().json();
    let runs = running.as_array().expect("a list").iter();
    runs.filter(|run| !run["process"]["pid"].is_null()).cloned().collect()
}

#[test]
fn a_server_killed_during_many_kills_leaves_each_run_running_or_killed() {
    const COUNT: usize = 12;
    // Each writes one commit when it is found again. After the first wish; in the middle.
    for (point, wishes) in [("driver.after_commit", 1), ("driver.before_commit", COUNT / 2)] {
        let mut home = Commands::up();
        sleepers(&home, COUNT);
        let pids: Vec<Value> =
            alive(&home).iter().map(|run| run["process"]["pid"].clone()).collect();
        home.run(&["down"]).ok();
        home.0.ended();
        let at = format!("{point}:{}", COUNT + wishes);
        home.0.start(&["--listen", "none"], &[("OVERMIND_FAILPOINTS", &at)]);
        let killed = home.run(&["kill", "--all"]);
        assert_ne!(killed.code, 0, "{point}: the server died before it could answer");
        home.0.ended();
        home.0.start(&["--listen", "none"], &[]);
        let runs = until("each has ended or lives", || {
            let all = home.run(&["ps", "--all", "-o", "json"]).ok().json();
            let runs = all.as_array().expect("a list").clone();
            let settled = |run: &Value| {
                run["status"] == "canceled"
                    || (run["status"] == "running" && pids.contains(&run["process"]["pid"]))
            };
            (runs.len() == COUNT && runs.iter().all(settled)).then_some(runs)
        });
        assert!(runs.iter().all(|run| run["process"]["life"] == 1), "{point}: {runs:?}");
        assert!(runs.iter().all(|run| run["error"].is_null()), "{point}: {runs:?}");
        home.run(&["kill", "--all"]).ok();
        for n in 0..COUNT {
            home.status(&format!("many-{n}"), "canceled");
        }
        home.check();
    }
}

#[test]
fn kill_reports_each_run_and_fails_if_one_kill_fails() {
    let home = Commands::up();
    sleepers(&home, 3);
    let told = home.run(&["kill", "many-0", "nobody", "many-1", "-o", "name"]).fails(3);
    let ids: Vec<String> = ["many-0", "many-1"]
        .iter()
        .map(|name| home.status(name, "canceled")["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(told.out.lines().collect::<Vec<_>>(), ids);
    home.run(&["kill", "many-0"]).fails(5).says("already finished");
    assert_eq!(home.named("many-2")["status"], json!("running"), "nobody named it");
    home.run(&["run", "--name", "many-3", "sleep 600"]).ok();
    let told = home.run(&["kill", "--all"]).ok();
    let lines: Vec<&str> = told.out.lines().collect();
    assert_eq!(lines.len(), 3, "a head, and a line for each: {}", told.out);
    assert!(lines[1].contains("many-3") && lines[2].contains("many-2"), "{}", told.out);
    home.status("many-2", "canceled");
    home.run(&["kill", "--all"]).ok().says("no commands are running");
    home.check();
}
