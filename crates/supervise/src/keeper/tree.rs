//! Finds and ends all processes of the command's tree.
//!
//! This process is the subreaper of its descendants: a process that loses its parent becomes its
//! own child, however often it forked and whatever its session is. So `wait` without any children
//! proves that nothing is left, and no other evidence is used.

use std::collections::{HashMap, HashSet};
use std::io;

use overmind_core::process::ExitStatus;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

use crate::group::Group;
use crate::proc::{self, Look, Stat};
use crate::sys;

/// Maximum number of scans of the whole machine in one round.
const LOOKS: u32 = 20;
/// Maximum number of scans of the youngest processes, and how many processes each scan covers.
const CHASES: u32 = 50;
const YOUNGEST: i32 = 64;

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) main: Pid,
    pub(crate) group: Group,
    own: i32,
    /// The processes that already got TERM.
    asked: HashSet<i32>,
    /// Whether the main process has ended, so that its number and its group's may be reused.
    main_gone: bool,
    /// Whether the main process represents a command that runs below it, in a process namespace.
    enclosed: bool,
    /// The process group of that command, once it was asked to end.
    commands_group: Option<i32>,
}

/// The result of one round of waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaped {
    /// The exit status of the main process.
    pub(crate) main: Option<ExitStatus>,
    /// Whether no child is left, and so no process of the tree.
    pub(crate) empty: bool,
}

impl Tree {
    pub(crate) fn new(main: Pid, group: Group, enclosed: bool) -> Self {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let (asked, main_gone, commands_group) = (HashSet::new(), false, None);
        Self { main, group, own, asked, main_gone, enclosed, commands_group }
    }

    /// The process whose group receives requests for the command.
    ///
    /// If the main process represents a command, that is the oldest child of its first child (the
    /// namespace's process 1, which starts nothing else before). While it leads no group of its own
    /// it has not started; then the main process forwards signals.
    fn leader(&self) -> Pid {
        if !self.enclosed || self.main_gone {
            return self.main;
        }
        commanding(&self.list(), self.main.as_raw_nonzero().get())
            .and_then(Pid::from_raw)
            .unwrap_or(self.main)
    }

    /// Reaps all ended processes.
    pub(crate) fn reap(&mut self) -> Reaped {
        let mut reaped = Reaped::default();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main && !self.main_gone => {
                    self.main_gone = true;
                    reaped.main = Some(end(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return reaped,
                Err(_) => {
                    reaped.empty = true;
                    return reaped;
                }
            }
        }
    }

    /// Every living process of the tree. Without a cgroup this may have to examine every process of
    /// the machine.
    pub(crate) fn list(&self) -> Vec<Stat> {
        let found = match self.group.processes() {
            // A process that left the group (root may) is still our descendant, but is only found
            // by `kill`, when it matters.
            Some(pids) => pids.into_iter().filter_map(Stat::of).collect(),
            None => {
                let main = self.main.as_raw_nonzero().get();
                let young = proc::descendants(self.own, Look::After(main));
                // There must be one, otherwise `wait` would have reported no children.
                if young.is_empty() { proc::descendants(self.own, Look::All) } else { young }
            }
        };
        found.into_iter().filter(Stat::is_alive).collect()
    }

    /// Asks the main process's group to end, which needs no search.
    pub(crate) fn ask_group(&mut self, terminal: bool) {
        if self.main_gone {
            return;
        }
        let leader = self.leader();
        self.commands_group = Some(leader.as_raw_nonzero().get());
        // An interactive shell ignores TERM, but ends when its terminal closes.
        let term = u32::try_from(libc::SIGTERM).unwrap_or(15);
        let hang_up = terminal && proc::ignores(leader.as_raw_nonzero().get(), term);
        // It is no error if there is no process.
        let _ = sys::kill_group(leader, libc::SIGTERM);
        if hang_up {
            let _ = sys::kill_group(leader, libc::SIGHUP);
        }
        // A stopped process handles no signal until it continues.
        let _ = sys::kill_group(leader, libc::SIGCONT);
    }

    /// Asks all other processes that were not asked yet.
    pub(crate) fn ask_rest(&mut self) {
        for stat in self.list() {
            let groups = [Some(self.main.as_raw_nonzero().get()), self.commands_group];
            let in_group = groups.contains(&Some(stat.group)) && !self.main_gone;
            if self.asked.insert(stat.pid) && !in_group {
                signal(&stat, Signal::TERM);
                signal(&stat, Signal::CONT);
            }
        }
    }

    /// Kills the group in one step if the kernel can, otherwise the main process's group.
    pub(crate) fn kill_first(&self) {
        if !self.group.kill() && !self.main_gone {
            let _ = sys::kill_group(self.main, libc::SIGKILL);
        }
    }

    /// Kills processes that need no search: the cgroup, in one step if the kernel can, and the main
    /// process's group, which may have left the cgroup.
    pub(crate) fn kill_known(&self) {
        self.group.kill();
        if !self.main_gone {
            let _ = sys::kill_group(self.main, libc::SIGKILL);
        }
    }

    /// Stops the youngest processes. In a chain of processes, each of which starts the next and
    /// ends, the visible link is gone before a scan of the whole machine ends; but the next link
    /// has one of the next process numbers.
    fn chase(&self, stopped: &mut HashMap<i32, Stat>) {
        for _ in 0..CHASES {
            let mut caught = false;
            for stat in proc::youngest(YOUNGEST) {
                let ours = stat.parent == self.own || stopped.contains_key(&stat.parent);
                let known = stopped.get(&stat.pid).is_some_and(|seen| seen.started == stat.started);
                if ours && !known && stat.is_alive() {
                    signal(&stat, Signal::STOP);
                    stopped.insert(stat.pid, stat);
                    caught = true;
                }
            }
            if !caught {
                return;
            }
        }
    }

    /// Whether processes may be left that [`kill_known`](Self::kill_known) does not reach.
    pub(crate) fn has_strays(&self) -> bool {
        self.main_gone && self.group.processes().is_none_or(|all| all.is_empty())
    }

    /// Signals the command's group.
    pub(crate) fn signal_main(&self, signal: i32) -> io::Result<()> {
        if self.main_gone {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        sys::kill_group(self.leader(), signal)
    }

    /// Kills all processes one by one. Processes that fork faster than the scan are stopped first:
    /// a stopped process does not fork, so the next scan finds only those created meanwhile.
    pub(crate) fn kill_all(&self, which: Look) {
        self.group.kill();
        let mut stopped: HashMap<i32, Stat> = HashMap::new();
        for _ in 0..LOOKS {
            let mut found = proc::descendants(self.own, which);
            found.retain(|stat| !stopped.contains_key(&stat.pid) && stat.is_alive());
            if found.is_empty() {
                break;
            }
            for stat in found {
                signal(&stat, Signal::STOP);
                stopped.insert(stat.pid, stat);
            }
            self.chase(&mut stopped);
        }
        for stat in stopped.values() {
            signal(stat, Signal::KILL);
        }
    }
}

/// The command that `main` represents, if it already leads a group.
fn commanding(all: &[Stat], main: i32) -> Option<i32> {
    let first = all.iter().find(|stat| stat.parent == main)?.pid;
    let below = all.iter().filter(|stat| stat.parent == first);
    let command = below.min_by_key(|stat| (stat.started, stat.pid))?;
    (command.group == command.pid).then_some(command.pid)
}

/// Signals exactly the process that was seen, even if its number was reused.
fn signal(seen: &Stat, signal: Signal) {
    let Some(pid) = Pid::from_raw(seen.pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Stat::of(seen.pid).is_some_and(|now| now.started == seen.started) {
        // The process has ended, or may not be signalled; then it is reported as a survivor.
        let _ = rustix::process::pidfd_send_signal(&handle, signal);
    }
}

fn end(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => unreachable!("wait without flags reports only ended children"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, parent: i32, group: i32, started: u64) -> Stat {
        let mut stat = Stat::for_a_test(pid, parent);
        (stat.group, stat.started) = (group, started);
        stat
    }

    #[test]
    fn a_sandboxed_command_is_the_oldest_grandchild_once_it_leads_a_group() {
        // 10 stands for the command 12; 13 is an orphan that came to process 1 of the namespace.
        let mut all = vec![
            stat(13, 11, 13, 70),
            stat(12, 11, 10, 60),
            stat(11, 10, 10, 50),
            stat(14, 12, 12, 61),
        ];
        assert_eq!(commanding(&all, 10), None, "it has not begun");
        all[1].group = 12;
        assert_eq!(commanding(&all, 10), Some(12));
        assert_eq!(commanding(&all, 99), None);
        assert_eq!(commanding(&[], 10), None);
    }
}
