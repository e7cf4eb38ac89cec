//! The speed of the machine without Overmind.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::sample::Samples;

/// Appends 4 KiB and waits for the disk, `times` times, in a new file in `dir`.
///
/// The file is on the disk that `dir` is on, which is where the product's data should be too.
///
/// # Errors
///
/// When the file cannot be written.
pub fn fsync(dir: &Path, times: usize) -> Result<Samples> {
    let path = dir.join("fsync-floor");
    let measured = || -> std::io::Result<Vec<Duration>> {
        let mut file = std::fs::File::create(&path)?;
        let block = [0x5a_u8; 4096];
        (0..times)
            .map(|_| {
                let began = Instant::now();
                file.write_all(&block)?;
                file.sync_data()?;
                Ok(began.elapsed())
            })
            .collect()
    };
    let measured = measured().with_context(|| format!("measuring fdatasync in {}", dir.display()));
    // Left behind it would cost 2 MB, and the next run overwrites it.
    let _ = std::fs::remove_file(&path);
    Samples::of(measured?)
}

/// Starts `program` and waits for its end, `times` times.
///
/// # Errors
///
/// When it does not start or does not succeed.
pub fn spawn(program: &str, times: usize) -> Result<Samples> {
    command(&mut quiet(Command::new(program)), times)
}

/// Runs `command` to its end, `times` times, and measures the whole process each time.
///
/// # Errors
///
/// When it does not start or does not succeed: a figure of a failure would mean nothing.
pub fn command(command: &mut Command, times: usize) -> Result<Samples> {
    let mut measured = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        let status = command.status().with_context(|| format!("starting {command:?}"))?;
        measured.push(began.elapsed());
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
    }
    Samples::of(measured)
}

/// `command` without input or output.
pub fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_measured_and_a_failing_program_is_no_result() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let fsync_floor = fsync(dir.path(), 5).expect("a writable directory");
        assert!(fsync_floor.p50 > Duration::ZERO && fsync_floor.p50 <= fsync_floor.p99);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listing").count(), 0, "nothing is left");
        assert!(spawn("/bin/true", 3).expect("true succeeds").p50 > Duration::ZERO);
        assert!(spawn("/bin/false", 3).is_err());
        assert!(fsync(&dir.path().join("gone"), 1).is_err());
    }
}
