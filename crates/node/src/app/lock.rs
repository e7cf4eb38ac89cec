//! Allows one server per data directory, and tells other processes how to find it.
//!
//! `overmind.pid` contains the server's pid and is locked while the server runs. The kernel
//! releases the lock with the process, so a lock is never stale; only the text in a dead server's
//! file is. If a server was killed while it started a child, the child holds a copy of the lock
//! until it executes its own program, and a reader holds it for a moment: such locks are waited
//! for. `server.json` contains the addresses of the server. Commands read both files but trust only
//! the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_core::failpoint;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, DataDir};

/// How long to wait for a lock whose holder is dead.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// The lock, held by the server until it ends.
#[derive(Debug)]
pub struct DataLock {
    file: File,
    data: DataDir,
    instance: String,
}

/// The server's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    pub pid: u32,
    pub version: String,
    /// `http://127.0.0.1:8420`, if it listens on TCP.
    pub url: Option<String>,
    pub socket: Option<PathBuf>,
    pub started_at: String,
}

/// The holder of the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// A server was killed, and its files are still there.
    Dead {
        pid: u32,
    },
    /// A running server, which may not have written its addresses yet.
    Server {
        pid: u32,
        file: Option<ServerFile>,
    },
}

impl DataLock {
    /// Locks the data directory, which must exist.
    ///
    /// # Errors
    ///
    /// `Ok(Err(pid))` if another server holds it; [`ConfigError::Data`] if the file cannot be used.
    pub fn take(data: &DataDir) -> Result<Result<Self, u32>, ConfigError> {
        let path = data.pid_file();
        let failed = |source| ConfigError::Data { attempt: "locking", path: path.clone(), source };
        let file = open(&path).map_err(failed)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let pid = read_pid(&path);
                    if pid.is_some_and(is_alive) || began.elapsed() > LAST_BREATH {
                        return Ok(Err(pid.unwrap_or(0)));
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        let instance = uuid::Uuid::now_v7().simple().to_string();
        let mut lock = Self { file, data: data.clone(), instance };
        lock.write_pid(Some(std::process::id())).map_err(failed)?;
        data.remove_drafts();
        Ok(Ok(lock))
    }

    fn write_pid(&mut self, pid: Option<u32>) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        if let Some(pid) = pid {
            writeln!(self.file, "{pid}")?;
        }
        Ok(())
    }

    /// A name for this start that was never used before on this machine.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Writes the server's addresses atomically, so that nobody reads half of them.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Data`] if the file cannot be written.
    pub fn publish(&self, server: &ServerFile) -> Result<(), ConfigError> {
        let path = self.data.server_file();
        let write = || -> io::Result<()> {
            let mut draft = self.data.draft()?;
            serde_json::to_writer(&mut draft, server)?;
            failpoint::point("start.before_publish");
            draft.persist(&path).map_err(|err| err.error)?;
            Ok(())
        };
        write().map_err(|source| ConfigError::Data { attempt: "writing", path, source })
    }
}

impl Drop for DataLock {
    fn drop(&mut self) {
        // Remaining files are harmless, because readers trust only the lock.
        let _ = std::fs::remove_file(self.data.server_file());
        let _ = self.write_pid(None);
    }
}

/// Finds the holder of the data directory without changing anything.
pub fn holder(data: &DataDir) -> Holder {
    let path = data.pid_file();
    // The file is opened without creating it, because a check must leave no trace.
    let Ok(file) = OpenOptions::new().read(true).open(&path) else { return Holder::Nobody };
    let began = Instant::now();
    loop {
        let pid = read_pid(&path);
        match (file.try_lock_shared(), pid) {
            (Ok(()) | Err(TryLockError::Error(_)), Some(pid)) => return Holder::Dead { pid },
            (Ok(()) | Err(TryLockError::Error(_)), None) => return Holder::Nobody,
            // Its server is dead and a child has the lock, or the next server has just taken it and
            // not written its pid yet.
            (Err(TryLockError::WouldBlock), Some(pid)) if !is_alive(pid) => {
                if began.elapsed() > LAST_BREATH {
                    return Holder::Dead { pid };
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            (Err(TryLockError::WouldBlock), pid) => {
                return Holder::Server { pid: pid.unwrap_or(0), file: read_server_file(data) };
            }
        }
    }
}

/// The last addresses that a server wrote; that server may be dead by now.
pub fn read_server_file(data: &DataDir) -> Option<ServerFile> {
    serde_json::from_slice(&std::fs::read(data.server_file()).ok()?).ok()
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn read_pid(path: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // "Refused" means that the process belongs to another user and is alive.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Env;

    fn data() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let data = DataDir::locate(Some(&path), &Env::default(), Path::new("/")).unwrap();
        data.prepare().unwrap();
        (dir, data)
    }

    #[test]
    fn a_second_server_on_a_directory_gets_the_pid_of_the_first() {
        let (_dir, data) = data();
        assert_eq!(holder(&data), Holder::Nobody);
        assert!(!data.pid_file().exists(), "looking leaves no trace");
        let lock = DataLock::take(&data).unwrap().unwrap();
        let me = std::process::id();
        assert_eq!(DataLock::take(&data).unwrap().unwrap_err(), me);
        assert_eq!(holder(&data), Holder::Server { pid: me, file: None });
        let server = ServerFile {
            pid: me,
            version: "0".into(),
            url: None,
            socket: Some("/s".into()),
            started_at: "t".into(),
        };
        lock.publish(&server).unwrap();
        assert_eq!(holder(&data), Holder::Server { pid: me, file: Some(server) });
        drop(lock);
        assert_eq!(holder(&data), Holder::Nobody);
        assert_eq!(read_server_file(&data), None);
    }

    #[test]
    fn a_lock_held_briefly_after_its_server_is_waited_for() {
        let (_dir, data) = data();
        let lock = DataLock::take(&data).unwrap().unwrap();
        // The descriptors that a child holds before it executes its program; its parent has ended.
        let copy = lock.file.try_clone().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        let pid = gone.id();
        gone.wait().unwrap();
        std::mem::forget(lock);
        std::fs::write(data.pid_file(), format!("{pid}\n")).unwrap();
        assert_eq!(holder(&data), Holder::Dead { pid }, "whoever looks is told of no server");
        let taker = std::thread::spawn({
            let data = data.clone();
            move || DataLock::take(&data).unwrap().is_ok()
        });
        rustix::fs::flock(&copy, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(taker.join().unwrap());
    }

    #[test]
    fn files_of_a_killed_server_are_recognised_and_reused() {
        let (_dir, data) = data();
        std::fs::write(data.pid_file(), "4242\n").unwrap();
        assert_eq!(holder(&data), Holder::Dead { pid: 4242 });
        assert!(DataLock::take(&data).unwrap().is_ok());
    }
}
