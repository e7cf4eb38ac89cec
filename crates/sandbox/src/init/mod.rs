//! The program between the daemon and a sandboxed command.
//!
//! Only a process with one thread can enter namespaces safely, and the daemon has many. So the
//! daemon starts its own binary again with `ARGUMENT` as first argument; the binary's `main` calls
//! [`main_if_requested`] before anything else, and this module takes over.
//!
//! Its instructions come in two parts over the unix socket that is standard input, each as a sealed
//! memory file. The ground (`spec::Ground`) comes first and is the same for every command of a
//! driver. Then comes the order (`spec::Spec`), with the command's own standard input. It may wait
//! between the two: a driver keeps inits that already have the ground
//! ([`crate::Options::waiting`]). The same socket carries the answers (`spec::Report`) back. When
//! the daemon's end of it closes, deliberately or because the daemon was killed, the init ends with
//! every process below it, also while it waits.
//!
//! `confined` builds the sandbox in this order, one function per step: namespaces, the command's
//! own process and its cgroup (`seat`), root, network; with the order the workspace; then, in the
//! command's process, limits, privileges, Landlock and filter. A further means of confinement is
//! one more step there and one more field of the order. `unconfined` only watches the process tree.
//! `enclosed` is for a long-running command, whose supervisor process and streams are not the
//! daemon's: it gets all instructions at once, and nobody waits for its answers. `door` is the
//! proxy to the server if that is the only network, and `outward` forwards connections to services
//! of the same session. `reaper` is for a long-running command without a sandbox. [`crate::attest`]
//! verifies the sandbox.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::init::spec::{Doing, Ground, Kind, Report, Spec, Step, Stop};
use crate::sys;

pub(crate) mod borrowed;
pub(crate) mod command;
pub(crate) mod confined;
pub(crate) mod door;
pub(crate) mod enclosed;
pub(crate) mod fixed;
pub(crate) mod landlock;
pub(crate) mod mutation;
pub(crate) mod opened;
pub(crate) mod outward;
pub(crate) mod reaper;
pub(crate) mod root;
pub(crate) mod seat;
pub(crate) mod seccomp;
pub(crate) mod spec;
pub(crate) mod unconfined;
pub(crate) mod watch;

/// The first argument that turns the program into a sandbox's init.
pub const ARGUMENT: &str = "__sandbox-init";

/// If the program was started as a sandbox's init or probe, becomes that and never returns.
///
/// Call it first in `main`, before any thread is started and before arguments are parsed.
pub fn main_if_requested() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(first) = arguments.next() else { return };
    if first == crate::attest::ARGUMENT {
        crate::attest::become_probe(arguments);
    }
    if first == crate::docker::KEEPER_ARGUMENT {
        crate::docker::become_keeper(arguments);
    }
    if first == crate::docker::WAITER_ARGUMENT {
        crate::docker::become_waiter();
    }
    if first == crate::microvm::guest::ARGUMENT {
        crate::microvm::guest::become_guest();
    }
    if first == enclosed::ARGUMENT {
        enclosed::become_launcher(arguments);
    }
    if first == overmind_core::enclosure::REAPER {
        reaper::become_reaper(arguments);
    }
    if first == ARGUMENT {
        let code = match run() {
            Ok(()) => 0,
            Err(stop) => {
                report(&stop.into_report());
                1
            }
        };
        sys::exit_now(code);
    }
}

fn run() -> Result<(), Stop> {
    sys::close_inherited().doing(Step::Handshake, "close_range")?;
    let Some((ground, cgroups)) = ground().doing(Step::Handshake, "the ground")? else {
        return Ok(());
    };
    #[cfg(feature = "mutations")]
    mutation::obey(ground.mutation.as_ref());
    match &ground.kind {
        Kind::Namespace { program, .. } => confined::run(&ground, *program, cgroups),
        Kind::Unconfined => match order(&ground)? {
            Some(Order { spec, text: _, stdin }) => unconfined::run(&spec, stdin),
            None => Ok(()),
        },
    }
}

/// Maximum number of descriptors of one message: the ground, and one group for each controller.
pub(crate) const MAX_DESCRIPTORS: usize = 4;

pub(crate) struct Order {
    pub(crate) spec: Spec,
    /// The order's text, unparsed.
    pub(crate) text: OwnedFd,
    pub(crate) stdin: OwnedFd,
}

/// Receives the ground, and the groups that the command's process joins; `None` if the daemon has
/// ended instead.
fn ground() -> io::Result<Option<(Ground, Vec<OwnedFd>)>> {
    let Some(received) = message(io::stdin())? else { return Ok(None) };
    let mut received = received.into_iter();
    let text = received.next().ok_or_else(|| io::Error::other("no ground came"))?;
    Ok(Some((serde_json::from_slice(&read(text)?)?, received.collect())))
}

/// Waits for the order; `None` if the daemon has ended or needs no command of this init.
///
/// # Errors
///
/// Fails also if the order is for another ground, because the sandbox is already partly built.
pub(crate) fn order(ground: &Ground) -> Result<Option<Order>, Stop> {
    let take = || -> io::Result<Option<Order>> {
        let Some(received) = message(io::stdin())? else { return Ok(None) };
        let mut received = received.into_iter();
        let (Some(text), Some(stdin)) = (received.next(), received.next()) else {
            return Err(io::Error::other("no order came with the second message"));
        };
        let spec: Spec = serde_json::from_slice(&read(text.try_clone()?)?)?;
        if Ground::of(&spec) != *ground {
            return Err(io::Error::other("the order is for another ground"));
        }
        Ok(Some(Order { spec, text, stdin }))
    };
    take().doing(Step::Handshake, "the order")
}

pub(crate) fn read(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::from(file).read_to_end(&mut text)?;
    Ok(text)
}

/// Receives the descriptors of one message from a socket; `None` at its end.
pub(crate) fn message(socket: impl AsFd) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
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
    let received = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    Ok(Some(received.collect()))
}

/// Sends one report to the daemon. If the daemon has ended, nobody needs it.
pub(crate) fn report(report: &Report) {
    let mut line = serde_json::to_vec(report).expect("a report is plain data");
    line.push(b'\n');
    // Standard input is a socket here, which can be written too.
    if let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() {
        let _ = std::fs::File::from(socket).write_all(&line);
    }
}
