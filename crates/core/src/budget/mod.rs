//! Budgets that cannot be exceeded: the highest cost of a call is reserved before it starts, and
//! its real cost is settled when it ends.
//!
//! Pure: time is an argument, and nothing is read or written here. [`Ledger`] decides. The engine
//! owns one, makes each decision durable before acting on it, and reverts it if that fails. Start
//! at [`Ledger::reserve`].
//!
//! * A [`Limit`] limits one [`Scope`] in one [`Period`], in millionths of a dollar, in tokens, or
//!   in both. Hard limits refuse; soft limits warn once in each window.
//! * Each limit has one window at a time, with the amounts spent and reserved. A decision reads
//!   only the windows that apply.
//! * A reservation is settled in the windows in which it was made, whatever the clock shows then.
//! * A call without a known price is refused if a limit in dollars applies, unless that limit
//!   allows it.

pub mod estimate;
mod ledger;
mod limit;
mod meter;
pub mod period;
pub mod price;
mod refusal;
mod scope;
mod store;

use serde::{Deserialize, Serialize};

pub use self::ledger::{
    Amount, Baseline, CAP, Halt, IMPOSSIBLE, KEPT_WINDOWS, Ledger, Moved, Reached, Reservation,
    Settled, Snapshot, Window, WindowKey, Windowed,
};
pub use self::limit::{Extra, Limit, LimitProblem, Source, UnknownPrice};
pub use self::meter::{Behalf, Came, Meter, Metered, NotMetered, Wish};
pub use self::period::Period;
pub use self::price::{NoPrices, Price, PriceRow, Prices, Quote, unknown_model};
pub use self::refusal::{Refusal, ScopeName, Shape, Unit, Wire};
pub use self::scope::{KeyName, Scope, ScopeError};
pub use self::store::BudgetChange;

use crate::ids::{AgentId, CallId, ColonyId, SessionId};
use crate::model::Usage;
use crate::relay::Ending;
use crate::time::Timestamp;
use crate::trace::Traceparent;

/// The real or highest cost of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spend {
    /// Millionths of a US dollar; `None` if the price is not known.
    pub microusd: Option<u64>,
    /// Sum of input and output tokens.
    pub tokens: u64,
}

impl Spend {
    /// No cost, at a known price.
    pub const NONE: Self = Self { microusd: Some(0), tokens: 0 };

    pub const fn new(microusd: u64, tokens: u64) -> Self {
        Self { microusd: Some(microusd), tokens }
    }

    /// Returns the sum of both; without a price if one of them has none.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let microusd = self.microusd.zip(other.microusd).map(|(a, b)| a.saturating_add(b));
        Self { microusd, tokens: self.tokens.saturating_add(other.tokens) }
    }
}

/// A call to reserve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub call: CallId,
    pub session: Option<SessionId>,
    pub agent: Option<AgentId>,
    pub colony: ColonyId,
    /// The caller, as the log names callers.
    pub caller: String,
    pub provider: String,
    pub model: String,
    /// The highest cost of the call.
    pub worst: Spend,
    pub at: Timestamp,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Completed,
    /// The caller did not want the remaining part.
    Cancelled,
    /// The answer was cut off.
    Cut,
    Failed,
    /// The end is not known: the process ended, or the caller forgot the call. Its highest cost
    /// counts.
    Unknown,
}

impl Ended {
    pub const ALL: [Self; 5] =
        [Self::Completed, Self::Cancelled, Self::Cut, Self::Failed, Self::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.as_str() == text)
    }
}

/// The text of a request or answer, if it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// BLAKE3 of the whole text, in hexadecimal.
    pub digest: String,
    /// The stored part of the text.
    pub text: String,
}

/// One model call that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    pub call: CallId,
    pub session: Option<SessionId>,
    pub agent: Option<AgentId>,
    pub colony: ColonyId,
    pub caller: String,
    pub provider: String,
    /// The model that answered, or the requested one if there was no answer.
    pub model: String,
    /// The wire format: `responses`, `chat`, `messages`, …
    pub format: String,
    pub usage: Usage,
    /// Millionths of a US dollar; `None` if the price is not known.
    pub microusd: Option<u64>,
    /// Whether `microusd` is an upper bound, because the real cost is not known. Always false for
    /// calls that are free or have no known price.
    pub at_most: bool,
    pub started_at: Timestamp,
    pub first_byte_ms: Option<u64>,
    pub total_ms: u64,
    /// The HTTP status; 0 if there was none.
    pub status: u16,
    pub ended: Ended,
    pub request: Option<Content>,
    pub response: Option<Content>,
    /// Stored in the event of the call's end, and not in its row.
    pub asked: Asked,
    /// Stored in the event of the call's end, and not in its row.
    pub ending: Ending,
}

/// The facts that the caller reported about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The model name that the caller used. Costs are listed under this name.
    pub model: Option<String>,
    /// The program's own id of its session: `x-claude-code-session-id`, `session_id`.
    pub client_session: Option<String>,
    /// The trace span of the request.
    pub trace: Option<Traceparent>,
}

impl CallRecord {
    /// Creates a record of `ask`, without facts about its result.
    pub fn of(ask: &Ask, ended: Ended) -> Self {
        Self {
            call: ask.call,
            session: ask.session,
            agent: ask.agent,
            colony: ask.colony,
            caller: ask.caller.clone(),
            provider: ask.provider.clone(),
            model: ask.model.clone(),
            format: String::new(),
            usage: Usage::default(),
            microusd: None,
            at_most: false,
            started_at: ask.at,
            first_byte_ms: None,
            total_ms: 0,
            status: 0,
            ended,
            request: None,
            response: None,
            asked: Asked::default(),
            ending: Ending::default(),
        }
    }
}

/// How costs are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostBy {
    Agent,
    Model,
    Session,
    /// By caller, for calls without a session: its name.
    Key,
    Day,
}

impl CostBy {
    pub const ALL: [Self; 5] = [Self::Agent, Self::Model, Self::Session, Self::Key, Self::Day];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Model => "model",
            Self::Session => "session",
            Self::Key => "key",
            Self::Day => "day",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.as_str() == text)
    }
}

/// A query of costs. It covers whole days in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostQuery {
    pub by: CostBy,
    /// The first day, as days since 1970-01-01.
    pub since: i32,
    /// The last day.
    pub until: i32,
    /// Maximum number of rows, 1..=1000. Rows are sorted by cost, highest first; days are sorted
    /// newest first.
    pub limit: u32,
}

/// The cost of one agent, model, session, key or day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostRow {
    /// The group: an id, a name or a date; empty for calls without one.
    pub key: String,
    pub calls: u64,
    /// Cost in millionths of a US dollar, for the calls whose price is known.
    pub microusd: u64,
    /// Number of calls whose price is not known.
    pub unpriced: u64,
    /// Number of calls whose real cost is not known. Their highest possible cost counts.
    pub at_most: u64,
    pub usage: Usage,
}
