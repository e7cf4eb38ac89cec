//! A session's stay in a room, as its machine, its log and its row have it.

use serde::{Deserialize, Serialize};

use super::history::{RoomChanges, RoomSnapshot};
use super::{
    RoomClosed, RoomDone, RoomEnd, RoomError, RoomMade, RoomOrder, RoomOutcome, RoomProgress,
};
use crate::attest::{AttestationRef, Attested};
use crate::time::Timestamp;

/// What a Hive is to do about a session's room. Both are idempotent: after a crash they are asked
/// for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomAct {
    Prepare(Box<RoomOrder>),
    /// Begun only when no process of the session lives any more.
    Close {
        end: RoomEnd,
    },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomReport {
    Prepared(Result<Box<RoomMade>, RoomError>),
    Closed(Result<Box<RoomClosed>, RoomError>),
}

/// What reaches a session about its room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomInput {
    Ready {
        effect: u64,
        made: Box<RoomMade>,
    },
    Failed {
        effect: u64,
        error: RoomError,
    },
    Closed {
        effect: u64,
        closed: Box<RoomClosed>,
    },
    /// It could not be given back.
    Left {
        effect: u64,
        error: RoomError,
    },
}

impl RoomInput {
    /// What a report about the effect with this number says to the session.
    pub fn of(effect: u64, report: RoomReport) -> Self {
        match report {
            RoomReport::Prepared(Ok(made)) => Self::Ready { effect, made },
            RoomReport::Prepared(Err(error)) => Self::Failed { effect, error },
            RoomReport::Closed(Ok(closed)) => Self::Closed { effect, closed },
            RoomReport::Closed(Err(error)) => Self::Left { effect, error },
        }
    }
}

/// What a Hive says of a room while it works on it. Lines of output are not among it: they go
/// into the session's own log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomWord {
    Step(String),
    Warning(String),
    /// Its files were saved.
    Saved(RoomSnapshot),
}

impl RoomWord {
    /// `None` for a line of output.
    pub fn of(progress: &RoomProgress) -> Option<Self> {
        match progress {
            RoomProgress::Step(step) => Some(Self::Step(step.clone())),
            RoomProgress::Warning(warning) => Some(Self::Warning(warning.clone())),
            RoomProgress::Line { .. } => None,
        }
    }
}

/// How far a session is with its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomPhase {
    Preparing,
    Ready,
    Closing,
    /// Given back.
    Closed,
    /// Given back but for its worktree, which somebody wanted to stay.
    Kept,
    /// It could not be made, and what was made of it is given back.
    Failed,
    /// It could not be given back: something may be left of it.
    Left,
}

impl RoomPhase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Kept => "kept",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }

    /// Whether a Hive has, or may have, something of it.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Preparing | Self::Ready | Self::Closing => true,
            Self::Closed | Self::Kept | Self::Failed | Self::Left => false,
        }
    }
}

/// Whether a note in a run's log says how its environment is made; also one of an older server, which
/// called it a room.
pub fn tells_of_making(note: &str) -> bool {
    ["--- the environment: ", "--- the room: "].iter().any(|start| note.starts_with(start))
}

/// A session's room as a list shows it. Never variables: passwords are among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomRow {
    pub phase: RoomPhase,
    /// There as soon as it was ready once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<RoomMade>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<RoomClosed>,
    /// Why it could not be made or given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RoomError>,
    /// The last decision over its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<RoomDecision>,
    /// What the sandboxes of its programs were measured to give when each last began, in the order
    /// in which they first did; the first [`MAX_ATTESTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attested: Vec<RoomAttested>,
    /// What its work changes beside its base, as it was last counted: when its files were saved, and when
    /// it was given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// Who, or what setting, ended the session while it rested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ended_by: Option<String>,
}

/// So many programs of a room are on its row. The log has all.
pub const MAX_ATTESTED: usize = 100;
/// Bytes of what a program of a room is called at most.
pub const MAX_OF: usize = 200;

/// A program of a room, and what its sandbox was measured to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomAttested {
    /// What it is: `service db`, `ready check of db`, `template of db`, `setup: npm ci`,
    /// `teardown: bin/save`.
    pub of: String,
    /// [`Attestation::driver`](crate::attest::Attestation::driver).
    pub driver: String,
    pub attestation: AttestationRef,
}

impl RoomAttested {
    /// `of` is cut to [`MAX_OF`].
    pub fn new(mut of: String, attested: &Attested) -> Self {
        of.truncate(of.floor_char_boundary(MAX_OF));
        Self { of, driver: attested.attestation.driver.clone(), attestation: attested.into() }
    }
}

impl RoomRow {
    pub fn preparing() -> Self {
        let phase = RoomPhase::Preparing;
        let attested = Vec::new();
        Self {
            phase,
            made: None,
            closed: None,
            error: None,
            done: None,
            attested,
            changes: None,
            rest_ended_by: None,
        }
    }

    /// As it is while it is made again, after what it was before.
    pub fn again(before: Option<Self>) -> Self {
        let (made, changes) = before.map(|room| (room.made, room.changes)).unwrap_or_default();
        Self { made, changes, ..Self::preparing() }
    }

    /// Whether its worktree is there because nobody has decided over its work yet.
    pub fn is_undecided(&self) -> bool {
        self.done.is_none() && self.closed.as_ref().is_some_and(|closed| closed.undecided)
    }

    /// Notes what a program's sandbox was measured to give, in place of what was known of it.
    pub fn note(&mut self, one: RoomAttested) {
        match self.attested.iter().position(|known| known.of == one.of) {
            Some(at) => self.attested[at] = one,
            None if self.attested.len() < MAX_ATTESTED => self.attested.push(one),
            None => {}
        }
    }
}

/// What somebody decided over a session's work, and what was done then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomDecision {
    pub what: RoomDone,
    pub by: String,
    pub at: Timestamp,
    pub outcome: RoomOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::SandboxLevel;

    fn one(of: String, digest: &str) -> RoomAttested {
        let asked = SandboxLevel::Namespace;
        let (at, signer) = (Timestamp::from_micros(1), None);
        let attestation =
            AttestationRef { digest: digest.into(), asked, achieved: asked, at, signer };
        RoomAttested { of, driver: "namespace".into(), attestation }
    }

    #[test]
    fn the_last_measurement_of_each_program_is_kept_and_no_more_programs_than_fit() {
        let mut room = RoomRow::preparing();
        for n in 0..=MAX_ATTESTED {
            room.note(one(format!("service {n}"), "a"));
        }
        assert_eq!(room.attested.len(), MAX_ATTESTED);
        room.note(one("service 3".into(), "b"));
        assert_eq!(
            (room.attested.len(), room.attested[3].attestation.digest.as_str()),
            (MAX_ATTESTED, "b")
        );
        // As an earlier version wrote it.
        let text = serde_json::to_string(&RoomRow::preparing()).unwrap();
        assert_eq!(text, "{\"phase\":\"preparing\"}");
        assert_eq!(serde_json::from_str::<RoomRow>(&text).unwrap(), RoomRow::preparing());
    }
}
