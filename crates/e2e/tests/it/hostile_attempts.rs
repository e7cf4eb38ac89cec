//! The hostile commands of the policy's corpus, run for real in an environment with a sandbox: what
//! the policy allows there for the sandbox's sake has no effect outside.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::home::Home;

const CORPUS: &str = include_str!("../../../policy/corpus/fresh.txt");
const SECRET: &str = "CANARY-OUTSIDE-7f3a91";

/// The commands, and last those that would end the script that runs them.
fn commands() -> (Vec<String>, Vec<String>) {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let all = lines.map(|line| line.split_once('\t').unwrap().1.replace('⏎', "\n"));
    all.partition(|command| {
        let ends = ["kill -9 -1", "killall5", "pkill -u", "pkill -f", "skill"];
        !ends.iter().any(|start| command.starts_with(start))
    })
}

/// Every file below a directory, with its content.
fn files(dir: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn every_command_that_an_environment_allows_has_no_effect_outside() {
    let home = Home::up();
    let person = home.path().join("person");
    for dir in [".ssh", ".config/autostart", ".config/systemd/user", "bin"] {
        std::fs::create_dir_all(person.join(dir)).unwrap();
    }
    for name in [".bashrc", ".profile", ".ssh/id_rsa", ".netrc", ".git-credentials", "bin/ls"] {
        std::fs::write(person.join(name), SECRET).unwrap();
    }
    let socket = UnixListener::bind(person.join("sock")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut bystander = std::process::Command::new("sleep").arg("600").spawn().unwrap();

    let (most, last) = commands();
    assert!(most.len() + last.len() >= 500, "{} commands", most.len());
    let every = overmind_testkit::soak::count(8, 1);
    let most: Vec<String> = most.into_iter().step_by(every).collect();
    let mut script = String::from("exec 2>&1 </dev/null\n(setsid bash -c 'echo ran-$((40+2))')\n");
    for (n, command) in most.iter().chain(&last).enumerate() {
        if n == most.len() {
            script.push_str("echo ==end\n");
        }
        // If the corpus names a home, this is the one that could be harmed.
        let quoted = command.replace('\'', r"'\''");
        let person = person.display();
        let port = listener.local_addr().unwrap().port();
        writeln!(script, "echo =={n}").unwrap();
        writeln!(script, "(export HOME={person} PORT={port}; cd /tmp && mkdir -p t{n} && cd t{n} && exec setsid timeout -s KILL 1 bash -c '{quoted}' | head -c 2000)").unwrap();
        if n.is_multiple_of(8) {
            script.push_str("wait\n");
        }
    }
    std::fs::write(home.work().join("try.sh"), script).unwrap();
    let machine = || {
        let read = |path: &str| std::fs::read(path).unwrap_or_default();
        ["/etc/hosts", "/etc/passwd", "/etc/crontab", "/etc/sudoers", "/etc/profile"].map(read)
    };
    let before = (files(&person), machine());

    let run = ["run", "--sandbox", "namespace", "--name", "hostile", "--wait", "bash", "try.sh"];
    home.command(&run).output().unwrap();
    let log = home.command(&["logs", "hostile"]).output().unwrap().stdout;
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains("==end"), "cut off: {}", &log[log.len().saturating_sub(500)..]);
    assert!(log.contains("ran-42"), "a command that may be run did not run: {log}");
    assert!(!log.contains(SECRET), "a file of a person was shown");
    let token = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
    assert!(!log.contains(token.trim()), "the admin's token was shown");
    assert_eq!(files(&person), before.0);
    assert_eq!(machine(), before.1);
    assert!(listener.accept().is_err() && socket.accept().is_err(), "something was reached");
    assert!(bystander.try_wait().unwrap().is_none(), "a process of the host was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    home.run(&["status"]).ok().shows("ready");
}
