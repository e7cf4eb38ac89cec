//! The real binary as a process: started, waited for, killed, and looked for afterwards.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use overmind_client::{Client, Target};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::program::program;

/// Longest time until a daemon is ready, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// The directory of one crash test.
#[derive(Debug)]
pub(crate) struct Places {
    root: tempfile::TempDir,
}

impl Places {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("om-crash-").tempdir().expect("a directory");
        let places = Self { root };
        for dir in [places.cassettes(), places.workspaces()] {
            std::fs::create_dir(&dir).expect("a new directory");
        }
        places
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub(crate) fn cassettes(&self) -> PathBuf {
        self.root.path().join("cassettes")
    }

    pub(crate) fn workspaces(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// The workspace of one run.
    pub(crate) fn workspace(&self, number: usize) -> PathBuf {
        self.workspaces().join(number.to_string())
    }

    /// A new directory for copies.
    pub(crate) fn fresh(&self) -> tempfile::TempDir {
        tempfile::Builder::new().prefix("copy-").tempdir_in(self.root.path()).expect("a directory")
    }

    fn config(&self) -> PathBuf {
        self.root.path().join("overmind.toml")
    }

    /// The standard error of all daemons.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.path().join("daemons.log")
    }

    /// The last lines of it, for a failure's message.
    pub(crate) fn log_tail(&self) -> String {
        let mut text = String::new();
        let read = File::open(self.log()).and_then(|mut file| file.read_to_string(&mut text));
        let lines: Vec<&str> = text.lines().rev().take(40).collect();
        match read {
            Ok(_) => lines.into_iter().rev().collect::<Vec<_>>().join("\n"),
            Err(err) => format!("(no log: {err})"),
        }
    }
}

/// The options with which one daemon is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// `name:n`: kill yourself the n-th time you pass this point.
    pub(crate) failpoint: Option<String>,
    pub(crate) max_running: u32,
    /// Also listen on a free TCP port, and talk to it there.
    pub(crate) tcp: bool,
}

/// A daemon that was started and not yet waited for. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    pub(crate) pid: u32,
}

#[derive(Debug, Deserialize)]
struct ServerFile {
    url: Option<String>,
    socket: Option<PathBuf>,
}

/// The result of waiting for a start.
#[derive(Debug)]
pub(crate) enum Start {
    Ready(Client),
    /// A failpoint was quicker.
    Died(ExitStatus),
}

impl Daemon {
    pub(crate) fn spawn(places: &Places, setup: &Setup) -> Self {
        // Signed often, so that signing is interrupted, too.
        std::fs::write(places.config(), "[store]\ncheckpoint_seconds = 1\n")
            .expect("the configuration is written");
        let log = OpenOptions::new().create(true).append(true).open(places.log());
        let mut command = Command::new(program());
        command
            .args(["up", "-o", "json", "--log", "warn", "--data"])
            .arg(places.data())
            .arg("--config")
            .arg(places.config())
            .arg("--workspace")
            .arg(places.workspaces())
            .args(["--listen", if setup.tcp { "127.0.0.1:0" } else { "none" }])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("OVERMIND_CASSETTE_DIR", places.cassettes())
            .env("OVERMIND_MAX_RUNNING", setup.max_running.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the log file opens"))
            // A separate group: its remains are found by the group's number.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(point) = &setup.failpoint {
            command.env("OVERMIND_FAILPOINTS", point);
        }
        let mut child = command.spawn().expect("the binary starts");
        let pid = child.id().expect("it was not waited for");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, said, pid }
    }

    /// Waits until it reports its address, or has died.
    pub(crate) async fn ready(&mut self, places: &Places) -> Start {
        let line = tokio::time::timeout(START_PATIENCE, self.said.next_line()).await;
        let line = line.unwrap_or_else(|_| {
            panic!("no daemon is ready after {START_PATIENCE:?}:\n{}", places.log_tail())
        });
        let Ok(Some(line)) = line else { return Start::Died(self.wait().await) };
        let file: ServerFile = serde_json::from_str(&line)
            .unwrap_or_else(|err| panic!("`up -o json` said `{line}`: {err}"));
        let target = match (file.url, file.socket) {
            (Some(url), _) => url.parse().expect("a URL of its own making"),
            (None, Some(socket)) => Target::Unix(socket),
            (None, None) => panic!("the daemon listens nowhere: {line}"),
        };
        let token = std::fs::read_to_string(places.data().join("admin.token"));
        let token = token.expect("a ready daemon has its token on disk");
        Start::Ready(Client::connect(target, Some(token.trim())).expect("a plain token"))
    }

    /// Waits for its end.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        self.child.wait().await.expect("it is our child")
    }

    /// Whether it has ended already.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    pub(crate) fn ask_to_stop(&self) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).expect("a process number");
        // Not reaped yet, so its pid is still its own, even if it has just died.
        kill_process(pid, Signal::TERM).expect("it is our child");
    }

    /// SIGKILL, and its end. False if it had already ended.
    pub(crate) async fn kill(&mut self, places: &Places) -> bool {
        if let Some(status) = self.ended() {
            assert_killed(status, places);
            return false;
        }
        assert_killed(self.kill_if_alive().await, places);
        true
    }

    /// SIGKILL, and how it ended: it may have been quicker.
    pub(crate) async fn kill_if_alive(&mut self) -> ExitStatus {
        if let Some(status) = self.ended() {
            return status;
        }
        self.child.start_kill().expect("it is our child");
        self.wait().await
    }
}

/// Only SIGKILL may end a daemon here: an exit or an abort is a failure.
pub(crate) fn assert_killed(status: ExitStatus, places: &Places) {
    assert_eq!(
        status.signal(),
        Some(Signal::KILL.as_raw()),
        "a daemon ended by itself ({status}):\n{}",
        places.log_tail()
    );
}

/// Processes that killed daemons left running: sandboxes whose process group is one of `groups`,
/// and commands with the mark `tag`. Each as a line for people.
pub(crate) fn leftovers(groups: &[u32], tag: Option<&str>) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("Linux has /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let dir = Path::new("/proc").join(pid.to_string());
        // A process that ends meanwhile has neither.
        let stat = std::fs::read_to_string(dir.join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let (state, group) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
        if state == "Z" {
            return None;
        }
        let line = std::fs::read(dir.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // The number of a dead daemon may be another group's by now: the words decide, too.
        let ours = line.contains("__sandbox-init") || line.contains("overmind up");
        let tagged = tag.is_some_and(|tag| line.contains(tag));
        (ours && groups.contains(&group) || tagged).then(|| format!("{pid}: {line}"))
    })
    .collect()
}

/// Waits, outside of any daemon.
#[expect(clippy::disallowed_methods, reason = "the harness lives in real time, as its daemons do")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
