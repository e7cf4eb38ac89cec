//! Calls that no hard limit bounds: nobody waits for their reservation.
//!
//! It is decided and queued like any other, so that a halt, soft limits and the sums see it at once,
//! and so that the next start finds it where a crash comes after its commit. A call that has ended by
//! the time its group is written is written as what it came to, and its reservation never.

use std::time::Duration;

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

/// How long a call that is passed on waits for others to free what they have reserved, before its client is
/// told to try again.
const PATIENCE: Duration = Duration::from_secs(20);

impl Budgets {
    /// As [`Budgets::reserve_early`], and waits for a while where only what calls under way have reserved is
    /// in the way.
    ///
    /// # Errors
    ///
    /// [`BudgetError`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the reservation back.
    pub(crate) async fn reserve_in_turn(&self, ask: Ask) -> Result<Hold, BudgetError> {
        let until = self.0.clock.now().after(PATIENCE);
        let mut late = self.0.clock.sleep_until(until);
        loop {
            // Before it is decided: what is freed from now on is heard.
            let mut freed = self.freed();
            match self.reserve_early(ask.clone()).await {
                Err(BudgetError::Refused(refusal)) if refusal.is_temporary() => {
                    tokio::select! {
                        _ = freed.changed() => {}
                        () = &mut late => return Err(BudgetError::Refused(refusal)),
                    }
                }
                done => return done,
            }
        }
    }
}

impl Hold {
    /// Ends the call: with `None` nothing of it is billed. Its place in the queue is what counts, so
    /// nobody waits for the disk here.
    pub(crate) fn end(self, spend: Option<Spend>, record: CallRecord) {
        self.ended(spend.map_or(Outcome::Nothing, Outcome::Spent), record);
    }

    /// Ends the call: nobody knows what of it is billed, so all that was reserved counts.
    pub(crate) fn end_at_worst(self, record: CallRecord) {
        self.ended(Outcome::Worst, record);
    }

    fn ended(self, outcome: Outcome, record: CallRecord) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use overmind_core::budget::NoPrices;
    use overmind_core::ids::ColonyId;
    use overmind_core::store::{EventQuery, Page, Store, StreamId};
    use overmind_core::time::Clock;
    use overmind_store::{Options, Sqlite};
    use overmind_testkit::clock::ManualClock;
    use overmind_testkit::ids::SeededIds;
    use tempfile::TempDir;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::super::{AHEAD, Parts, Waiting};
    use super::*;

    struct Books {
        budgets: Budgets,
        waiting: Option<Waiting>,
        store: Arc<dyn Store>,
        _dir: TempDir,
    }

    impl Books {
        async fn new() -> Self {
            let dir = TempDir::new().unwrap();
            let store: Arc<dyn Store> =
                Arc::new(Sqlite::open(Options::new(dir.path().join("s.db"))).unwrap());
            let parts = Parts {
                store: Arc::clone(&store),
                clock: Arc::<ManualClock>::default() as Arc<dyn Clock>,
                ids: Arc::new(SeededIds::new(1)),
                prices: Arc::new(NoPrices),
                inbox: watch::Sender::new(0),
            };
            let (budgets, waiting) = Budgets::load(parts).await.unwrap();
            Self { budgets, waiting: Some(waiting), store, _dir: dir }
        }

        fn ask(&self) -> Ask {
            Ask {
                call: self.budgets.call_id(),
                session: None,
                agent: None,
                colony: ColonyId::DEFAULT,
                caller: "test".into(),
                provider: "p".into(),
                model: "m".into(),
                worst: Spend::new(10, 200),
                at: self.budgets.0.clock.now(),
            }
        }

        /// Writes all that is queued.
        async fn written(&mut self) {
            let stop = CancellationToken::new();
            stop.cancel();
            let waiting = self.waiting.take().expect("once");
            self.budgets.clone().write(waiting, stop).await;
        }

        async fn kinds(&self) -> Vec<String> {
            let query =
                EventQuery { stream: Some(StreamId::System), after: 0, kinds: &[], limit: 5_000 };
            let events = self.store.events(query).await.unwrap();
            events.into_iter().map(|event| event.kind.into()).collect()
        }
    }

    #[tokio::test]
    async fn a_call_that_is_over_by_then_is_written_as_what_it_came_to() {
        let mut books = Books::new().await;
        let ask = books.ask();
        let hold = books.budgets.reserve_early(ask.clone()).await.unwrap();
        assert!(matches!(hold, Hold::Early(_)), "nothing bounds it");
        hold.end(Some(Spend::new(7, 120)), CallRecord::of(&ask, Ended::Completed));
        // One that nobody ended, and one that is under way.
        drop(books.budgets.reserve_early(books.ask()).await.unwrap());
        let under_way = books.budgets.reserve_early(books.ask()).await.unwrap();
        books.written().await;
        let page = Page { limit: 10, after: None };
        let mut calls = books.store.call_list(None, page).await.unwrap();
        calls.sort_by_key(|call| call.call);
        let told: Vec<_> = calls.iter().map(|call| (call.ended, call.microusd)).collect();
        assert_eq!(told, [(Ended::Completed, Some(7)), (Ended::Unknown, Some(10))]);
        let open = books.store.budget_snapshot().await.unwrap().open;
        assert_eq!(open.len(), 1, "the next start settles it");
        assert_eq!(books.kinds().await, ["budget.settled", "budget.settled", "budget.reserved"]);
        std::mem::forget(under_way);
    }

    #[tokio::test]
    async fn so_many_calls_run_ahead_of_the_disk_and_then_they_wait_for_it() {
        let mut books = Books::new().await;
        let mut holds = Vec::new();
        for _ in 0..AHEAD {
            let hold = books.budgets.reserve_early(books.ask()).now_or_never();
            holds.push(hold.expect("nobody waits yet").unwrap());
        }
        let mut next = Box::pin(books.budgets.reserve_early(books.ask()));
        assert!((&mut next).now_or_never().is_none(), "the disk must catch up");
        let stop = CancellationToken::new();
        let waiting = books.waiting.take().unwrap();
        let writer = books.budgets.clone().write(waiting, stop.clone());
        let waited = async {
            let hold = next.await.unwrap();
            assert!(matches!(hold, Hold::Durable(_)));
            let again = books.budgets.reserve_early(books.ask()).await.unwrap();
            assert!(matches!(again, Hold::Early(_)), "it has caught up");
            holds.extend([hold, again]);
            drop(std::mem::take(&mut holds));
            stop.cancel();
        };
        tokio::join!(writer, waited);
        let snapshot = books.store.budget_snapshot().await.unwrap();
        assert_eq!(snapshot.open, [], "a stop writes what was queued");
        let ended = books.kinds().await.iter().filter(|kind| *kind == "budget.settled").count();
        assert_eq!(ended, AHEAD + 2);
    }
}
