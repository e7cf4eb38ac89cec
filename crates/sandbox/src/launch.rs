//! The daemon's side of the init: start it, give it the order, collect the output and the end.
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

/// A user and a group by number, for a daemon that runs as root and does not want its
/// commands to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

pub(crate) struct Launch<'a> {
    pub(crate) program: &'a Path,
    pub(crate) run_as: Option<RunAs>,
    pub(crate) spec: &'a Spec,
    /// What the init itself gets besides nothing: for a probe, which must not find it.
    pub(crate) variable: Option<(&'a str, &'a str)>,
    /// Groups that the command's process puts itself in. They outlive the call by themselves.
    /// Of a new init; one that waits has its own.
    pub(crate) group: Option<Group>,
    pub(crate) stdin: &'a [u8],
    pub(crate) output_bytes: usize,
    /// Is told what comes, besides its being kept.
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
    /// The init ended without a word before the command ran.
    Silent,
}

/// How long the rest of a killed tree may take to go. Only a process in an uninterruptible
/// wait (a dead network file system) needs longer, and nothing can be done about that one.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Answers are short; an init that sends more than this is not ours.
const MAX_REPORT_BYTES: u64 = 256 << 10;

/// Room for what the pipes still hold when all writers are dead.
const MAX_REST_BYTES: usize = 4 << 20;

/// Starts an init and runs it to its end.
///
/// # Errors
///
/// When the init cannot be started at all.
///
/// # Cancel safety
///
/// Dropped, it closes the control socket: the init ends and takes the whole tree along.
pub(crate) async fn run(mut launch: Launch<'_>) -> io::Result<Outcome> {
    let started = Instant::now();
    let group = launch.group.take();
    let Launch { program, run_as, spec, variable, .. } = &launch;
    let init = Init::start(program, *run_as, &Ground::of(spec), *variable, group)?;
    // One that is none may have ended already; what it did say decides, as always.
    let (ordered, _) = init.order(&launch)?;
    to_the_end(ordered, &launch, started).await
}

/// As [`run`], with an init that waits already; `None` when it does no longer, or ends before the
/// command runs.
pub(crate) async fn run_in(init: Init, launch: &Launch<'_>) -> io::Result<Option<Outcome>> {
    let started = Instant::now();
    match init.order(launch) {
        Ok((ordered, true)) => {
            let outcome = to_the_end(ordered, launch, started).await?;
            // Its order came too late. A new init runs the command, or says what is wrong.
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
            // The socket ends when launcher and init have; what counts is that the child has,
            // for then nothing is left of the tree.
            let mut limited = (&mut control).take(MAX_REPORT_BYTES);
            // An init that is none may end without having read its order, which is an error here;
            // what it did say decides, as always.
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

/// What the answers mean. The command's own end counts even if the time ran out meanwhile.
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
        // The init was killed (by the kernel for want of memory, or by a person), and the
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
/// Dropped, it ends: its socket closes.
#[derive(Debug)]
pub(crate) struct Init {
    child: Child,
    control: StdUnixStream,
    stdout: OwnedFd,
    stderr: OwnedFd,
    group: Option<Group>,
}

impl Init {
    /// Starts one. It builds what the ground allows and then waits.
    ///
    /// # Errors
    ///
    /// When the program cannot be started. What a machine refuses it is told with the order.
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

    /// Whether it waits, or is on the way there: it has neither ended nor complained.
    pub(crate) fn waits(&self) -> bool {
        let mut asked = [PollFd::new(&self.control, PollFlags::IN)];
        matches!(poll(&mut asked, Some(&Timespec::default())), Ok(0))
    }

    /// Sets the bounds of its group, which was made without.
    pub(crate) fn bound(&self, limits: &SandboxLimits) -> io::Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.bound(limits))
    }

    /// Also tells whether the order could be given.
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

/// Starts the init's program and gives it the ground.
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
    // `command` holds the other ends; dropped here, only the init has them.
    Ok((command.spawn()?, ours))
}

/// A file in memory that nobody can change any more, positioned at its beginning.
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

/// There is no value of it: what returns it never returns.
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

    /// Reads for as long as it is polled. Cancel safe: what was read is in the capture.
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

    /// The first `count` bytes of the buffer have been read.
    fn take(&mut self, count: usize) {
        let piece = &self.buffer[..count];
        self.capture.push(piece);
        if let Some((sink, which)) = &self.sink {
            sink(*which, piece);
        }
    }

    /// Takes what the pipe still holds. Its end is not awaited: a process outside that was
    /// handed the writing end could hold it open for ever.
    ///
    /// The descriptor is read directly: the runtime may not have seen yet that it is readable.
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
                // Empty, or broken: nothing more comes either way.
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
    fn the_commands_end_is_what_counts() {
        let all = lines(&[Report::Started, Report::Exited(3)]);
        assert_eq!(judge(&all, true), Ended::Exit(Exit::Code(3)));
        assert_eq!(judge(&all, false), Ended::Exit(Exit::Code(3)));
    }

    #[test]
    fn silence_is_a_kill_after_the_start_and_a_failure_before() {
        assert_eq!(judge(&lines(&[Report::Started]), true), Ended::Exit(Exit::Signal(9)));
        assert_eq!(judge(b"", true), Ended::Silent);
        assert_eq!(judge(b"", false), Ended::Exit(Exit::TimedOut));
    }
}
