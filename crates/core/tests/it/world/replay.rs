//! Sessions that are rebuilt from a log.

use std::sync::Arc;

use overmind_core::replay::{ReplayError, Replayer};
use overmind_core::session::{REBUILT_FROM, Session, Toolset};

use super::Entry;

pub(crate) fn find(toolset: &Arc<Toolset>) -> impl Fn(&str) -> Option<Arc<Toolset>> {
    let toolset = Arc::clone(toolset);
    move |hash| (toolset.hash() == hash).then(|| Arc::clone(&toolset))
}

/// Replays `log` to its end.
pub(crate) fn replayed(
    log: &[Arc<Entry>],
    toolset: &Arc<Toolset>,
    verify: bool,
) -> Result<Session, ReplayError> {
    let mut replayer = Replayer::default();
    let (keep, find) = (|_: &mut serde_json::Value| {}, find(toolset));
    let mut seq = 0;
    for entry in log {
        seq += 1;
        // A restart reads no more than this.
        if !verify && !REBUILT_FROM.contains(&&*entry.kind) {
            continue;
        }
        let redact: Option<&dyn Fn(&mut serde_json::Value)> =
            if verify { Some(&keep) } else { None };
        replayer.event(seq, &entry.kind, entry.ts, &entry.payload, redact, &find)?;
    }
    Ok(replayer.finish(seq)?.expect("a log that begins with `run.queued` has a session"))
}
