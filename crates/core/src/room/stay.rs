//! The state of a session's environment, for its machine, its log and its row.

use serde::{Deserialize, Serialize};

use super::history::{RoomChanges, RoomSnapshot};
use super::{
    RoomClosed, RoomDone, RoomEnd, RoomError, RoomMade, RoomOrder, RoomOutcome, RoomProgress,
};
use crate::attest::{AttestationRef, Attested};
use crate::time::Timestamp;

/// An action of a Hive on a session's environment. Both are idempotent, and are requested again
/// after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomAct {
    Prepare(Box<RoomOrder>),
    /// Removes the environment. Started only when no process of the session runs.
    Close {
        end: RoomEnd,
    },
}

/// The result of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomReport {
    Prepared(Result<Box<RoomMade>, RoomError>),
    Closed(Result<Box<RoomClosed>, RoomError>),
}

/// An input of a session about its environment.
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
    /// The environment could not be removed completely.
    Left {
        effect: u64,
        error: RoomError,
    },
}

impl RoomInput {
    /// Converts a report about the effect with this number to an input.
    pub fn of(effect: u64, report: RoomReport) -> Self {
        match report {
            RoomReport::Prepared(Ok(made)) => Self::Ready { effect, made },
            RoomReport::Prepared(Err(error)) => Self::Failed { effect, error },
            RoomReport::Closed(Ok(closed)) => Self::Closed { effect, closed },
            RoomReport::Closed(Err(error)) => Self::Left { effect, error },
        }
    }
}

/// A report of a Hive while it works on an environment. Lines of output are written to the
/// session's own log instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomWord {
    Step(String),
    Warning(String),
    /// Its files were saved.
    Saved(RoomSnapshot),
}

impl RoomWord {
    /// Converts a report of progress; `None` for a line of output.
    pub fn of(progress: &RoomProgress) -> Option<Self> {
        match progress {
            RoomProgress::Step(step) => Some(Self::Step(step.clone())),
            RoomProgress::Warning(warning) => Some(Self::Warning(warning.clone())),
            RoomProgress::Line { .. } => None,
        }
    }
}

/// The state of a session's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomPhase {
    Preparing,
    Ready,
    Closing,
    /// It was removed.
    Closed,
    /// It was removed except for its worktree, which somebody wanted to keep.
    Kept,
    /// It could not be created, and the created parts were removed.
    Failed,
    /// It could not be removed completely; parts may remain.
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

    /// Returns whether a Hive has, or may have, any part of it.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Preparing | Self::Ready | Self::Closing => true,
            Self::Closed | Self::Kept | Self::Failed | Self::Left => false,
        }
    }
}

/// Returns whether a note in a run's log describes how its environment is created. Also recognizes
/// the notes of older servers, which called it a room.
pub fn tells_of_making(note: &str) -> bool {
    ["--- the environment: ", "--- the room: "].iter().any(|start| note.starts_with(start))
}

/// A session's environment as a list shows it. It never contains variables, because some are
/// passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomRow {
    pub phase: RoomPhase,
    /// The created environment, set once it was ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<RoomMade>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<RoomClosed>,
    /// Why it could not be created or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RoomError>,
    /// The last decision about its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<RoomDecision>,
    /// The measured isolation of the sandboxes of its programs, from when each last started, in the
    /// order of their first start; the first [`MAX_ATTESTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attested: Vec<RoomAttested>,
    /// The size of its changes compared with its base. They are counted when its files are saved
    /// and when it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// The person or setting that ended the session while it was idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ended_by: Option<String>,
}

/// Maximum number of programs of an environment that its row lists. The log has all of them.
pub const MAX_ATTESTED: usize = 100;
/// Longest name of a program of an environment, in bytes.
pub const MAX_OF: usize = 200;

/// A program of an environment, with the isolation that was measured in its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomAttested {
    /// The program: `service db`, `ready check of db`, `template of db`, `setup: npm ci`,
    /// `teardown: bin/save`.
    pub of: String,
    /// [`Attestation::driver`](crate::attest::Attestation::driver).
    pub driver: String,
    pub attestation: AttestationRef,
}

impl RoomAttested {
    /// Creates the entry. `of` is cut to [`MAX_OF`].
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

    /// Returns the row while the environment is created again, from the row of the previous one.
    pub fn again(before: Option<Self>) -> Self {
        let (made, changes) = before.map(|room| (room.made, room.changes)).unwrap_or_default();
        Self { made, changes, ..Self::preparing() }
    }

    /// Returns whether its worktree is kept because nobody has decided about the work yet.
    pub fn is_undecided(&self) -> bool {
        self.done.is_none() && self.closed.as_ref().is_some_and(|closed| closed.undecided)
    }

    /// Records the measured isolation of a program, in place of an earlier one.
    pub fn note(&mut self, one: RoomAttested) {
        match self.attested.iter().position(|known| known.of == one.of) {
            Some(at) => self.attested[at] = one,
            None if self.attested.len() < MAX_ATTESTED => self.attested.push(one),
            None => {}
        }
    }
}

/// A decision about a session's work, and its result.
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
    fn the_last_measurement_of_each_program_is_kept_up_to_a_limit() {
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
        // The form of an earlier version.
        let text = serde_json::to_string(&RoomRow::preparing()).unwrap();
        assert_eq!(text, "{\"phase\":\"preparing\"}");
        assert_eq!(serde_json::from_str::<RoomRow>(&text).unwrap(), RoomRow::preparing());
    }
}
