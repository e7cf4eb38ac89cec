//! `none`: no isolation, but the whole tree still ends with the command, the timeout, the
//! dropped future or the daemon.
//!
//! The init is the tree's *subreaper*: a process whose parent ends becomes a child of the init,
//! however often it forked and whatever session it made. So killing children until there are
//! none left reaches all of them. What it cannot reach: processes that run as another user (a
//! set-user-id program), and everything once the command has killed the init itself, which
//! nothing forbids it.

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
    // A session of its own, so that a signal to the daemon's terminal does not end the sandbox.
    rustix::process::setsid().doing(Step::Start, "setsid")?;
    rustix::process::set_child_subreaper(Some(getpid())).doing(Step::Start, "subreaper")?;

    let workspace = open_directory(&spec.workspace)?;
    if let Some(writable) = &spec.writable {
        // Nothing is mounted here, but the same request must be refused at every level.
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

/// Kills until nothing is left to wait for, or nothing that may be killed.
fn kill_children() {
    loop {
        // Most commands leave nothing behind, and looking through /proc takes milliseconds.
        if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
            return;
        }
        let children = children().unwrap_or_default();
        let killed =
            children.iter().filter(|child| kill_process(**child, Signal::KILL).is_ok()).count();
        if killed == 0 && !children.is_empty() {
            // All that is left belongs to other users; waiting for it could last forever.
            return;
        }
        // What was killed ends soon, so this may block. An empty list may only mean that an
        // orphan was on its way here while it was read; then the next round sees it.
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

/// The processes whose parent is this one.
fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_pid();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes end while this runs; those have no stat any more.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if parent_in(&stat) == Some(own) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// The fourth field of `stat`. The second is the program's name in parentheses, which may
/// itself contain spaces and parentheses; the last one closes it.
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
