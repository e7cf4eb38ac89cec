//! Meters model calls that neither a session's turn nor the gateway makes: memory's embeddings.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use overmind_core::Fut;
use overmind_core::budget::{
    Ask, CallRecord, Came, Ended, Meter, Metered, NotMetered, Prices, Spend, Wish,
};
use overmind_core::model::Usage;

use super::{BudgetError, Budgets, Ticket};
use crate::MeshDoor;

/// A call in progress.
struct Open {
    hold: Ticket,
    ask: Ask,
    prices: Arc<dyn Prices>,
    format: &'static str,
    began: Instant,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl Metered for Open {
    fn end(self: Box<Self>, came: Came) {
        let Self { hold, ask, prices, format, began } = *self;
        let mut record = CallRecord::of(&ask, Ended::Completed);
        format.clone_into(&mut record.format);
        record.total_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let spend = match came {
            Came::Unbilled(status) => {
                (record.ended, record.status) = (Ended::Failed, status);
                None
            }
            Came::Answered(told) => {
                record.status = 200;
                let reserved = Usage { input_tokens: ask.worst.tokens, ..Usage::default() };
                record.at_most = told.is_none();
                record.usage = told.unwrap_or(reserved);
                let price = prices.price(&ask.provider, &ask.model);
                Some(Spend {
                    microusd: price.map(|price| price.cost(&record.usage)),
                    tokens: record.usage.input_tokens,
                })
            }
        };
        hold.end(spend, record);
    }
}

impl Budgets {
    async fn meter(&self, wish: Wish) -> Result<Box<dyn Metered>, NotMetered> {
        let Wish { behalf, provider, model, format, input_tokens } = wish;
        let unavailable = |err: &dyn fmt::Display| NotMetered::Unavailable(err.to_string());
        let row = match behalf.session {
            Some(session) => self.0.store.session_fetch(session).await,
            None => Ok(None),
        };
        let row = row.map_err(|err| unavailable(&err))?;
        let price = self.0.prices.price(&provider, &model);
        let ask = Ask {
            call: self.call_id(),
            session: row.as_ref().map(|row| row.id),
            agent: row.as_ref().map(|row| row.agent),
            colony: behalf.colony,
            caller: behalf.caller,
            provider,
            model,
            worst: Spend {
                microusd: price.map(|price| price.worst(input_tokens, 0)),
                tokens: input_tokens,
            },
            at: self.0.clock.now(),
        };
        let hold = self.reserve_in_turn(ask.clone()).await.map_err(|err| match err {
            BudgetError::Refused(refusal) => NotMetered::Refused(*refusal),
            BudgetError::Store(why) => unavailable(&why),
            err @ BudgetError::Twice(_) => unavailable(&err),
        })?;
        let prices = Arc::clone(&self.0.prices);
        Ok(Box::new(Open { hold, ask, prices, format, began: Instant::now() }))
    }
}

/// Memory exists before the engine, so early calls wait.
impl Meter for MeshDoor {
    fn open(&self, wish: Wish) -> Fut<'_, Result<Box<dyn Metered>, NotMetered>> {
        Box::pin(async move {
            let engine = self.engine().await;
            let engine = engine.map_err(|err| NotMetered::Unavailable(err.to_string()))?;
            engine.budgets().meter(wish).await
        })
    }
}
