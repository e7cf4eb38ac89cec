//! Runs one command of the project to its end: hooks, migrations, ready checks.
//!
//! Output is streamed line by line; a command that takes too long is ended with all of its
//! processes.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::time::Clock;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

use super::confine::{Confined, Encloses, Launch, launch};
use super::tree::{Belongs, LEASE_MARK, PROCESS_MARK, stat};
use crate::lease::{Progress, Sink, Stream};

/// The longest line that is passed on in one piece.
const MAX_LINE: usize = 16 * 1024;
/// How many of the last lines an error shows.
const TAIL: usize = 20;
/// How long output is still read after the command itself has ended: its remaining processes may
/// hold the pipes open forever.
const DRAIN: Duration = Duration::from_millis(250);

/// The command, with everything that it needs.
#[derive(Clone, Debug)]
pub(crate) struct CommandSpec {
    /// The text for messages and progress.
    pub(crate) label: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: PathBuf,
    pub(crate) timeout: Duration,
    /// The mark of this command's processes.
    pub(crate) mark: String,
    pub(crate) cgroup: Option<PathBuf>,
    /// The sandbox in which it runs.
    pub(crate) confined: Option<Confined>,
    /// Makes the sandbox; for a command without one, makes it possible to find all of its
    /// processes.
    pub(crate) encloses: Encloses,
}

/// How a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("`{label}` could not be started in {}: {why}", cwd.display())]
    Start { label: String, cwd: PathBuf, why: String },
    #[error("`{label}` is not started: {why}")]
    Sandbox { label: String, why: String },
    #[error("`{label}` ended with {status}{}", shown(tail))]
    Failed { label: String, status: String, tail: Vec<String> },
    #[error("`{label}` was ended after {} s, its limit{}", timeout.as_secs_f32(), shown(tail))]
    TooLong { label: String, timeout: Duration, tail: Vec<String> },
}

fn shown(tail: &[String]) -> String {
    if tail.is_empty() {
        return " and said nothing".to_owned();
    }
    format!("; it last said:\n{}", tail.join("\n"))
}

/// The arguments that run `argv`, inside of a cgroup if there is one.
///
/// The shell that joins the group is replaced by the program, so process number and process group
/// stay.
pub(crate) fn wrapped(argv: &[String], cgroup: Option<&PathBuf>) -> Vec<String> {
    let Some(cgroup) = cgroup else { return argv.to_vec() };
    let script = "echo $$ > \"$1\" 2>/dev/null; shift; exec \"$@\"";
    let procs = cgroup.join("cgroup.procs").to_string_lossy().into_owned();
    let head = ["/bin/sh", "-c", script, "sh"].into_iter().map(ToOwned::to_owned);
    head.chain([procs]).chain(argv.iter().cloned()).collect()
}

/// Runs a command to its end.
///
/// Processes that are left after a success continue: they have the lease's mark and end with the
/// lease. In a sandbox they end with it, and after a failure or the time limit none is left.
///
/// # Cancel safety
///
/// If dropped midway, the command continues until the lease is torn down.
pub(crate) async fn run(
    spec: &CommandSpec,
    sink: &dyn Sink,
    clock: &dyn Clock,
) -> Result<(), CommandError> {
    let start =
        |why: String| CommandError::Start { label: spec.label.clone(), cwd: spec.cwd.clone(), why };
    if spec.argv.is_empty() {
        return Err(start("it has no words".to_owned()));
    }
    if let Some(directory) = &spec.cgroup {
        // It is removed after each run that leaves it empty.
        let _ = std::fs::create_dir(directory);
    }
    let bare = Launch::bare(&spec.argv, &spec.env, &spec.cwd);
    let confined = spec.confined.as_ref();
    let launch = launch(&spec.encloses, confined, bare, spec.cgroup.as_deref()).await;
    let launch = launch.map_err(|why| CommandError::Sandbox { label: spec.label.clone(), why })?;
    let argv = wrapped(&launch.argv, spec.cgroup.as_ref().filter(|_| !launch.enclosed));
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .env_clear()
        .envs(&launch.env)
        .env(PROCESS_MARK, &spec.mark)
        .current_dir(&launch.cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(false);
    if let Some(user) = launch.user {
        command.uid(user.uid).gid(user.gid);
    }
    let mut child = command.spawn().map_err(|err| start(err.to_string()))?;
    debug_assert!(spec.env.contains_key(LEASE_MARK), "every command bears its lease's mark");
    let leader = child.id().and_then(|pid| Some((pid, stat(pid)?.started)));
    let belongs = Belongs {
        leader,
        mark: Some((PROCESS_MARK, spec.mark.clone())),
        cgroups: spec.cgroup.iter().cloned().collect(),
        enclosed: launch.enclosed,
    };
    let tail: Arc<Mutex<VecDeque<String>>> = Arc::default();
    let stdout = child.stdout.take().expect("asked to be piped");
    let stderr = child.stderr.take().expect("asked to be piped");
    let reading = async {
        tokio::join!(
            stream(stdout, Stream::Stdout, spec, sink, &tail),
            stream(stderr, Stream::Stderr, spec, sink, &tail),
        )
    };
    let deadline = clock.now().after(spec.timeout);
    tokio::pin!(reading);
    let mut read = false;
    let status = loop {
        tokio::select! {
            status = child.wait() => break Some(status),
            () = clock.sleep_until(deadline) => break None,
            _ = &mut reading, if !read => read = true,
        }
    };
    let said = || {
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().cloned().collect::<Vec<_>>()
    };
    let Some(status) = status else {
        belongs.end(Duration::from_secs(1), clock).await;
        let _ = child.wait().await;
        let (label, timeout) = (spec.label.clone(), spec.timeout);
        return Err(CommandError::TooLong { label, timeout, tail: said() });
    };
    if !read {
        let drained = clock.now().after(DRAIN);
        tokio::select! {
            _ = &mut reading => {}
            () = clock.sleep_until(drained) => {}
        }
    }
    let status = status.map_err(|err| start(format!("waiting for it: {err}")))?;
    if status.success() {
        if let Some(directory) = &spec.cgroup {
            // This fails if processes were left in it.
            let _ = std::fs::remove_dir(directory);
        }
        return Ok(());
    }
    belongs.end(Duration::ZERO, clock).await;
    Err(CommandError::Failed {
        label: spec.label.clone(),
        status: status.to_string(),
        tail: said(),
    })
}

async fn stream(
    source: impl AsyncRead + Unpin,
    stream: Stream,
    spec: &CommandSpec,
    sink: &dyn Sink,
    tail: &Mutex<VecDeque<String>>,
) {
    let mut reader = BufReader::new(source);
    let mut line: Vec<u8> = Vec::new();
    loop {
        let available = match reader.fill_buf().await {
            Ok([]) | Err(_) => break,
            Ok(available) => available,
        };
        let end = available.iter().position(|byte| *byte == b'\n');
        let take = end.map_or(available.len(), |end| end + 1).min(MAX_LINE - line.len());
        line.extend_from_slice(&available[..take]);
        reader.consume(take);
        if line.ends_with(b"\n") || line.len() >= MAX_LINE {
            tell(&mut line, stream, spec, sink, tail);
        }
    }
    if !line.is_empty() {
        tell(&mut line, stream, spec, sink, tail);
    }
}

fn tell(
    line: &mut Vec<u8>,
    stream: Stream,
    spec: &CommandSpec,
    sink: &dyn Sink,
    tail: &Mutex<VecDeque<String>>,
) {
    let text = String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned();
    line.clear();
    sink.tell(Progress::Line { source: &spec.label, stream, line: &text });
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.len() == TAIL {
        tail.pop_front();
    }
    tail.push_back(text);
}
