//! Shared parts of all these tests.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overmind_core::ids::SessionId;
use overmind_core::process::{
    Ended, GroupWish, LogItem, LogKind, LogQuery, ProcessError, ProcessExit, ProcessIo, ProcessKey,
    ProcessSpec, Processes, StderrKind, StdinKind, TerminalSize,
};
use overmind_supervise::{Options, Supervisor};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_overmind-keeper");

/// A limit that only a hanging test reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) supervisor: Supervisor,
}

/// A failed test leaves no process running, either.
impl Drop for Place {
    fn drop(&mut self) {
        for keeper in numbers_of_keepers(self.dir.path()) {
            let name = std::fs::read_to_string(format!("/proc/{keeper}/comm"));
            if name.is_ok_and(|name| name.trim() == "overmind-keeper") {
                kill(keeper, rustix::process::Signal::TERM);
            }
        }
    }
}

/// A session that no other test, and no other run, has.
pub(crate) fn session() -> SessionId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let nanos = u128::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap();
    SessionId::from_u128(nanos << 64 | u128::from(pid) << 32 | u128::from(n))
}

pub(crate) fn first(session: SessionId) -> ProcessKey {
    ProcessKey { session, epoch: 1 }
}

/// Pipes with open input.
pub(crate) const PIPES: ProcessIo =
    ProcessIo::Pipes { stdin: StdinKind::Open, stderr: StderrKind::Merged };

pub(crate) const TERMINAL: ProcessIo = ProcessIo::Terminal(TerminalSize { columns: 80, rows: 24 });

/// A command in a shell, in `/`, with a path.
pub(crate) fn shell(key: ProcessKey, script: &str) -> ProcessSpec {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let mut spec = ProcessSpec::new(key, argv, PathBuf::from("/"));
    spec.env = vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())];
    spec
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let supervisor = Self::supervisor(dir.path());
        Self { dir, supervisor }
    }

    pub(crate) fn supervisor(root: &Path) -> Supervisor {
        Supervisor::open(Options::new(PathBuf::from(PROGRAM), root.to_owned())).unwrap()
    }

    pub(crate) async fn run(&self, spec: ProcessSpec) -> ProcessExit {
        let key = spec.key;
        self.supervisor.start(spec).await.unwrap();
        self.exit(key).await
    }

    pub(crate) async fn exit(&self, key: ProcessKey) -> ProcessExit {
        exit(&self.supervisor, key).await
    }

    pub(crate) async fn text(&self, session: SessionId) -> String {
        text(&self.supervisor, session).await
    }

    /// Waits until the log of a session contains something.
    pub(crate) async fn until_says(&self, session: SessionId, what: &str) {
        eventually(what, async || self.text(session).await.contains(what)).await;
    }
}

pub(crate) async fn ended(supervisor: &Supervisor, key: ProcessKey) -> Ended {
    let waiting = tokio::time::timeout(PATIENCE, supervisor.ended(key)).await;
    waiting.expect("it ends").unwrap()
}

pub(crate) async fn exit(supervisor: &Supervisor, key: ProcessKey) -> ProcessExit {
    match ended(supervisor, key).await {
        Ended::Exited(exit) => exit,
        Ended::Lost { reason, .. } => panic!("lost: {reason}"),
    }
}

/// Everything in a log, lines joined, markers too.
pub(crate) async fn text(supervisor: &Supervisor, session: SessionId) -> String {
    lines(supervisor, session, LogQuery::default())
        .await
        .into_iter()
        .map(|(_, line)| line + "\n")
        .collect()
}

pub(crate) async fn lines(
    supervisor: &Supervisor,
    session: SessionId,
    query: LogQuery,
) -> Vec<(LogKind, String)> {
    let mut reader = supervisor.log(session, query).await.unwrap();
    let mut all = Vec::new();
    loop {
        let items = tokio::time::timeout(PATIENCE, reader.next()).await.expect("it ends").unwrap();
        if items.is_empty() {
            return all;
        }
        all.extend(items.into_iter().map(|item| match item {
            LogItem::Line(line) => (line.kind, String::from_utf8_lossy(&line.text).into_owned()),
            LogItem::Gap { from, to, lines } => {
                (LogKind::Output, format!("gap {from} {to} {lines:?}"))
            }
        }));
    }
}

/// Waits for a condition, and names it if it is not reached.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < until, "waited for: {what}");
        let pause = tokio::time::timeout(Duration::from_millis(5), std::future::pending::<()>());
        let _ = pause.await;
    }
}

/// Processes that have a session's mark in their environment.
pub(crate) fn marked(session: SessionId) -> HashSet<i32> {
    let mark = format!("{session}.");
    all_marked().into_iter().filter(|(_, life)| life.starts_with(&mark)).map(|one| one.0).collect()
}

/// Every process that has the mark of some life, and of which.
pub(crate) fn all_marked() -> Vec<(i32, String)> {
    let life = |pid: i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environ.split(|b| *b == 0);
        let mark = variables.find_map(|variable| variable.strip_prefix(b"OVERMIND_LIFE="))?;
        Some(String::from_utf8_lossy(mark).into_owned())
    };
    numbers().filter_map(|pid| Some((pid, life(pid)?))).collect()
}

/// Processes whose command line contains a text.
pub(crate) fn with_words(words: &str) -> HashSet<i32> {
    numbers()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
        })
        .collect()
}

fn numbers() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Fields of `/proc/PID/stat` from the third on.
pub(crate) fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

pub(crate) fn parent(pid: u32) -> i32 {
    stat(i32::try_from(pid).unwrap()).unwrap()[1].parse().unwrap()
}

/// Lives and has not become a zombie.
pub(crate) fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| stat[0] != "Z")
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(err) => panic!("{pid:?}: {err}"),
    }
}

/// Remaining control groups of a session.
pub(crate) fn groups(session: SessionId) -> Vec<PathBuf> {
    let name = format!("overmind-life-{session}.");
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((dir, depth)) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with(&name) {
                found.push(entry.path());
            } else if depth < 4 {
                open.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// Files of a session that are no log.
pub(crate) fn leftovers(root: &Path, session: SessionId) -> Vec<String> {
    let dir = std::fs::read_dir(root.join(session.to_string())).into_iter().flatten().flatten();
    let names = dir.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.ends_with(".log") && !name.ends_with(".idx")).collect()
}

/// Whether trees get control groups here, for tests that are about the way without.
pub(crate) const WISHES: [GroupWish; 2] = [GroupWish::IfPossible, GroupWish::Never];

pub(crate) fn refusal(err: ProcessError) -> (&'static str, String) {
    match err {
        ProcessError::Refused { step, reason, .. } => (step, reason),
        other => panic!("{other}"),
    }
}

/// The shims of all attempts in a directory, from their records.
pub(crate) fn numbers_of_keepers(root: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for session in std::fs::read_dir(root).unwrap().flatten() {
        for file in std::fs::read_dir(session.path()).into_iter().flatten().flatten() {
            if !file.file_name().to_string_lossy().starts_with("life-") {
                continue;
            }
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let pid = text.split("\"pid\":").nth(1).and_then(|rest| rest.split(',').next());
            if let Some(pid) = pid.and_then(|pid| pid.parse::<i32>().ok()) {
                found.extend(stat(pid).map(|stat| stat[1].parse::<i32>().unwrap()));
            }
        }
    }
    found
}
