//! `namespace`: the launcher, and the sandbox's process 1.
//!
//! Three processes stand in a row. The *launcher* is the daemon's child and stays outside the
//! process namespace; it only waits, and its end tells the daemon that nothing is left inside.
//! *Process 1* builds the sandbox, starts the command and watches. When it ends, for whatever
//! reason, the kernel kills every process of the namespace before the launcher's wait returns:
//! daemons that forked twice, other sessions, all. The *command* is process 1's child.
//!
//! Process 1 keeps capabilities over the sandbox's namespaces (none over the host's). The
//! command cannot reach it: it is not dumpable, so neither its memory nor its descriptors open
//! through `/proc`, and the kernel drops signals sent to it from inside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use overmind_core::enclosure::Network;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, waitpid};
use rustix::thread::UnshareFlags;

use crate::init::door::{Door, Way};
use crate::init::mutation::{Layer, skips};
use crate::init::root;
use crate::init::seat::Seat;
use crate::init::spec::{Doing, Ground, Program, Report, Step, Stop};
use crate::init::watch::{Happened, as_report, watch};
use crate::init::{self, Order, report};
use crate::kernel;
use crate::sys::{self, Fork};

/// The user and the group that the command sees itself as. Outside they are the caller's.
pub(crate) const INSIDE_ID: u32 = 1000;

/// The launcher.
pub(crate) fn run(ground: &Ground, program: Program, cgroups: Vec<OwnedFd>) -> Result<(), Stop> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    if user == 0 {
        // A daemon that runs as root may be in groups such as `docker` or `disk`. In a user
        // namespace they could no longer be left. A container may forbid it: then it has none
        // that count there.
        let _ = rustix::thread::set_thread_groups(&[]);
    }
    let inside = match program {
        Program::Command => None,
        Program::Probe => Some(own_program()?),
    };
    let way = Way::find(&ground.kind)?;
    sys::unshare(namespaces(ground.kind.network())).doing(Step::Unshare, "")?;
    map_to_caller(user, group).doing(Step::MapUser, format_args!("{INSIDE_ID} to {user}"))?;
    let mut door = open(way)?;

    match sys::fork().doing(Step::Start, "process 1")? {
        Fork::Child => {
            drop(door);
            if let Err(stop) = process_one(ground, inside.as_ref(), cgroups) {
                report(&stop.into_report());
            }
            sys::exit_now(0)
        }
        Fork::Parent(first) => {
            if let Some(door) = &mut door {
                door.stand()?;
                let flags = rustix::process::PidfdFlags::empty();
                let ended = rustix::process::pidfd_open(first, flags)
                    .doing(Step::Start, "looking at process 1")?;
                door.wait([ended.as_fd()]).doing(Step::Start, "waiting for process 1")?;
            }
            wait_for(first).doing(Step::Start, "waiting for process 1")?;
            if let Some(door) = door {
                door.finish();
            }
            Ok(())
        }
    }
}

/// The door of a sandbox whose network is the mesh, in that network.
pub(super) fn open(way: Option<Way>) -> Result<Option<Door>, Stop> {
    let Some(way) = way else { return Ok(None) };
    // Where a test leaves the namespace out it would be the host's.
    if skips(Layer::NetworkNamespace) {
        return Ok(None);
    }
    network()?;
    Door::open(way).map(Some)
}

pub(super) fn namespaces(network: Network) -> UnshareFlags {
    // These two are what all others stand on, and what keeps the host's mounts out of reach.
    let mut all = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
    for (flag, layer) in [
        (UnshareFlags::NEWPID, Layer::ProcessNamespace),
        (UnshareFlags::NEWNET, Layer::NetworkNamespace),
        (UnshareFlags::NEWIPC, Layer::IpcNamespace),
        (UnshareFlags::NEWUTS, Layer::UtsNamespace),
        (UnshareFlags::NEWCGROUP, Layer::CgroupNamespace),
    ] {
        let shared = flag == UnshareFlags::NEWNET && network == Network::Host;
        if !skips(layer) && !shared {
            all |= flag;
        }
    }
    all
}

/// This program, as a descriptor: where its file lies is out of sight later.
fn own_program() -> Result<OwnedFd, Stop> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/exe", flags, Mode::empty()).doing(Step::Start, "the own program")
}

/// One user and one group, and no way to be any other.
pub(super) fn map_to_caller(user: u32, group: u32) -> io::Result<()> {
    let inside = if skips(Layer::PlainUser) { 0 } else { INSIDE_ID };
    std::fs::write("/proc/self/uid_map", format!("{inside} {user} 1"))?;
    // The kernel demands it of callers without privilege, and it is wanted of all.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {group} 1"))
}

pub(super) fn wait_for(first: Pid) -> io::Result<()> {
    loop {
        match waitpid(Some(first), WaitOptions::empty()) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn process_one(
    ground: &Ground,
    program: Option<&OwnedFd>,
    cgroups: Vec<OwnedFd>,
) -> Result<(), Stop> {
    // Should the launcher be killed alone. The control socket covers the daemon's end.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing(Step::Start, "parent death signal")?;

    let (seat, site) = stand(ground, program, cgroups)?;
    let signals = sys::child_signals().doing(Step::Start, "signalfd")?;

    // Here a kept init waits. Nothing of the agent's runs, and nothing of any session is known.
    let Some(Order { spec, text, stdin }) = init::order(ground)? else { return Ok(()) };
    site.finish(&spec)?;
    // After all that needs /proc/self, which belongs to nobody from here on.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .doing(Step::Privileges, "dumpable")?;
    let command = seat.order(&text, &stdin)?;
    drop((text, stdin));
    report(&Report::Started);
    match watch(command, &signals).doing(Step::Start, "waiting")? {
        Happened::Ended(status) => report(&as_report(status)),
        Happened::DaemonGone => {}
    }
    Ok(())
}

/// Builds all that needs no order: the process for the command, the root, the names.
pub(super) fn stand(
    ground: &Ground,
    program: Option<&OwnedFd>,
    cgroups: Vec<OwnedFd>,
) -> Result<(Seat, root::Prepared), Stop> {
    // First, so that what is slow in there goes on meanwhile.
    let seat = Seat::start(cgroups, program, ground.kind.network())?;
    let site = root::prepare(&ground.kind)?;
    if !skips(Layer::UtsNamespace) {
        rustix::system::sethostname(b"sandbox").doing(Step::Start, "host name")?;
    }
    if ground.kind.network() == Network::None && !skips(Layer::NetworkNamespace) {
        network()?;
    }
    Ok((seat, site))
}

/// A loopback of its own and nothing else: programs may talk to themselves (test suites that
/// serve on 127.0.0.1), and to nobody.
fn network() -> Result<(), Stop> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .doing(Step::Network, "socket")?;
    sys::loopback_up(socket.as_fd()).doing(Step::Network, "lo")
}

/// Bounds the number of processes by the process namespace's own `pid_max`, which holds for
/// root as well (root is exempt from RLIMIT_NPROC).
///
/// The command's own number was given out before.
///
/// Only for kernels where `pid_max` belongs to the namespace. On older ones it is the machine's,
/// and a root caller would change it for everybody.
pub(crate) fn bound_processes(proc: &OwnedFd, pids: u32) -> io::Result<()> {
    if !kernel::has_namespaced_pid_max() {
        return Ok(());
    }
    // Numbers below RESERVED are never given out again once the counter has passed them, and
    // `pid_max` must be above. So start the counter there: as many numbers remain as wanted.
    // Where the counter cannot be set, up to RESERVED processes more are possible.
    const RESERVED: u32 = 300;
    let _ = write_below(proc, "sys/kernel/ns_last_pid", RESERVED);
    write_below(proc, "sys/kernel/pid_max", RESERVED.saturating_add(pids.max(2) - 1))
}

fn write_below(proc: &OwnedFd, path: &str, value: u32) -> io::Result<()> {
    let file = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.to_string().as_bytes())?;
    Ok(())
}
