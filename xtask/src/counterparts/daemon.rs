//! A server that we started and that ends with us.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::host::Host;

/// One running server. Dropping it asks it to end, waits, and then kills its process group.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    log: File,
    log_path: PathBuf,
    /// How long it may take to end after being asked.
    grace: Duration,
}

const POLL: Duration = Duration::from_millis(50);

/// A log that nobody else writes to, in the first free `<stem>-N.log` of `dir`.
///
/// The log is the lock: the server inherits the open file as its output, so the lock is held for
/// as long as the server or a child of it lives, even if we are killed and it is not.
///
/// # Errors
///
/// When the directory cannot be written, or 16 runs are going on already.
pub(super) fn free_slot(dir: &Path, stem: &str) -> Result<(File, PathBuf)> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    for n in 0..16 {
        let path = dir.join(format!("{stem}-{n}.log"));
        let log = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        if log.try_lock().is_ok() {
            log.set_len(0).with_context(|| format!("emptying {}", path.display()))?;
            return Ok((log, path));
        }
    }
    bail!("16 servers of this kind run already: their logs are {}/{stem}-*.log", dir.display())
}

impl Daemon {
    /// Starts `command` in a process group of its own, writing to `log`.
    ///
    /// The kernel sends it SIGTERM when the *thread* that called this ends, so that Ctrl-C, a
    /// kill and a panic leave nothing behind. (`setpriv` asks for that; doing it ourselves would
    /// need unsafe code between fork and exec.)
    pub(super) fn start(
        host: &Host,
        command: &Command,
        log: File,
        log_path: PathBuf,
        grace: Duration,
    ) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let setpriv =
            host.which("setpriv").context("setpriv (package util-linux) is not installed")?;
        let mut tied = Command::new(setpriv);
        tied.args(["--pdeathsig", "TERM", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(dir) = command.get_current_dir() {
            tied.current_dir(dir);
        }
        let for_server = || log.try_clone().context("sharing the server's log");
        let child = tied
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(for_server()?)
            .stderr(for_server()?)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
        Ok(Self { child, log, log_path, grace })
    }

    /// Looks with `ready` at the log so far until it answers, at most `limit`.
    ///
    /// # Errors
    ///
    /// When the server ends first, or time is up; with the log's last lines.
    pub(super) fn wait_until<T>(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = ready(&self.log_so_far()?) {
                return Ok(answer);
            }
            let what = match self.child.try_wait().context("looking after the server")? {
                Some(status) => format!("it ended with {status}"),
                None if Instant::now() > deadline => format!("no answer in {} s", limit.as_secs()),
                None => {
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            let log = self.log_so_far()?;
            let last: Vec<&str> = log.lines().rev().take(8).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            bail!("{what}; its log {} ends with:\n{}", self.log_path.display(), last.join("\n"));
        }
    }

    fn log_so_far(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.log.seek(SeekFrom::Start(0)).context("reading the server's log")?;
        self.log.read_to_end(&mut bytes).context("reading the server's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only while it is not reaped: its number could be another's afterwards.
        if self.ended() {
            return;
        }
        let group = Pid::from_child(&self.child);
        // Neither can fail in a way that we could do something about here.
        let _ = kill_process_group(group, Signal::TERM);
        let deadline = Instant::now() + self.grace;
        while !self.ended() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        if !self.ended() {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(host: &Host, dir: &Path, script: &str) -> Daemon {
        let (log, log_path) = free_slot(dir, "server").expect("a free slot");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Daemon::start(host, &command, log, log_path, LONG).expect("sh starts")
    }

    /// Whether the process is gone or a zombie, which nobody here reaps.
    fn gone(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
    }

    fn wait_until_gone(pid: &str) {
        let deadline = Instant::now() + LONG;
        while !gone(pid) {
            assert!(Instant::now() < deadline, "process {pid} still runs");
            std::thread::sleep(POLL);
        }
    }

    fn first_line(log: &str) -> Option<String> {
        log.split_once('\n').map(|(line, _)| line.to_owned())
    }

    #[test]
    fn a_dropped_server_ends_with_its_children_and_frees_its_slot() {
        let host = Host::from_environment().expect("cargo tells where the checkout is");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut first = shell(&host, dir.path(), "sleep 1000 & echo $!; wait");
        let child = first.wait_until(LONG, first_line).expect("it prints its child's number");
        let second = shell(&host, dir.path(), "sleep 1000");
        assert_ne!(first.log_path, second.log_path, "a slot in use is not shared");
        assert!(!gone(&child));
        drop(first);
        wait_until_gone(&child);
        let (_, path) = free_slot(dir.path(), "server").expect("the first slot is free");
        assert!(path.ends_with("server-0.log"), "{}", path.display());
        drop(second);
    }

    #[test]
    fn a_server_ends_with_its_starting_thread() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().to_owned();
        let pid = std::thread::spawn(move || {
            let host = Host::from_environment().expect("cargo tells where the checkout is");
            let mut daemon = shell(&host, &path, "echo $$; exec sleep 1000");
            let pid = daemon.wait_until(LONG, first_line).expect("it prints its number");
            std::mem::forget(daemon);
            pid
        });
        wait_until_gone(&pid.join().expect("the thread ends well"));
    }

    #[test]
    fn a_server_that_ends_or_is_silent_is_reported_with_its_last_output() {
        let host = Host::from_environment().expect("cargo tells where the checkout is");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut ends = shell(&host, dir.path(), "echo no disk; exit 3");
        let err = ends.wait_until(LONG, |_| None::<()>).expect_err("it ended").to_string();
        assert!(err.contains("exit status: 3") && err.ends_with("no disk"), "{err}");
        let mut silent = shell(&host, dir.path(), "sleep 1000");
        let err = silent.wait_until(Duration::ZERO, |_| None::<()>).expect_err("time is up");
        assert!(err.to_string().starts_with("no answer in 0 s"), "{err}");
    }
}
