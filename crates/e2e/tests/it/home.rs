//! A data directory, the binary that works on it, and its server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::program;

/// Longest wait here before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|err| panic!("{err}: {}", self.out))
    }

    /// The one line of standard output.
    #[track_caller]
    pub(crate) fn line(&self) -> &str {
        let line = self.out.trim_end();
        assert!(!line.is_empty() && !line.contains('\n'), "{self:?}");
        line
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.err.contains(text), "no `{text}` in: {}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> &Self {
        assert!(self.out.contains(text), "no `{text}` in: {}", self.out);
        self
    }
}

/// A person's machine: a home, a data directory, perhaps a server.
#[derive(Debug)]
pub(crate) struct Home {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Home {
    pub(crate) fn new() -> Self {
        // A short path: a socket's has about a hundred bytes at most.
        let dir = tempfile::Builder::new().prefix("om-").tempdir_in("/tmp").unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir, server: None }
    }

    /// With a server that listens on its socket alone.
    pub(crate) fn up() -> Self {
        let mut home = Self::new();
        home.start(&["--listen", "none"], &[]);
        home
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The directory in which sessions work.
    pub(crate) fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// The binary, in a clean environment, with this data directory in its variable.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .current_dir(self.work())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path())
            .env("OVERMIND_DATA", self.data())
            // Idle runs are tested where they are the subject.
            .env("OVERMIND_ONCE", "1")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        done(self.command(args).output().unwrap())
    }

    /// With more variables.
    pub(crate) fn run_env(&self, env: &[(&str, &str)], args: &[&str]) -> Done {
        done(self.command(args).envs(env.iter().copied()).output().unwrap())
    }

    /// Starts a server in the foreground of a process of its own and waits until it is ready;
    /// answers what it says about itself.
    pub(crate) fn start(&mut self, args: &[&str], env: &[(&str, &str)]) -> Value {
        let command = self.command(&["up", "-o", "json"]);
        self.start_by(command, args, env)
    }

    /// Like [`start`](Self::start), with a wrapper around `overmind up -o json`.
    pub(crate) fn start_by(
        &mut self,
        mut command: Command,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Value {
        assert!(self.server.is_none(), "one server at a time");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path().join("server.log"))
            .unwrap();
        let mut child = command
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.server = Some(child);
        serde_json::from_str(&line).unwrap_or_else(|err| {
            panic!("the server said `{line}` ({err}); its log: {}", self.log())
        })
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("server.log")).unwrap_or_default()
    }

    pub(crate) fn server(&mut self) -> &mut Child {
        self.server.as_mut().expect("a server was started")
    }

    /// Kills the server as the kernel would.
    pub(crate) fn kill(&mut self) {
        let mut child = self.server.take().expect("a server was started");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until the server has ended on its own.
    pub(crate) fn ended(&mut self) -> std::process::ExitStatus {
        let mut child = self.server.take().expect("a server was started");
        until("the server ends", || child.try_wait().unwrap())
    }

    /// Creates an agent that follows the text rules.
    pub(crate) fn agent(&self, name: &str, more: &[&str]) -> String {
        let mut args =
            vec!["agent", "create", "--name", name, "--model", "deterministic", "-o", "name"];
        args.extend(["--tools", "run_shell,write_file,read_file,store_memory,search_memory"]);
        args.extend(more);
        self.run(&args).ok().line().to_owned()
    }

    /// Writes a cassette and creates an agent that speaks it.
    pub(crate) fn scripted(&self, name: &str, turns: &Value, more: &[&str]) {
        let dir = self.data().join("cassettes");
        std::fs::create_dir_all(&dir).unwrap();
        let cassette = serde_json::json!({"name": name, "turns": turns});
        std::fs::write(dir.join(format!("{name}.json")), cassette.to_string()).unwrap();
        let model = format!("scripted:{name}");
        let mut args = vec!["agent", "create", "--name", name, "--model", &model];
        args.extend(["--tools", "run_shell,write_file,read_file"]);
        args.extend(more);
        self.run(&args).ok();
    }

    /// The run as the API shows it.
    pub(crate) fn fetch(&self, id: &str) -> Value {
        let all = self.run(&["ps", "--all", "-o", "json", "--limit", "1000"]).ok().json();
        let runs = all.as_array().unwrap();
        runs.iter().find(|run| run["id"] == id).unwrap_or_else(|| panic!("no {id}")).clone()
    }

    /// Waits until the run has this status.
    pub(crate) fn wait_for(&self, id: &str, status: &str) -> Value {
        until(status, || Some(self.fetch(id)).filter(|run| run["status"] == status))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mut child) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A server started by `up -d` is no child of ours.
        if self.data().join("server.json").exists() {
            let _ = self.command(&["down", "--timeout", "0"]).output();
        }
    }
}

pub(crate) fn done(output: Output) -> Done {
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Asks again and again until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, || what.to_owned(), ask)
}

/// Asks repeatedly until there is an answer; without one, the test fails with the text of `what`.
#[track_caller]
pub(crate) fn until_within<T>(
    patience: Duration,
    what: impl FnOnce() -> String,
    mut ask: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        if start.elapsed() >= patience {
            panic!("waited in vain: {}", what());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
