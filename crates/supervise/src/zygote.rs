//! The process that keepers are born from.
//!
//! The daemon starts it once, as this same program with [`ARGUMENT`], and asks it for a keeper by
//! sending three descriptors. It forks: the keeper shares all memory that neither of them writes,
//! so two thousand of them cost little, and no program has to be loaded for a start. It has one
//! thread and knows nothing of any session. When the daemon's end of the socket closes, it ends;
//! the keepers do not notice.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

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
    sys::ignore(libc::SIGPIPE);
    sys::ignore(libc::SIGHUP);
    // Nobody waits for keepers: they are on their own from the first moment.
    sys::ignore(libc::SIGCHLD);
    loop {
        let Some(given) = receive(io::stdin())? else { return Ok(()) };
        match sys::fork() {
            Ok(sys::Fork::Parent(_)) => drop(given),
            Ok(sys::Fork::Child) => {
                let code = match grow_up() {
                    Ok(()) => keeper::run(given),
                    Err(_) => 1,
                };
                sys::exit_now(code);
            }
            // The daemon sees its connection close without an answer. What the machine refuses
            // now it may grant later.
            Err(_) => drop(given),
        }
    }
}

/// Leaves the zygote behind.
fn grow_up() -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    sys::wait_for_children();
    rustix::process::setsid()?;
    Ok(())
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
