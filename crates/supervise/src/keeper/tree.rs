//! The command's process tree: finding all of it, ending all of it.
//!
//! The keeper is the reaper of its descendants: whoever loses its parent becomes the keeper's own
//! child, however often it forked and whatever session it went into. So `wait` having no children
//! is the proof that nothing is left, and nothing else is believed.

use std::collections::{HashMap, HashSet};
use std::io;

use overmind_core::process::ExitStatus;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

use crate::group::Group;
use crate::proc::{self, Look, Stat};
use crate::sys;

/// Looks at the whole machine in one go.
const LOOKS: u32 = 20;
/// Looks at those born last, and how many they are.
const CHASES: u32 = 50;
const YOUNGEST: i32 = 64;

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) main: Pid,
    pub(crate) group: Group,
    own: i32,
    /// Who got TERM already.
    asked: HashSet<i32>,
    /// The main process has ended: its number, and that of its group, may be another's by now.
    main_gone: bool,
}

/// What a round of waiting found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaped {
    /// Of the main process.
    pub(crate) main: Option<ExitStatus>,
    /// No child is left, so nothing of the tree is.
    pub(crate) empty: bool,
}

impl Tree {
    pub(crate) fn new(main: Pid, group: Group) -> Self {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        Self { main, group, own, asked: HashSet::new(), main_gone: false }
    }

    /// Takes note of all that have ended.
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

    /// Every living process of the tree. Without a control group this may have to look at every
    /// process of the machine.
    pub(crate) fn list(&self) -> Vec<Stat> {
        let found = match self.group.processes() {
            // Whoever left the group (root may) is still our descendant, but is found only when
            // it counts: by `kill`.
            Some(pids) => pids.into_iter().filter_map(Stat::of).collect(),
            None => {
                let main = self.main.as_raw_nonzero().get();
                let young = proc::descendants(self.own, Look::After(main));
                // Somebody there must be, or `wait` would have said so.
                if young.is_empty() { proc::descendants(self.own, Look::All) } else { young }
            }
        };
        found.into_iter().filter(Stat::is_alive).collect()
    }

    /// Asks the main process's group to end: what costs nothing to find.
    pub(crate) fn ask_group(&mut self, terminal: bool) {
        if self.main_gone {
            return;
        }
        let main = self.main.as_raw_nonzero().get();
        // An interactive shell ignores TERM; what it heeds is that its terminal goes away.
        let term = u32::try_from(libc::SIGTERM).unwrap_or(15);
        let hang_up = terminal && proc::ignores(main, term);
        // Nobody there is what we want.
        let _ = sys::kill_group(self.main, libc::SIGTERM);
        if hang_up {
            let _ = sys::kill_group(self.main, libc::SIGHUP);
        }
        // A stopped process hears nothing until it goes on.
        let _ = sys::kill_group(self.main, libc::SIGCONT);
    }

    /// Asks everybody else who has not been asked.
    pub(crate) fn ask_rest(&mut self) {
        for stat in self.list() {
            let in_group = stat.group == self.main.as_raw_nonzero().get() && !self.main_gone;
            if self.asked.insert(stat.pid) && !in_group {
                signal(&stat, Signal::TERM);
                signal(&stat, Signal::CONT);
            }
        }
    }

    /// Kills what is cheap to find: the group, in one go where the kernel can, and the main
    /// process's own.
    pub(crate) fn kill_known(&self) {
        self.group.kill();
        let _ = self.signal_main(libc::SIGKILL);
    }

    /// Stops those that were born last. A chain of processes, each of which begins the next and
    /// ends, is gone from where it was seen before a look at the whole machine is over; where its
    /// next link appears is known.
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

    /// Whether somebody is left whom [`kill_known`](Self::kill_known) does not reach, if anybody
    /// is left at all.
    pub(crate) fn has_strays(&self) -> bool {
        self.main_gone && self.group.processes().is_none_or(|all| all.is_empty())
    }

    /// Signals the main process's group.
    pub(crate) fn signal_main(&self, signal: i32) -> io::Result<()> {
        if self.main_gone {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        sys::kill_group(self.main, signal)
    }

    /// Kills everybody, one by one. Whoever forks faster than we look is stopped first: what is
    /// stopped does not fork, so the next look finds at most what was born meanwhile.
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

/// Signals the process that was seen, and not one that has got its number since.
fn signal(seen: &Stat, signal: Signal) {
    let Some(pid) = Pid::from_raw(seen.pid) else { return };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Stat::of(seen.pid).is_some_and(|now| now.started == seen.started) {
        // One that has gone meanwhile, or is not ours to signal: told as a survivor in the end.
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
