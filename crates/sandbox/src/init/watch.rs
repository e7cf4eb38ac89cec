//! Waits for the command and for the daemon at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use crate::init::spec::Report;

/// The event that came first.
pub(crate) enum Happened {
    /// The command ended with this status.
    Ended(WaitStatus),
    /// The daemon's end of the control socket closed.
    DaemonGone,
}

/// Waits until `command` or the daemon ends, and reaps every orphan meanwhile, because orphans
/// would otherwise count as processes until the end.
///
/// `signals` comes from [`crate::sys::child_signals`] and must be made before the command is
/// started.
pub(crate) fn watch(command: Pid, signals: &OwnedFd) -> io::Result<Happened> {
    let control = io::stdin();
    loop {
        if let Some(status) = reap(command)? {
            return Ok(Happened::Ended(status));
        }
        // No events of the control socket are requested: POLLHUP and POLLERR are always reported.
        let mut waiting = [
            PollFd::new(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        if !waiting[1].revents().is_empty() {
            return Ok(Happened::DaemonGone);
        }
        if !waiting[0].revents().is_empty() {
            // The content is less useful than `wait`; it is read only to clear the descriptor.
            let mut content = [0u8; 128];
            while rustix::io::read(signals, &mut content).is_ok() {}
        }
    }
}

/// Reaps all ended children; returns the status of `command` if it is one of them.
pub(super) fn reap(command: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == command => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(err) => return Err(err.into()),
        }
    }
}

/// Converts the status to a report to the daemon.
pub(crate) fn as_report(status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Report::Exited(code),
        (None, Some(signal)) => Report::Signaled(signal),
        (None, None) => unreachable!("wait without flags reports only ended children"),
    }
}
