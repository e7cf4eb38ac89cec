//! A command that lives: in a terminal or behind pipes, kept by a keeper outside, for longer than
//! the daemon.
//!
//! The keeper (or, of a service, the daemon) starts this program in place of the command. It becomes
//! the *launcher*, which stays outside of the process namespace as that of a called command does
//! ([`super::confined`]) and has one task: it ends as the command ends, with its exit code or by its
//! signal. *Process 1* builds
//! the same sandbox by the same steps and becomes the command's parent; when it ends nothing of the
//! namespace is left.
//!
//! No daemon is asked for anything: what to build stands in a variable ([`PLAN`]), which names no
//! secret and does not reach the command, and the command itself in the arguments. The terminal
//! belongs to one session of processes only, so the launcher lets go of it and the command, which
//! leads a session of its own, takes it: keys, job control and sizes are between the two and the
//! keeper. A signal that reaches the launcher is handed on to the command's group.

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

/// As shells do: the command is not there; it cannot be started. And: the sandbox cannot be built.
const NOT_FOUND: i32 = 127;
const NOT_BUILT: i32 = 125;

/// What to build. Both ends are the same build of the same program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// As on the host.
    pub(crate) workspace: PathBuf,
    /// Relative to it.
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
    /// Said first on each connection that goes through the door: whose it is.
    pub(crate) whose: String,
    /// Of the host's loopback: what connects there is let in. With the mesh for a network.
    pub(crate) ports: Vec<u16>,
    /// It outlives who started it, and does not run when one of `ports` is taken: nobody but who
    /// connects there would notice.
    pub(crate) detached: bool,
    /// A control group of the host's to be joined.
    pub(crate) group: Option<PathBuf>,
    /// Variables that the command is to have and this program is not: empty ones stand for them here.
    pub(crate) withheld: Vec<(String, String)>,
}

/// What of a [`Plan`] the launcher itself is to do.
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
            // It is the command's own output that nobody can write to then.
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
        // By it others know what belongs together. Where it cannot be joined nothing is lost: all that
        // is begun here ends with this process.
        let _ = std::fs::write(group.join("cgroup.procs"), std::process::id().to_string());
    }
    // Else this process, which keeps the old root's mounts, would keep that one busy for longest.
    rustix::process::chdir("/").doing(Step::Start, "chdir /")?;
    if spec.terminal {
        // The group in its foreground, which is ours, is told that it is gone.
        sys::ignore(libc::SIGHUP);
        sys::leave_terminal(io::stdin().as_fd()).doing(Step::Start, "its terminal")?;
    }
    let signals = sys::signals(HANDED_ON).doing(Step::Start, "signalfd")?;

    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    if user == 0 {
        // As in `confined`.
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
        // To change one's user undoes what the keeper asked for: that we go with it.
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
            // Until then something of the namespace may be left.
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

/// What to build, what to run in it, and what is to be done beside it.
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

/// What of a person's or a program's signals the command gets to hear. The others do to the
/// launcher what they do to any program.
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

/// Hands signals on to process 1 until it ends, and looks after the door; answers what process 1
/// reported.
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
                    // Process 1 has ended: nobody is left to hear it.
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

/// With the first report it is known whether there are words to be said about a failure.
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

/// The command has them; that it closes one must be seen at the other end.
fn let_go_of_streams() -> io::Result<()> {
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    for number in 0..=2 {
        sys::replace_standard_stream(nothing.as_fd(), number)?;
    }
    Ok(())
}

/// Waits for the command's end, reaps whoever comes here, and tells the command what the launcher
/// hands on. `None`: the launcher is gone.
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
                        // A group that is gone is reaped with the next look.
                        let _ = sys::kill_group(command, i32::from(*number));
                    }
                }
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// Tells the launcher; one that is gone needs to know nothing.
fn say(launcher: &OwnedFd, report: &Report) {
    let mut line = serde_json::to_vec(report).expect("a report is plain data");
    line.push(b'\n');
    if let Ok(launcher) = launcher.try_clone() {
        let _ = std::fs::File::from(launcher).write_all(&line);
    }
}

/// Ends this process as the command was ended, so that the keeper is told the truth.
fn end_by(signal: i32) -> ! {
    // The memory of this process is nobody's business.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    sys::reset_signals();
    sys::end_by(signal);
    // A signal that ends nobody here: as a shell says it.
    sys::exit_now(128 + signal)
}
