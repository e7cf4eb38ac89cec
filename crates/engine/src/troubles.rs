//! Remembers why the model calls of runs fail, for lists of runs.
//!
//! Programs retry by themselves, and report only a status meanwhile. So the first call that fails,
//! and each later one that fails for another reason, is recorded in the run's log and its output.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::process::NoteKind;
use overmind_core::store::{Commit, Guard, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::Engine;

/// Maximum number of sessions that are remembered; beyond that all are forgotten and reported
/// again.
const KEPT: usize = 10_000;
/// The shortest time between reports of different causes.
const SOONEST: Duration = Duration::from_secs(2);
/// The time after which the same cause is reported again.
const AGAIN: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<HashMap<SessionId, Trouble>>);

#[derive(Debug)]
struct Trouble {
    /// Why the last call failed; `None` once one was answered.
    now: Option<String>,
    told: String,
    told_at: Timestamp,
}

impl Troubles {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failed call. Returns whether it must be reported.
    pub(crate) fn began(&self, session: SessionId, why: &str, now: Timestamp) -> bool {
        let mut all = self.lock();
        if all.len() >= KEPT && !all.contains_key(&session) {
            all.clear();
        }
        let Some(known) = all.get_mut(&session) else {
            let why = why.to_owned();
            all.insert(session, Trouble { now: Some(why.clone()), told: why, told_at: now });
            return true;
        };
        let passed = now.since(known.told_at);
        // A problem that returns after its end is reported again.
        let is_new = known.told != why || known.now.is_none();
        known.now = Some(why.to_owned());
        if passed >= AGAIN || (is_new && passed >= SOONEST) {
            (known.told, known.told_at) = (why.to_owned(), now);
            return true;
        }
        false
    }

    /// Records an answered call. Returns whether earlier calls failed.
    pub(crate) fn ended(&self, session: SessionId) -> bool {
        self.lock().get_mut(&session).is_some_and(|known| known.now.take().is_some())
    }

    pub(crate) fn of(&self, session: SessionId) -> Option<String> {
        self.lock().get(&session)?.now.clone()
    }
}

impl Engine {
    /// Why the last model call of a session was not answered; `None` if it was.
    pub fn session_trouble(&self, id: SessionId) -> Option<String> {
        self.cortex.troubles.of(id)
    }

    /// Reports that a model call of a run's program was not answered, once for each cause.
    pub(crate) async fn call_failed(&self, session: SessionId, model: &str, why: &str) {
        let mut why = Value::String(why.to_owned());
        self.cortex.store.redact(&mut why);
        let why = why.as_str().unwrap_or_default();
        let now = self.cortex.clock.now();
        if !self.cortex.troubles.began(session, why, now) {
            return;
        }
        self.call_note(session, &format!("its model calls fail: {why}")).await;
        let event = NewEvent {
            stream: StreamId::Session(session),
            kind: "model.unanswered",
            ts: now,
            payload: json!({"run_id": session, "model": model, "message": why}),
        };
        let guards = vec![Guard::SessionExists { session }];
        let commit = Commit { guards, events: vec![event], changes: Vec::new() };
        if let Err(err) = self.cortex.store.commit(commit).await {
            tracing::warn!(%session, error = %err, "a model call that failed is not in the log");
        }
    }

    /// Reports that a model call of a run's program was answered.
    pub(crate) async fn call_answered(&self, session: SessionId) {
        if self.cortex.troubles.ended(session) {
            // It is rare, and every call would reserve memory for an unboxed future.
            Box::pin(self.call_note(session, "its model calls are answered again")).await;
        }
    }

    /// Writes a line to the output of the run's program, if it has such a log.
    async fn call_note(&self, session: SessionId, text: &str) {
        let Some(processes) = &self.processes else { return };
        if let Err(err) = processes.note(session, NoteKind::Note, text.to_owned()).await {
            tracing::debug!(%session, error = %err, "a note about its model could not be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_once_and_another_cause_again() {
        let (troubles, run) = (Troubles::default(), SessionId::from_u128(7));
        let at = |seconds| Timestamp::from_micros(0).after(Duration::from_secs(seconds));
        assert!(!troubles.ended(run));
        assert!(troubles.began(run, "connection refused", at(0)));
        assert!(!troubles.began(run, "connection refused", at(5)));
        assert!(troubles.began(run, "502", at(6)), "another cause");
        assert!(!troubles.began(run, "503", at(7)), "too soon");
        assert!(troubles.began(run, "503", at(8)));
        assert_eq!(troubles.of(run).as_deref(), Some("503"));
        assert!(troubles.ended(run) && !troubles.ended(run));
        assert_eq!(troubles.of(run), None);
        assert!(troubles.began(run, "503", at(20)), "it was over");
        assert!(troubles.began(run, "503", at(20 + 600)), "it goes on");
    }
}
