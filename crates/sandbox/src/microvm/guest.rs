//! The daemon's own program as the guest's first process: it takes one order, runs one command,
//! sends the answer, and switches the machine off.
//!
//! Inside the guest the command runs in the `namespace` sandbox, with the same code as on the host:
//! same limits, same truncation, same signals. A command that escapes from it still has the guest's
//! kernel before it, and then the emulator, which is itself in a namespace sandbox of the host.
//!
//! Order and standard input of the command come through standard input, which is a port of the
//! virtual machine. The answer and, if requested, live output go to standard output, which is
//! another port ([`super::port`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::sandbox::{
    Captured, Exit, HomeFile, OutputSink, Sandbox, SandboxError, SandboxLimits, SandboxRequest,
    SandboxResult,
};
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};

use crate::attest::MachineFacts;
use crate::microvm::given as machine;
use crate::microvm::port::{Kind, PIECE, frame};
use crate::namespace::{Namespace, Options};
use crate::{RunAs, sys};

/// The first argument that makes the program a guest's first process.
pub(crate) const ARGUMENT: &str = "__microvm-guest";

/// The path of the workspace, in the emulator's root and in the guest's.
const WORKSPACE: &str = "/workspace";

/// The owner of files in the guest, as which the emulator's own user appears.
const USER: RunAs = RunAs { uid: 1000, gid: 1000 };

/// Twice the number of entries in a port's queue.
const DRAIN: usize = 256;

/// More than any order with its input; a longer message is not ours.
const MAX_PART_BYTES: u64 = 1 << 30;

/// The task of the guest. Both ends are the same build, so this has no version.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    home: Vec<HomeFile>,
    writable: Option<PathBuf>,
    cwd: PathBuf,
    timeout: Duration,
    limits: Limits,
    /// The current time, because a restored guest has the time of its snapshot.
    now: (i64, i64),
    /// Without it, all guests of one snapshot would draw the same random numbers.
    seed: [u8; 32],
    /// Whether output is sent while the command runs.
    live: bool,
    what: What,
}

/// The content of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Command,
    /// Runs this program as the probe, and reports the machine's devices.
    Probe {
        /// The layer that the sandbox in the guest lacks, in tests.
        #[cfg(feature = "mutations")]
        #[serde(default)]
        mutation: Option<crate::Mutation>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Limits {
    memory_bytes: u64,
    cpus: f64,
    pids: u32,
    tmp_bytes: u64,
    file_bytes: u64,
    open_files: u32,
    output_bytes: usize,
}

/// The result of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ended {
        end: End,
        stdout: Stream,
        stderr: Stream,
    },
    /// The result of [`What::Probe`].
    Probed {
        end: End,
        stdout: Stream,
        stderr: Stream,
        machine: MachineFacts,
    },
    BadConfig {
        code: String,
        message: String,
    },
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Code(i32),
    Signal(i32),
    TimedOut,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stream {
    text: String,
    total_bytes: u64,
    truncated: bool,
}

impl From<Stream> for Captured {
    fn from(stream: Stream) -> Self {
        let Stream { text, total_bytes, truncated } = stream;
        Self { text, total_bytes, truncated }
    }
}

impl From<Captured> for Stream {
    fn from(captured: Captured) -> Self {
        let Captured { text, total_bytes, truncated } = captured;
        Self { text, total_bytes, truncated }
    }
}

impl From<End> for Exit {
    fn from(end: End) -> Self {
        match end {
            End::Code(code) => Self::Code(code),
            End::Signal(signal) => Self::Signal(signal),
            End::TimedOut => Self::TimedOut,
        }
    }
}

/// The message to the guest: a line that wakes it, the order's length and text, the input's length
/// and bytes. With `live`, output is sent while the command runs.
pub(crate) fn message(request: &SandboxRequest, what: What, live: bool) -> io::Result<Vec<u8>> {
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    let SandboxLimits { memory_bytes, cpus, pids, tmp_bytes, file_bytes, open_files, output_bytes } =
        request.limits;
    let order = Order {
        argv: request.argv.clone(),
        env: request.env.clone(),
        home: request.home.clone(),
        writable: request.writable.clone(),
        cwd: request.cwd.clone(),
        timeout: request.timeout,
        limits: Limits {
            memory_bytes,
            cpus,
            pids,
            tmp_bytes,
            file_bytes,
            open_files,
            output_bytes,
        },
        now: (now.tv_sec, now.tv_nsec),
        seed,
        live,
        what,
    };
    let order = serde_json::to_vec(&order)?;
    let mut message = b"go\n".to_vec();
    for part in [order.as_slice(), &request.stdin] {
        message.extend_from_slice(&(part.len() as u64).to_le_bytes());
        message.extend_from_slice(part);
    }
    Ok(message)
}

/// Becomes the guest's process and never returns; the machine ends with it.
pub(crate) fn become_guest() -> ! {
    let answer = serve().unwrap_or_else(|err| Answer::Failed(format!("in the guest: {err}")));
    say(Kind::Answer, &serde_json::to_vec(&answer).expect("an answer is plain data"));
    // A write to a port returns before the host has the data, and the machine's end would lose it.
    // But a port's queue is short: once this many more writes have succeeded, the answer has been
    // read.
    for _ in 0..DRAIN {
        say(Kind::Nothing, b"");
    }
    // The host already has the command's output; this flushes the rest in the kernel.
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
    sys::exit_now(1)
}

/// Makes one write, which takes one entry in the port's queue. It waits for a free entry, and so
/// for a host that reads slower than the command writes.
fn say(kind: Kind, bytes: &[u8]) {
    if let Ok(out) = io::stdout().as_fd().try_clone_to_owned() {
        let _ = File::from(out).write_all(&frame(kind, bytes));
    }
}

fn serve() -> io::Result<Answer> {
    let mut port = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order: Order = serde_json::from_slice(&part(&mut port)?)?;
    let stdin = part(&mut port)?;

    let (tv_sec, tv_nsec) = order.now;
    rustix::time::clock_settime(ClockId::Realtime, Timespec { tv_sec, tv_nsec })?;
    let random = File::options().read(true).write(true).open("/dev/urandom")?;
    (&random).write_all(&order.seed)?;
    sys::reseed(random.as_fd())?;

    let request = SandboxRequest {
        argv: order.argv,
        workspace: PathBuf::from(WORKSPACE),
        writable: order.writable,
        cwd: order.cwd,
        env: order.env,
        home: order.home,
        stdin,
        timeout: order.timeout,
        limits: SandboxLimits {
            memory_bytes: order.limits.memory_bytes,
            cpus: order.limits.cpus,
            pids: order.limits.pids,
            tmp_bytes: order.limits.tmp_bytes,
            file_bytes: order.limits.file_bytes,
            open_files: order.limits.open_files,
            output_bytes: order.limits.output_bytes,
        },
    };
    let options = Options { run_as: Some(USER), ..Options::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let What::Probe { .. } = &order.what else {
        let driver = Namespace::new(options).unmeasured();
        say(Kind::Started, b"");
        if !order.live {
            return Ok(ended(runtime.block_on(driver.run(request))));
        }
        let sink: OutputSink = Arc::new(|stream, bytes| {
            bytes.chunks(PIECE).for_each(|piece| say(Kind::Output(stream), piece));
        });
        return Ok(ended(runtime.block_on(driver.run_streaming(request, sink))));
    };
    // This comes before anything is mounted on top.
    let machine = machine::facts();
    #[cfg(not(feature = "mutations"))]
    let driver = Namespace::new(options);
    #[cfg(feature = "mutations")]
    let driver = match order.what {
        What::Probe { mutation: Some(mutation) } => Namespace::broken(options, mutation),
        What::Probe { mutation: None } | What::Command => Namespace::new(options),
    };
    say(Kind::Started, b"");
    Ok(match ended(runtime.block_on(driver.unmeasured().probe(&request))) {
        Answer::Ended { end, stdout, stderr } => Answer::Probed { end, stdout, stderr, machine },
        other => other,
    })
}

fn ended(result: Result<SandboxResult, SandboxError>) -> Answer {
    match result {
        Ok(result) => Answer::Ended {
            end: match result.exit {
                Exit::Code(code) => End::Code(code),
                Exit::Signal(signal) => End::Signal(signal),
                Exit::TimedOut => End::TimedOut,
            },
            stdout: result.stdout.into(),
            stderr: result.stderr.into(),
        },
        Err(SandboxError::BadConfig { code, message }) => Answer::BadConfig { code, message },
        Err(err @ (SandboxError::Unavailable { .. } | SandboxError::Failed { .. })) => {
            Answer::Failed(format!("in the guest: {err}"))
        }
    }
}

fn part(port: &mut File) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    port.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_PART_BYTES {
        return Err(io::Error::other("the order is too long"));
    }
    let mut bytes = Vec::new();
    port.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(bytes)
}
