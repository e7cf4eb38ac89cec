//! Keys that are revoked while their caller watches a terminal or a log, or calls a model.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

mod calls;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::attach::{frame, handshake, send};
use crate::commands::Commands;
use crate::home::Home;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// A server on TCP, with a command that echoes its input; the address, and the run's id.
fn served() -> (Commands, String, String) {
    let mut home = Commands(Home::new());
    let server = home.0.start(&["--listen", "127.0.0.1:0"], &[]);
    let address = server["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
    crate::projects::declare(&home.0, &home.0.work());
    home.run(&["run", "--name", "echo", "--sandbox", "namespace", "stty -echo; echo ready; cat"])
        .ok();
    home.says("echo", "ready");
    let id = home.named("echo")["id"].as_str().unwrap().to_owned();
    (home, address, id)
}

fn key(home: &Commands, name: &str, role: &str) -> String {
    let made = home.run(&["key", "create", name, "--role", role, "-o", "name"]);
    made.ok().line().to_owned()
}

/// All that is shown from here on, until the connection is closed: what was drawn, what was said, and
/// the code of the end.
fn rest(stream: &mut TcpStream) -> (String, String, u16) {
    let (mut drawn, mut said) = (String::new(), String::new());
    loop {
        let (kind, bytes) = frame(stream);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match kind {
            TEXT => said.push_str(&text),
            BINARY => drawn.push_str(&text),
            PING => {}
            CLOSE => return (drawn, said, u16::from_be_bytes([bytes[0], bytes[1]])),
            other => panic!("a frame of kind {other}: {text}"),
        }
    }
}

#[test]
fn a_revoked_key_cannot_type_into_or_read_a_terminal() {
    let (home, address, id) = served();
    for (role, mode) in [("operator", "write"), ("viewer", "read")] {
        let bearer = format!("Bearer {}", key(&home, role, role));
        let path = format!("/api/runs/{id}/attach?mode={mode}");
        let (status, _, mut page) = handshake(&address, &path, &[("Authorization", &bearer)]);
        assert_eq!(status, 101);
        loop {
            let (kind, bytes) = frame(&mut page);
            if kind == BINARY && String::from_utf8_lossy(&bytes).contains("ready") {
                break;
            }
        }
        home.run(&["key", "revoke", role]).ok();
        if mode == "write" {
            send(&mut page, BINARY, b"stolen\n");
        } else {
            // Somebody else's words, which the program writes.
            home.run(&["send", "echo", "for others alone"]).ok();
        }
        let (drawn, said, code) = rest(&mut page);
        assert!(said.contains("\"away\"") && said.contains("no longer valid"), "{mode}: {said}");
        assert_eq!((drawn.as_str(), code), ("", 1008), "{mode}");
    }
    let log = home.says("echo", "for others alone");
    assert!(!log.contains("stolen"), "{log}");
    home.run(&["kill", "echo"]).ok();
    home.check();
}

#[test]
fn following_a_log_ends_when_the_key_is_revoked_also_on_the_socket() {
    let (home, address, id) = served();
    let socket = home.0.data().join("overmind.sock");
    for (n, ndjson) in [(1, false), (2, true)] {
        let name = format!("looks-{n}");
        let key = key(&home, &name, "viewer");
        let format = if ndjson { "&format=ndjson" } else { "" };
        let request = format!(
            "GET /api/runs/{id}/log?follow=true{format} HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {key}\r\nConnection: close\r\n\r\n"
        );
        let mut stream: Box<dyn std::io::Read> = match ndjson {
            false => {
                let mut tcp = TcpStream::connect(&address).unwrap();
                tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                tcp.write_all(request.as_bytes()).unwrap();
                Box::new(tcp)
            }
            true => {
                let mut unix = UnixStream::connect(&socket).unwrap();
                unix.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                unix.write_all(request.as_bytes()).unwrap();
                Box::new(unix)
            }
        };
        let mut reader = BufReader::new(&mut stream);
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "it ended before its first line");
        }
        home.run(&["key", "revoke", &name]).ok();
        home.run(&["send", "echo", &format!("later words {n}")]).ok();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.contains("the log cannot be read on: the token is no longer valid"), "{rest}");
        assert!(!rest.contains(&format!("later words {n}")), "{rest}");
        home.says("echo", &format!("later words {n}"));
    }
    home.run(&["kill", "echo"]).ok();
    home.check();
}
