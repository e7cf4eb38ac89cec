//! `none`: no isolation, but the whole process tree still ends with the command, the timeout, the
//! dropped future or the daemon.
//!
//! The init is the tree's *subreaper*: a process whose parent ends becomes a child of the init,
//! however often it forked and whatever its session is. So killing children until none is left
//! reaches all of them. It cannot reach processes that run as another user (a set-user-id program),
//! and no process at all after the command has killed the init, which nothing forbids.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use crate::init::command::Prepared;
use crate::init::opened::{open_directory, open_working_directory, open_writable};
use crate::init::report;
use crate::init::spec::{Doing, Report, Spec, Step, Stop};
use crate::init::watch::{Happened, as_report, watch};
use crate::sys;

pub(crate) fn run(spec: &Spec, stdin: OwnedFd) -> Result<(), Stop> {
    // A separate session, so that a signal to the daemon's terminal does not end the sandbox.
    rustix::process::setsid().doing(Step::Start, "setsid")?;
    rustix::process::set_child_subreaper(Some(getpid())).doing(Step::Start, "subreaper")?;

    let workspace = open_directory(&spec.workspace)?;
    if let Some(writable) = &spec.writable {
        // Nothing is mounted here, but every level must refuse the same requests.
        open_writable(&workspace, writable)?;
    }
    let cwd = open_working_directory(&workspace, &spec.cwd)?;

    let signals = sys::child_signals().doing(Step::Start, "signalfd")?;
    let command = Prepared::new(spec, None, stdin)?.start(&cwd, &spec.limits)?;
    report(&Report::Started);
    let happened = watch(command, &signals);
    kill_children();
    match happened.doing(Step::Start, "waiting")? {
        Happened::Ended(status) => report(&as_report(status)),
        Happened::DaemonGone => {}
    }
    Ok(())
}

/// Kills children until none is left, or only those that must stay.
fn kill_children() {
    loop {
        // Most commands leave nothing behind, and a search through /proc takes milliseconds.
        if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
            return;
        }
        let children = children().unwrap_or_default();
        let killed =
            children.iter().filter(|child| kill_process(**child, Signal::KILL).is_ok()).count();
        if killed == 0 && !children.is_empty() {
            // All remaining processes belong to other users; waiting for them could take forever.
            return;
        }
        // Killed processes end soon, so this may block. An empty list may mean that an orphan was
        // being moved here while the list was read; then the next round finds it.
        let mut options = if killed == 0 { WaitOptions::NOHANG } else { WaitOptions::empty() };
        loop {
            match wait(options) {
                Ok(Some(_)) => options = WaitOptions::NOHANG,
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The child processes of this process.
fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_pid();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes that end during the loop have no stat any more.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if parent_in(&stat) == Some(own) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Reads the fourth field of `stat`. The second is the program's name in parentheses, which may
/// itself contain spaces and parentheses; the last parenthesis closes it.
fn parent_in(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_hide_the_parent() {
        assert_eq!(parent_in("12 (a) b) c (d) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent_in("12 (sh) S 1 12"), Some(1));
        assert_eq!(parent_in("nonsense"), None);
    }
}
