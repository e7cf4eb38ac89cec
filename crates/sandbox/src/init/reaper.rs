//! Runs a command without a sandbox so that none of its descendants can escape.
//!
//! There are two processes above the command. The outer one ends as the command does, so its parent
//! sees no difference. The inner one, the *reaper*, is the command's parent and the subreaper of
//! its descendants: a process whose parent ends becomes the reaper's child, however often it forked
//! and whatever its session and environment are. The reaper runs until it has no child left. So
//! ending descendants of the reaper until the reaper itself has ended means that all of them have
//! ended. `workspace::services::tree` does that, in this process of the daemon or a later one.
//!
//! A malicious command can kill its own reaper: this level does not prevent it.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use overmind_core::enclosure::REAPER;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, getpgrp, getpid, setpgid, wait};

use crate::sys::{self, Fork};

/// The exit code of a shell that cannot start a command.
const NOT_STARTED: i32 = 127;

/// The arguments that start `argv` below a reaper, with a program that calls
/// [`main_if_requested`](super::main_if_requested).
pub(crate) fn words(program: String, argv: Vec<String>) -> Vec<String> {
    [program, REAPER.to_owned()].into_iter().chain(argv).collect()
}

/// Becomes both processes; `command` is the arguments after [`REAPER`].
pub(crate) fn become_reaper(command: impl Iterator<Item = OsString>) -> ! {
    let code = match begin(command.collect()) {
        Ok(Ended::Code(code)) => code,
        Ok(Ended::Signal(signal)) => {
            sys::end_by(signal);
            // The signal was ignored or blocked here.
            128_i32.saturating_add(signal)
        }
        Err(err) => {
            let _ = writeln!(io::stderr(), "overmind: {err}");
            NOT_STARTED
        }
    };
    sys::exit_now(code)
}

/// How the command ended.
enum Ended {
    Code(i32),
    Signal(i32),
}

fn begin(command: Vec<OsString>) -> io::Result<Ended> {
    let (hear, say) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        Fork::Child => {
            drop(hear);
            let code = match reap(command, say) {
                Ok(()) => 0,
                Err(err) => {
                    let _ = writeln!(io::stderr(), "overmind: {err}");
                    NOT_STARTED
                }
            };
            sys::exit_now(code)
        }
        Fork::Parent(_) => {
            drop(say);
            let mut told = [0; 5];
            // Without an answer, the reaper was killed or has already reported why there is no
            // command.
            let heard = std::fs::File::from(hear).read_exact(&mut told);
            let [kind, a, b, c, d] = told;
            let number = i32::from_ne_bytes([a, b, c, d]);
            Ok(match (heard, kind) {
                (Ok(()), b's') => Ended::Signal(number),
                (Ok(()), _) => Ended::Code(number),
                (Err(_), _) => Ended::Code(NOT_STARTED),
            })
        }
    }
}

fn reap(command: Vec<OsString>, say: OwnedFd) -> io::Result<()> {
    // The command is in the process group of the outer process, as it would be without this module.
    // The reaper is not, because a command may signal its own group.
    let group = getpgrp();
    setpgid(None, None)?;
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::other("the command has no words"))?;
    let started =
        Command::new(program).args(arguments).process_group(group.as_raw_nonzero().get()).spawn();
    let child = started.map_err(|err| {
        io::Error::new(err.kind(), format!("{}: {err}", program.to_string_lossy()))
    })?;
    let main = Pid::from_child(&child);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        sys::ignore(signal);
    }
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    for stream in 0..=2 {
        // A reader of the command's output must not wait for the reaper.
        sys::replace_standard_stream(nothing.as_fd(), stream)?;
    }
    let mut say = Some(std::fs::File::from(say));
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == main => {
                let Some(mut say) = say.take() else { continue };
                let (kind, number) = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => (b'c', code),
                    (None, Some(signal)) => (b's', signal),
                    (None, None) => (b'c', NOT_STARTED),
                };
                let [a, b, c, d] = number.to_ne_bytes();
                // The outer process may have been killed.
                let _ = say.write_all(&[kind, a, b, c, d]);
            }
            Ok(_) | Err(Errno::INTR) => {}
            // No child is left.
            Err(_) => return Ok(()),
        }
    }
}
