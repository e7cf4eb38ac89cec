//! Calls of the engine's own loop: reserved before the Hive gets them, settled when it reports.
//!
//! A refusal becomes a failed model reply, which the session records and waits after: a replay
//! finds it in the log like any other reply.

use overmind_core::budget::{Ask, CallRecord, Ended, Price, Refusal, Spend, estimate};
use overmind_core::ids::EffectId;
use overmind_core::model::{ModelDelta, ModelFailure, ModelReply, ModelRequest, Usage};
use overmind_core::row::SessionRow;
use tokio::sync::watch;

use super::{BudgetError, Budgets, Outcome, Stage, Ticket, UNWATCHED};

/// The caller's name of the engine itself. Such calls are already in their session's log.
pub(super) const ENGINE: &str = "engine";

/// Failures that a provider does not bill if nothing was streamed: it refused, was not reached, or
/// was never called.
const UNBILLED: [&str; 9] = [
    "model_unconfigured",
    "model_unknown",
    "auth",
    "rate_limited",
    "overloaded",
    "network_error",
    "bad_request",
    "context_length",
    "cassette",
];

/// A model call in progress. If it is dropped, the streamed part is charged.
#[derive(Debug)]
pub(crate) struct Held {
    effect: EffectId,
    ticket: Ticket,
    /// The model as the agent names it.
    model: String,
    price: Option<Price>,
    /// The most input tokens that the request can have.
    input: u64,
    /// The most output tokens that one attempt can have.
    output: u64,
    /// Bytes streamed in this attempt, and in earlier ones.
    streamed: u64,
    lost: u64,
    /// The number of attempts that broke off after the provider had the request.
    broken: u64,
}

impl Budgets {
    /// Reserves for a session's request. If a hard limit applies, a request without a limit of its
    /// output gets one.
    ///
    /// # Errors
    ///
    /// [`Unheld`] tells why nothing is reserved.
    pub(crate) async fn hold(
        &self,
        row: &SessionRow,
        effect: EffectId,
        request: &mut ModelRequest,
    ) -> Result<Held, Unheld> {
        let quote = self.0.prices.quote(&request.model);
        let input = estimate::of_request(request);
        let mut ask = Ask {
            call: self.call_id(),
            session: Some(row.id),
            agent: Some(row.agent),
            colony: row.colony,
            caller: ENGINE.to_owned(),
            provider: quote.provider,
            model: quote.model,
            worst: Spend::NONE,
            at: self.0.clock.now(),
        };
        if request.max_output_tokens.is_none() && self.is_bounded(&ask).await.map_err(said)? {
            request.max_output_tokens = Some(estimate::OUTPUT);
        }
        let output = u64::from(request.max_output_tokens.unwrap_or(estimate::OUTPUT));
        ask.worst = Spend {
            microusd: quote.price.map(|price| price.worst(input, output)),
            tokens: input.saturating_add(output),
        };
        // It is taken before the decision, so that no later release is missed.
        let freed = self.freed();
        let ticket = match self.reserve(ask).await {
            Ok(ticket) => ticket,
            Err(BudgetError::Refused(refusal)) if refusal.is_temporary() => {
                return Err(Unheld::Later(freed));
            }
            Err(err) => return Err(said(err)),
        };
        let price = quote.price;
        let model = request.model.clone();
        Ok(Held { effect, ticket, model, price, input, output, streamed: 0, lost: 0, broken: 0 })
    }
}

/// Why nothing is reserved for a model call.
#[derive(Debug)]
pub(crate) enum Unheld {
    /// The failure that the session gets instead of a reply.
    Refused(ModelFailure),
    /// Only current reservations of other calls prevent it: it may be tried again when this
    /// changes.
    Later(watch::Receiver<u64>),
}

/// The refusal in the form that a session gets.
fn said(err: BudgetError) -> Unheld {
    Unheld::Refused(match err {
        BudgetError::Refused(refusal) => refused(&refusal),
        err @ (BudgetError::Twice(_) | BudgetError::Store(_)) => ModelFailure {
            code: "budget_unavailable".into(),
            message: match &err {
                BudgetError::Store(why) => format!("{err}: {why}"),
                BudgetError::Twice(_) | BudgetError::Refused(_) => err.to_string(),
            },
            status: None,
            body: None,
            transient: true,
        },
    })
}

fn refused(refusal: &Refusal) -> ModelFailure {
    ModelFailure {
        code: refusal.code().to_owned(),
        message: refusal.message(),
        status: Some(refusal.status()),
        // The session reads it to know which limit to increase.
        body: serde_json::to_string(refusal).ok(),
        transient: true,
    }
}

impl Held {
    pub(crate) fn is_of(&self, effect: EffectId) -> bool {
        self.effect == effect
    }

    /// Counts a piece of the reply.
    pub(crate) fn heard(&mut self, delta: &ModelDelta) {
        let bytes = |text: &str| text.len() as u64;
        match delta {
            ModelDelta::Text(text) | ModelDelta::Reasoning(text) => self.streamed += bytes(text),
            ModelDelta::ToolArgs { name, text } => self.streamed += bytes(name) + bytes(text),
            ModelDelta::Restarted { code, .. } => {
                self.broken += u64::from(self.streamed > 0 || !UNBILLED.contains(&code.as_str()));
                self.lost += std::mem::take(&mut self.streamed);
            }
        }
    }

    /// Ends the call with its result.
    pub(crate) fn finish(mut self, reply: Result<&ModelReply, &ModelFailure>, latency_ms: u64) {
        let failed = reply.is_err();
        let mut record = CallRecord::of(self.ticket.ask(), Ended::Completed);
        record.total_ms = latency_ms;
        match reply {
            Ok(reply) => {
                let (provider, format) =
                    reply.provider.split_once('/').unwrap_or((&reply.provider, ""));
                provider.clone_into(&mut record.provider);
                format.clone_into(&mut record.format);
                record.model.clone_from(&reply.model);
                record.status = 200;
                record.usage = reply.usage;
                // Attempts that broke off were billed, too.
                let lost = Usage {
                    input_tokens: self.input.saturating_mul(self.broken),
                    output_tokens: estimate::streamed_tokens(self.lost),
                    ..Usage::default()
                };
                record.usage.add(lost);
                record.at_most = lost != Usage::default();
                let known = reply.cost_microusd;
                let known = known.or_else(|| Some(self.price?.cost(&reply.usage)));
                let extra = self.price.map_or(0, |price| price.cost(&lost));
                let microusd = known.map(|known| known.saturating_add(extra));
                self.end(record, microusd);
            }
            Err(failure) => {
                record.status = failure.status.unwrap_or(0);
                record.ended = Ended::Failed;
                let silent = self.streamed + self.lost == 0;
                let billed = self.streamed > 0 || !UNBILLED.contains(&failure.code.as_str());
                if !billed && self.broken == 0 {
                    self.ticket.stage = Stage::Done;
                    let call = self.ticket.call();
                    let _ = self.ticket.budgets.end(call, Outcome::Nothing, record, UNWATCHED);
                } else {
                    record.ended = if silent { Ended::Failed } else { Ended::Cut };
                    self.broken += u64::from(billed);
                    self.end_as_streamed(record);
                }
            }
        }
        tracing::trace!(failed, "model call settled");
    }

    fn end(&mut self, mut record: CallRecord, microusd: Option<u64>) {
        self.ticket.stage = Stage::Done;
        record.asked.model = Some(std::mem::take(&mut self.model));
        let tokens = record.usage.input_tokens.saturating_add(record.usage.output_tokens);
        let outcome = Outcome::Spent(Spend { microusd, tokens });
        // It only needs its place in the queue, so nobody waits for the disk.
        let _ = self.ticket.budgets.end(self.ticket.call(), outcome, record, UNWATCHED);
    }

    /// Charges everything that was sent in attempts that may be billed, and everything that came
    /// back, both at their maximum.
    fn end_as_streamed(&mut self, mut record: CallRecord) {
        let now = estimate::streamed_tokens(self.streamed).min(self.output);
        record.usage = Usage {
            input_tokens: self.input.saturating_mul(self.broken),
            output_tokens: now.saturating_add(estimate::streamed_tokens(self.lost)),
            ..Usage::default()
        };
        record.at_most = true;
        let microusd = self.price.map(|price| price.cost(&record.usage));
        self.end(record, microusd);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.ticket.stage == Stage::Open {
            let record = CallRecord::of(self.ticket.ask(), Ended::Cancelled);
            self.broken += 1;
            self.end_as_streamed(record);
        }
    }
}
