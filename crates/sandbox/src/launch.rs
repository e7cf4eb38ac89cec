//! The daemon's side of the init: starts it, sends the order, collects the output and the exit.
//!
//! Used by the `namespace` and the `none` driver; see [`crate::init`] for the other side.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Captured, Exit, OutputSink, OutputStream, SandboxLimits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::capture::Capture;
use crate::cgroup::Group;
use crate::init;
use crate::init::spec::{Ground, Report, Spec, Step};

/// A user and a group by number, for a daemon that runs as root but runs its commands as another
/// user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

pub(crate) struct Launch<'a> {
    pub(crate) program: &'a Path,
    pub(crate) run_as: Option<RunAs>,
    pub(crate) spec: &'a Spec,
    /// A variable for the init itself, which otherwise gets none: the trap that a probe must not
    /// find.
    pub(crate) variable: Option<(&'a str, &'a str)>,
    /// Groups that the command's process joins; they outlive the call by themselves. Used for a new
    /// init, because a waiting one has its own.
    pub(crate) group: Option<Group>,
    pub(crate) stdin: &'a [u8],
    pub(crate) output_bytes: usize,
    /// Gets the output as it comes, in addition to its capture.
    pub(crate) sink: Option<OutputSink>,
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) elapsed: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exit(Exit),
    BadConfig(String),
    Refused {
        step: Step,
        detail: String,
        errno: i32,
    },
    /// The init ended without a report before the command ran.
    Silent,
}

/// How long the rest of a killed tree may take to end. Only a process in an uninterruptible wait
/// (on a dead network file system) needs longer, and nothing can be done about that.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Reports are short; a process that sends more than this is not our init.
const MAX_REPORT_BYTES: u64 = 256 << 10;

/// The memory for what the pipes still hold when all writers have ended.
const MAX_REST_BYTES: usize = 4 << 20;

/// Starts an init and runs it to its end.
///
/// # Errors
///
/// Fails if the init cannot be started at all.
///
/// # Cancel safety
///
/// Dropping the future closes the control socket: the init ends with the whole tree.
pub(crate) async fn run(mut launch: Launch<'_>) -> io::Result<Outcome> {
    let started = Instant::now();
    let group = launch.group.take();
    let Launch { program, run_as, spec, variable, .. } = &launch;
    let init = Init::start(program, *run_as, &Ground::of(spec), *variable, group)?;
    // A program that is no init may have ended already; its output decides, as always.
    let (ordered, _) = init.order(&launch)?;
    to_the_end(ordered, &launch, started).await
}

/// Works as [`run`], with a waiting init; `None` if it no longer waits, or ends before the command
/// runs.
pub(crate) async fn run_in(init: Init, launch: &Launch<'_>) -> io::Result<Option<Outcome>> {
    let started = Instant::now();
    match init.order(launch) {
        Ok((ordered, true)) => {
            let outcome = to_the_end(ordered, launch, started).await?;
            // Its order came too late. A new init runs the command, or reports the error.
            Ok(Some(outcome).filter(|outcome| outcome.ended != Ended::Silent))
        }
        // It has ended meanwhile, without its order.
        Ok((_, false)) | Err(_) => Ok(None),
    }
}

async fn to_the_end(
    ordered: Ordered,
    launch: &Launch<'_>,
    started: Instant,
) -> io::Result<Outcome> {
    let Ordered { mut child, mut control, mut stdout, mut stderr, group: _empty_at_the_end } =
        ordered;

    let mut reports = Vec::new();
    let in_time = {
        let end = async {
            // The socket ends when launcher and init have ended. The end of the child is what
            // matters, because then no process of the tree is left.
            let mut limited = (&mut control).take(MAX_REPORT_BYTES);
            // A program that is no init may end without reading its order, which is an error here;
            // its output decides, as always.
            let _ = limited.read_to_end(&mut reports).await;
            child.wait().await
        };
        tokio::select! {
            biased;
            ended = tokio::time::timeout(launch.timeout, end) => match ended {
                Ok(status) => {
                    status?;
                    true
                }
                Err(_elapsed) => false,
            },
            never = async { tokio::join!(stdout.pump(), stderr.pump()) } => match never.0 {},
        }
    };
    if !in_time {
        drop(control);
        if tokio::time::timeout(KILL_GRACE, child.wait()).await.is_err() {
            tracing::warn!("a timed-out sandbox has not ended within the grace period");
        }
    }
    let ended = judge(&reports, in_time);
    Ok(Outcome {
        ended,
        stdout: stdout.finish(),
        stderr: stderr.finish(),
        elapsed: started.elapsed(),
    })
}

/// Interprets the reports. The command's own exit counts even if the time ran out meanwhile.
pub(crate) fn judge(reports: &[u8], in_time: bool) -> Ended {
    let mut started = false;
    for line in reports.split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Report::Started) => started = true,
            Ok(Report::Exited(code)) => return Ended::Exit(Exit::Code(code)),
            Ok(Report::Signaled(signal)) => return Ended::Exit(Exit::Signal(signal)),
            Ok(Report::BadConfig(message)) => return Ended::BadConfig(message),
            Ok(Report::Refused { step, detail, errno }) => {
                return Ended::Refused { step, detail, errno };
            }
            Err(_) => {}
        }
    }
    match (in_time, started) {
        (false, _) => Ended::Exit(Exit::TimedOut),
        // The init was killed (by the kernel because memory ran out, or by a person), and the
        // command with it.
        (true, true) => Ended::Exit(Exit::Signal(libc::SIGKILL)),
        (true, false) => Ended::Silent,
    }
}

struct Ordered {
    child: Child,
    control: UnixStream,
    stdout: Stream,
    stderr: Stream,
    group: Option<Group>,
}

/// An init that has the ground and no order yet.
///
/// Dropping it ends the init, because its socket closes.
#[derive(Debug)]
pub(crate) struct Init {
    child: Child,
    control: StdUnixStream,
    stdout: OwnedFd,
    stderr: OwnedFd,
    group: Option<Group>,
}

impl Init {
    /// Starts an init. It builds what the ground allows and then waits.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started. An error of the set-up is reported after the order.
    pub(crate) fn start(
        program: &Path,
        run_as: Option<RunAs>,
        ground: &Ground,
        variable: Option<(&str, &str)>,
        group: Option<Group>,
    ) -> io::Result<Self> {
        let procs = group.as_ref().map(Group::procs).unwrap_or_default();
        let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = (their_stdout, their_stderr);
        let (child, control) = spawn(program, run_as, ground, procs, variable, streams)?;
        Ok(Self { child, control, stdout, stderr, group })
    }

    /// Whether the init waits, or will soon: it has neither ended nor reported an error.
    pub(crate) fn waits(&self) -> bool {
        let mut asked = [PollFd::new(&self.control, PollFlags::IN)];
        matches!(poll(&mut asked, Some(&Timespec::default())), Ok(0))
    }

    /// Sets the limits of its group, which was made without.
    pub(crate) fn bound(&self, limits: &SandboxLimits) -> io::Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.bound(limits))
    }

    /// Also returns whether the order could be sent.
    fn order(self, launch: &Launch<'_>) -> io::Result<(Ordered, bool)> {
        let Self { child, control, stdout, stderr, group } = self;
        let order = sealed(&serde_json::to_vec(launch.spec)?)?;
        let stdin = if launch.stdin.is_empty() {
            File::open("/dev/null")?.into()
        } else {
            sealed(launch.stdin)?
        };
        let given = send(&control, &[order.as_fd(), stdin.as_fd()]).is_ok();
        control.set_nonblocking(true)?;
        let ordered = Ordered {
            child,
            control: UnixStream::from_std(control)?,
            stdout: Stream::new(launch, stdout, OutputStream::Stdout)?,
            stderr: Stream::new(launch, stderr, OutputStream::Stderr)?,
            group,
        };
        Ok((ordered, given))
    }
}

/// Starts the init's program and sends it the ground.
pub(crate) fn spawn(
    program: &Path,
    run_as: Option<RunAs>,
    ground: &Ground,
    groups: &[OwnedFd],
    variable: Option<(&str, &str)>,
    (stdout, stderr): (OwnedFd, OwnedFd),
) -> io::Result<(Child, StdUnixStream)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let text = sealed(&serde_json::to_vec(ground)?)?;
    let first: Vec<BorrowedFd<'_>> =
        std::iter::once(&text).chain(groups).map(AsFd::as_fd).collect();
    send(&ours, &first)?;
    let mut command = Command::new(program);
    command
        .arg(init::ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr));
    if let Some((name, value)) = variable {
        command.env(name, value);
    }
    if let Some(RunAs { uid, gid }) = run_as {
        command.uid(uid).gid(gid);
    }
    // `command` holds the other ends; after its drop only the init has them.
    Ok((command.spawn()?, ours))
}

/// Makes a file in memory that nobody can change any more, positioned at its beginning.
///
/// As the command's standard input it needs no writer that could block or be forgotten.
pub(crate) fn sealed(content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("sandbox", flags)?);
    file.write_all(content)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Sends one message with descriptors and nothing else.
pub(crate) fn send(control: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(init::MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors)),
        "there is one group for each controller at most"
    );
    rustix::net::sendmsg(control, &[IoSlice::new(b"!")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The reading end of one of the command's output streams.
struct Stream {
    pipe: pipe::Receiver,
    capture: Capture,
    sink: Option<(OutputSink, OutputStream)>,
    buffer: Vec<u8>,
    open: bool,
}

/// A type without values: a function that returns it never returns.
enum Never {}

impl Stream {
    fn new(launch: &Launch<'_>, pipe: OwnedFd, which: OutputStream) -> io::Result<Self> {
        Ok(Self {
            pipe: pipe::Receiver::from_owned_fd(pipe)?,
            capture: Capture::new(launch.output_bytes),
            sink: launch.sink.clone().map(|sink| (sink, which)),
            buffer: vec![0; 64 << 10],
            open: true,
        })
    }

    /// Reads while it is polled. Cancel safe: the read bytes are in the capture.
    async fn pump(&mut self) -> Never {
        while self.open {
            if self.pipe.readable().await.is_err() {
                self.open = false;
                break;
            }
            match self.pipe.try_read(&mut self.buffer) {
                Ok(0) => self.open = false,
                Ok(count) => self.take(count),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.open = false,
            }
        }
        std::future::pending().await
    }

    /// Records that the first `count` bytes of the buffer were read.
    fn take(&mut self, count: usize) {
        let piece = &self.buffer[..count];
        self.capture.push(piece);
        if let Some((sink, which)) = &self.sink {
            sink(*which, piece);
        }
    }

    /// Reads what the pipe still holds, without waiting for its end: a process outside that got the
    /// writing end could hold it open forever.
    ///
    /// The descriptor is read directly, because the runtime may not know yet that it is readable.
    fn finish(mut self) -> Captured {
        let mut rest = 0;
        while self.open && rest < MAX_REST_BYTES {
            match rustix::io::read(&self.pipe, &mut self.buffer) {
                Ok(0) => self.open = false,
                Ok(count) => {
                    self.take(count);
                    rest += count;
                }
                Err(rustix::io::Errno::INTR) => {}
                // The pipe is empty or broken; in both cases nothing more comes.
                Err(_) => self.open = false,
            }
        }
        self.capture.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(reports: &[Report]) -> Vec<u8> {
        reports
            .iter()
            .flat_map(|r| [serde_json::to_vec(r).unwrap(), b"\n".to_vec()].concat())
            .collect()
    }

    #[test]
    fn the_end_of_the_command_ends_the_call() {
        let all = lines(&[Report::Started, Report::Exited(3)]);
        assert_eq!(judge(&all, true), Ended::Exit(Exit::Code(3)));
        assert_eq!(judge(&all, false), Ended::Exit(Exit::Code(3)));
    }

    #[test]
    fn silence_is_a_kill_after_the_start_and_a_failure_before_it() {
        assert_eq!(judge(&lines(&[Report::Started]), true), Ended::Exit(Exit::Signal(9)));
        assert_eq!(judge(b"", true), Ended::Silent);
        assert_eq!(judge(b"", false), Ended::Exit(Exit::TimedOut));
    }
}
