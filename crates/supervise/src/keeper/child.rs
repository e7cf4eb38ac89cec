//! Starts the command with its streams, group and program.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use overmind_core::process::ProcessKey;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, OptionalActions, Winsize};
use rustix::thread::{Gid, Uid};

use crate::group::Group;
use crate::record::mark;
use crate::sys::{self, CStrings, Fork};
use crate::wire::{Io, Order, Size};

/// Why a command could not be started.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) step: &'static str,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(step: &'static str, reason: impl std::fmt::Display) -> Self {
        Self { step, reason: reason.to_string() }
    }
}

/// Our ends of the command's streams. They are non-blocking.
#[derive(Debug)]
pub(crate) enum Streams {
    Terminal {
        master: OwnedFd,
        /// Kept open, so that reading does not end while the program has briefly closed its own
        /// end; dropped when the tree has ended.
        slave: Option<OwnedFd>,
    },
    Pipes {
        input: Option<OwnedFd>,
        output: Option<OwnedFd>,
        errors: Option<OwnedFd>,
    },
}

/// The files that become the command's standard streams.
struct Theirs {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    terminal: bool,
}

pub(crate) fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn streams(order: &Order) -> io::Result<(Streams, Theirs)> {
    match &order.io {
        Io::Terminal(size) => {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let master = rustix::pty::openpt(flags)?;
            rustix::pty::unlockpt(&master)?;
            let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
            let mut modes = rustix::termios::tcgetattr(&slave)?;
            // Erasing then removes whole characters.
            modes.input_modes |= InputModes::IUTF8;
            rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
            rustix::termios::tcsetwinsize(&master, window(*size))?;
            if let Some((uid, gid)) = order.user {
                rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            rustix::io::ioctl_fionbio(&master, true)?;
            let theirs = Theirs {
                stdin: slave.try_clone()?,
                stdout: slave.try_clone()?,
                stderr: slave.try_clone()?,
                terminal: true,
            };
            Ok((Streams::Terminal { master, slave: Some(slave) }, theirs))
        }
        Io::Pipes { input, tagged } => {
            let (stdin, ours) = if *input {
                let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&ours, true)?;
                (theirs, Some(ours))
            } else {
                (File::open("/dev/null")?.into(), None)
            };
            let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&output, true)?;
            let (errors, stderr) = if *tagged {
                let (errors, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&errors, true)?;
                (Some(errors), stderr)
            } else {
                (None, stdout.try_clone()?)
            };
            Ok((
                Streams::Pipes { input: ours, output: Some(output), errors },
                Theirs { stdin, stdout, stderr, terminal: false },
            ))
        }
    }
}

/// The last steps in the child. If one fails, its number is sent over the pipe.
const STEPS: [&str; 7] = [
    "its own session",
    "its streams",
    "its control group",
    "its directory",
    "its user",
    "its keeper",
    "the program",
];

/// Starts the command; when this returns, the program runs.
pub(crate) fn spawn(order: &Order, group: &Group) -> Result<(Pid, Streams), Refusal> {
    let (ours, theirs) = streams(order).map_err(|err| Refusal::new("its streams", err))?;
    let (candidates, argv, env) = program(order)?;
    let birthplace = group.birthplace();
    let to_join = |born| group.to_join(born).map_err(|err| Refusal::new(STEPS[2], err));
    let (mut news, mut tell) = pipe_with(PipeFlags::CLOEXEC)
        .map(|(r, w)| (File::from(r), File::from(w)))
        .map_err(|err| Refusal::new("a pipe", err))?;
    let keeper = rustix::process::getpid();
    let mut born = birthplace.is_some();
    let mut join = to_join(born)?;
    let forked = match &birthplace {
        Some(directory) => match sys::fork_into(directory.as_fd()) {
            // The kernel or a filter does not support this call, so the child joins the slow way.
            Err(err) if matches!(err.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                born = false;
                join = to_join(born)?;
                sys::fork()
            }
            other => other,
        },
        None => sys::fork(),
    };
    match forked.map_err(|err| Refusal::new("a process", err))? {
        Fork::Parent(pid) => {
            drop((tell, theirs));
            let mut failed = [0u8; 5];
            // The pipe's end marks the program's start, because `execve` closes it.
            match news.read_exact(&mut failed) {
                Err(_) => Ok((pid, ours)),
                Ok(()) => {
                    // The child has ended, or is about to.
                    let _ =
                        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                    let errno = i32::from_le_bytes([failed[1], failed[2], failed[3], failed[4]]);
                    let step = STEPS[usize::from(failed[0]).min(STEPS.len() - 1)];
                    Err(Refusal::new(step, explained(order, step, errno)))
                }
            }
        }
        Fork::Child => {
            drop(news);
            let (step, err) =
                become_command(order, &theirs, &mut join, keeper, &candidates, &argv, &env);
            let mut failed = [step, 0, 0, 0, 0];
            failed[1..].copy_from_slice(&err.raw_os_error().unwrap_or(0).to_le_bytes());
            let _ = tell.write_all(&failed);
            sys::exit_now(127)
        }
    }
}

/// Tells the reader of an error what to do about it.
fn explained(order: &Order, step: &str, errno: i32) -> String {
    let err = io::Error::from_raw_os_error(errno);
    let program = order.argv.first().map_or("", String::as_str);
    match (step, errno) {
        ("the program", libc::ENOENT) if program.contains('/') => {
            format!("{program}: {err}, or the interpreter in its first line is not there")
        }
        ("the program", libc::ENOENT) => {
            format!("no `{program}` in the PATH that was given: {err}")
        }
        ("the program", libc::E2BIG) => {
            format!("{err}: one argument may have 128 KiB; give long texts through standard input")
        }
        ("its directory", _) => format!("{}: {err}", order.cwd.display()),
        _ => err.to_string(),
    }
}

/// Everything that `execve` needs, prepared before the fork.
fn program(order: &Order) -> Result<(Vec<CString>, CStrings, CStrings), Refusal> {
    let text = |bytes: Vec<u8>, what: &'static str| {
        CString::new(bytes).map_err(|_| Refusal::new(what, "it contains a NUL character"))
    };
    let Some(name) = order.argv.first().filter(|name| !name.is_empty()) else {
        return Err(Refusal::new("the program", "no command was given"));
    };
    let path = order.env.iter().rev().find(|(name, _)| name == "PATH");
    let path = path.map_or("/usr/local/bin:/usr/bin:/bin", |(_, path)| path.as_str());
    let places: Vec<Vec<u8>> = if name.contains('/') {
        vec![name.clone().into_bytes()]
    } else {
        let inside = |dir: &str| Path::new(if dir.is_empty() { "." } else { dir }).join(name);
        path.split(':').map(|dir| inside(dir).as_os_str().as_bytes().to_vec()).collect()
    };
    let places: Result<Vec<CString>, Refusal> =
        places.into_iter().map(|place| text(place, "the program")).collect();
    let argv: Result<Vec<CString>, Refusal> =
        order.argv.iter().map(|one| text(one.clone().into_bytes(), "an argument")).collect();
    let mut env: Vec<CString> = Vec::with_capacity(order.env.len() + 1);
    for (name, value) in &order.env {
        env.push(text(format!("{name}={value}").into_bytes(), "a variable")?);
    }
    let key: ProcessKey = order.key.into();
    env.push(text(mark(key).into_bytes(), "a variable")?);
    Ok((places?, CStrings::new(argv?), CStrings::new(env)))
}

/// Runs in the child: makes only system calls until the program starts. Returns which step failed.
fn become_command(
    order: &Order,
    theirs: &Theirs,
    join: &mut [File],
    keeper: Pid,
    candidates: &[CString],
    argv: &CStrings,
    env: &CStrings,
) -> (u8, io::Error) {
    let steps = || -> Result<(), (u8, io::Error)> {
        rustix::process::setsid().map_err(|err| (0, err.into()))?;
        if theirs.terminal {
            rustix::process::ioctl_tiocsctty(&theirs.stdin).map_err(|err| (0, err.into()))?;
        }
        rustix::stdio::dup2_stdin(&theirs.stdin).map_err(|err| (1, err.into()))?;
        rustix::stdio::dup2_stdout(&theirs.stdout).map_err(|err| (1, err.into()))?;
        rustix::stdio::dup2_stderr(&theirs.stderr).map_err(|err| (1, err.into()))?;
        for group in join {
            group.write_all(b"0").map_err(|err| (2, err))?;
        }
        if let Some((uid, gid)) = order.user {
            let become_user = || -> rustix::io::Result<()> {
                rustix::thread::set_thread_groups(&[])?;
                rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
                rustix::thread::set_thread_uid(Uid::from_raw(uid))
            };
            become_user().map_err(|err| (4, err.into()))?;
        }
        // This is done as the command's user, who must have access to it.
        rustix::process::chdir(&order.cwd).map_err(|err| (3, err.into()))?;
        // If the supervisor process is killed, the main process is killed at once; the others are
        // found later.
        let kill = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        kill.map_err(|err| (5, err.into()))?;
        if rustix::process::getppid() != Some(keeper) {
            return Err((5, io::Error::from_raw_os_error(libc::ESRCH)));
        }
        Ok(())
    };
    if let Err(failed) = steps() {
        return failed;
    }
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    sys::restore_signals();
    let mut failed = io::Error::from_raw_os_error(libc::ENOENT);
    for program in candidates {
        let err = sys::exec(program, argv, env);
        match err.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // The file exists but may not be executed; a later path may work.
            Some(libc::EACCES) => failed = err,
            _ => return (6, err),
        }
    }
    (6, failed)
}

/// Opens the directory again, so that the lock on it belongs to this process only.
pub(crate) fn reopened(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, ".", flags, Mode::empty())?)
}
