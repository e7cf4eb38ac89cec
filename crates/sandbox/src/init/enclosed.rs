//! The launcher of a long-running command: the command has a terminal or pipes, a supervisor
//! process outside, and runs on when the daemon restarts.
//!
//! The supervisor process (or the daemon, for a service) starts this program instead of the
//! command. It becomes the *launcher*, which stays outside of the process namespace like that of a
//! tool call ([`super::confined`]). Its one task is to end as the command ends, with its exit code
//! or by its signal. *Process 1* builds the same sandbox by the same steps and becomes the
//! command's parent. When it ends, no process of the namespace is left.
//!
//! The launcher asks no daemon for anything: a variable ([`PLAN`]) describes the sandbox; it
//! contains no secret and is not passed to the command. The arguments are the command. A terminal
//! belongs to only one session of processes, so the launcher gives it up, and the command, which
//! leads its own session, takes it. Keys, job control and sizes are then handled between command
//! and supervisor process. The launcher forwards signals to the command's process group.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use overmind_core::sandbox::Exit;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};

use crate::init::confined::{map_to_caller, namespaces, open, stand, wait_for};
use crate::init::door::{Door, Way};
use crate::init::spec::{Doing, Ground, Kind, Limits, Report, Spec, Step, Stop};
use crate::init::watch::{as_report, reap};
use crate::launch::{self, Ended};
use crate::repository::Fixed;
use crate::sys::{self, Fork};

/// The first argument that turns the program into a launcher. The command follows it.
pub(crate) const ARGUMENT: &str = "__enclose";
/// The variable that holds a [`Plan`] as JSON.
pub(crate) const PLAN: &str = "OVERMIND_ENCLOSURE";

/// Exit codes, as in shells, for a missing command, a command that cannot be started, and a sandbox
/// that cannot be built.
const NOT_FOUND: i32 = 127;
const NOT_BUILT: i32 = 125;

/// A description of the sandbox. Both ends are the same build of the same program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// The workspace, as a path on the host.
    pub(crate) workspace: PathBuf,
    /// The working directory, relative to the workspace.
    pub(crate) cwd: PathBuf,
    pub(crate) private_home: Option<PathBuf>,
    /// See [`Spec::masks`].
    pub(crate) masks: Vec<PathBuf>,
    /// See [`Spec::secrets`].
    pub(crate) secrets: Vec<PathBuf>,
    /// See [`Spec::fixed`].
    pub(crate) fixed: Fixed,
    pub(crate) terminal: bool,
    pub(crate) limits: Limits,
    /// The line that is sent first on each connection through the proxy; it identifies the sandbox.
    pub(crate) whose: String,
    /// Ports of the host's loopback whose connections are forwarded inside, if the network is the
    /// mesh.
    pub(crate) ports: Vec<u16>,
    /// Whether the command runs on after its starter has ended. Then it is not started if one of
    /// `ports` is in use, because only clients of that port would notice.
    pub(crate) detached: bool,
    /// A cgroup of the host to join.
    pub(crate) group: Option<PathBuf>,
    /// Variables for the command that this program must not have itself; here they are empty.
    pub(crate) withheld: Vec<(String, String)>,
}

/// The parts of a [`Plan`] that the launcher itself handles.
#[derive(Debug)]
struct Task {
    whose: String,
    ports: Vec<u16>,
    detached: bool,
    group: Option<PathBuf>,
}

/// Becomes a launcher, and ends as the command does. `command` is the arguments after [`ARGUMENT`].
pub(crate) fn become_launcher(command: impl Iterator<Item = OsString>) -> ! {
    let ended = run(command.collect());
    match ended {
        Ok(Exit::Code(code)) => sys::exit_now(code),
        Ok(Exit::Signal(signal)) => end_by(signal),
        Ok(Exit::TimedOut) => sys::exit_now(NOT_BUILT),
        Err(stop) => {
            let (code, text) = told(stop);
            // If this fails, the command's own output cannot be written either.
            let _ = writeln!(io::stderr(), "overmind: {text}");
            sys::exit_now(code)
        }
    }
}

fn told(stop: Stop) -> (i32, String) {
    match stop {
        Stop::BadConfig(text) => {
            let hint = "a sandbox shows no home and nothing else that was not granted: see \
                        `command.read` of the agent";
            (NOT_FOUND, format!("{text}; {hint}"))
        }
        Stop::Refused { step, detail, errno } => {
            let on = if detail.is_empty() { detail } else { format!(" ({detail})") };
            let cause = match errno {
                0 => String::new(),
                errno => format!(": {}", io::Error::from_raw_os_error(errno)),
            };
            (
                NOT_BUILT,
                format!("the sandbox could not be built, so nothing ran: {step}{on}{cause}"),
            )
        }
    }
}

fn run(command: Vec<OsString>) -> Result<Exit, Stop> {
    sys::close_inherited().doing(Step::Handshake, "close_range")?;
    let keeper = rustix::process::getppid();
    let (ground, spec, Task { whose, ports, detached, group }) = order(command)?;
    if let Some(group) = group {
        // Others find the processes of this command by the group. If it cannot be joined, nothing
        // is lost: all processes that are started here end with this one.
        let _ = std::fs::write(group.join("cgroup.procs"), std::process::id().to_string());
    }
    // Otherwise this process, which keeps the old root's mounts, would keep that directory busy
    // longest.
    rustix::process::chdir("/").doing(Step::Start, "chdir /")?;
    if spec.terminal {
        // The foreground process group, which is ours, gets a signal that the terminal is gone.
        sys::ignore(libc::SIGHUP);
        sys::leave_terminal(io::stdin().as_fd()).doing(Step::Start, "its terminal")?;
    }
    let signals = sys::signals(HANDED_ON).doing(Step::Start, "signalfd")?;

    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    if user == 0 {
        // See `confined`.
        let _ = rustix::thread::set_thread_groups(&[]);
    }
    let mut way = Way::find(&ground.kind)?;
    if let Some(way) = &mut way {
        way.say_first(whose);
        for port in way.let_in(&ports) {
            if detached {
                let detail = format!("port {port} of this machine");
                let errno = libc::EADDRINUSE;
                return Err(Stop::Refused { step: Step::Network, detail, errno });
            }
            let text = format!("port {port} is taken here, so nobody comes in by it");
            let _ = writeln!(io::stderr(), "overmind: {text}");
        }
    }
    sys::unshare(namespaces(ground.kind.network())).doing(Step::Unshare, "")?;
    map_to_caller(user, group).doing(Step::MapUser, "")?;
    let mut door = open(way)?;
    if !detached {
        // A change of user clears the parent-death signal that the supervisor process had set.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .doing(Step::Start, "parent death signal")?;
        if rustix::process::getppid() != keeper {
            return Ok(Exit::Signal(libc::SIGKILL));
        }
    }

    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).doing(Step::Start, "")?;
    match sys::fork().doing(Step::Start, "process 1")? {
        Fork::Child => {
            drop((ours, signals, door));
            if let Err(stop) = process_one(&ground, &spec, &theirs) {
                say(&theirs, &stop.into_report());
            }
            sys::exit_now(0)
        }
        Fork::Parent(first) => {
            drop(theirs);
            if let Some(door) = &door {
                door.stand()?;
            }
            let reports = hand_on(&ours, &signals, door.as_mut()).doing(Step::Start, "waiting")?;
            // Before that, processes of the namespace may be left.
            wait_for(first).doing(Step::Start, "waiting for process 1")?;
            if let Some(door) = door {
                door.finish();
            }
            match launch::judge(&reports, true) {
                Ended::Exit(exit) => Ok(exit),
                Ended::BadConfig(text) => Err(Stop::BadConfig(text)),
                Ended::Refused { step, detail, errno } => {
                    Err(Stop::Refused { step, detail, errno })
                }
                Ended::Silent => Ok(Exit::Signal(libc::SIGKILL)),
            }
        }
    }
}

/// Reads the sandbox to build, the command to run in it, and the launcher's own tasks.
fn order(command: Vec<OsString>) -> Result<(Ground, Spec, Task), Stop> {
    let text = |text: OsString| {
        String::from_utf8(text.into_vec())
            .map_err(|_| Stop::BadConfig("an argument or variable is not UTF-8".to_owned()))
    };
    let mut plan = None;
    let mut env = Vec::new();
    for (name, value) in std::env::vars_os() {
        let (name, value) = (text(name)?, text(value)?);
        if name == PLAN {
            plan = Some(value);
        } else {
            env.push((name, value));
        }
    }
    let plan = plan.ok_or_else(|| Stop::BadConfig(format!("there is no plan in {PLAN}")))?;
    let plan: Plan =
        serde_json::from_str(&plan).map_err(io::Error::from).doing(Step::Handshake, "the plan")?;
    env.retain(|(name, _)| plan.withheld.iter().all(|(withheld, _)| withheld != name));
    env.extend(plan.withheld);
    let argv: Result<Vec<String>, Stop> = command.into_iter().map(text).collect();
    let spec = Spec {
        kind: plan.kind,
        argv: argv?,
        env,
        home: Vec::new(),
        workspace: plan.workspace,
        writable: Some(PathBuf::from(".")),
        cwd: plan.cwd,
        private_home: plan.private_home,
        also_at: None,
        masks: plan.masks,
        secrets: plan.secrets,
        fixed: plan.fixed,
        terminal: plan.terminal,
        limits: plan.limits,
        #[cfg(feature = "mutations")]
        mutation: None,
    };
    let Plan { whose, ports, detached, group, .. } = plan;
    let task = Task { whose, ports, detached, group };
    Ok((Ground::of(&spec), spec, task))
}

/// The signals that are forwarded to the command. The others affect the launcher like any program.
const HANDED_ON: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Forwards signals to process 1 until it ends, and runs the proxy; returns the reports of process
/// 1.
fn hand_on(
    process_one: &OwnedFd,
    signals: &OwnedFd,
    mut door: Option<&mut Door>,
) -> io::Result<Vec<u8>> {
    let mut reports = Vec::new();
    let mut piece = [0u8; 4096];
    let mut let_go = false;
    loop {
        let [signalled, said] = match &mut door {
            Some(door) => door.wait([signals.as_fd(), process_one.as_fd()])?,
            None => {
                let mut waiting =
                    [PollFd::new(signals, PollFlags::IN), PollFd::new(process_one, PollFlags::IN)];
                match poll(&mut waiting, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(err) => return Err(err.into()),
                }
                waiting.map(|one| !one.revents().is_empty())
            }
        };
        if signalled {
            while let Ok(count @ 1..) = rustix::io::read(signals, &mut piece) {
                for number in sys::signal_numbers(&piece[..count]) {
                    // Process 1 has ended, so nobody receives the signal.
                    let _ =
                        rustix::net::send(process_one, &[number], rustix::net::SendFlags::NOSIGNAL);
                }
            }
        }
        if said {
            match rustix::io::read(process_one, &mut piece) {
                Ok(0) | Err(Errno::CONNRESET) => return Ok(reports),
                Ok(count) => {
                    reports.extend_from_slice(&piece[..count]);
                    if !let_go {
                        let_go = true;
                        let_go_if_begun(&reports)?;
                    }
                }
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// Closes the standard streams if the first report says that the command has started; before that,
/// errors may have to be written.
fn let_go_if_begun(reports: &[u8]) -> io::Result<()> {
    let begun = serde_json::to_vec(&Report::Started).expect("a report is plain data");
    if reports.starts_with(&begun) { let_go_of_streams() } else { Ok(()) }
}

fn process_one(ground: &Ground, spec: &Spec, launcher: &OwnedFd) -> Result<(), Stop> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing(Step::Start, "parent death signal")?;
    let (seat, site) = stand(ground, None, Vec::new())?;
    let signals = sys::child_signals().doing(Step::Start, "signalfd")?;
    site.finish(spec)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .doing(Step::Privileges, "dumpable")?;
    let order = serde_json::to_vec(spec).map_err(io::Error::from).doing(Step::Start, "")?;
    let order = launch::sealed(&order).doing(Step::Start, "the order")?;
    let stdin = io::stdin().as_fd().try_clone_to_owned().doing(Step::Start, "stdin")?;
    let command = seat.order(&order, &stdin)?;
    drop((order, stdin));
    say(launcher, &Report::Started);
    let_go_of_streams().doing(Step::Start, "streams")?;
    let end = look_after(command, &signals, launcher).doing(Step::Start, "waiting")?;
    if let Some(end) = end {
        say(launcher, &end);
    }
    Ok(())
}

/// Replaces the standard streams by `/dev/null`: the command has them, and the other end must
/// notice when the command closes one.
fn let_go_of_streams() -> io::Result<()> {
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    for number in 0..=2 {
        sys::replace_standard_stream(nothing.as_fd(), number)?;
    }
    Ok(())
}

/// Waits for the command's end, reaps all orphans, and forwards the launcher's signals to the
/// command. Returns `None` if the launcher has ended.
fn look_after(command: Pid, signals: &OwnedFd, launcher: &OwnedFd) -> io::Result<Option<Report>> {
    let mut piece = [0u8; 1024];
    loop {
        if let Some(status) = reap(command)? {
            return Ok(Some(as_report(status)));
        }
        let mut waiting =
            [PollFd::new(signals, PollFlags::IN), PollFd::new(launcher, PollFlags::IN)];
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        if !waiting[0].revents().is_empty() {
            while rustix::io::read(signals, &mut piece).is_ok() {}
        }
        if !waiting[1].revents().is_empty() {
            match rustix::io::read(launcher, &mut piece) {
                Ok(0) | Err(Errno::CONNRESET) => return Ok(None),
                Ok(count) => {
                    for number in &piece[..count] {
                        // A group that has ended is reaped in the next round.
                        let _ = sys::kill_group(command, i32::from(*number));
                    }
                }
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// Reports to the launcher; an ended launcher needs no report.
fn say(launcher: &OwnedFd, report: &Report) {
    let mut line = serde_json::to_vec(report).expect("a report is plain data");
    line.push(b'\n');
    if let Ok(launcher) = launcher.try_clone() {
        let _ = std::fs::File::from(launcher).write_all(&line);
    }
}

/// Ends this process in the way the command ended, so that the supervisor process sees the right
/// status.
fn end_by(signal: i32) -> ! {
    // The memory of this process must not be dumped.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    sys::reset_signals();
    sys::end_by(signal);
    // The signal does not end this process; the exit code reports it as a shell does.
    sys::exit_now(128 + signal)
}
