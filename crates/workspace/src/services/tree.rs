//! Finds every process that belongs to something, and ends all of them.
//!
//! A process belongs if it is in the process group or in the cgroup, has the mark in its
//! environment, or descends from one that does. The four complement each other: a double fork
//! leaves the descent, `setsid` the group, a cleared environment the mark. A process that leaves
//! all of these is still in the cgroup. If no cgroup can be made, the command is started below a
//! *reaper* ([`overmind_core::enclosure::Enclose::reaped`]), which becomes the parent of every
//! process that has lost its own. A reaper is never killed: when it ends by itself, no process of
//! its command is left.
//!
//! Processes are created and execute other programs during the search. A process without an
//! environment, because it is executing another program, is checked again; and only two searches in
//! a row without a result prove that no process belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::enclosure::REAPER;
use overmind_core::time::Clock;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks a process of a lease: `home:session`.
pub(crate) const LEASE_MARK: &str = "OVERMIND_LEASE";
/// The variable that marks a process of one service or hook.
pub(crate) const PROCESS_MARK: &str = "OVERMIND_PROCESS";

/// How long KILL may take: a process may be in the middle of a disk write.
const KILL: Duration = Duration::from_secs(10);
/// How long a reaper may take to end after all of its processes have ended.
const REAPED: Duration = Duration::from_secs(5);
/// How often a process that is executing another program is checked, and the pause in between. It
/// takes microseconds, and longer only if it gets no processor or waits for a disk.
const BECOMING: u32 = 2000;
const AWHILE: Duration = Duration::from_millis(1);

/// The fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// The session, by the number of the process that began it; 0 if that is not visible.
    pub(crate) session: u32,
    /// Clock ticks since the machine's start; together with the number they identify the process.
    pub(crate) started: u64,
    /// Whether it has ended but was not reaped yet.
    pub(crate) zombie: bool,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, so fields are counted from its end.
    let rest = text.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The id of this start of the machine, because process numbers are only valid for one.
pub(crate) fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The number of every visible process.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// Whether the process exists and has not ended.
pub(crate) fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.zombie)
}

/// The value of a variable in the environment with which the process was started.
pub(crate) fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = environment(pid)?;
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Whether its environment should be read: [`overmind_core::enclosure::tells_whose`].
fn tells_whose(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| overmind_core::enclosure::tells_whose(&status))
}

/// The processes whose environment names their owner.
pub(crate) fn telling() -> impl Iterator<Item = u32> {
    pids().filter(|pid| tells_whose(*pid))
}

/// The environment with which a process was started.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let path = format!("/proc/{pid}/environ");
    for _ in 0..BECOMING {
        let found = std::fs::read(&path).ok()?;
        if !found.is_empty() || !becoming(pid) {
            return Some(found);
        }
        std::thread::sleep(AWHILE);
    }
    Some(Vec::new())
}

/// Whether a process without an environment is just executing another program: then the address of
/// its environment is not known yet. For a process with an empty environment it is known, and
/// kernel threads have no program.
fn becoming(pid: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((_, rest)) = text.rsplit_once(')') else { return false };
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next(), Some("Z" | "X") | None);
    // It is the 51st field; the state is the third.
    let end = fields.nth(47).and_then(|end| end.parse::<u64>().ok());
    !ended && end == Some(0) && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// Whether it is a reaper. A reaper's command also counts as one until it executes its program.
fn is_reaper(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(REAPER.as_bytes())
}

/// The conditions by which a process belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Belongs {
    /// A first process and its start time; its group counts while the process or its group exists.
    pub(crate) leader: Option<(u32, u64)>,
    /// A variable and its value.
    pub(crate) mark: Option<(&'static str, String)>,
    pub(crate) cgroups: Vec<PathBuf>,
    /// Whether its first process represents a program in a sandbox below it and forwards signals to
    /// it, so that processes below it are not signalled twice.
    pub(crate) enclosed: bool,
}

impl Belongs {
    /// Every living process that belongs, except this one.
    ///
    /// Without a cgroup it examines every process of the machine, which takes a few microseconds
    /// for each. Children always stay in a cgroup.
    pub(crate) fn members(&self) -> BTreeSet<u32> {
        let mut found: BTreeSet<u32> = BTreeSet::new();
        let mut complete = false;
        for directory in self.cgroups.iter().filter(|directory| directory.exists()) {
            complete = true;
            found.extend(in_cgroup(directory));
        }
        // It joins its group a moment after its start.
        if let Some((pid, started)) = self.leader
            && stat(pid).is_some_and(|stat| stat.started == started)
        {
            found.insert(pid);
        }
        if !complete {
            if let Some((name, value)) = &self.mark {
                found.extend(telling().filter(|pid| variable(*pid, name).as_ref() == Some(value)));
            }
            if self.leader.is_some() || !found.is_empty() {
                self.kin(&mut found);
            }
        }
        found.remove(&std::process::id());
        found.retain(|pid| lives(*pid));
        found
    }

    /// Adds the leader's group, and all descendants.
    fn kin(&self, found: &mut BTreeSet<u32>) {
        let all: BTreeMap<u32, Stat> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
        if let Some((pid, started)) = self.leader {
            // The number of a group is not assigned to a new process while the group has members.
            // After the whole group has ended, a new process may have got it: then the leader is
            // another process.
            let same = all.get(&pid).is_none_or(|stat| stat.started == started);
            let grouped =
                all.iter().filter(|(_, stat)| same && stat.group == pid && stat.started >= started);
            found.extend(grouped.map(|(pid, _)| *pid));
        }
        loop {
            let before = found.len();
            for (pid, stat) in &all {
                if found.contains(&stat.parent) {
                    found.insert(*pid);
                }
            }
            if found.len() == before {
                break;
            }
        }
    }

    /// Works as [`members`](Self::members), but an empty result was found twice in a row: the
    /// second search finds a process that was created during the first.
    ///
    /// The search may take long on a busy machine, so it runs on a thread that may block.
    async fn members_for_certain(&self) -> BTreeSet<u32> {
        let this = self.clone();
        let look = tokio::task::spawn_blocking(move || {
            let found = this.members();
            if found.is_empty() { this.members() } else { found }
        });
        match look.await {
            Ok(found) => found,
            Err(err) => match err.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is ending, so nothing continues from here.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Ends every process that belongs: first TERM, then KILL after `grace`. Returns those that are
    /// left, which are only processes that the kernel itself blocks.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some processes may continue; call it again.
    pub(crate) async fn end(&self, grace: Duration, clock: &dyn Clock) -> BTreeSet<u32> {
        let mut members = self.members_for_certain().await;
        if !members.is_empty() && !grace.is_zero() {
            let below = |pid: u32| stat(pid).is_some_and(|stat| members.contains(&stat.parent));
            let passed = |pid: u32| is_reaper(pid) || (self.enclosed && below(pid));
            for pid in members.iter().filter(|pid| !passed(**pid)) {
                signal(*pid, Signal::TERM);
            }
            self.wait(&members, grace, clock).await;
            members = self.members_for_certain().await;
        }
        let deadline = clock.now().after(KILL);
        // A process that looks like a reaper must not run forever.
        let reaped = clock.now().after(REAPED);
        loop {
            while !members.is_empty() && clock.now() < deadline {
                for directory in &self.cgroups {
                    // Version 2 ends a whole group at once, including running forks.
                    let _ = std::fs::write(directory.join("cgroup.kill"), "1");
                }
                let late = clock.now() >= reaped;
                for pid in members.iter().filter(|pid| late || !is_reaper(**pid)) {
                    signal(*pid, Signal::KILL);
                }
                self.wait(&members, Duration::from_millis(100), clock).await;
                members = self.members_for_certain().await;
            }
            if !members.is_empty() {
                return members;
            }
            // A process that was started just before this may join its group only now.
            let joined = self.remove_cgroups(clock).await;
            if joined.is_empty() {
                return joined;
            }
            members = joined;
        }
    }

    /// Waits until these and all processes in a cgroup have ended. That is cheap to check, and the
    /// whole search is repeated afterwards.
    async fn wait(&self, known: &BTreeSet<u32>, limit: Duration, clock: &dyn Clock) {
        let deadline = clock.now().after(limit);
        let mut pause = Duration::from_millis(1);
        loop {
            let grouped = self.cgroups.iter().flat_map(|directory| in_cgroup(directory));
            let gone = !known.iter().copied().chain(grouped).any(lives);
            if gone || clock.now() >= deadline {
                return;
            }
            clock.sleep_until(clock.now().after(pause).min(deadline)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Removes the groups, which is possible a moment after the last member's end. Returns the
    /// processes in groups that could not be removed.
    async fn remove_cgroups(&self, clock: &dyn Clock) -> BTreeSet<u32> {
        for directory in &self.cgroups {
            for _ in 0..200 {
                match std::fs::remove_dir(directory) {
                    Err(err) if err.kind() == std::io::ErrorKind::ResourceBusy => {}
                    Ok(()) | Err(_) => break,
                }
                let joined: BTreeSet<u32> =
                    in_cgroup(directory).into_iter().filter(|pid| lives(*pid)).collect();
                if !joined.is_empty() {
                    return joined;
                }
                clock.sleep_until(clock.now().after(Duration::from_millis(5))).await;
            }
        }
        BTreeSet::new()
    }
}

pub(crate) fn in_cgroup(directory: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Signals a process, which is checked again once its number can no longer be reused.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let Some(before) = stat(pid) else { return };
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(file) = pidfd_open(number, PidfdFlags::empty()) else { return };
    // It is still the same process, which the descriptor now refers to.
    if stat(pid).is_some_and(|now| now.started == before.started) {
        let _ = pidfd_send_signal(&file, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use overmind_core::Fut;
    use overmind_core::time::Timestamp;

    use super::*;
    use crate::services::cgroup::Cgroups;

    /// A clock in whose first pause a process joins a group.
    #[derive(Debug)]
    struct Late {
        group: PathBuf,
        pid: u32,
        /// Prevents the removal of the group before that.
        below: Mutex<Option<PathBuf>>,
    }

    impl Clock for Late {
        fn now(&self) -> Timestamp {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            Timestamp::from_micros(now.tv_sec * 1_000_000 + now.tv_nsec / 1000)
        }

        fn sleep_until(&self, deadline: Timestamp) -> Fut<'_, ()> {
            let below = self.below.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(below) = below {
                std::fs::write(self.group.join("cgroup.procs"), self.pid.to_string()).unwrap();
                std::fs::remove_dir(below).unwrap();
            }
            let wait = deadline.as_micros().saturating_sub(self.now().as_micros());
            std::thread::sleep(Duration::from_micros(u64::try_from(wait).unwrap_or_default()));
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn processes_that_join_a_dying_cgroup_are_ended() {
        let name = format!("late-{}", std::process::id());
        let Some(group) = Cgroups::discover().make(&name) else { return };
        let below = group.join("below");
        std::fs::create_dir(&below).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let clock = Late { group: group.clone(), pid: child.id(), below: Mutex::new(Some(below)) };
        let belongs = Belongs { cgroups: vec![group.clone()], ..Belongs::default() };
        assert_eq!(belongs.end(Duration::ZERO, &clock).await, BTreeSet::new());
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        assert!(!group.exists());
    }
}
