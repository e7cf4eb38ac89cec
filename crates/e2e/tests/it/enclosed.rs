//! Runs whose agent is a command in a sandbox: its view, its end, and its adoption.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::home::{Done, Home, until};

/// A machine on which no process of a command may be left in the end.
struct Enclosed(Home);

impl Enclosed {
    fn up() -> Self {
        Self(Home::up())
    }

    fn run(&self, args: &[&str]) -> Done {
        self.0.run(args)
    }

    /// The mark by which processes of this home's commands are known: a variable of theirs.
    fn mark(&self) -> String {
        format!("ENCLOSED_HOME={}", self.0.path().display())
    }

    /// Runs words in a sandbox.
    fn begin(&self, name: &str, words: &str) {
        let mark = self.mark();
        let args = ["run", "--name", name, "--sandbox", "namespace", "--env", &mark, words];
        self.run(&args).ok();
    }

    fn named(&self, name: &str) -> Value {
        let all = self.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
        let runs = all.as_array().expect("a list");
        runs.iter().find(|run| run["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    }

    fn until(&self, name: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(what, || Some(self.named(name)).filter(|run| fits(run)))
    }

    fn says(&self, name: &str, text: &str) -> String {
        until(text, || Some(self.run(&["logs", name]).out).filter(|log| log.contains(text)))
    }

    fn log(&self, name: &str) -> String {
        self.run(&["logs", name]).ok().out
    }

    fn wait(&self, name: &str) -> i32 {
        self.run(&["wait", name]).code
    }

    fn processes(&self) -> Vec<u32> {
        let mark = self.mark();
        let all = std::fs::read_dir("/proc").expect("it is mounted").flatten();
        all.filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().parse().ok()?;
            let environ = std::fs::read(entry.path().join("environ")).ok()?;
            let has = environ.split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
            has.then_some(pid)
        })
        .collect()
    }

    fn agent(&self, agent: &Value) -> Done {
        let file = self.0.path().join("agent.json");
        std::fs::write(&file, agent.to_string()).unwrap();
        self.run(&["agent", "create", "--file", file.to_str().unwrap()])
    }

    /// No process of any command is left, and every log reproduces its decisions.
    fn check(self) {
        until("no process is left", || self.processes().is_empty().then_some(()));
        until("no home of a command is left", || {
            let homes = std::fs::read_dir(self.0.data().join("homes"));
            homes.map_or(0, Iterator::count).eq(&0).then_some(())
        });
        for id in self.run(&["ps", "--all", "-o", "name"]).ok().out.lines() {
            self.run(&["replay", id, "--verify"]).ok();
        }
        self.run(&["audit", "verify"]).ok();
    }
}

impl Drop for Enclosed {
    fn drop(&mut self) {
        for pid in self.processes() {
            drop(Command::new("kill").args(["-9", &pid.to_string()]).output());
        }
    }
}

#[test]
fn a_sandboxed_terminal_command_sees_only_its_directory_and_is_attested() {
    let home = Enclosed::up();
    let (top, data) = (home.0.path(), home.0.data());
    std::fs::create_dir(top.join("other")).unwrap();
    for name in ["secret", "other/secret", "work/mine"] {
        std::fs::write(top.join(name), "a-secret").unwrap();
    }
    let script = format!(
        "pwd; ls; echo new > made; test -t 1 && echo terminal; echo $HOME; \
         ls {top} | tr '\\n' ' '; echo; \
         cat {top}/secret {top}/other/secret {data}/admin.token {data}/overmind.db; \
         ls /root /var/lib; ls -A {data}; test -n \"$OVERMIND_TOKEN\" && echo token; exit 7",
        top = top.display(),
        data = data.display(),
    );
    home.begin("look", &script);
    assert_eq!(home.wait("look"), 7);
    let log = home.log("look");
    let work = home.0.work().canonicalize().unwrap();
    let begins = format!("{}\nmine\nterminal\n/home/sandbox\n", work.display());
    assert!(log.starts_with(&begins), "{log}");
    assert!(log.contains("\nwork \n"), "the way to what is shown, and no more: {log}");
    assert!(!log.contains("a-secret"), "{log}");
    assert_eq!(log.matches("No such file").count(), 7, "{log}");
    assert!(log.ends_with("\ntoken\n--- ended: exit code 7 ---\n"), "{log}");
    assert_eq!(std::fs::read_to_string(home.0.work().join("made")).unwrap(), "new\n");

    let run = home.named("look");
    assert_eq!((&run["status"], &run["error"]["exit_code"]), (&json!("failed"), &json!(7)));
    assert_eq!(run["sandbox"], "namespace");
    assert_eq!(run["attestation"]["achieved"], "namespace");
    let verified = home.run(&["sandbox", "verify", "look"]).ok();
    verified.shows("network mesh").shows("holds");
    home.run(&["ps", "--all", "-o", "wide"]).ok().shows("namespace");
    let events = home.run(&["events", "look", "-o", "json"]).ok().out;
    let at = |kind: &str| events.find(&format!("\"{kind}\"")).unwrap_or_else(|| panic!("{kind}"));
    assert!(at("process.starting") < at("sandbox.attested"), "{events}");
    assert!(at("sandbox.attested") < at("process.started"), "{events}");
    assert!(!events.contains("OVERMIND_ENCLOSURE"), "{events}");
    home.check();
}

#[test]
fn a_death_by_a_signal_is_reported_and_a_stop_is_delivered_once() {
    let home = Enclosed::up();
    for (name, signal) in [("shot", 9), ("segv", 11), ("term", 15)] {
        home.begin(name, &format!("kill -{signal} $$"));
        assert_eq!(home.wait(name), 128 + signal);
        assert_eq!(home.named(name)["process"]["signal"], signal);
    }
    // If it were sent to the command and to its representative, it would count twice.
    let polite = "n=0; trap 'n=$((n+1)); echo asked $n' TERM; echo ready; \
                  while [ $n -lt 1 ]; do sleep 0.05; done; \
                  i=0; while [ $i -lt 10 ]; do sleep 0.05; i=$((i+1)); done; echo end $n; exit 5";
    home.begin("polite", polite);
    home.says("polite", "ready");
    home.run(&["stop", "polite", "--grace", "20"]).ok();
    assert_eq!(home.wait("polite"), 5);
    let log = home.log("polite");
    assert!(log.contains("asked 1\n") && log.contains("end 1\n"), "{log}");
    assert_eq!(home.named("polite")["status"], "canceled");

    // It ignores TERM, and has children that left its session: KILL ends all of them.
    let deaf = "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 600' & \
                (setsid sleep 600 &); echo up; while :; do sleep 1; done";
    home.begin("deaf", deaf);
    home.says("deaf", "up");
    until("its tree has grown", || (home.processes().len() >= 5).then_some(()));
    home.run(&["stop", "deaf", "--grace", "1"]).ok();
    let run = home.until("deaf", "it has ended", |run| run["status"] == "canceled");
    assert_eq!(run["process"]["signal"], 9);
    until("no process is left", || home.processes().is_empty().then_some(()));

    // An interactive shell ignores TERM, but ends when its terminal closes.
    let shell = json!({"name": "shell", "role": "r", "model": "m", "sandbox": "namespace",
        "command": {"argv": ["bash", "--norc", "-i"], "terminal": true, "kind": "session",
            "env": [home.mark()]}});
    home.agent(&shell).ok();
    home.run(&["run", "--name", "people", "shell"]).ok();
    home.says("people", "$");
    let began = Instant::now();
    home.run(&["stop", "people", "--grace", "60"]).ok();
    home.until("people", "it has ended", |run| run["status"] == "canceled");
    assert!(began.elapsed() < Duration::from_secs(30), "it was killed and not asked");
    home.check();
}

#[test]
fn a_sandboxed_command_survives_a_server_kill_and_its_exit_is_recorded() {
    let mut home = Enclosed::up();
    let count = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; \
                 echo home $(cat ~/kept)";
    home.begin("count", &format!("echo kept > ~/kept; {count}"));
    home.begin("away", "echo on; while [ ! -e go ]; do sleep 0.02; done; exit 9");
    home.says("count", "line 3");
    home.says("away", "on");
    let before = home.named("count");
    home.0.kill();
    std::fs::write(home.0.work().join("go"), "").unwrap();
    home.0.start(&["--listen", "none"], &[]);
    assert_eq!(home.wait("away"), 9);
    let after = home.named("count");
    assert_eq!(after["process"]["life"], 1);
    assert_eq!(after["attestation"], before["attestation"]);
    assert!(!before["attestation"].is_null());
    assert_eq!(home.wait("count"), 0);
    let log = home.log("count");
    let lines: Vec<String> = (0..60).map(|n| format!("line {n}")).collect();
    let seen: Vec<&str> = log.lines().filter(|line| line.starts_with("line")).collect();
    assert_eq!(seen, lines);
    assert!(log.contains("home kept\n"), "its home stays while it lives: {log}");

    // With the host's network, the server's own socket is available at its path.
    let look = format!("ls -A {}", home.0.data().display());
    let mark = home.mark();
    let args = ["run", "--name", "wide", "--sandbox", "namespace", "--network", "host"];
    home.run(&[&args[..], &["--env", &mark, &look]].concat()).ok();
    assert_eq!(home.wait("wide"), 0);
    assert!(home.log("wide").starts_with("overmind.sock\n"), "{}", home.log("wide"));
    home.run(&["sandbox", "verify", "wide"]).ok().shows("network host");

    // Killing its shim ends the whole tree, and the run says so.
    home.begin("orphan", "setsid sleep 600 & echo up; sleep 600");
    home.says("orphan", "up");
    until("its tree has grown", || (home.processes().len() >= 4).then_some(()));
    let pid = home.named("orphan")["process"]["pid"].as_u64().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let keeper = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim();
    Command::new("kill").args(["-9", keeper]).status().unwrap();
    let run = home.until("orphan", "it is lost", |run| run["status"] == "failed");
    assert_eq!(run["error"]["code"], "lost");
    home.check();
}

#[test]
fn an_agents_grants_apply_to_its_commands_and_only_admins_set_them() {
    let mut home = Enclosed(Home::new());
    let said = home.0.start(&["--listen", "127.0.0.1:0"], &[]);
    let url = said["url"].as_str().unwrap();
    let tool = home.0.path().join("tools/bin/tool");
    std::fs::create_dir_all(tool.parent().unwrap()).unwrap();
    std::fs::write(&tool, "#!/bin/sh\necho the tool says \"$@\"\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let tools = home.0.path().join("tools").display().to_string();
    let agent = |name: &str, more: Value| {
        let mut command = json!({"argv": [tool.to_str().unwrap(), "{task}"], "env": [home.mark()]});
        command.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"name": name, "role": "r", "model": "m", "sandbox": "namespace", "command": command})
    };
    home.agent(&agent("without", json!({}))).ok();
    home.run(&["run", "--name", "hidden", "without", "x"]).fails(10).says("grant the directory");
    let run = home.until("hidden", "it is refused", |run| run["status"] == "failed");
    let why = run["error"]["message"].as_str().unwrap();
    assert!(why.contains("grant the directory") && why.contains(&tools), "{why}");
    assert_eq!(run["attestation"], Value::Null, "nothing ran");

    home.agent(&agent("with", json!({"read": [tools], "network": "none"}))).ok();
    home.run(&["run", "--name", "shown", "with", "hello"]).ok();
    assert_eq!(home.wait("shown"), 0);
    assert!(home.log("shown").contains("the tool says hello\n"));
    home.run(&["sandbox", "verify", "shown"]).ok().shows("network none");

    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let file = home.0.path().join("granted.json");
    std::fs::write(&file, agent("more", json!({"write": [tools]})).to_string()).unwrap();
    let args = ["--server", url, "agent", "create", "--file", file.to_str().unwrap()];
    home.0.run_env(&[("OVERMIND_TOKEN", key.line())], &args).fails(6).says("admin");
    home.run(&args[2..]).ok();
    for odd in ["relative", "/", "/a/../b"] {
        home.agent(&agent("odd", json!({"read": [odd]})))
            .fails(2)
            .says("granted paths must be absolute");
    }
    home.check();
}

#[test]
fn a_level_that_cannot_be_given_is_refused_and_nothing_weaker_runs() {
    let mut home = Enclosed::up();
    for level in ["docker", "microvm"] {
        let agent = json!({"name": level, "role": "r", "model": "m", "sandbox": level,
            "command": {"argv": ["true"]}});
        home.agent(&agent).fails(2).says("cannot be given");
        home.run(&["run", "--sandbox", level, "touch ran"]).fails(2).says("cannot be given");
    }
    let strict = json!({"name": "strict", "role": "r", "model": "m", "sandbox": "namespace",
        "command": {"argv": ["touch", "ran"]}});
    home.agent(&strict).ok();
    home.run(&["run", "--sandbox", "none", "strict"]).fails(2).says("no weaker");
    // No session gets the whole machine: refused before anything is created.
    let whole =
        home.run(&["run", "--name", "whole", "--sandbox", "namespace", "--workspace", "/", "true"]);
    whole.fails(2).says("is a system directory");

    // A machine without user namespaces, as far as the server can tell.
    home.run(&["down"]).ok();
    home.0.ended();
    let up = home.0.command(&["up", "-o", "json"]);
    let without = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", without, "sh"]);
    command.arg(up.get_program()).args(up.get_args()).env_clear();
    command.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(home.0.work());
    home.0.start_by(command, &["--listen", "none"], &[]);
    let args = ["run", "--name", "bare", "--sandbox", "namespace", "touch", "ran"];
    home.run(&args).fails(10);
    let run = home.until("bare", "it is refused", |run| run["status"] == "failed");
    let why = run["error"]["message"].as_str().unwrap();
    assert!(why.contains("cannot be set up here") && why.contains("max_user_namespaces"), "{why}");
    assert_eq!(run["attestation"], Value::Null);
    assert!(!home.0.work().join("ran").exists(), "nothing weaker ran");
    home.check();
}

/// The measurements are only printed, beside each other.
#[test]
fn figures_of_a_start_with_and_without_a_sandbox() {
    let home = Enclosed::up();
    for level in ["none", "namespace"] {
        let mut times = Vec::new();
        for n in 0..11 {
            let name = format!("{level}-{n}");
            let mark = home.mark();
            let began = Instant::now();
            home.run(&["run", "--name", &name, "--sandbox", level, "--env", &mark, "true"]).ok();
            assert_eq!(home.wait(&name), 0);
            times.push(began.elapsed());
        }
        // The first one measures its sandbox.
        let first = times.remove(0);
        times.sort();
        eprintln!("run and wait, sandbox {level}: {:?} (the first {first:?})", times[5]);
    }
    home.check();
}
