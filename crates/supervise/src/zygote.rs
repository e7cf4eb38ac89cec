//! The process that keepers are born from.
//!
//! The daemon starts it once, as this same program with [`ARGUMENT`], and asks it for a keeper by
//! sending three descriptors. It forks: the keeper shares all memory that neither of them writes,
//! so two thousand of them cost little, and no program has to be loaded for a start. It has one
//! thread and knows nothing of any session. When the daemon's end of the socket closes, it ends;
//! the keepers do not notice.
//!
//! It does not wait to be asked: a keeper is forked and set up already, waits on that same socket
//! and takes what is sent. Each tells by a pipe when it was taken and when its command runs. The
//! zygote makes another at once when nobody waits any more. One that waits ends with the zygote.

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

/// What a new keeper is given: its connection, its listening socket, its session's directory.
pub(crate) const GIVEN: usize = 3;

/// Becomes a zygote, and never returns, if the program was started as one.
///
/// Call it first thing in `main`, before any thread is started and before arguments are parsed.
pub fn main_if_requested() {
    if std::env::args_os().nth(1).is_some_and(|first| first == ARGUMENT) {
        let code = i32::from(run().is_err());
        sys::exit_now(code);
    }
}

fn run() -> io::Result<()> {
    sys::close_inherited()?;
    // Signals of the daemon's terminal are not for us.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    rustix::thread::set_name(c"overmind-zygote")?;
    sys::reset_signals();
    sys::ignore_some();
    // Nobody waits for keepers: they are on their own from the first moment.
    sys::ignore(libc::SIGCHLD);
    let zygote = rustix::process::getpid();
    let mut hatched: Vec<Hatched> = Vec::new();
    loop {
        let busy = hatched.iter().filter(|one| one.taken).count();
        while hatched.len() < (busy + AHEAD).min(MOST) {
            // What the machine refuses now it may grant later.
            if hatch(zygote, None, &mut hatched).is_err() {
                break;
            }
        }
        if hatched.len() == busy && busy < MOST {
            let Some(given) = receive(io::stdin())? else { return Ok(()) };
            // Refused again, the daemon sees its connection close without an answer.
            let _ = hatch(zygote, Some(given), &mut hatched);
        } else if !wait(&mut hatched)? {
            return Ok(());
        }
    }
}

/// Keepers that wait to be given something; others have it already and wait for their order.
const AHEAD: usize = 1;
/// Keepers that wait or have not begun their command yet.
const MOST: usize = 64;

/// A keeper that waits or begins, as the zygote sees it.
struct Hatched {
    /// A byte when it was taken, the end when its command runs, or never will.
    news: File,
    taken: bool,
}

/// The other end of a [`Hatched`], in the keeper. Dropped when its command runs.
pub(crate) struct Nest {
    _tell: File,
}

/// Makes a keeper, which waits unless it is given something already.
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
            // What the others tell is not for us.
            hatched.clear();
            let code = match grow_up(zygote, given, tell.into()) {
                Ok(Some((given, nest))) => keeper::run(given, nest),
                // The daemon has gone.
                Ok(None) => 0,
                Err(_) => 1,
            };
            sys::exit_now(code);
        }
    }
}

/// Waits until a keeper tells something, and takes note of it. False when the daemon has gone.
fn wait(hatched: &mut Vec<Hatched>) -> io::Result<bool> {
    let socket = io::stdin();
    // Its hang-up comes unasked; what is sent is for those that wait.
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

/// In the new process: leaves the zygote behind, waits until it is given something, and is on its
/// own from then on.
fn grow_up(
    zygote: Pid,
    given: Option<[OwnedFd; GIVEN]>,
    mut tell: File,
) -> io::Result<Option<([OwnedFd; GIVEN], Nest)>> {
    // As long as it waits it is nobody's.
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
    // A zygote that has gone makes no others, and needs not to know.
    let _ = tell.write_all(b"!");
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    rustix::thread::set_name(c"overmind-keeper")?;
    Ok(Some((given, Nest { _tell: tell })))
}

/// Takes what one message gives; `None` at the end.
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
        // One that is cut short (no descriptors left) is dropped, and its sender notices.
        if let Ok(given) = received.try_into() {
            return Ok(Some(given));
        }
    }
}

/// Asks for a keeper. Does not wait for it.
pub(crate) fn ask(socket: impl AsFd, given: [BorrowedFd<'_>; GIVEN]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&given)), "the space is made for these");
    rustix::net::sendmsg(socket, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
