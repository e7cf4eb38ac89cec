//! A watch of the shared state over the kill of its server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::home::Home;

/// A client that knows only HTTP. It ends with the server.
struct Watch {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watch {
    fn open(home: &Home, after: Option<u64>) -> Self {
        let token = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sN", "--max-time", "60", "--unix-socket"]);
        command.arg(home.data().join("overmind.sock"));
        command.args(["-H", &format!("Authorization: Bearer {}", token.trim())]);
        if let Some(after) = after {
            command.args(["-H", &format!("Last-Event-ID: {after}")]);
        }
        command.args(["-D", "-", "http://localhost/mesh/watch?prefix=a/"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watch = Self { child, lines };
        // The head arrives once the stream is open: later changes are reported.
        while !watch.line().unwrap().is_empty() {}
        watch
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.lines.read_line(&mut line).unwrap();
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// The next change, in short form, with its id; `None` when the stream has ended.
    fn next(&mut self) -> Option<(u64, String)> {
        let mut id = 0;
        loop {
            let line = self.line()?;
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.parse().unwrap();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let data: Value = serde_json::from_str(data).unwrap();
                return Some((id, format!("{} {}", data["change"].as_str()?, data["key"])));
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_resumes_after_a_server_kill_without_loss_or_repeats() {
    let mut home = Home::up();
    let mut watch = Watch::open(&home, None);
    for (key, value) in [("a/1", "1"), ("b/1", "1"), ("a/2", "1")] {
        home.run(&["mesh", "put", key, value]).ok();
    }
    let first = watch.next().unwrap();
    let second = watch.next().unwrap();
    assert_eq!((first.1.as_str(), second.1.as_str()), ("put \"a/1\"", "put \"a/2\""));
    home.run(&["mesh", "rm", "a/1"]).ok();
    let third = watch.next().unwrap();
    home.kill();
    assert_eq!(watch.next(), None, "the stream ends with the server");
    home.start(&["--listen", "none"], &[]);
    home.run(&["mesh", "put", "a/3", "1"]).ok();
    // For a client that had seen only the first change.
    let mut again = Watch::open(&home, Some(first.0));
    assert_eq!([again.next(), again.next()], [Some(second), Some(third.clone())]);
    let fourth = again.next().unwrap();
    assert_eq!(fourth.1, "put \"a/3\"");
    assert!(fourth.0 > third.0, "{fourth:?} after {third:?}");
    // And for a client that had seen all changes before the kill.
    home.run(&["mesh", "put", "a/4", "1"]).ok();
    let mut late = Watch::open(&home, Some(third.0));
    assert_eq!(late.next(), Some(fourth));
    assert_eq!(late.next(), again.next());
}
