//! Calls that no hard limit bounds: nobody waits for their reservation.
//!
//! It is decided and queued like any other, so that a halt, soft limits and the sums see it at once,
//! and so that the next start finds it where a crash comes after its commit. A call that has ended by
//! the time its group is written is written as what it came to, and its reservation never.

use overmind_core::budget::{Ask, CallRecord, Ended, Spend};

use super::{BudgetError, Budgets, Decided, Outcome, Ticket};

/// A reservation for a call that may begin.
#[derive(Debug)]
pub(crate) enum Hold {
    /// It is on disk.
    Durable(Ticket),
    /// It is on its way there.
    Early(Early),
}

/// The call of such a reservation. Dropped, it counts at its worst like any ticket.
#[derive(Debug)]
pub(crate) struct Early {
    /// `None` once it has ended.
    ask: Option<Ask>,
    budgets: Budgets,
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(ask) = self.ask.take() {
            let record = CallRecord::of(&ask, Ended::Unknown);
            let _ = self.budgets.end(ask.call, Outcome::Worst, record, super::UNWATCHED);
        }
    }
}

impl Budgets {
    /// Reserves the most that a call may cost, as [`Budgets::reserve`] does. Waits for the disk only
    /// where a hard limit applies, or where so many calls are ahead of the disk that it must catch up.
    ///
    /// # Errors
    ///
    /// [`BudgetError`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the reservation back.
    pub(crate) async fn reserve_early(&self, ask: Ask) -> Result<Hold, BudgetError> {
        match self.decided(&ask, false).await? {
            Decided::Now(ticket) => Ok(Hold::Durable(ticket)),
            Decided::Later(answer) => Ok(Hold::Durable(super::ticket_of(answer).await?)),
            Decided::Early => Ok(Hold::Early(Early { ask: Some(ask), budgets: self.clone() })),
        }
    }
}

impl Hold {
    /// Ends the call: with `None` nothing of it is billed. Its place in the queue is what counts, so
    /// nobody waits for the disk here.
    pub(crate) fn end(self, spend: Option<Spend>, record: CallRecord) {
        let outcome = spend.map_or(Outcome::Nothing, Outcome::Spent);
        let (budgets, call) = match self {
            Self::Durable(mut ticket) => {
                ticket.stage = super::Stage::Done;
                (ticket.budgets.clone(), ticket.call())
            }
            Self::Early(mut early) => {
                let Some(ask) = early.ask.take() else { return };
                (early.budgets.clone(), ask.call)
            }
        };
        let _ = budgets.end(call, outcome, record, super::UNWATCHED);
    }
}
