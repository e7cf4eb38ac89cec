//! The daemon's own program as the guest's first process: takes one order, runs one command,
//! answers, and switches the machine off.
//!
//! Inside the guest the command runs in the `namespace` sandbox, by the same code as on the
//! host: same limits, same truncation, same signals. So a command that breaks out of it stands
//! before the guest's kernel, and then before the emulator, which stands in a namespace sandbox
//! of the host.
//!
//! The order and the command's standard input come through standard input, which is a port of
//! the virtual machine; the answer goes to standard output, which is another.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use overmind_core::sandbox::{
    Captured, Exit, Sandbox, SandboxError, SandboxLimits, SandboxRequest, SandboxResult,
};
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};

use crate::attest::MachineFacts;
use crate::microvm::given as machine;
use crate::namespace::{Namespace, Options};
use crate::{RunAs, sys};

/// The first argument that makes the program a guest's first process.
pub(crate) const ARGUMENT: &str = "__microvm-guest";

/// Said when the command is about to run: whatever comes after is no failure to start.
pub(crate) const STARTED: &str = "overmind-guest-started";
/// Stands before the answer, which is one line of JSON.
pub(crate) const ANSWER: &str = "overmind-guest-answer ";

/// Where the workspace is, in the emulator's root as in the guest's.
const WORKSPACE: &str = "/workspace";

/// The user of files in the guest: what the emulator's own user is seen as.
const USER: RunAs = RunAs { uid: 1000, gid: 1000 };

/// Twice the places that a port's queue has.
const DRAIN: usize = 256;

/// More than any order with its input; a longer one is not ours.
const MAX_PART_BYTES: u64 = 1 << 30;

/// What the guest is to do. Both ends are the same build, so this has no version.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    writable: Option<PathBuf>,
    cwd: PathBuf,
    timeout: Duration,
    limits: Limits,
    /// The time of day: a restored guest has that of its picture.
    now: (i64, i64),
    /// All guests of one picture would draw the same random numbers without it.
    seed: [u8; 32],
    what: What,
}

/// What an order is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Command,
    /// The own program as the probe, and what the machine itself was given.
    Probe {
        /// The sandbox in here lacks a layer.
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

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ended {
        end: End,
        stdout: Stream,
        stderr: Stream,
    },
    /// Of [`What::Probe`].
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

/// What the guest reads: a line that wakes it, the order's length and text, the input's length
/// and bytes.
pub(crate) fn message(request: &SandboxRequest, what: What) -> io::Result<Vec<u8>> {
    let mut seed = [0; 32];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    let SandboxLimits { memory_bytes, cpus, pids, tmp_bytes, file_bytes, open_files, output_bytes } =
        request.limits;
    let order = Order {
        argv: request.argv.clone(),
        env: request.env.clone(),
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

/// Finds the answer in all that came out of the machine.
pub(crate) fn answer_in(output: &str) -> Option<Answer> {
    let line = output.lines().rev().find_map(|line| line.strip_prefix(ANSWER))?;
    serde_json::from_str(line).ok()
}

/// Never returns: the machine ends with it.
pub(crate) fn become_guest() -> ! {
    let answer = serve().unwrap_or_else(|err| Answer::Failed(format!("in the guest: {err}")));
    let text = serde_json::to_string(&answer).expect("an answer is plain data");
    say(&format!("{ANSWER}{text}"));
    // A write to a port returns before the host has it, and the machine's end would lose it. But
    // a port's queue is short: when this many more have found room, the answer has left.
    for _ in 0..DRAIN {
        say("");
    }
    // What the command wrote is at the host already; this is for what the kernel still holds.
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
    sys::exit_now(1)
}

/// One write, one place in the port's queue.
fn say(line: &str) {
    if let Ok(out) = io::stdout().as_fd().try_clone_to_owned() {
        let _ = File::from(out).write_all(format!("{line}\n").as_bytes());
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
        home: Vec::new(),
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
        say(STARTED);
        return Ok(ended(runtime.block_on(driver.run(request))));
    };
    // Before anything is mounted over.
    let machine = machine::facts();
    #[cfg(not(feature = "mutations"))]
    let driver = Namespace::new(options);
    #[cfg(feature = "mutations")]
    let driver = match order.what {
        What::Probe { mutation: Some(mutation) } => Namespace::broken(options, mutation),
        What::Probe { mutation: None } | What::Command => Namespace::new(options),
    };
    say(STARTED);
    Ok(match ended(runtime.block_on(driver.unmeasured().probe(&request, None))) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_last_line_that_says_so() {
        let forged = Answer::Failed("forged".to_owned());
        let real = Answer::Ended {
            end: End::Code(3),
            stdout: Captured { text: "ü\n".into(), total_bytes: 9, truncated: true }.into(),
            stderr: Captured::default().into(),
        };
        let line = |answer| format!("{ANSWER}{}\n", serde_json::to_string(answer).unwrap());
        let output = format!("{STARTED}\n{}{}", line(&forged), line(&real));
        match answer_in(&output) {
            Some(Answer::Ended { end, stdout, .. }) => {
                assert_eq!(end, End::Code(3));
                let expected = Captured { text: "ü\n".into(), total_bytes: 9, truncated: true };
                assert_eq!(Captured::from(stdout), expected);
            }
            other => panic!("{other:?}"),
        }
        assert!(answer_in(STARTED).is_none());
    }
}
