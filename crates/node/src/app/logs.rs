//! The server's own log, on standard error: text for people or JSON for programs.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// A larger log file is renamed; one old file is kept.
const ROTATE_AT: u64 = 16 << 20;

/// Starts logging for the whole process. A second call does nothing, so that tests may start
/// several servers. `file` is the target of standard error for a server in the background; it is
/// renamed when it has grown.
///
/// # Errors
///
/// Names the directive that cannot be parsed.
pub fn start(level: &str, format: LogFormat, file: Option<&Path>) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|err| format!("`log.level`: {err}"))?;
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !io::stderr().is_terminal(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let kept = file.map(|path| Kept::new(path.to_owned(), ROTATE_AT)).map(Arc::new);
    let writer = move || Writer(kept.clone());
    let done = if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(writer)).try_init()
    } else {
        let colour = io::stderr().is_terminal();
        registry.with(fmt::layer().compact().with_ansi(colour).with_writer(writer)).try_init()
    };
    // The only failure is that logging was started before.
    let _ = done;
    Ok(())
}

/// Opens the log file of a server in the background, at its end. One old file is kept.
///
/// # Errors
///
/// Returns the error of the file system.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_within(path, ROTATE_AT)
}

fn open_within(path: &Path, limit: u64) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > limit) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The file to which a background server's standard error is written.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    limit: u64,
    /// Its size in bytes, as far as known.
    length: Mutex<u64>,
}

impl Kept {
    fn new(path: PathBuf, limit: u64) -> Self {
        let length = std::fs::metadata(&path).map_or(0, |meta| meta.len());
        Self { path, limit, length: Mutex::new(length) }
    }

    /// Counts the bytes of a coming write. If the file has grown beyond its limit, it is renamed,
    /// and a new file is returned, to which standard error must be redirected.
    fn grows(&self, bytes: usize) -> Option<File> {
        let mut length = self.length.lock().unwrap_or_else(PoisonError::into_inner);
        *length += bytes as u64;
        if *length <= self.limit {
            return None;
        }
        // Another process may have renamed it, or written to it as well.
        let before = std::fs::metadata(&self.path).map_or(0, |meta| meta.len());
        let opened = open_within(&self.path, self.limit);
        *length = std::fs::metadata(&self.path).map_or(0, |meta| meta.len());
        // If the disk is full, the old file continues.
        opened.ok().filter(|_| before > self.limit || before == 0)
    }
}

/// Writes whole lines to standard error.
struct Writer(Option<Arc<Kept>>);

impl io::Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(file) = self.0.as_ref().and_then(|kept| kept.grows(line.len())) {
            // Panics and messages of libraries go to the same file.
            rustix::stdio::dup2_stderr(&file)?;
        }
        io::stderr().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_full_log_is_rotated_while_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overmind.log");
        let mut file = open_within(&path, 100).unwrap();
        let kept = Kept::new(path.clone(), 100);
        for n in 0..50 {
            let line = format!("this is line {n:05}\n");
            if let Some(next) = kept.grows(line.len()) {
                file = next;
            }
            file.write_all(line.as_bytes()).unwrap();
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (old, new) = (read(&path.with_extension("log.1")), read(&path));
        assert!(old.len() <= 140 && new.len() <= 140, "{} {}", old.len(), new.len());
        assert!(format!("{old}{new}").ends_with("line 00048\nthis is line 00049\n"), "{old}{new}");
        assert!(old.lines().chain(new.lines()).all(|line| line.len() == 18), "no line is cut");
    }
}
