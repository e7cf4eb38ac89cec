//! The port for whoever asks models beside the sessions' own turns and the gateway: memory's embeddings.
//!
//! Such a call is reserved, settled and stopped like any other.

use std::fmt;

use super::Refusal;
use crate::Fut;
use crate::ids::{ColonyId, SessionId};
use crate::model::Usage;

/// For whom a call is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behalf {
    pub colony: ColonyId,
    /// The session that it counts in, with its agent.
    pub session: Option<SessionId>,
    /// Who asks, as the log names callers.
    pub caller: String,
}

impl Default for Behalf {
    /// The server's own.
    fn default() -> Self {
        Self { colony: ColonyId::DEFAULT, session: None, caller: String::new() }
    }
}

/// A call that somebody wants to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub behalf: Behalf,
    pub provider: String,
    /// As the provider calls it.
    pub model: String,
    /// The wire format, as records name it: `embeddings`.
    pub format: &'static str,
    /// The most input that it can have, in tokens. It has no output.
    pub input_tokens: u64,
}

/// Why a call may not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMetered {
    /// A limit, an unknown price or an emergency stop is in the way.
    #[error("{}", .0.message())]
    Refused(Refusal),
    /// Nothing can be written down now, or nobody keeps books yet.
    #[error("the budget cannot be written down: {0}")]
    Unavailable(String),
}

impl NotMetered {
    /// Whether the same call may be made in a moment.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_temporary(),
            Self::Unavailable(_) => true,
        }
    }
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It was answered. Without usage the input that was reserved counts.
    Answered(Option<Usage>),
    /// The provider refused it with this status, or was not reached (0): nothing is billed.
    Unbilled(u16),
}

/// A call that may be made. Dropped without an end it counts the most that it may have cost.
pub trait Metered: Send {
    fn end(self: Box<Self>, came: Came);
}

/// Keeps the books of such calls.
pub trait Meter: Send + Sync + fmt::Debug {
    /// Reserves the most that a call may cost. Nothing may be sent before this has answered.
    ///
    /// # Errors
    ///
    /// [`NotMetered`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the reservation back.
    fn open(&self, wish: Wish) -> Fut<'_, Result<Box<dyn Metered>, NotMetered>>;
}
