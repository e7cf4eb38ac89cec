//! The port for model calls that neither sessions nor the gateway make: the memory's embeddings.
//!
//! Such a call is reserved, settled and stopped like any other.

use std::fmt;

use super::Refusal;
use crate::Fut;
use crate::ids::{ColonyId, SessionId};
use crate::model::Usage;

/// The caller for whom a call is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behalf {
    pub colony: ColonyId,
    /// The session in which it counts, with its agent.
    pub session: Option<SessionId>,
    /// The caller, as the log names callers.
    pub caller: String,
}

impl Default for Behalf {
    /// The server itself.
    fn default() -> Self {
        Self { colony: ColonyId::DEFAULT, session: None, caller: String::new() }
    }
}

/// A call to reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub behalf: Behalf,
    pub provider: String,
    /// The model, as the provider names it.
    pub model: String,
    /// The wire format, as records name it: `embeddings`.
    pub format: &'static str,
    /// Maximum number of input tokens of the call. It has no output.
    pub input_tokens: u64,
}

/// Why a call may not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMetered {
    /// A limit, an unknown price or an emergency stop prevents it.
    #[error("{}", .0.message())]
    Refused(Refusal),
    /// The reservation cannot be recorded now, or there is no ledger yet.
    #[error("the budget cannot be saved: {0}")]
    Unavailable(String),
}

impl NotMetered {
    /// Returns whether the same call may be possible in a moment.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_temporary(),
            Self::Unavailable(_) => true,
        }
    }
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It was answered. Without usage, the reserved input counts.
    Answered(Option<Usage>),
    /// The provider refused it with this status, or was not reached (0): nothing is billed.
    Unbilled(u16),
}

/// A reserved call. If it is dropped without a result, its highest possible cost counts.
pub trait Metered: Send {
    fn end(self: Box<Self>, came: Came);
}

/// Reserves and settles such calls.
pub trait Meter: Send + Sync + fmt::Debug {
    /// Reserves the highest cost of a call. Send nothing before this has returned.
    ///
    /// # Errors
    ///
    /// [`NotMetered`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future reverts the reservation.
    fn open(&self, wish: Wish) -> Fut<'_, Result<Box<dyn Metered>, NotMetered>>;
}
