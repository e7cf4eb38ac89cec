//! Watching runs of commands: `top`, `monitor`, `subscribe`, `info`, `result`, `send --wait`,
//! `logs --all`.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::until;
use crate::tty::Person;

#[test]
fn top_shows_running_processes_and_busy_agents() {
    let home = Commands::up();
    home.run(&["run", "--name", "busy", "while :; do :; done"]).ok();
    home.run(&["run", "--name", "idle", "echo on; sleep 600 & sleep 600"]).ok();
    home.run(&["run", "--name", "asks", "printf 'Overwrite config? [y/N] '; read answer"]).ok();
    home.run(&["run", "--name", "gone", "true"]).ok();
    home.alive("busy");
    until("both sleep", || (home.processes().len() >= 5).then_some(()));
    home.status("asks", "awaiting_input");
    home.run(&["wait", "gone"]).ok();
    let top = home.run(&["top", "--once", "-o", "json"]).ok().json();
    assert_eq!(top["more"], false);
    let runs = top["runs"].as_array().unwrap();
    let of = |name: &str| runs.iter().find(|run| run["name"] == name);
    assert_eq!(runs.len(), 3, "{top}");
    let (busy, idle, asks) = (of("busy").unwrap(), of("idle").unwrap(), of("asks").unwrap());
    assert!(busy["cpu_percent"].as_f64().unwrap() > 1.0, "{busy}");
    assert!(busy["cpu_ms"].as_u64().unwrap() > 0);
    assert!(idle["cpu_percent"].as_f64().unwrap() < busy["cpu_percent"].as_f64().unwrap());
    assert_eq!((&idle["processes"], &idle["life"]), (&json!(3), &json!(1)));
    assert_eq!(idle["pid"], home.named("idle")["process"]["pid"]);
    assert!(idle["resident_bytes"].as_u64().unwrap() > 100_000);
    assert_eq!(idle["log_bytes"], 4, "its terminal wrote `on`, and both line ends");
    assert_eq!(asks["status"], "awaiting_input");
    assert!(asks["prompt"].as_str().unwrap().contains("Overwrite"));
    let table = home.run(&["top", "--once"]).ok().out;
    let header = table.lines().next().unwrap();
    for column in ["NAME", "STATUS", "LIFE", "RESTARTS", "PID", "CPU%", "MEMORY", "SILENT"] {
        assert!(header.contains(column), "{header}");
    }
    assert!(table.lines().nth(1).unwrap().contains("busy"), "the busiest is first: {table}");
    assert!(table.contains("Overwrite config?"), "{table}");

    // Live, until a viewer disconnects.
    let mut person = Person::at(&home.0, 120, 24, &["top"]);
    person.sees("3 running, 1 waiting for somebody");
    home.run(&["kill", "asks"]).ok();
    person.sees("2 running, 0 waiting for somebody");
    assert!(person.on_alternate());
    person.types("q");
    assert_eq!(person.leaves(), 0);
    home.run(&["kill", "--all"]).ok();
    until("nothing is left", || {
        let top = home.run(&["top", "--once", "-o", "json"]).ok().json();
        (top["runs"] == json!([])).then_some(())
    });
    home.check();
}

#[test]
fn monitor_follows_one_run_to_its_end() {
    let home = Commands::up();
    let script = "for n in 1 2 3; do echo line $n; done; read line; echo \"then $line\"; exit 6";
    home.run(&["run", "--name", "one", script]).ok();
    home.says("one", "line 3");
    let once = home.run(&["monitor", "one", "--once"]).ok();
    once.shows("one  working  attempt 1, 0 restarts, pid ").shows("line 1\nline 2\nline 3\n");
    let value = home.run(&["monitor", "one", "--once", "-o", "json"]).ok().json();
    assert_eq!(value["run"]["name"], "one");
    assert!(value["process_usage"]["resident_bytes"].as_u64().unwrap() > 0, "{value}");
    let mut person = Person::at(&home.0, 100, 20, &["monitor", "one"]);
    person.sees("line 3");
    home.run(&["send", "one", "more"]).ok();
    assert_eq!(person.leaves(), 6);
    let screen = person.sees("then more");
    assert!(screen.contains("failed") && screen.contains("exit code 6"), "{screen}");
    home.check();
}

#[test]
fn ps_shows_restarts_exit_codes_and_upcoming_deadlines() {
    let home = Commands::up();
    let args =
        ["run", "--name", "twice", "--restart", "on-failure", "--max-restarts", "1", "exit 3"];
    home.run(&args).ok();
    home.run(&["wait", "twice"]).fails(3);
    let row = |name: &str| {
        let listed = home.run(&["ps", "--all"]).ok().out;
        listed.lines().find(|line| line.contains(name)).unwrap().to_owned()
    };
    let words = row("twice");
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(words[2..5], ["failed,", "1", "restart"], "{words:?}");
    assert_eq!(words[9], "3", "its exit code: {words:?}");
    home.run(&["info", "twice"]).ok().shows("restart     on-failure").shows("2, 1 restart");
    // A run that ignores TERM is stopping until it is killed.
    home.run(&["run", "--name", "deaf", "trap '' TERM HUP; echo up; while :; do sleep 0.1; done"])
        .ok();
    home.says("deaf", "up");
    home.run(&["stop", "deaf", "--grace", "10m", "--no-wait"]).ok().shows("stopping");
    assert!(row("deaf").contains("stopping"), "{}", row("deaf"));
    home.run(&["kill", "deaf"]).ok();
    home.run(&["wait", "deaf"]).fails(137);
    assert!(row("deaf").contains("signal 9"), "{}", row("deaf"));
    home.check();
}

#[test]
fn describe_shows_everything_about_a_run() {
    let home = Commands::up();
    home.run(&["run", "--name", "boss", "read line; exit 4"]).ok();
    home.alive("boss");
    home.run(&["run", "--name", "child", "--parent", "boss", "true"]).ok();
    home.run(&["wait", "child"]).ok();
    let info = home.run(&["info", "boss", "-o", "json"]).ok().json();
    assert_eq!(info["children"], json!([home.named("child")["id"]]));
    assert_eq!(info["process_usage"]["processes"], 1);
    assert_eq!((&info["name"], &info["parent_id"]), (&json!("boss"), &Value::Null));
    let told = home.run(&["info", "boss"]).ok();
    for line in [
        "state ",
        "agent      command version 1",
        "type       command, task",
        "workspace ",
        "child ",
        "life ",
        "restart    never",
        "pid ",
        "uses ",
        "wrote ",
    ] {
        told.shows(line);
    }
    home.run(&["result", "boss"]).fails(5).says("has not ended").says("overmind wait boss");
    home.run(&["send", "boss", "end"]).ok();
    home.run(&["wait", "boss"]).fails(4);
    home.run(&["result", "boss"]).fails(4).says("overmind logs boss");
    let result = home.run(&["result", "boss", "-o", "json"]).fails(4).json();
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("failed"), &json!(4)));
    home.run(&["info", "boss"]).ok().shows("exit code 4");
    // An agent's answer is its result.
    home.0.agent("sh", &[]);
    let id = home.run(&["run", "sh", "shell: echo hello", "--wait", "-o", "name"]).ok();
    let answer = home.0.fetch(id.line())["final_answer"].as_str().unwrap().to_owned();
    assert_eq!(home.run(&["result", id.line()]).ok().out.trim_end(), answer.trim_end());
    home.run(&["info", id.line()]).ok().shows("answer ").shows("built-in agent");
    home.check();
}

#[test]
fn events_are_streamed_by_offset_and_resumed() {
    let mut home = Commands::up();
    home.run(&["run", "--name", "first", "true"]).ok();
    home.run(&["wait", "first"]).ok();
    let all = home.run(&["subscribe", "--from", "0", "--no-follow"]).ok().out;
    let read = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let events = read(&all);
    let offsets: Vec<u64> = events.iter().map(|event| event["offset"].as_u64().unwrap()).collect();
    let count = u64::try_from(events.len()).unwrap();
    assert_eq!(offsets, (1..=count).collect::<Vec<_>>(), "none is left out");
    assert!(events[0].as_object().unwrap().keys().next().unwrap() == "offset");
    // From the middle, and of one kind and run alone.
    let half = (count / 2).to_string();
    let rest = home.run(&["subscribe", "--from", &half, "--no-follow"]).ok().out;
    assert_eq!(read(&rest), events[usize::try_from(count / 2).unwrap() - 1..]);
    let args = ["subscribe", "--from", "0", "--run", "first", "--kind", "process."];
    let kinds: Vec<String> = read(&home.run(&args).ok().out)
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect();
    assert!(kinds.contains(&"process.started".to_owned()), "{kinds:?}");
    assert!(kinds.iter().all(|kind| kind.starts_with("process.")), "{kinds:?}");
    // Followed through a kill of the server, to the end of the run.
    home.run(&["run", "--name", "second", "read line"]).ok();
    home.alive("second");
    let mut stream = home
        .0
        .command(&["subscribe", "--run", "second", "--from", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    let mut seen = vec![lines.next().unwrap().unwrap()];
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    home.run(&["send", "second", "end"]).ok();
    seen.extend(lines.map(Result::unwrap));
    assert!(stream.wait().unwrap().success());
    let seen = read(&seen.join("\n"));
    let id = &home.named("second")["id"];
    assert!(seen.iter().all(|event| event["run_id"] == *id));
    let numbers: Vec<u64> = seen.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    let count = u64::try_from(numbers.len()).unwrap();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>(), "each once, and none is left out");
    // A signal is a good end.
    let mut stream = home.0.command(&["subscribe", "--from", "0"]);
    let mut stream = stream.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(stream.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&stream);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(stream.wait().unwrap().code(), Some(0));
    home.run(&["subscribe", "--no-follow"]).fails(2);
    home.check();
}

#[test]
fn send_can_wait_for_the_output() {
    let home = Commands::up();
    let talks = "while read line; do case $line in end) echo bye; exit 9;; \
                 quiet) ;; *) echo \"you said $line\"; printf 'Go on? [y/N] ';; esac; done";
    home.run(&["run", "--name", "talks", "--type", "session", talks]).ok();
    home.alive("talks");
    let said = home.run(&["send", "talks", "--wait", "hello", "there"]).ok().out;
    assert!(said.contains("you said hello there") && said.contains("Go on? [y/N]"), "{said}");
    assert!(!said.starts_with("hello there"), "the terminal's echo is shown: {said}");
    let value = home.run(&["send", "talks", "--wait", "again", "-o", "json"]).ok().json();
    assert!(value["text"].as_str().unwrap().contains("you said again"), "{value}");
    assert!(value["duration_ms"].as_u64().is_some());
    home.run(&["send", "talks", "--wait", "--timeout", "1", "quiet"]).fails(1).says(
        "wrote \
        nothing",
    );
    let said = home.run(&["send", "talks", "--wait", "end"]).fails(9).out;
    assert!(said.contains("bye"), "{said}");
    home.check();
}

#[test]
fn logs_of_all_runs_are_merged_with_the_name_of_each_run() {
    let home = Commands::up();
    home.run(&["run", "--name", "one", "echo from one; read line; echo last of one"]).ok();
    home.says("one", "from one");
    home.run(&["run", "--name", "two", "echo from two"]).ok();
    home.run(&["wait", "two"]).ok();
    let all = home.run(&["logs", "--all"]).ok().out;
    assert!(all.starts_with("one | from one\ntwo | from two\n"), "{all}");
    let mut follower = home
        .0
        .command(&["logs", "--all", "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "one | from one");
    // A command that starts later is followed too.
    home.run(&["run", "--name", "three", "echo from three; sleep 600"]).ok();
    assert_eq!(lines.next().unwrap().unwrap(), "three | from three");
    home.run(&["send", "one", "x"]).ok();
    let rest: Vec<String> = lines.by_ref().take(3).map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line == "one | last of one"), "{rest:?}");
    follower.kill().unwrap();
    follower.wait().unwrap();
    let objects = home.run(&["logs", "--all", "-o", "json", "--grep", "from"]).ok().out;
    let first: Value = serde_json::from_str(objects.lines().next().unwrap()).unwrap();
    assert_eq!((&first["run"], &first["text"]), (&json!("one"), &json!("from one")));
    home.run(&["logs", "--all", "one"]).fails(2);
    home.run(&["kill", "--all"]).ok();
    home.check();
}
