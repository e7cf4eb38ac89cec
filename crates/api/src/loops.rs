//! The server's loops: tasks that it repeats by time or after a change.

use overmind_core::loops::{LastPass, LoopStatus};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The state of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// The loop waits for its time or for a change.
    Waiting,
    /// A pass is running.
    Running,
    /// The last pass failed; the next one comes after a backoff.
    Failing,
    /// The loop runs only on request, also after a restart.
    Paused,
}

impl LoopState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Paused => "paused",
        }
    }
}

/// A loop and its last pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Loop {
    #[cfg_attr(feature = "openapi", schema(example = "retention"))]
    pub name: String,
    pub state: LoopState,
    /// Milliseconds from the end of a pass to the start of the next, without jitter. A change may
    /// start a pass earlier.
    pub every_ms: u64,
    /// Number of passes that have ended since the server started.
    pub passes: u64,
    /// Number of consecutive passes that failed.
    pub errors: u32,
    /// The last pass since the server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LoopPass>,
    /// Time of the next scheduled pass; omitted while the loop is paused or running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next_at: Option<Timestamp>,
}

/// A pass that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoopPass {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub began_at: Timestamp,
    pub took_ms: u64,
    pub ok: bool,
    /// The result of the pass or its error, at most 300 bytes. Empty if there was nothing to do.
    #[cfg_attr(feature = "openapi", schema(max_length = 300))]
    pub said: String,
}

fn millis(of: std::time::Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

impl From<LoopStatus> for Loop {
    fn from(status: LoopStatus) -> Self {
        let LoopStatus { name, pace, paused, running, passes, errors, last, next } = status;
        let state = match (running, paused, errors) {
            (true, _, _) => LoopState::Running,
            (false, true, _) => LoopState::Paused,
            (false, false, 0) => LoopState::Waiting,
            (false, false, _) => LoopState::Failing,
        };
        let last = last.map(|LastPass { began, took, result }| LoopPass {
            began_at: began,
            took_ms: millis(took),
            ok: result.is_ok(),
            said: result.unwrap_or_else(|err| err),
        });
        let every_ms = millis(pace.every);
        Self { name: name.to_owned(), state, every_ms, passes, errors, last, next_at: next }
    }
}
