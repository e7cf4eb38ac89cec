//! The process that becomes the command, started before the command is known.
//!
//! Two of its steps are slow and independent of the order: moving into a cgroup, for which the
//! kernel waits until every processor has passed a quiet state, and compiling the filter. So
//! process 1 forks it first, and it does both while process 1 builds the root, and while an init
//! waits.
//!
//! It shares process 1's mounts and root, so it is in the new root when process 1 has entered that;
//! then it gets the order.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use overmind_core::enclosure::Network;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid};

use crate::cgroup;
use crate::init::command::{Confinement, Prepared, failure};
use crate::init::landlock::Rules;
use crate::init::spec::{Doing, Spec, Step, Stop};
use crate::init::{message, opened, read, root, seccomp};
use crate::launch;
use crate::sys::{self, Fork};

/// The parent's side.
pub(crate) struct Seat {
    pid: Pid,
    orders: OwnedFd,
    /// A successful `execve` closes this pipe; otherwise it carries the reason.
    failed: OwnedFd,
}

impl Seat {
    /// Starts the process. It moves into `cgroups` and waits; `program` is the probe's.
    pub(crate) fn start(
        cgroups: Vec<OwnedFd>,
        program: Option<&OwnedFd>,
        network: Network,
    ) -> Result<Self, Stop> {
        let (failed, fail) = pipe_with(PipeFlags::CLOEXEC).doing(Step::Start, "")?;
        let (orders, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .doing(Step::Start, "")?;
        match sys::fork().doing(Step::Start, "")? {
            Fork::Child => {
                // Otherwise the end of process 1 would not be noticed.
                drop((failed, orders));
                if let Err(stop) = sit(&theirs, cgroups, program, network) {
                    let text = serde_json::to_vec(&stop.into_report()).expect("plain data");
                    let _ = File::from(fail).write_all(&text);
                }
                sys::exit_now(127)
            }
            Fork::Parent(pid) => Ok(Self { pid, orders, failed }),
        }
    }

    /// Sends it the order, once process 1 is in the new root; returns when the command's program
    /// runs.
    ///
    /// # Errors
    ///
    /// The reason why the command does not run, as for [`Prepared::start`].
    pub(crate) fn order(self, text: &OwnedFd, stdin: &OwnedFd) -> Result<Pid, Stop> {
        // Process 1 has read it, and both share one position.
        rustix::fs::seek(text, rustix::fs::SeekFrom::Start(0)).doing(Step::Start, "the order")?;
        // The process may have ended; then it reports why.
        let sent = launch::send(&self.orders, &[text.as_fd(), stdin.as_fd()]);
        drop(self.orders);
        let mut reason = Vec::new();
        File::from(self.failed).read_to_end(&mut reason).doing(Step::Start, "")?;
        if reason.is_empty() {
            sent.doing(Step::Start, "its process")?;
            return Ok(self.pid);
        }
        Err(failure(&reason))
    }
}

/// Waits for the order. Returns if there is none, or with the reason why the command does not run.
fn sit(
    orders: &OwnedFd,
    cgroups: Vec<OwnedFd>,
    program: Option<&OwnedFd>,
    network: Network,
) -> Result<(), Stop> {
    for group in &cgroups {
        cgroup::join(group).doing(Step::Limits, "joining the cgroup")?;
    }
    drop(cgroups);
    let filters =
        seccomp::programs(network).map_err(io::Error::other).doing(Step::Filter, "compiling")?;

    let Some(received) = message(orders).doing(Step::Start, "the order")? else { return Ok(()) };
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .doing(Step::Privileges, "dumpable")?;
    let mut received = received.into_iter();
    let (Some(text), Some(stdin)) = (received.next(), received.next()) else { return Ok(()) };
    let text = read(text).doing(Step::Start, "the order")?;
    let spec: Spec =
        serde_json::from_slice(&text).map_err(io::Error::from).doing(Step::Start, "")?;

    let workspace = opened::open_directory(&root::workspace_inside(&spec))?;
    let cwd = opened::open_working_directory(&workspace, &spec.cwd)?;
    let rules = Rules::new(&spec, program)?;
    let command = Prepared::new(&spec, program, stdin)?;
    Err(command.become_command(&cwd, &spec.limits, Some(Confinement { filters, rules })))
}
