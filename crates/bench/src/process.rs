//! The program as a process: the time of its start, the time of a command, and its memory.

use std::time::Duration;

use overmind_cli::bench::process::{Place, bare, start_to_ready};
use overmind_cli::demo::daemon::Daemon;
use overmind_cli::exit::Failure;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;

pub(super) use overmind_cli::bench::process::{command, times};

use super::{Figure, Goal, Setting, ms, percentile};

/// Before memory is looked at: start-up work has ended and freed memory has been given back.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let bare = bare(setting)?;
    let place = Place::new(setting)?;
    let start = start_to_ready(setting, &place, bare)?;
    let daemon = Daemon::start(&place.data, &place.setup)?;
    let (program, at) = (&setting.program, place.data.to_string_lossy().into_owned());
    let rounds = setting.count(100).max(10);
    let ps = times(rounds, || command(program, &["--data", &at, "ps", "--all", "-q"]))?;
    SystemClock.sleep_until(SystemClock.now().after(SETTLE)).await;
    let idle = rss(daemon.pid());
    drop(daemon);
    let size = std::fs::metadata(program).map_or(0, |meta| meta.len());
    Ok(vec![
        start,
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

#[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^53")]
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "files are far smaller than 2^53")]
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_memory_of_a_process_is_read_and_a_missing_process_has_none() {
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
