//! Workspaces, requests and questions about the host that all tests share.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use overmind_core::Fut;
use overmind_core::sandbox::{
    Exit, OutputSink, Sandbox, SandboxError, SandboxLevel, SandboxLimits, SandboxRequest,
    SandboxResult,
};
use overmind_sandbox::Warmth;
use tempfile::TempDir;

/// The init that the drivers under test start.
pub(crate) fn init_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_overmind-sandbox-init"))
}

/// A driver, and what it does not give. A `false` is a documented limit of the driver, and the
/// suite proves it as one: a driver that gets better must change its line.
pub(crate) struct Subject {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) gives: Gives,
    /// How the workspace is called inside, if not as on the host.
    pub(crate) inside: Option<&'static str>,
    /// Objects that must outlive the driver.
    pub(crate) _keep: Option<TempDir>,
    /// Ends the resources that a driver keeps between calls.
    pub(crate) close: Option<Close>,
}

pub(crate) type Close = Box<dyn Fn() -> Fut<'static, ()> + Send + Sync>;

#[derive(Clone, Copy)]
pub(crate) struct Gives {
    /// A separate root file system, a read-only workspace, a bounded `/tmp`.
    pub(crate) files: bool,
    pub(crate) network: bool,
    /// Its own processes, limited in number.
    pub(crate) processes: bool,
    /// No capabilities, no-new-privs, a system call filter, not root.
    pub(crate) privileges: bool,
    /// A signal is distinguished from an exit code above 128.
    pub(crate) signals: bool,
    /// No variable but the request's.
    pub(crate) exact_environment: bool,
}

pub(crate) const NAMESPACE: Gives = Gives {
    files: true,
    network: true,
    processes: true,
    privileges: true,
    signals: true,
    exact_environment: true,
};

/// The engine reports 128 plus the signal, and adds PATH, HOME, HOSTNAME and variables of the image.
pub(crate) const DOCKER: Gives = Gives { signals: false, exact_environment: false, ..NAMESPACE };

/// By the `namespace` driver inside.
pub(crate) const MICROVM: Gives = NAMESPACE;

pub(crate) const NONE: Gives = Gives {
    files: false,
    network: false,
    processes: false,
    privileges: false,
    signals: true,
    exact_environment: true,
};

/// A workspace that any user may use, with `hello` (a file), `out` and `deep/er` in it.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let place = Self { dir };
        let workspace = place.workspace();
        for sub in [workspace.clone(), workspace.join("out"), workspace.join("deep/er")] {
            std::fs::create_dir_all(&sub).unwrap();
        }
        std::fs::write(workspace.join("hello"), "hello\n").unwrap();
        for open in [place.dir.path(), &workspace, &workspace.join("out"), &workspace.join("deep")]
        {
            open_to_all(open);
        }
        place
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// A file beside the workspace, which no sandbox may see.
    pub(crate) fn secret(&self) -> PathBuf {
        let path = self.dir.path().join("secret");
        std::fs::write(&path, "a-secret").unwrap();
        path
    }

    pub(crate) fn request(&self, argv: &[&str]) -> SandboxRequest {
        SandboxRequest {
            argv: argv.iter().map(|text| (*text).to_owned()).collect(),
            workspace: self.workspace(),
            writable: None,
            cwd: PathBuf::new(),
            env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
            home: Vec::new(),
            stdin: Vec::new(),
            timeout: Duration::from_secs(30),
            limits: SandboxLimits::default(),
        }
    }

    pub(crate) fn sh(&self, script: &str) -> SandboxRequest {
        self.request(&["sh", "-c", script])
    }
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

impl Subject {
    /// When all calls have ended: a prepared sandbox is no leak.
    pub(crate) async fn close(&self) {
        if let Some(close) = &self.close {
            close().await;
        }
    }

    #[track_caller]
    pub(crate) fn run(&self, request: SandboxRequest) -> impl Future<Output = SandboxResult> + '_ {
        let at = std::panic::Location::caller();
        async move {
            match self.sandbox.run(request).await {
                Ok(result) => result,
                Err(err) => panic!("{at}: {err:?}"),
            }
        }
    }

    /// Runs a script that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn says(&self, place: &Place, script: &str) -> impl Future<Output = String> + '_ {
        let at = std::panic::Location::caller();
        let request = place.sh(script);
        async move {
            let result = self.sandbox.run(request).await.unwrap_or_else(|e| panic!("{at}: {e:?}"));
            assert_eq!(result.exit, Exit::Code(0), "{at}: {result:?}");
            result.stdout.text
        }
    }

    pub(crate) async fn refusal(&self, request: SandboxRequest) -> String {
        match self.sandbox.run(request).await {
            Err(SandboxError::BadConfig { code, message }) => {
                assert_eq!(code, "bad_config");
                message
            }
            other => panic!("not refused as bad_config: {other:?}"),
        }
    }
}

/// A driver with a prepared sandbox at the time of a call.
#[derive(Debug)]
pub(crate) struct Warmed<D> {
    pub(crate) driver: Arc<D>,
    pub(crate) warmth: fn(&D) -> Warmth,
}

impl<D: Sandbox> Warmed<D> {
    /// Unless something waits already: one call, and then until something does. What refuses
    /// that call refuses the next as well, and in its own words.
    async fn prime(&self, request: &SandboxRequest) {
        let waits = || (self.warmth)(&self.driver).waiting > 0;
        let first = SandboxRequest {
            argv: vec!["true".to_owned()],
            stdin: Vec::new(),
            timeout: Duration::from_secs(30),
            ..request.clone()
        };
        if !waits() && self.driver.run(first).await.is_ok() {
            until("something waits for a command", waits).await;
        }
    }
}

impl<D: Sandbox> Sandbox for Warmed<D> {
    fn level(&self) -> SandboxLevel {
        self.driver.level()
    }

    fn run(&self, request: SandboxRequest) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(async {
            self.prime(&request).await;
            self.driver.run(request).await
        })
    }

    fn run_streaming(
        &self,
        request: SandboxRequest,
        sink: OutputSink,
    ) -> Fut<'_, Result<SandboxResult, SandboxError>> {
        Box::pin(async {
            self.prime(&request).await;
            self.driver.run_streaming(request, sink).await
        })
    }

    fn check(&self) -> Fut<'_, Result<(), SandboxError>> {
        self.driver.check()
    }
}

/// A text that occurs in no other process's arguments.
pub(crate) fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("marker-{}-{next}-end", std::process::id())
}

/// The processes of the host whose arguments contain `marker`, in any namespace.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let Ok(pid) = entry.unwrap().file_name().to_string_lossy().parse::<u32>() else { continue };
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains(marker) {
            found.push(pid);
        }
    }
    found
}

/// Waits until `condition` is true; the pause only saves processor time.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "never came true: {what}");
        pause(Duration::from_millis(5)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "between two looks at a condition")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Resources that this process holds, or has created on the host and not removed.
#[derive(Debug)]
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    pub(crate) mounts: usize,
    pub(crate) children: usize,
    /// The descendants of this process, besides its own children.
    pub(crate) namespaces: usize,
    pub(crate) cgroups: usize,
    /// Files and directories of probes in the temporary directory.
    pub(crate) traps: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let own = std::process::id();
        let parents = parents();
        let descendants: Vec<u32> =
            parents.keys().copied().filter(|pid| descends(&parents, *pid, own)).collect();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mounts: std::fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .lines()
                .filter(|line| !of_others(line))
                .count(),
            children: parents.values().filter(|parent| **parent == own).count(),
            namespaces: namespaces_besides_own(&descendants),
            cgroups: own_cgroups(Path::new("/sys/fs/cgroup"), &format!("overmind-{own}-"), 4),
            traps: std::fs::read_dir(std::env::temp_dir())
                .unwrap()
                .flatten()
                .filter(|entry| {
                    let name = entry.file_name();
                    name.to_string_lossy().starts_with(&format!("overmind-probe-{own}-"))
                })
                .count(),
        }
    }

    pub(crate) fn within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.mounts <= before.mounts
            && self.children <= before.children
            && self.namespaces <= before.namespaces
            && self.cgroups <= before.cgroups
            && self.traps <= before.traps
    }
}

/// The parent of each process of the host.
fn parents() -> HashMap<u32, u32> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        // Processes end while this runs.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (_, rest) = stat.rsplit_once(')').unwrap();
        found.insert(pid, rest.split_ascii_whitespace().nth(1).unwrap().parse().unwrap());
    }
    found
}

fn descends(parents: &HashMap<u32, u32>, pid: u32, from: u32) -> bool {
    let mut next = parents.get(&pid);
    while let Some(parent) = next {
        if *parent == from {
            return true;
        }
        next = parents.get(parent);
    }
    false
}

fn namespaces_besides_own(pids: &[u32]) -> usize {
    let of = |pid: &str| {
        let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
        kinds.map(|kind| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok())
    };
    let own: HashSet<PathBuf> = of("self").into_iter().flatten().collect();
    let all: HashSet<PathBuf> =
        pids.iter().flat_map(|pid| of(&pid.to_string())).flatten().collect();
    all.difference(&own).count()
}

/// Cgroups that a driver in this process has created, in any hierarchy.
fn own_cgroups(directory: &Path, prefix: &str, depth: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let directories = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .map(|entry| {
            let own = usize::from(entry.file_name().to_string_lossy().starts_with(prefix));
            let below = if depth == 0 { 0 } else { own_cgroups(&entry.path(), prefix, depth - 1) };
            own + below
        })
        .sum()
}

/// Mounts that come and go beside a test: an engine's for its containers, and the disk of the storm.
fn of_others(mount: &str) -> bool {
    ["/overlay2/", "/containers/", "/netns/", " overmind-storm "]
        .iter()
        .any(|part| mount.contains(part))
}

/// The maximum memory of this process so far, in bytes.
pub(crate) fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Whether this host has a program, for tests of what runs inside.
pub(crate) fn host_has(program: &str) -> bool {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists());
    if !found {
        eprintln!("skipped: {program} is not installed here");
    }
    found
}

/// A character device with state that this user may open, if the host has one.
pub(crate) fn device_with_state() -> Option<PathBuf> {
    let open =
        |path: &PathBuf| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let found = ["/dev/kvm", "/dev/fuse", "/dev/net/tun"].map(PathBuf::from).into_iter().find(open);
    if found.is_none() {
        eprintln!("skipped: this user may open no device with state here");
    }
    found
}

/// A listener on the host's loopback; a sandbox with its own network cannot reach it.
pub(crate) fn host_listener() -> (std::net::TcpListener, u16) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}
