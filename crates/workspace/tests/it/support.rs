//! A data directory, a project and a workspace for one test.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::off_limits::OffLimits;
use overmind_testkit::ports::WallClock;
use overmind_workspace::config::Config;
use overmind_workspace::leaks::{Finding, LeakKind};
use overmind_workspace::lease::{
    LeaseRequest, MadeTree, Options, Place, Progress, Sink, Tree, TreeEnd, Workspace,
};
use overmind_workspace::services::confine::Encloses;
use overmind_workspace::services::runner::OwnProcesses;

/// The test's own part of the range, so that parallel tests seldom try the same port.
pub(crate) fn range(dir: &Path) -> String {
    let sum: u64 = dir
        .to_string_lossy()
        .bytes()
        .fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let low = 20_000 + (sum % 95) * 100;
    format!("{low}-{}", low + 99)
}

/// Worktrees as plain directories.
#[derive(Debug)]
pub(crate) struct Directories(pub(crate) PathBuf);

impl Directories {
    fn path(intent: &serde_json::Value) -> PathBuf {
        PathBuf::from(intent["path"].as_str().unwrap())
    }
}

impl Tree for Directories {
    fn make<'a>(
        &'a self,
        intent: &'a serde_json::Value,
        _: &'a dyn Sink,
    ) -> Fut<'a, Result<MadeTree, String>> {
        Box::pin(async move {
            let path = Self::path(intent);
            std::fs::create_dir_all(&path).map_err(|err| err.to_string())?;
            for (name, text) in intent["files"].as_object().into_iter().flatten() {
                std::fs::write(path.join(name), text.as_str().unwrap()).unwrap();
            }
            Ok(MadeTree {
                path,
                branch: Some("overmind/test".to_owned()),
                base: Some("main".to_owned()),
                env: BTreeMap::new(),
                borrowed: Vec::new(),
                bounded: false,
                details: serde_json::Value::Null,
            })
        })
    }

    fn is_tracked<'a>(&'a self, _: &'a Path) -> Fut<'a, Result<Option<bool>, String>> {
        Box::pin(async { Ok(None) })
    }

    fn leave_out<'a>(&'a self, _: &'a Path, _: bool) -> Fut<'a, Result<bool, String>> {
        Box::pin(async { Ok(false) })
    }

    fn undo<'a>(
        &'a self,
        intent: &'a serde_json::Value,
        _: Option<&'a MadeTree>,
        end: TreeEnd,
    ) -> Fut<'a, Result<(), String>> {
        Box::pin(async move {
            if end == TreeEnd::Keep {
                return Ok(());
            }
            match std::fs::remove_dir_all(Self::path(intent)) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err.to_string()),
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }

    fn leaks<'a>(&'a self, live: &'a BTreeSet<String>) -> Fut<'a, Vec<Finding>> {
        Box::pin(async move {
            let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names
                .filter(|name| !live.contains(name))
                .map(|name| Finding {
                    kind: LeakKind::Worktree,
                    what: self.0.join(&name).display().to_string(),
                    session: Some(name),
                    how: "remove it".to_owned(),
                    fixable: true,
                    bytes: None,
                })
                .collect()
        })
    }

    fn fix<'a>(&'a self, finding: &'a Finding) -> Fut<'a, Result<(), String>> {
        Box::pin(
            async move { std::fs::remove_dir_all(&finding.what).map_err(|err| err.to_string()) },
        )
    }
}

/// The messages that were sent during an operation.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Sink for Told {
    fn tell(&self, progress: Progress<'_>) {
        let line = match progress {
            Progress::Step { what } => format!("step {what}"),
            Progress::Line { source, line, .. } => format!("{source}: {line}"),
            Progress::Warning { text } => format!("warning {text}"),
        };
        self.0.lock().unwrap().push(line);
    }
}

pub(crate) struct Bench {
    pub(crate) root: PathBuf,
    /// Removed at the end, unless another process owns the directory.
    _dir: Option<tempfile::TempDir>,
    pub(crate) told: Told,
    pub(crate) docker: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The database server's user must be able to pass through.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let mut bench = Self::at(dir.path().to_owned());
        for name in ["home", "project", "trees", "tmp"] {
            std::fs::create_dir_all(bench.root.join(name)).unwrap();
        }
        bench._dir = Some(dir);
        bench
    }

    /// A bench that another process created.
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root, _dir: None, told: Told::default(), docker: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn options(&self) -> Options {
        let environment = ["PATH", "HOME", "LANG"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), variable(name)?)))
            .collect();
        Options {
            home: self.path("home"),
            registry: self.path("registry"),
            temp: self.path("tmp"),
            docker: self.docker.clone(),
            environment,
            secrets: BTreeMap::new(),
            servers: Vec::new(),
            clock: Arc::new(WallClock),
            runner: Arc::new(OwnProcesses::new(Arc::new(WallClock))),
            encloses: Encloses::default(),
            user: None,
            off_limits: OffLimits::default(),
            tree: Some(Arc::new(Directories(self.path("trees")))),
        }
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::open(self.options()).unwrap()
    }

    /// The text after a head with version and range.
    pub(crate) fn config(&self, text: &str) -> Config {
        let text = format!("version: 1\nports:\n  range: {}\n{text}", range(&self.root));
        Config::parse(&text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"))
    }

    pub(crate) fn request(&self, session: &str, text: &str) -> LeaseRequest {
        self.request_with(session, text, &[])
    }

    pub(crate) fn request_with(
        &self,
        session: &str,
        text: &str,
        files: &[(&str, &str)],
    ) -> LeaseRequest {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        LeaseRequest {
            session: session.to_owned(),
            name: format!("name of {session}"),
            project: self.path("project"),
            config: self.config(&marked(text)),
            sandbox: None,
            setup_network: false,
            place: Place::Tree(
                serde_json::json!({"path": self.path("trees").join(session), "files": files}),
            ),
        }
    }

    /// The required state of the workspace when no session is left.
    pub(crate) async fn assert_nothing_left(&self, workspace: &Workspace) {
        let leaks = workspace.leaks().await;
        assert_eq!(leaks, [], "left over");
        let listed = |name: &str| {
            let entries = std::fs::read_dir(self.path(name)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(listed("trees"), Vec::<String>::new());
        assert_eq!(listed("tmp"), Vec::<String>::new());
        assert_eq!(listed("home/leases"), Vec::<String>::new());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self._dir.is_none() {
            return;
        }
        // A failed test leaves its server running, which would hold the directory.
        let file = self.path("home/postgres/data/postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = text.lines().next().and_then(|line| line.trim().parse().ok()) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tests hand their surroundings on to commands")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(crate) fn git(dir: &Path, words: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for an action of another process.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        tokio::time::sleep_until(
            tokio::time::Instant::now() + std::time::Duration::from_millis(10),
        )
        .await;
    }
    panic!("{what} did not come about");
}

/// Whether any process has `text` among its words.
pub(crate) fn runs(text: &str) -> bool {
    let text = marked(text);
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).any(
        |entry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).split('\0').any(|word| word == text)
        },
    )
}

/// `text` with each number such as 86121 made this process's own: no other test, no other run of this one
/// and nothing that an earlier one has left has it among its words.
pub(crate) fn marked(text: &str) -> String {
    let mut marked = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        marked += &digits;
        if digits.len() == 5 && digits.starts_with("86") {
            marked += &std::process::id().to_string();
        }
        digits.clear();
        marked.push(c);
    }
    marked.pop();
    marked
}

/// Processes that have something in `dir` in their environment.
pub(crate) fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&dir)
        })
        .map(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("{pid} {}", String::from_utf8_lossy(&words).replace('\0', " "))
        })
        .collect()
}

pub(crate) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
