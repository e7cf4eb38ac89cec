//! Relayed calls: they wait some time for reservations of other calls to end, and nobody waits
//! until their own end is on disk.

use std::time::Duration;

use overmind_core::budget::{Ask, CallRecord, Refusal, Spend};

use super::{BudgetError, Budgets, Outcome, Stage, Ticket, UNWATCHED};

/// How long a relayed call waits for reservations of others to end before its client is asked to
/// try again.
const PATIENCE: Duration = Duration::from_secs(20);

impl Budgets {
    /// Works as [`Budgets::reserve`], but waits some time if only current reservations of other
    /// calls prevent it.
    ///
    /// # Errors
    ///
    /// [`BudgetError`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future undoes the reservation.
    pub(crate) async fn reserve_in_turn(&self, ask: Ask) -> Result<Ticket, BudgetError> {
        self.in_turn(ask, |_| true).await
    }

    /// Works as [`Budgets::reserve_in_turn`], for a caller that may ask again for less: a limit
    /// that is too small is not recorded.
    pub(crate) async fn try_in_turn(&self, ask: Ask) -> Result<Ticket, BudgetError> {
        self.in_turn(ask, |refusal| !refusal.is_too_small()).await
    }

    async fn in_turn(&self, ask: Ask, notes: fn(&Refusal) -> bool) -> Result<Ticket, BudgetError> {
        let until = self.0.clock.now().after(PATIENCE);
        let mut late = self.0.clock.sleep_until(until);
        loop {
            // It is taken before the decision, so that no later release is missed.
            let mut freed = self.freed();
            match self.reserve_noting(ask.clone(), notes).await {
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

impl Ticket {
    /// Ends the call; with `None` nothing of it is billed. It only needs its place in the queue, so
    /// nobody waits for the disk.
    pub(crate) fn end(self, spend: Option<Spend>, record: CallRecord) {
        self.ended(spend.map_or(Outcome::Nothing, Outcome::Spent), record);
    }

    /// Ends the call with its maximum cost, because the billed amount is unknown.
    pub(crate) fn end_at_worst(self, record: CallRecord) {
        self.ended(Outcome::Worst, record);
    }

    fn ended(mut self, outcome: Outcome, record: CallRecord) {
        self.stage = Stage::Done;
        let _ = self.budgets.end(self.ask.call, outcome, record, UNWATCHED);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use overmind_core::budget::{Ended, NoPrices};
    use overmind_core::ids::ColonyId;
    use overmind_core::store::{Page, Store};
    use overmind_core::time::Clock;
    use overmind_store::{Options, Sqlite};
    use overmind_testkit::clock::ManualClock;
    use overmind_testkit::ids::SeededIds;
    use tempfile::TempDir;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::super::Parts;
    use super::*;

    #[tokio::test]
    async fn an_unlimited_call_starts_only_after_its_reservation_is_on_disk() {
        let dir = TempDir::new().unwrap();
        let sqlite = Arc::new(Sqlite::open(Options::new(dir.path().join("s.db"))).unwrap());
        let store: Arc<dyn Store> = Arc::clone(&sqlite) as Arc<dyn Store>;
        let parts = Parts {
            store: Arc::clone(&store),
            clock: Arc::<ManualClock>::default() as Arc<dyn Clock>,
            ids: Arc::new(SeededIds::new(1)),
            prices: Arc::new(NoPrices),
            records: sqlite,
            inbox: watch::Sender::new(0),
        };
        let (budgets, waiting) = Budgets::load(parts).await.unwrap();
        let ask = || Ask {
            call: budgets.call_id(),
            session: None,
            agent: None,
            colony: ColonyId::DEFAULT,
            caller: "test".into(),
            provider: "p".into(),
            model: "m".into(),
            worst: Spend::new(10, 200),
            at: budgets.0.clock.now(),
        };
        let open = async || store.budget_snapshot().await.unwrap().open.len();
        let mut first = Box::pin(budgets.reserve_in_turn(ask()));
        assert!((&mut first).now_or_never().is_none(), "nothing is on disk yet");
        let stop = CancellationToken::new();
        let writer = budgets.clone().write(waiting, stop.clone());
        let calls = async {
            let ended = first.await.unwrap();
            assert_eq!(open().await, 1);
            let forgotten = budgets.reserve_in_turn(ask()).await.unwrap();
            let under_way = budgets.reserve_in_turn(ask()).await.unwrap();
            assert_eq!(open().await, 3);
            let record = CallRecord::of(ended.ask(), Ended::Completed);
            ended.end(Some(Spend::new(7, 120)), record);
            drop(forgotten);
            stop.cancel();
            under_way
        };
        let ((), under_way) = tokio::join!(writer, calls);
        let calls = store.call_list(None, Page { limit: 10, after: None }).await.unwrap();
        let mut told: Vec<_> = calls.iter().map(|call| (call.microusd, call.ended)).collect();
        told.sort_by_key(|(microusd, _)| *microusd);
        assert_eq!(told, [(Some(7), Ended::Completed), (Some(10), Ended::Unknown)]);
        assert_eq!(open().await, 1, "the next start settles what is under way");
        std::mem::forget(under_way);
    }
}
