//! The policy file: read at the start, and again whenever it changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use overmind_core::gate::Gate as _;
use overmind_core::time::Clock;
use overmind_engine::Engine;
use overmind_policy::{Policy, PolicyGate};
use tokio_util::sync::CancellationToken;

use super::StartError;
use crate::config::ConfigError;

/// Between two looks at the file. A stat costs microseconds, and works on every file system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The policy of `file`; none when there is no such file.
///
/// # Errors
///
/// A file that is there and cannot be read, or is no policy: a server must not start without
/// the rules that it was given.
pub(super) fn open(file: Option<&Path>) -> Result<Option<Arc<PolicyGate>>, StartError> {
    let Some(file) = file else { return Ok(None) };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(ConfigError::Read { path: file.to_owned(), source }.into());
        }
    };
    let policy = Policy::parse(&text, &file.display().to_string())?;
    Ok(Some(Arc::new(PolicyGate::new(policy))))
}

/// Reads the file again whenever it has changed, until `stop`. A text that is no policy changes
/// nothing and is told in the log; so is a file that is gone.
pub(super) async fn watch(
    gate: Arc<PolicyGate>,
    file: PathBuf,
    engine: Engine,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let mut seen = None;
    loop {
        let now = stamp(&file);
        if now != seen {
            seen = now;
            take(&gate, &file, &engine).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep_until(clock.now().after(LOOK_EVERY)) => {}
        }
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(file).ok()?;
    Some((found.modified().ok()?, found.len()))
}

async fn take(gate: &PolicyGate, file: &Path, engine: &Engine) {
    let name = file.display().to_string();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(err) => {
            tracing::error!(file = name, error = %err, "the policy cannot be read; the last one holds");
            return;
        }
    };
    let before = gate.version();
    match gate.reload(&text, &name) {
        Ok(version) => {
            if version != before {
                tracing::info!(file = name, %version, "the policy has changed");
            }
            if let Err(err) = engine.policy_loaded(&version, gate.current().text()).await {
                tracing::warn!(error = %err, "the log does not know the policy in force");
            }
        }
        Err(err) => tracing::error!(file = name, error = %err, "not a policy; the last one holds"),
    }
}
