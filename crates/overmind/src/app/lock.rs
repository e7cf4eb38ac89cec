//! One server per data directory, and how others find it.
//!
//! `overmind.pid` holds the server's pid and is locked while the server lives. The kernel drops
//! the lock with the process, so a lock is never stale; only the text of a dead server's file is.
//! `server.json` says where the server listens. Commands read both and trust the lock alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use overmind_core::failpoint;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, DataDir};

/// Held by the server as long as it lives.
#[derive(Debug)]
pub struct DataLock {
    file: File,
    data: DataDir,
    instance: String,
}

/// What the server wrote down about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFile {
    pub pid: u32,
    pub version: String,
    /// `http://127.0.0.1:8420`, if it listens on TCP.
    pub url: Option<String>,
    pub socket: Option<PathBuf>,
    pub started_at: String,
}

/// Who holds the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// Nobody any more: a server was killed and its files are still there.
    Dead {
        pid: u32,
    },
    /// A living server. It may not have written down where it listens yet.
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
    /// `Ok(Err(pid))` when a server holds it; [`ConfigError::Data`] when the file cannot be used.
    pub fn take(data: &DataDir) -> Result<Result<Self, u32>, ConfigError> {
        let path = data.pid_file();
        let failed = |source| ConfigError::Data { attempt: "locking", path: path.clone(), source };
        let file = open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(read_pid(&path).unwrap_or(0))),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
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

    /// A name of this start, never used before on this machine.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Writes down where the server listens; atomic, so nobody reads half of it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Data`].
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
        // What is left behind is harmless: readers trust the lock, not the text.
        let _ = std::fs::remove_file(self.data.server_file());
        let _ = self.write_pid(None);
    }
}

/// Looks who holds the data directory, changing nothing.
pub fn holder(data: &DataDir) -> Holder {
    let path = data.pid_file();
    // Opened without creating: a look at a directory must leave no trace.
    let Ok(file) = OpenOptions::new().read(true).open(&path) else { return Holder::Nobody };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            Holder::Server { pid: read_pid(&path).unwrap_or(0), file: read_server_file(data) }
        }
        Ok(()) | Err(TryLockError::Error(_)) => match read_pid(&path) {
            Some(pid) => Holder::Dead { pid },
            None => Holder::Nobody,
        },
    }
}

/// Where the server last said that it listens; it may be dead by now.
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
    fn one_server_holds_the_directory_and_the_second_learns_its_pid() {
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
    fn the_files_of_a_killed_server_are_recognised_and_taken_over() {
        let (_dir, data) = data();
        std::fs::write(data.pid_file(), "4242\n").unwrap();
        assert_eq!(holder(&data), Holder::Dead { pid: 4242 });
        assert!(DataLock::take(&data).unwrap().is_ok());
    }
}
