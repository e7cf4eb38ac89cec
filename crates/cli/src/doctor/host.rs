//! The machine: its clock, its limits, the programs that agents expect.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, Sandbox, SandboxError, SandboxLimits, SandboxRequest};
use overmind_core::time::Timestamp;
use overmind_node::config::DataDir;

use super::Finding;

/// 2026-01-01: a clock before it is wrong, for this program is newer.
const NEWER_THAN: i64 = 1_767_225_600_000_000;
/// Connections, files and commands of a busy server.
const FAIR_FILES: u64 = 4096;

/// The program itself.
pub(super) fn program() -> Vec<Finding> {
    let system = rustix::system::uname();
    vec![Finding::fine(
        "overmind",
        format!(
            "{} on {} {} {}",
            env!("CARGO_PKG_VERSION"),
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy(),
            system.machine().to_string_lossy()
        ),
    )]
}

pub(super) fn git() -> Finding {
    const CHECK: &str = "git";
    let asked = Command::new("git").arg("--version").stdin(Stdio::null()).output();
    match asked {
        Ok(done) if done.status.success() => {
            Finding::fine(CHECK, String::from_utf8_lossy(&done.stdout).trim().to_owned())
        }
        Ok(done) => Finding::warning(
            CHECK,
            format!("`git --version` ended with {}", done.status),
            "agents that work on repositories need it",
        ),
        Err(err) => Finding::warning(
            CHECK,
            format!("not found: {err}"),
            "install it: agents that work on repositories need it",
        ),
    }
}

/// Whether the clock can be believed: ids and events carry its time.
pub(super) fn clock(data: &DataDir, now: Timestamp) -> Finding {
    const CHECK: &str = "clock";
    if now.as_micros() < NEWER_THAN {
        return Finding::broken(
            CHECK,
            format!("it shows {now}"),
            "set it: this program is newer than that",
        );
    }
    let written = std::fs::metadata(data.path().join("overmind.db"))
        .and_then(|meta| meta.modified())
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .map(Timestamp::from_micros);
    match written {
        Some(at) if at.since(now) > Duration::from_secs(60) => Finding::warning(
            CHECK,
            format!("it shows {now}, and the database was written at {at}"),
            "the clock was set back: correct it, or new events will seem older than existing ones",
        ),
        Some(_) | None => Finding::fine(CHECK, now.to_string()),
    }
}

pub(super) fn open_files() -> Finding {
    const CHECK: &str = "open files";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(limit) if limit < FAIR_FILES => Finding::warning(
            CHECK,
            format!("at most {limit}"),
            format!("each connection and each command takes some: ulimit -n {FAIR_FILES}"),
        ),
        Some(limit) => Finding::fine(CHECK, format!("up to {limit}")),
        None => Finding::fine(CHECK, "without limit"),
    }
}

/// Runs one real command in a sandbox, and says how long it took.
///
/// # Errors
///
/// Why it did not run; a command that ran and gave another answer among it.
pub(crate) async fn run_one_command(driver: &dyn Sandbox) -> Result<Duration, SandboxError> {
    let failed = |message: String| SandboxError::Failed { level: driver.level().as_str(), message };
    let workspace = tempfile::tempdir()
        .map_err(|err| failed(format!("creating a directory to work in: {err}")))?;
    let request = SandboxRequest {
        argv: ["sh", "-c", "echo in && test ! -e /root/.ssh && test \"$(id -u)\" != 0"]
            .map(str::to_owned)
            .to_vec(),
        workspace: workspace.path().to_owned(),
        writable: None,
        cwd: PathBuf::from("."),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        home: Vec::new(),
        stdin: Vec::new(),
        timeout: Duration::from_secs(10),
        limits: SandboxLimits::default(),
    };
    let start = Instant::now();
    let result = driver.run(request).await?;
    if result.exit == Exit::Code(0) && result.stdout.text.trim() == "in" {
        return Ok(start.elapsed());
    }
    Err(failed(format!("the command ended with {:?}: {}", result.exit, result.stderr.text.trim())))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::doctor::Health;
    use overmind_node::config::Env;

    #[test]
    fn a_clock_that_was_set_back_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::locate(Some(dir.path()), &Env::default(), Path::new("/")).unwrap();
        let fair = Timestamp::from_micros(NEWER_THAN + 1);
        assert_eq!(clock(&data, fair).health, Health::Fine);
        assert_eq!(clock(&data, Timestamp::from_micros(0)).health, Health::Broken);
        let file = std::fs::File::create(dir.path().join("overmind.db")).unwrap();
        let later = std::time::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        file.set_modified(later).unwrap();
        assert_eq!(clock(&data, fair).health, Health::Warning);
    }
}
