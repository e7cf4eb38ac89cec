//! What nobody may take from others: places on the server, a person's terminal.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};

use serde_json::json;

use crate::home::{Home, until};
use crate::tty::Person;
use crate::worktrees::House;

/// More than the places of a listener.
const MANY: usize = 4_500;

#[test]
fn thousands_of_idle_connections_leave_the_unix_socket_to_its_owner() {
    let resource = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(resource);
    let wanted = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(resource, wanted).unwrap();
    let files = limit.maximum.unwrap_or(u64::MAX);
    assert!(files > 2 * MANY as u64, "this test opens {MANY} connections, and may open {files}");

    let mut home = Home::new();
    let started = home.start(&["--listen", "127.0.0.1:0"], &[]);
    let address = started["url"].as_str().unwrap().strip_prefix("http://").unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let idle: Vec<TcpStream> = (0..MANY).map(|_| TcpStream::connect(address).unwrap()).collect();
    // The last one was accepted, so all were.
    let mut last = idle.last().unwrap();
    let mut refused = String::new();
    let _ = last.read_to_string(&mut refused);
    assert!(refused.contains("too many connections of this client are open"), "{refused}");
    home.run(&["status"]).ok();
    drop(idle);
}

/// Sequences by which text steers a terminal or hides what it says, with a name for each.
const HOSTILE: &[(&str, &str)] = &[
    ("clipboard", "\u{1b}]52;c;aGk=\u{7}"),
    ("title", "\u{1b}]0;title\u{1b}\\"),
    ("report", "\u{1b}[6n"),
    ("device", "\u{1b}[c"),
    ("clear", "\u{1b}[2J"),
    ("up", "\u{1b}[A"),
    ("conceal", "\u{1b}[8m"),
    ("sixel", "\u{1b}Pq#0\u{1b}\\"),
    ("reset", "\u{1b}c"),
    ("c1 csi", "\u{9b}6n"),
    ("c1 osc", "\u{9d}0;title\u{9c}"),
    ("direction", "\u{202e}"),
    ("isolate", "\u{2066}"),
    ("bell", "\u{7}"),
];

/// What no output may have: the first characters of those sequences.
const FORBIDDEN: &[&str] = &[
    "\u{1b}]",
    "\u{1b}[6n",
    "\u{1b}[c",
    "\u{1b}[2J",
    "\u{1b}[A",
    "\u{1b}[8m",
    "\u{1b}P",
    "\u{1b}c",
    "\u{9b}",
    "\u{9d}",
    "\u{202e}",
    "\u{2066}",
    "\u{7}",
];

/// All of them, each on a line of its own with a word that is to be seen.
fn hostile() -> String {
    HOSTILE.iter().map(|(name, text)| format!("seen {name} {text}!\n")).collect()
}

#[track_caller]
fn harmless(how: &str, args: &[&str], said: &str) {
    assert!(said.contains("seen"), "{how} {args:?} shows nothing of it: {said:?}");
    for sequence in FORBIDDEN {
        assert!(!said.contains(sequence), "{how} {args:?} passes {sequence:?}: {said:?}");
    }
}

/// All that a command writes to a person's terminal.
fn on_a_terminal(house: &House, args: &[&str]) -> String {
    let own = house.home.0.command(args);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "\"$@\"; printf the-end-of-it", "sh"]).arg(own.get_program()).args(args);
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(&house.project);
    let person = Person::with(command, 200, 60);
    until(&format!("{args:?} ends"), || {
        Some(person.written()).filter(|written| written.contains("the-end-of-it"))
    })
}

#[test]
fn what_agents_wrote_steers_no_terminal_and_no_pipe() {
    let house = House::new(None);
    let home = &house.home.0;
    std::fs::write(home.path().join("hostile.txt"), hostile()).unwrap();
    let file = home.path().join("hostile.txt").display().to_string();
    let writes = format!("cat {file}; cat {file} >> story.txt; cat {file} >&2");
    house.run(&["run", "--name", "mean", "--sandbox", "none", "--", "sh", "-c", &writes]).ok();
    house.run(&["wait", "mean"]).ok();
    let echoes = format!("while read line; do cat {file}; done");
    house.run(&["run", "--name", "echo", "--sandbox", "none", "--", "sh", "-c", &echoes]).ok();
    let words = hostile();
    let turns = json!([
        {"text": words, "calls": [{"name": "ask_user", "args": {"message": words}}]},
    ]);
    home.scripted("asker", &turns, &[]);
    house.run(&["memory", "add", &words]).ok();
    let asks = house.run(&["run", "asker", &words, "-o", "name"]).ok().line().to_owned();
    home.wait_for(&asks, "awaiting_input");
    house.run(&["artifact", "save", "mean", "words.txt", "--file", &file]).ok();
    house.run(&["mesh", "put", "notes/words", &json!(words).to_string()]).ok();

    let (mean, asks) = ("mean", asks.as_str());
    let again = ["run", "--follow", "--sandbox", "none", "--", "cat", &file];
    let rows: &[&[&str]] = &[
        &["logs", mean],
        &["logs", mean, "--raw"],
        &["logs", "-f", mean],
        &["logs", "--all"],
        &["logs", mean, "-o", "json"],
        &["logs", "--color", "always", mean],
        &again,
        &["send", "echo", "--wait", "more"],
        &["work", mean],
        &["work", mean, "-o", "json"],
        &["top", mean, "--once"],
        &["logs", asks],
        &["logs", asks, "-o", "yaml"],
        &["replay", asks],
        &["events", asks, "-o", "wide"],
        &["events", asks, "-o", "json"],
        &["events", asks, "-o", "yaml"],
        &["info", asks],
        &["info", asks, "-o", "json"],
        &["ps", "--all", "-o", "wide"],
        &["inbox"],
        &["inbox", "show", asks],
        &["inbox", "-o", "json"],
        &["mesh", "get", "notes/words"],
        &["memory", "search", "seen"],
    ];
    for args in rows {
        let piped = house.run(args);
        harmless("piped", args, &(piped.out + &piped.err));
        harmless("on a terminal", args, &on_a_terminal(&house, args));
    }
    // A file that is fetched is that file.
    let fetched = house.run(&["artifact", "get", mean, "words.txt"]).ok();
    assert_eq!(fetched.out, hostile());
    let get = ["artifact", "get", mean, "words.txt"];
    harmless("on a terminal", &get, &on_a_terminal(&house, &get));
    house.run(&["kill", "echo", asks]).ok();
}
