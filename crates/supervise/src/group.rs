//! Cgroups of processes: with them a process tree is found, measured, limited and killed, whatever
//! it does.
//!
//! The daemon determines once what this machine allows ([`Bases::discover`]) and makes a [`Plan`]
//! for each process; the supervisor process executes it. Version 2, if it is mounted anywhere (also
//! beside version 1), is used to find and kill; limits are set in the hierarchy that has the
//! controllers. Without cgroups, trees are found by parents and environment marks. That is slower,
//! and misses only processes that other daemons start for a session.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use overmind_core::process::{GroupLimits, GroupWish, ProcessKey};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Version {
    V1,
    V2,
}

/// A directory in which groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    version: Version,
    directory: PathBuf,
    controllers: Vec<String>,
}

/// The directories in which this daemon can have groups made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bases {
    bases: Vec<Base>,
}

/// One group, which the supervisor process will make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) version: Version,
    pub(crate) directory: PathBuf,
    /// Files with the values to write into them.
    settings: Vec<(String, String)>,
}

/// The groups of one process; the tree is found by the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) places: Vec<Place>,
}

/// Controllers of version 1 by which a tree can be found, best first.
const TRACKING: [&str; 3] = ["pids", "freezer", "cpuacct"];
const BOUNDING: [&str; 3] = ["memory", "pids", "cpu"];
/// The scheduling period of a processor, in microseconds.
const PERIOD: u64 = 100_000;

impl Bases {
    /// Examines the running system. This costs some file operations, once.
    pub(crate) fn discover() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let all = candidates(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let usable = |base: &Base| {
            let probe = base.directory.join(format!("overmind-try-{}", std::process::id()));
            std::fs::create_dir(&probe).is_ok() && {
                let joined =
                    std::fs::OpenOptions::new().write(true).open(probe.join("cgroup.procs"));
                std::fs::remove_dir(&probe).is_ok() && joined.is_ok()
            }
        };
        let mut bases: Vec<Base> = Vec::new();
        for base in all {
            // For version 2 one place is enough: the first that can be used.
            let again = base.version == Version::V2
                && bases.iter().any(|other| other.version == Version::V2);
            if !again && usable(&base) {
                bases.push(base);
            }
        }
        Self { bases }
    }

    /// # Errors
    ///
    /// Names the requested limits that this machine cannot enforce.
    pub(crate) fn plan(&self, key: ProcessKey, wish: &GroupWish) -> Result<Plan, String> {
        let limits = match wish {
            GroupWish::Never => return Ok(Plan::default()),
            GroupWish::IfPossible => GroupLimits::default(),
            GroupWish::Bounded(limits) => *limits,
        };
        let name = name(key);
        let place = |base: &Base| Place {
            version: base.version,
            directory: base.directory.join(&name),
            settings: Vec::new(),
        };
        let tracking = self
            .bases
            .iter()
            .find(|base| base.version == Version::V2)
            .or_else(|| TRACKING.iter().find_map(|one| self.with(one)));
        let mut places: Vec<Place> = tracking.map(place).into_iter().collect();
        for controller in BOUNDING {
            let version = |base: &Base| settings(base.version, controller, &limits);
            let wanted = !settings(Version::V2, controller, &limits).is_empty();
            if !wanted {
                continue;
            }
            let Some(base) = self.with(controller) else {
                return Err(format!(
                    "no control group of this machine lets this user bound `{controller}`; run \
                     the daemon with Delegate=yes, or start without this bound"
                ));
            };
            let directory = base.directory.join(&name);
            let settings = version(base);
            match places.iter_mut().find(|place| place.directory == directory) {
                Some(place) => place.settings.extend(settings),
                None => places.push(Place { settings, ..place(base) }),
            }
        }
        Ok(Plan { places })
    }

    fn with(&self, controller: &str) -> Option<&Base> {
        self.bases.iter().find(|base| base.controllers.iter().any(|one| one == controller))
    }

    /// The groups that a process may have left, whatever its settings were.
    pub(crate) fn possible(&self, key: ProcessKey) -> Vec<PathBuf> {
        let name = name(key);
        let all = self.bases.iter().map(|base| base.directory.join(&name));
        all.filter(|directory| directory.exists()).collect()
    }
}

fn name(key: ProcessKey) -> String {
    format!("overmind-life-{key}")
}

fn settings(version: Version, controller: &str, limits: &GroupLimits) -> Vec<(String, String)> {
    let one = |file: &str, value: String| vec![(file.to_owned(), value)];
    match (version, controller) {
        (Version::V1, "memory") => limits
            .memory_bytes
            .map_or_else(Vec::new, |bytes| one("memory.limit_in_bytes", bytes.to_string())),
        (Version::V2, "memory") => {
            limits.memory_bytes.map_or_else(Vec::new, |bytes| one("memory.max", bytes.to_string()))
        }
        (_, "pids") => limits.pids.map_or_else(Vec::new, |pids| one("pids.max", pids.to_string())),
        (Version::V1, "cpu") => limits.cpus.map_or_else(Vec::new, |cpus| {
            let mut both = one("cpu.cfs_period_us", PERIOD.to_string());
            both.extend(one("cpu.cfs_quota_us", quota(cpus).to_string()));
            both
        }),
        (Version::V2, "cpu") => limits
            .cpus
            .map_or_else(Vec::new, |cpus| one("cpu.max", format!("{} {PERIOD}", quota(cpus)))),
        _ => Vec::new(),
    }
}

/// Microseconds in each period. The kernel accepts no less than a millisecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and below a millisecond is raised to it"
)]
fn quota(cpus: f64) -> u64 {
    ((cpus * PERIOD as f64).round() as u64).max(1000)
}

/// The groups that were made for one process.
#[derive(Debug, Default)]
pub(crate) struct Group {
    places: Vec<Place>,
}

impl Group {
    /// Makes the groups. An existing one belongs to a lost process with the same key and is emptied
    /// first.
    ///
    /// # Errors
    ///
    /// Fails with the directory or file that was refused; no group is left then.
    pub(crate) fn make(plan: Plan) -> Result<Self, (PathBuf, io::Error)> {
        let mut made = Self::default();
        for place in plan.places {
            if let Err(err) = make_one(&place) {
                made.places.push(place.clone());
                made.remove();
                return Err((place.directory, err));
            }
            made.places.push(place);
        }
        Ok(made)
    }

    /// The directory of the group in which a child can be created.
    pub(crate) fn birthplace(&self) -> Option<OwnedFd> {
        let place = self.places.first().filter(|place| place.version == Version::V2)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&place.directory, flags, Mode::empty()).ok()
    }

    /// The files to which a process writes `0` to join; without the first group if it was created
    /// there.
    pub(crate) fn to_join(&self, born: bool) -> io::Result<Vec<File>> {
        let rest = self.places.iter().skip(usize::from(born));
        rest.map(|place| {
            std::fs::OpenOptions::new().write(true).open(place.directory.join("cgroup.procs"))
        })
        .collect()
    }

    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        self.places.iter().map(|place| place.directory.clone()).collect()
    }

    /// All processes in the group now; `None` without a group.
    pub(crate) fn processes(&self) -> Option<Vec<i32>> {
        self.places.first().map(|place| processes(&place.directory))
    }

    /// Sends KILL to everything in the group; returns `true` if the kernel did that in one step.
    pub(crate) fn kill(&self) -> bool {
        self.places.first().is_some_and(|place| kill(&place.directory))
    }

    /// Processor time of all processes that were ever in the group, if the kernel counts it.
    pub(crate) fn cpu(&self) -> Option<(std::time::Duration, std::time::Duration)> {
        let place = self.places.first().filter(|place| place.version == Version::V2)?;
        let stat = std::fs::read_to_string(place.directory.join("cpu.stat")).ok()?;
        let of = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).map(std::time::Duration::from_micros)
        };
        Some((of("user_usec ")?, of("system_usec ")?))
    }

    /// How many of its processes the kernel has killed because memory ran out, and the group's
    /// memory limit in bytes; `None` if there is none.
    pub(crate) fn starved(&self) -> Option<(u64, u64)> {
        self.places.iter().find_map(|place| {
            let bound = place.settings.iter().find(|(file, _)| file.starts_with("memory."))?;
            let file = match place.version {
                Version::V1 => "memory.oom_control",
                Version::V2 => "memory.events",
            };
            let text = std::fs::read_to_string(place.directory.join(file)).ok()?;
            let killed = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            let killed = killed?.trim().parse().ok().filter(|killed| *killed > 0)?;
            Some((killed, bound.1.parse().ok()?))
        })
    }

    /// Removes the groups, which must be empty by now; returns those that are not, which stay.
    pub(crate) fn remove(&self) -> Vec<PathBuf> {
        self.places
            .iter()
            .filter(|place| !remove(&place.directory))
            .map(|p| p.directory.clone())
            .collect()
    }
}

fn make_one(place: &Place) -> io::Result<()> {
    match std::fs::create_dir(&place.directory) {
        Ok(()) => {}
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
            kill(&place.directory);
        }
        Err(err) => return Err(err),
    }
    for (file, value) in &place.settings {
        // The file is not truncated, because it is a kernel interface.
        let opened = std::fs::OpenOptions::new().write(true).open(place.directory.join(file));
        opened.and_then(|mut file| file.write_all(value.as_bytes()))?;
    }
    Ok(())
}

/// The processes of a group and of the groups below it.
pub(crate) fn processes(directory: &Path) -> Vec<i32> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(directory.join("cgroup.procs")) {
        // Groups and processes may end meanwhile: an error means an empty group.
        let _ = file.read_to_string(&mut text);
    }
    let mut found: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for below in subgroups(directory) {
        found.extend(processes(&below));
    }
    found
}

fn subgroups(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.map(|entry| entry.path()).collect()
}

/// Kills everything in a group; returns `true` if the kernel did it in one step, including running
/// forks.
pub(crate) fn kill(directory: &Path) -> bool {
    let at_once = std::fs::OpenOptions::new().write(true).open(directory.join("cgroup.kill"));
    if at_once.and_then(|mut file| file.write_all(b"1")).is_ok() {
        return true;
    }
    for pid in processes(directory) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            // It is no error if the process has ended.
            let _ = crate::sys::kill(pid, libc::SIGKILL);
        }
    }
    false
}

/// Removes a group and the groups below it; returns `false` while one is not empty.
pub(crate) fn remove(directory: &Path) -> bool {
    // Usually none is below, and a search costs as much as this attempt.
    if remove_one(directory) {
        return true;
    }
    for below in subgroups(directory) {
        remove(&below);
    }
    remove_one(directory)
}

fn remove_one(directory: &Path) -> bool {
    match std::fs::remove_dir(directory) {
        Ok(()) => true,
        Err(err) => err.kind() == io::ErrorKind::NotFound,
    }
}

/// The places where groups could be made, from the kernel's data about this process.
fn candidates(own: &str, mountinfo: &str) -> Vec<Base> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let mut before = before.split(' ').skip(3);
        let (Some(root), Some(point)) = (before.next(), before.next()) else { continue };
        let mut after = after.split(' ');
        let version = match after.next() {
            Some("cgroup") => Version::V1,
            Some("cgroup2") => Version::V2,
            Some(_) | None => continue,
        };
        let options: Vec<String> =
            after.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
        let mine = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = match version {
                Version::V1 => names.split(',').any(|name| options.iter().any(|one| one == name)),
                Version::V2 => number == "0" && names.is_empty(),
            };
            fits.then_some(path)
        });
        let Some(path) = mine.and_then(|path| Path::new(path).strip_prefix(root).ok()) else {
            continue;
        };
        let point = PathBuf::from(point);
        let own = if path.as_os_str().is_empty() { point.clone() } else { point.join(path) };
        match version {
            Version::V1 => found.push(Base { version, directory: own, controllers: options }),
            Version::V2 => {
                // The first choice is beside the daemon's own group, because a group with processes
                // cannot enable controllers for its children. The second is below it, where nothing
                // can be limited.
                let beside = own.parent().filter(|_| own != point).map(Path::to_owned);
                for directory in beside.into_iter().chain([own]) {
                    let controllers = enabled(&directory);
                    found.push(Base { version, directory, controllers });
                }
            }
        }
    }
    found
}

/// Enables controllers for children of `directory`, and returns those that are enabled.
fn enabled(directory: &Path) -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
    let offered = read("cgroup.controllers");
    for controller in BOUNDING.iter().filter(|one| offered.split_whitespace().any(|o| o == **one)) {
        // The write fails if the group has processes; the file is read back to see the result.
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .open(directory.join("cgroup.subtree_control"))
            .and_then(|mut file| file.write_all(format!("+{controller}").as_bytes()));
    }
    read("cgroup.subtree_control").split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use overmind_core::ids::SessionId;

    use super::*;

    const KEY: ProcessKey = ProcessKey { session: SessionId::from_u128(7), epoch: 2 };

    fn base(version: Version, directory: &str, controllers: &[&str]) -> Base {
        let controllers = controllers.iter().map(|&one| one.to_owned()).collect();
        Base { version, directory: directory.into(), controllers }
    }

    #[test]
    fn a_tree_is_tracked_with_cgroup_v2_and_limited_if_its_controllers_exist() {
        let bases = Bases {
            bases: vec![
                base(Version::V1, "/cg/memory/own", &["memory"]),
                base(Version::V1, "/cg/pids", &["pids"]),
                base(Version::V2, "/cg/unified", &[]),
            ],
        };
        let plan = bases.plan(KEY, &GroupWish::IfPossible).unwrap();
        assert_eq!(plan.places.len(), 1);
        assert!(plan.places[0].directory.starts_with("/cg/unified"));
        let limits = GroupLimits { memory_bytes: Some(1 << 20), pids: Some(50), cpus: None };
        let plan = bases.plan(KEY, &GroupWish::Bounded(limits)).unwrap();
        let files: Vec<&str> =
            plan.places.iter().flat_map(|p| &p.settings).map(|(file, _)| file.as_str()).collect();
        assert_eq!(files, ["memory.limit_in_bytes", "pids.max"]);
        assert!(bases.plan(KEY, &GroupWish::Never).unwrap().places.is_empty());
        let limits = GroupLimits { cpus: Some(0.5), ..limits };
        let refused = bases.plan(KEY, &GroupWish::Bounded(limits)).unwrap_err();
        assert!(refused.contains("`cpu`"), "{refused}");
    }

    #[test]
    fn one_hierarchy_gets_one_cgroup() {
        let all = &["memory", "pids", "cpu"];
        let bases = Bases { bases: vec![base(Version::V2, "/cg/service", all)] };
        let limits = GroupLimits { memory_bytes: Some(4096), pids: Some(3), cpus: Some(0.25) };
        let plan = bases.plan(KEY, &GroupWish::Bounded(limits)).unwrap();
        assert_eq!(plan.places.len(), 1);
        let expected = [("memory.max", "4096"), ("pids.max", "3"), ("cpu.max", "25000 100000")];
        let found: Vec<(&str, &str)> =
            plan.places[0].settings.iter().map(|(f, v)| (f.as_str(), v.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn cgroups_are_found_where_the_kernel_says() {
        let own = "4:memory:/api/x\n3:pids:/\n0::/user.slice/session.scope\n";
        let mounts = "\
29 25 0:26 / /cg/memory rw - cgroup cgroup rw,memory
30 25 0:27 / /cg/pids rw - cgroup cgroup rw,pids
31 25 0:28 / /cg/unified rw - cgroup2 cgroup2 rw
32 25 0:29 / /proc rw - proc proc rw
";
        let directories: Vec<PathBuf> =
            candidates(own, mounts).into_iter().map(|base| base.directory).collect();
        assert_eq!(
            directories,
            [
                Path::new("/cg/memory/api/x"),
                Path::new("/cg/pids"),
                Path::new("/cg/unified/user.slice"),
                Path::new("/cg/unified/user.slice/session.scope"),
            ]
        );
    }
}
