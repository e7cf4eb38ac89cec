//! `namespace`: the launcher, and the sandbox's process 1.
//!
//! There are three processes in a row. The *launcher* is the daemon's child and stays outside of
//! the process namespace; it only waits, and its end tells the daemon that no process is left
//! inside. *Process 1* builds the sandbox, starts the command and watches it. When it ends, for
//! whatever reason, the kernel kills every process of the namespace before the launcher's wait
//! returns, including daemons that forked twice and other sessions. The *command* is process 1's
//! child.
//!
//! Process 1 keeps capabilities over the sandbox's namespaces (none over the host's). The command
//! cannot attack it: process 1 is not dumpable, so its memory and descriptors cannot be opened
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

/// The user and group id of the command inside. Outside they are the caller's.
pub(crate) const INSIDE_ID: u32 = 1000;

/// Runs the launcher.
pub(crate) fn run(ground: &Ground, program: Program, cgroups: Vec<OwnedFd>) -> Result<(), Stop> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    if user == 0 {
        // A daemon that runs as root may be in groups such as `docker` or `disk`, which could not
        // be left inside of a user namespace. A container may forbid leaving them; then it has no
        // groups that matter.
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

/// Opens the mesh proxy of a sandbox whose network is the mesh, inside of that network.
pub(super) fn open(way: Option<Way>) -> Result<Option<Door>, Stop> {
    let Some(way) = way else { return Ok(None) };
    // If a test omits the namespace, this would be the host's network.
    if skips(Layer::NetworkNamespace) {
        return Ok(None);
    }
    network()?;
    Door::open(way).map(Some)
}

pub(super) fn namespaces(network: Network) -> UnshareFlags {
    // All others depend on these two, which also protect the host's mounts.
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

/// Opens this program as a descriptor, because its file is not visible later.
fn own_program() -> Result<OwnedFd, Stop> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/exe", flags, Mode::empty()).doing(Step::Start, "the own program")
}

/// Maps one user and one group, so that the process cannot become any other.
pub(super) fn map_to_caller(user: u32, group: u32) -> io::Result<()> {
    let inside = if skips(Layer::PlainUser) { 0 } else { INSIDE_ID };
    std::fs::write("/proc/self/uid_map", format!("{inside} {user} 1"))?;
    // The kernel requires it of callers without privileges, and it is applied to all callers.
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
    // This covers the case that only the launcher is killed; the control socket covers the daemon's
    // end.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing(Step::Start, "parent death signal")?;

    let (seat, site) = stand(ground, program, cgroups)?;
    let signals = sys::child_signals().doing(Step::Start, "signalfd")?;

    // A pre-started init waits here. It runs no code of the agent and knows nothing of any session.
    let Some(Order { spec, text, stdin }) = init::order(ground)? else { return Ok(()) };
    site.finish(&spec)?;
    // This comes after all uses of /proc/self, which no user can open from here on.
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

/// Builds everything that is independent of the order: the command's process, the root, the names.
pub(super) fn stand(
    ground: &Ground,
    program: Option<&OwnedFd>,
    cgroups: Vec<OwnedFd>,
) -> Result<(Seat, root::Prepared), Stop> {
    // This comes first, so that its slow steps run in parallel.
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

/// Sets up a loopback and nothing else: programs may connect to themselves (test suites that serve
/// on 127.0.0.1), but to nobody else.
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

/// Limits the number of processes by the process namespace's own `pid_max`, which also applies to
/// root (root is exempt from RLIMIT_NPROC).
///
/// The command's own process number was assigned before.
///
/// Use it only on kernels where `pid_max` belongs to the namespace. On older ones it belongs to the
/// machine, and a root caller would change it for everybody.
pub(crate) fn bound_processes(proc: &OwnedFd, pids: u32) -> io::Result<()> {
    if !kernel::has_namespaced_pid_max() {
        return Ok(());
    }
    // Numbers below RESERVED are never assigned again once the counter has passed them, and
    // `pid_max` must be above. So the counter starts there, and as many numbers remain as wanted.
    // If the counter cannot be set, up to RESERVED more processes are possible.
    const RESERVED: u32 = 300;
    let _ = write_below(proc, "sys/kernel/ns_last_pid", RESERVED);
    write_below(proc, "sys/kernel/pid_max", RESERVED.saturating_add(pids.max(2) - 1))
}

fn write_below(proc: &OwnedFd, path: &str, value: u32) -> io::Result<()> {
    let file = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.to_string().as_bytes())?;
    Ok(())
}
