//! Where the server's own log goes: standard error, as text for people or as JSON for machines.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// A log file that grew beyond this is set aside at the next start in the background.
const ROTATE_AT: u64 = 16 << 20;

/// Starts logging for the whole process. The second call in a process does nothing, so that
/// tests may start several servers.
///
/// # Errors
///
/// A text that names the directive that cannot be read.
pub fn start(level: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|err| format!("`log.level`: {err}"))?;
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !io::stderr().is_terminal(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let done = if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(io::stderr)).try_init()
    } else {
        let colour = io::stderr().is_terminal();
        registry.with(fmt::layer().compact().with_ansi(colour).with_writer(io::stderr)).try_init()
    };
    // The only failure is that logging has been started before.
    let _ = done;
    Ok(())
}

/// Opens the log file of a server in the background, at its end. One old file is kept.
///
/// # Errors
///
/// What the file system says.
pub fn open_file(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > ROTATE_AT) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
