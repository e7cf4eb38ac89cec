//! The program as a process: how fast it starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overmind_node::config::{DataDir, Env};

use super::{Figure, Goal, Setting, ms, percentile};
use crate::demo::daemon::{Daemon, Setup};
use crate::exit::Failure;

/// A data directory, and the arguments of a server on it.
#[derive(Debug)]
pub struct Place {
    pub data: PathBuf,
    pub setup: Setup,
}

impl Place {
    /// Makes both; the first start, which makes keys and the database, has been.
    ///
    /// # Errors
    ///
    /// When the server does not start.
    pub fn new(setting: &Setting) -> Result<Self, Failure> {
        let (dir, work) = (setting.place("process")?, setting.place("process-work")?);
        let data = dir.join("data");
        DataDir::locate(Some(&data), &Env::default(), &dir)?.prepare()?;
        let args = ["--listen", "127.0.0.1:0", "--workspace", &work.to_string_lossy()];
        let setup = setting.setup(&args);
        drop(Daemon::start(&data, &setup)?);
        Ok(Self { data, setup })
    }
}

/// From spawning the program to the line that says ready. `bare` is the least that a start takes.
///
/// # Errors
///
/// When the server does not start.
pub fn start_to_ready(setting: &Setting, place: &Place, bare: Duration) -> Result<Figure, Failure> {
    let mut starts = Vec::new();
    for _ in 0..setting.count(100).clamp(10, 20) {
        let start = Instant::now();
        let daemon = Daemon::start(&place.data, &place.setup)?;
        starts.push(start.elapsed());
        drop(daemon);
    }
    starts.sort_unstable();
    Ok(Figure::new("start to ready", ms(percentile(&starts, 0.5)), "ms")
        .floor("overmind --version", ms(bare))
        .goal(Goal::Most(40.0))
        .note("from spawning `overmind up` after a kill -9 to the line that says ready, in the middle"))
}

/// The median duration of `overmind --version`.
///
/// # Errors
///
/// When it does not succeed.
pub fn bare(setting: &Setting) -> Result<Duration, Failure> {
    let rounds = setting.count(100).max(10);
    let bare = times(rounds, || command(&setting.program, &["--version"]))?;
    Ok(percentile(&bare, 0.5))
}

/// A command that reads and prints nothing.
pub fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Times of a command from its spawning to its end, ascending.
///
/// # Errors
///
/// When one does not succeed.
pub fn times(rounds: u32, make: impl Fn() -> Command) -> Result<Vec<Duration>, Failure> {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let mut command = make();
        let start = Instant::now();
        let status = command.status();
        took.push(start.elapsed());
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(Failure::failed(format!("{command:?} ended with {status}"))),
            Err(err) => return Err(Failure::failed(format!("{command:?}: {err}"))),
        }
    }
    took.sort_unstable();
    Ok(took)
}
