//! Figures of whole processes, measured from outside.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::floors;
use super::report::{Figure, Floor, Goal};
use super::sample::Samples;

/// What can be said of the binary without a running hive. `spawn` is the floor of any process.
///
/// # Errors
///
/// When the binary is not there or does not run.
pub fn figures(binary: &Path, spawn: Samples) -> Result<Vec<Figure>> {
    let size = std::fs::metadata(binary)
        .with_context(|| format!("looking at {}", binary.display()))?
        .len();
    let mut version = floors::quiet(Command::new(binary));
    version.arg("--version");
    let version = floors::command(&mut version, 100)?;
    Ok(vec![
        Figure {
            name: "binary size, stripped".into(),
            unit: "MB".into(),
            value: megabytes(size),
            floor: None,
            goal: Some(Goal::AtMost(30.0)),
            note: None,
        },
        Figure {
            name: "`overmind --version`, whole process, p50".into(),
            unit: "ms".into(),
            value: version.p50_ms(),
            floor: Some(Floor { name: "/bin/true".into(), value: spawn.p50_ms() }),
            goal: None,
            note: None,
        },
    ])
}

/// The memory that a process holds alone or shared, in bytes.
///
/// # Errors
///
/// When there is no such process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    match line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()) {
        Some(kib) => Ok(kib * 1024),
        None => bail!("{path} has no VmRSS: the process has ended"),
    }
}

/// Bytes as megabytes (10⁶), for a report.
#[expect(clippy::cast_precision_loss, reason = "a report shows three digits")]
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_read_and_a_missing_process_is_an_error() {
        let mine = resident_bytes(std::process::id()).expect("we run");
        assert!((100_000..1_000_000_000).contains(&mine), "{mine}");
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
