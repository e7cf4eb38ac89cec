//! Resources that no caller can take from others: slots on the server, a person's terminal, the
//! names that people read, the disk.

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
fn thousands_of_idle_connections_do_not_block_the_unix_socket() {
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

/// Sequences by which text controls a terminal or hides its content, with a name for each.
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

/// The control sequences that no output may contain: their first characters.
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

/// All of them, each on a separate line with a visible word.
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
fn text_of_agents_cannot_control_a_terminal_or_a_pipe() {
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

/// A separate disk for the data directory.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: std::path::PathBuf) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=48m,mode=0700", "overmind-bounds"];
        let mount = std::process::Command::new("mount").args(options).arg(&at).output().unwrap();
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// Status and body of an answer.
fn get(address: &str, path: &str) -> (u16, String) {
    use std::io::Write as _;
    let mut stream = TcpStream::connect(address).unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_command_that_fills_the_disk_is_ended_and_later_logged() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting a small disk needs root");
        return;
    }
    let mut home = Home::new();
    let _disk = Disk::mount(home.data());
    let started = home.start(&["--listen", "127.0.0.1:0"], &[]);
    let address = started["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    assert_eq!(get(&address, "/readyz").0, 200);
    for (order, status) in [("kill", "canceled"), ("stop", "canceled")] {
        let (name, file) = (format!("runaway-{order}"), home.data().join(order));
        let line = format!(
            "while :; do head -c 65536 /dev/zero >> {} 2> /dev/null || sleep 0.02; done",
            file.display()
        );
        let run = ["run", "--detach", "-o", "name", "--name", &name, "--sandbox", "none"];
        let id = home.run(&[&run[..], &["--", "sh", "-c", &line]].concat()).ok();
        let id = id.line().trim().to_owned();
        let run = until("it runs", || {
            Some(home.fetch(&id)).filter(|run| !run["process"]["pid"].is_null())
        });
        let (code, said) = until("the disk is full", || {
            Some(get(&address, "/readyz")).filter(|(code, _)| *code != 200)
        });
        assert!(code == 503 && said.contains("is full"), "{said}");
        // The disk is full, also for pages that the store already has.
        until("nothing is written any more", || {
            let full = |_: u32| std::fs::write(home.data().join("probe"), [0; 4096]).is_err();
            let probed = (0..8).all(full);
            let _ = std::fs::remove_file(home.data().join("probe"));
            probed.then_some(())
        });
        let done = home.run(&[order, &name]);
        assert!(done.code == 0 || done.err.contains("were told to end"), "{}", done.err);
        let process = std::path::PathBuf::from(format!("/proc/{}", run["process"]["pid"]));
        until("it has ended on the full disk", || (!process.exists()).then_some(()));
        assert!(file.exists());
        std::fs::remove_file(&file).unwrap();
        home.wait_for(&id, status);
        until("there is room", || (get(&address, "/readyz").0 == 200).then_some(()));
        let events = home.run(&["events", &id, "-o", "json", "--limit", "1000"]).ok().out;
        assert!(events.contains("by admin") || events.contains("\"by\": \"admin\""), "{events}");
    }
}

#[test]
fn deceptive_names_and_keys_as_names_are_refused_with_the_reason() {
    let home = Home::up();
    for (name, said) in [
        ("c\u{43e}der", "U+043E at position 2"),
        ("coder\u{fe0f}", "U+FE0F at position 6"),
        ("my\u{a0}coder", "U+00A0 at position 3"),
    ] {
        let args = ["agent", "create", "--name", name, "--model", "deterministic"];
        home.run(&args).fails(2).says(said);
        home.run(&["run", "--name", name, "--", "true"]).fails(2).says("at position");
    }
    let value = home.path().join("value");
    let key = "AKIAIOSFODNN7EXAMPLE";
    std::fs::write(&value, "a-value-of-some-length-71").unwrap();
    for (name, said) in [(key, "looks like a key"), ("gith\u{443}b", "U+0443 at position 5")] {
        let mut command = home.command(&["vault", "set", name, "--from-stdin"]);
        command.stdin(std::fs::File::open(&value).unwrap());
        let refused = crate::home::done(command.output().unwrap());
        assert!(refused.code == 2 && refused.err.contains(said), "{name}: {}", refused.err);
    }
    let listed = home.run(&["vault", "list", "-o", "json"]).ok();
    assert!(!listed.out.to_lowercase().contains(&key.to_lowercase()), "{}", listed.out);
}

#[test]
fn the_server_connects_only_to_addresses_that_an_admin_granted_to_a_project() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    for (engine, scheme) in [("redis", "redis"), ("postgres", "postgres")] {
        let config = format!(
            "version: 1\nservices:\n  db:\n    strategy: database\n    engine: {engine}\n    server: \
             {scheme}://{at}\n"
        );
        let house = House::new(Some(&config));
        let name = format!("dials-{engine}");
        house
            .run(&["run", "--detach", "--name", &name, "--sandbox", "namespace", "--", "true"])
            .ok();
        let run = house.ended(&name);
        let error = run["error"].to_string();
        assert!(error.contains(&format!("{at}, which is not granted")), "{run}");
        assert!(error.contains("rooms.servers"), "{run}");
        assert!(listener.accept().is_err(), "the server came to {at}");
    }
}
