//! Replay: makes a session's decisions again from its own log.
//!
//! [`Replayer`] takes the events of one stream in order. Inputs are passed to the session, and each
//! of its decisions must be exactly the next event in the log. The same code rebuilds a session
//! after a restart, so every verification also tests recovery, and the reverse.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde_json::Value;

use crate::row::StepRow;
use crate::session::{Decision, DecodeError, Recorded, Session, Spec, Step, Toolset};
use crate::time::Timestamp;

/// Why a log cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("event {seq}: {source}")]
    Decode {
        seq: u64,
        #[source]
        source: DecodeError,
    },
    #[error("event {seq} is `{kind}`; a session begins with `run.queued`")]
    NoBeginning { seq: u64, kind: String },
    #[error("event {seq}: `{kind}` is impossible in the session's state: {why}")]
    Refused { seq: u64, kind: String, why: String },
    #[error("event {seq} differs: recorded {recorded}, decided {decided}")]
    Diverged { seq: u64, recorded: String, decided: String },
    #[error("the session was created with tool definitions {hash}, which are not stored")]
    NoToolset { hash: String },
}

/// Masks secrets as the store does, because recorded decisions were masked.
pub type Redact<'a> = &'a dyn Fn(&mut Value);

/// Returns the tool definitions that a spec names.
pub type FindToolset<'a> = &'a dyn Fn(&str) -> Option<Arc<Toolset>>;

/// A replay in progress.
#[derive(Debug, Default)]
pub struct Replayer {
    session: Option<Session>,
    /// Decisions that were made and not yet found in the log.
    expected: VecDeque<Decision>,
    last: Vec<StepRow>,
    pub events: u64,
    /// Number of decisions that were compared and equal.
    pub decided: u64,
}

impl Replayer {
    /// Handles the next event. With `verify`, decisions are compared. Without it they are trusted,
    /// which is faster and also accepts a log of an older version; a restart uses this.
    ///
    /// # Errors
    ///
    /// [`ReplayError`]; do not use the replayer after it.
    pub fn event(
        &mut self,
        seq: u64,
        kind: &str,
        ts: Timestamp,
        payload: &str,
        verify: Option<Redact<'_>>,
        toolset: FindToolset<'_>,
    ) -> Result<(), ReplayError> {
        self.events += 1;
        let recorded = Recorded::decode(kind, payload)
            .map_err(|source| ReplayError::Decode { seq, source })?;
        match (recorded, self.session.take()) {
            (Recorded::Observation, session) => self.session = session,
            (Recorded::Attested(attestation), Some(mut session)) => {
                session.note_attestation(*attestation);
                self.session = Some(session);
            }
            (Recorded::RoomAttested(one), Some(mut session)) => {
                session.note_room_attested(*one);
                self.session = Some(session);
            }
            (Recorded::RoomDone(decision), Some(mut session)) => {
                session.note_done(*decision);
                self.session = Some(session);
            }
            (Recorded::RoomChanges(changes), Some(mut session)) => {
                session.note_changes(changes);
                self.session = Some(session);
            }
            (Recorded::Queued(spec), None) => self.session = Some(begin(*spec, ts, toolset)?),
            (Recorded::Queued(_), Some(_)) => {
                let why = "the session has begun already".into();
                return Err(ReplayError::Refused { seq, kind: kind.into(), why });
            }
            (
                Recorded::Input(_)
                | Recorded::Decision
                | Recorded::Attested(_)
                | Recorded::RoomAttested(_)
                | Recorded::RoomDone(_)
                | Recorded::RoomChanges(_),
                None,
            ) => {
                return Err(ReplayError::NoBeginning { seq, kind: kind.into() });
            }
            (Recorded::Input(input), Some(session)) => {
                if let Some(missing) = self.expected.front() {
                    return Err(diverged(seq, kind, payload, Some(missing)));
                }
                session.accepts(&input).map_err(|refusal| ReplayError::Refused {
                    seq,
                    kind: kind.into(),
                    why: refusal.to_string(),
                })?;
                // Its effects go at once: a request holds the conversation, and as long as somebody
                // does, the next message costs a copy of all of it.
                let (session, Step { events, steps, effects: _, aborted: _, orders: _ }) =
                    session.step(&input, ts);
                self.session = Some(session);
                if verify.is_some() {
                    self.expected.extend(events);
                }
                self.last = steps;
            }
            (Recorded::Decision, Some(session)) => {
                self.session = Some(session);
                let Some(redact) = verify else { return Ok(()) };
                let Some(mut decision) = self.expected.pop_front() else {
                    return Err(diverged(seq, kind, payload, None));
                };
                // Recorded inputs were masked, so masking changes almost no decision: it is applied
                // only to decisions that differ without it.
                let mut same = decision.kind == kind && reads(&decision.payload, payload);
                if !same {
                    redact(&mut decision.payload);
                    same = decision.kind == kind && reads(&decision.payload, payload);
                }
                if !same {
                    return Err(diverged(seq, kind, payload, Some(&decision)));
                }
                self.decided += 1;
            }
        }
        Ok(())
    }

    /// Ends the replay.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Diverged`] if the log ends before the last decision.
    pub fn finish(self, seq: u64) -> Result<Option<Session>, ReplayError> {
        match self.expected.front() {
            Some(missing) => Err(diverged(seq + 1, "nothing", "", Some(missing))),
            None => Ok(self.session),
        }
    }

    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Returns the steps that the last input opened or closed.
    pub fn last_steps(&self) -> &[StepRow] {
        &self.last
    }
}

/// Returns whether `value` is written as `text`. Texts are compared, because the log contains bytes
/// and those were hashed.
fn reads(value: &Value, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    write!(rest, "{value}").is_ok() && rest.0.is_empty()
}

fn begin(spec: Spec, ts: Timestamp, toolset: FindToolset<'_>) -> Result<Session, ReplayError> {
    match toolset(&spec.toolset) {
        Some(toolset) => Ok(Session::begin(spec, toolset, ts)),
        None => Err(ReplayError::NoToolset { hash: spec.toolset }),
    }
}

fn diverged(seq: u64, kind: &str, payload: &str, decided: Option<&Decision>) -> ReplayError {
    ReplayError::Diverged {
        seq,
        recorded: format!("{kind} {payload}"),
        decided: decided.map_or_else(
            || "nothing".into(),
            |decision| format!("{} {}", decision.kind, decision.payload),
        ),
    }
}
