//! Limits a call's input by its provider's own count, if a limit is too small for the bound that
//! holds without a count.

use std::time::Duration;

use overmind_core::budget::Ask;
use overmind_core::relay::count::{MAX_ANSWER, Question, counted};
use overmind_core::relay::{Call, Endpoint, Hop, Peek, Refusal, RefusalKind, Sent, Upstreams};

use super::{RelayError, refused, worst};
use crate::budgets::Ticket;
use crate::passes::{LAPSED, Pass};
use crate::{BudgetError, Engine};

/// The time limit for a provider's count.
const WITHIN: Duration = Duration::from_secs(10);

impl Engine {
    /// Reserves the maximum cost of a call. If a limit is too small for that, the provider is asked
    /// once for the number of input tokens, which limits `ask` and `call` from then on.
    ///
    /// # Errors
    ///
    /// [`RelayError`]; nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future undoes the reservation, and closes the connection for the count.
    pub(super) async fn hold(
        &self,
        upstreams: &dyn Upstreams,
        pass: &Pass,
        call: &mut Call,
        hops: &[Hop],
        ask: &mut Ask,
    ) -> Result<Ticket, RelayError> {
        // Only this API has a count, and each model of a chain would have its own.
        let [hop] = hops else { return self.in_turn(ask).await };
        if (call.endpoint, hop.endpoint) != (Endpoint::Messages, Endpoint::Messages) {
            return self.in_turn(ask).await;
        }
        let refusal = match self.budgets().try_in_turn(ask.clone()).await {
            Err(BudgetError::Refused(refusal)) if refusal.is_too_small() => refusal,
            done => return done.map_err(refused),
        };
        let mut least = call.peek.clone();
        least.prompt_bound = 0;
        let mut told = None;
        // If the output alone exceeds the limit, a count does not help.
        if refusal.has_room_for(worst(upstreams, call.endpoint, &least, hop)) {
            told = Box::pin(self.count(upstreams, pass, call, hop)).await?;
        }
        if let Some((_, bound)) = told {
            call.peek.prompt_bound = bound;
            ask.worst = worst(upstreams, call.endpoint, &call.peek, hop);
        }
        self.in_turn(ask).await.map_err(|err| match (err, told) {
            (RelayError::Budget(refusal), Some((tokens, _))) => {
                RelayError::Budget(refusal.counting(tokens))
            }
            (err, _) => err,
        })
    }

    async fn in_turn(&self, ask: &Ask) -> Result<Ticket, RelayError> {
        self.budgets().reserve_in_turn(ask.clone()).await.map_err(refused)
    }

    /// The provider's count, and the resulting bound. `None` if the provider gives no count, or the
    /// bound is not below the one that holds without it.
    async fn count(
        &self,
        upstreams: &dyn Upstreams,
        pass: &Pass,
        call: &Call,
        hop: &Hop,
    ) -> Result<Option<(u64, u64)>, Refusal> {
        let Some(question) = Question::of(&call.body) else { return Ok(None) };
        let Ok(peek) = Peek::of(Endpoint::CountTokens, &question.body) else { return Ok(None) };
        let asked = Call {
            endpoint: Endpoint::CountTokens,
            query: call.query.clone(),
            headers: call.headers.clone(),
            body: question.body.clone(),
            peek,
            at: call.at,
            // A count costs nothing, whatever its result.
            sent: Sent::default(),
        };
        let hops = [Hop { endpoint: Endpoint::CountTokens, ..hop.clone() }];
        let clock = &self.cortex.clock;
        let late = clock.sleep_until(clock.now().after(WITHIN));
        let tokens = tokio::select! {
            biased;
            () = pass.ended() => {
                return Err(Refusal::new(RefusalKind::Unauthenticated, LAPSED));
            }
            () = late => None,
            tokens = told(upstreams, &asked, &hops) => tokens,
        };
        let bytes = call.peek.prompt_bound;
        let bound = tokens.map(|tokens| (tokens, question.bound(tokens, bytes)));
        Ok(bound.filter(|(_, bound)| *bound < bytes))
    }
}

/// The number in a provider's answer; `None` if there is none.
async fn told(upstreams: &dyn Upstreams, call: &Call, hops: &[Hop]) -> Option<u64> {
    let mut answer = match upstreams.open(call, hops).await {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            tracing::debug!(status = answer.status, "a provider does not count tokens");
            return None;
        }
        Err(refusal) => {
            tracing::debug!(why = %refusal, "a provider does not count tokens");
            return None;
        }
    };
    let mut all = Vec::new();
    while let Some(bytes) = answer.body.next().await.ok()? {
        if all.len() + bytes.len() > MAX_ANSWER {
            return None;
        }
        all.extend_from_slice(&bytes);
    }
    counted(&all)
}
