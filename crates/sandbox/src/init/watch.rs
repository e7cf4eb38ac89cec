//! Waiting for the command and for the daemon at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use crate::init::spec::Report;

/// What happened first.
pub(crate) enum Happened {
    /// The command ended so.
    Ended(WaitStatus),
    /// The daemon's end of the control socket closed.
    DaemonGone,
}

/// Waits until `command` ends or the daemon goes away, and reaps every orphan on the way: they
/// would count as processes until the end.
///
/// `signals` comes from [`crate::sys::child_signals`], taken before the command was started.
pub(crate) fn watch(command: Pid, signals: &OwnedFd) -> io::Result<Happened> {
    let control = io::stdin();
    loop {
        if let Some(status) = reap(command)? {
            return Ok(Happened::Ended(status));
        }
        // Nothing is asked of the control socket: POLLHUP and POLLERR come unasked.
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
            // The content says less than `wait` does; it is read only to be quiet again.
            let mut content = [0u8; 128];
            while rustix::io::read(signals, &mut content).is_ok() {}
        }
    }
}

/// Reaps all that has ended; answers when `command` is among it.
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

/// The status as an answer to the daemon.
pub(crate) fn as_report(status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Report::Exited(code),
        (None, Some(signal)) => Report::Signaled(signal),
        (None, None) => unreachable!("wait without flags reports only ended children"),
    }
}
