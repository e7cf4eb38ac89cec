//! The lifecycle of a server: start, discovery, requests, stop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::home::{Home, until};

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn up_prints_its_address_and_its_secrets_are_private() {
    let mut home = Home::new();
    let server = home.start(&["--listen", "127.0.0.1:0"], &[]);
    assert_eq!(server["pid"], home.server().id());
    let url = server["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("http://127.0.0.1:") && !url.ends_with(":0"), "{url}");
    let mode = |name: &str| {
        let path = home.data().join(name);
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(""), 0o700);
    for name in ["admin.token", "token.key", "overmind.db", "overmind.sock", "checkpoint.key"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    // Found by its file, by its URL, and by its socket.
    home.run(&["status"]).ok().shows("ready");
    home.run(&["--server", &url, "status"]).ok().shows(&url);
    let socket = format!("unix:{}", home.data().join("overmind.sock").display());
    home.run(&["--server", &socket, "status"]).ok().shows(&socket);
}

#[test]
fn the_token_of_the_directory_is_sent_only_to_its_own_server() {
    let mut home = Home::new();
    home.start(&["--listen", "none"], &[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = format!("http://{}", listener.local_addr().unwrap());
    home.run(&["--server", &other, "ps"]).fails(6).says("there is no token for");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody connected");
}

#[test]
fn a_second_server_on_the_same_directory_is_refused_and_names_the_first() {
    let mut home = Home::up();
    let pid = home.server().id();
    let done = home.run(&["up", "--listen", "none"]).fails(5);
    done.says(&format!("a server already runs on {} (pid {pid})", home.data().display()));
    home.run(&["up", "-d"]).ok().says(&format!("already runs (pid {pid})"));
    home.run(&["status"]).ok();
}

#[test]
fn up_in_the_background_returns_when_the_server_is_ready() {
    let home = Home::new();
    let done = home.run(&["up", "-d", "--listen", "none", "-o", "json"]).ok();
    let pid = done.json()["pid"].as_u64().unwrap();
    home.run(&["status", "-o", "name"]).ok().shows("ready");
    let text = std::fs::read_to_string(home.data().join("overmind.log")).unwrap();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["timestamp"].is_string(), "the log is JSON, line by line");
    }
    home.run(&["up", "-d"]).ok().says("already runs");
    home.run(&["down"]).ok().shows("stopped");
    // It has ended; its current parent may not have collected it yet.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    home.run(&["down"]).ok().says("no server runs on");
    home.run(&["status"]).fails(4);
}

#[test]
fn a_start_right_after_a_kill_does_not_reuse_the_dead_servers_answer() {
    let home = Home::new();
    let start = || {
        let done = home.run(&["up", "-d", "--listen", "none", "-o", "json"]).ok();
        assert!(!done.err.contains("already runs"), "{done:?}");
        u32::try_from(done.json()["pid"].as_u64().unwrap()).unwrap()
    };
    let mut last = start();
    for _ in 0..5 {
        // Not waited for: its lock and its socket exist for a moment more.
        signal(last, Signal::KILL);
        let next = start();
        assert_ne!(last, next);
        home.run(&["status", "-o", "name"]).ok().shows("ready");
        last = next;
    }
    home.run(&["down"]).ok();
}

#[test]
fn stopping_the_server_reports_commands_that_continue() {
    let home = Home::new();
    home.run(&["up", "-d", "--listen", "none"]).ok();
    for name in ["first", "second"] {
        home.run(&["run", "--name", name, "sleep", "1000"]).ok();
    }
    home.run(&["run", "--name", "over", "--wait", "true"]).ok();
    let done = home.run(&["down"]).ok();
    done.says("2 runs go on without it: second, first; ").says("to end them");
    assert!(!done.err.contains("over,"), "{done:?}");
    home.run(&["up", "-d", "--listen", "none"]).ok();
    home.run(&["kill", "first", "second"]).ok();
    for name in ["first", "second"] {
        assert_eq!(home.run(&["wait", name]).code, 137);
    }
    let done = home.run(&["down"]).ok();
    assert!(!done.err.contains("on without it"), "{done:?}");
}

#[test]
fn a_failed_start_in_the_background_gives_the_reason() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = Home::new();
    let done = home.run(&["up", "-d", "--listen", &address]).fails(1);
    done.says("listening on").says("hint: if something else listens");
}

#[test]
fn the_first_signal_drains_and_leaves_nothing_behind() {
    let mut home = Home::up();
    let pid = home.server().id();
    signal(pid, Signal::TERM);
    assert_eq!(home.ended().code(), Some(0));
    assert!(!home.data().join("server.json").exists());
    assert!(!home.data().join("overmind.sock").exists());
    home.start(&["--listen", "none"], &[]);
    home.run(&["audit", "verify"]).ok().shows("intact");
}

#[test]
fn a_run_interrupted_by_a_stop_continues_at_the_next_start() {
    let mut home = Home::up();
    home.agent("sleeper", &["--on-unknown", "retry"]);
    let command = "shell: test -e go && echo done || sleep 60";
    let id = home.run(&["run", "sleeper", command, "-o", "name"]).ok().line().to_owned();
    home.wait_for(&id, "running");
    let pid = home.server().id();
    // The second signal does not wait for the command.
    signal(pid, Signal::TERM);
    until("it drains", || home.log().contains("draining").then_some(()));
    signal(pid, Signal::TERM);
    assert_eq!(home.ended().code(), Some(0));
    std::fs::write(home.work().join("go"), "").unwrap();
    home.start(&["--listen", "none"], &[]);
    let run = home.wait_for(&id, "succeeded");
    assert_eq!(run["epoch"], 2);
}

#[test]
fn three_signals_abort() {
    let mut home = Home::up();
    home.agent("sleeper", &[]);
    let id = home.run(&["run", "sleeper", "shell: sleep 60", "-o", "name"]).ok();
    home.wait_for(id.line(), "running");
    let pid = home.server().id();
    // The second signal may have ended it before the third: the process has ended in both cases.
    for _ in 0..3 {
        if home.server().try_wait().unwrap().is_none() {
            signal(pid, Signal::INT);
        }
    }
    home.ended();
}

#[test]
fn down_interrupts_work_after_its_timeout() {
    let mut home = Home::up();
    home.agent("sleeper", &[]);
    let id = home.run(&["run", "sleeper", "shell: sleep 60", "-o", "name"]).ok();
    home.wait_for(id.line(), "running");
    let done = home.run(&["down", "--timeout", "1"]).ok();
    assert!(
        done.out.contains("stopped") || done.out.contains("continues at the next start"),
        "{done:?}"
    );
    home.ended();
}

#[test]
fn the_banner_of_a_foreground_server_lists_its_settings() {
    let home = Home::new();
    let mut child = home
        .command(&["up", "--listen", "127.0.0.1:0", "--color", "never"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it is ready", || home.run(&["status"]).code.eq(&0).then_some(()));
    signal(child.id(), Signal::INT);
    until("it ends", || child.try_wait().unwrap());
    let output = child.wait_with_output().unwrap();
    let banner = String::from_utf8(output.stdout).unwrap();
    for text in ["is ready", "http://127.0.0.1:", "overmind.sock", "namespace", "deterministic"] {
        assert!(banner.contains(text), "no `{text}` in {banner}");
    }
}

#[test]
fn an_invalid_failpoint_is_refused() {
    let home = Home::new();
    let env = [("OVERMIND_FAILPOINTS", "store.before_commit:never")];
    let done = home.run_env(&env, &["up", "--listen", "none"]).fails(2);
    done.says("`store.before_commit:never` is not a point and a number");
}

#[test]
fn the_request_rate_is_a_setting() {
    let answers = |settings: &str| {
        let mut home = Home::new();
        let config = home.path().join("overmind.toml");
        std::fs::write(&config, format!("[server]\n{settings}\n")).unwrap();
        let config = config.to_str().unwrap();
        let ready = home.start(&["--listen", "127.0.0.1:0", "--config", config], &[]);
        let address = ready["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        // Many at once: a slow machine cannot let them trickle in at the allowed rate.
        let one = format!("GET /api/agents HTTP/1.1\r\nHost: {address}\r\n");
        let last = format!("{one}Connection: close\r\n\r\n");
        let all = format!("{one}\r\n").repeat(99) + &last;
        std::io::Write::write_all(&mut stream, all.as_bytes()).unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        (text.matches("HTTP/1.1 401").count(), text.matches("HTTP/1.1 429").count())
    };
    let (passed, held) = answers("requests_per_second = 1\nrequest_burst = 3");
    assert!(passed >= 3 && held > 0 && passed + held == 100, "{passed} passed, {held} were held");
    assert_eq!(answers("requests_per_second = 0"), (100, 0));
}
