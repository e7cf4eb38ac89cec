//! The program as a process: how fast it starts, how fast a command is done, what it holds.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};

use super::store::{megabytes, mib};
use super::{Figure, Goal, Setting, ms, percentile};
use crate::demo::daemon::{Daemon, Setup};
use crate::exit::Failure;

/// Before memory is looked at: start-up work has ended and freed memory has been given back.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let (dir, work) = (setting.place("process")?, setting.place("process-work")?);
    let data = dir.join("data");
    DataDir::locate(Some(&data), &Env::default(), &dir)?.prepare()?;
    let program = std::env::current_exe()
        .map_err(|err| Failure::failed(format!("finding this program's own file: {err}")))?;
    let setup = Setup {
        args: ["--listen", "127.0.0.1:0", "--workspace", &work.to_string_lossy()]
            .map(str::to_owned)
            .to_vec(),
        env: Vec::new(),
    };
    let rounds = setting.count(100).max(10);
    let bare = times(rounds, || command(&program, &["--version"]))?;
    let bare = percentile(&bare, 0.5);

    // The first start makes keys and the database; it is not one of the measured.
    drop(Daemon::start(&data, &setup)?);
    let mut starts = Vec::new();
    for _ in 0..rounds.min(20) {
        let start = Instant::now();
        let daemon = Daemon::start(&data, &setup)?;
        starts.push(start.elapsed());
        drop(daemon);
    }
    starts.sort_unstable();

    let daemon = Daemon::start(&data, &setup)?;
    let at = data.to_string_lossy().into_owned();
    let ps = times(rounds, || command(&program, &["--data", &at, "ps", "--all", "-q"]))?;
    SystemClock.sleep_until(SystemClock.now().after(SETTLE)).await;
    let idle = rss(daemon.pid());
    drop(daemon);
    let size = std::fs::metadata(&program).map_or(0, |meta| meta.len());
    Ok(vec![
        Figure::new("start to ready", ms(percentile(&starts, 0.5)), "ms")
            .floor("overmind --version", ms(bare))
            .goal(Goal::Most(40.0))
            .note("from spawning `overmind up` after a kill -9 to the line that says ready, in the middle"),
        Figure::new("cli ps", ms(percentile(&ps, 0.5)), "ms")
            .floor("overmind --version", ms(bare))
            .goal(Goal::Most(5.0))
            .note("the whole process, from spawning it to its exit, in the middle"),
        Figure::new("idle rss", mib(idle), "MiB")
            .goal(Goal::Most(20.0))
            .note("resident memory of the server, two seconds after some requests"),
        Figure::new("binary size", megabytes(size), "MB").goal(Goal::Most(30.0)),
    ])
}

pub(super) fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Times of a command from its spawning to its end, ascending.
pub(super) fn times(rounds: u32, make: impl Fn() -> Command) -> Result<Vec<Duration>, Failure> {
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

/// Resident memory of a process in bytes; 0 when it cannot be read.
pub(super) fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Processor time that a process has taken, all threads, in hundredths of a second; nothing when it
/// cannot be read.
pub(super) fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may hold anything; the times are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_memory_of_a_process_is_read_and_of_none_is_nothing() {
        assert!(super::rss(std::process::id()) > 1 << 20);
        assert_eq!(super::rss(u32::MAX), 0);
    }

    #[test]
    fn the_processor_time_of_a_process_grows_as_it_works() {
        let me = std::process::id();
        let before = super::cpu(me);
        let mut n = 0_u64;
        while super::cpu(me) <= before {
            n = std::hint::black_box(n + 1);
        }
        assert_eq!(super::cpu(u32::MAX), std::time::Duration::ZERO);
    }
}
