//! What a ledger asks of a store.

use super::CallRecord;
use super::ledger::{Reservation, Windowed};
use super::limit::Limit;
use super::period::Period;
use super::scope::Scope;
use crate::ids::{CallId, LimitId};

/// A change of what budgets are made of.
#[derive(Clone, Debug, PartialEq)]
pub enum BudgetChange {
    /// Inserts or replaces a limit by its id.
    LimitPut(Limit),
    LimitDelete(LimitId),
    /// Moves a window, which begins at nothing. Sums stop at [`super::CAP`], and nothing gets
    /// below nothing: what is added comes first, then what is freed.
    WindowMove(Windowed),
    /// Forgets all windows of a scope and period.
    WindowsDelete {
        scope: Scope,
        period: Period,
    },
    /// A call that may be under way. Its id must be new.
    ReservationPut(Reservation),
    ReservationDelete(CallId),
    /// A call that has ended, and its share of each daily sum that it counts in. Its id must be
    /// new. Its day is that of `started_at`.
    CallInsert(Box<CallRecord>),
}
