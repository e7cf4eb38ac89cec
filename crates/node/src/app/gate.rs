//! The policy that holds: the built-in one, a file that is read again whenever it changes, or none
//! because someone said so.

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
use crate::config::{ConfigError, PolicyChoice};

/// Between two looks at the file. A stat costs microseconds, and works on every file system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What whoever runs without a policy is told, at every start and by `doctor` and `status`.
pub const OFF: &str = "the policy is OFF: agents do unasked whatever their sandbox lets them";

/// The policy that `choice` names.
///
/// # Errors
///
/// A file that was named and is not there, cannot be read, or is no policy: nothing may start
/// without the rules that it was given. Only the usual place may be empty.
pub fn read(choice: &PolicyChoice) -> Result<Policy, StartError> {
    let (path, must) = match choice {
        PolicyChoice::Off { .. } => return Ok(Policy::off()),
        PolicyChoice::Usual(path) => (path, false),
        PolicyChoice::File(path) => (path, true),
    };
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Policy::parse(&text, &path.display().to_string())?),
        Err(err) if err.kind() == io::ErrorKind::NotFound && !must => Ok(Policy::default()),
        Err(source) => Err(ConfigError::Read { path: path.clone(), source }.into()),
    }
}

/// The gate of the server, around the policy that `choice` names.
///
/// # Errors
///
/// As [`read`].
pub(super) fn open(choice: &PolicyChoice) -> Result<Arc<PolicyGate>, StartError> {
    if let PolicyChoice::Off { said } = choice {
        tracing::warn!(said, "{OFF}");
    }
    Ok(Arc::new(PolicyGate::new(read(choice)?)))
}

/// Tells the log which policy holds, then reads the file again whenever it has changed, until
/// `stop`. A text that is no policy changes nothing and is told; so is a file that is gone.
pub(super) async fn watch(
    gate: Arc<PolicyGate>,
    choice: PolicyChoice,
    engine: Engine,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    tell(&gate, &engine).await;
    let file: PathBuf = match choice {
        PolicyChoice::Off { .. } => return,
        PolicyChoice::Usual(file) | PolicyChoice::File(file) => file,
    };
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
            gate.refuse(format!("reading {name}: {err}"));
            return;
        }
    };
    let before = gate.version();
    match gate.reload(&text, &name) {
        Ok(version) if version != before => {
            tracing::info!(file = name, %version, "the policy has changed");
            tell(gate, engine).await;
        }
        Ok(_) => {}
        Err(err) => tracing::error!(file = name, error = %err, "not a policy; the last one holds"),
    }
}

async fn tell(gate: &PolicyGate, engine: &Engine) {
    let policy = gate.current();
    if let Err(err) = engine.policy_loaded(policy.version(), policy.source(), policy.text()).await {
        tracing::warn!(error = %err, "the log does not know the policy in force");
    }
}
