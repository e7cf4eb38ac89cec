//! Limits a whole tree of processes with a cgroup for each command, if the daemon may make one.
//!
//! Both versions are supported: version 1 (one hierarchy for each controller) and version 2 (one
//! for all). The daemon makes the group below its own and passes the init a descriptor. Through it,
//! the process that becomes the command joins the group first. So a command never runs outside of
//! its group, and the init's own processes are not counted. A waiting init's group gets its limits
//! together with its command.
//!
//! In version 2 a group with processes of its own cannot enable controllers for its children. So
//! the daemon must be in a leaf (systemd: `Delegate=yes` and `DelegateSubgroup=daemon`), and the
//! commands' groups are made beside that leaf.
//!
//! A group is removed when its command has ended. If a call was dropped, a thread removes its group
//! as soon as its processes have ended. Groups that a killed daemon left are removed when the next
//! daemon makes its own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use overmind_core::sandbox::SandboxLimits;

/// A resource that a group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

const CONTROLLERS: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

impl Controller {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A directory in which groups can be made, and the resources that they limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    version: Version,
    directory: PathBuf,
    controllers: Vec<Controller>,
}

/// The places where this daemon makes groups, found once.
#[derive(Debug)]
pub(crate) struct Cgroups {
    bases: Vec<Base>,
    /// The resources that no group can limit, and why.
    missing: Vec<(Controller, String)>,
    /// Distinguishes the groups of this daemon from those of other daemons, also ended ones.
    name: String,
    reaper: Arc<Reaper>,
}

/// The number of the next group; shared by all drivers of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

const PREFIX: &str = "overmind-";
/// The scheduling period of a processor, in microseconds.
const PERIOD: u64 = 100_000;

impl Cgroups {
    /// Examines the running system. This costs some file operations, once.
    pub(crate) fn discover() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let candidates = candidates(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let pid = std::process::id();
        let start = started(pid).unwrap_or_default();
        Self::of(candidates, format!("{PREFIX}{pid}-{start}"))
    }

    /// Keeps the candidates in which a group can really be made and limited.
    fn of(candidates: Vec<Base>, name: String) -> Self {
        let mut this =
            Self { bases: Vec::new(), missing: Vec::new(), name, reaper: Arc::default() };
        let mut refused: Vec<(Controller, String)> = Vec::new();
        for base in candidates {
            sweep(&base.directory);
            match this.try_out(&base) {
                Ok(()) => this.bases.push(base),
                Err(err) => {
                    let why = format!("{}: {err}", base.directory.display());
                    refused.extend(base.controllers.iter().map(|one| (*one, why.clone())));
                }
            }
        }
        for controller in CONTROLLERS {
            if this.bases.iter().any(|base| base.controllers.contains(&controller)) {
                continue;
            }
            let why = refused.iter().find(|(one, _)| *one == controller).map_or_else(
                || format!("no cgroup hierarchy offers `{}` to this process", controller.as_str()),
                |(_, why)| why.clone(),
            );
            this.missing.push((controller, why));
        }
        this
    }

    fn try_out(&self, base: &Base) -> io::Result<()> {
        let directory = self.make_in(base, Some(&SandboxLimits::default()))?;
        let opened = open_procs(&directory);
        std::fs::remove_dir(&directory)?;
        opened.map(drop)
    }

    /// Makes the groups for one command; without `limits` they limit nothing until
    /// [`Group::bound`].
    ///
    /// # Errors
    ///
    /// Fails if a directory that could be created at the start can no longer be created.
    pub(crate) fn make(&self, limits: Option<&SandboxLimits>) -> io::Result<Group> {
        let mut group = Group {
            directories: Vec::with_capacity(self.bases.len()),
            bases: Vec::with_capacity(self.bases.len()),
            procs: Vec::with_capacity(self.bases.len()),
            reaper: Arc::clone(&self.reaper),
        };
        for base in &self.bases {
            let directory = self.make_in(base, limits)?;
            group.directories.push(directory.clone());
            group.bases.push(base.clone());
            group.procs.push(open_procs(&directory)?);
        }
        Ok(group)
    }

    fn make_in(&self, base: &Base, limits: Option<&SandboxLimits>) -> io::Result<PathBuf> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = base.directory.join(format!("{}-{number}", self.name));
        std::fs::create_dir(&directory).map_err(|err| named(&err, &directory))?;
        match limits.map_or(Ok(()), |limits| bound(base, &directory, limits)) {
            Ok(()) => Ok(directory),
            Err(err) => {
                let _ = std::fs::remove_dir(&directory);
                Err(err)
            }
        }
    }

    /// The mechanism that enforces a controller, or the reason why there is none.
    pub(crate) fn enforced(&self, controller: Controller) -> Result<&'static str, &str> {
        if let Some(base) = self.bases.iter().find(|base| base.controllers.contains(&controller)) {
            return Ok(match base.version {
                Version::V1 => "cgroup v1, for the whole tree",
                Version::V2 => "cgroup v2, for the whole tree",
            });
        }
        let why = self.missing.iter().find(|(one, _)| *one == controller);
        Err(why.map_or("", |(_, why)| why))
    }

    /// Waits until the groups of dropped calls are removed; `false` if that takes longer.
    pub(crate) fn settled(&self, within: Duration) -> bool {
        self.reaper.settled(within)
    }
}

fn named(err: &io::Error, path: &Path) -> io::Error {
    io::Error::new(err.kind(), format!("{}: {err}", path.display()))
}

/// Writes the limits to a group's files.
fn bound(base: &Base, directory: &Path, limits: &SandboxLimits) -> io::Result<()> {
    let write = |file: &str, value: String| {
        let path = directory.join(file);
        std::fs::write(&path, value).map_err(|err| named(&err, &path))
    };
    // Some kernels lack swap accounting or a newer file; the other files already limit that
    // resource.
    let write_if_there = |file: &str, value: &str| {
        let path = directory.join(file);
        match std::fs::OpenOptions::new().write(true).truncate(true).open(&path) {
            Ok(mut file) => file.write_all(value.as_bytes()).map_err(|err| named(&err, &path)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(err) => Err(named(&err, &path)),
        }
    };
    let memory = limits.memory_bytes;
    for controller in &base.controllers {
        match (base.version, controller) {
            (Version::V1, Controller::Memory) => {
                write("memory.limit_in_bytes", memory.to_string())?;
                // This is memory and swap together, so there is no swap on top.
                write_if_there("memory.memsw.limit_in_bytes", &memory.to_string())?;
            }
            (Version::V2, Controller::Memory) => {
                write("memory.max", memory.to_string())?;
                write_if_there("memory.swap.max", "0")?;
                write_if_there("memory.oom.group", "1")?;
            }
            (Version::V1 | Version::V2, Controller::Pids) => {
                write("pids.max", limits.pids.to_string())?;
            }
            (Version::V1, Controller::Cpu) => {
                write("cpu.cfs_period_us", PERIOD.to_string())?;
                write("cpu.cfs_quota_us", quota(limits.cpus).to_string())?;
            }
            (Version::V2, Controller::Cpu) => {
                write("cpu.max", format!("{} {PERIOD}", quota(limits.cpus)))?;
            }
        }
    }
    Ok(())
}

/// Microseconds in each period. The kernel accepts no less than a millisecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates; checked to be finite and above 0"
)]
fn quota(cpus: f64) -> u64 {
    ((cpus * PERIOD as f64).round() as u64).max(1000)
}

fn open_procs(directory: &Path) -> io::Result<OwnedFd> {
    let path = directory.join("cgroup.procs");
    let opened = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&path);
    opened.map(Into::into).map_err(|err| named(&err, &path))
}

/// Puts this process into the group. The init calls it.
pub(crate) fn join(procs: &OwnedFd) -> io::Result<()> {
    File::from(procs.try_clone()?).write_all(b"0")
}

/// The places where groups could be made, from the kernel's data about this process.
fn candidates(own: &str, mountinfo: &str) -> Vec<Base> {
    let mut found: Vec<Base> = Vec::new();
    for mount in mountinfo.lines().filter_map(CgroupMount::parse) {
        let path = own.lines().find_map(|line| mount.own_path(line));
        let Some(mut directory) = path.and_then(|path| mount.directory(path)) else { continue };
        let controllers = match mount.version {
            Version::V1 => mount.controllers,
            Version::V2 => {
                directory = beside_or_below(&directory, &mount.point);
                enable(&directory)
            }
        };
        let controllers: Vec<_> = controllers
            .into_iter()
            .filter(|one| !found.iter().any(|base| base.controllers.contains(one)))
            .collect();
        if !controllers.is_empty() {
            found.push(Base { version: mount.version, directory, controllers });
        }
    }
    found
}

/// A line of mountinfo for a cgroup hierarchy.
struct CgroupMount {
    version: Version,
    /// The part of the hierarchy that is mounted.
    root: String,
    point: PathBuf,
    /// The controllers, for version 1.
    controllers: Vec<Controller>,
}

impl CgroupMount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let (root, point) = (before.nth(3)?.to_owned(), PathBuf::from(before.next()?));
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        let options: Vec<&str> = after.nth(1)?.split(',').collect();
        let controllers =
            CONTROLLERS.into_iter().filter(|one| options.contains(&one.as_str())).collect();
        Some(Self { version, root, point, controllers })
    }

    /// The path in a line of `/proc/self/cgroup`, if the line belongs to this hierarchy.
    fn own_path<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':');
        let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let mine = match self.version {
            Version::V1 => {
                let names: Vec<&str> = names.split(',').collect();
                self.controllers.iter().any(|one| names.contains(&one.as_str()))
            }
            Version::V2 => number == "0" && names.is_empty(),
        };
        mine.then_some(path)
    }

    /// The place where that path is mounted, if it is.
    fn directory(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        Some(if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

/// The directory for new groups in version 2: below the daemon's own group if that is the root,
/// otherwise beside it, because a group with processes cannot enable controllers for its children.
fn beside_or_below(own: &Path, root: &Path) -> PathBuf {
    match own.parent() {
        Some(parent) if own != root => parent.to_owned(),
        Some(_) | None => own.to_owned(),
    }
}

/// Enables controllers for children of `directory`, and returns those that could be enabled.
fn enable(directory: &Path) -> Vec<Controller> {
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
    let offered = read("cgroup.controllers");
    for one in CONTROLLERS {
        if offered.split_whitespace().any(|name| name == one.as_str()) {
            let _ = std::fs::write(
                directory.join("cgroup.subtree_control"),
                format!("+{}", one.as_str()),
            );
        }
    }
    let enabled = read("cgroup.subtree_control");
    CONTROLLERS
        .into_iter()
        .filter(|one| {
            enabled.split_whitespace().any(|name| name.trim_start_matches('+') == one.as_str())
        })
        .collect()
}

/// Removes groups of ended daemons. A group with processes stays, because it cannot be removed.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let mut parts = owner.split('-').map(str::parse::<u64>);
        let (Some(Ok(pid)), Some(Ok(start))) = (parts.next(), parts.next()) else { continue };
        let alive = u32::try_from(pid).ok().and_then(started) == Some(start);
        if !alive && std::fs::remove_dir(entry.path()).is_ok() {
            tracing::info!(group = %entry.path().display(), "removed a left-over cgroup");
        }
    }
}

/// The start time of a process, in ticks since the boot; `None` if there is no such process.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The groups of one command. After a drop they are removed as soon as they are empty.
#[derive(Debug)]
pub(crate) struct Group {
    directories: Vec<PathBuf>,
    /// The bases in which the groups were made.
    bases: Vec<Base>,
    procs: Vec<OwnedFd>,
    reaper: Arc<Reaper>,
}

impl Group {
    /// Sets the limits of groups that were made without.
    ///
    /// # Errors
    ///
    /// Fails if a limit cannot be set; then no command may run in the group.
    pub(crate) fn bound(&self, limits: &SandboxLimits) -> io::Result<()> {
        let mut all = self.bases.iter().zip(&self.directories);
        all.try_for_each(|(base, directory)| bound(base, directory, limits))
    }

    /// Descriptors for the init: a process that writes `0` to each joins the groups.
    pub(crate) fn procs(&self) -> &[OwnedFd] {
        &self.procs
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.directories.retain(|directory| std::fs::remove_dir(directory).is_err());
        self.reaper.take(std::mem::take(&mut self.directories));
    }
}

/// Removes groups whose processes are still ending.
#[derive(Debug, Default)]
struct Reaper {
    pending: Mutex<Pending>,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    directories: Vec<PathBuf>,
    /// Whether its thread is running.
    running: bool,
}

/// If the processes have not ended after this time, they are not expected to end.
const GIVE_UP: Duration = Duration::from_secs(120);

impl Reaper {
    fn take(self: &Arc<Self>, directories: Vec<PathBuf>) {
        if directories.is_empty() {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.directories.extend(directories);
        if pending.running {
            return;
        }
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("cgroup-reaper".to_owned());
        match thread.spawn(move || this.run()) {
            Ok(_) => pending.running = true,
            Err(err) => tracing::warn!(error = %err, "cgroups of ended commands stay for now"),
        }
    }

    fn run(&self) {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.directories.retain(|directory| {
                let left = std::fs::remove_dir(directory);
                left.is_err_and(|err| err.kind() != io::ErrorKind::NotFound)
            });
            if begun.elapsed() > GIVE_UP && !pending.directories.is_empty() {
                tracing::warn!(groups = ?pending.directories, "cgroups stay: their processes do");
                pending.directories.clear();
            }
            if pending.directories.is_empty() {
                pending.running = false;
                self.emptied.notify_all();
                return;
            }
        }
    }

    fn settled(&self, within: Duration) -> bool {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.emptied.wait_timeout_while(pending, within, |pending| pending.running);
        let (pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !pending.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_V1: &str = "9:name=systemd:/\n8:pids:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/\n";
    const MOUNTS_V1: &str = "\
        25 24 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
        26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        27 25 0:24 /a /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
        28 25 0:25 /elsewhere /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
        29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn cgroup_v1_is_found_by_controller_and_mount() {
        let found = candidates(OWN_V1, MOUNTS_V1);
        let base = |directory: &str, controller| Base {
            version: Version::V1,
            directory: directory.into(),
            controllers: vec![controller],
        };
        // Of pids another part is mounted than the one this process is in; the unified
        // hierarchy offers nothing.
        assert_eq!(
            found,
            [
                base("/sys/fs/cgroup/cpu,cpuacct", Controller::Cpu),
                base("/sys/fs/cgroup/memory/b", Controller::Memory),
            ]
        );
    }

    /// A directory with the files of version 2. The kernel makes them; here the test does.
    fn fake_v2(enabled: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let service = dir.path().join("service");
        std::fs::create_dir_all(service.join("daemon")).unwrap();
        std::fs::write(service.join("cgroup.controllers"), enabled).unwrap();
        std::fs::write(service.join("cgroup.subtree_control"), enabled).unwrap();
        let mounts = format!("29 25 0:26 / {} rw - cgroup2 cgroup2 rw\n", dir.path().display());
        (dir, mounts)
    }

    #[test]
    fn cgroup_v2_groups_are_siblings_of_the_servers_group() {
        let (dir, mounts) = fake_v2("memory");
        let found = candidates("0::/service/daemon\n", &mounts);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].directory, dir.path().join("service"));
        assert_eq!(found[0].controllers, [Controller::Memory], "what was handed on, no more");
    }

    #[test]
    fn each_cgroup_version_has_its_files() {
        let limits =
            SandboxLimits { memory_bytes: 1 << 20, cpus: 0.25, pids: 7, ..Default::default() };
        let read = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
        for (version, expected) in [
            (
                Version::V1,
                &[
                    ("memory.limit_in_bytes", "1048576"),
                    ("pids.max", "7"),
                    ("cpu.cfs_period_us", "100000"),
                    ("cpu.cfs_quota_us", "25000"),
                ][..],
            ),
            (
                Version::V2,
                &[("memory.max", "1048576"), ("pids.max", "7"), ("cpu.max", "25000 100000")],
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("memory.swap.max"), "max").unwrap();
            let base = Base {
                version,
                directory: dir.path().to_owned(),
                controllers: CONTROLLERS.to_vec(),
            };
            bound(&base, dir.path(), &limits).unwrap();
            for (file, value) in expected {
                assert_eq!(read(dir.path(), file), *value, "{file}");
            }
            if version == Version::V2 {
                assert_eq!(read(dir.path(), "memory.swap.max"), "0");
            }
            assert!(!dir.path().join("memory.oom.group").exists(), "only written where it is");
        }
    }

    #[test]
    fn a_processor_share_is_never_below_the_kernels_minimum() {
        assert_eq!(quota(0.000_001), 1000);
        assert_eq!(quota(2.0), 200_000);
    }

    #[test]
    fn an_image_without_kernel_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let base = Base {
            version: Version::V1,
            directory: dir.path().join("closed"),
            controllers: vec![Controller::Memory],
        };
        let groups = Cgroups::of(vec![base], "overmind-1-1".to_owned());
        assert!(groups.bases.is_empty());
        let why = groups.enforced(Controller::Memory).unwrap_err();
        assert!(why.contains("closed"), "{why}");
        let why = groups.enforced(Controller::Cpu).unwrap_err();
        assert!(why.contains("no cgroup hierarchy offers `cpu`"), "{why}");
        assert!(groups.make(Some(&SandboxLimits::default())).unwrap().procs().is_empty());
    }

    #[test]
    fn only_groups_of_dead_daemons_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let alive = format!("overmind-{own}-{}-0", started(own).unwrap());
        let names = [alive.as_str(), &format!("overmind-{own}-1-0"), "overmind-x", "other"];
        for name in names {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        sweep(dir.path());
        let left: Vec<bool> = names.iter().map(|name| dir.path().join(name).exists()).collect();
        assert_eq!(left, [true, false, true, true]);
    }

    #[test]
    fn a_non_empty_group_is_removed_later() {
        let dir = tempfile::tempdir().unwrap();
        let busy = dir.path().join("busy");
        std::fs::create_dir_all(busy.join("process")).unwrap();
        let reaper: Arc<Reaper> = Arc::default();
        drop(Group {
            directories: vec![busy.clone()],
            bases: Vec::new(),
            procs: Vec::new(),
            reaper: Arc::clone(&reaper),
        });
        assert!(busy.exists());
        std::fs::remove_dir(busy.join("process")).unwrap();
        assert!(reaper.settled(Duration::from_secs(20)));
        assert!(!busy.exists());
    }
}
