//! Budgets that cannot leak: what a call may cost is reserved before it begins, and what it did
//! cost is settled when it ends.
//!
//! Pure: time is an argument, nothing is read or written here. [`Ledger`] decides; the engine
//! owns one, makes each decision durable before anybody acts on it, and takes it back where that
//! fails. Start at [`Ledger::reserve`].
//!
//! * A [`Limit`] bounds one [`Scope`] in one [`Period`], in millionths of a dollar, in tokens, or
//!   in both. Hard limits refuse; soft ones warn once in each window.
//! * Each limit has one window at a time: what was spent in it, and what is reserved. A decision
//!   looks at the windows that apply and at nothing else.
//! * A reservation is settled in the windows in which it was made, whatever the clock says then.
//! * What has no known price is refused where a limit in dollars applies, unless that limit says
//!   otherwise.

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

/// What something costs, or may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spend {
    /// Millionths of a US dollar; `None` when the price is not known.
    pub microusd: Option<u64>,
    /// Input and output together.
    pub tokens: u64,
}

impl Spend {
    /// Nothing, at a known price.
    pub const NONE: Self = Self { microusd: Some(0), tokens: 0 };

    pub const fn new(microusd: u64, tokens: u64) -> Self {
        Self { microusd: Some(microusd), tokens }
    }

    /// Both together; without a price when one of them has none.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let microusd = self.microusd.zip(other.microusd).map(|(a, b)| a.saturating_add(b));
        Self { microusd, tokens: self.tokens.saturating_add(other.tokens) }
    }
}

/// A call that somebody wants to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub call: CallId,
    pub session: Option<SessionId>,
    pub agent: Option<AgentId>,
    pub colony: ColonyId,
    /// Who asks, as the log names callers.
    pub caller: String,
    pub provider: String,
    pub model: String,
    /// The most that it may cost.
    pub worst: Spend,
    pub at: Timestamp,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Completed,
    /// Whoever asked did not want the rest.
    Cancelled,
    /// The answer broke off.
    Cut,
    Failed,
    /// Nobody said how: its process ended, or whoever asked forgot it. It counts at its worst.
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

/// What was said in a call, if that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// BLAKE3 of the whole text, in hexadecimal.
    pub digest: String,
    /// The text, or as much of it as is kept.
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
    /// As answered; as asked where there was no answer.
    pub model: String,
    /// The wire format: `responses`, `chat`, `messages`, …
    pub format: String,
    pub usage: Usage,
    /// Millionths of a US dollar; `None` when the price is not known.
    pub microusd: Option<u64>,
    /// Its real cost is not known: `microusd` is the most that it can have been. Never of what is free
    /// or has no known price.
    pub at_most: bool,
    pub started_at: Timestamp,
    pub first_byte_ms: Option<u64>,
    pub total_ms: u64,
    /// The HTTP status; 0 where there was none.
    pub status: u16,
    pub ended: Ended,
    pub request: Option<Content>,
    pub response: Option<Content>,
    /// Stands in the event of the call's end and not in its row.
    pub asked: Asked,
    /// Stands there too, and not in its row.
    pub ending: Ending,
}

/// What whoever asked said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The model by the name that they gave, which is the one that costs are listed under.
    pub model: Option<String>,
    /// What a program calls its own session: `x-claude-code-session-id`, `session_id`.
    pub client_session: Option<String>,
    /// The span that it asked in.
    pub trace: Option<Traceparent>,
}

impl CallRecord {
    /// A record of `ask` that says nothing yet of how it went.
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

/// By what costs are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostBy {
    Agent,
    Model,
    Session,
    /// Who calls without a session, by name.
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

/// Which costs are asked for. Whole days of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostQuery {
    pub by: CostBy,
    /// The first day that counts, as days since 1970-01-01.
    pub since: i32,
    /// The last day that counts.
    pub until: i32,
    /// Most rows, the dearest first (days: the newest first); 1..=1000.
    pub limit: u32,
}

/// What one agent, model, session, key or day came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostRow {
    /// An id, a name or a date; empty for calls without one.
    pub key: String,
    pub calls: u64,
    /// Millionths of a US dollar, of calls whose price is known.
    pub microusd: u64,
    /// Calls whose price is not known.
    pub unpriced: u64,
    /// Calls of which the most that they can have cost is counted: their real cost is not known.
    pub at_most: u64,
    pub usage: Usage,
}
