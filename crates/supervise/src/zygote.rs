//! The process from which supervisor processes are forked.
//!
//! The daemon starts it once, as this same program with [`ARGUMENT`], and requests a supervisor
//! process by sending three descriptors. It forks: the child shares all memory that neither of them
//! writes, so two thousand of them cost little, and a start loads no program. It has one thread and
//! knows nothing of any session. It ends when the daemon's end of the socket closes; the supervisor
//! processes are not affected.
//!
//! Supervisor processes are forked in advance: a prepared one waits on that same socket and takes
//! the next request. Each reports through a pipe when it took a request and when its command runs.
//! The zygote forks another as soon as none waits. A waiting one ends with the zygote.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};

use crate::{keeper, sys};

/// The first argument that turns the program into a zygote.
pub const ARGUMENT: &str = "__keeper-zygote";

/// The number of descriptors for a new supervisor process: its connection, its listening socket,
/// its session's directory.
pub(crate) const GIVEN: usize = 3;

/// If the program was started as a zygote, becomes that and never returns.
///
/// Call it first in `main`, before any thread is started and before arguments are parsed.
pub fn main_if_requested() {
    if std::env::args_os().nth(1).is_some_and(|first| first == ARGUMENT) {
        let code = i32::from(run().is_err());
        sys::exit_now(code);
    }
}

fn run() -> io::Result<()> {
    sys::close_inherited()?;
    // This process must not get signals of the daemon's terminal.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    rustix::thread::set_name(c"overmind-zygote")?;
    sys::reset_signals();
    sys::ignore_some();
    // No process waits for shims: they are independent from the start.
    sys::ignore(libc::SIGCHLD);
    let zygote = rustix::process::getpid();
    let mut hatched: Vec<Hatched> = Vec::new();
    loop {
        let busy = hatched.iter().filter(|one| one.taken).count();
        while hatched.len() < (busy + AHEAD).min(MOST) {
            // The machine may allow later what it refuses now.
            if hatch(zygote, None, &mut hatched).is_err() {
                break;
            }
        }
        if hatched.len() == busy && busy < MOST {
            let Some(given) = receive(io::stdin())? else { return Ok(()) };
            // If it fails again, the daemon's connection closes without an answer.
            let _ = hatch(zygote, Some(given), &mut hatched);
        } else if !wait(&mut hatched)? {
            return Ok(());
        }
    }
}

/// The number of processes that wait for a request, besides those that wait for their order.
const AHEAD: usize = 1;
/// Maximum number of processes that wait or have not started their command yet.
const MOST: usize = 64;

/// A process that waits or is starting, as the zygote sees it.
struct Hatched {
    /// A byte when it took a request; the end when its command runs, or never will.
    news: File,
    taken: bool,
}

/// The other end of a [`Hatched`], in the new process. Dropped when its command runs.
pub(crate) struct Nest {
    _tell: File,
}

/// Forks a supervisor process, which waits unless it already has a request.
fn hatch(
    zygote: Pid,
    given: Option<[OwnedFd; GIVEN]>,
    hatched: &mut Vec<Hatched>,
) -> io::Result<()> {
    let (news, tell) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        sys::Fork::Parent(_) => {
            hatched.push(Hatched { news: news.into(), taken: given.is_some() });
            Ok(())
        }
        sys::Fork::Child => {
            drop(news);
            // The other processes' pipes are of no use here.
            hatched.clear();
            let code = match grow_up(zygote, given, tell.into()) {
                Ok(Some((given, nest))) => keeper::run(given, nest),
                // The daemon has ended.
                Ok(None) => 0,
                Err(_) => 1,
            };
            sys::exit_now(code);
        }
    }
}

/// Waits until a process reports something, and records it. Returns false if the daemon has ended.
fn wait(hatched: &mut Vec<Hatched>) -> io::Result<bool> {
    let socket = io::stdin();
    // A hang-up is always reported; requests are for the waiting processes.
    let mut asked = vec![PollFd::new(&socket, PollFlags::empty())];
    asked.extend(hatched.iter().map(|one| PollFd::new(&one.news, PollFlags::IN)));
    match poll(&mut asked, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(err) => return Err(err.into()),
    }
    let told: Vec<bool> = asked.iter().map(|one| !one.revents().is_empty()).collect();
    if told[0] {
        return Ok(false);
    }
    let mut told = told.into_iter().skip(1);
    hatched.retain_mut(|one| {
        if told.next() != Some(true) {
            return true;
        }
        one.taken = true;
        matches!(one.news.read(&mut [0; 8]), Ok(1..))
    });
    Ok(true)
}

/// Runs in the new process: leaves the zygote, waits for a request, and is independent from then
/// on.
fn grow_up(
    zygote: Pid,
    given: Option<[OwnedFd; GIVEN]>,
    mut tell: File,
) -> io::Result<Option<([OwnedFd; GIVEN], Nest)>> {
    // While it waits it belongs to no session, so it ends with the zygote.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(zygote) {
        return Ok(None);
    }
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    sys::wait_for_children();
    rustix::process::setsid()?;
    keeper::prepare()?;
    let given = match given {
        Some(given) => Some(given),
        None => receive(io::stdin())?,
    };
    let Some(given) = given else { return Ok(None) };
    rustix::process::set_parent_process_death_signal(None)?;
    // If the zygote has ended, it forks no others and needs no report.
    let _ = tell.write_all(b"!");
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    rustix::thread::set_name(c"overmind-keeper")?;
    Ok(Some((given, Nest { _tell: tell })))
}

/// Receives the descriptors of one message; `None` at the end.
fn receive(socket: impl AsFd) -> io::Result<Option<[OwnedFd; GIVEN]>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    loop {
        let message = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut byte)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        if message.bytes == 0 {
            return Ok(None);
        }
        let received: Vec<OwnedFd> = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
                _ => Vec::new(),
            })
            .collect();
        // An incomplete message (no descriptors left) is dropped, and its sender notices.
        if let Ok(given) = received.try_into() {
            return Ok(Some(given));
        }
    }
}

/// Requests a supervisor process without waiting for it.
pub(crate) fn ask(socket: impl AsFd, given: [BorrowedFd<'_>; GIVEN]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&given)), "the space is made for these");
    rustix::net::sendmsg(socket, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
