//! Terminals of runs, used by people at terminals.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::until;
use crate::tty::Person;

const BASH: &str = "PS1='$ ' exec bash --norc --noprofile";
const DETACH: &str = "\x10\x11";

fn events(home: &Commands, run: &str, kind: &str) -> Vec<Value> {
    let all = home.run(&["events", run, "-o", "json", "--limit", "1000"]).ok().json();
    let mut found: Vec<Value> = all.as_array().unwrap().clone();
    found.retain(|event| event["type"] == kind);
    found.into_iter().map(|event| event["payload_json"].clone()).collect()
}

#[test]
fn an_attached_shell_behaves_like_a_local_one_and_returns_its_exit_code() {
    let home = Commands::up();
    home.run(&["run", "--name", "sh", BASH]).ok();
    home.alive("sh");
    let mut person = Person::at(&home.0, 100, 30, &["attach", "sh"]);
    person.sees("$ ");
    person.types("echo one-$((1+1))\r");
    person.sees("one-2");
    person.types("stty size\r");
    person.sees("30 100");
    person.resizes(120, 40);
    person.types("stty size\r");
    person.sees("40 120");
    // A key for the program: it is interrupted, the person's own program is not.
    person.types("sleep 600\r");
    until("it sleeps", || (home.processes().len() >= 2).then_some(()));
    person.types("\x03");
    person.types("echo still $((40+2))\r");
    person.sees("still 42");
    person.types("exit 7\r");
    assert_eq!(person.leaves(), 7);
    person.sees("sh has ended: exit code 7");
    assert_eq!(home.run(&["wait", "sh"]).code, 7);
    // Viewers are recorded; typed text is only in the output of the shell itself.
    home.run(&["logs", "sh"]).ok().shows("[human] admin attached");
    let began =
        json!({"by": "admin", "mode": "write", "life": 1, "run_id": home.named("sh")["id"]});
    assert_eq!(events(&home, "sh", "attach.began"), [began]);
    let ended = until("its end is recorded", || events(&home, "sh", "attach.ended").pop());
    assert_eq!((&ended["by"], &ended["mode"]), (&json!("admin"), &json!("write")));
    home.check();
}

#[test]
fn several_viewers_attach_at_once_and_a_read_only_viewer_types_nothing() {
    let home = Commands::up();
    home.run(&["run", "--name", "sh", BASH]).ok();
    home.alive("sh");
    let mut one = Person::at(&home.0, 80, 24, &["attach", "sh"]);
    one.sees("$ ");
    one.types("echo first-$((1+1))\r");
    one.sees("first-2");
    // A late viewer sees the current screen.
    let mut two = Person::at(&home.0, 80, 24, &["attach", "sh"]);
    two.sees("first-2");
    let mut looks = Person::at(&home.0, 40, 10, &["attach", "--read-only", "sh"]);
    looks.sees("first-2");
    looks.types("echo never-$((1+1))\r");
    two.types("echo second-$((1+1))\r");
    for person in [&one, &two, &looks] {
        let screen = person.sees("second-2");
        assert!(!screen.contains("never"), "{screen}");
    }
    // The size follows the viewer who typed last, never a read-only viewer.
    one.resizes(90, 20);
    one.types("stty size\r");
    one.sees("20 90");
    two.types("stty size\r");
    two.sees("24 80");
    looks.types("q");
    assert_eq!(looks.leaves(), 0);
    one.types(DETACH);
    assert_eq!(one.leaves(), 0);
    one.sees("detached; attach again: overmind attach");
    two.types("echo third-$((1+1))\r");
    two.sees("third-2");
    two.types(DETACH);
    assert_eq!(two.leaves(), 0);
    assert_eq!(home.named("sh")["status"], "running");
    until("all have left", || (events(&home, "sh", "attach.ended").len() == 3).then_some(()));
    let log = home.run(&["logs", "sh"]).ok().out;
    assert_eq!(log.matches("[human] admin attached").count(), 2, "{log}");
    assert!(!log.contains("never"), "{log}");
    home.run(&["kill", "sh"]).ok();
    home.check();
}

#[test]
fn attach_reconnects_after_the_server_was_killed() {
    let mut home = Commands::up();
    home.run(&["run", "--name", "sh", BASH]).ok();
    let pid = home.alive("sh");
    let mut person = Person::at(&home.0, 80, 24, &["attach", "sh"]);
    person.sees("$ ");
    person.types("here=before; echo said-$here\r");
    person.sees("said-before");
    home.0.kill();
    person.sees("the connection was lost; trying again");
    home.0.start(&["--listen", "none"], &[]);
    until("it is attached again", || {
        (events(&home, "sh", "attach.began").len() == 2).then_some(())
    });
    person.types("echo again-$here\r");
    let screen = person.sees("again-before");
    assert!(!screen.contains("connection was lost"), "the screen was not painted anew: {screen}");
    assert_eq!(home.named("sh")["process"]["pid"], pid);
    // A server that does not come back ends attach, with a note on how to reconnect.
    home.0.kill();
    person.sees("the connection was lost; trying again");
    assert_eq!(person.leaves(), 4);
    person.sees("attach again: overmind attach");
    home.0.start(&["--listen", "none"], &[]);
    let mut person = Person::at(&home.0, 80, 24, &["attach", "sh"]);
    person.sees("again-before");
    // A server that stops normally says so, and the next one has the terminal.
    home.run(&["down"]).ok();
    home.0.ended();
    person.sees("the connection was lost; trying again");
    home.0.start(&["--listen", "none"], &[]);
    until("it is attached again", || {
        (events(&home, "sh", "attach.began").len() == 4).then_some(())
    });
    person.types("exit 3\r");
    assert_eq!(person.leaves(), 3);
    home.check();
}

#[test]
fn a_full_screen_program_is_drawn_correctly_for_a_late_viewer() {
    let home = Commands::up();
    let lines: String = (1..200).map(|n| format!("line number {n}\n")).collect();
    std::fs::write(home.0.work().join("text"), lines).unwrap();
    home.run(&["run", "--name", "full", "echo beneath; exec less text"]).ok();
    home.alive("full");
    home.says("full", "line number 10");
    let mut first = Person::at(&home.0, 80, 24, &["attach", "full"]);
    let screen = first.sees("line number 20");
    assert!(first.on_alternate() && !screen.contains("beneath"), "{screen}");
    first.types("G");
    first.sees("line number 199");
    let mut late = Person::at(&home.0, 80, 24, &["attach", "--read-only", "full"]);
    let screen = late.sees("line number 199");
    assert!(late.on_alternate() && !screen.contains("line number 20\n"), "{screen}");
    assert_eq!(screen.lines().next(), first.screen().lines().next());
    // Detaching restores the own screen while the program keeps its own.
    late.types("\x03");
    assert_eq!(late.leaves(), 0);
    first.types(DETACH);
    assert_eq!(first.leaves(), 0);
    let mut again = Person::at(&home.0, 80, 30, &["attach", "full"]);
    again.sees("line number 199");
    assert!(again.on_alternate());
    again.types("q");
    assert_eq!(again.leaves(), 0);
    again.sees("beneath");
    home.check();
}

#[test]
fn the_terminal_is_restored_after_every_kind_of_end() {
    let home = Commands::up();
    home.run(&["run", "--name", "full", "printf '\\033[?1049h\\033[?25l\\033[?2004hdrawn'; cat"])
        .ok();
    home.alive("full");
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut person = Person::at(&home.0, 80, 24, &["attach", "full"]);
        person.sees("drawn");
        person.signal(signal);
        assert_eq!(person.leaves(), code);
        assert!(person.written().contains("\x1b[?2004l"), "{}", person.written());
    }
    // Other keys detach, and the usual ones have no effect then.
    let args = ["attach", "full", "--detach-key", "ctrl-]"];
    let mut person = Person::at(&home.0, 80, 24, &args);
    person.sees("drawn");
    person.types("typed\x10\x11\r");
    person.sees("typed^P");
    person.types("\x1d");
    assert_eq!(person.leaves(), 0);
    // The server is killed while a viewer is attached.
    let mut person = Person::at(&home.0, 80, 24, &["attach", "full"]);
    person.sees("drawn");
    home.run(&["kill", "full"]).ok();
    assert_eq!(person.leaves(), 137);
    home.check();
}

#[test]
fn attach_continues_across_restarts_of_the_program() {
    let home = Commands::up();
    let args = ["run", "--name", "crash", "--restart", "on-failure", "--backoff", "10ms"];
    let script =
        "echo \"life $OVERMIND_LIFE\" | sed 's/.*[.]/in life /'; read line; exit \"$line\"";
    home.run(&[&args[..], &[script]].concat()).ok();
    home.alive("crash");
    let mut person = Person::at(&home.0, 80, 24, &["attach", "crash"]);
    person.sees("in life 1");
    person.types("5\r");
    person.sees("in life 2");
    person.types("0\r");
    assert_eq!(person.leaves(), 0);
    home.check();
}

#[test]
fn attach_without_a_terminal_is_refused_with_the_reason() {
    let home = Commands::up();
    home.run(&["run", "--name", "sh", BASH]).ok();
    home.alive("sh");
    home.run(&["attach", "sh"]).fails(2).says("`attach` needs a terminal");
    home.run(&["attach", "nobody"]).fails(3);
    home.run(&["attach", "nobody", "--read-only"]).fails(3);
    home.run(&["attach", "sh", "--read-only", "--detach-key", "F1"]).fails(2).says("is not a key");
    home.run(&["run", "--name", "piped", "--pipes", "sleep 600"]).ok();
    home.alive("piped");
    home.run(&["attach", "piped", "--read-only"]).fails(5).says("piped has no terminal");
    home.run(&["run", "--name", "gone", "true"]).ok();
    home.run(&["wait", "gone"]).ok();
    let refused = home.run(&["attach", "gone", "--read-only"]).fails(5);
    refused.says("gone has ended").says("overmind logs gone");
    // Read-only viewing needs no terminal: output is written to a file or a pipe.
    let mut watch = home.0.command(&["attach", "sh", "--read-only"]);
    let mut watch = watch.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut pipe = watch.stdout.take().unwrap();
    let mut out = vec![0];
    pipe.read_exact(&mut out).expect("the screen as it is when the looking begins");
    home.run(&["send", "sh", "echo piped-$((1+1)); exit 0"]).ok();
    pipe.read_to_end(&mut out).unwrap();
    let out = String::from_utf8_lossy(&out);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert!(out.contains("piped-2"), "{out}");
    home.run(&["kill", "piped"]).ok();
    home.check();
}

#[test]
fn a_waiting_question_is_answered_by_typing() {
    let home = Commands::up();
    let asks = "printf 'Overwrite config? [y/N] '; read answer; echo \"said <$answer>\"; read line";
    home.run(&["run", "--name", "asks", asks]).ok();
    home.status("asks", "awaiting_input");
    home.run(&["inbox"]).ok().shows("Overwrite config?");
    let mut person = Person::at(&home.0, 80, 24, &["attach", "asks"]);
    person.sees("Overwrite config? [y/N]");
    person.types("y\r");
    person.sees("said <y>");
    home.status("asks", "running");
    assert_eq!(home.run(&["inbox", "-o", "json"]).ok().json(), json!([]));
    person.types("\r");
    assert_eq!(person.leaves(), 0);
    home.check();
}

#[test]
fn attach_works_over_tcp_with_tls() {
    let mut home = Commands(crate::home::Home::new());
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (chain, key) = (home.0.path().join("cert.pem"), home.0.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (chain, key) = (chain.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned());
    let args = ["--listen", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key];
    let server = home.0.start(&args, &[]);
    let port = server["url"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    home.run(&["run", "--name", "sh", BASH]).ok();
    home.alive("sh");
    let token = std::fs::read_to_string(home.0.data().join("admin.token")).unwrap();
    let url = format!("https://localhost:{port}");
    let mut program = home.0.command(&["attach", "sh", "--server", &url]);
    program.env("OVERMIND_TOKEN", token.trim()).env("OVERMIND_CA_FILE", &chain);
    let mut person = Person::with(program, 80, 24);
    person.sees("$ ");
    person.types("echo over-$((1+1))\r");
    person.sees("over-2");
    // More at once than fits into a message, and through it all.
    person.types("stty -echo; wc -c\r");
    until("it counts", || (home.processes().len() >= 2).then_some(()));
    for _ in 0..50 {
        person.types(&format!("{}\r", "x".repeat(1999)));
    }
    person.types("\x04");
    person.sees("100000");
    person.types("exit 5\r");
    assert_eq!(person.leaves(), 5);
    home.check();
}

/// One handshake over a socket: the status, and the rest of the head.
pub(crate) fn handshake(
    address: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String, TcpStream) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut text = format!("GET {path} HTTP/1.1\r\n");
    let usual = [
        ("Host", address),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let given = |name: &str| headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    for (name, value) in usual.iter().filter(|(name, _)| !given(name)).chain(headers) {
        if !value.is_empty() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), stream)
}

/// One frame of the server: its type and its content.
pub(crate) fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let length = match head[1] {
        126 => {
            let mut long = [0; 2];
            stream.read_exact(&mut long).unwrap();
            usize::from(u16::from_be_bytes(long))
        }
        short => usize::from(short),
    };
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    (head[0] & 0x0f, bytes)
}

/// Sends one short frame, masked as a client must.
pub(crate) fn send(stream: &mut TcpStream, kind: u8, bytes: &[u8]) {
    let mut frame = vec![0x80 | kind, 0x80 | u8::try_from(bytes.len()).unwrap(), 1, 2, 3, 4];
    frame.extend(bytes.iter().enumerate().map(|(at, byte)| byte ^ [1, 2, 3, 4][at % 4]));
    stream.write_all(&frame).unwrap();
}

#[test]
fn a_browser_attaches_with_a_token_and_foreign_pages_cannot() {
    let mut home = Commands(crate::home::Home::new());
    let server = home.0.start(&["--listen", "127.0.0.1:0"], &[]);
    let address = server["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
    crate::projects::declare(&home.0, &home.0.work());
    let echo = "stty -echo; echo ready; cat";
    home.run(&["run", "--name", "echo", "--sandbox", "namespace", echo]).ok();
    home.says("echo", "ready");
    let id = home.named("echo")["id"].as_str().unwrap().to_owned();
    let key = |role: &str| {
        let made = home.run(&["key", "create", role, "--role", role, "-o", "name"]);
        made.ok().line().to_owned()
    };
    let (viewer, operator) = (key("viewer"), key("operator"));
    let path = format!("/api/runs/{id}/attach");
    let read = format!("{path}?mode=read");
    let bearer = |token: &str| format!("Bearer {token}");
    let status = |path: &str, headers: &[(&str, &str)]| handshake(&address, path, headers).0;
    // Roles: an operator types, a viewer watches, others are refused.
    let (one, two) = (bearer(&viewer), bearer(&operator));
    assert_eq!(status(&path, &[]), 401);
    assert_eq!(status(&path, &[("Authorization", "Bearer wrong")]), 401);
    assert_eq!(status(&path, &[("Authorization", &one)]), 403);
    assert_eq!(status(&read, &[("Authorization", &one)]), 101);
    assert_eq!(status(&path, &[("Authorization", &two)]), 101);
    let own = format!("http://{address}");
    let foreign = [("Authorization", two.as_str()), ("Origin", "http://evil.example")];
    assert_eq!(status(&path, &foreign), 403);
    assert_eq!(status(&path, &[("Authorization", &two), ("Origin", &own)]), 101);
    assert_eq!(status(&path, &[("Authorization", &two), ("Host", "evil.example")]), 421);
    // Invalid handshakes.
    assert_eq!(status(&path, &[("Authorization", &two), ("Upgrade", "")]), 400);
    assert_eq!(status(&path, &[("Authorization", &two), ("Sec-WebSocket-Version", "7")]), 400);
    for wrong in ["mode=steal", "columns=80", "columns=80&rows=0", "columns=80&rows=1001", "x=1"] {
        let path = format!("{path}?{wrong}");
        assert_eq!(status(&path, &[("Authorization", &two)]), 422, "{wrong}");
    }
    let nobody = "/api/runs/ses_00000000000000000000000000000000/attach";
    assert_eq!(status(nobody, &[("Authorization", &two)]), 404);

    // Like a page: the token among the protocols.
    let protocols = format!("overmind.attach.v1, overmind.token.{operator}");
    let headers = [("Sec-WebSocket-Protocol", protocols.as_str()), ("Origin", own.as_str())];
    let sized = format!("{path}?columns=100&rows=30");
    let (status, head, mut page) = handshake(&address, &sized, &headers);
    assert_eq!(status, 101);
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    assert!(head.contains("sec-websocket-protocol: overmind.attach.v1\r\n"), "{head}");
    assert!(!head.contains(&operator));
    let next = |page: &mut TcpStream, wanted: u8| loop {
        let (kind, bytes) = frame(page);
        if kind == wanted {
            return String::from_utf8(bytes).unwrap();
        }
        assert_eq!(kind, 9, "{}", String::from_utf8_lossy(&bytes));
    };
    assert_eq!(next(&mut page, 1), r#"{"began":{"life":1,"mode":"write"}}"#);
    let screen = r#"{"screen":{"size":{"columns":100,"rows":30},"skipped":0}}"#;
    assert_eq!(next(&mut page, 1), screen);
    assert!(next(&mut page, 2).contains("ready"));
    send(&mut page, 2, b"hello\n");
    assert!(next(&mut page, 2).contains("hello"));
    send(&mut page, 1, br#"{"resize":{"columns":0,"rows":9}}"#);
    assert_eq!(next(&mut page, 1), r#"{"refused":{"message":"no terminal is 0 by 9"}}"#);
    send(&mut page, 1, b"{}");
    assert!(next(&mut page, 1).contains("this message is not valid"));
    // A frame that is larger than any may be is not waited for.
    page.write_all(&[0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]).unwrap();
    let mut rest = Vec::new();
    let _ = page.read_to_end(&mut rest);
    // The token is in no log of the server.
    assert!(!home.0.log().contains(&operator));

    // A run has at most sixteen viewers.
    until("the others have left", || {
        let (began, ended) =
            (events(&home, "echo", "attach.began"), events(&home, "echo", "attach.ended"));
        (began.len() == ended.len()).then_some(())
    });
    let mut looking = Vec::new();
    for _ in 0..16 {
        let (status, _, stream) = handshake(&address, &read, &[("Authorization", &one)]);
        assert_eq!(status, 101);
        looking.push(stream);
    }
    assert_eq!(handshake(&address, &read, &[("Authorization", &one)]).0, 429);
    drop(looking.pop());
    until("there is room again", || {
        (handshake(&address, &read, &[("Authorization", &one)]).0 == 101).then_some(())
    });
    // Each learns how it ended, and that this was all.
    home.run(&["kill", "echo"]).ok();
    let mut last = looking.swap_remove(0);
    let ended = loop {
        let said = match frame(&mut last) {
            (1, bytes) => String::from_utf8(bytes).unwrap(),
            (2 | 9, _) => continue,
            other => panic!("{other:?}"),
        };
        if said.starts_with("{\"ended\"") {
            break said;
        }
    };
    assert_eq!(ended, r#"{"ended":{"exit_code":null,"signal":9,"reason":null}}"#);
    assert_eq!(frame(&mut last), (8, vec![0x03, 0xe8]));
    home.check();
}

/// Nothing is asserted of the figure: prints how long a key takes from the person's terminal to the
/// program and back.
#[test]
fn figures_of_an_echo_through_an_attached_terminal() {
    let home = Commands::up();
    home.run(&["run", "--name", "cat", "stty -echo; echo ready; cat"]).ok();
    home.says("cat", "ready");
    let mut person = Person::at(&home.0, 80, 24, &["attach", "cat"]);
    person.sees("ready");
    let mut took: Vec<Duration> = (1000..1100)
        .map(|n| {
            let began = Instant::now();
            person.types(&format!("{n}\r"));
            // Not in a tight loop, which would compete for the processors with the measured process.
            while !person.has_written(&n.to_string()) {
                std::thread::sleep(Duration::from_micros(100));
            }
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    eprintln!("echo: p50 {:?}, p99 {:?}", took[took.len() / 2], took[took.len() * 99 / 100]);
    person.types(DETACH);
    person.leaves();
    home.run(&["kill", "cat"]).ok();
    home.check();
}
