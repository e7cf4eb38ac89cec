//! Kills the process at a named point, for crash tests only.
//!
//! `OVERMIND_FAILPOINTS=store.before_commit:3,engine.after_commit:1` kills the process with SIGKILL
//! the third time the first point is passed, or the first time the second one is. Nothing is
//! cleaned up or flushed, as in a power cut.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Arms the points in `spec`.
///
/// # Errors
///
/// Names the part of `spec` that cannot be parsed.
pub fn arm(spec: &str) -> Result<(), String> {
    let mut points = BTreeMap::new();
    for part in spec.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, count) = part.rsplit_once(':').unwrap_or((part, "1"));
        let count: u64 =
            count.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
                format!("`{part}` is not a point and a number from 1, as in name:3")
            })?;
        points.insert(name.to_owned(), AtomicU64::new(count));
    }
    overmind_core::failpoint::arm(Box::new(move |name| {
        if let Some(left) = points.get(name)
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            die();
        }
    }));
    Ok(())
}

/// Ends the process as the kernel would: without destructors, flush or exit handlers.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The signal is delivered before the call returns to a thread of the process; if it ever is
    // not, an abort is the closest alternative.
    std::process::abort()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_invalid_failpoint_is_reported_by_name() {
        for bad in ["a:0", "a:x", "a:1,b:"] {
            let err = super::arm(bad).unwrap_err();
            assert!(err.contains("is not a point and a number"), "{err}");
        }
    }
}
