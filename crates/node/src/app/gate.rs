//! The policy in force: the built-in one, a file that is read again whenever it changes, or none if
//! that was explicitly requested.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use overmind_core::Fut;
use overmind_core::gate::Gate as _;
use overmind_core::loops::{Pace, Reconcile, Report};
use overmind_core::time::Timestamp;
use overmind_engine::Engine;
use overmind_policy::{Policy, PolicyGate};

use super::StartError;
use crate::config::{ConfigError, PolicyChoice};

/// The time between two checks of the file. A stat costs microseconds, and works on every file
/// system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The warning about running without a policy, shown at every start and by `doctor` and `status`.
pub const OFF: &str = "the policy is OFF: agents may do whatever their sandbox allows, without \
    questions";

/// Reads the policy that `choice` names.
///
/// # Errors
///
/// Fails if a named file is missing, cannot be read, or is no policy: the server must not start
/// without the configured rules. Only the default file may be missing.
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

/// Makes the server's policy gate with the policy that `choice` names.
///
/// # Errors
///
/// The same as for [`read`].
pub(super) fn open(choice: &PolicyChoice) -> Result<Arc<PolicyGate>, StartError> {
    if let PolicyChoice::Off { said } = choice {
        tracing::warn!(said, "{OFF}");
    }
    Ok(Arc::new(PolicyGate::new(read(choice)?)))
}

/// Records in the log which policy is in force, and starts the loop that reads its file again.
pub(super) async fn watch(gate: Arc<PolicyGate>, choice: &PolicyChoice, engine: &Engine) {
    match choice {
        PolicyChoice::Off { .. } => tell(&gate, engine).await,
        PolicyChoice::Usual(file) | PolicyChoice::File(file) => {
            let (file, engine) = (file.clone(), engine.clone());
            let of = PolicyFile {
                gate,
                file,
                engine: engine.clone(),
                told: false,
                seen: None,
                wrong: None,
            };
            engine.loop_add(of).await;
        }
    }
}

/// Reads the policy again whenever its file has changed. An invalid text changes nothing and is
/// reported as an error until the file changes; so is a missing file.
struct PolicyFile {
    gate: Arc<PolicyGate>,
    file: PathBuf,
    engine: Engine,
    told: bool,
    seen: Option<(SystemTime, u64)>,
    wrong: Option<String>,
}

impl Reconcile for PolicyFile {
    fn name(&self) -> &'static str {
        "policy-file"
    }

    fn pace(&self) -> Pace {
        Pace::every(LOOK_EVERY).at_once().steady()
    }

    fn pass(&mut self, _now: Timestamp) -> Fut<'_, Result<Report, String>> {
        Box::pin(async move {
            if !self.told {
                tell(&self.gate, &self.engine).await;
                self.told = true;
            }
            let now = stamp(&self.file);
            let mut said = "";
            if now != self.seen {
                self.seen = now;
                let taken = take(&self.gate, &self.file, &self.engine).await;
                self.wrong = taken.as_ref().err().cloned();
                said = if taken? { "the policy has changed" } else { said };
            }
            self.wrong.clone().map_or_else(|| Ok(Report::new(said)), Err)
        })
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(file).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Returns whether another policy is in force now.
async fn take(gate: &PolicyGate, file: &Path, engine: &Engine) -> Result<bool, String> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|err| {
        gate.refuse(format!("reading {name}: {err}"));
        format!("reading {name}: {err}; the last one holds")
    })?;
    let before = gate.version();
    let version = gate
        .reload(&text, &name)
        .map_err(|err| format!("{name} is not a policy; the last one holds: {err}"))?;
    if version == before {
        return Ok(false);
    }
    tracing::info!(file = name, %version, "the policy has changed");
    tell(gate, engine).await;
    Ok(true)
}

async fn tell(gate: &PolicyGate, engine: &Engine) {
    let policy = gate.current();
    if let Err(err) = engine.policy_loaded(policy.version(), policy.source(), policy.text()).await {
        tracing::warn!(error = %err, "the log does not know the policy in force");
    }
}
