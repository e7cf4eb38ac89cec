//! Changes of the stored budgets.

use super::CallRecord;
use super::ledger::{Reservation, Windowed};
use super::limit::Limit;
use super::period::Period;
use super::scope::Scope;
use crate::ids::{CallId, LimitId};

/// A change of the limits, windows and calls from which budgets are computed.
#[derive(Clone, Debug, PartialEq)]
pub enum BudgetChange {
    /// Inserts or replaces a limit by its id.
    LimitPut(Limit),
    LimitDelete(LimitId),
    /// Changes a window, which starts at zero. Amounts are first added, up to [`super::CAP`], and
    /// then freed, down to zero.
    WindowMove(Windowed),
    /// Removes all windows of a scope and period.
    WindowsDelete {
        scope: Scope,
        period: Period,
    },
    /// Inserts the reservation of a call. Its id must be new.
    ReservationPut(Reservation),
    ReservationDelete(CallId),
    /// Inserts a call that has ended, and adds it to each daily sum in which it counts. Its id must
    /// be new. Its day is that of `started_at`.
    CallInsert(Box<CallRecord>),
}
