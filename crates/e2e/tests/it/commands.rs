//! Runs whose agent is a command: real programs, real kills, and no remains.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};

use crate::home::{Done, Home, until};

/// A person's machine on which no process of a command may be left at the end.
pub(crate) struct Commands(pub(crate) Home);

impl Commands {
    pub(crate) fn up() -> Self {
        Self(Home::up())
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        self.0.run(args)
    }

    /// The run with this name, as the API shows it.
    pub(crate) fn named(&self, name: &str) -> Value {
        let all = self.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
        let runs = all.as_array().expect("a list");
        runs.iter().find(|run| run["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    }

    pub(crate) fn until(&self, name: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(what, || Some(self.named(name)).filter(|run| fits(run)))
    }

    pub(crate) fn status(&self, name: &str, status: &str) -> Value {
        self.until(name, status, |run| run["status"] == status)
    }

    /// Waits until its process runs, and answers its pid.
    pub(crate) fn alive(&self, name: &str) -> Value {
        let run = self.until(name, "it runs", |run| !run["process"]["pid"].is_null());
        run["process"]["pid"].clone()
    }

    /// The value of a variable in the process of `name`. Tokens are in no log.
    pub(crate) fn variable(&self, name: &str, variable: &str) -> String {
        let environ = std::fs::read(format!("/proc/{}/environ", self.alive(name)));
        let environ = String::from_utf8(environ.expect("it runs as us")).expect("it is text");
        let found = environ.split('\0').find_map(|one| one.strip_prefix(&format!("{variable}=")));
        found.unwrap_or_else(|| panic!("{name} has no {variable}")).to_owned()
    }

    /// Waits until the log of `name` has this text.
    pub(crate) fn says(&self, name: &str, text: &str) -> String {
        until(text, || Some(self.run(&["logs", name]).out).filter(|log| log.contains(text)))
    }

    /// Pids of processes that this home's commands are: they all have its HOME. The server and
    /// its helpers have it too, and no life.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let home = format!("HOME={}", self.0.path().display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("it is mounted").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let Ok(environ) = std::fs::read(entry.path().join("environ")) else { continue };
            let of = |wanted: &dyn Fn(&str) -> bool| {
                environ.split(|byte| *byte == 0).any(|one| wanted(&String::from_utf8_lossy(one)))
            };
            if of(&|one| one == home) && of(&|one| one.starts_with("OVERMIND_LIFE=")) {
                found.push(pid);
            }
        }
        found
    }

    /// No process of any command is left, and the log of each run reproduces its decisions.
    pub(crate) fn check(self) {
        until("no process is left", || self.processes().is_empty().then_some(()));
        let ids = self.run(&["ps", "--all", "-o", "name"]).ok();
        for id in ids.out.lines() {
            self.run(&["replay", id, "--verify"]).ok();
        }
        self.run(&["audit", "verify"]).ok();
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // A failed test leaves no process behind either.
        for pid in self.processes() {
            let kill = std::process::Command::new("kill").args(["-9", &pid.to_string()]).output();
            drop(kill);
        }
    }
}

#[test]
fn words_without_an_agent_are_a_command_whose_exit_code_is_returned() {
    let home = Commands::up();
    home.run(&["run", "--name", "greet", "echo hi; echo $OVERMIND_SESSION_NAME; exit 3"]).ok();
    assert_eq!(home.run(&["wait", "greet"]).code, 3);
    let run = home.named("greet");
    assert_eq!((&run["status"], &run["error"]["exit_code"]), (&json!("failed"), &json!(3)));
    assert_eq!((&run["process"]["exit_code"], &run["process"]["pid"]), (&json!(3), &Value::Null));
    let log = home.run(&["logs", "greet"]).ok();
    assert_eq!(log.out, "hi\ngreet\n--- ended: exit code 3 ---\n");
    home.run(&["run", "--name", "fine", "true", "and", "true"]).ok();
    assert_eq!(home.run(&["wait", "fine"]).code, 0);
    assert_eq!(home.named("fine")["status"], "succeeded");
    home.run(&["run", "--name", "nowhere", "no-such-program-here; exit 127"]).ok();
    assert_eq!(home.run(&["wait", "nowhere"]).code, 127);
    home.run(&["run", "--name", "shot", "kill -9 $$"]).ok();
    assert_eq!(home.run(&["wait", "shot"]).code, 137);
    // In the current directory, with a terminal, and without secrets of the server.
    let look = "pwd; test -t 1 && echo terminal; env | grep -c OVERMIND_DATA";
    home.run(&["run", "--name", "look", look]).ok();
    home.run(&["wait", "look"]);
    let log = home.run(&["logs", "look"]).ok().out;
    let work = home.0.work().canonicalize().unwrap();
    assert!(log.starts_with(&format!("{}\nterminal\n0\n", work.display())), "{log}");
    home.run(&["wait", "nobody"]).fails(3);
    home.check();
}

#[test]
fn a_removed_log_is_reported_in_the_log_and_on_the_run() {
    let home = Commands::up();
    let work = "echo before; while ! test -e go; do sleep 0.01; done; echo after";
    home.run(&["run", "--name", "noted", work]).ok();
    home.says("noted", "before");
    let id = home.named("noted")["id"].as_str().unwrap().to_owned();
    let mut removed = 0;
    for entry in std::fs::read_dir(home.0.data().join("processes").join(&id)).unwrap().flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "log") {
            std::fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 1);
    std::fs::write(home.0.work().join("go"), "").unwrap();
    home.run(&["wait", "noted"]).ok();
    let log = home.run(&["logs", "noted"]).ok().out;
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.iter().any(|line| line.contains("was removed while the command ran")), "{log}");
    assert!(lines.contains(&"after") && !lines.contains(&"before"), "{log}");
    assert_eq!(home.named("noted")["process"]["log_removed"], true);
    home.run(&["info", "noted"]).ok().shows("does not contain all output");
    home.check();
}

#[test]
fn arguments_reach_the_program_unchanged() {
    let home = Commands::up();
    let work = home.0.work();
    for dir in ["my dir", "my", "dir"] {
        std::fs::create_dir(work.join(dir)).unwrap();
    }
    // Arguments are neither joined nor split.
    home.run(&["run", "--follow", "rmdir", "my dir"]).ok();
    assert!(!work.join("my dir").exists() && work.join("my").exists() && work.join("dir").exists());
    let said =
        home.run(&["run", "--follow", "--", "sh", "-c", "echo one two; echo {task}; exit 3"]);
    assert_eq!(said.fails(3).out, "one two\n{task}\n");
    // Options after the first word are the program's, known to us or not.
    let args = [
        "run", "--name", "dashed", "--follow", "printf", "%s|", "-j4", "-p", "--follow", "--", "-x",
    ];
    assert_eq!(home.run(&args).ok().out, "-j4|-p|--follow|--|-x|\n");
    assert_eq!(home.named("dashed")["task"], "printf '%s|' -j4 -p --follow -- -x");
    let line = home.run(&["run", "--follow", "echo a; echo b"]).ok();
    assert_eq!(line.says("runs a shell command line: sh -c 'echo a; echo b'").out, "a\nb\n");
    home.check();
}

#[test]
fn a_word_that_is_neither_agent_nor_program_starts_nothing() {
    let home = Commands::up();
    let make = ["agent", "create", "--name", "coder", "--model", "deterministic"];
    home.run(&[&make[..], &["--tools", "run_shell"]].concat()).ok();
    home.run(&["run", "codre", "mend it"]).fails(3).says("did you mean the agent `coder`?");
    home.run(&["run", "--agent", "codre", "mend it"]).fails(3).says("the agent `coder`?");
    home.run(&["run", "./gone.sh"]).fails(3).says("no program is called `./gone.sh`");
    home.run(&["run", "coder", "mend", "it", "--folow"]).fails(2).says("--folow").says("quotes");
    assert_eq!(home.run(&["ps", "--all", "-o", "json"]).ok().out.trim(), "[]");
    // The task of an agent is text, so our options are accepted after it as well.
    home.run(&["run", "coder", "shell: echo hi", "--wait", "-o", "json"]).ok();
    home.check();
}

#[test]
fn a_relative_program_path_is_resolved_in_the_runs_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Commands::up();
    let project = home.0.path().join("project");
    std::fs::create_dir_all(project.join("sub")).unwrap();
    for script in ["try.sh", "sub/deep.sh"] {
        let script = project.join(script);
        std::fs::write(&script, "#!/bin/sh\necho found\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let follow = ["run", "--follow", "--project", project.to_str().unwrap()];
    for more in [&["./try.sh"][..], &["--cwd", "sub", "./deep.sh"]] {
        assert_eq!(home.run(&[&follow, more].concat()).ok().out, "found\n");
    }
    home.run(&["run", "./try.sh"]).fails(3).says("nothing was started");
    home.check();
}

#[test]
fn a_failed_start_is_an_error_with_the_reason() {
    let home = Commands::up();
    let work = home.0.work();
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.current_dir(&work).args(["-c", "user.name=a", "-c", "user.email=a@example.com"]);
        assert!(git.args(args).output().unwrap().status.success(), "{args:?}");
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
    for follow in [&[][..], &["--follow"]] {
        let base = [&["run"], follow, &["--base", "nowhere", "true"]].concat();
        home.run(&base).fails(10).says("was not started").says("names no commit");
    }
    std::fs::write(work.join("data.txt"), "no program").unwrap();
    let plain = work.join("data.txt");
    home.run(&["run", plain.to_str().unwrap()]).fails(10).says("was not started");
    std::fs::write(work.join(".overmind.yml"), "version: 1\nservises: {}\n").unwrap();
    home.run(&["run", "true"])
        .fails(2)
        .says("servises")
        .says("services")
        .says("nothing was started");
    std::fs::remove_file(work.join(".overmind.yml")).unwrap();
    // Detaching does not wait for any of it.
    let id = home.run(&["-q", "run", "--detach", "--base", "nowhere", "true"]).ok();
    assert!(id.line().starts_with("ses_"), "{id:?}");
    home.run(&["wait", id.line()]);
    home.check();
}

#[test]
fn an_agent_can_be_a_command_that_takes_its_task_as_arguments() {
    let home = Commands::up();
    let file = home.0.path().join("echo.json");
    let agent = json!({
        "name": "echoer", "role": "repeats", "model": "command", "sandbox": "none",
        "command": {"argv": ["printf", "<%s>\n", "{task}", "x"], "env": ["A=b"]},
    });
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["run", "--name", "once", "echoer", "it's", "$HOME; ls"]).ok();
    assert_eq!(home.run(&["wait", "once"]).code, 0);
    home.run(&["logs", "once"]).ok().shows("<it's $HOME; ls>\n<x>\n");
    home.check();
}

#[test]
fn a_command_survives_a_server_kill_without_losing_a_line() {
    let mut home = Commands::up();
    let count = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    home.run(&["run", "--name", "count", count]).ok();
    home.says("count", "line 3");
    let pid = home.named("count")["process"]["pid"].clone();
    home.0.kill();
    // It continues writing while no server runs.
    let written = || {
        let logs = std::fs::read_dir(home.0.data().join("processes")).unwrap().flatten();
        let files = logs.flat_map(|log| std::fs::read_dir(log.path()).unwrap().flatten());
        files.filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>()
    };
    let before = written();
    until("it writes more", || (written() > before + 50).then_some(()));
    home.0.start(&["--listen", "none"], &[]);
    let run = home.status("count", "running");
    assert_eq!((&run["process"]["pid"], &run["process"]["life"]), (&pid, &json!(1)));
    assert_eq!(home.run(&["wait", "count"]).code, 0);
    let log = home.run(&["logs", "count"]).ok().out;
    let lines: Vec<String> = (0..60).map(|n| format!("line {n}")).collect();
    let seen: Vec<&str> = log.lines().filter(|line| line.starts_with("line")).collect();
    assert_eq!(seen, lines);

    // A program that ends while the server is down reports its true exit code.
    home.run(&["run", "--name", "away", "sleep 0.3; exit 7"]).ok();
    home.status("away", "running");
    home.0.kill();
    until("it ends", || home.processes().is_empty().then_some(()));
    home.0.start(&["--listen", "none"], &[]);
    assert_eq!(home.run(&["wait", "away"]).code, 7);

    // And a normal stop leaves it running as well.
    home.run(&["run", "--name", "on", "sleep 600"]).ok();
    let pid = home.alive("on");
    home.run(&["down"]).ok();
    home.0.ended();
    home.0.start(&["--listen", "none"], &[]);
    assert_eq!(home.alive("on"), pid);
    home.run(&["kill", "on"]).ok();
    home.status("on", "canceled");
    home.check();
}

#[test]
fn a_run_that_ended_while_the_server_died_leaves_no_process() {
    for verb in ["cancel", "stop"] {
        let mut home = Commands::up();
        home.run(&["run", "--name", "doomed", "sleep 600"]).ok();
        home.alive("doomed");
        home.run(&["down"]).ok();
        home.0.ended();
        // The failpoint is between the commit of the intent and the message to its hive.
        home.0.start(&["--listen", "none"], &[("OVERMIND_FAILPOINTS", "driver.after_commit:2")]);
        let asked = home.run(&[verb, "doomed"]);
        assert_ne!(asked.code, 0, "{verb}: the server died before it could answer");
        home.0.ended();
        assert!(!home.processes().is_empty(), "{verb}: the server's death ended the process");
        home.0.start(&["--listen", "none"], &[]);
        home.status("doomed", "canceled");
        home.check();
    }
}

#[test]
fn stop_ends_the_whole_process_tree_and_kills_the_rest() {
    let home = Commands::up();
    // It ignores TERM, and has a child that left its group and session.
    let deaf = "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM; sleep 600' & (sleep 600 &) ; \
                while :; do sleep 1; done";
    home.run(&["run", "--name", "deaf", deaf]).ok();
    until("its tree has grown", || (home.processes().len() >= 4).then_some(()));
    home.run(&["stop", "deaf", "--grace", "1"]).ok();
    let run = home.status("deaf", "canceled");
    assert_eq!(run["process"]["signal"], 9);
    home.run(&["stop", "deaf"]).fails(5).says("already finished");

    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    home.run(&["run", "--name", "polite", polite]).ok();
    home.says("polite", "ready");
    home.run(&["stop", "polite"]).ok();
    assert_eq!(home.run(&["wait", "polite"]).code, 0);
    assert_eq!(home.named("polite")["status"], "canceled");
    home.run(&["logs", "polite"]).ok().shows("bye").shows("stopped by admin");
    home.check();
}

#[test]
fn a_crashing_command_is_restarted_as_its_policy_says() {
    let home = Commands::up();
    let args = ["--restart", "on-failure", "--max-restarts", "2", "--backoff", "10ms"];
    home.run(&[&["run", "--name", "crash"], &args[..], &["echo life; exit 4"]].concat()).ok();
    assert_eq!(home.run(&["wait", "crash"]).code, 4);
    let run = home.named("crash");
    assert_eq!((&run["process"]["life"], &run["process"]["restarts"]), (&json!(3), &json!(2)));
    assert_eq!(run["error"]["code"], "restart_budget");
    let log = home.run(&["logs", "crash"]).ok().out;
    assert_eq!(log.lines().filter(|line| *line == "life").count(), 3, "{log}");
    assert_eq!(log.matches("--- restart #").count(), 2, "{log}");

    // It can be stopped between two attempts, and a restart of the server forgets nothing.
    let mut home = home;
    let slow = ["--restart", "always", "--backoff", "10m"];
    home.run(&[&["run", "--name", "slow"], &slow[..], &["exit 1"]].concat()).ok();
    let waits = |run: &Value| !run["process"]["restart_at"].is_null();
    let before = home.until("slow", "it waits for its next life", waits);
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    let after = home.until("slow", "it waits for its next life", waits);
    assert_eq!(before["process"], after["process"]);
    home.run(&["stop", "slow"]).ok().shows("stopped");
    home.check();
}

#[test]
fn a_terminal_question_of_a_program_opens_an_inbox_item() {
    let home = Commands::up();
    let asks = "printf 'Overwrite config? [y/N] '; read answer; echo \"said <$answer>\"";
    home.run(&["run", "--name", "asks", asks]).ok();
    let run = home.status("asks", "awaiting_input");
    assert!(run["prompt"].as_str().unwrap().contains("Overwrite config?"), "{run}");
    home.run(&["inbox"]).ok().shows("Overwrite config?");
    home.run(&["input", "asks", "y"]).ok();
    assert_eq!(home.run(&["wait", "asks"]).code, 0);
    home.run(&["logs", "asks"]).ok().shows("said <y>").shows("[human] y");

    // If the answer is typed in the terminal, the question is withdrawn.
    home.run(&["run", "--name", "typed", asks]).ok();
    home.status("typed", "awaiting_input");
    home.run(&["send", "typed", "n"]).ok();
    assert_eq!(home.run(&["wait", "typed"]).code, 0);
    home.run(&["logs", "typed"]).ok().shows("said <n>");
    assert_eq!(home.run(&["inbox", "-o", "json"]).ok().json(), json!([]));

    // A secret that would be logged is refused.
    let secret = "printf 'Password: '; stty -echo; read p; echo got";
    home.run(&["run", "--name", "secret", secret]).ok();
    home.status("secret", "awaiting_input");
    home.run(&["input", "secret", "hunter2"]).fails(5).says("send it as a secret");
    let mut send = home
        .0
        .command(&["send", "secret", "--secret"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    send.stdin.take().unwrap().write_all(b"hunter2\n").unwrap();
    assert!(send.wait().unwrap().success());
    assert_eq!(home.run(&["wait", "secret"]).code, 0);
    home.run(&["logs", "secret"]).ok().shows("got").shows("[human] (a secret)");
    for shown in [home.run(&["logs", "secret"]), home.run(&["events", "secret", "-o", "json"])] {
        assert!(!shown.ok().out.contains("hunter2"), "a secret stands in the log");
    }
    home.run(&["fork", "secret", "--at", "0"]).fails(5).says("cannot be forked");
    home.check();
}

#[test]
fn a_silent_program_is_ended_as_stuck_unless_it_uses_the_processor() {
    let home = Commands::up();
    let timeout = ["--activity-timeout", "2"];
    home.run(&[&["run", "--name", "stuck"], &timeout[..], &["echo on; sleep 600"]].concat()).ok();
    let busy = "i=0; while [ $i -lt 700000 ]; do i=$((i+1)); done; echo done";
    home.run(&[&["run", "--name", "busy"], &timeout[..], &[busy]].concat()).ok();
    let stuck = home.status("stuck", "failed");
    assert_eq!(stuck["error"]["code"], "stuck");
    home.run(&["logs", "stuck"]).ok().shows("--- killed: no activity for 2s ---\n");
    assert_eq!(home.run(&["wait", "busy"]).code, 0);
    home.check();
}

#[test]
fn logs_follow_across_a_restart_and_filter_lines() {
    let mut home = Commands::up();
    let talk = "i=0; while [ $i -lt 40 ]; do echo \"line $i\"; i=$((i+1)); sleep 0.05; done";
    home.run(&["run", "--name", "talk", talk]).ok();
    home.says("talk", "line 2");
    let mut follower = home
        .0
        .command(&["logs", "-f", "talk"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(follower.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(follower.wait().unwrap().success());
    let out = first + &rest;
    let lines: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
    let seen: Vec<&str> = out.lines().filter(|line| line.starts_with("line")).collect();
    assert_eq!(seen, lines);
    let tail = home.run(&["logs", "talk", "-n", "3"]).ok().out;
    assert_eq!(tail.lines().count(), 3, "{tail}");
    let found = home.run(&["logs", "talk", "--grep", "line 1[23]$"]).ok().out;
    assert_eq!(found, "line 12\nline 13\n");
    home.run(&["logs", "talk", "--grep", "("]).fails(2);
    home.run(&["logs", "talk", "--since", "1h"]).ok().shows("line 0");
    home.run(&["logs", "talk", "--since", "soon"]).fails(2).says("--since takes");
    home.check();
}

#[test]
fn many_commands_are_killed_with_one_request() {
    let home = Commands::up();
    for n in 0..20 {
        let name = format!("many-{n}");
        home.run(&["run", "--name", &name, "sleep 600 & sleep 600"]).ok();
    }
    until("all of them run", || {
        let running = home.run(&["ps", "--status", "running", "-o", "json"]).ok().json();
        let up = running.as_array().unwrap().iter().filter(|run| !run["process"]["pid"].is_null());
        (up.count() == 20).then_some(())
    });
    let began = Instant::now();
    home.run(&["kill", "--all"]).ok();
    until("none is left", || home.processes().is_empty().then_some(()));
    eprintln!("20 commands were ended in {:?}", began.elapsed());
    home.check();
}

#[test]
fn the_cause_of_waiting_and_missing_parts_of_a_worktree_are_shown() {
    let house = crate::worktrees::House::new(None);
    house.run(&["halt"]).ok();
    let mut held = house.home.0.command(&["run", "--name", "held", "--wait", "echo hi"]);
    let mut held = held.current_dir(&house.project).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(held.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("it starts after `overmind resume`")));
    house.run(&["resume"]).ok();
    assert!(held.wait().unwrap().success());

    std::fs::write(house.project.join("new.sh"), "#!/bin/sh\necho new\n").unwrap();
    let run = house.run(&["run", "--name", "lacks", "./new.sh"]);
    run.says("./new.sh is not in HEAD").says("--carry");
    std::fs::remove_file(house.project.join("new.sh")).unwrap();
    house.run(&["run", "--name", "has", "cat", "./story.txt"]).ok();

    // Right after it was accepted, no process exists yet.
    house.run(&["run", "--name", "soon", "-d", "--", "sh", "-c", "echo there; sleep 600"]).ok();
    let mut watch = house.home.0.command(&["attach", "soon", "--read-only"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(seen.any(|line| line.unwrap().contains("there")));
    house.run(&["kill", "soon"]).ok();
    watch.wait().unwrap();
    house.check();
}
